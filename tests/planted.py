"""Measurements with known answers, made by hand in the form that the reports read."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from vitscope.capture import Capture
from vitscope.intervals import Interval, bootstrap_mean
from vitscope.layerwise import KINDS, LayerProbes
from vitscope.metrics.scrambling import Scrambling


def planted_capture(states: Sequence[int], *, backbone: str = "m", norm: str = "none", **kept) -> Capture:
    """A capture that holds what is given: `per_image`, `attention`, `cls`, `patch_mean`, `labels`."""
    tensors = {
        group: {key: torch.tensor(np.array(value), dtype=torch.float32) for key, value in part.items()}
        for group, part in ((g, kept.pop(g, {})) for g in ("per_image", "attention"))
    }
    empty = dict.fromkeys(("cls", "patch_mean", "tokens", "labels", "ids"))
    return Capture(
        states=list(states), backbone=backbone, norm=norm, batch_size=1, seconds=0.0,
        **tensors, **{**empty, **kept},
    )  # fmt: skip


def planted_probes(
    correct: Mapping[str, Mapping[int, Sequence[bool]]], majority: float = 25.0
) -> LayerProbes:
    """Probes by kind ("cls" | "patch_mean") and state, of which only the right answers are known."""
    keys = [(kind, state) for kind, states in correct.items() for state in states]
    right = np.array([correct[kind][state] for kind, state in keys], dtype=bool)
    interval = bootstrap_mean(100.0 * right)
    table = pd.DataFrame(
        {
            "kind": [KINDS[kind] for kind, _ in keys],
            "state": [state for _, state in keys],
            "accuracy": interval.mean,
            "low": interval.low,
            "high": interval.high,
            "balanced": interval.mean - 1,
            "l2": [10.0**-i for i in range(len(keys))],
        }
    )
    return LayerProbes(table, majority, [], right, None)  # type: ignore[arg-type]  # no report asks for weights


def first_right(count: int, of: int) -> list[bool]:
    """The first `count` of `of` pictures are named right."""
    return [i < count for i in range(of)]


def planted_scrambling(
    isi: Sequence[float], *, test: int = 20, width: float = 0.01, **measures
) -> Scrambling:
    """States −1, 0, 1 … with this index; other measures are zeros unless given. Intervals are ± `width`."""
    names = (
        "r2_self", "r2_all", "r2_other", "r2_shuffled", "r2_linear", "normalised_self", "normalised_all",
        "isi", "isi_raw", "isi_control", "isi_shuffled",
    )  # fmt: skip
    found = {name: np.asarray(measures.get(name, np.zeros(len(isi))), dtype=float) for name in names}
    found["isi"] = np.asarray(isi, dtype=float)
    return Scrambling(
        states=list(range(-1, len(isi) - 1)),
        reference=0,
        **found,
        l2={},
        columns={},
        intervals={name: Interval(v, v - width, v + width) for name, v in found.items()},
        images={"maps": 30, "train": 30, "validation": 20, "test": test},
    )
