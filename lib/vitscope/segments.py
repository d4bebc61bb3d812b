"""The best division of a curve into one, two and three pieces, each constant or linear.

An independent check on the phases: no threshold of the phase rules enters here. The least squares division
for each number of pieces and coefficients is found exactly, by dynamic programming (Bellman 1961); the
number of pieces is judged by the Bayesian information criterion (Schwarz 1978).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

MOST_SEGMENTS = 3


class Segment(NamedTuple):
    """One piece: its first and last state, its mean, and its slope per state (0 if constant)."""

    first: int
    last: int
    kind: Literal["constant", "linear"]
    level: float
    slope: float


@dataclass(frozen=True)
class SegmentedFit:
    """The best division for each number of pieces, and its BIC: less is better."""

    divisions: dict[int, tuple[Segment, ...]]
    bic: dict[int, float]

    @property
    def best(self) -> int:
        """The number of pieces with the least BIC; the smaller where two tie."""
        return min(self.bic, key=lambda k: (self.bic[k], k))

    def starts(self, pieces: int) -> tuple[int, ...]:
        """First states of the second and later pieces of the division into `pieces`."""
        return tuple(segment.first for segment in self.divisions[pieces][1:])


def fit_segments(values: Sequence[float], states: Sequence[int], *, noise: float = 0.001) -> SegmentedFit:
    """Divide `values` over `states` into 1, 2 and 3 pieces.

    BIC = n log max(RSS/n, noise²) + (coefficients + breaks) log n. A deviation below `noise`, in the units
    of the curve, earns nothing: without it a division that passes through every point would always win.
    A constant piece has two states or more, a linear one three; only the first piece may be a single state,
    as the state before the position embedding stands alone.

    >>> fit = fit_segments([0.9, 0.1, 0.1, 0.1, 0.1, 0.2, 0.3, 0.4], range(-1, 7))
    >>> fit.best, fit.starts(3)
    (3, (0, 4))
    """
    y, x = np.asarray(values, dtype=float), np.asarray(states, dtype=float)
    n = len(y)
    if n != len(x) or n < 5:
        raise ValueError(f"a division needs five values or more and a state for each, got {n} and {len(x)}")
    costs = _costs(x, y)
    best = _divide(costs, n)
    divisions: dict[int, tuple[Segment, ...]] = {}
    bic: dict[int, float] = {}
    for (pieces, coefficients), (rss, cuts) in best.items():
        parameters = coefficients + pieces - 1
        score = n * math.log(max(rss / n, noise**2)) + parameters * math.log(n)
        if score < bic.get(pieces, math.inf):
            bic[pieces] = score
            divisions[pieces] = tuple(_segment(x, y, i, j, kind) for i, j, kind in cuts)
    return SegmentedFit(divisions, bic)


Cut = tuple[int, int, int]  # first position, position after the last, coefficients (1 constant, 2 linear)


def _costs(x: np.ndarray, y: np.ndarray) -> dict[Cut, float]:
    """Residual sum of squares of every piece that is allowed."""
    costs = {}
    for i in range(len(y)):
        for j in range(i + 1, len(y) + 1):
            dx, dy = x[i:j] - x[i:j].mean(), y[i:j] - y[i:j].mean()
            total = float(dy @ dy)
            if j - i >= 2 or i == 0:
                costs[i, j, 1] = total
            if j - i >= 3:
                costs[i, j, 2] = max(0.0, total - float(dx @ dy) ** 2 / float(dx @ dx))
    return costs


def _divide(costs: dict[Cut, float], n: int) -> dict[tuple[int, int], tuple[float, tuple[Cut, ...]]]:
    """Least residual, and its cuts, of all n values for each number of pieces and coefficients."""
    # reached[j] maps (pieces, coefficients) to the best way to cover the first j values.
    reached: list[dict[tuple[int, int], tuple[float, tuple[Cut, ...]]]] = [{} for _ in range(n + 1)]
    reached[0][0, 0] = (0.0, ())
    for cut, cost in sorted(costs.items(), key=lambda item: item[0]):
        i, j, kind = cut
        for (pieces, coefficients), (rss, cuts) in reached[i].items():
            key = (pieces + 1, coefficients + kind)
            if pieces < MOST_SEGMENTS and rss + cost < reached[j].get(key, (math.inf, ()))[0]:
                reached[j][key] = (rss + cost, (*cuts, cut))
    return reached[n]


def _segment(x: np.ndarray, y: np.ndarray, i: int, j: int, kind: int) -> Segment:
    dx, level = x[i:j] - x[i:j].mean(), float(y[i:j].mean())
    slope = float(dx @ (y[i:j] - level) / (dx @ dx)) if kind == 2 else 0.0
    return Segment(int(x[i]), int(x[j - 1]), "linear" if kind == 2 else "constant", level, slope)
