"""`vitscope train NAME`: one model of the zoo from nothing to a weight file and its card."""

import json
import platform
from pathlib import Path
from typing import Annotated

import torch
import typer

from vitscope.data import embedded, emoji
from vitscope.pretrain.contrastive import ContrastiveTrainer
from vitscope.pretrain.evaluate import identity_accuracy
from vitscope.pretrain.supervised import Trainer, TrainingError, read_log
from vitscope.pretrain.zoo import RECIPES, ContrastiveRecipe, read_weights


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
) -> None:
    """Train one model of the zoo; a second call continues where the last one stopped."""
    if name not in RECIPES:
        raise typer.BadParameter(f"unknown model {name!r}; there are {', '.join(RECIPES)}")
    if threads:
        torch.set_num_threads(threads)
    recipe = RECIPES[name]
    folder = out / f"{name}-seed{seed}"
    try:
        kind = ContrastiveTrainer if isinstance(recipe, ContrastiveRecipe) else Trainer
        trainer = kind(recipe, folder, seed=seed, device=device, compiled=compiled)
        done = trainer.run(minutes=minutes)
    except TrainingError as error:
        typer.echo(f"training {name} stopped: {error}", err=True)
        raise typer.Exit(1) from error
    if not done:
        typer.echo(f"{trainer.step} of {recipe.steps} steps done; the same command continues")
        return
    card = make_card(name, trainer.publish(folder, name), trainer, device=device)
    (folder / f"{name}.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    typer.echo(json.dumps(card["accuracy"], indent=1))
    typer.echo(f"weights and card in {folder}")


def make_card(name: str, weights: Path, trainer: Trainer, *, device: str) -> dict:
    """The card of a finished model; accuracies are those of the fp16 file that is published."""
    model, recipe = trainer.classifier(weights), RECIPES[name]
    return {
        "name": name,
        "command": f"vitscope train {name} --seed {trainer.seed} --threads {torch.get_num_threads()}"
        + (" --compile" if trainer.compiled else "")
        + ("" if device == "cpu" else f" --device {device}"),
        "seed": trainer.seed,
        "recipe": recipe.describe(),
        "parameters": sum(p.numel() for p in read_weights(weights)[0].parameters()),
        "data": {
            "emoji": embedded.digest(f"emoji/{recipe.style}.parquet"),
            "render": emoji.Recipe(background_part="train", scale=recipe.scale).describe(),
        },
        "seconds": round(trainer.seconds),
        "device": device if device != "cpu" else f"cpu, {torch.get_num_threads()} thread(s)",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "accuracy": {
            style: identity_accuracy(model, style=style, scale=recipe.scale) for style in emoji.STYLES
        },
        "curve": [
            {key: entry[key] for key in ("images", "loss", "train_top1")}
            for entry in read_log(trainer.folder)
            if entry["step"] % 200 == 0 or entry["step"] == recipe.steps
        ],
        "sha256": embedded.sha256(weights),
        "licence": "MIT",
    }
