"""Sphinx over the staging tree: jupyter-book from clean, warnings as errors, its complaints made short."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

_COMMAND = "from jupyter_book.cli.main import main; main()"
_MOST_SHOWN = 40


class BuildFailed(RuntimeError):
    """Sphinx refused the book; the message holds its warnings, which count as errors."""


def render(staged: Path, output: Path, builder: str = "html") -> Path:
    """jupyter-book on the staging tree, from clean, warnings as errors. Returns the folder of the pages.

    Errors: `BuildFailed`.
    """
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    command = [
        sys.executable, "-c", _COMMAND, "build", str(staged), "--path-output", str(output),
        "--builder", builder, "-W", "-n", "--keep-going",
    ]  # fmt: skip
    log = output / "build.log"
    with log.open("w", encoding="utf-8") as file:
        environment = {**os.environ, "PYTHONWARNINGS": "ignore", "NO_COLOR": "1"}
        done = subprocess.run(
            command, cwd=output, stdout=file, stderr=subprocess.STDOUT, env=environment, check=False
        )
    html = output / "_build" / builder
    if done.returncode or not (html / "index.html").is_file():
        raise BuildFailed(f"{_complaints(log, staged)}\nThe whole log: {log}")
    return html


def _complaints(log: Path, staged: Path) -> str:
    """Sphinx's warnings and errors with paths as in the repository, or the log's end when it crashed."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(encoding="utf-8", errors="replace"))
    lines = [line.replace(f"{staged}{os.sep}", "") for line in text.splitlines() if line.strip()]
    loud = [line for line in lines if re.search(r"\b(WARNING|ERROR|CRITICAL|Exception|Error):", line)]
    shown = (loud or lines[-20:])[:_MOST_SHOWN]
    return "\n".join(shown)


def replace(new: Path, target: Path) -> None:
    """Put a folder in place of another in one rename; readers never see half a site."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}-{uuid.uuid4().hex[:8]}")
    old = fresh.with_suffix(".old")
    shutil.copytree(new, fresh)
    if target.exists():
        target.rename(old)
    fresh.rename(target)
    shutil.rmtree(old, ignore_errors=True)
