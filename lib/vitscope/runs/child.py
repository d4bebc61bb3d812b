"""One try at running a notebook in a child process: start it, hear it out, leave nothing of it behind."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vitscope.runs import process, worker

Progress = Callable[[str, str], None]  # name of a notebook, and how far it is; empty once it has ended
_GLANCE = 0.05


def work(
    request: Mapping[str, Any],
    scratch: Path,
    marks: Mapping[str, str],
    deadline: float,
    stop: threading.Event,
    progress: Progress | None,
) -> tuple[str, str]:
    """Run `request` (see `worker`) and return its outcome and message.

    `marks` are environment variables for worker and kernel, `deadline` is in `time.monotonic` seconds, `stop`
    may be set from another thread. When this returns or raises, whatever the reason, no process of the try is
    left.
    """
    scratch.mkdir()
    process.write_kernelspec(scratch / "jupyter", process.kernel_command())
    log, token = scratch / "worker.log", uuid.uuid4().hex
    # sockets live in a folder of their own, because their paths must be short
    with tempfile.TemporaryDirectory(prefix="vs-") as runtime, log.open("w", encoding="utf-8") as errors:
        extra = {**marks, process.TOKEN: token, "JUPYTER_RUNTIME_DIR": runtime}
        child = subprocess.Popen(
            [sys.executable, "-m", "vitscope.runs.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8",
            env=process.environment(scratch, extra), start_new_session=True,
        )  # fmt: skip
        listener = _Listener(child, request, progress)
        try:
            listener.send(request)
            listener.wait(deadline, stop)
        finally:
            process.end_all(token)
            child.wait()
            listener.close()
    if listener.outcome is None:
        tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
        where = worker.STOPPED if listener.cell else worker.NOT_STARTED
        return where, "the worker ended without a word" + (": " + " / ".join(tail) if tail else "")
    return listener.outcome


class _Listener:
    """Reads what the worker says in a thread, so that the deadline holds even when it says nothing."""

    def __init__(
        self, child: subprocess.Popen[str], request: Mapping[str, Any], progress: Progress | None
    ) -> None:
        self.child, self.progress = child, progress
        self.name, self.cells = request["name"], request["cells"]
        self.cell = 0
        self.outcome: tuple[str, str] | None = None
        self.began = time.monotonic()
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def send(self, request: Mapping[str, Any]) -> None:
        assert self.child.stdin is not None  # we asked for a pipe
        self.child.stdin.write(json.dumps(dict(request)) + "\n")
        self.child.stdin.flush()

    def wait(self, deadline: float, stop: threading.Event) -> None:
        """Until the worker ends, its time is up, or `stop` is set."""
        while self.child.poll() is None:
            if time.monotonic() > deadline:
                return self._cut("the time allowed was up")
            if stop.wait(_GLANCE):
                return self._cut("the build ended early")
        return None

    def _cut(self, reason: str) -> None:
        where = f"in cell {self.cell}" if self.cell else "before its first cell"
        spent = time.monotonic() - self.began
        self.outcome = (worker.STOPPED, f"stopped {where} after {spent:.0f} s: {reason}")

    def close(self) -> None:
        """Hear everything said before the pipe closed, and close our end."""
        self.thread.join(timeout=5)
        if self.progress:
            self.progress(self.name, "")
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()

    def _listen(self) -> None:
        for line in self.child.stdout or ():
            message = json.loads(line)
            if "cell" in message:
                self.cell = message["cell"] + 1
                if self.progress:
                    spent = time.monotonic() - self.began
                    self.progress(self.name, f"cell {self.cell}/{self.cells}, {spent:.0f} s")
            elif self.outcome is None:
                self.outcome = (message["outcome"], message["message"])
