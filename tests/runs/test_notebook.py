"""Notebook sources: the parameters cell, what is read, what is promised, what the digest sees."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from vitscope.runs import notebook as nb
from vitscope.runs.layout import Project
from vitscope.runs.schema import SCHEMAS

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def made(*sources: str, tagged: tuple[int, ...] = (0,)):
    cells = [
        new_code_cell(source, id=f"c{i}", metadata={"tags": ["parameters"]} if i in tagged else {})
        for i, source in enumerate(sources)
    ]
    return new_notebook(cells=cells)


def test_declared_reads_literals():
    found = nb.declared(
        made('"""What to change."""\na = 1\nb: str | None = None\nc = [1, {"k": (2,)}]\nd = -0.5')
    )
    assert found == {"a": 1, "b": None, "c": [1, {"k": (2,)}], "d": -0.5}


@pytest.mark.parametrize("tagged", [(), (0, 1)])
def test_exactly_one_tagged_cell(tagged):
    with pytest.raises(nb.NotebookError, match="exactly one"):
        nb.declared(made("a = 1", "b = 2", tagged=tagged))


@pytest.mark.parametrize("line", ["b = a * 2", "import x", "a, b = 1, 2", "a += 1", "for i in []: pass"])
def test_parameters_cell_holds_nothing_derived(line):
    with pytest.raises(nb.NotebookError, match=r"derived|may hold only"):
        nb.declared(made(f"a = 1\n{line}"))


def test_passing_on_to_begin_is_not_reading():
    source = "run = runs.begin('x', a=a, b=b, c=c, d=d)\np = run.params"
    used = nb.names_read(made("a = b = 1", source, "print(a, p.b, run.params.c)"))
    assert {"a", "b", "c"} <= used
    assert "d" not in used


def test_magics_do_not_hide_what_is_read():
    assert "a" in nb.names_read(made("a = 1", "%matplotlib inline\n!ls\nprint(a)"))


def test_promises():
    found = nb.promises(
        made("a = 1", "run.figure(f(a))", "if a:\n    run.table(t, 'x', 'y')", "other.figure(1)")
    )
    assert [(p.cell, p.kind) for p in found] == [("c1", "figure"), ("c2", "table")]


def test_digest_sees_sources_and_tags_only():
    notebook = made("a = 1", "a")
    before = nb.digest(notebook)
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text="1")]
    notebook.cells[1].execution_count = 3
    notebook.metadata.kernelspec = {"name": "elsewhere"}
    assert nb.digest(notebook) == before
    notebook.cells.append(new_markdown_cell("words", id="words"))
    assert nb.digest(notebook) != before


def test_not_a_notebook(tmp_path):
    path = tmp_path / "x.ipynb"
    path.write_text("<html>", encoding="utf-8")
    with pytest.raises(nb.NotebookError, match=r"x\.ipynb is not a notebook"):
        nb.read(path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
class TestHygiene:
    """Every notebook of the repository, as it is committed."""

    def test_declares_what_its_schema_types_and_reads_it(self, path):
        nb.check(nb.read(path), SCHEMAS[path.stem])

    def test_is_stored_without_outputs(self, path):
        cells = nb.code_cells(nb.read(path))
        assert not [c.id for c in cells if c.outputs or c.execution_count is not None]

    def test_kernel_is_neutral(self, path):
        metadata = nb.read(path).metadata
        assert metadata.kernelspec == {"display_name": "Python 3", "language": "python", "name": "python3"}
        assert metadata.language_info.name == "python"
        assert set(metadata) == {"kernelspec", "language_info"}

    def test_cells_are_short_and_have_stable_ids(self, path):
        notebook = nb.read(path)
        ids = [cell.get("id") for cell in notebook.cells]
        assert all(ids)
        assert len(set(ids)) == len(ids)
        # cells that only name the parameters, or hand them on, are lists as long as there are parameters
        lists = [c for c in nb.code_cells(notebook) if c.source.startswith("run = runs.begin(")]
        lists += [c for c in nb.code_cells(notebook) if "parameters" in c.metadata.get("tags", [])]
        counted = [c for c in nb.code_cells(notebook) if c not in lists]
        assert not [c.id for c in counted if len(c.source.splitlines()) > 15]
        assert not [c.id for c in notebook.cells if set(c.metadata) - {"tags", "mystnb"}]

    def test_begins_and_finishes_its_run(self, path):
        sources = [cell.source for cell in nb.code_cells(nb.read(path))]
        assert any(f'runs.begin("{path.stem}",' in re.sub(r"\s", "", source) for source in sources)
        assert sources[-1].rstrip().endswith("run.finish()")


def test_project_reads_the_toc(book):
    assert book.project.pages == ("book/intro", "notebooks/tiny")
    assert list(book.project.notebooks()) == ["tiny"]
    assert Project.find(book.notebooks).root == book.project.root
    (book.project.root / "_toc.yml").write_text("format: jb-book\nroot: a\nchapters:\n- file: b\n- file: b\n")
    with pytest.raises(RuntimeError, match="b more than once"):
        _ = Project(book.project.root).pages
