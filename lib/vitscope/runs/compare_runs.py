"""`compare(record, references)`: what differs between a run and other runs of its notebook.

The rule for numbers is in `compare_rule`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from vitscope.runs import compare_around as around
from vitscope.runs.compare_around import FREE, seed_of
from vitscope.runs.compare_rule import TOLERATED, Judged, exceeds, judge
from vitscope.runs.record import Record


class CompareError(ValueError):
    """Records that cannot be compared; the message says which, what was expected and what to do."""


@dataclass(frozen=True)
class Comparison:
    """What differs between `record` and `references`, which are called `against` ("book", "reference").

    - `parameters`, `environment`: name, book, mine, as text; only what differs.
    - `numbers`: a row for each number that both have: key, unit, and the fields of `Judged`.
    - `alone`: key, where ("only here", "only in the book"), text; with another unit it is another number.
    - `remarks`: where, records (how many have it), about, text.
    """

    record: Record
    references: tuple[Record, ...]
    against: str
    parameters: pd.DataFrame
    environment: pd.DataFrame
    numbers: pd.DataFrame
    alone: pd.DataFrame
    remarks: pd.DataFrame

    @property
    def other_question(self) -> list[str]:
        """The parameters that make these numbers answer another question than the references' do."""
        return [name for name in self.parameters["name"] if name not in FREE]

    @property
    def differing(self) -> pd.DataFrame:
        """The rows of `numbers` beyond tolerance."""
        return self.numbers[~self.numbers["verdict"].isin(TOLERATED)]

    @property
    def exceeding(self) -> pd.DataFrame:
        """The rows of `numbers` that are outside by every rule, or not detected on one side only."""
        return self.numbers[self.numbers["verdict"].map(exceeds).astype(bool)]

    @property
    def exceeds(self) -> bool:
        """Whether a number exceeds though the parameters are those of the references."""
        return not self.other_question and not self.exceeding.empty


def compare(
    record: Record, references: Record | Sequence[Record], *, against: str = "reference"
) -> Comparison:
    """Compare a run with one or several records of its notebook, by the rules of `compare_rule`.

    `against` names the references in words. Errors: `CompareError` for a record of another format, an
    incomplete or smoke run, an interval that is reversed, no reference, and references of another notebook,
    of several, with other parameters than each other (`seed` and `device` aside), or twice of one seed.

    >>> from vitscope.runs.record import Number
    >>> def run(seed, value):
    ...     number = Number(value=value, text=f"{value:.1f}")
    ...     settings = {"profile": "course", "seed": seed}
    ...     return Record(complete=True, notebook="x", profile="course", parameters=settings,
    ...                   numbers={"n": number})
    >>> found = compare(run(3, 20.0), [run(0, 10.1), run(1, 10.2), run(2, 10.6)])
    >>> found.numbers["verdict"].item(), found.exceeds
    ('outside', True)
    """
    theirs = [references] if isinstance(references, Record) else list(references)
    admit(record)
    _agree(record, theirs)
    theirs.sort(key=lambda one: seed_of(one) if isinstance(seed_of(one), int) else -1)
    numbers, alone = _numbers(record, theirs, against)
    return Comparison(
        record, tuple(theirs), against, around.parameters(record, theirs),
        around.environment(record, theirs), numbers, alone, around.remarks(record, theirs, against),
    )  # fmt: skip


def admit(record: Record) -> None:
    """Raise `CompareError` for a record that is no result, and say why."""
    wanted = Record.model_fields["format"].default
    problem = None
    if record.format != wanted:
        problem = f"has format {record.format}, expected {wanted}; run it again with this version of vitscope"
    elif not record.complete:
        problem = (
            "is not complete: the run was interactive or did not finish; "
            f"`vitscope run {record.notebook}` makes one that counts"
        )
    elif record.profile == "smoke":
        problem = "is a smoke run, and smoke numbers are no results; run it with another profile"
    for key, number in record.numbers.items():
        if isinstance(number.spread, tuple) and number.spread[0] > number.spread[1]:
            problem = problem or f"has {key} with the interval {number.spread} reversed; run it again"
    if problem:
        raise CompareError(f"{_name(record)} {problem}")


def _agree(record: Record, references: Sequence[Record]) -> None:
    """Raise unless the references repeat one experiment with the notebook of `record`."""
    if not references:
        raise CompareError("there is no record to compare with; give one or more of the same notebook")
    for one in references:
        admit(one)
    notebooks = sorted({one.notebook for one in references})
    if len(notebooks) > 1:
        raise CompareError(
            f"the references are of several notebooks ({', '.join(notebooks)}); give records of one"
        )
    if notebooks != [record.notebook]:
        raise CompareError(
            f"{_name(record)} cannot be compared with records of {notebooks[0]}; "
            f"expected records of {record.notebook}"
        )
    first, seen = references[0], {seed_of(references[0])}
    for one in references[1:]:
        if seed_of(one) in seen:
            raise CompareError(f"{_name(one)} is there twice; one record a seed counts, take the other out")
        seen.add(seed_of(one))
        names = [n for n in {**first.parameters, **one.parameters} if n not in FREE]
        if apart := [n for n in names if first.parameters.get(n) != one.parameters.get(n)]:
            raise CompareError(
                f"{_name(first)} and {_name(one)} differ in {', '.join(apart)}; references may differ in "
                f"{' and '.join(FREE)} only, take one of them out"
            )


def _numbers(record: Record, references: Sequence[Record], against: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The numbers that both have, judged, and those that one of the two lacks."""
    judged, alone = [], []
    twin = next((one for one in references if seed_of(one) == seed_of(record)), None)
    for key in dict.fromkeys([*record.numbers, *(key for one in references for key in one.numbers)]):
        mine = record.numbers.get(key)
        theirs = [one.numbers[key] for one in references if key in one.numbers]
        same = [number for number in theirs if mine and number.unit == mine.unit]
        if mine and same:
            near = twin.numbers.get(key) if twin else None
            judged.append((key, mine.unit or "", *judge(mine, same, near if near in same else None, against)))
            continue
        if mine:
            alone.append((key, "only here", mine.text))
        if theirs:
            alone.append((key, f"only in the {against}", theirs[0].text))
    columns = ("key", "unit", *Judged._fields)
    return pd.DataFrame(judged, columns=columns), pd.DataFrame(alone, columns=("key", "where", "text"))


def _name(record: Record) -> str:
    return f"record {record.notebook} ({record.profile}, seed {record.parameters.get('seed')})"
