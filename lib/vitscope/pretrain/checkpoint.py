"""Checkpoints one can be killed at any moment around: written aside, flushed, then moved into place."""

import os
from pathlib import Path
from typing import Any

import torch


def save(path: Path, state: dict[str, Any]) -> None:
    """Write tensors, numbers and text so that `path` always holds one whole checkpoint, old or new."""
    temporary = path.with_suffix(".partial")
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint; only tensors and plain containers are accepted (`weights_only`)."""
    return torch.load(path, map_location="cpu", weights_only=True)
