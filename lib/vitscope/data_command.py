"""`vitscope data`: build, check and list the embedded files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitscope.terminal import plain_errors

data_app = typer.Typer(
    no_args_is_help=True, help="The embedded data: check it, or make it again from its sources."
)


@data_app.command("build")
def data_build(
    name: Annotated[str | None, typer.Argument(help="One embedded set.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every embedded set.")] = False,
    into: Annotated[Path | None, typer.Option(help="Write here and leave the embedded files alone.")] = None,
) -> None:
    """Make embedded data again from its public sources, and compare with the published checksums."""
    from vitscope.data import build as maker
    from vitscope.data import embedded

    if (name is None) != every:
        raise typer.BadParameter(f"give one name ({', '.join(maker.BUILDERS)}) or --all")
    different = 0
    with plain_errors():
        for each in maker.BUILDERS if every else [str(name)]:
            for path, same in maker.verify(each, into or embedded.root()).items():
                typer.echo(f"{'same' if same else 'DIFFERENT':<10} {path}")
                different += not same
    raise typer.Exit(int(different > 0))


@data_app.command("verify")
def data_verify() -> None:
    """Compare every embedded file with its published checksum."""
    from vitscope.data import embedded

    broken = 0
    for path in embedded.manifest():
        try:
            embedded.verified(path)
            typer.echo(f"ok   {path}")
        except embedded.DataIntegrityError as error:
            typer.echo(f"FAIL {error}")
            broken += 1
    raise typer.Exit(int(broken > 0))


@data_app.command(
    "manifest",
    help="Write `data/manifest.json` anew: for those who add or change an embedded file, "
    "never to silence a check.",
)
def data_manifest() -> None:
    from vitscope.data import embedded, provenance

    with plain_errors():
        for path in provenance.write_manifest(embedded.root()):
            typer.echo(path)
