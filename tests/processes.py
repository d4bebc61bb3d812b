"""Several processes that meet as `torchrun` makes them meet, on CPU."""

import os
import socket
import subprocess
import sys
from pathlib import Path


def run_two(script: str, folder: Path, *arguments: str | Path) -> None:
    """Run a Python script as two processes of one training; both must end well."""
    codes, errors = end_of_two(script, folder, *arguments)
    assert codes == [0, 0], errors


def end_of_two(
    script: str, folder: Path, *arguments: str | Path, timeout: float = 400
) -> tuple[list[int], list[str]]:
    """How two processes of a script end: their exit codes and what they said on stderr.

    A process that is stopped by a signal is not waited for: it counts as ended by the signal that ends it.
    """
    (folder / "worker.py").write_text(script)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    workers = [
        subprocess.Popen(
            [sys.executable, folder / "worker.py", *arguments],
            env=environment(
                RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port
            ),
            stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        first = workers[0].communicate(timeout=timeout)[1]
        if workers[0].returncode:  # the other may hang, on purpose
            workers[1].kill()
        second = workers[1].communicate(timeout=timeout)[1]
    finally:
        for w in workers:
            w.kill()
    return [w.returncode for w in workers], [first, second]


def environment(**more: object) -> dict[str, str]:
    """This process's environment with its module path, one thread, and these variables."""
    path = os.pathsep.join(p for p in sys.path if p)
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **{k: str(v) for k, v in more.items()}}
