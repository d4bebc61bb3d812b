"""On what a run ran: versions, machine, memory, and the commit of the checkout."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

from vitscope.runs.hashing import installed

RECORDED = (
    "vitscope", "torch", "torchvision", "timm", "numpy", "pandas", "scikit-learn", "scipy", "pyarrow",
    "pillow", "entmax", "datasets", "safetensors", "pydantic", "matplotlib", "seaborn", "papermill",
    "ipykernel",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Python and the distributions that can change a number or a figure."""
    found = {name: installed(name) for name in RECORDED}
    return {"python": platform.python_version(), **{name: v for name, v in found.items() if v}}


def commit_of(root: Path) -> tuple[str | None, bool | None]:
    """The checkout's commit, and whether lib, notebooks or data differ from it. (None, None) outside git."""
    head = _git(root, "rev-parse", "HEAD")
    if head is None:
        return None, None
    status = _git(root, "status", "--porcelain", "--", "lib", "notebooks", "data")
    return head, bool(status)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def peak_rss_mib() -> float | None:
    """The most memory this process has held, in MiB; None where the system does not tell (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes on macOS, KiB elsewhere
    return round(peak / unit, 1)


def gpu() -> tuple[str | None, float | None]:
    """Name of the GPU and the most memory torch has held on it, in MiB."""
    import torch

    if not torch.cuda.is_available():
        return None, None
    return torch.cuda.get_device_name(), round(torch.cuda.max_memory_allocated() / 2**20, 1)


def processor() -> str | None:
    """What the processor calls itself; None where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(named), None) or platform.processor() or None


def machine() -> str:
    """Operating system and processor family; no host or user name."""
    return f"{platform.system()} {platform.machine()}"
