"""The gate between a built site and its readers.

With execution off, Sphinx raises no warning for an error output, an empty page or a picture without words. So
every page is read again, as a browser gets it, and compared with the record of the run behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from bs4 import BeautifulSoup

from vitscope.errors import unknown
from vitscope.runs import explore_cards, gate_html
from vitscope.runs import launch as launching
from vitscope.runs import notebook as nb
from vitscope.runs.hashing import sha256_file
from vitscope.runs.record import Record


class GateError(RuntimeError):
    """The book must not be published; the message lists every reason, page by page."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Launch:
    """Where buttons must lead: a repository, and the sources of all pages in the tree it is made from."""

    repository: launching.Repository
    root: Path
    files: Mapping[str, Path]

    def problems(self, page: str, links: list[str]) -> Iterator[str]:
        """What is wrong with the addresses of a page's buttons."""
        file = self.files[page].relative_to(self.root).as_posix()
        return launching.problems(links, file, self.root, self.repository)


def check_tools() -> None:
    """jupyter-book 2 is another program: over a book of version 1 it builds no HTML, and says nothing."""
    version = metadata.version("jupyter-book")
    if int(version.partition(".")[0]) >= 2:
        raise GateError(
            [
                f"jupyter-book {version} is installed; this book needs a version below 2: "
                "pip install -r requirements.lock"
            ]
        )


def check_config(config: Path) -> None:
    """Raise `GateError` for keys of `_config.yml` that jupyter-book would silently ignore."""
    import jupyter_book

    package = Path(jupyter_book.__file__).parent
    default = yaml.safe_load((package / "default_config.yml").read_text(encoding="utf-8"))
    properties = json.loads((package / "config_schema.json").read_text(encoding="utf-8"))["properties"]
    given = yaml.safe_load(config.read_text(encoding="utf-8")) or {}
    problems = []
    for key, value in given.items():
        if key not in default and key not in properties and key not in ("bibtex_reference_style", "project"):
            problems.append(f"{config.name}: {unknown('key', key, sorted({*default, *properties}))}")
        elif isinstance(value, dict):
            known = {*(default.get(key) or {}), *properties.get(key, {}).get("properties", {})}
            problems += [
                f"{config.name}: {unknown(f'key of {key}', k, sorted(known))}"
                for k in value
                if k not in known
            ]
    if not given.get("only_build_toc_files"):
        problems.append(f"{config.name}: only_build_toc_files must be true, or stray files become pages")
    if (given.get("execute") or {}).get("execute_notebooks") not in ("off", False):
        problems.append(f"{config.name}: execute.execute_notebooks must be off; the runner executes")
    if problems:
        raise GateError(problems)


def check_site(
    html: Path,
    pages: tuple[str, ...],
    sources: Mapping[str, Path],
    staged: Mapping[str, Path],
    records: Mapping[str, Record],
    launch: Launch | None = None,
) -> None:
    """Raise `GateError` unless every page is whole.

    `sources` and `staged` map notebook pages to the repository's notebook and the executed one that was
    built, `records` to the record of its run. `launch` says where buttons must lead (None: not looked at).
    """
    problems = []
    for page in pages:
        path = html / f"{page}.html"
        if not path.is_file():
            problems.append(f"{page}: was not built")
            continue
        content = gate_html.parse(path)
        found = [*_page(content, path, html)]
        if page in records:
            found += _against_record(content, path, sources[page], staged[page], records[page])
        if launch:
            found += launch.problems(page, gate_html.button_links(content))
        problems += [f"{page}: {text}" for text in dict.fromkeys(found)]
    for style in sorted(html.rglob("*.css")):
        problems += [
            f"{style.relative_to(html)}: {t}"
            for t in gate_html.outside_in_css(style.read_text("utf-8", "replace"))
        ]
    if problems:
        raise GateError(problems)


def check_one_page(html: Path, path: Path, records: Mapping[str, Record]) -> None:
    """Raise `GateError` unless the page that holds the whole book is whole: every figure, table and link."""
    page = gate_html.parse(path)
    problems = [*_page(page, path, html), *gate_html.repeated_ids(page)]
    for name, record in records.items():
        found = [gate_html.figure_problem(page, figure.name, figure.text) for figure in record.figures]
        found += [
            f"table {table.name} is missing"
            for table in record.tables
            if not gate_html.has_table(page, table.name)
        ]
        problems += [f"{name}: {problem}" for problem in found if problem]
    if problems:
        raise GateError([f"one page: {problem}" for problem in dict.fromkeys(problems)])


def _page(page: BeautifulSoup, path: Path, html: Path) -> Iterator[str]:
    from vitscope.figures import SHORTEST_ALT  # brings matplotlib

    yield from gate_html.error_outputs(page)
    yield from gate_html.outside_requests(page)
    yield from gate_html.images_without_alt(page, SHORTEST_ALT)
    yield from gate_html.broken_links(page, path, html)


def _against_record(
    page: BeautifulSoup, path: Path, source: Path, staged: Path, record: Record
) -> Iterator[str]:
    if not record.complete:
        yield "its run was not completed"
    if record.inputs is None or record.inputs.notebook != nb.digest(nb.read(source)):
        yield "its outputs are older than its source"
    if sha256_file(staged) != record.volatile.notebook_sha256:
        yield "the notebook that was built is not the one that the record describes"
    yield from _notebook_outputs(staged)
    for figure in record.figures:
        problem = gate_html.figure_problem(page, figure.name, figure.text)
        if problem:
            yield problem
    for explored in record.explorers:
        problem = explore_cards.problem(page, explored.name, explored.words, explored.spec_sha256)
        if problem:
            yield problem
    if len(page.select("details.vitscope-explore")) != len(record.explorers):
        yield "shows explorers that its record does not know"
    if record.explorers and not gate_html.runs_script(page, path, "explore.js"):
        yield "has explorers, but not the script that draws them"
    for table in record.tables:
        if not gate_html.has_table(page, table.name):
            yield f"table {table.name} is missing"
    if gate_html.is_marked_smoke(page) != (record.profile == "smoke"):
        yield "smoke runs, and only they, must say so on the page"


def _notebook_outputs(staged: Path) -> Iterator[str]:
    outputs: list[Any] = [o for cell in nb.code_cells(nb.read(staged)) for o in cell.outputs]
    if any(output.output_type == "error" for output in outputs):
        yield "the executed notebook holds an error"
    for output in outputs:
        strange = [
            kind
            for kind in output.get("data", {})
            if kind not in _RENDERED and not kind.startswith("application/papermill")
        ]
        if strange:
            yield f"an output is {', '.join(strange)}, which the page cannot show; show HTML, PNG or text"


_RENDERED = {
    "text/plain",
    "text/html",
    "text/latex",
    "text/markdown",
    "image/png",
    "image/svg+xml",
    "image/jpeg",
}
