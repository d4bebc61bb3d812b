"""What the rules would say if there were nothing to find: the negative control of the verdicts.

A clause that asks for a sign is met by luck now and then. Its reported numbers are therefore replaced by
noise around 0, and the rules, the same code, judge again, many times:

- a number with an interval becomes a draw from a normal distribution around 0 whose 95 % interval is as wide
  as its own, and its interval moves with it;
- a number without one keeps its size and takes a random sign: nothing is known about its error but that.

Once each seed draws for itself, as errors of measurement do; once all seeds share a draw, as an error would
that lies in the one training behind them all. Beside it stands a coin for each claim, which leaves the
measurements as they are and lets chance choose the direction that the paper is said to claim.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from vitscope.runs import verdicts
from vitscope.runs.claims import Ledger, SettingName, Sign
from vitscope.runs.record import Number, Record
from vitscope.runs.verdicts import Verdict

DRAWS = 200
COINS = 1000
NORMAL_95 = 1.959964
HERE, ALONE = "the records as they are", "noise, one seed alone"
APART, TOGETHER = "noise, each seed by itself", "noise, shared by all seeds"
COIN = "a coin for each claim's direction"
NOTHING = "No record answers a clause that asks for a sign in this setting."


def noise(
    ledger: Ledger, records: Iterable[Record], setting: SettingName, *, seed: int, draws: int = DRAWS
) -> pd.DataFrame:
    """Shares (%) of sign clauses that hold, fail and stay undecided, here and in each world of noise.

    Columns: world, clauses, holds, low, high, fails, undecided. The shares are means over draws; `low` and
    `high` enclose 95 % of the draws' shares that hold. Without rows if no record answers such a clause.
    Errors: those of `verdicts.verdicts`.
    """
    signs, used = _asked(ledger, records, setting)
    settings = [claim.settings[setting] for claim in signs.claims]
    keys = {one.fill(key) for one in settings for clause in one.clauses for key in clause.keys}
    here = _judge(signs, used)
    if not here:
        return pd.DataFrame(columns=["world", "clauses", "holds", "low", "high", "fails", "undecided"])
    rng = np.random.default_rng(seed)
    apart, together = [], []
    for _ in range(draws):
        apart.append(_judge(signs, [_replaced(r, _draws(keys, rng)) for r in used]))
        shared = _draws(keys, rng)
        together.append(_judge(signs, [_replaced(r, shared) for r in used]))
    readings = [[r.outcome for v in one for j in v.clauses for r in j.readings] for one in apart]
    table = [
        _row(HERE, [_outcomes(here)]),
        _row(ALONE, readings),
        _row(APART, [_outcomes(one) for one in apart]),
        _row(TOGETHER, [_outcomes(one) for one in together]),
        _row(COIN, _coins(here, rng)),
    ]
    return pd.DataFrame(table).assign(clauses=len(_outcomes(here)))


def numbers(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """What the prose says of `noise`, as keywords of `run.report`."""
    keys = {"held": HERE, "luck_alone": ALONE, "luck_apart": APART, "luck_together": TOGETHER, "coin": COIN}
    if table.empty:
        return {key: {"value": None, "text": "nothing (no record)"} for key in keys}
    shown = table.set_index("world")
    count = int(shown.at[HERE, "clauses"])
    shares = {key: float(shown.at[world, "holds"]) for key, world in keys.items()}
    low, high = float(shown.at[COIN, "low"]), float(shown.at[COIN, "high"])
    texts = {key: f"{share:.1f}%" for key, share in shares.items()}
    texts["held"] = f"{round(shares['held'] * count / 100)} of {count} ({shares['held']:.0f}%)"
    texts["coin"] = f"{shares['coin']:.0f}% ({low:.0f} to {high:.0f})"
    found = {
        key: {"value": share, "n": count, "unit": "%", "text": texts[key]} for key, share in shares.items()
    }
    found["coin"]["spread"] = (low, high)
    return found


def bare(ledger: Ledger, records: Iterable[Record], setting: SettingName) -> int:
    """How many sign clauses rest on numbers without an interval, whose sign alone decides."""
    signs, used = _asked(ledger, records, setting)
    judged = [j for verdict in _judge(signs, used) for j in verdict.clauses]
    return sum(any(r.value is not None and r.interval is None for r in j.readings) for j in judged)


def _asked(ledger: Ledger, records: Iterable[Record], setting: SettingName) -> tuple[Ledger, list[Record]]:
    """The ledger with the sign clauses of one setting and nothing else, and the records that answer them."""
    kept = []
    for claim in ledger.claims:
        own = claim.settings[setting]
        clauses = [clause for clause in own.clauses if isinstance(clause.rule, Sign)]
        if clauses:
            only = {setting: own.model_copy(update={"clauses": clauses})}
            kept.append(claim.model_copy(update={"settings": only}))
    settings = [claim.settings[setting] for claim in kept]
    used = [r for r in records if any(verdicts._answers(r, one) for one in settings)]
    return ledger.model_copy(update={"claims": kept}), used


def _judge(ledger: Ledger, records: Sequence[Record]) -> list[Verdict]:
    return [verdict for verdict in verdicts.verdicts(ledger, records) if verdict.seeds]


def _outcomes(found: Iterable[Verdict]) -> list[str]:
    return [judged.outcome for verdict in found for judged in verdict.clauses]


def _draws(keys: Iterable[str], rng: np.random.Generator) -> dict[str, float]:
    return {key: float(rng.standard_normal()) for key in sorted(keys)}


def _replaced(record: Record, draws: dict[str, float]) -> Record:
    """The record with noise in place of the numbers under these keys."""
    made = {k: _noise(number, draws[k]) for k, number in record.numbers.items() if k in draws}
    return record.model_copy(update={"numbers": made})


def _noise(number: Number, draw: float) -> Number:
    """A number as it might be if its true value were 0; `draw` is standard normal.

    >>> _noise(Number(value=5, spread=(3.0, 8.0), text="5"), 0.0).spread
    (-2.0, 3.0)
    >>> _noise(Number(value=5, text="5"), -0.5).value
    -5.0
    """
    if number.value is None:
        return number
    low, high = number.spread if isinstance(number.spread, tuple) else (number.value, number.value)
    if low >= high:
        return number.model_copy(update={"value": math.copysign(number.value, draw)})
    at = draw * (high - low) / (2 * NORMAL_95)
    shift = at - number.value
    return number.model_copy(update={"value": at, "spread": (low + shift, high + shift)})


def _coins(here: Sequence[Verdict], rng: np.random.Generator) -> list[list[str]]:
    """Outcomes if heads or tails decided, claim by claim, which direction the paper is said to claim."""
    other = {"holds": "fails", "fails": "holds", "undecided": "undecided"}
    heads = rng.integers(0, 2, (COINS, len(here))).astype(bool)
    return [
        [
            j.outcome if head else other[j.outcome]
            for head, v in zip(row, here, strict=True)
            for j in v.clauses
        ]
        for row in heads
    ]


def _row(world: str, draws: Sequence[Sequence[str]]) -> dict[str, Any]:
    shares = [{o: 100 * n / len(one) for o, n in Counter(one).items()} for one in draws]
    held = [share.get("holds", 0.0) for share in shares]
    low, high = np.percentile(held, [2.5, 97.5])
    mean = {o: float(np.mean([share.get(o, 0.0) for share in shares])) for o in ("fails", "undecided")}
    return {"world": world, "clauses": 0, "holds": float(np.mean(held)), "low": low, "high": high, **mean}
