"""`vitscope course`: the chapters as notebooks for students or for instructors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitscope.terminal import plain_errors, relative


def course(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that is new or empty.")],
    edition: Annotated[str, typer.Option(help="student or instructor.")],
    chapters: Annotated[
        str | None, typer.Option(help="Numbers or names with commas, as 03,07; all, if left out.")
    ] = None,
) -> None:
    """Write the chapters for a course: students get no solutions, instructors all of them and notes."""
    with plain_errors():
        from vitscope.runs import editions

        for path in editions.make(out, edition, chapters):
            typer.echo(relative(path.resolve()))
