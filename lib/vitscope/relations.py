"""What goes with a high recovery rate, over datasets: rank correlations, and the same at equal accuracy.

Paper B reports that recovery rises with the correction entropy and falls with the geometric disagreement
across its 16 datasets. Recovery (a_oracle − a_L)/(100 − a_L) is made from the last state's accuracy a_L, and
so may be what it is compared with: the partial correlation takes a_L out of both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from vitscope.estimates import Estimate, estimate

MEASURES = ("correction_entropy", "geometric_disagreement")

_FEWEST = 4


@dataclass(frozen=True)
class Relation:
    """Spearman's ρ of recovery and one measure, and the partial one given accuracy; over `rows` rows."""

    spearman: Estimate
    partial: Estimate
    rows: int


def relations(
    table: pd.DataFrame,
    measures: Sequence[str] = MEASURES,
    *,
    clusters: str | None = None,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Relation]:
    """Rank correlation of the recovery rate with each measure, over the rows of `table`.

    `table`: a row per dataset and backbone with the columns `recovery_rate`, `accuracy` (of the last state)
    and the `measures`; rows in which one of the three in use is missing are left out of that relation. With
    `clusters`, the name of a column such as "dataset", the bootstrap draws all rows of one value together;
    else single rows.

        ρ_xy = Pearson's r of average ranks;  ρ_xy·z = (ρ_xy − ρ_xz ρ_yz) / √((1 − ρ_xz²)(1 − ρ_yz²))

    Both lie in [−1, 1]. They are None, with the reason, for fewer than 4 rows or clusters and for a column
    that does not vary; the partial one also for a column that has the ranks of accuracy, or their reverse.

    Raises ValueError for a column that is not there.

    >>> rows = {"recovery_rate": [20, 30, 40, 50, 76], "accuracy": [95, 80, 90, 70, 85]}
    >>> rows |= {"correction_entropy": [0.5, 0.6, 0.7, 0.8, 0.9], "geometric_disagreement": [5, 4, 3, 1, 2]}
    >>> found = relations(pd.DataFrame(rows))
    >>> {name: round(r.spearman.value, 2) for name, r in found.items()}
    {'correction_entropy': 1.0, 'geometric_disagreement': -0.9}
    >>> round(found["geometric_disagreement"].partial.value, 2)
    -0.89
    >>> relations(pd.DataFrame(rows)[:3])["correction_entropy"].spearman.reason
    'not measured, because 4 rows are needed, got 3'
    """
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    needed = ["recovery_rate", "accuracy", *measures, *([] if clusters is None else [clusters])]
    lacking = [name for name in needed if name not in table.columns]
    if lacking:
        raise ValueError(f"the table has no column {', '.join(lacking)}; it has {', '.join(table.columns)}")
    return {name: _relation(table, name, clusters, draws, level, seed) for name in measures}


def _relation(
    table: pd.DataFrame, measure: str, clusters: str | None, draws: int, level: float, seed: int
) -> Relation:
    # None among numbers makes a column of objects.
    values = table[["recovery_rate", measure, "accuracy"]].astype(float).to_numpy()
    there = np.isfinite(values).all(1)
    values = values[there]
    names = np.arange(len(values)) if clusters is None else table[clusters].to_numpy()[there]
    units, unit = np.unique(names, return_inverse=True)
    if len(units) < _FEWEST:
        what = "rows" if clusters is None else f"different values of {clusters}"
        nothing = Estimate(
            None, reason=f"not measured, because {_FEWEST} {what} are needed, got {len(units)}"
        )
        return Relation(nothing, nothing, len(values))
    members = [np.flatnonzero(unit == u) for u in range(len(units))]
    rng = np.random.default_rng(seed)
    resamples = [
        np.concatenate([members[u] for u in rng.integers(len(units), size=len(units))]) for _ in range(draws)
    ]
    drawn = np.array([_spearman(values[rows]) for rows in resamples])
    spearman, partial = _spearman(values)
    constant = [
        n
        for n, column in zip(("the recovery rate", measure, "the accuracy"), values.T, strict=True)
        if not np.ptp(column)
    ]
    reason = f"not measured, because {' and '.join(constant) or 'a column'} does not vary"
    alike = (
        reason
        if constant
        else "not measured, because a column has the ranks of the accuracy or their reverse"
    )
    return Relation(
        spearman=estimate(spearman, drawn[:, 0], reason, level),
        partial=estimate(partial, drawn[:, 1], alike, level),
        rows=len(values),
    )


def _spearman(values: np.ndarray) -> np.ndarray:
    """ρ_xy and ρ_xy·z of the columns x, y, z; NaN where it is not defined."""
    ranks = rankdata(values, axis=0)
    centred = ranks - ranks.mean(0)
    length = np.sqrt((centred**2).sum(0))
    if not length[:2].all():
        return np.array([np.nan, np.nan])
    unit = centred / np.where(length > 0, length, 1)
    products = unit.T @ unit
    xy, xz, yz = products[0, 1], products[0, 2], products[1, 2]
    left = (1 - xz**2) * (1 - yz**2)
    partial = (xy - xz * yz) / np.sqrt(left) if length[2] and left > 1e-12 else np.nan
    return np.clip([xy, partial], -1, 1)
