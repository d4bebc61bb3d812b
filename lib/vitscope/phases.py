"""Cliff, plateau and climb: where a curve over depth falls, rests and rises.

Paper A (2511.21635) names the three phases on centred token similarity and gives no rule to find them;
these rules are ours. With S(ℓ) over the states ℓ = −1, 0, 1 … L and r = max S − min S:

- **Cliff**: the fall S(−1) − S(0), where the position embedding is added, exceeds `tolerance`, and it ends
  there: the next fall, S(0) − S(1), is at most half of it.
- **Plateau**: the longest run of states within max(`band`, `band_share`·r) of the run's own median, after the
  cliff if there is one. It must outlast the run that a straight line from min to max would give, so that a
  steady drift is no plateau.
- **Climb**: after the plateau, S rises to L with no step down by more than `tolerance`, and by more than the
  plateau's band in all. Its onset is the first state above the point it rises from.

The thresholds are in the units of the curve and fit cosines and accuracies in [0, 1].
"""

import itertools
import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vitscope.segments import SegmentedFit, fit_segments

SHORTEST_CURVE = 5
SHORTEST_PLATEAU = 3


@dataclass(frozen=True)
class Cliff:
    """The fall by `size` into `state`; `share` is its part of the range of the whole curve, in [0, 1]."""

    size: float
    share: float
    state: int


@dataclass(frozen=True)
class Plateau:
    """The run from state `start` to state `end`, both included: `length` states about `level`, its median."""

    start: int
    end: int
    length: int
    level: float


@dataclass(frozen=True)
class Climb:
    """The rise by `rise` to the last state; `onset` is the first state above the one it rises from."""

    onset: int
    rise: float


@dataclass(frozen=True)
class Phases:
    """What `detect_phases` found.

    A phase that is missing is None and has its reason in `reasons`. `segmented` is the fit by pieces that
    knows none of the rules, None for a curve too short to divide, or where it was not wanted. With several
    curves, `interval` gives the bootstrap range of each number, keys like "plateau_end", over the resamples
    that have the phase, and `support` the share that have it.
    """

    states: tuple[int, ...]
    values: tuple[float, ...]
    cliff: Cliff | None
    plateau: Plateau | None
    climb: Climb | None
    reasons: dict[str, str]
    segmented: SegmentedFit | None
    interval: dict[str, tuple[float, float]] = field(default_factory=dict)
    support: dict[str, float] = field(default_factory=dict)

    @property
    def detected(self) -> bool:
        """Whether all three phases are there."""
        return not self.reasons

    def row(self) -> dict[str, float | int | None]:
        """All numbers under flat names, for a table with a row per model; None where a phase is missing."""
        row: dict[str, float | int | None] = {}
        for name, kind in (("cliff", Cliff), ("plateau", Plateau), ("climb", Climb)):
            found = getattr(self, name)
            row |= {f"{name}_{f.name}": getattr(found, f.name, None) for f in fields(kind)}
        return row | {"segments": self.segmented.best if self.segmented else None}

    def summary(self) -> str:
        """A sentence per phase, with intervals where there are any, and one for the fit by pieces."""
        lines = []
        if self.cliff:
            lines.append(
                f"Cliff: falls by {self.cliff.size:.3f}{self._range('cliff_size', '.3f')} into state "
                f"{self.cliff.state}, {100 * self.cliff.share:.0f} % of the curve's range."
            )
        if self.plateau:
            lines.append(
                f"Plateau: {self.plateau.length} states from {self.plateau.start} to "
                f"{self.plateau.end}{self._range('plateau_end', '.0f')}, about {self.plateau.level:.3f}."
            )
        if self.climb:
            lines.append(
                f"Climb: rises from state {self.climb.onset}{self._range('climb_onset', '.0f')} on, by "
                f"{self.climb.rise:.3f}."
            )
        lines += [f"{phase.capitalize()} {reason}." for phase, reason in self.reasons.items()]
        if self.segmented:
            pieces, starts = self.segmented.best, self.segmented.starts(self.segmented.best)
            at = f", new ones from states {' and '.join(map(str, starts))}" if starts else ""
            lines.append(f"Fit by pieces: {pieces} by BIC{at}.")
        return " ".join(lines)

    def _range(self, key: str, style: str) -> str:
        if key not in self.interval:
            return ""
        low, high = self.interval[key]
        return f" [{low:{style}} to {high:{style}}]"


class _Rules(NamedTuple):
    tolerance: float
    band: float
    band_share: float


class _Found(NamedTuple):
    cliff: Cliff | None
    plateau: Plateau | None
    climb: Climb | None
    reasons: dict[str, str]


def detect_phases(
    curve: Sequence[float] | np.ndarray | Tensor,
    *,
    states: Sequence[int] | None = None,
    tolerance: float = 0.002,
    band: float = 0.01,
    band_share: float = 0.1,
    resamples: int = 500,
    level: float = 0.95,
    seed: int = 0,
    pieces: bool = True,
) -> Phases:
    """Find cliff, plateau and climb in a curve over depth, by the rules at the top of this file.

    `curve` is [S], or [S, R] with a column per image or seed: phases are those of the mean, and their
    uncertainty comes from `resamples` bootstrap draws of columns (percentile intervals at `level`).
    `states` names the S states; left out, they are −1, 0 … S − 2. `pieces=False` spares the fit by pieces.

    Raises ValueError for fewer than five states, values that are NaN or infinite, and states that do not
    ascend.

    >>> curve = [0.020, -0.002, -0.001, -0.002, -0.001, 0.00, -0.001, 0.04, 0.09, 0.16, 0.25]
    >>> phases = detect_phases(curve)
    >>> phases.cliff.state, (phases.plateau.start, phases.plateau.end), phases.climb.onset
    (0, (0, 5), 6)
    >>> print(detect_phases([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]).reasons["cliff"])
    not detected, because the curve changes by +0.1000 from state -1 to 0: no fall above 0.002
    """
    table = np.asarray(curve.detach().cpu() if isinstance(curve, Tensor) else curve, dtype=float)
    names = _check(table, states)
    rules = _Rules(tolerance, band, band_share)
    columns = table if table.ndim == 2 else table[:, None]
    mean = columns.mean(1)
    found = _find(mean, names, rules)
    interval, support = _bootstrap(columns, names, rules, found, resamples, level, seed)
    segmented = fit_segments(mean.tolist(), names, noise=tolerance / 2) if pieces else None
    return Phases(names, tuple(mean.tolist()), *found, segmented, interval, support)


def undetected(values: Sequence[float] | np.ndarray, states: Sequence[int]) -> Phases:
    """The answer for a curve too short for `detect_phases`: no phase, and the reason.

    >>> print(undetected([0.3, 0.1, 0.2], [-1, 0, 1]).reasons["plateau"])
    not detected, because phases need a curve of 5 states or more, got 3
    """
    reason = (
        f"not detected, because phases need a curve of {SHORTEST_CURVE} states or more, got {len(states)}"
    )
    reasons = dict.fromkeys(("cliff", "plateau", "climb"), reason)
    return Phases(tuple(states), tuple(map(float, values)), None, None, None, reasons, None)


def _check(table: np.ndarray, states: Sequence[int] | None) -> tuple[int, ...]:
    if table.ndim not in (1, 2) or table.size == 0:
        raise ValueError(f"a curve is [S], or [S, R] with R images or seeds, got shape {table.shape}")
    count = len(table)
    names = tuple(range(-1, count - 1)) if states is None else tuple(int(s) for s in states)
    if len(names) != count:
        raise ValueError(f"the curve has {count} values but {len(names)} states are named")
    if any(b <= a for a, b in itertools.pairwise(names)):
        raise ValueError(f"states must ascend, got {list(names)}")
    if count < SHORTEST_CURVE:
        raise ValueError(
            f"phases need a curve of {SHORTEST_CURVE} states or more, got {count}: {list(names)}"
        )
    bad = [
        s for s, finite in zip(names, np.isfinite(table.reshape(count, -1)).all(1), strict=True) if not finite
    ]
    if bad:
        raise ValueError(f"the curve is NaN or infinite at states {bad}")
    return names


def _find(values: np.ndarray, states: tuple[int, ...], rules: _Rules) -> _Found:
    reasons: dict[str, str] = {}
    y = values.tolist()
    spread = max(y) - min(y)
    width = max(rules.band, rules.band_share * spread)
    cliff, reason = _cliff(y, states, spread, rules.tolerance)
    if cliff is None:
        reasons["cliff"] = f"not detected, because {reason}"
    run = _longest_run(y, width, start=1 if cliff else 0)
    # A straight line from min to max spends this many states within ±band_share of a value.
    line = math.floor(2 * rules.band_share * (len(y) - 1) + 1e-9) + 1
    needed = max(SHORTEST_PLATEAU, line + 1)
    plateau = climb = None
    if run[1] - run[0] < needed:
        reasons["plateau"] = (
            f"not detected, because at most {run[1] - run[0]} states in a row stay within ±{width:.4f} "
            f"of their median: {needed} are needed"
        )
        reasons["climb"] = "not detected, because there is no plateau to rise from"
    else:
        level = float(np.median(y[run[0] : run[1]]))
        plateau = Plateau(states[run[0]], states[run[1] - 1], run[1] - run[0], level)
        climb, reason = _climb(y, states, run[1] - 1, width, rules.tolerance)
        if climb is None:
            reasons["climb"] = f"not detected, because {reason}"
    return _Found(cliff, plateau, climb, reasons)


def _cliff(
    y: list[float], states: tuple[int, ...], spread: float, tolerance: float
) -> tuple[Cliff | None, str]:
    if states[:2] != (-1, 0):
        return None, f"the curve starts at states {states[0]} and {states[1]}, not at -1 and 0"
    size, following = y[0] - y[1], y[1] - y[2]
    if not size > tolerance:
        return None, f"the curve changes by {-size:+.4f} from state -1 to 0: no fall above {tolerance:g}"
    if following > size / 2:
        return None, f"the fall of {size:.4f} goes on by {following:.4f} after state 0: no edge there"
    return Cliff(size, size / spread, states[1]), ""


def _longest_run(y: list[float], width: float, start: int) -> tuple[int, int]:
    """First position, and the one after the last, of the longest run within ±width of its own median.

    Of several of equal length the flattest counts, then the earliest.
    """
    slack = 1e-12 * max(1.0, *(abs(v) for v in y))  # equal steps should compare equal after rounding
    best, best_key = (start, start), (0, 0.0)
    for i in range(start, len(y)):
        ordered: list[float] = []
        for j in range(i, len(y)):
            insort(ordered, y[j])
            if ordered[-1] - ordered[0] > 2 * width + slack:
                break  # further states cannot bring the extremes together again
            half = len(ordered) // 2
            median = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
            deviation = max(ordered[-1] - median, median - ordered[0])
            if deviation <= width + slack and (len(ordered), -deviation) > best_key:
                best, best_key = (i, j + 1), (len(ordered), -deviation)
    return best


def _climb(
    y: list[float], states: tuple[int, ...], after: int, width: float, tolerance: float
) -> tuple[Climb | None, str]:
    base = len(y) - 1
    while base > after and y[base] >= y[base - 1] - tolerance:
        base -= 1
    if after == len(y) - 1:
        return None, "the plateau lasts to the last state"
    if base == len(y) - 1:
        return None, f"the curve falls by {y[base - 1] - y[base]:.4f} into the last state"
    rise = y[-1] - y[base]
    if not rise > width:
        return None, f"the rise of {rise:.4f} after the plateau does not leave its band of ±{width:.4f}"
    return Climb(states[base + 1], rise), ""


def _bootstrap(
    columns: np.ndarray,
    states: tuple[int, ...],
    rules: _Rules,
    found: _Found,
    resamples: int,
    level: float,
    seed: int,
) -> tuple[dict[str, tuple[float, float]], dict[str, float]]:
    count = columns.shape[1]
    if count < 2 or resamples < 1:
        return {}, {}
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    draws = [_find(mean, states, rules) for mean in (columns @ (drawn.T / count)).T]
    interval: dict[str, tuple[float, float]] = {}
    support: dict[str, float] = {}
    tail = (1 - level) / 2
    for phase in ("cliff", "plateau", "climb"):
        having = [d for draw in draws if (d := getattr(draw, phase)) is not None]
        support[phase] = len(having) / resamples
        if getattr(found, phase) is not None and having:
            for key in asdict(having[0]):
                numbers = [getattr(d, key) for d in having]
                low, high = np.quantile(numbers, [tail, 1 - tail], method="inverted_cdf").tolist()
                interval[f"{phase}_{key}"] = (low, high)
    return interval, support
