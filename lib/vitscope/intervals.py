"""Bootstrap intervals of means, with clusters where samples are not independent."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Interval(NamedTuple):
    """A mean with the ends of its bootstrap interval; arrays of one shape."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def bootstrap_mean(
    values: np.ndarray,
    *,
    clusters: np.ndarray | None = None,
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> Interval:
    """Percentile interval of the mean over the last axis of `values` [..., N].

    With `clusters` [N] whole clusters are drawn with replacement: eight renders of one emoji are not eight
    independent test pictures, and an interval that treats them so is too narrow (Field and Welsh 2007).

    Errors: `ValueError` for fewer than two clusters, a level outside (0, 1) or non-finite values.

    >>> interval = bootstrap_mean(np.array([1.0, 1.0, 1.0, 1.0]))
    >>> [float(x) for x in interval]
    [1.0, 1.0, 1.0]
    """
    values = np.asarray(values, dtype=np.float64)
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    if not np.isfinite(values).all():
        raise ValueError("values to average hold NaN or infinity")
    count = values.shape[-1]
    labels = np.arange(count) if clusters is None else np.asarray(clusters)
    if labels.shape != (count,):
        raise ValueError(f"one cluster per value is needed: {labels.shape} for {count} values")
    names, member = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"a bootstrap needs at least two independent samples, got {len(names)}")
    sums = np.zeros((*values.shape[:-1], len(names)))
    np.add.at(np.moveaxis(sums, -1, 0), member, np.moveaxis(values, -1, 0))
    sizes = np.bincount(member)
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    means = sums @ weights.T / (sizes @ weights.T)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=-1)
    return Interval(values.mean(-1), low, high)
