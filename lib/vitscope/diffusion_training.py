"""Semantic diffusion along the training of a model: the last state at every embedded snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from vitscope import backbones, dense_layers, plotting
from vitscope.backbones import Backbone
from vitscope.dense_layers import PATCH
from vitscope.dense_parts import Pair
from vitscope.diffusion_curves import Curve
from vitscope.diffusion_measures import leaks

SCORES = {
    "point-in-box": "point-in-box (%)",
    "mIoU": "mIoU of patches (%)",
    "leakage": "leakage (%)",
}


def moments(name: str | None, *, img_size: int | None = None, device: str = "auto") -> dict[int, Backbone]:
    """Images seen -> the model then, the finished one last; empty without a name or without snapshots.

    Errors: as `backbones.load`.
    """
    counts = backbones.snapshots(name) if name else []
    if name is None or not counts:
        return {}
    options: dict[str, Any] = {"img_size": img_size, "device": device}
    found = {count: backbones.load(f"{name}@{count}", **options) for count in counts}
    return found | {backbones.card(name)["recipe"]["images"]: backbones.load(name, **options)}


WIDEST = 150.0  # percent; a ratio that may be anything is no point of a curve


def reason(name: str | None) -> str:
    """Why there is nothing to follow."""
    if name is None:
        return "Not measured, because no model is followed along its training in this profile."
    return f"Not measured, because {name} has no snapshots along its training."


def follow(
    models: Mapping[int, Backbone], seen: Mapping[str, Mapping[str, Pair]], *, norm: str, seed: int
) -> pd.DataFrame:
    """Point-in-box, mIoU of patches and leakage of the last state at every moment, in percent.

    Columns: images, measure, value, low, high. What cannot be measured is left out: point-in-box without CLS,
    and leakage where objects tell hardly more than luck, so that its interval is wider than `WIDEST`.
    """
    rows = []
    for count, model in models.items():
        sets, last = seen[model.name], [model.depth]
        found: dict[str, tuple[Curve, float]] = {}
        if model.has_cls:
            pointed = dense_layers.boxes(model, sets["boxes"].test, norm=norm, states=last)
            found["point-in-box"] = (pointed.curve, 1.0)
        probed = dense_layers.segmentation(
            model, sets["scenes"], norm=norm, states=last, seed=seed, cls=False
        )
        found["mIoU"] = (probed.curves[PATCH], 1.0)
        if "objects" in sets:
            leaked = leaks(model, sets["objects"], norm=norm, states=last, seed=seed)
            found["leakage"] = (leaked.curve, 100.0)
        for measure, (curve, scale) in found.items():
            at = curve.at(*last)
            ends = [np.nan if v is None else scale * v for v in (at.value, at.low, at.high)]
            if not np.isnan(ends[0]) and not ends[2] - ends[1] > WIDEST:
                rows.append((count, SCORES[measure], *ends))
    return pd.DataFrame(rows, columns=["images", "measure", "value", "low", "high"])


def figure(table: pd.DataFrame, name: str) -> plotting.Figure:
    """The three measures against images seen."""
    return plotting.layer_curves(
        table,
        x="images",
        y="value",
        hue="measure",
        order=list(dict.fromkeys(table["measure"])),
        band=("low", "high"),
        title=f"The last state of {name}, along its training",
        xlabel="images seen in training",
        ylabel="%",
        name="training",
        explore=True,
    )
