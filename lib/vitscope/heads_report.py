"""The heads of a comparison themselves: what they may try, choose, learn, cost, warn of, and look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from vitscope import plotting
from vitscope.comparison import BEST, Comparison, importance, used_members
from vitscope.frozen import Task
from vitscope.fusion_report import FUSED, SUPER, Comparisons


def task_table(tasks: Mapping[tuple[str, str], Task]) -> pd.DataFrame:
    """Images, classes and states of every task."""
    return pd.DataFrame(
        [
            {
                "backbone": backbone,
                "dataset": dataset,
                "token": task.tokens,
                "states": len(task.train.features),
                "width": task.train.features.shape[2],
                "classes": len(task.classes),
                "training": len(task.train),
                "test": len(task.test),
                "left out": task.train.dropped + task.test.dropped,
            }
            for (backbone, dataset), task in tasks.items()
        ]
    )


def budget_table(compared: Comparison) -> pd.DataFrame:
    """What each head was allowed to try on one task, what it chose, and what it learned."""
    rows = []
    for name, head in compared.heads.items():
        report = head.report
        width = compared.task.train.features.shape[2]
        rows.append(
            {
                "method": name,
                "tried": len(report["configurations"]) or "–",
                "criterion": report["criterion"] if report["chosen"] else "–",
                "chosen": _settings(report["chosen"]),
                "parameters": report["parameters"],
                "of probes": used_members(head) * (width + 1) * len(compared.task.classes),
            }
        )
    return pd.DataFrame(rows)


def _settings(chosen: Mapping[str, Any] | None) -> str:
    """Settings in words; a state is counted from 1 here, from 0 in a stack."""
    if chosen is None:
        return "nothing to choose"
    shown = {k: v + 1 if k == "state" else v for k, v in chosen.items()}
    return ", ".join(f"{k} {v:g}" if isinstance(v, int | float) else f"{k} {v}" for k, v in shown.items())


def time_table(comparisons: Comparisons) -> pd.DataFrame:
    """Seconds to fit all tasks and milliseconds to classify 1000 images, mean over tasks.

    Times differ from run to run, so this table is shown and not recorded.
    """
    seconds = pd.concat([c.table.set_index("method")["seconds"] for c in comparisons.values()], axis=1)
    each = pd.DataFrame([c.milliseconds() for c in comparisons.values()])
    table = pd.DataFrame({"seconds": seconds.sum(axis=1), "ms per 1000 images": each.mean()})
    return table.loc[list(each.columns)].round(1)


def warnings(comparisons: Comparisons) -> dict[str, str]:
    """What the heads warn of, each text once, with the tasks it is about."""
    said: dict[str, dict[str, list[str]]] = {}
    for (backbone, dataset), compared in comparisons.items():
        for method, texts in compared.warnings.items():
            for text in texts:
                said.setdefault(method, {}).setdefault(text, []).append(f"{dataset} of {backbone}")
    return {m: "; ".join(f"{t} ({', '.join(w)})" for t, w in texts.items()) for m, texts in said.items()}


def chosen_layer_table(comparisons: Comparisons) -> pd.DataFrame:
    """The best layer as chosen on training images, and as the test images would have it."""
    rows = []
    for (backbone, dataset), compared in comparisons.items():
        labels, classes = compared.task.test.labels, np.asarray(compared.heads[BEST].classes)
        right = (classes[compared.test_logits.argmax(2).cpu().numpy()] == labels).mean(1)
        chosen = compared.heads[BEST].report["chosen"]["state"]
        rows.append(
            {
                "backbone": backbone,
                "dataset": dataset,
                "states": len(right),
                "chosen state": chosen + 1,
                "best state on test": int(right.argmax()) + 1,
                "its lead": 100 * float(right.max() - right[chosen]),
            }
        )
    return pd.DataFrame(rows)


def importance_figure(comparisons: Comparisons, dataset: str, *, seed: int) -> plotting.Figure:
    """Accuracy that VFusion loses when one state is another image's, per state and backbone."""
    parts = [
        importance(compared, FUSED, seed=seed).assign(backbone=backbone)
        for (backbone, name), compared in comparisons.items()
        if name == dataset
    ]
    table = pd.concat(parts, ignore_index=True)
    tops = "; ".join(
        _top(backbone, part, "loss", "points") for backbone, part in table.groupby("backbone", sort=False)
    )
    return plotting.layer_curves(
        table,
        y="loss",
        hue="backbone",
        band=("low", "high"),
        reference=(0.0, "0: not needed"),
        title=f"What {FUSED} looks at ({dataset})",
        ylabel="accuracy lost (points)",
        name="importance",
        alt=f"Accuracy lost by {FUSED} on {dataset} when one state is that of another image: {tops}.",
    )


def weight_figure(comparisons: Comparisons, dataset: str) -> plotting.Figure:
    """The Super Learner's weight of each state, per backbone."""
    parts = []
    for (backbone, name), compared in comparisons.items():
        if name == dataset:
            weights = compared.heads[SUPER].report["weights"]
            parts.append(
                pd.DataFrame({"state": range(1, len(weights) + 1), "weight": weights, "backbone": backbone})
            )
    table = pd.concat(parts, ignore_index=True)
    tops = "; ".join(
        _top(backbone, part, "weight", "of 1") for backbone, part in table.groupby("backbone", sort=False)
    )
    return plotting.layer_curves(
        table,
        y="weight",
        hue="backbone",
        title=f"Weights of the Super Learner ({dataset})",
        name="weights",
        alt=f"Weight of each state in the Super Learner on {dataset}: {tops}.",
    )


def _top(backbone: Any, part: pd.DataFrame, value: str, unit: str) -> str:
    highest = part.loc[part[value].idxmax()]
    return f"{backbone} most at state {int(highest['state'])} ({highest[value]:.2f} {unit})"
