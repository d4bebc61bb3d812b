"""The `vitscope` command: run a notebook, build the book, list what there is, check the machine.

Everything heavy is imported inside the command that needs it: `vitscope --help` answers at once, and training
on a rented GPU needs no notebook tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from vitscope import book_command, claims_command, frozen_command, sweep_command
from vitscope.cache_command import cache_app
from vitscope.course_command import course
from vitscope.data_command import data_app
from vitscope.terminal import Force, Profile, StatusLine, plain_errors, print_table, relative

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Inside the Vision Transformer: run its notebooks, build its book.",
)
app.add_typer(data_app, name="data")
app.add_typer(cache_app, name="cache")


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


app.command()(book_command.build)
app.command("print")(book_command.print_)
app.command()(book_command.address)
app.command()(claims_command.claims)
app.command()(claims_command.compare)
app.command()(frozen_command.advise)
app.command(epilog=frozen_command.PREDICT)(frozen_command.fuse)
app.command()(sweep_command.sweep)


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
