"""A book of one three-cell notebook, for everything that runs or builds."""

from __future__ import annotations

import runpy
import textwrap
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from vitscope.runs import session
from vitscope.runs.layout import Project
from vitscope.runs.schema import resolve

SCHEMA = '''
"""The parameters of the tiny notebook; imported by the tests and, from its folder, by the kernel."""

from typing import Any

from pydantic import Field

from vitscope.runs import schema
from vitscope.runs.parameters import Parameters


class Tiny(Parameters):
    ALIASES = {"word": "words"}
    OVERRIDES = {"smoke": {"rows": 2}, "course": {}, "colab": {}, "paper": {}}

    rows: int = Field(4, ge=1, le=100, description="rows of the table")
    rate: float = Field(0.5, gt=0, description="a number")
    words: list[str] = Field(["a", "b"], min_length=1, description="texts")
    note: str | None = Field(None, description="a text or nothing")
    nested: dict[str, Any] = Field({}, description="anything JSON holds")
    flag: bool = False
    seed: int = Field(0, ge=0)


schema.SCHEMAS["tiny"] = Tiny
'''

PARAMETERS = """
profile = "course"
rows = 4
rate = 0.5
words: list[str] = ["a", "b"]
note: str | None = None
nested = {}
flag = False
seed = 0
"""

BEGIN = """
import tiny_schema

from vitscope import runs

run = runs.begin(
    "tiny", profile=profile, rows=rows, rate=rate, words=words, note=note, nested=nested, flag=flag, seed=seed
)
p = run.params
"""

SHOW = """
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure as Canvas

from vitscope.figures import Figure

values = torch.rand(p.rows).tolist() + np.random.rand(p.rows).tolist()
data = pd.DataFrame({"row": range(len(values)), "value": values})
fig = Canvas(figsize=(3, 2))
axes = fig.subplots()
axes.plot(data["row"], data["value"])
alt = f"A line of {len(data)} values between {data['value'].min():.2f} and {data['value'].max():.2f}."
run.figure(Figure(fig=fig, data=data, alt=alt, name="line"))
"""

FINISH = """
run.report("mean", data["value"].mean() * p.rate, n=len(data), text=None)
run.report("seen", None, text="nothing, because " + str((p.words, p.note, p.nested, p.flag, p.seed)))
run.table(data, "values", "All values, row by row.")
run.finish()
"""

CONFIG = """
title: Tiny
author: Nobody
copyright: "2026"
only_build_toc_files: true
execute:
  execute_notebooks: "off"
  stderr_output: remove-warn
"""

TOC = """
format: jb-book
root: book/intro
chapters:
- file: notebooks/tiny
"""


class Book:
    """A project in a temporary folder whose notebook's cells can be replaced."""

    def __init__(self, root: Path) -> None:
        self.project = Project(root)
        self.notebooks = root / "notebooks"
        self.cells = {"parameters": PARAMETERS, "begin": BEGIN, "show": SHOW, "finish": FINISH}
        self.tagged = ["parameters"]
        self.kernelspec: dict[str, str] | None = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
        for name, text in {
            "_config.yml": CONFIG,
            "_toc.yml": TOC,
            "book/intro.md": "# Tiny\n\nAn introduction; see {doc}`/notebooks/tiny`.\n",
            "notebooks/tiny_schema.py": SCHEMA,
        }.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.lstrip(), encoding="utf-8")
        self.write()

    def add(self, name: str, **cells: str) -> None:
        """Add a page with another notebook of the same parameters; cells as in `write`."""
        schema = self.notebooks / "tiny_schema.py"
        for path, line in (
            (schema, f'schema.SCHEMAS["{name}"] = Tiny\n'),
            (self.project.root / "_toc.yml", f"- file: notebooks/{name}\n"),
        ):
            path.write_text(path.read_text(encoding="utf-8") + line, encoding="utf-8")
        runpy.run_path(str(schema))
        self.write(name, begin=self.cells["begin"].replace('"tiny"', f'"{name}"'), **cells)

    def write(self, name: str = "tiny", **cells: str) -> None:
        """Write the notebook, with some of its cells replaced or added before the last."""
        merged = {**self.cells, **cells}
        merged["finish"] = merged.pop("finish")
        notebook = new_notebook(metadata={"language_info": {"name": "python"}})
        if self.kernelspec:
            notebook.metadata["kernelspec"] = self.kernelspec
        notebook.cells = [new_markdown_cell("# A tiny chapter\n\nThe mean is {glue:text}`mean`.", id="title")]
        for cell, source in merged.items():
            tags = {"tags": ["parameters"]} if cell in self.tagged else {}
            notebook.cells.append(new_code_cell(textwrap.dedent(source).strip(), id=cell, metadata=tags))
        nbformat.write(notebook, self.notebooks / f"{name}.ipynb")


def _open_book(root: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    from vitscope.runs import schema

    book = Book(root / "book project")
    monkeypatch.setattr(schema, "SCHEMAS", dict(schema.SCHEMAS))
    runpy.run_path(str(book.notebooks / "tiny_schema.py"))  # the kernel imports it as a module
    return book


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    return _open_book(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def module_book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Book]:
    """One book for all tests of a module, for those that build."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield _open_book(tmp_path_factory.mktemp("module"), monkeypatch)


@pytest.fixture
def shown(monkeypatch):
    """Everything a run displays: (bundle, metadata) pairs."""
    found: list[tuple[dict, dict]] = []
    monkeypatch.setattr(session, "_show", lambda bundle, metadata: found.append((bundle, metadata)))
    return found


@pytest.fixture
def begin(tmp_path, monkeypatch, shown):
    monkeypatch.setenv(session.RUN_DIR, str(tmp_path / "run"))
    monkeypatch.delenv(session.PREFIX, raising=False)
    monkeypatch.setattr(session, "find_spec", lambda _: None)  # gluing needs a notebook

    def start(profile: str = "course", **changes):
        declared = resolve("zoo_appendix", profile).model_dump()
        return session.begin("zoo_appendix", **{**declared, **changes})

    return start
