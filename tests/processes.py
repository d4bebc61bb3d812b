"""Several processes that meet as `torchrun` makes them meet, on CPU."""

import os
import socket
import subprocess
import sys
from pathlib import Path


def run_two(script: str, folder: Path, *arguments: str | Path) -> None:
    """Run a Python script as two processes of one training; both must end well."""
    (folder / "worker.py").write_text(script)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    workers = [
        subprocess.Popen(
            [sys.executable, folder / "worker.py", *arguments],
            env={
                **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            },
            stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        errors = [w.communicate(timeout=400)[1] for w in workers]
    finally:
        for w in workers:
            w.kill()
    assert [w.returncode for w in workers] == [0, 0], errors
