"""`vitscope cache`: what the cache of features holds, whether it is whole, and making it smaller."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitscope.terminal import plain_errors, print_table, relative

if TYPE_CHECKING:
    from vitscope.store import Entry, Store

cache_app = typer.Typer(
    no_args_is_help=True, help="The cache of features: list it, check it, make it smaller."
)
Folder = Annotated[
    Path | None, typer.Option("--folder", help="The folder of the cache.", show_default=".vitscope/cache")
]


@cache_app.command("list")
def cache_list(folder: Folder = None) -> None:
    """List what is kept: of which backbone and pictures, how large, how old, when it was last used."""
    from vitscope.amounts import size_text

    with plain_errors():
        store = _store(folder)
        entries = store.entries()
        total = sum(entry.size for entry in entries)
        typer.echo(
            f"{relative(store.folder)} · {_count(len(entries))}, {size_text(total)} of at most "
            f"{size_text(store.limit)}"
        )
        print_table(
            ("kind", "backbone", "pictures", "size", "made", "last used"), [_row(entry) for entry in entries]
        )
        unfinished = store.unfinished()
        if unfinished:
            typer.echo(
                f"{len(unfinished)} being written, or left by a process that was killed; `vitscope cache "
                "prune` removes the latter"
            )
        _name_strangers(store)


@cache_app.command("verify")
def cache_verify(
    folder: Folder = None,
    repair: Annotated[bool, typer.Option("--repair", help="Remove the damaged entries.")] = False,
) -> None:
    """Read every entry in full and compare it with its digest; status 1 where one is damaged."""
    with plain_errors():
        store = _store(folder)
        count = len(store.entries())
        problems = store.verify()
        for problem in problems:
            typer.echo(f"FAIL {relative(problem.path)} {problem.what}")
        typer.echo(f"{_count(count)} read, {len(problems)} damaged")
        _name_strangers(store)
        if problems and not repair:
            typer.echo(
                "A damaged entry is never used: the next run that needs it builds it again. "
                "`vitscope cache verify --repair` removes it now."
            )
        elif problems:
            done = store.remove(problems)
            typer.echo(f"{_count(done.entries)} removed")
            _name_failures(done.failed)
    raise typer.Exit(int(bool(problems) and not repair))


@cache_app.command("prune")
def cache_prune(
    folder: Folder = None,
    limit: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Leave at most so much, such as 2GB; what was used last stays."),
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Remove what was not used for so long, such as 30d.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove every entry.")] = False,
) -> None:
    """Remove entries, and what killed processes left; without options, down to VITSCOPE_CACHE_LIMIT."""
    from vitscope.amounts import parse_age, parse_size, size_text

    with plain_errors():
        store = _store(folder)
        done = store.prune(
            limit=None if limit is None else parse_size(limit, "--limit"),
            older_than=None if older_than is None else parse_age(older_than, "--older-than"),
            everything=everything,
        )
        left = store.entries()
        typer.echo(
            f"{_count(done.entries)} removed, {size_text(done.bytes)} freed; "
            f"{_count(len(left))}, {size_text(sum(entry.size for entry in left))} left"
        )
        _name_failures(done.failed)


def _store(folder: Path | None) -> Store:
    from vitscope.runs.layout import Project
    from vitscope.store import Store

    return Store(Project.find().cache if folder is None else folder)


def _row(entry: Entry) -> tuple[str, ...]:
    from vitscope.amounts import age_text, size_text

    now, header = time.time(), entry.header
    about = {"backbone": "cannot be read"} if header is None else header.about
    return (
        entry.kind,
        about.get("backbone", "–"),
        about.get("pictures", "–"),
        size_text(entry.size),
        "–" if header is None else f"{age_text(now - header.created)} ago",
        f"{age_text(now - entry.used)} ago",
    )


def _name_strangers(store: Store) -> None:
    names = [path.name for path in store.strangers()]
    if names:
        typer.echo(f"not of this cache, left alone: {', '.join(names)}")


def _name_failures(failed: list[str]) -> None:
    if failed:
        typer.echo("could not be removed:\n" + "\n".join(f"  {line}" for line in failed))
        raise typer.Exit(1)


def _count(number: int) -> str:
    return f"{number} entry" if number == 1 else f"{number} entries"
