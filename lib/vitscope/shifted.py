"""Heads fitted to clean pictures and tested under shift: nothing is fitted, chosen or scaled again.

A head's answers to the shifted parts of a set are averaged picture by picture first, because one picture at
three severities is one picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from vitscope import frozen, rivals
from vitscope.backbones import Backbone
from vitscope.comparison import BEST, LAST, ORACLE, Comparison, compare
from vitscope.data import shifts
from vitscope.data.images import Images
from vitscope.estimates import Estimate, divided, estimate
from vitscope.features import Cache
from vitscope.intervals import Interval
from vitscope.shifted_sets import ShiftedSet

METHODS = (LAST, BEST, "LogitAverage", "ConcatLinear", "SuperLearner", "VFusion", ORACLE)
DRAWS, LEVEL = 1000, 0.95


@dataclass(frozen=True)
class UnderShift:
    """Heads of one backbone on one shifted set: `clean` before, `shifted` under each shift in turn."""

    backbone: str
    chosen: ShiftedSet
    clean: Comparison | None
    shifted: tuple[Comparison, ...]

    @property
    def clusters(self) -> np.ndarray:
        """What the test pictures share [N]; each its own where nothing is known."""
        part = self.shifted[0].task.test
        return np.arange(len(part)) if part.groups is None else part.groups

    def right(self, method: str, *, clean: bool = False) -> Float[np.ndarray, " N"]:
        """For each test picture the share of shifted versions (or the clean one) that a method gets right."""
        comparisons = [self.clean] if clean else list(self.shifted)
        answers = [c.right[method] for c in comparisons if c is not None]
        if not answers:
            raise ValueError(f"{self.chosen.name} has no clean test part")
        return np.mean(answers, axis=0)

    def right_at(self, method: str, severity: int) -> Bool[np.ndarray, " N"]:
        """Which pictures a method gets right at a severity; 0 is clean."""
        if severity == 0:
            return self.right(method, clean=True)
        return self.shifted[self.chosen.severities.index(severity)].right[method]


def measure(
    backbones: Sequence[Backbone],
    sets: Sequence[ShiftedSet],
    *,
    sizes: Mapping[str, int],
    seed: int,
    norm: str = "none",
    tokens: frozen.Tokens = "cls",
    cache: Cache = None,
) -> dict[str, list[UnderShift]]:
    """Fit the heads `METHODS` to each set's clean training part, and test them on all its test parts.

    By name of the set, a result per backbone. Sets that share their training pictures share the fit. `sizes`
    are the arguments of `rivals.some`. Whatever is chosen (the best layer, penalties, learning rates) is
    chosen on training pictures that were held out. Errors: as `frozen.make` and `compare`.
    """
    found: dict[str, list[UnderShift]] = {one.name: [] for one in sets}
    for backbone in backbones:
        fits: dict[str, Comparison] = {}
        for one in sets:
            fitted = fits.get(one.train.digest)
            if fitted is None:
                first = one.parts[1]
                task = frozen.make(backbone, one.train, first, norm=norm, tokens=tokens, cache=cache)
                fitted = compare(task, rivals.some(METHODS, **sizes), seed=seed, cache=cache)
                fits[one.train.digest] = fitted
            found[one.name].append(_tested(backbone, one, fitted, cache))
    return found


def _tested(backbone: Backbone, one: ShiftedSet, fitted: Comparison, cache: Cache) -> UnderShift:
    def on(part: Images) -> Comparison:
        return fitted.tested_on(fitted.task.tested_on(backbone, part, cache=cache))

    clean, shifted = None if one.clean is None else on(one.clean), tuple(on(part) for part in one.tests)
    if len({len(c.task.test) for c in (*shifted, clean) if c is not None}) > 1:
        raise ValueError(
            f"{one.name}: its test parts hold different numbers of pictures of the classes learned"
        )
    return UnderShift(backbone.name, one, clean, shifted)


Columns = Mapping[str, Sequence[Float[np.ndarray, " N"]]]
"""Named measures of the same N pictures, each once per backbone."""


def means(columns: Columns, clusters: np.ndarray) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Mean over backbones and pictures of every column, and the same for bootstrap resamples [draws].

    Whole `clusters` [N] of pictures are drawn, and backbones as well where there are several, the same for
    all columns: differences and quotients of columns are paired. Raises ValueError for fewer than two
    clusters.

    >>> value, drawn = means({"a": [np.array([1.0, 0.0])], "b": [np.array([0.0, 1.0])]}, np.arange(2))
    >>> value, bool((drawn["a"] + drawn["b"] == 1).all())
    ({'a': 0.5, 'b': 0.5}, True)
    """
    names, member = np.unique(clusters, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"a bootstrap needs at least two independent pictures, got {len(names)}")
    count = len(next(iter(columns.values())))
    rng = np.random.default_rng(0)
    pictures = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=DRAWS)
    models = rng.multinomial(count, np.full(count, 1 / count), size=DRAWS) / count
    total = pictures @ np.bincount(member)
    value, drawn = {}, {}
    for key, column in columns.items():
        sums = np.stack([np.bincount(member, weights=v) for v in column])
        value[key] = float(np.mean(column))
        drawn[key] = (models * (pictures @ sums.T)).sum(1) / total
    return value, drawn


def difference(columns: Columns, above: str, below: str, clusters: np.ndarray) -> Estimate:
    """100 · (mean of `above` − mean of `below`), in points."""
    value, drawn = means(columns, clusters)
    return estimate(100 * (value[above] - value[below]), 100 * (drawn[above] - drawn[below]), "", LEVEL)


def accuracy(tested: Sequence[UnderShift], method: str, *, clean: bool = False) -> Estimate:
    """Accuracy in percent, over the backbones on one set."""
    value, drawn = means({"a": [t.right(method, clean=clean) for t in tested]}, tested[0].clusters)
    return estimate(100 * value["a"], 100 * drawn["a"], "", LEVEL)


def gain(
    tested: Sequence[UnderShift], method: str = "VFusion", over: str = BEST, *, clean: bool = False
) -> Estimate:
    """Accuracy of a method less that of another, in points, paired by picture."""
    columns = {m: [t.right(m, clean=clean) for t in tested] for m in (method, over)}
    return difference(columns, method, over, tested[0].clusters)


def share(
    tested: Sequence[UnderShift], part: str, of: tuple[str, str], reason: str, *, clean: bool
) -> Estimate:
    """100 · (a_part − a_of[1]) / (a_of[0] − a_of[1]), a ratio of means over backbones and pictures."""
    methods = {name for name in (part, *of) if name != "all"}
    columns = {m: [t.right(m, clean=clean) for t in tested] for m in methods}
    columns["all"] = [np.ones(len(t.clusters)) for t in tested]
    value, drawn = means(columns, tested[0].clusters)
    found, spread = (
        divided(100 * (x[part] - x[of[1]]), np.asarray(x[of[0]] - x[of[1]])) for x in (value, drawn)
    )
    return estimate(found, spread, reason, LEVEL)


def gap_closed(tested: Sequence[UnderShift], method: str = "VFusion", *, clean: bool = False) -> Estimate:
    """Share of the way from the best layer to the oracle, in percent; as `comparison.gap_closed`."""
    reason = "not measured, because the oracle is right no more often than the best state"
    return share(tested, method, (ORACLE, BEST), reason, clean=clean)


def recovery(tested: Sequence[UnderShift], *, clean: bool = False) -> Estimate:
    """(a_oracle − a_L) / (100 − a_L), in percent of the last layer's errors (paper B §3.2.1)."""
    reason = "not measured, because the last layer makes no errors"
    return share(tested, ORACLE, ("all", LAST), reason, clean=clean)


def by_group(tested: Sequence[UnderShift]) -> pd.DataFrame:
    """Accuracy of every method in every group of a subpopulation shift, on average, and in the worst group.

    Columns: method, group (its name, "average" or "worst"), accuracy, low, high in percent, count. The worst
    group is found for each backbone by itself. Over backbones the ends of intervals are averaged like the
    values: all of them are measured on the same pictures.
    """
    part = tested[0].shifted[0].task.test
    names = tested[0].chosen.tests[0].source["groups"]
    rows = []
    for method in METHODS:
        found = [
            shifts.worst_group_accuracy(
                t.shifted[0].right[method], part.extras["group"], clusters=part.groups
            )
            for t in tested
        ]
        rows.append((method, "average", *_percent([f.average for f in found]), len(part)))
        for k, group in enumerate(found[0].groups):
            each = [Interval(*(ends[k] for ends in f.by_group)) for f in found]
            rows.append((method, names[group], *_percent(each), int(found[0].counts[k])))
        rows.append((method, "worst", *_percent([f.worst for f in found]), None))
    return pd.DataFrame(rows, columns=["method", "group", "accuracy", "low", "high", "count"])


def _percent(intervals: Sequence[Interval]) -> tuple[float, ...]:
    return tuple(100 * float(np.mean(ends)) for ends in zip(*intervals, strict=True))
