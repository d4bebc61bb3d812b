"""A Sphinx extension: the directive `scale`, tables, sentences and the figure of one page.

They are what `scale_tables` and `scale_figure` make of the results of benchmarks in the book's own folder. A
table of measurements that were not made becomes a note that says so, and how to make them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from docutils import nodes
from sphinx import addnodes
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from vitscope.errors import UnknownName, unknown
from vitscope.runs import cards, scale_figure, scale_results, scale_tables
from vitscope.runs.scale_results import ResultError, Results

NOT_MEASURED = (
    "Nothing was measured yet. The command python benchmarks/costs.py, with the library on its path, writes "
    "benchmarks/results/costs.json, from which this table is made when the book is built again."
)
_ELSEWHERE = "The tables are in the HTML edition of this book."
_STYLE = """<style>
.vitscope-scale table { font-size: .75rem; line-height: 1.4 }
.vitscope-scale .vitscope-table :is(th, td) { padding: .25em .4em; vertical-align: top }
</style>"""


@dataclass(frozen=True)
class _Table:
    make: Callable[[Results], pd.DataFrame]
    caption: str
    needs_costs: bool = False


TABLES = {
    "growth": _Table(scale_tables.growth, "How cost grows: b of cost ∝ size^b", needs_costs=True),
    "units": _Table(scale_tables.unit_costs, "What a unit of work takes, as measured", needs_costs=True),
    "assumed": _Table(lambda _: scale_tables.assumed(), "What is assumed of the machines"),
    "image": _Table(lambda _: scale_tables.architectures(), "One image: exact counts, with no measurement"),
    "time": _Table(lambda r: scale_tables.time(r.units), "Operations and hours"),
    "feed": _Table(lambda r: scale_tables.feeding(r.units), "What one GPU asks of the machine around it"),
    "storage": _Table(lambda _: scale_tables.storage(), "Bytes on disk: arithmetic alone"),
    "memory": _Table(lambda r: scale_tables.memory(r.units), "Bytes in memory, for one token at all states"),
    "limits": _Table(lambda r: scale_tables.limits(r.units), "How many images each limit allows"),
    "broken": _Table(lambda r: scale_tables.broken(r.units), "What breaks, in the order in which it breaks"),
}
SENTENCES = {"measured": scale_tables.measured_or_not, "attention": scale_tables.attention_sentence}
FIGURE = "figure"


class Scale(SphinxDirective):
    """One table, sentence or the figure, by name."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        name, root = self.arguments[0], Path(self.env.srcdir)
        for file in (scale_results.COSTS, scale_results.GPU):
            self.env.note_dependency(str(root / scale_results.FOLDER / file))
        try:
            return _made(name, scale_results.load(root))
        except ResultError as error:
            raise ExtensionError(str(error)) from None
        except UnknownName as error:
            raise self.error(str(error)) from None


def _made(name: str, results: Results) -> list[nodes.Node]:
    if name in SENTENCES:
        text = SENTENCES[name](results)
        return [nodes.paragraph("", text)] if text else []
    if name == FIGURE:
        return _figure(results)
    if name not in TABLES:
        raise unknown("table of the page on scale", name, [*TABLES, *SENTENCES, FIGURE])
    table = TABLES[name]
    if table.needs_costs and results.costs is None:
        return [nodes.note("", nodes.paragraph("", NOT_MEASURED))]
    html = cards.table(f"scale_{name}", table.make(results), table.caption)
    html = f'<div class="vitscope-scale">{_STYLE}{html}</div>'
    words = addnodes.only("", nodes.paragraph("", _ELSEWHERE), expr="not html")
    return [nodes.raw("", html, format="html"), words]


def _figure(results: Results) -> list[nodes.Node]:
    figure = scale_figure.cost(results.units)
    source = "data:image/png;base64," + base64.b64encode(figure.png()).decode()
    link = cards.download(figure.name, cards.csv(figure.data))
    return [
        nodes.image("", uri=source, alt=figure.alt),
        nodes.raw("", f'<p style="font-size:.85em">{link}</p>', format="html"),
    ]


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("scale", Scale)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
