"""Tasks of frozen backbones whose answers are known, and comparisons whose outcome is written down."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from vitscope.comparison import BEST, BEST_ON_TEST, LAST, ORACLE, Comparison, _table
from vitscope.frozen import Part, Task
from vitscope.fusion import Members


def two_bits(
    seed: int = 0,
    *,
    states: int = 3,
    informative: tuple[int, ...] = (0, 2),
    images: int = 120,
    backbone: str = "planted",
    width: int = 6,
) -> Task:
    """Two bits that make four classes: bit 0 in the first informative state, bit 1 in the second.

    Labels are a function of the seed alone, so backbones of one seed have seen the same images.
    """
    drawn = torch.Generator().manual_seed(seed)
    own = torch.Generator().manual_seed(seed + sum(map(ord, backbone)))

    def part() -> Part:
        bits = torch.randint(0, 2, (images, 2), generator=drawn)
        features = torch.randn(states, images, width, generator=own)
        for bit, state in enumerate(informative):
            features[state, :, bit] += 8.0 * bits[:, bit]
        labels = np.array([f"class {a}{b}" for a, b in bits.tolist()])
        return Part(features, labels, None, {}, 0)

    train, test = part(), part()
    return Task(backbone, "bits", "cls", "none", tuple(np.unique(train.labels).tolist()), train, test)


def outcome(
    backbone: str, dataset: str, right: dict[str, list[int]], *, clusters: list[int] | None = None
) -> Comparison:
    """A comparison of which only the answers are known; `right` must name `BestLayer` and `Oracle`."""
    answers = {name: np.asarray(values, dtype=bool) for name, values in right.items()}
    answers = {LAST: answers[BEST], BEST_ON_TEST: answers[BEST]} | answers
    count = len(answers[BEST])
    part = Part(
        torch.zeros(2, count, 3),
        np.array(["a", "b"] * count)[:count],
        None if clusters is None else np.asarray(clusters),
        {},
        0,
    )
    task = Task(backbone, dataset, "cls", "none", ("a", "b"), part, part)
    fit = pd.DataFrame({"method": list(answers), "parameters": 10, "seconds": 1.0})
    nothing = object.__new__(Members)  # no probe is asked for anything
    return Comparison(task, _table(answers, part, fit), answers, {}, nothing, torch.zeros(2, count, 2))


def outcomes(
    methods: dict[str, list[list[int]]], backbones: tuple[str, ...] = ("b",)
) -> dict[tuple[str, str], Comparison]:
    """Comparisons on several datasets, a list of answers for each of them, and the same for each backbone."""
    methods = {ORACLE: [[1] * len(each) for each in methods[BEST]]} | methods
    count = len(methods[BEST])
    return {
        (name, f"set {k}"): outcome(name, f"set {k}", {m: answers[k] for m, answers in methods.items()})
        for name in backbones
        for k in range(count)
    }
