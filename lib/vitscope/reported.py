"""How a number comes into a sentence: what a run is told of it, and lists of clauses."""

from collections.abc import Sequence
from typing import Any

Reported = dict[str, Any]
"""Keyword arguments of `Run.report`: value, spread, n, unit, text."""


def listed(clauses: Sequence[str]) -> str:
    """Clauses as a sentence lists them.

    >>> listed(["1 in a", "2 in b", "3 in c"]), listed(["1 in a"])
    ('1 in a, 2 in b and 3 in c', '1 in a')
    """
    return " and ".join([", ".join(clauses[:-1]), clauses[-1]] if len(clauses) > 1 else clauses)
