"""Starting a worker with its kernel, and ending both, whatever happens.

Kernels start in a session of their own, so killing a process group does not reach them, and a kernel in a
long computation may not notice that its parent died. Every process of a run therefore carries the run's token
in its environment, and the end of a run is the end of everything that carries it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

import vitscope

TOKEN = "VITSCOPE_RUN_TOKEN"
KERNEL = "vitscope"
LONGEST_RUNTIME = 48  # a socket's path holds about 104 characters, of which jupyter_client takes 50


def kernel_command() -> list[str]:
    """The running interpreter's kernel, without history: its database fails on shared homes."""
    return [
        sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}",
        "--HistoryManager.enabled=False", "--HistoryManager.hist_file=:memory:",
    ]  # fmt: skip


def write_kernelspec(folder: Path, command: list[str]) -> None:
    """A private kernelspec below `folder`, found through JUPYTER_PATH whatever is installed elsewhere."""
    spec = folder / "kernels" / KERNEL
    spec.mkdir(parents=True, exist_ok=True)
    content = {"argv": command, "display_name": "Python 3 (vitscope)", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(content), encoding="utf-8")


def transport(runtime: Path) -> str:
    """How kernel and worker talk: by sockets in `runtime`, which no other job can race for.

    By ports where the system has no such sockets, or where their paths would be too long.
    """
    return "ipc" if os.name == "posix" and len(str(runtime)) < LONGEST_RUNTIME else "tcp"


def environment(scratch: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment with everything that jobs could share moved to `scratch`."""
    package_parent = str(Path(vitscope.__file__).resolve().parents[1])
    paths = [package_parent, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "JUPYTER_PATH": str(scratch / "jupyter"),
        "JUPYTER_RUNTIME_DIR": str(scratch / "runtime"),
        "JUPYTER_CONFIG_DIR": str(scratch / "config"),
        "IPYTHONDIR": str(scratch / "ipython"),
        "JUPYTER_PLATFORM_DIRS": "1",
        "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in dict.fromkeys(paths)),
        "PYTHONHASHSEED": "0",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "TQDM_DISABLE": "1",
        # bars are off, so tqdm's wish for notebook widgets is noise, and noise on stderr fails the book
        "PYTHONWARNINGS": ",".join(
            filter(None, [os.environ.get("PYTHONWARNINGS"), "ignore:IProgress not found"])
        ),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        **extra,
    }


def carrying(token: str) -> list[psutil.Process]:
    """Every living process that was started for the run of this token."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(TOKEN) == token and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):  # gone meanwhile, or another user's
            continue
    return found


def end_all(token: str, *, patience: float = 2.0) -> int:
    """Kill every process of a run except the caller and wait for their end. Returns how many were alive."""
    alive = [process for process in carrying(token) if process.pid != os.getpid()]
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=patience)
    return len(alive)
