"""`vitscope build`, `print` and `address`: the book as a site, as one page, and where it is published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitscope.terminal import Force, Profile, StatusLine, plain_errors, print_table, relative


def build(
    profile: Profile = "course",
    html: Annotated[Path, typer.Option(help="Where the site goes, relative to the book.")] = Path(
        "_build/html"
    ),
    force: Force = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "-j",
            "--jobs",
            show_default="one for each CPU core; 1 with a GPU",
            help="Notebooks that run at once; they share the CPU cores.",
        ),
    ] = None,
    repository: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Address on GitHub for the buttons of this build; else that of _config.yml."
        ),
    ] = None,
) -> None:
    """Build the book: run what must run, render, check every page, publish."""
    with plain_errors():
        from vitscope.runs import book

        with StatusLine() as line:
            built = book.build(
                profile, html, force=force, jobs=jobs, repository=repository, say=line.say,
                progress=line.show,
            )  # fmt: skip
    rows = [
        (c.page, "" if c.seconds is None else f"{c.seconds:.0f}", "reused" if c.reused else "")
        for c in built.chapters
    ]
    print_table(("chapter", "seconds", ""), rows)
    state = "unchanged, checked" if built.unchanged else "built"
    typer.echo(f"{state} in {built.seconds:.0f} s: {relative(built.html / 'index.html')}")


def print_(
    out: Annotated[Path, typer.Argument(metavar="[OUT]", help="Folder for page and PDF; replaced.")] = Path(
        "_build/print"
    ),
    profile: Profile = "course",
) -> None:
    """The book as one page and as a PDF, from notebooks that were run before."""
    with plain_errors():
        from vitscope.runs import printing

        with StatusLine() as line:
            printed = printing.print_book(out, profile, say=line.say)
    typer.echo(f"page    {relative(printed.page)}")
    if printed.pdf:
        typer.echo(f"pdf     {relative(printed.pdf)} ({printed.sheets} pages)")
    else:
        typer.echo(f"pdf     none: {printed.why_no_pdf}")
    typer.echo(f"in {printed.seconds:.0f} s")


def address(
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="The repository on GitHub; left out: show it.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take the address out again.")] = False,
) -> None:
    """Show or set the repository's address, in every file that names it."""
    with plain_errors():
        from vitscope.runs import address as addresses
        from vitscope.runs.layout import Project

        project = Project.find()
        if url is None and not clear:
            found = addresses.agreed(project)
            typer.echo(found or "no address is set; `vitscope address URL` writes it where it belongs")
            return
        if url is not None and clear:
            raise addresses.AddressError("give an address or --clear, not both")
        changed = addresses.write(project, url or "")
    for path in changed:
        typer.echo(f"changed {relative(path)}")
    typer.echo(f"{len(changed)} files changed" if changed else "nothing to change")
