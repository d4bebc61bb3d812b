"""A number at every state together with its bootstrap resamples, so that what is made of it has an interval.

Resamples of one seed draw the same images (`estimates.resampled_sums`): curves of the same images can be
subtracted, and the difference is paired, image by image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Num, Shaped

from vitscope.dense.segmentation_scores import resampled_miou
from vitscope.estimates import Estimate, divided, estimate, resampled_sums

DRAWS, LEVEL, THIRD = 1000, 0.95, 3


@dataclass(frozen=True)
class Curve:
    """`value` [S] at the `states`, NaN where there is none, and of every resample, `drawn` [draws, S].

    `count` is the number of images behind it.
    """

    states: tuple[int, ...]
    value: Float[np.ndarray, " S"]
    drawn: Float[np.ndarray, "draws S"]
    count: int

    def __post_init__(self) -> None:
        wanted = (len(self.states),)
        if self.value.shape != wanted or self.drawn.shape[1:] != wanted:
            raise ValueError(
                f"a curve of {len(self.states)} states needs values [{len(self.states)}] and resamples "
                f"[draws, {len(self.states)}], got {self.value.shape} and {self.drawn.shape}"
            )

    @property
    def blocks(self) -> list[int]:
        """The states that are outputs of blocks, 1…L."""
        return [state for state in self.states if state > 0]

    def table(self) -> pd.DataFrame:
        """Columns state, value, low, high; states without a value are left out."""
        rows = [(state, found) for state in self.states if (found := self.at(state)).value is not None]
        return pd.DataFrame(
            [(state, f.value, f.low, f.high) for state, f in rows], columns=["state", "value", "low", "high"]
        )

    def only(self, states: Sequence[int]) -> Curve:
        """The same at some of the states. Raises ValueError for one that is not there."""
        rows = self._rows(states)
        return Curve(tuple(states), self.value[rows], self.drawn[:, rows], self.count)

    def at(self, *states: int, reason: str = "not measured, because it is not defined there") -> Estimate:
        """The mean over some states. Raises ValueError for a state that is not there."""
        rows = self._rows(states)
        return estimate(float(self.value[rows].mean()), self.drawn[:, rows].mean(1), reason, LEVEL)

    def peak(self) -> tuple[int, Estimate]:
        """The block state of the largest value, and that value; its interval is that of the state found.

        The largest of several leans high. Raises ValueError where no block has a value.
        """
        having = [s for s in self.blocks if np.isfinite(self.value[self._rows([s])]).all()]
        if not having:
            raise ValueError("no block has a value: there is no largest one")
        best = max(having, key=lambda s: float(self.value[self._rows([s])][0]))
        return best, self.at(best)

    def minus(self, other: Curve) -> Curve:
        """The difference, paired by resample. Raises ValueError for other states, images or resamples."""
        if self.states != other.states or self.drawn.shape != other.drawn.shape or self.count != other.count:
            raise ValueError(
                "curves can be subtracted only if they have the same states, resamples and images: "
                f"{self.states} of {self.count} images and {other.states} of {other.count}"
            )
        return Curve(self.states, self.value - other.value, self.drawn - other.drawn, self.count)

    def thirds(self) -> Thirds:
        """Means over the first and the last third of the block states, and the first less the last."""
        first, last = thirds(self.blocks)
        ends = [self._rows(part) for part in (first, last)]
        means = [(self.value[rows].mean(), self.drawn[:, rows].mean(1)) for rows in ends]
        (a, drawn_a), (b, drawn_b) = means
        found = [estimate(v, d, "", LEVEL) for v, d in (*means, (a - b, drawn_a - drawn_b))]
        return Thirds(*found)

    def _rows(self, states: Sequence[int]) -> list[int]:
        missing = [s for s in states if s not in self.states]
        if missing or not states:
            raise ValueError(f"states {missing or 'none'} were asked for; there are {list(self.states)}")
        return [self.states.index(s) for s in states]


@dataclass(frozen=True)
class Thirds:
    """What `Curve.thirds` found."""

    shallow: Estimate
    deep: Estimate
    shallow_minus_deep: Estimate

    @property
    def deep_minus_shallow(self) -> Estimate:
        """The difference the other way round."""
        d = self.shallow_minus_deep
        value, low, high = (None if end is None else -end for end in (d.value, d.high, d.low))
        return Estimate(value, low, high, d.reason)


def thirds(blocks: Sequence[int]) -> tuple[list[int], list[int]]:
    """The first and the last ⌊L/3⌋ of the block states 1…L, one each at least.

    >>> thirds(range(1, 9))
    ([1, 2], [7, 8])
    """
    if len(blocks) < 2:
        raise ValueError(f"a first and a last third need two blocks or more, got {len(blocks)}")
    size = max(1, len(blocks) // THIRD)
    return list(blocks[:size]), list(blocks[-size:])


def of_images(
    states: Sequence[int],
    values: Shaped[np.ndarray, "S N"] | Float[torch.Tensor, "S N"],
    *,
    clusters: np.ndarray | None = None,
    scale: float = 1.0,
) -> Curve:
    """Mean over the images that have a value (NaN: none), times `scale`.

    Raises ValueError for infinity, other shapes, and as `resampled_sums`.

    >>> of_images([1, 2], np.array([[1.0, 3.0], [np.nan, 4.0]])).value.tolist()
    [2.0, 4.0]
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 2 or len(numbers) != len(states) or numbers.size == 0 or np.isinf(numbers).any():
        raise ValueError(f"values must be [{len(states)}, N], finite or NaN, got {numbers.shape}")
    there = ~np.isnan(numbers)
    columns = {"sum": np.where(there, numbers, 0.0).T, "count": there.astype(float).T}
    total, drawn = resampled_sums(columns, clusters=clusters, draws=DRAWS, seed=0)
    value, spread = (scale * divided(s["sum"], s["count"]) for s in (total, drawn))
    return Curve(tuple(states), value, spread, int(there.any(0).sum()))


def miou(
    states: Sequence[int],
    both: Num[np.ndarray, "S N C"],
    predicted: Num[np.ndarray, "S N C"],
    target: Num[np.ndarray, "N C"],
    *,
    clusters: np.ndarray | None = None,
) -> Curve:
    """mIoU in percent from pixel counts per image, which `Segmentation` gives: see `resampled_miou`."""
    value, drawn = resampled_miou(both, predicted, target, clusters=clusters, draws=DRAWS, seed=0)
    return Curve(tuple(states), value, drawn, len(target))


def rmse(
    states: Sequence[int],
    squares: Float[np.ndarray, "S N"],
    pixels: Num[np.ndarray, " N"],
    *,
    clusters: np.ndarray | None = None,
) -> Curve:
    """Root of the mean squared error over all pixels of all images, from sums per image.

    >>> rmse([1], np.array([[4.0, 12.0]]), np.array([1.0, 3.0])).value.tolist()
    [2.0]
    """
    total, drawn = resampled_sums({"e": squares.T, "n": pixels}, clusters=clusters, draws=DRAWS, seed=0)
    value, spread = (np.sqrt(divided(s["e"], s["n"])) for s in (total, drawn))
    return Curve(tuple(states), value, spread, len(pixels))
