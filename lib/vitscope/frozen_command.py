"""`vitscope advise` and `vitscope fuse`: what a frozen backbone is good for, block by block and fused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitscope.terminal import StatusLine, plain_errors, print_table, relative

DIGITS = {
    **dict.fromkeys(("accuracy", "low", "high", "behind", "per_block", "per_gflop"), 1),
    **dict.fromkeys(("share", "milliseconds", "milliseconds_total"), 3),
}
PREDICT = """From a folder of pictures to classes, with the saved head, in Python:

from vitscope import fuse

found = fuse.predict("FOLDER/head.safetensors", "PICTURES")  # id, class, probability

found.to_csv("classes.csv", index=False)"""


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
