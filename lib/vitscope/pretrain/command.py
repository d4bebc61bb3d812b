"""`vitscope train NAME`: one model of the zoo from nothing to a weight file and its card."""

import json
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from vitscope.data import embedded, emoji
from vitscope.pretrain.contrastive import ContrastiveTrainer
from vitscope.pretrain.dino import DinoTrainer
from vitscope.pretrain.dino_folder import FolderViews
from vitscope.pretrain.dino_recipe import DinoRecipe
from vitscope.pretrain.evaluate import identity_accuracy
from vitscope.pretrain.failures import TrainingError
from vitscope.pretrain.log import read_log
from vitscope.pretrain.recipes import RECIPES, published_name
from vitscope.pretrain.supervised import Trainer
from vitscope.pretrain.zoo import ContrastiveRecipe, SupervisedRecipe, read_weights


def train(
    name: Annotated[str, typer.Argument(help="A model of the zoo.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, order and renders.")] = 0,
    minutes: Annotated[float | None, typer.Option(min=0.0, help="Stop after so long; resumable.")] = None,
    out: Annotated[Path, typer.Option(help="Where checkpoints, log and result go.")] = Path("runs/train"),
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; part of bit-equality.")] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Faster kernels; needs a C++ compiler, not bit-equal.")
    ] = False,
    images: Annotated[
        Path | None, typer.Option(help="Folder of pictures, for models that learn from your own.")
    ] = None,
) -> None:
    """Train one model of the zoo; a second call continues where the last one stopped.

    On several devices: torchrun --nproc-per-node N -m vitscope train NAME --device cuda. The numbers are
    those of one process up to rounding, and a run may go on with another number of processes.
    """
    if name not in RECIPES:
        raise typer.BadParameter(f"unknown model {name!r}; there are {', '.join(RECIPES)}")
    if threads:
        torch.set_num_threads(threads)
    recipe = RECIPES[name]
    folder = out / f"{name}-seed{seed}"
    try:
        trainer = make_trainer(recipe, folder, seed=seed, device=device, compiled=compiled, images=images)
        done = trainer.run(minutes=minutes)
        trainer.ranks.leave()
    except TrainingError as error:
        typer.echo(f"training {name} stopped: {error}", err=True)
        raise typer.Exit(1) from error
    if not trainer.writes:
        return
    if not done:
        typer.echo(f"{trainer.step} of {recipe.steps} steps done; the same command continues")
        return
    published = published_name(name, seed)
    try:
        card = make_card(name, trainer.publish(folder, published), trainer, device=device)
        (folder / f"{published}.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        typer.echo(f"{name} is trained but not written: {error}; the same command writes it", err=True)
        raise typer.Exit(1) from error
    typer.echo(json.dumps(card["accuracy"], indent=1))
    typer.echo(f"weights and card in {folder}")


def make_trainer(
    recipe: SupervisedRecipe,
    folder: Path,
    *,
    seed: int,
    device: str = "cpu",
    compiled: bool = False,
    images: Path | None = None,
) -> Trainer:
    """The trainer of a recipe. `images` is the folder of pictures of recipes that learn from one's own.

    Errors: `TrainingError` where a recipe needs a folder and none is given, where one is given to a recipe
    that renders its own pictures, and for a folder without pictures.
    """
    own = isinstance(recipe, DinoRecipe) and recipe.source == "folder"
    if own != (images is not None):
        said = (
            "needs a folder of pictures: give --images FOLDER"
            if own
            else "renders its own pictures: leave out --images"
        )
        raise TrainingError(f"this recipe {said}")
    options: dict[str, Any] = {"seed": seed, "device": device, "compiled": compiled}
    if isinstance(recipe, ContrastiveRecipe):
        return ContrastiveTrainer(recipe, folder, **options)
    if not isinstance(recipe, DinoRecipe):
        return Trainer(recipe, folder, **options)
    try:
        views = None if images is None else FolderViews(images, recipe, seed, device=device)
    except ValueError as error:
        raise TrainingError(str(error)) from error
    return DinoTrainer(recipe, folder, views=views, **options)


def make_card(name: str, weights: Path, trainer: Trainer, *, device: str) -> dict:
    """The card of a finished model; accuracies are those of the fp16 file that is published."""
    recipe, world = RECIPES[name], trainer.ranks.world
    renders = getattr(recipe, "source", "emoji") == "emoji"
    if renders:
        data = {
            "emoji": embedded.digest(f"emoji/{recipe.style}.parquet"),
            "render": emoji.Recipe(background_part="train", scale=recipe.scale).describe(),
        }
        model = trainer.classifier(weights)
        # of a model without a head: that of the nearest of four renders of each identity
        accuracy = {
            style: identity_accuracy(model, style=style, scale=recipe.scale) for style in emoji.STYLES
        }
    else:
        views: Any = trainer.views  # type: ignore[attr-defined]
        data, accuracy = views.describe(), {}
    return {
        "name": published_name(name, trainer.seed),
        "command": (f"torchrun --nproc-per-node {world} -m " if world > 1 else "")
        + f"vitscope train {name} --seed {trainer.seed} --threads {torch.get_num_threads()}"
        + ("" if renders else " --images FOLDER")
        + (" --compile" if trainer.compiled else "")
        + ("" if device == "cpu" else f" --device {device}"),
        "seed": trainer.seed,
        "recipe": recipe.describe(),
        "parameters": sum(p.numel() for p in read_weights(weights)[0].parameters()),
        "data": data,
        "seconds": round(trainer.seconds),
        "device": device if device != "cpu" else f"cpu, {torch.get_num_threads()} thread(s)",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "accuracy": accuracy,
        "curve": list(_curve(trainer.folder, recipe.steps)),
        "sha256": embedded.sha256(weights),
        "licence": "MIT",
    }


def _curve(folder: Path, steps: int) -> Iterator[dict]:
    """The training log thinned out: every 200 steps, the last one, and wherever something was monitored."""
    for entry in read_log(folder):
        monitored = any(key.startswith("knn_") for key in entry)
        if entry["step"] % 200 == 0 or entry["step"] == steps or monitored:
            yield {k: v for k, v in entry.items() if k not in ("step", "rate", "seconds")}
