"""The code passes the linter, the formatter and the type checker, as pyproject.toml sets them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def check(tool: str, *arguments: str) -> None:
    if importlib.util.find_spec(tool) is None and not os.environ.get("CI"):
        pytest.skip(f"{tool} is not installed (it comes with the extra 'dev')")
    done = subprocess.run(
        [sys.executable, "-m", tool, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{tool} {' '.join(arguments)}\n{done.stdout}{done.stderr}"


def test_linter_finds_nothing():
    check("ruff", "check", ".")


def test_formatter_would_change_nothing():
    check("ruff", "format", "--check", ".")


def test_types_agree():
    check("mypy")
