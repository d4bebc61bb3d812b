"""The zoo described from its cards, and its cards checked against its files, for the zoo appendix."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch

from vitscope import plotting
from vitscope.backbones import Backbone
from vitscope.data import embedded
from vitscope.data.images import Images
from vitscope.intervals import bootstrap_mean
from vitscope.pretrain.names import own_classifier

Cards = Mapping[str, dict]


def card_table(cards: Cards) -> pd.DataFrame:
    """One row per model: shape, data, time, and accuracies in percent."""
    rows = []
    for name, card in cards.items():
        shape = card["recipe"]["architecture"]
        own, *others = card["accuracy"].values()
        row = {
            "model": name,
            "blocks": shape["depth"],
            "width": shape["width"],
            "heads": shape["heads"],
            "parameters (M)": card["parameters"] / 1e6,
            "images seen": f"{card['recipe']['images']:,}",
            "minutes": card["seconds"] / 60,
            f"top-1 {own['style']}": own["top1"],
            f"top-5 {own['style']}": own["top5"],
            f"group {own['style']}": own["group"],
        }
        row |= {f"top-1 {o['style']}": o["top1"] for o in others}
        row |= {f"group {o['style']}": o["group"] for o in others}
        rows.append(row | {"chance": own["chance_top1"]})
    return pd.DataFrame(rows)


def training_curves(cards: Cards) -> plotting.Figure:
    """Training top-1 against images seen."""
    rows = [
        {"model": name, "images seen": point["images"], "training top-1 (%)": 100 * point["train_top1"]}
        for name, card in cards.items()
        for point in card["curve"]
    ]
    table = pd.DataFrame(rows)
    ends = ", ".join(f"{name} {100 * card['curve'][-1]['train_top1']:.1f} %" for name, card in cards.items())
    return plotting.layer_curves(
        table,
        x="images seen",
        y="training top-1 (%)",
        hue="model",
        order=list(cards),
        title="Naming the emoji of a training render",
        ylabel="training top-1 (%)",
        name="training_curves",
        alt=f"Training top-1 accuracy against images seen, rising to the end of the schedule: {ends}.",
    )


def recheck(models: Mapping[str, Backbone], cards: Cards, test: Images) -> pd.DataFrame:
    """Top-1 of each embedded model on `test`, measured now, and whether file and card agree on the digest."""
    rows = []
    for name, model in models.items():
        correct = _correct(model, test)
        interval = bootstrap_mean(100.0 * correct, clusters=test.extras.get("identity"))
        rows.append(
            {
                "model": name,
                "top1": float(interval.mean),
                "low": float(interval.low),
                "high": float(interval.high),
                "on the card": next(iter(cards[name]["accuracy"].values()))["top1"],
                "digest agrees": cards[name]["sha256"] == embedded.digest(f"zoo/{name}.safetensors"),
            }
        )
    return pd.DataFrame(rows)


@torch.inference_mode()
def _correct(model: Backbone, test: Images, batch: int = 128) -> np.ndarray:
    answers, found = own_classifier(model), []
    for start in range(0, len(test), batch):
        inputs = model.transform(test.pixels(slice(start, start + batch))).to(model.device)
        found.append(answers(inputs).argmax(1).cpu().numpy())
    return np.concatenate(found) == test.labels


def command_table(cards: Cards) -> pd.DataFrame:
    """The command, seed, versions and digest of each model."""
    rows = [
        {
            "model": name,
            "command": card["command"],
            "trained on": card["device"],
            "torch": card["versions"]["torch"],
            "SHA-256": card["sha256"][:12],
        }
        for name, card in cards.items()
    ]
    return pd.DataFrame(rows)
