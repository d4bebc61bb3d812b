"""A Sphinx extension: the directives `speed` and `speed-targets`, tables of measured speed.

They read `benchmarks/results/NAME.json` in the book's source tree, which the scripts in `benchmarks/` write.
`speed` shows one file: its rows, and where, when and by which command they were measured. `speed-targets`
shows every row that has a target, of all files. A file that is missing stops the build with the command that
makes it, unless `speed` is told that it is `:optional:`. Builders other than HTML show a sentence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from vitscope.runs import cards
from vitscope.runs.speed_results import FOLDER, Results, SpeedError, load

NONE = "None published."
_ELSEWHERE = "The tables are in the HTML edition of this book."
_STYLE = """<style>
.vitscope-speed table { font-size: .75rem; line-height: 1.4 }
.vitscope-speed .vitscope-table :is(th, td) { padding: .25em .4em; vertical-align: top; min-width: 5em }
.vitscope-speed .vitscope-table td:first-child { min-width: 11em }
.vitscope-speed .vitscope-table td:nth-last-child(2) { min-width: 9em }
.vitscope-speed .vitscope-facts th { white-space: nowrap; vertical-align: top; padding-right: 1em }
</style>"""


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
