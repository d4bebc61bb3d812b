"""The information–task trade-off: at which depth a token says more about the task than about its own patch.

Paper A (2511.21635) names a trade-off that comes later in a deeper model and gives no formula that we could
read; this rule is ours. Two curves over the states, each as a share of its own range:

    information(ℓ) = max(0, R²_self(ℓ) / R²_self(0))        how much of its patch a token still holds
    task(ℓ) = (a(ℓ) − floor) / (max a − floor)              how much of what a probe will ever read is there

The **onset** is the depth at which task overtakes information for good: the last crossing after which task
is not below information up to the last state, on straight lines between the states.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

Curve = Sequence[float] | np.ndarray | Tensor


@dataclass(frozen=True)
class TradeOff:
    """What `trade_off` found: both curves as shares, and the onset in states or the reason why there is none.

    With several columns, `interval` is the bootstrap range of the onset over the resamples that have one,
    and `support` the share that have one; None without them.
    """

    states: tuple[int, ...]
    information: tuple[float, ...]
    task: tuple[float, ...]
    onset: float | None
    reason: str
    interval: tuple[float, float] | None = None
    support: float | None = None

    def summary(self) -> str:
        """One sentence, with the interval where there is one."""
        if self.onset is None:
            return f"Trade-off {self.reason}."
        if self.interval is None:
            return f"Trade-off: the task overtakes the information for good at state {self.onset:.1f}."
        low, high = self.interval
        return (
            f"Trade-off: the task overtakes the information for good at state {self.onset:.1f} "
            f"[{low:.1f} to {high:.1f}]."
        )


@dataclass(frozen=True)
class Reached:
    """The depth, in states, at which a curve first covers a share of its way, or the reason why not."""

    depth: float | None
    reason: str


@dataclass(frozen=True)
class Shift:
    """How many states later the second curve gets there than the first, or the reason why this is unknown."""

    by: float | None
    first: float | None
    second: float | None
    reason: str


def trade_off(
    information: Curve,
    task: Curve,
    states: Sequence[int],
    *,
    floor: float,
    resamples: int = 500,
    level: float = 0.95,
    seed: int = 0,
) -> TradeOff:
    """Onset of the information–task trade-off, by the rule at the top of this file.

    `information`: R²_self at each state, [S] or [S, R] with a column per seed or fold, such as
    `Scrambling.r2_self` (or `.normalised_self`: to divide again by the value at state 0 changes nothing).
    `task`: accuracy of a probe, [S] or [S, R'] with a column per image or seed. `floor`: accuracy of naming
    the majority class, in the unit of `task`. `states` names the S states, 0 among them.

    The uncertainty comes from `resamples` bootstrap draws of columns, of both curves independently
    (percentile interval at `level`); a curve of one column is held fixed.

    Raises ValueError for shapes or states that do not fit, values that are NaN or infinite, and no positive
    information at state 0 to divide by.

    >>> found = trade_off([0.9, 0.54, 0.27, 0.18], [0.25, 0.40, 0.55, 0.65], [0, 1, 2, 3], floor=0.25)
    >>> [round(x, 3) for x in found.information], [round(x, 3) for x in found.task]
    ([1.0, 0.6, 0.3, 0.2], [0.0, 0.375, 0.75, 1.0])
    >>> round(found.onset, 3)
    1.333
    >>> print(trade_off([1, 0.5, 0.4], [30, 80, 30], [0, 1, 2], floor=25).reason)
    not detected, because the information is ahead again at the last state, by 0.309
    """
    names = _states(states)
    known, solved = _columns("information", information, names), _columns("task", task, names)
    if 0 not in names:
        raise ValueError(f"information is divided by its value at state 0, got states {list(names)}")
    start = names.index(0)
    mean = known.mean(1)
    if not mean[start] > 0:
        raise ValueError(
            f"information at state 0 is {mean[start]:.4f}: nothing of a patch is reconstructed there, "
            "so there is no share of it to follow"
        )
    shares, scores = _shares(mean, start), _scores(solved.mean(1), floor)
    onset, reason = _onset(shares, scores, names)
    interval, support = None, None
    if max(known.shape[1], solved.shape[1]) > 1 and resamples > 0:
        rng = np.random.default_rng(seed)
        drawn = zip(_draw(known, resamples, rng).T, _draw(solved, resamples, rng).T, strict=True)
        having = [
            depth
            for r2, accuracy in drawn
            if r2[start] > 0
            and (depth := _onset(_shares(r2, start), _scores(accuracy, floor), names)[0]) is not None
        ]
        support = len(having) / resamples
        if onset is not None and having:
            low, high = np.quantile(having, [(1 - level) / 2, (1 + level) / 2]).tolist()
            interval = (low, high)
    return TradeOff(names, tuple(shares.tolist()), tuple(scores.tolist()), onset, reason, interval, support)


def reach(curve: Curve, states: Sequence[int], *, share: float = 0.5, tolerance: float = 0.002) -> Reached:
    """The depth at which a curve first covers `share` of its way from first to last value.

        depth = the first ℓ with (c(ℓ) − c(first)) / (c(last) − c(first)) ≥ share, between states on a line

    `curve` is [S], or [S, R] with a column per image or seed, of which the mean counts; it may rise or fall.
    A curve whose ends differ by no more than `tolerance`, in its own unit, has no way to cover.

    Raises ValueError for shapes or states that do not fit, values that are NaN or infinite, and a share
    outside (0, 1].

    >>> reach([0.0, 0.1, 0.7, 0.8], [0, 1, 2, 3]).depth
    1.5
    >>> print(reach([0.5, 0.9, 0.501], [0, 1, 2]).reason)
    not detected, because the curve ends where it began: it moves by +0.0010, within 0.002
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is the part of the way to cover, above 0 and at most 1, got {share}")
    names = _states(states)
    values = _columns("curve", curve, names).mean(1)
    way = values[-1] - values[0]
    if not abs(way) > tolerance:
        return Reached(
            None,
            "not detected, because the curve ends where it began: "
            f"it moves by {way:+.4f}, within {tolerance:g}",
        )
    covered = (values - values[0]) / way
    covered[-1] = 1.0  # exactly, so that rounding cannot leave a share of 1 unreached
    after = int(np.argmax(covered >= share))
    return Reached(_between(covered - share, names, after - 1), "")


def shift(
    curve_a: Curve,
    states_a: Sequence[int],
    curve_b: Curve,
    states_b: Sequence[int],
    share: float = 0.5,
    *,
    tolerance: float = 0.002,
) -> Shift:
    """How many states later curve b first covers `share` of its way than curve a does; see `reach`.

    Depths are absolute states, not shares of the depth. The difference is None, with the reason, when either
    curve does not move by more than `tolerance`.

    >>> shift([0, 0.5, 1], [0, 1, 2], [0, 0, 0, 0.5, 1], [0, 1, 2, 3, 4]).by
    2.0
    """
    first = reach(curve_a, states_a, share=share, tolerance=tolerance)
    second = reach(curve_b, states_b, share=share, tolerance=tolerance)
    for which, found in (("first", first), ("second", second)):
        if found.depth is None:
            reason = found.reason.replace("the curve", f"the {which} curve")
            return Shift(None, first.depth, second.depth, reason)
    assert first.depth is not None
    assert second.depth is not None
    return Shift(second.depth - first.depth, first.depth, second.depth, "")


def _onset(information: np.ndarray, task: np.ndarray, states: tuple[int, ...]) -> tuple[float | None, str]:
    if not task.any():
        return (
            None,
            "not detected, because the probe never beats the majority class: nothing is read",
        )
    ahead = task - information
    behind = np.flatnonzero(ahead < 0)
    if not len(behind):
        return (
            None,
            f"not detected, because the task is ahead from state {states[0]} on: nothing to overtake",
        )
    if len(behind) == len(ahead):
        nearest = int(ahead.argmax())
        return None, (
            "not detected, because the task never overtakes the information: nearest at state "
            f"{states[nearest]}, {-ahead[nearest]:.3f} below it"
        )
    if ahead[-1] < 0:
        return None, (
            f"not detected, because the information is ahead again at the last state, by {-ahead[-1]:.3f}"
        )
    return _between(ahead, states, int(behind[-1])), ""


def _between(values: np.ndarray, states: tuple[int, ...], before: int) -> float:
    """Where the straight line from position `before` (below zero) to the next one (not below) meets zero."""
    low, high = float(values[before]), float(values[before + 1])
    return states[before] + (states[before + 1] - states[before]) * -low / (high - low)


def _shares(r2: np.ndarray, start: int) -> np.ndarray:
    return (r2 / r2[start]).clip(0)


def _scores(accuracy: np.ndarray, floor: float) -> np.ndarray:
    """All zero where no state beats the floor: there is no range to take shares of."""
    above = accuracy.max() - floor
    return (accuracy - floor) / above if above > 0 else np.zeros_like(accuracy)


def _draw(columns: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Means [S, resamples] of columns drawn with replacement."""
    count = columns.shape[1]
    return columns @ (rng.multinomial(count, np.full(count, 1 / count), size=resamples).T / count)


def _states(states: Sequence[int]) -> tuple[int, ...]:
    names = tuple(int(s) for s in states)
    if len(names) < 2 or any(b <= a for a, b in itertools.pairwise(names)):
        raise ValueError(f"states must be two or more and ascend, got {list(names)}")
    return names


def _columns(what: str, values: Curve, states: tuple[int, ...]) -> np.ndarray:
    table = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=float)
    if table.ndim not in (1, 2) or table.size == 0:
        raise ValueError(f"{what} is [S], or [S, R] with a column per image or seed, got shape {table.shape}")
    if len(table) != len(states):
        raise ValueError(f"{what} has {len(table)} values but {len(states)} states are named")
    columns = table.reshape(len(table), -1)
    bad = [s for s, row in zip(states, columns, strict=True) if not np.isfinite(row).all()]
    if bad:
        raise ValueError(f"{what} is NaN or infinite at states {bad}")
    return columns
