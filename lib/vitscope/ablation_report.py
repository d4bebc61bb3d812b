"""VFusion with parts changed, with fewer images, and across backbones: tables, figures, sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from vitscope import contrasts, plotting
from vitscope.ablations import (
    BOTH,
    HORIZONTAL,
    LAST_HALF,
    LAST_STATES,
    LATENT,
    LINEAR,
    PENALISED,
    STRIDED,
    SUPER,
    UNPENALISED,
    VERTICAL,
    VOTES,
    WHOLE,
    Horizontal,
    penalties_of,
)  # fmt: skip
from vitscope.comparison import BEST, ORACLE, across
from vitscope.contrasts import Answered
from vitscope.fusion_report import Comparisons, ends, points
from vitscope.reported import Reported

Rows = Mapping[tuple[str, str], Answered]
SELECTION = (WHOLE, LAST_HALF, STRIDED)
WITH_IMAGES = (WHOLE, BEST, SUPER)


def difference(rows: Rows, method: str, reference: str) -> Reported:
    """`method` less `reference` in points, mean over datasets, with an interval over their test images."""
    parts = contrasts.paired(rows, method, reference)
    return points(contrasts.over_images(parts), n=len(parts))


def difference_table(rows: Rows, methods: Sequence[str], reference: str) -> pd.DataFrame:
    """Each method less `reference`: over all tasks with an interval, and lowest and highest dataset."""
    found = []
    for method in methods:
        parts = contrasts.paired(rows, method, reference)
        mean = contrasts.over_images(parts)
        each = {dataset: float(part.points.mean()) for dataset, part in parts.items()}
        accuracy = np.mean([100 * row.right[method].mean() for row in rows.values()])
        found.append({"method": method, "accuracy": float(accuracy), **ends(mean), **each})
    return pd.DataFrame(found)


def changed(comparisons: Comparisons) -> list[str]:
    """Names of the variants that every comparison has, in their order, VFusion itself left out."""
    first = next(iter(comparisons.values()))
    named = [name for name in first.heads if name not in (WHOLE, BEST, SUPER, ORACLE, "LastLayer")]
    return [name for name in named if all(name in c.heads for c in comparisons.values())]


def change_figure(comparisons: Comparisons) -> plotting.Figure:
    """What each change does to VFusion's accuracy, in points, with intervals over test images."""
    table = difference_table(comparisons, changed(comparisons), WHOLE)
    said = ", ".join(f"{row.method} {row.points:+.1f}" for row in table.itertuples())
    return plotting.category_points(
        table,
        x="method",
        y="points",
        band=("low", "high"),
        reference=(0.0, "as it is"),
        title="VFusion with one thing changed; dashed: as it is",
        xlabel="change",
        ylabel="accuracy less VFusion's (points)",
        name="changes",
        alt=f"Difference to VFusion in points when one thing is changed: {said}.",
    )


def selection_table(comparisons: Comparisons) -> pd.DataFrame:
    """States used, parameters and accuracy of each way to select states, task by task."""
    table = across(comparisons)
    return table[table["method"].isin(SELECTION)][
        ["backbone", "dataset", "method", "parameters", "accuracy", "low", "high"]
    ]


def last_states_figure(comparisons: Comparisons) -> plotting.Figure:
    """Accuracy of VFusion on the last k states, mean over datasets, a curve per backbone."""
    rows = []
    for (backbone, _), compared in comparisons.items():
        for name in (*changed(comparisons), WHOLE):
            if name.startswith(LAST_STATES) or name == WHOLE:
                used = getattr(compared.heads[name], "last", len(compared.task.train.features))
                rows.append({"backbone": backbone, "states": used, "accuracy": compared.accuracy(name)})
    table = pd.DataFrame(rows).groupby(["backbone", "states"], sort=False)["accuracy"].mean().reset_index()
    return plotting.layer_curves(
        table,
        x="states",
        y="accuracy",
        hue="backbone",
        title="VFusion on the last states",
        xlabel="last states used",
        ylabel="mean accuracy (%)",
        name="last_states",
        explore=True,
    )


def penalty_table(comparisons: Comparisons) -> pd.DataFrame:
    """Validation and test accuracy of each λ, mean over tasks, and how often validation prefers it."""
    held = pd.DataFrame([penalties_of(c) for c in comparisons.values()])
    return pd.DataFrame(
        {
            "penalty": list(held.columns),
            "validation": 100 * held.mean().to_numpy(),
            "test": [np.mean([c.accuracy(n) for c in comparisons.values()]) for n in held.columns],
            "preferred on tasks": [int((held.idxmax(axis=1) == n).sum()) for n in held.columns],
        }
    )


def penalty_gain(comparisons: Comparisons) -> Reported:
    """The λ > 0 that is best on validation, less λ = 0, in points; None where one of them is missing."""
    if all({PENALISED, UNPENALISED} <= set(c.right) for c in comparisons.values()):
        return difference(comparisons, PENALISED, UNPENALISED)
    return {"value": None, "text": "nothing (no λ = 0 beside a λ > 0 was asked for)"}


def cost_figure(comparisons: Comparisons) -> plotting.Figure:
    """Accuracy against learned numbers, mean over tasks, for what changes VFusion's size."""
    table = across(comparisons).groupby("method", sort=False)[["parameters", "accuracy"]].mean()
    kinds = {name: [name] for name in (LAST_HALF, STRIDED, LINEAR) if name in table.index}
    for kind in (LAST_STATES, LATENT):
        kinds[kind.rstrip(":")] = [n for n in table.index if n.startswith(kind)]
    kinds["all states"] = [WHOLE]
    rows = [
        {
            "what": kind,
            "thousands": table.loc[name, "parameters"] / 1000,
            "accuracy": table.loc[name, "accuracy"],
        }
        for kind, names in kinds.items()
        for name in names
    ]
    return plotting.layer_curves(
        pd.DataFrame(rows),
        x="thousands",
        y="accuracy",
        hue="what",
        title="Accuracy against size",
        xlabel="parameters learned (thousands)",
        ylabel="mean accuracy (%)",
        name="cost",
    )


def images_figure(by_share: Mapping[float, Comparisons]) -> plotting.Figure:
    """Accuracy over the number of training images, mean over tasks, for VFusion and two rivals."""
    rows = []
    for comparisons in by_share.values():
        count = float(np.mean([len(c.task.train) for c in comparisons.values()]))
        for method in WITH_IMAGES:
            accuracy = float(np.mean([c.accuracy(method) for c in comparisons.values()]))
            rows.append({"method": method, "images": count, "accuracy": accuracy})
    return plotting.layer_curves(
        pd.DataFrame(rows),
        x="images",
        y="accuracy",
        hue="method",
        order=list(WITH_IMAGES),
        title="Accuracy over the number of training images",
        xlabel="training images",
        ylabel="mean accuracy (%)",
        name="images",
        explore=True,
    )


def images_table(by_share: Mapping[float, Comparisons]) -> pd.DataFrame:
    """VFusion less the best layer at each share of the training images, with intervals over test images."""
    rows = []
    for share, comparisons in by_share.items():
        found = contrasts.over_images(contrasts.paired(comparisons, WHOLE, BEST))
        count = float(np.mean([len(c.task.train) for c in comparisons.values()]))
        rows.append({"share": share, "images": round(count), **ends(found)})
    return pd.DataFrame(rows)


def gains(comparisons: Comparisons) -> dict[str, Reported]:
    """VFusion less the best layer for each backbone, with intervals over test images."""
    names = dict.fromkeys(backbone for backbone, _ in comparisons)
    return {
        name: difference({key: c for key, c in comparisons.items() if key[0] == name}, WHOLE, BEST)
        for name in names
    }


def gain_figure(comparisons: Comparisons) -> plotting.Figure:
    """VFusion less the best layer, by backbone and dataset."""
    rows = []
    for (backbone, dataset), compared in comparisons.items():
        found = contrasts.over_images(contrasts.paired({(backbone, dataset): compared}, WHOLE, BEST))
        rows.append({"backbone": backbone, "dataset": dataset, **ends(found)})
    return plotting.category_points(
        pd.DataFrame(rows),
        x="backbone",
        y="points",
        hue="dataset",
        band=("low", "high"),
        reference=(0.0, "as the best layer"),
        title="VFusion less the best layer, by backbone",
        ylabel="points",
        name="gain_by_backbone",
    )


def horizontal_figure(found: Mapping[str, Horizontal]) -> plotting.Figure:
    """Accuracy of fusing depths, backbones, and both, by dataset."""
    rows = [
        {"method": method, "dataset": dataset, "accuracy": fused.accuracy(method)}
        for dataset, fused in found.items()
        for method in (VERTICAL, HORIZONTAL, BOTH, VOTES)
    ]
    return plotting.category_bars(
        pd.DataFrame(rows),
        x="method",
        y="accuracy",
        hue="dataset",
        title="Depths, backbones, or both",
        ylabel="accuracy (%)",
        name="horizontal",
    )


def horizontal_table(found: Mapping[str, Horizontal]) -> pd.DataFrame:
    """What each way of fusing learns, how many backbones it must run on an image, and its accuracy."""
    rows = []
    for dataset, fused in found.items():
        for method, head in fused.heads.items():
            rows.append(
                {
                    "dataset": dataset,
                    "method": method,
                    "backbones": 1 if method == VERTICAL else fused.backbones,
                    "parameters": head.report["parameters"],
                    "accuracy": fused.accuracy(method),
                }
            )
    return pd.DataFrame(rows)


def across_difference(found: Mapping[str, Horizontal], method: str) -> Reported:
    """A way of fusing backbones less the best VFusion of one, in points."""
    if not found:
        return {"value": None, "text": "nothing (one backbone has no other to be fused with)"}
    return difference({("all", dataset): fused for dataset, fused in found.items()}, method, VERTICAL)
