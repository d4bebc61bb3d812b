"""Checkpoints one can be killed at any moment around: written aside, flushed, then moved into place."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from vitscope.pretrain.failures import TrainingError


def save(path: Path, state: dict[str, Any]) -> None:
    """Write tensors, numbers and text so that `path` always holds one whole checkpoint, old or new.

    Errors: `TrainingError` where it cannot be written, on a full disk for one. What was written aside is
    removed then, and the checkpoint before stays as it was.
    """
    temporary = path.with_suffix(".partial")
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch's writer reports a failed write as RuntimeError
        temporary.unlink(missing_ok=True)
        raise TrainingError(f"{path} could not be written ({_reason(error)}); {_left(path)}") from error


def _reason(error: BaseException) -> str:
    """The system's words, which torch's writer hides behind its own."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    return str(cause or error).partition("\n")[0]


def _left(path: Path) -> str:
    free = f"{shutil.disk_usage(path.parent).free / 2**20:,.0f} MiB are free"
    if not path.exists():
        return f"{free}, and there is no earlier checkpoint: make room and start again"
    return f"{free}; the checkpoint before is intact: make room, and the same command continues from it"


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint; only tensors and plain containers are accepted (`weights_only`)."""
    return torch.load(path, map_location="cpu", weights_only=True)
