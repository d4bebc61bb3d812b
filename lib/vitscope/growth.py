"""How a cost grows with the size of its work: the exponent b of cost ∝ size^b, fitted in log–log.

An exponent says what doubling the work does, whatever the machine: 0 nothing, 1 twice the cost, 2 four times.
A fixed cost beside the growing one bends the line at small sizes and makes the exponent smaller.
"""

from collections.abc import Mapping, Sequence

import numpy as np


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of log cost over log size, by least squares.

    Raises ValueError for fewer than two different sizes, lengths that differ, and numbers not above 0.

    >>> round(exponent([1, 2, 4], [3.0, 12.0, 48.0]), 6)
    2.0
    """
    if len(sizes) != len(costs):
        raise ValueError(f"each size needs its cost, got {len(sizes)} sizes and {len(costs)} costs")
    x, y = np.asarray(sizes, dtype=float), np.asarray(costs, dtype=float)
    for name, values in (("sizes", x), ("costs", y)):
        if not (np.isfinite(values) & (values > 0)).all():
            raise ValueError(f"{name} must be above 0 to have a logarithm, got {values.tolist()}")
    if len(np.unique(x)) < 2:
        raise ValueError(f"an exponent needs two different sizes or more, got {x.tolist()}")
    x, y = np.log(x), np.log(y)
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())


def exponents(rounds: Mapping[float, Sequence[float]], last: int | None = None) -> list[float]:
    """One exponent for each round of measurements: `rounds` has the costs of all rounds by size.

    With `last`, of that many largest sizes alone, where small fixed costs are left behind.

    >>> [round(b, 6) for b in exponents({1: [1.0, 2.0], 10: [10.0, 200.0]})]
    [1.0, 2.0]
    """
    sizes = sorted(rounds)[-last:] if last else sorted(rounds)
    return [exponent(sizes, costs) for costs in zip(*(rounds[size] for size in sizes), strict=True)]
