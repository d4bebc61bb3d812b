"""The zoo described from its cards, and its cards checked against its files, for the zoo appendix."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch

from vitscope import plotting
from vitscope.backbones import Backbone
from vitscope.data import embedded, emoji
from vitscope.data.images import Images
from vitscope.data.tasks import load_identity
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
            "kind": kind(card),
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


NO_VARIANTS = "No further models are named in this profile."
NO_TAUGHT = "No model that learned by labels is among them."
NO_LABELS = "No model that learned without labels is shown here."


def kind(card: Mapping) -> str:
    """What a card's model is, in words: its objective, and what sets its tokens apart from a plain ViT's.

    >>> kind({"recipe": {"objective": "supervised", "architecture": {"reg_tokens": 4}}})
    'supervised; 4 registers'
    """
    recipe = card["recipe"]
    shape = recipe["architecture"]
    changes = [
        shape.get("attention", "softmax").replace("entmax15", "entmax-1.5").replace("softmax", ""),
        f"{shape['reg_tokens']} registers" if shape.get("reg_tokens") else "",
        "CLS apart" if shape.get("specialized") else "",
    ]
    return "; ".join([recipe["objective"], *filter(None, changes)])


def training_curves(cards: Cards, *, name: str = "training_curves") -> plotting.Figure | None:
    """Training top-1 against images seen, of the models that learned by labels or names; None without any."""
    return _curves(
        {n: c for n, c in cards.items() if "train_top1" in c["curve"][-1]},
        "train_top1",
        100.0,
        title="Naming the emoji of a training render",
        label="training top-1 (%)",
        name=name,
    )


def self_supervised_curves(cards: Cards, *, name: str = "self_supervised_curves") -> plotting.Figure | None:
    """k-NN accuracy of the teacher against images seen, of the models that learned without labels."""
    return _curves(
        {n: c for n, c in cards.items() if "knn_identity" in c["curve"][-1]},
        "knn_identity",
        1.0,
        title="Finding an emoji among 300, by the nearest of four renders of each",
        label="identity, nearest neighbour (%)",
        name=name,
    )


def _curves(
    cards: Cards, key: str, scale: float, *, title: str, label: str, name: str
) -> plotting.Figure | None:
    if not cards:
        return None
    rows = [
        {"model": model, "images seen": point["images"], label: scale * point[key]}
        for model, card in cards.items()
        for point in card["curve"]
        if key in point
    ]
    ends = ", ".join(f"{model} {scale * card['curve'][-1][key]:.1f} %" for model, card in cards.items())
    return plotting.layer_curves(
        pd.DataFrame(rows),
        x="images seen",
        y=label,
        hue="model",
        order=list(cards),
        title=title,
        ylabel=label,
        name=name,
        alt=f"{title}: {label} against images seen; at the end {ends}.",
    )


def fresh_renders(cards: Cards, images: int, *, seed: int) -> dict[str, Images]:
    """For each model renders that no training and no card has seen, of emoji in the sizes of its training."""
    scales = {name: tuple(card["recipe"].get("scale", emoji.Recipe.scale)) for name, card in cards.items()}
    drawn = {
        scale: load_identity("test", scale=scale, seed=seed).limited(images, seed)
        for scale in dict.fromkeys(scales.values())
    }
    return {name: drawn[scale] for name, scale in scales.items()}


def recheck(models: Mapping[str, Backbone], cards: Cards, tests: Mapping[str, Images]) -> pd.DataFrame:
    """Top-1 of each model on its `tests`, measured now, and whether file and card agree on the digest.

    How a model names pictures: `pretrain.names.own_classifier`.
    """
    rows = []
    for name, model in models.items():
        test = tests[name]
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
