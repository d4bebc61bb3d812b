"""`vitscope claims` and `vitscope compare`: what records say about the papers' claims, and about the book."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import Annotated

import typer

from vitscope.terminal import plain_errors, print_table, relative


def claims(
    claim: Annotated[str | None, typer.Argument(metavar="[ID]", help="One claim in full, as A2.")] = None,
    paper: Annotated[str | None, typer.Option(help="A, B or C.")] = None,
    verdict: Annotated[str | None, typer.Option(help="reproduced, partly, contradicted, …")] = None,
    setting: Annotated[str | None, typer.Option(help="twin or paper.")] = None,
    records: Annotated[Path | None, typer.Option(help="Judge the records in this folder instead.")] = None,
) -> None:
    """What the papers claim, and what the records say about it; ours is the mean over seeds and its range."""
    with plain_errors():
        from vitscope.errors import unknown
        from vitscope.runs import claims as ledgers
        from vitscope.runs import verdicts as judge

        ledger = ledgers.load()
        allowed = {"paper": judge.PAPERS, "verdict": judge.DECISIONS, "setting": judge.SETTINGS}
        for name, value in (("paper", paper), ("verdict", verdict), ("setting", setting)):
            if value not in (None, *allowed[name]):
                raise unknown(name, value, allowed[name])
        chosen = ledger.claim(claim) if claim else None
        found = judge.verdicts(
            ledger, ledgers.read_records(records) if records else ledgers.published_records()
        )
    found = [
        v
        for v in found
        if claim in (None, v.id) and verdict in (None, v.verdict) and setting in (None, v.setting)
        if paper in (None, ledger.claim(v.id).paper)
    ]
    if chosen:
        typer.echo(judge.in_full(chosen, found))
        return
    table = judge.table(ledger, found).drop(columns="seeds")
    table["statement"] = [shorten(text, 56, placeholder=" …") for text in table["statement"]]
    print_table(list(table.columns), table.itertuples(index=False))
    counts = [f"{n} {name}" for name, n in table["verdict"].value_counts(sort=False).items()]
    typer.echo(", ".join(counts) or "no claim like this")


def compare(
    mine: Annotated[
        str,
        typer.Argument(metavar="MY_RUN", help="A record.json, a run's folder, or a chapter: its newest run."),
    ],
    reference: Annotated[
        Path | None, typer.Option("--with", help="A record or a folder of them, in place of the book's.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write the comparison as a page here.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also show numbers within tolerance.")] = False,
) -> None:
    """What differs between a run and the book, and whether it matters; exit status 1 where a number does."""
    with plain_errors():
        from vitscope.runs import compare_report, compare_runs, compare_sources

        record = compare_sources.find(mine)
        theirs = compare_sources.references(record, reference)
        found = compare_runs.compare(record, theirs, against="reference" if reference else "book")
        if html:
            compare_sources.save(compare_report.page(found, every=every), html)
    typer.echo(compare_report.report(found, every=every))
    if html:
        typer.echo(f"page    {relative(html)}")
    raise typer.Exit(int(found.exceeds))
