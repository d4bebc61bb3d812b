"""One number of a run against those of other runs of its notebook: does it differ, and beyond what?

A number x of mine meets the values v₁ … v_k that the reference records have for it, one a seed, with mean m
and standard deviation s (divisor k − 1). The first of these that holds is its verdict:

- *same*: x differs from the reference of the same seed (from m, where there is none) by no more than
  rounding: half a unit of the last digit that its text shows, or of the third significant one where the text
  shows something else; or both round alike. Counts, where x and all v are whole numbers, must be equal.
- *same up to floating-point noise*: all v are equal and no counts, and |x − m| ≤ 0.001 · |m|, since machines
  round differently.
- *within the seeds' spread*: |x − m| ≤ a with the allowance a = max(t · s · √(1 + 1/k), rounding), t the
  two-sided 95 % factor of Student's distribution with k − 1 degrees of freedom: x lies in the prediction
  interval of one more seed (Hahn and Meeker 1991, Statistical Intervals). Where all v are equal, a is what
  the two rules above allow.
- *outside the seeds' spread, intervals overlap*: not so, but the interval that my record carries for the
  number and that of one of the references have a point in common. A standard deviation is no interval.
- *outside*: neither.

With one reference there is no spread: the rules for equal v apply, and the fourth verdict reads *differs,
intervals overlap*. A value of None on one side only is *not detected here* or *not detected in the book*;
where some seeds have none, x = None is within the spread, and a value is compared with those that there are.

*Outside* and *not detected* **exceed**. By construction about 5 in 100 numbers of another seed leave the
prediction interval, more where the numbers are far from normal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from scipy.special import stdtrit

from vitscope.runs.record import Number

SAME = "same"
NOISE = "same up to floating-point noise"
WITHIN = "within the seeds' spread"
OVERLAP = "outside the seeds' spread, intervals overlap"
OVERLAP_OF_ONE = "differs, intervals overlap"
OUTSIDE = "outside"
NOT_HERE = "not detected here"
TOLERATED = (SAME, NOISE, WITHIN)
RANKED = (*TOLERATED, OVERLAP, OVERLAP_OF_ONE, OUTSIDE, NOT_HERE)

LEVEL = 0.95
EXACT = 1e-6
MACHINES = 1e-3
_NUMBER = re.compile(r"[-−+]?\d[\d,]*(?:\.(\d+))?")
_NAN = float("nan")


class Judged(NamedTuple):
    """One number against those of the references, NaN where there is none; `why` says which rule decided.

    `seeds` references have a value, `missing` report that there is none. `book` is m, `low` and `high` are
    the smallest and the largest v, `difference` is x − m, `allowance` is a.
    """

    seeds: int
    missing: int
    book: float
    low: float
    high: float
    mine: float
    difference: float
    allowance: float
    verdict: str
    why: str


def judge(
    mine: Number, theirs: Sequence[Number], twin: Number | None = None, against: str = "book"
) -> Judged:
    """One number against those of the references, by the rules at the top of this file.

    `theirs` holds one number a seed, at least one; `twin` is the one of them with the seed of `mine`, if any.
    `against` names the references in words.

    >>> seeds = [Number(value=v, text=f"{v}") for v in (10.1, 10.2, 10.6)]
    >>> found = judge(Number(value=20.0, text="20.0"), seeds)
    >>> found.verdict, round(found.allowance, 2), found.why
    ('outside', 1.31, 'not in 8.986 to 11.61; no intervals on both sides')
    >>> judge(Number(value=7, text="7"), [Number(value=6, text="6")] * 3).why
    'the seeds agree and this differs; no intervals on both sides'
    """
    values = [float(n.value) for n in theirs if n.value is not None]
    k, missing = len(values), len(theirs) - len(values)
    book, low, high = (fmean(values), min(values), max(values)) if values else (_NAN, _NAN, _NAN)
    if mine.value is None or not values:
        x = _NAN if mine.value is None else float(mine.value)
        return Judged(k, missing, book, low, high, x, _NAN, _NAN, *_undetected(mine, k, missing, against))
    x = float(mine.value)
    count = all(v.is_integer() for v in (x, *values))
    constant = high - low <= 1e-12 * max(abs(low), abs(high))
    digits = None if count else _decimals(x, mine.text)
    rounding = max(EXACT * abs(book), 0.0 if digits is None else 0.5 * 10.0**-digits)
    allowance = rounding
    if not constant:
        factor = float(stdtrit(k - 1, (1 + LEVEL) / 2)) * math.sqrt(1 + 1 / k)
        allowance = max(factor * stdev(values), rounding)
    elif not count:
        allowance = max(MACHINES * abs(book), rounding)
    near = book if twin is None or twin.value is None else float(twin.value)
    alike = digits is not None and round(x, digits) == round(near, digits)
    if alike or abs(x - near) <= rounding:
        verdict, why = SAME, "equal up to rounding"
    elif abs(x - book) > allowance:
        verdict, why = _beyond(mine, theirs, k, None if constant else (book - allowance, book + allowance))
    elif constant:
        verdict, why = NOISE, f"within {MACHINES:.1%}, as machines round"
    else:
        verdict, why = WITHIN, f"in {plain(book - allowance)} to {plain(book + allowance)}"
    return Judged(k, missing, book, low, high, x, x - book, allowance, verdict, why)


def exceeds(verdict: str) -> bool:
    """Whether a verdict says that a number is outside by every rule.

    >>> exceeds("outside"), exceeds("not detected here"), exceeds("differs, intervals overlap")
    (True, True, False)
    """
    return verdict == OUTSIDE or verdict.startswith("not detected")


def plain(value: float) -> str:
    """A number as tables show it: whole, or with four significant digits.

    >>> plain(7.0), plain(0.123456), plain(25165824.0), plain(-12345.6)
    ('7', '0.1235', '25,165,824', '-12,346')
    """
    return f"{value:,.0f}" if value.is_integer() or abs(value) >= 1000 else f"{value:.4g}"


def _undetected(mine: Number, seeds: int, missing: int, against: str) -> tuple[str, str]:
    """Verdict and reason where one side or both have no value."""
    if mine.value is not None:
        return f"not detected in the {against}", f"in none of {missing}"
    if not seeds:
        return SAME, "not detected in either"
    if missing:
        return WITHIN, f"not detected in {missing} of {seeds + missing} there"
    return NOT_HERE, f"detected in all {seeds} there"


def _beyond(
    mine: Number, theirs: Sequence[Number], seeds: int, predicted: tuple[float, float] | None
) -> tuple[str, str]:
    """Verdict and reason of a number beyond its allowance: do the intervals that records carry meet?"""
    if predicted:
        first = f"not in {plain(predicted[0])} to {plain(predicted[1])}"
    else:
        first = "the seeds agree and this differs" if seeds > 1 else "differs from the only reference"
    spans = [n.spread for n in theirs if isinstance(n.spread, tuple)]
    if not spans or not isinstance(mine.spread, tuple):
        return OUTSIDE, f"{first}; no intervals on both sides"
    low, high = mine.spread
    if any(max(low, a) <= min(high, b) for a, b in spans):
        return OVERLAP if seeds > 1 else OVERLAP_OF_ONE, f"{first}; intervals overlap"
    return OUTSIDE, f"{first}; intervals are apart"


def _decimals(value: float, text: str) -> int:
    """How many decimals of a value its text shows; those of three significant digits where it shows others.

    >>> _decimals(63.86, "63.9 % (61 to 66)"), _decimals(63.86, "70 % in one"), _decimals(0.01234, "")
    (1, 1, 4)
    """
    for found in _NUMBER.finditer(text):
        token, decimals = found[0].replace(",", "").replace("−", "-"), len(found[1] or "")
        # whole numbers below 10 in a text are more often counts than roundings
        if (decimals or abs(value) >= 10) and round(value, decimals) == float(token):
            return decimals
    return 2 - math.floor(math.log10(abs(value))) if value else 9
