"""Runs: typed parameters, execution of notebooks, records, and the book made of them.

In a notebook: `run = runs.begin("01_phase_curves", profile=profile, …)`. Outside:
`runs.run("01_phase_curves", "course", images=1000)`. Names are loaded when first used, so that a kernel
does not import the runner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitscope.runs.book import build
    from vitscope.runs.compare_runs import compare
    from vitscope.runs.record import Record
    from vitscope.runs.runner import run
    from vitscope.runs.session import Run, begin

__all__ = ["Record", "Run", "begin", "build", "compare", "run"]

_HOMES = {
    "Record": "vitscope.runs.record",
    "Run": "vitscope.runs.session",
    "begin": "vitscope.runs.session",
    "build": "vitscope.runs.book",
    "compare": "vitscope.runs.compare_runs",
    "run": "vitscope.runs.runner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
