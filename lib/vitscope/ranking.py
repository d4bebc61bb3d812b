"""Methods compared over datasets: mean ranks, a test that they differ at all, and differences to a reference.

A table is tidy: one row per `method`, `dataset` and `seed` (the last may be left out) with a value, say the
accuracy. Datasets are the independent units. Seeds are repetitions within them: they are averaged first and
never counted as further datasets. Every method must have been run on every dataset with every seed, because
a mean over different datasets compares the datasets.

Source: Demšar 2006, Statistical comparisons of classifiers over multiple data sets (JMLR 7).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import friedmanchisquare, rankdata, studentized_range

_MOST_NAMED = 5


def mean_ranks(
    table: pd.DataFrame, *, value: str = "accuracy", higher_is_better: bool = True, level: float = 0.05
) -> pd.DataFrame:
    """Every method's mean over datasets and mean rank, the best first; rank 1 is best, ties share a rank.

    Columns: method, mean (in the unit of `value`), rank (mean over datasets, of the means over seeds), rank
    low and rank high (the least and greatest mean rank that one seed alone would give), first (on how many
    datasets the method has the best value, shared ones included), and near best: its rank is less than
    the critical difference at `level` behind that of the best, so ranks do not tell the two apart.

    Raises ValueError for missing cells (naming them), cells that come twice, values that are infinite, and
    fewer than two methods or datasets.

    >>> rows = [("a", 1, 90), ("a", 2, 80), ("b", 1, 85), ("b", 2, 80), ("c", 1, 70), ("c", 2, 60)]
    >>> table = pd.DataFrame(rows, columns=["method", "dataset", "accuracy"])
    >>> mean_ranks(table)[["method", "mean", "rank", "first"]].to_numpy().tolist()
    [['a', 85.0, 1.25, 2], ['b', 82.5, 1.75, 1], ['c', 65.0, 3.0, 0]]
    """
    cube, methods, _ = _cube(table, value)
    means = _means(cube)
    ranks = _ranks(means, higher_is_better)
    by_seed = np.stack([_ranks(cube[..., s], higher_is_better).mean(1) for s in range(cube.shape[2])])
    mean = ranks.mean(1)
    best = means.max(0) if higher_is_better else means.min(0)
    found = pd.DataFrame(
        {
            "method": methods,
            "mean": means.mean(1),
            "rank": mean,
            "rank low": by_seed.min(0),
            "rank high": by_seed.max(0),
            "first": (means == best).sum(1),
            "near best": mean - mean.min() < critical_difference(*ranks.shape, level=level),
        }
    )
    return found.sort_values("rank", kind="stable", ignore_index=True)


def friedman(
    table: pd.DataFrame, *, value: str = "accuracy", higher_is_better: bool = True, level: float = 0.05
) -> pd.DataFrame:
    """Friedman's test that all methods rank alike, and what two mean ranks must differ by: one row.

        χ² = 12 n / (k(k+1)) Σ_j (R_j − (k+1)/2)²,  over 1 − Σ (t³ − t) / (n(k³ − k)) with ties of t values

    Columns: methods k, datasets n, chi2, p (from χ² with k − 1 degrees of freedom, rough below 10 datasets or
    5 methods), critical difference (Nemenyi, at `level`). Needs three methods; errors else as `mean_ranks`.

    >>> rows = [(m, d, 10 * m + d) for m in range(4) for d in range(6)]
    >>> friedman(pd.DataFrame(rows, columns=["method", "dataset", "accuracy"])).round(4).to_numpy().tolist()
    [[4.0, 6.0, 18.0, 0.0004, 1.9148]]
    """
    cube, methods, datasets = _cube(table, value)
    if len(methods) < 3:
        raise ValueError(
            f"Friedman's test needs three methods, got {len(methods)}: see `differences` for two"
        )
    ranks = _ranks(_means(cube), higher_is_better)
    # All tied everywhere is 0/0 in the formula, and no evidence of a difference.
    tied = bool((ranks == ranks[0]).all())
    chi2, p = (0.0, 1.0) if tied else friedmanchisquare(*ranks)
    return pd.DataFrame(
        {
            "methods": [len(methods)],
            "datasets": [len(datasets)],
            "chi2": [float(chi2)],
            "p": [float(p)],
            "critical difference": [critical_difference(*ranks.shape, level=level)],
        }
    )


def critical_difference(methods: int, datasets: int, *, level: float = 0.05) -> float:
    """Nemenyi's critical difference of mean ranks, CD = q √(k(k+1) / (6n)).

    q is the upper `level` quantile of the studentised range of k groups with infinite degrees of freedom,
    divided by √2. Source: Demšar 2006, section 3.2.2.

    >>> round(critical_difference(4, 14), 2)  # its example: q = 2.569
    1.25
    """
    if methods < 2 or datasets < 1:
        raise ValueError(f"two methods and a dataset are needed, got {methods} and {datasets}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    q = float(studentized_range.isf(level, methods, np.inf)) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * datasets)))


def differences(
    table: pd.DataFrame,
    reference: str,
    *,
    value: str = "accuracy",
    higher_is_better: bool = True,
    tie: float = 0.0,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Mean over datasets of each other method less `reference`, paired by dataset and seed, best first.

    Columns: method, difference (in the unit of `value`), low and high (bootstrap percentiles at `level` over
    datasets, each drawn with all its seeds), and wins, ties, losses against the reference: datasets on which
    the mean over seeds is better, differs by at most `tie`, is worse.

    Raises ValueError for a reference that is no method, a negative `tie`, and as `mean_ranks`.

    >>> rows = [("a", 1, 90), ("a", 2, 80), ("b", 1, 85), ("b", 2, 80)]
    >>> found = differences(pd.DataFrame(rows, columns=["method", "dataset", "accuracy"]), "b")
    >>> found.to_numpy().tolist()
    [['a', 2.5, 0.0, 5.0, 1, 1, 0]]
    """
    cube, methods, datasets = _cube(table, value)
    if reference not in methods:
        raise ValueError(f"no method is named {reference!r}; there are {', '.join(map(str, methods))}")
    if tie < 0:
        raise ValueError(f"tie must be 0 or above, got {tie}")
    if draws < 1 or not 0 < level < 1:
        raise ValueError(f"draws must be at least 1 and level between 0 and 1, got {draws} and {level}")
    means = _means(cube)
    gaps = means - means[methods.index(reference)]
    count = len(datasets)
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=draws) / count
    low, high = np.quantile(gaps @ weights.T, [(1 - level) / 2, (1 + level) / 2], axis=1)
    better = gaps if higher_is_better else -gaps
    found = pd.DataFrame(
        {
            "method": methods,
            "difference": gaps.mean(1),
            "low": low,
            "high": high,
            "wins": (better > tie).sum(1),
            "ties": (np.abs(gaps) <= tie).sum(1),
            "losses": (better < -tie).sum(1),
        }
    )
    others = found[found["method"] != reference]
    return others.sort_values("difference", ascending=not higher_is_better, kind="stable", ignore_index=True)


def _means(cube: np.ndarray) -> np.ndarray:
    """Means over seeds [K, n], to 12 digits: what differs by rounding only is a tie."""
    largest = np.abs(cube).max()
    return cube.mean(2).round(12 - int(np.ceil(np.log10(largest)))) if largest else cube.mean(2)


def _ranks(values: np.ndarray, higher_is_better: bool) -> np.ndarray:
    """Ranks [K, n] of the methods on each dataset."""
    return rankdata(-values if higher_is_better else values, axis=0)


def _cube(table: pd.DataFrame, value: str) -> tuple[np.ndarray, list, list]:
    """Values [K, n, seeds] of a full table, with its methods and datasets in order of their names."""
    axes = ["method", "dataset", *(["seed"] if "seed" in table.columns else [])]
    lacking = [name for name in ("method", "dataset", value) if name not in table.columns]
    if lacking:
        raise ValueError(f"the table has no column {', '.join(lacking)}; it has {', '.join(table.columns)}")
    # Sorted, so that the order of rows does not decide which datasets a resample draws.
    levels = [sorted(table[name].unique(), key=str) for name in axes]
    for name, found in zip(axes[:2], levels, strict=False):
        if len(found) < 2:
            raise ValueError(f"a comparison needs at least two {name}s, got {len(found)}")
    twice = table[table.duplicated(axes)]
    if len(twice):
        raise ValueError(
            f"{len(twice)} cells come more than once: {_listed(twice[axes].to_numpy().tolist())}"
        )
    cells = table.set_index(axes)[value].astype(float)
    if np.isinf(cells).any():
        raise ValueError(f"{value} is infinite for {_listed(cells.index[np.isinf(cells)].tolist())}")
    full = cells.reindex(pd.MultiIndex.from_product(levels, names=axes))
    missing = full.index[full.isna()].tolist()
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(full)} cells are missing: {_listed(missing)}; run them, or leave the "
            "method or the dataset out"
        )
    shape = [len(found) for found in levels] + [1] * (3 - len(axes))
    return full.to_numpy().reshape(shape), levels[0], levels[1]


def _listed(cells: list) -> str:
    texts = [
        f"{method} on {dataset}" + "".join(f" (seed {s})" for s in rest) for method, dataset, *rest in cells
    ]
    more = len(texts) - _MOST_NAMED
    return ", ".join(texts[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
