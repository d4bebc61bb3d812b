"""From records to verdicts, by the rules of the ledger alone.

One record and one clause give an **outcome**. A reported number is v with an interval [a, b]; without one,
a = b = v, since a standard deviation says nothing about where the number itself may lie.

- `sign`: holds where the whole interval lies on the right side of 0, fails where it lies on the wrong one,
  undecided where it touches 0.
- `range`, `near`, `ratio`, with their target [low, high]: holds where v lies in it; fails where the interval
  and the target are disjoint; undecided where v lies outside but the interval reaches in. The target's width
  is the allowance, so an interval wider than it does not undo a hit.
- `all`: holds where v = n, fails where v = 0, partly between.
- `order`: the difference of each key and the one before it must be above 0: holds where all their intervals
  are, fails where one of them has no part above 0, else undecided.

A value of None (not detected) is undecided, or fails where the clause says so. The interval of a difference
l − m combines those of its parts (MOVER; Zou and Donner 2008, Statistics in Medicine 27):
l − m − √((l − l_low)² + (m_high − m)²) to l − m + √((l_high − l)² + (m − m_low)²), which takes them as
independent and so is too wide rather than too narrow where both were measured on the same images.

**Over seeds** a clause holds where it holds in every record, fails where it fails in every one, is partly so
where each record says holds or partly, and is undecided otherwise, or with fewer than `FEWEST_SEEDS` records.
**Verdict**: *reproduced*, all clauses hold; *partly*, some clause holds or partly holds, not all hold;
*contradicted*, none does and one fails; *inconclusive*, all are undecided; *not attempted*, no record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import pandas as pd

from vitscope.errors import unknown
from vitscope.runs import claims
from vitscope.runs.claims import Claim, ClaimError, Clause, Ledger, Setting
from vitscope.runs.record import Number, Record

Outcome = Literal["holds", "partly", "fails", "undecided"]
Decision = Literal["reproduced", "partly", "contradicted", "inconclusive", "not attempted"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
DECISIONS: tuple[Decision, ...] = get_args(Decision)
SETTINGS: tuple[claims.SettingName, ...] = get_args(claims.SettingName)
PAPERS: tuple[claims.Paper, ...] = get_args(claims.Paper)
FEWEST_SEEDS = 3

_SIGNS = {"holds": "is", "fails": "is not", "undecided": "is not clearly"}
_FREE = ("seed", "device")  # parameters in which the records of one setting may differ


@dataclass(frozen=True)
class Reading:
    """What one record says about one clause.

    `value` is the number or difference, for `order` the smallest step; None where it was not detected.
    `interval` is None where no part of it was reported with one. `text` shows the numbers.
    """

    seed: int
    value: float | None
    interval: tuple[float, float] | None
    text: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Judged:
    """One clause over all its records, ascending by seed."""

    says: str
    readings: tuple[Reading, ...]
    outcome: Outcome
    reason: str

    @property
    def ours(self) -> str:
        """Mean over seeds, and their smallest and largest: "3.2 (3 to 4)"."""
        values = [r.value for r in self.readings if r.value is not None]
        if not values:
            return "not detected" if self.readings else "–"
        mean, low, high = sum(values) / len(values), min(values), max(values)
        spread = f" ({low:.3g} to {high:.3g})" if high > low else ""
        missing = len(self.readings) - len(values)
        return f"{mean:.3g}{spread}" + (f", {missing} not detected" if missing else "")


@dataclass(frozen=True)
class Verdict:
    """What the records of one setting say about one claim. `seeds` are those of the records."""

    id: str
    setting: claims.SettingName
    verdict: Decision
    clauses: tuple[Judged, ...]
    seeds: tuple[int, ...]


def verdicts(ledger: Ledger, records: Iterable[Record]) -> list[Verdict]:
    """The verdict on every claim in each of its settings.

    Records of all chapters come together; each answers the settings that name its notebook and profile.

    Errors: `ClaimError` for a record that is incomplete, of another format, a smoke run, at odds with its own
    parameters, or of a notebook, profile or parameters that no claim asks for; for two records of one seed,
    or seeds with different weights of one model; for a key that a claim reads and its record lacks, with near
    keys.
    """
    records = list(records)
    settings = [setting for claim in ledger.claims for setting in claim.settings.values()]
    for record in records:
        _admit(record, settings)
    found = []
    for claim in ledger.claims:
        for name, setting in claim.settings.items():
            chosen = sorted((r for r in records if _answers(r, setting)), key=_seed)
            _agree(chosen, setting)
            judged = tuple(_over_seeds(claim, setting, clause, chosen) for clause in setting.clauses)
            decision = _decide([j.outcome for j in judged]) if chosen else "not attempted"
            found.append(Verdict(claim.id, name, decision, judged, tuple(map(_seed, chosen))))
    return found


def table(ledger: Ledger, found: Sequence[Verdict]) -> pd.DataFrame:
    """One row per verdict; `ours` goes clause by clause, each as the mean over seeds and its range."""
    rows = []
    for verdict in found:
        claim = ledger.claim(verdict.id)
        ours = "; ".join(judged.ours for judged in verdict.clauses) if verdict.seeds else "–"
        rows.append(
            {
                "id": claim.id,
                "setting": verdict.setting,
                "statement": claim.statement,
                "published": _published(claim),
                "ours": ours,
                "verdict": verdict.verdict,
                "seeds": len(verdict.seeds),
            }
        )
    columns = ["id", "setting", "statement", "published", "ours", "verdict", "seeds"]
    return pd.DataFrame(rows, columns=columns)


def in_full(claim: Claim, found: Sequence[Verdict]) -> str:
    """A claim with its verdicts, clause by clause and seed by seed, as lines of text."""
    lines = [
        f"{claim.id}  {claim.statement}",
        f"published: {_published(claim)} (grade {claim.grade}; {claim.conditions})",
        f"in this book: {claim.section}",
        f"note: {claim.note}",
    ]
    for verdict in (v for v in found if v.id == claim.id):
        setting = claim.settings[verdict.setting]
        lines += ["", f"{verdict.setting} ({setting.notebook}, profile {setting.profile}): {verdict.verdict}"]
        for judged in verdict.clauses:
            lines.append(f"  {judged.says}")
            if judged.readings:
                lines.append(f"    {judged.outcome}: {judged.reason}; ours {judged.ours}")
            lines += [f"    seed {r.seed}: {r.text}: {r.outcome}, {r.reason}" for r in judged.readings]
    return "\n".join(lines)


def _published(claim: Claim) -> str:
    return f"{claim.published.text} {claim.published.unit or ''}".strip()


# --- which records count ---------------------------------------------------------------------------------


def _answers(record: Record, setting: Setting) -> bool:
    same = (record.notebook, record.profile) == (setting.notebook, setting.profile)
    return same and _changed(record) == setting.parameters


def _changed(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record.changed.items() if name not in _FREE}


def _admit(record: Record, settings: Sequence[Setting]) -> None:
    """Raise for a record that can answer nothing, and say why."""
    same = [s for s in settings if s.notebook == record.notebook]
    notebooks, profiles = {s.notebook for s in settings}, {s.profile for s in same}
    wanted = Record.model_fields["format"].default
    problem = None
    if record.format != wanted:
        problem = f"has format {record.format}, expected {wanted}; run it again"
    elif not record.complete:
        problem = "is not complete; only a run that `vitscope run` finished counts"
    elif record.profile == "smoke":
        problem = "is a smoke run, which is never a result; take it out"
    elif record.parameters.get("profile", record.profile) != record.profile:
        own = record.parameters["profile"]
        problem = f"has the profile {own} among its parameters; it was changed after its run, run it again"
    elif not isinstance(record.parameters.get("seed"), int):
        problem = "has no whole number as parameter seed, which tells repetitions apart"
    elif not same:
        problem = f"answers no claim. {unknown('notebook', record.notebook, sorted(notebooks))}"
    elif record.profile not in profiles:
        problem = f"answers no claim; expected profile {' or '.join(sorted(profiles))}"
    elif not any(_answers(record, s) for s in same):
        changed = ", ".join(f"{k}={v!r}" for k, v in _changed(record).items()) or "none"
        problem = f"answers no claim with its changed parameters ({changed}); free are {' and '.join(_FREE)}"
    if problem:
        raise ClaimError(f"{_name(record)} {problem}")


def _agree(records: Sequence[Record], setting: Setting) -> None:
    """Raise unless the records repeat one experiment: other seeds, the same weights."""
    for one, other in pairwise(records):
        if _seed(one) == _seed(other):
            raise ClaimError(f"{_name(one)} is there twice; one record a seed counts, take the other out")
    for name in setting.models.values():
        if len({m.digest for r in records for m in r.models if m.name == name}) > 1:
            names = " and ".join(map(_name, records))
            raise ClaimError(f"{names} saw different weights of {name}; run all seeds again with one of them")


def _seed(record: Record) -> int:
    return int(record.parameters["seed"])


def _name(record: Record) -> str:
    return f"record {record.notebook} ({record.profile}, seed {record.parameters.get('seed')})"


# --- one clause, one record ------------------------------------------------------------------------------


class _Estimate(NamedTuple):
    value: float | None
    low: float
    high: float
    n: int | None
    text: str


def _estimate(claim: Claim, setting: Setting, key: str, record: Record) -> _Estimate:
    name = setting.fill(key)
    number: Number | None = record.numbers.get(name)
    if number is None:
        raise ClaimError(f"claim {claim.id}, {_name(record)}: {unknown('key', name, record.numbers)}")
    if number.value is None:
        return _Estimate(None, math.nan, math.nan, number.n, number.text)
    low, high = number.spread if isinstance(number.spread, tuple) else (number.value, number.value)
    if low > high:
        raise ClaimError(
            f"claim {claim.id}, {_name(record)}: {name} has the interval ({low}, {high}) reversed"
        )
    return _Estimate(number.value, low, high, number.n, f"{number.value:.3g}")


def _minus(left: _Estimate, right: _Estimate) -> _Estimate:
    """The difference of two estimates with its MOVER interval; a percentile interval may miss its value."""
    if left.value is None or right.value is None:
        return _Estimate(None, math.nan, math.nan, None, (left if left.value is None else right).text)
    value = left.value - right.value
    down = math.hypot(max(0, left.value - left.low), max(0, right.high - right.value))
    up = math.hypot(max(0, left.high - left.value), max(0, right.value - right.low))
    return _Estimate(value, value - down, value + up, None, f"{left.text} − {right.text}")


def _read(claim: Claim, setting: Setting, clause: Clause, record: Record) -> Reading:
    """What one record says about one clause."""
    parts = [_estimate(claim, setting, key, record) for key in clause.keys]
    if isinstance(clause.rule, claims.Order):
        steps = [_minus(after, before) for before, after in pairwise(parts)]
        text = ", ".join(part.text for part in parts)
    else:
        steps = [_minus(*parts) if isinstance(clause.value, claims.Difference) else parts[0]]
        text = steps[0].text
    for step in steps:
        if step.value is None:
            return Reading(_seed(record), None, None, text, clause.absent, f"no number: {step.text}")
    shown = min(steps, key=lambda step: step.value or 0.0)
    if isinstance(clause.rule, claims.All) and not (shown.n and 0 <= (shown.value or 0) <= shown.n):
        raise ClaimError(
            f"claim {claim.id}, {_name(record)}: {clause.keys[0]} is {shown.text} of n = {shown.n}; "
            "`all` expects a count of hits from 0 to n, reported with its n"
        )
    outcome, reason = _judge(clause.rule, steps, shown)
    interval = (shown.low, shown.high) if shown.low < shown.high else None
    return Reading(_seed(record), shown.value, interval, text, outcome, reason)


def _judge(rule: claims.Rule, steps: Sequence[_Estimate], shown: _Estimate) -> tuple[Outcome, str]:
    """Outcome and reason of a rule where every number is there; `shown` is the smallest step."""
    value = float(shown.value or 0.0)
    span = f"{value:.3g}" + (f" ({shown.low:.3g} to {shown.high:.3g})" if shown.low < shown.high else "")
    if isinstance(rule, claims.Sign):
        side = 1 if rule.sign == "positive" else -1
        near, far = sorted((side * shown.low, side * shown.high))
        outcome: Outcome = "holds" if near > 0 else "fails" if far < 0 else "undecided"
        return outcome, f"{span} {_SIGNS[outcome]} {rule.sign}"
    if isinstance(rule, claims.All):
        outcome = "holds" if value == shown.n else "partly" if value else "fails"
        return outcome, f"{value:g} of {shown.n}"
    if isinstance(rule, claims.Order):
        if all(step.low > 0 for step in steps):
            return "holds", f"every step is above 0, the smallest is {span}"
        outcome = "fails" if any(step.high <= 0 for step in steps) else "undecided"
        return outcome, f"the smallest step is {span}, expected above 0"
    low, high = rule.target
    if low <= value <= high:
        return "holds", f"{span} lies in {low:.4g} to {high:.4g}"
    if shown.high < low or shown.low > high:
        return "fails", f"{span} lies outside {low:.4g} to {high:.4g}"
    return "undecided", f"{span} lies outside {low:.4g} to {high:.4g}, but its interval reaches in"


# --- over seeds, over clauses ----------------------------------------------------------------------------


def _over_seeds(claim: Claim, setting: Setting, clause: Clause, records: Sequence[Record]) -> Judged:
    readings = tuple(_read(claim, setting, clause, record) for record in records)
    outcomes = {reading.outcome for reading in readings}
    if len(readings) < FEWEST_SEEDS:
        reason = f"{len(readings)} of the {FEWEST_SEEDS} seeds that a verdict needs"
        return Judged(clause.says, readings, "undecided", reason)
    if len(outcomes) == 1:
        return Judged(clause.says, readings, outcomes.pop(), f"in all {len(readings)} seeds")
    counts = [(outcome, sum(r.outcome == outcome for r in readings)) for outcome in OUTCOMES]
    reason = ", ".join(f"{outcome} in {count}" for outcome, count in counts if count)
    reason += f" of {len(readings)} seeds"
    return Judged(clause.says, readings, "partly" if outcomes <= {"holds", "partly"} else "undecided", reason)


def _decide(outcomes: Sequence[Outcome]) -> Decision:
    """The verdict of a claim from the outcomes of its clauses.

    >>> _decide(["holds", "holds"]), _decide(["holds", "fails"]), _decide(["undecided", "fails"])
    ('reproduced', 'partly', 'contradicted')
    """
    if all(outcome == "holds" for outcome in outcomes):
        return "reproduced"
    if any(outcome in ("holds", "partly") for outcome in outcomes):
        return "partly"
    return "contradicted" if "fails" in outcomes else "inconclusive"
