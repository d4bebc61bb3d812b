"""A Sphinx extension: the directives `run-statistics` and `record-statistics`, tables of what runs took.

`run-statistics` shows the runs behind this very site, whose records the build leaves in the staging tree
(`run_statistics`). How large a page is can be known only once it is written, so its place is filled when
Sphinx has finished. Where the book was built without our build there are no records, and the page says so.
`record-statistics` shows the published records. Builders other than HTML show a sentence in place of tables.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from vitscope.runs import cards, claims, hashing, run_statistics
from vitscope.runs.claims import ClaimError

MARK = '<div data-statistics="runs"></div>'
WITHOUT_BUILD = (
    "This site was built without the command vitscope build, which leaves the records of the runs behind the "
    "pages here. So there is nothing to show."
)
NO_RECORDS = "No records are published."
_ELSEWHERE = "The tables are in the HTML edition of this book."
_SITE_TOOLS = ("jupyter-book", "sphinx", "myst-nb", "sphinx-book-theme")
_PICTURE = re.compile(r'<img\b[^>]*?\bsrc="([^"]+)"')
TOOK = "Seconds of each run, and of its slowest cell with the heading above it"
NEEDED = "Memory, threads and device of each run; images whose features it computed or found in the cache"
SHOWN = "What each page shows, and its size"
PUBLISHED = "The published records: one for each notebook and seed"
_STYLE = """<style>
.vitscope-statistics table { font-size: .75rem; line-height: 1.4 }
.vitscope-statistics .vitscope-table :is(th, td) { padding: .25em .3em; vertical-align: top }
.vitscope-statistics .vitscope-facts th { white-space: nowrap; vertical-align: top; padding-right: 1em }
#table-runs_took td:nth-child(2), #table-published_records td:nth-child(4) { white-space: nowrap }
</style>"""


class RunStatistics(SphinxDirective):
    """A place for the runs behind this site, or the words that nothing is known of them."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(run_statistics.FILE)
        if not _runs(self.env.app):
            return _words(WITHOUT_BUILD)
        return [nodes.raw("", MARK, format="html"), *_elsewhere()]


class RecordStatistics(SphinxDirective):
    """The published records as a table."""

    def run(self) -> list[nodes.Node]:
        try:
            table = run_statistics.published(claims.published_records())
        except ClaimError as error:
            raise ExtensionError(f"the published records cannot be read: {error}") from None
        if table.empty:
            return _words(NO_RECORDS)
        html = _compact(cards.table("published_records", table, PUBLISHED, precision=0))
        return [nodes.raw("", html, format="html"), *_elsewhere()]


def _words(text: str) -> list[nodes.Node]:
    return [nodes.note("", nodes.paragraph("", text))]


def _elsewhere() -> list[nodes.Node]:
    return [addnodes.only("", nodes.paragraph("", _ELSEWHERE), expr="not html")]


def _runs(app: Any) -> run_statistics.Runs | None:
    try:
        return run_statistics.load(Path(app.srcdir))
    except ValueError as error:
        raise ExtensionError(str(error)) from None


def _fill(app: Any, exception: Exception | None) -> None:
    """Put the tables where the directive left its mark; every page is written now."""
    if exception or app.builder.format != "html":
        return
    pages = {name: Path(app.builder.get_outfilename(name)) for name in sorted(app.env.found_docs)}
    texts = {name: path.read_text(encoding="utf-8") for name, path in pages.items() if path.is_file()}
    marked = [name for name, text in texts.items() if MARK in text]
    runs = _runs(app) if marked else None
    if not runs:
        return
    sizes = {page: page_size(pages[page]) for page in runs if page in texts}
    notebooks = {page: Path(app.srcdir) / f"{page}.ipynb" for page in runs}
    for name in marked:
        links = {runs[page].notebook: app.builder.get_relative_uri(name, page) for page in sizes}
        html = tables(runs, sizes, notebooks, links)
        pages[name].write_text(texts[name].replace(MARK, html), encoding="utf-8")


def tables(
    runs: run_statistics.Runs, sizes: dict[str, int], notebooks: dict[str, Path], links: dict[str, str]
) -> str:
    """Totals and three tables, as HTML: `sizes` and `notebooks` by page, `links` by name of the notebook."""
    headings = {
        page: run_statistics.heading(notebooks[page], cell)
        for page, record in runs.items()
        if (cell := run_statistics.slowest_cell(record)) and notebooks[page].is_file()
    }
    tools = ", ".join(f"{name} {hashing.installed(name)}" for name in _SITE_TOOLS)
    facts = {**run_statistics.totals(runs, sizes), "Site made with": tools}
    html = cards.table("runs_took", run_statistics.took(runs, headings), TOOK, precision=1)
    html += cards.table("runs_needed", run_statistics.needed(runs), NEEDED)
    html += cards.table("runs_shown", run_statistics.shown(runs, sizes), SHOWN)
    for name, address in links.items():
        cell = f"<td>{escape(name)}</td>"
        html = html.replace(cell, f'<td><a href="{escape(address)}">{escape(name)}</a></td>')
    return _compact(f'<div style="overflow-x:auto">{cards.facts_table(facts)}</div>{html}')


def _compact(html: str) -> str:
    return f'<div class="vitscope-statistics">{_STYLE}{html}</div>'


def page_size(page: Path) -> int:
    """Bytes of a page and of the pictures beside it that it shows, each once."""
    sources = set(_PICTURE.findall(page.read_text(encoding="utf-8")))
    beside = {(page.parent / source).resolve() for source in sources if not source.startswith("data:")}
    return page.stat().st_size + sum(path.stat().st_size for path in beside if path.is_file())


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("run-statistics", RunStatistics)
    app.add_directive("record-statistics", RecordStatistics)
    app.connect("build-finished", _fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
