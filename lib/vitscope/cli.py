"""The `vitscope` command: run a notebook, build the book, list what there is, check the machine.

Everything heavy is imported inside the command that needs it: `vitscope --help` answers at once, and training
on a rented GPU needs no notebook tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import typer

from vitscope.course_command import course
from vitscope.data_command import data_app
from vitscope.terminal import StatusLine, plain_errors, print_table, relative

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Inside the Vision Transformer: run its notebooks, build its book.",
)
app.add_typer(data_app, name="data")

Profile = Annotated[str, typer.Option("--profile", help="smoke, course, colab or paper.")]
DIGITS = {
    **dict.fromkeys(("accuracy", "low", "high", "behind", "per_block", "per_gflop"), 1),
    **dict.fromkeys(("share", "milliseconds", "milliseconds_total"), 3),
}
PREDICT = """From a folder of pictures to classes, with the saved head, in Python:

from vitscope import fuse

found = fuse.predict("FOLDER/head.safetensors", "PICTURES")  # id, class, probability

found.to_csv("classes.csv", index=False)"""
Force = Annotated[
    bool, typer.Option("--force", help="Run again even where a result of the same inputs is there.")
]


@app.command()
def run(
    notebook: Annotated[str, typer.Argument(help="Name of a chapter, or the path of a notebook.")],
    profile: Profile = "course",
    parameter: Annotated[
        list[str],
        typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="Change one parameter; repeatable."),
    ] = [],  # noqa: B006  (typer reads the default)
    force: Force = False,
    timeout: Annotated[
        float | None, typer.Option(min=1, help="Seconds after which the run is stopped.")
    ] = None,
) -> None:
    """Run one notebook, or reuse its result when nothing that matters has changed."""
    with plain_errors():
        from vitscope.runs import runner

        job = runner.plan(notebook, profile, text=split_parameters(parameter))
        with StatusLine() as line:
            result = runner.execute(job, force=force, timeout=timeout, progress=line.show)
    record, spent = result.record, result.record.volatile.seconds
    verb = "reused, ran in" if result.reused else "ran in"
    typer.echo(f"{record.notebook} · {record.profile} · {verb} {spent:.0f} s")
    if record.profile == "smoke":
        typer.echo("smoke run: the numbers only show that everything works")
    print_table(("number", "value", "n"), [(k, v.text, v.n or "") for k, v in record.numbers.items()])
    for remark in record.remarks:
        typer.echo(f"! {remark.about}: {remark.text}")
    typer.echo(f"notebook  {relative(result.notebook)}\nrecord    {relative(result.folder / 'record.json')}")


@app.command()
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
) -> None:
    """Build the book: run what must run, render, check every page, publish."""
    with plain_errors():
        from vitscope.runs import book

        with StatusLine() as line:
            built = book.build(profile, html, force=force, jobs=jobs, say=line.say, progress=line.show)
    rows = [
        (c.page, "" if c.seconds is None else f"{c.seconds:.0f}", "reused" if c.reused else "")
        for c in built.chapters
    ]
    print_table(("chapter", "seconds", ""), rows)
    state = "unchanged, checked" if built.unchanged else "built"
    typer.echo(f"{state} in {built.seconds:.0f} s: {relative(built.html / 'index.html')}")


@app.command()
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


@app.command()
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


@app.command()
def advise(
    source: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Folder of a finished run, or a chapter: its latest course run."),
    ],
    backbone: Annotated[str | None, typer.Option(help="One backbone of the run; all, if left out.")] = None,
    token: Annotated[str, typer.Option(help="What the probes read: cls or patch_mean.")] = "patch_mean",
    points: Annotated[
        float, typer.Option(min=0, help="Percentage points of accuracy that may be given up.")
    ] = 0.5,
    measure: Annotated[bool, typer.Option("--time", help="Also measure milliseconds per picture.")] = False,
) -> None:
    """Where to stop a backbone and what to fine-tune, read from the probes and costs of a finished run."""
    with plain_errors():
        from vitscope import advice
        from vitscope.errors import unknown
        from vitscope.layerwise import KINDS

        if token not in KINDS:
            raise unknown("token", token, KINDS)
        record, tables = advice.read_run(advice.find_run(source))
        found = advice.advise_backbones(tables, token=KINDS[token], backbone=backbone, points=points)
        times = {name: milliseconds(name, one.depth) for name, one in found.items()} if measure else {}
    typer.echo(f"{record.notebook} · {record.profile} · {record.run_id} · probes of the {KINDS[token]}")
    if record.profile == "smoke":
        typer.echo("smoke run: the numbers only show that everything works")
    for name, one in found.items():
        typer.echo(f"\n{name}: {one.text}")
        shown = one.evidence.assign(beaten=one.evidence["beaten"].map({True: "yes", False: "no"}))
        if name in times:
            spent = times[name].set_index("state")["milliseconds_total"]
            there, whole = spent[one.truncate], spent.iloc[-1]
            typer.echo(f"Measured: {there:.2f} of {whole:.2f} ms per picture up to state {one.truncate}.")
            shown = shown.merge(times[name], on="state")
        cells = shown.round(DIGITS).astype(object).where(shown.notna(), "")
        print_table(list(cells.columns), cells.itertuples(index=False))


@app.command(epilog=PREDICT)
def fuse(
    backbone: Annotated[str, typer.Option(help="A zoo name, any ViT of timm, or a zoo file.")],
    source: Annotated[
        str,
        typer.Option(
            "--data", help="A folder of CLASS/*.jpg, or of train and test with those; or a dataset's name."
        ),
    ],
    test: Annotated[str | None, typer.Option(help="Test on this folder or dataset instead.")] = None,
    weights: Annotated[str | None, typer.Option(help="random, or a weight file of your own.")] = None,
    head: Annotated[str, typer.Option(help="The head to save.")] = "VFusion",
    every: Annotated[bool, typer.Option("--all", help="Compare all ten heads.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the head, made anew; runs/fuse/… if left out.")
    ] = None,
    images: Annotated[int | None, typer.Option(min=10, help="Learn from at most so many.")] = None,
    test_images: Annotated[int | None, typer.Option(min=2, help="Test on at most so many.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draws, splits and starts.")] = 0,
    tokens: Annotated[str, typer.Option(help="What stands for a state: cls or patch_mean.")] = "cls",
    norm: Annotated[str, typer.Option(help="Norm applied to a state: none, final or layer.")] = "none",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    img_size: Annotated[int | None, typer.Option(help="Pixels a side, if not the backbone's own.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Keep features here for another call.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the head in a folder that exists.")
    ] = False,
) -> None:
    """Fit probes and fusion heads to your own pictures, compare them, and save one head that predicts."""
    with plain_errors():
        from vitscope import fuse as fusing

        folder = out or fusing.default_out(backbone, source, head)
        fusing.check_out(folder, force=force)
        with StatusLine() as line:
            fused = fusing.fuse(
                backbone, source, test=test, weights=weights, head=head, every=every, images=images,
                test_images=test_images, seed=seed, tokens=tokens, norm=norm, device=device,
                img_size=img_size, cache=cache, say=lambda step: line.show("fuse", step),
            )  # fmt: skip
        saved = fused.save(folder, force=force)
    typer.echo(fused.title)
    shown = fused.shown
    print_table(list(shown.columns), shown.itertuples(index=False))
    for remark in fused.remarks:
        typer.echo(f"! {remark}")
    typer.echo(f"head    {relative(saved)}")


def milliseconds(name: str, depth: int) -> Any:
    """Milliseconds per picture of each state, measured here; weights do not matter, so random ones do."""
    from vitscope import advice, backbones, cost

    backbone = backbones.load(name, weights="random")
    if backbone.depth != depth:
        raise advice.RunRefused(f"{name} has {backbone.depth} blocks here, but {depth} in the run")
    return cost.layer_milliseconds(backbone)


@app.command("list")
def list_(
    what: Annotated[
        str, typer.Argument(help="notebooks, backbones, data, runs, or the name of a notebook.")
    ] = "notebooks",
) -> None:
    """List notebooks, backbones, datasets or finished runs; for a notebook, its parameters."""
    from vitscope import listing

    with plain_errors():
        found = listing.listing(what)
    typer.echo(found.title)
    print_table(found.columns, found.rows)
    if found.footer:
        typer.echo(found.footer)


@app.command()
def doctor(
    offline: Annotated[bool, typer.Option("--offline", help="Do not try to reach the hub.")] = False,
) -> None:
    """Say within seconds what works on this machine, and what to do about what does not."""
    from vitscope import doctor as checks

    failed = False
    for check in checks.examine(offline=offline):
        colour = {"ok": "green", "note": "yellow", "FAIL": "red"}[check.state]
        typer.secho(f"{check.state:>4}  ", fg=colour, nl=False)
        typer.echo(f"{check.name:<12} {check.detail}")
        failed |= check.state == "FAIL"
    raise typer.Exit(int(failed))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def train(context: typer.Context) -> None:
    """Train a model of the zoo from nothing; `vitscope train --help` says how."""
    from vitscope.pretrain.command import train as command

    trainer = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    trainer.command()(command)
    trainer(args=context.args, prog_name="vitscope train")


app.command()(course)


def split_parameters(texts: Sequence[str]) -> dict[str, str]:
    """`["a=1", "b=x=y"]` as `{"a": "1", "b": "x=y"}`; the schema reads the values."""
    from vitscope.runs.parameters import ParameterError

    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ParameterError(f"-p {text}: expected NAME=VALUE")
        if name.strip() in found:
            raise ParameterError(f"-p {name.strip()} is given twice")
        found[name.strip()] = value
    return found
