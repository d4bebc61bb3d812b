"""Scores of a variant over its trainings, and gains of one variant over another with their intervals.

An interval has two levels: trainings are drawn with replacement, and within each draw the same resampled
pictures for all models. With one training only pictures are drawn, and the interval says nothing of seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from vitscope.diffusion_curves import Curve
from vitscope.estimates import Estimate, divided, estimate

LEVEL = 0.95
_SEED = 1  # another stream than the draw of pictures, which has 0


@dataclass(frozen=True)
class Score:
    """`each` [K]: one number for each of K trainings; `drawn` [K, draws]: the same for resamples of pictures.

    `count`: the pictures behind it.
    """

    each: Float[np.ndarray, " K"]
    drawn: Float[np.ndarray, "K draws"]
    count: int

    def __post_init__(self) -> None:
        if self.each.ndim != 1 or not len(self.each) or self.drawn.shape[:-1] != self.each.shape:
            raise ValueError(
                "a score needs one number for each training [K] and its resamples [K, draws], got "
                f"{self.each.shape} and {self.drawn.shape}"
            )

    @property
    def trainings(self) -> int:
        return len(self.each)


def of_curves(found: Sequence[Curve]) -> Score:
    """The mean over the states of each training's curve, one curve a training.

    Raises ValueError for curves of other states, pictures or resamples.
    """
    first = found[0]
    for one in found[1:]:
        if (one.states, one.count, one.drawn.shape) != (first.states, first.count, first.drawn.shape):
            raise ValueError(
                "trainings are compared on the same states, pictures and resamples: "
                f"{first.states} of {first.count} pictures and {one.states} of {one.count}"
            )
    values = np.array([c.value.mean() for c in found])
    return Score(values, np.stack([c.drawn.mean(1) for c in found]), first.count)


def level(score: Score) -> Estimate:
    """Mean over trainings, with the two-level interval.

    >>> level(Score(np.array([1.0, 3.0]), np.array([[1.0] * 4, [3.0] * 4]), count=10)).value
    2.0
    """
    reason = "not measured, because it is not defined"
    return estimate(float(score.each.mean()), _over_trainings(score), reason, LEVEL)


def gain(score: Score, base: Score) -> Estimate:
    """Mean over trainings of (`score` − `base` of the same training and the same pictures).

    Raises ValueError for other trainings, pictures or resamples.

    >>> base = Score(np.array([1.0, 5.0]), np.array([[1.0, 0.0], [5.0, 4.0]]), count=10)
    >>> better = Score(base.each + 2, base.drawn + 2, count=10)
    >>> gain(better, base)
    Estimate(value=2.0, low=2.0, high=2.0, reason='')
    """
    _check(score, base)
    return level(Score(score.each - base.each, score.drawn - base.drawn, score.count))


def relative_gain(score: Score, base: Score) -> Estimate:
    """100 · gain / mean of `base`, in percent; None where that mean is not above 0. Errors: as `gain`."""
    _check(score, base)
    above, below = _over_trainings(score), _over_trainings(base)
    value = divided(100 * (score.each.mean() - base.each.mean()), float(base.each.mean()))
    drawn = divided(100 * (above - below), below)
    return estimate(float(value), drawn, "not measured, because there is nothing to divide by", LEVEL)


def relative_fall(score: Score, base: Score) -> Estimate:
    """`relative_gain` of what is better when it is lower: positive where `score` is below `base`."""
    found = relative_gain(score, base)
    if found.value is None or found.low is None or found.high is None:
        return found
    return Estimate(-found.value, -found.high, -found.low)


def _over_trainings(score: Score) -> Float[np.ndarray, " draws"]:
    """The mean over trainings, drawn with replacement in every resample."""
    k, draws = score.drawn.shape
    # as many trainings are drawn as there are; the same draw for every score of so many trainings
    weights = np.random.default_rng(_SEED).multinomial(k, np.full(k, 1 / k), size=draws) / k
    return (weights.T * score.drawn).sum(0)


def _check(score: Score, base: Score) -> None:
    if score.drawn.shape != base.drawn.shape or score.count != base.count:
        raise ValueError(
            "only scores of the same trainings, resamples and pictures can be compared, got "
            f"{score.drawn.shape} of {score.count} pictures and {base.drawn.shape} of {base.count}"
        )
