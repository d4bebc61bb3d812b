"""What the commands share: errors for people, tables, a line that follows what runs now, common options."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

Profile = Annotated[str, typer.Option("--profile", help="smoke, course, colab or paper.")]
Force = Annotated[
    bool, typer.Option("--force", help="Run again even where a result of the same inputs is there.")
]


@contextmanager
def plain_errors() -> Iterator[None]:
    """Errors that this library defines are written for people; any other is a bug and keeps its traceback."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("vitscope"):
            raise
        typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
        typer.echo(str(error), err=True)
        raise typer.Exit(2 if isinstance(error, ValueError) else 1) from error


class StatusLine:
    """A line on a terminal that follows what runs now; elsewhere nothing, so that logs stay short.

    Notebooks that run at once report from threads of their own, hence the lock.
    """

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.running: dict[str, str] = {}
        self.lock = threading.Lock()
        self.drawn = 0

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self._draw("")

    def show(self, name: str, state: str) -> None:
        """How far a notebook is; an empty `state` takes it off the line."""
        with self.lock:
            self.running[name] = state
            if not state:
                del self.running[name]
            self._draw(self._text())

    def say(self, text: str) -> None:
        """A line that stays, above this one."""
        with self.lock:
            self._draw("")
            typer.echo(text)
            self._draw(self._text())

    def _text(self) -> str:
        """As many notebooks as fit into the terminal's width, and how many more there are."""
        width = shutil.get_terminal_size().columns - 1
        parts = [f"{name}: {state}" for name, state in self.running.items()]
        for kept in range(len(parts), 0, -1):
            more = [f"and {len(parts) - kept} more"] if kept < len(parts) else []
            if len(text := " | ".join(parts[:kept] + more)) <= width:
                return text
        return parts[0][:width] if parts else ""

    def _draw(self, text: str) -> None:
        if self.terminal and (text or self.drawn):
            typer.echo("\r" + text.ljust(self.drawn) + ("" if text else "\r"), nl=False, err=True)
            self.drawn = len(text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A plain aligned table; nothing where there are no rows."""
    rows = [[str(cell) for cell in row] for row in rows]
    if not rows:
        return
    widths = [max(len(line[i]) for line in [list(columns), *rows]) for i in range(len(columns))]
    for line in [list(columns), *rows]:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def relative(path: Path) -> str:
    """A path as short as it can be from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
