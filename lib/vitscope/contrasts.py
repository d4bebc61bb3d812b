"""What one method has over another, from which images each gets right, paired image by image.

Several backbones that saw the same test images are several measurements of those images, not further images:
they are averaged image by image first. Intervals draw test images within each dataset, which says whether
a difference would be seen on other images of these tasks; `ranking.differences` draws datasets, which says
whether it would be seen on other tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pandas as pd

from vitscope.comparison import BEST, ORACLE
from vitscope.estimates import Estimate, divided, estimate, resampled_sums
from vitscope.frozen import Task


class Answered(Protocol):
    """A task and which of its test images each method gets right, as a `Comparison` has them."""

    @property
    def task(self) -> Task: ...

    @property
    def right(self) -> dict[str, np.ndarray]: ...


@dataclass(frozen=True)
class Paired:
    """Differences in percentage points of one dataset, image by image [N], and its clusters [N] or None."""

    points: np.ndarray
    clusters: np.ndarray | None


def paired(answered: Mapping[tuple[str, str], Answered], method: str, reference: str) -> dict[str, Paired]:
    """100 · (right_method − right_reference) of every test image, mean over backbones, by dataset.

    Keys are (backbone, dataset), as those of `comparison.across`.

    Raises ValueError where backbones saw different test images.
    """
    found: dict[str, list[Answered]] = defaultdict(list)
    for (_, dataset), each in answered.items():
        found[dataset].append(each)
    result = {}
    for dataset, several in found.items():
        first = several[0].task.test
        if any(not np.array_equal(c.task.test.labels, first.labels) for c in several):
            raise ValueError(f"backbones saw different test images of {dataset}: they cannot be paired")
        points = [100.0 * c.right[method] - 100.0 * c.right[reference] for c in several]
        result[dataset] = Paired(np.mean(points, 0), first.groups)
    return result


def over_images(
    parts: Mapping[str, Paired], *, draws: int = 1000, level: float = 0.95, seed: int = 0
) -> Estimate:
    """Mean over datasets of the mean difference, with an interval over test images (clusters) of each.

    The interval treats the datasets as given: of how the difference varies between tasks it says nothing.

    >>> over_images({"a": Paired(np.array([100.0, 100.0]), None), "b": Paired(np.zeros(2), None)})
    Estimate(value=50.0, low=50.0, high=50.0, reason='')
    """
    values, drawn = [], []
    for number, part in enumerate(parts.values()):
        columns = {"points": part.points, "images": np.ones(len(part.points))}
        total, sums = resampled_sums(columns, clusters=part.clusters, draws=draws, seed=seed + number)
        values.append(divided(total["points"], total["images"]))
        drawn.append(divided(sums["points"], sums["images"]))
    return estimate(np.mean(values), np.mean(drawn, 0), "", level)


def best_by_mean(table: pd.DataFrame, methods: Sequence[str]) -> str:
    """The method of highest mean accuracy over the rows of `comparison.across`, the first of equals."""
    means = table[table["method"].isin(methods)].groupby("method")["accuracy"].mean()
    return max(methods, key=lambda method: means[method])


def gap_over_tasks(
    table: pd.DataFrame, method: str, *, draws: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[Estimate, Estimate]:
    """The gap a method closes over all rows of `comparison.across`: ratio of means, and mean of ratios.

        100 · Σ (a_method − a_best) / Σ (a_oracle − a_best),    mean of 100 · (a_method − a_best) / (…)

    Sums and means are over (backbone, dataset) pairs; whole datasets are drawn for the intervals, which are
    None where there is one. The mean of ratios leaves out pairs whose oracle gains nothing, and a pair with a
    small gap counts in it as much as one with a large gap.

    >>> rows = [("x", "BestLayer", 80.0), ("x", "Oracle", 90.0), ("x", "m", 85.0)]
    >>> rows += [("y", "BestLayer", 98.0), ("y", "Oracle", 99.0), ("y", "m", 97.0)]
    >>> table = pd.DataFrame(rows, columns=["dataset", "method", "accuracy"]).assign(backbone="b")
    >>> [round(found.value, 1) for found in gap_over_tasks(table, "m")]
    [36.4, -25.0]
    """
    cells = table.pivot(index=["backbone", "dataset"], columns="method", values="accuracy")
    gained, gap = (cells[name] - cells[BEST] for name in (method, ORACLE))
    ratio = divided(100 * gained.to_numpy(), gap.to_numpy())
    having = ~np.isnan(ratio)
    columns = {
        "gained": gained.to_numpy(),
        "gap": gap.to_numpy(),
        "ratio": np.where(having, ratio, 0.0),
        "having": having.astype(float),
    }
    datasets = cells.index.get_level_values("dataset").to_numpy()
    total = {name: np.asarray(column.sum()) for name, column in columns.items()}
    drawn = {name: np.full(1, np.nan) for name in columns}
    if len(np.unique(datasets)) > 1:
        total, drawn = resampled_sums(columns, clusters=datasets, draws=draws, seed=seed)
    reason = "not measured, because the oracle is right no more often than the best state"
    of_means = estimate(
        divided(100 * total["gained"], total["gap"]),
        divided(100 * drawn["gained"], drawn["gap"]),
        reason,
        level,
    )
    of_ratios = estimate(
        divided(total["ratio"], total["having"]), divided(drawn["ratio"], drawn["having"]), reason, level
    )
    return of_means, of_ratios
