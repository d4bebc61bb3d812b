"""The results of a benchmark as data: the files `benchmarks/results/NAME.json` that the scripts write."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

FOLDER = Path("benchmarks") / "results"
_MACHINE = ("cpu", "instructions", "cores", "threads", "gpu")


class SpeedError(ValueError):
    """A file of results is missing or is none; the message names it and what to do."""


class _Part(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)


class Spread(_Part):
    """Median and range over the rounds."""

    median: float
    min: float
    max: float

    @model_validator(mode="after")
    def _ordered(self) -> Spread:
        if not self.min <= self.median <= self.max:
            raise ValueError(f"{self.median} does not lie between {self.min} and {self.max}")
        return self

    def __str__(self) -> str:
        middle = f"{_digits(self.median)} ×"
        one = self.min == self.max
        return middle if one else f"{middle} ({_digits(self.min)}–{_digits(self.max)})"


class Row(_Part):
    """What was measured against what; no ratio where one of them was not there (`absent` says why)."""

    what: str
    against: str = ""
    setting: str = ""
    ratio: Spread | None = None
    better: Literal["higher", "lower"] = "higher"
    target: float | None = None
    reached: bool | None = None
    absent: str = ""
    error: str = ""
    values: dict[str, Any] = {}

    @model_validator(mode="after")
    def _right(self) -> Row:
        if self.target is None or self.ratio is None:
            expected = None
        elif self.better == "higher":
            expected = self.ratio.median >= self.target
        else:
            expected = self.ratio.median <= self.target
        if self.reached != expected:
            raise ValueError(f"{self.what!r}: reached is {self.reached}, ratio and target say {expected}")
        return self

    @property
    def unit(self) -> str:
        """The unit of the ratio where it is none of two speeds."""
        return str(self.values.get("unit", ""))

    @property
    def outcome(self) -> str:
        """The target and whether it was reached, in words."""
        if self.target is None:
            return ""
        word = {True: "reached", False: "missed", None: "not measured"}[self.reached]
        return f"{'≥' if self.better == 'higher' else '≤'} {self.target:g}: {word}"

    @property
    def details(self) -> str:
        """The numbers behind the ratio."""
        found = [f"{name} {_value(value)}" for name, value in self.values.items() if value is not None]
        missing = [f"not measured: {why}" for why in (self.absent, self.error) if why]
        return "; ".join([*missing, *found])


class Results(_Part):
    """One file: what a script measured, and on what."""

    name: str
    command: str
    date: str
    machine: dict[str, Any]
    note: str = ""
    rows: list[Row]

    @property
    def facts(self) -> dict[str, str]:
        """Command, date, machine and versions, for a small table."""
        where = [f"{self.machine[key]} {key}" if key in ("cores", "threads") else str(self.machine[key])
                 for key in _MACHINE if self.machine.get(key)]  # fmt: skip
        versions = [f"{name} {version}" for name, version in self.machine.items() if name not in _MACHINE]
        facts = {"Command": self.command, "Date": self.date, "Machine": ", ".join(where),
                 "Versions": ", ".join(versions)}  # fmt: skip
        return facts | ({"Note": self.note} if self.note else {})


def load(path: Path) -> Results:
    """The results in a file.

    Raises `SpeedError`, which names the file: missing, no such results, those of another script, or made with
    --quick.
    """
    shown = FOLDER / path.name
    again = f"run `python benchmarks/{path.stem}.py`, which writes it"
    if not path.is_file():
        raise SpeedError(f"{shown} is missing: {again}")
    try:
        found = Results.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError) as error:
        where = ""
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            where = f": {place} {first['msg']}" if place else f": {first['msg']}"
        raise SpeedError(f"{shown} does not hold results of a benchmark{where}; {again}") from None
    if found.name != path.stem:
        raise SpeedError(f"{shown} holds the results of {found.name!r}, not of {path.stem!r}; {again}")
    if "--quick" in found.command.split():
        raise SpeedError(f"{shown} was made with --quick, which is for tests; {again}")
    return found


def _digits(value: float) -> str:
    """Three significant digits, without an exponent where a reader can do without."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _value(value: object) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) >= 1000:
        return f"{value:,.0f}"
    return str(value)
