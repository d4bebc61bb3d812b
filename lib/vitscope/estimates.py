"""Bootstrap of ratios of sums: rates, differences of rates on the same images, and what is made of them.

`intervals` has the mean of single values; here the denominator (say, the number of errors) varies as well.
"""

from dataclasses import dataclass

import numpy as np

Sums = dict[str, np.ndarray]
Values = np.ndarray | float


@dataclass(frozen=True)
class Estimate:
    """A number with the ends of its bootstrap interval, or None with the reason why there is none.

    Resamples in which the number is not defined do not count; `low` and `high` are None if no other is left.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""


def resampled_sums(columns: Sums, *, clusters: np.ndarray | None, draws: int, seed: int) -> tuple[Sums, Sums]:
    """Sums of columns over their N rows, and the same for each bootstrap resample with `draws` in front.

    Ratios of such sums are what a bootstrap of rates and of differences of rates on the same images needs.
    Whole `clusters` [N] of rows are drawn, or single rows. Raises ValueError for fewer than two of them, a
    wrong number of cluster names and `draws` below 1.

    >>> total, drawn = resampled_sums({"a": np.ones(4), "b": np.eye(4)}, clusters=None, draws=3, seed=0)
    >>> float(total["a"]), drawn["a"].tolist(), drawn["b"].shape
    (4.0, [4.0, 4.0, 4.0], (3, 4))
    """
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    count = len(next(iter(columns.values())))
    labels = np.arange(count) if clusters is None else np.asarray(clusters)
    if labels.shape != (count,):
        raise ValueError(f"one cluster per image is needed: {labels.shape} for {count} images")
    names, member = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"a bootstrap needs at least two independent samples, got {len(names)}")
    flat = np.concatenate([np.reshape(c, (count, -1)) for c in columns.values()], 1).astype(float)
    sums = np.zeros((len(names), flat.shape[1]))
    np.add.at(sums, member, flat)
    rng = np.random.default_rng(seed)
    drawn = np.empty((draws, flat.shape[1]))
    for row in drawn:
        row[:] = np.bincount(rng.integers(len(names), size=len(names)), minlength=len(names)) @ sums
    total, parts, at = {}, {}, 0
    for key, column in columns.items():
        shape = np.shape(column)[1:]
        width = int(np.prod(shape))
        total[key] = flat[:, at : at + width].sum(0).reshape(shape)
        parts[key] = drawn[:, at : at + width].reshape(draws, *shape)
        at += width
    return total, parts


def estimate(value: Values, drawn: np.ndarray, reason: str, level: float = 0.95) -> Estimate:
    """A value [] with the percentiles of its resamples [draws]; NaN becomes None with the reason."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    if np.isnan(value):
        return Estimate(None, reason=reason)
    having = drawn[~np.isnan(drawn)]
    if not len(having):
        return Estimate(float(value))
    low, high = np.quantile(having, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(float(value), float(low), float(high))


def divided(above: Values, below: Values) -> np.ndarray:
    """Quotient over matching leading axes; NaN where there is nothing to divide by."""
    below = np.reshape(below, np.shape(below) + (1,) * (np.ndim(above) - np.ndim(below)))
    return np.where(below > 0, above / np.where(below > 0, below, 1.0), np.nan)
