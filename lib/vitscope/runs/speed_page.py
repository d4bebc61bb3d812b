"""A Sphinx extension: the directives `speed` and `speed-targets`, tables of measured speed.

They read `benchmarks/results/NAME.json` in the book's source tree, which the scripts in `benchmarks/` write.
`speed` shows one file: its rows, and where, when and by which command they were measured. `speed-targets`
shows every row that has a target, of all files. A file that is missing stops the build with the command that
makes it, unless `speed` is told that it is `:optional:`. Builders other than HTML show a sentence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pandas as pd
from docutils import nodes
from docutils.parsers.rst import directives
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from sphinx import addnodes
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from vitscope.runs import cards

FOLDER = Path("benchmarks") / "results"
NONE = "None published."
_ELSEWHERE = "The tables are in the HTML edition of this book."
_MACHINE = ("cpu", "instructions", "cores", "threads", "gpu")
_STYLE = """<style>
.vitscope-speed table { font-size: .75rem; line-height: 1.4 }
.vitscope-speed .vitscope-table :is(th, td) { padding: .25em .4em; vertical-align: top; min-width: 5em }
.vitscope-speed .vitscope-table td:first-child { min-width: 11em }
.vitscope-speed .vitscope-table td:nth-last-child(2) { min-width: 9em }
.vitscope-speed .vitscope-facts th { white-space: nowrap; vertical-align: top; padding-right: 1em }
</style>"""


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
            where = ": " + ".".join(map(str, first["loc"])) + f" {first['msg']}"
        raise SpeedError(f"{shown} does not hold results of a benchmark{where}; {again}") from None
    if found.name != path.stem:
        raise SpeedError(f"{shown} holds the results of {found.name!r}, not of {path.stem!r}; {again}")
    if "--quick" in found.command.split():
        raise SpeedError(f"{shown} was made with --quick, which is for tests; {again}")
    return found


def rows_table(results: Results) -> pd.DataFrame:
    """One line for each row of a file; a column that says nothing is left out."""
    table = pd.DataFrame(
        {
            "what": row.what,
            "against": row.against,
            "ratio, median (smallest–largest)": "–" if row.ratio is None else str(row.ratio),
            "target": row.outcome or ("lower is better" if row.better == "lower" and row.ratio else ""),
            "setting": row.setting,
            "behind it": row.details,
        }
        for row in results.rows
    )
    return table.loc[:, [name for name in table if (table[name] != "").any()]]


def targets_table(files: list[Results]) -> pd.DataFrame:
    """Every row that has a target, of all files."""
    return pd.DataFrame(
        {
            "what": row.what,
            "against": row.against,
            "setting": row.setting,
            "target": row.outcome,
            "ratio, median (smallest–largest)": "–" if row.ratio is None else str(row.ratio),
            "measured": f"{results.name}, {results.date}",
        }
        for results in files
        for row in results.rows
        if row.target is not None
    )


def _digits(value: float) -> str:
    """Three significant digits, without an exponent where a reader can do without."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _value(value: object) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) >= 1000:
        return f"{value:,.0f}"
    return str(value)


class Speed(SphinxDirective):
    """The rows of one file of results and how they were measured."""

    required_arguments = 1
    option_spec = {"optional": directives.flag}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        relative = FOLDER / f"{self.arguments[0]}.json"
        path = Path(self.env.app.srcdir) / relative
        self.env.note_dependency(relative.as_posix())
        if not path.is_file() and "optional" in self.options:
            return [nodes.paragraph("", NONE)]
        found = _loaded(path)
        caption = f"{path.stem}: above 1 is in favour of what stands first, unless lower is better (≤)"
        table = cards.table(f"speed_{path.stem}", rows_table(found), caption)
        facts = f'<div style="overflow-x:auto">{cards.facts_table(found.facts)}</div>'
        return _html(table + facts)


class SpeedTargets(SphinxDirective):
    """All targets and whether they were reached."""

    def run(self) -> list[nodes.Node]:
        folder = Path(self.env.app.srcdir) / FOLDER
        files = [_loaded(path) for path in sorted(folder.glob("*.json"))]
        for found in files:
            self.env.note_dependency((FOLDER / f"{found.name}.json").as_posix())
        table = targets_table(files)
        if table.empty:
            return [nodes.paragraph("", NONE)]
        reached = int(table["target"].str.endswith("reached").sum())
        caption = f"Targets: {reached} of {len(table)} reached"
        return _html(cards.table("speed_targets", table, caption))


def _loaded(path: Path) -> Results:
    try:
        return load(path)
    except SpeedError as error:
        raise ExtensionError(str(error)) from None


def _html(text: str) -> list[nodes.Node]:
    raw = nodes.raw("", f'<div class="vitscope-speed">{_STYLE}{text}</div>', format="html")
    return [raw, addnodes.only("", nodes.paragraph("", _ELSEWHERE), expr="not html")]


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("speed", Speed)
    app.add_directive("speed-targets", SpeedTargets)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
