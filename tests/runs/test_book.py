"""Building: a whole small book, then everything that must stop one."""

from __future__ import annotations

import json
import shutil
import time

import nbformat
import pytest
import yaml

from vitscope.runs import book as books
from vitscope.runs import gate, runner
from vitscope.runs.gate import GateError
from vitscope.runs.render import BuildFailed


@pytest.fixture(scope="module")
def built(module_book, tmp_path_factory):
    """(book, Built) of a smoke build into a folder outside the project, as the site tests do."""
    html = tmp_path_factory.mktemp("site") / "html"
    return module_book, books.build("smoke", html, project=module_book.project)


@pytest.fixture
def site(built, tmp_path):
    """A copy of the built site with what the gate compares it with; tests damage one of them."""
    book, result = built
    html = tmp_path / "html"
    shutil.copytree(result.html, html)
    found = runner.plan("tiny", "smoke", project=book.project).result()
    staged = tmp_path / "tiny.ipynb"
    shutil.copyfile(found.notebook, staged)
    return Site(html, staged, book, found.record)


class Site:
    def __init__(self, html, staged, book, record) -> None:
        self.html, self.staged, self.record, self.book = html, staged, record, book
        self.page = html / "notebooks" / "tiny.html"

    def check(self) -> None:
        page = "notebooks/tiny"
        gate.check_site(
            self.html, ("book/intro", page), {page: self.book.notebooks / "tiny.ipynb"}, {page: self.staged},
            {page: self.record},
        )  # fmt: skip

    def problems(self, old: str, new: str, path=None) -> str:
        """What the gate says after one replacement in a page."""
        path = path or self.page
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(GateError) as caught:
            self.check()
        return str(caught.value)


def test_site_is_whole(built):
    book, result = built
    assert [c.page for c in result.chapters] == ["book/intro", "notebooks/tiny"]
    assert not result.unchanged
    page = (result.html / "notebooks" / "tiny.html").read_text(encoding="utf-8")
    assert 'alt="A line of 4 values' in page
    assert "[smoke run: not a result]" in page
    assert "cell 5" not in page
    assert not list((book.project.root / "_build").glob("**/*")), "nothing is staged below _build"


def test_second_build_does_nothing(built):
    book, first = built
    began = time.monotonic()
    again = books.build("smoke", first.html, project=book.project)
    assert again.unchanged
    assert again.chapters[1].reused
    assert time.monotonic() - began < 10


def test_a_damaged_site_is_built_again(built):
    book, first = built
    (first.html / "search.html").unlink()
    again = books.build("smoke", first.html, project=book.project)
    assert not again.unchanged
    assert (first.html / "search.html").is_file()


def test_stage_keeps_the_repositorys_paths(built):
    book, _ = built
    staged = book.project.state / "book" / "stage"
    files = sorted(p.relative_to(staged).as_posix() for p in staged.rglob("*") if p.is_file())
    ours = ["_config.yml", "_toc.yml", "book/intro.md", "notebooks/tiny.ipynb"]
    assert files == [*ours, "statistics.json"]  # the records of the runs, for the page that shows them


def test_warnings_stop_the_build_and_the_old_site_stays(built):
    book, first = built
    before = (first.html / "index.html").read_bytes()
    intro = book.project.root / "book" / "intro.md"
    good = intro.read_text()
    # a missing target, and one label on two pages
    intro.write_text(good + "\n(same)=\n## A\n\n(same)=\n## B\n\n{doc}`nowhere`\n")
    try:
        with pytest.raises(BuildFailed) as caught:
            books.build("smoke", first.html, project=book.project)
    finally:
        intro.write_text(good)
    assert "nowhere" in str(caught.value)
    assert "same" in str(caught.value)
    assert "book/intro.md" in str(caught.value)
    assert (first.html / "index.html").read_bytes() == before


def test_a_failing_notebook_stops_the_build(built):
    book, first = built
    before = (first.html / "index.html").read_bytes()
    book.write(boom="1 / 0")
    try:
        with pytest.raises(runner.RunFailed, match="ZeroDivisionError"):
            books.build("smoke", first.html, project=book.project)
    finally:
        book.write()
    assert (first.html / "index.html").read_bytes() == before


def test_every_notebook_is_planned_before_one_runs(book, monkeypatch):
    monkeypatch.setattr(runner, "execute", lambda *_, **__: pytest.fail("a notebook ran"))
    book.tagged = []
    book.write()
    with pytest.raises(ValueError, match="exactly one"):
        books.build("smoke", project=book.project)


class TestGate:
    def test_passes_what_was_built(self, site):
        site.check()

    def test_missing_page(self, site):
        (site.html / "book" / "intro.html").unlink()
        with pytest.raises(GateError, match="book/intro: was not built"):
            site.check()

    def test_traceback(self, site):
        trace = '<div class="output traceback">Traceback (most recent call last)\nKeyError: 1</div>'
        assert "shows a traceback: KeyError: 1" in site.problems(
            '<div class="cell_output docutils container">',
            f'<div class="cell_output docutils container">{trace}',
        )

    def test_papermill_banner(self, site):
        assert "error banner" in site.problems("<h1>", '<span id="papermill-error-cell">x</span><h1>')

    def test_missing_figure(self, site):
        assert "figure line is missing" in site.problems('data-figure="line"', 'data-figure="other"')

    def test_missing_table(self, site):
        assert "table values is missing" in site.problems('data-table="values"', 'data-table="other"')

    def test_alt_text_that_is_a_file_path(self, site):
        said = site.problems('alt="A line of 4 values', 'alt="../_images/x.png" data-was="')
        assert "shown without its own alt text" in said
        assert "has the alt text '../_images/x.png'" in said

    def test_widget_placeholder(self, site):
        assert "widget placeholder" in site.problems(
            '<div class="output text_html"><details',
            '<div class="output text_plain"><pre>HBox(children=(FloatProgress(value=0.0),))</pre></div>'
            '<div class="output text_html"><details',
        )

    @pytest.mark.parametrize(
        "thing",
        [
            '<script src="https://cdn.example.org/x.js"></script>',
            '<link rel="stylesheet" href="//cdn.example.org/x.css"/>',
            '<img alt="A picture from another machine" src="http://example.org/x.png"/>',
            "<style>@import url('https://example.org/font.css');</style>",
            '<p style="background:url(https://example.org/x.png)">x</p>',
            "<script>import x from 'https://example.org/x.js'</script>",
        ],
    )
    def test_anything_from_another_machine(self, site, thing):
        said = site.problems("<h1>", f"{thing}<h1>", site.html / "book" / "intro.html")
        assert "example.org" in said or "imports from another machine" in said

    def test_outside_address_in_a_style_sheet(self, site):
        (site.html / "_static" / "own.css").write_text("p { background: url(https://example.org/x.png) }")
        with pytest.raises(GateError, match=r"own\.css: style loads url"):
            site.check()

    @pytest.mark.parametrize(
        "target", ["nowhere.html", "../notebooks/tiny.html#nowhere", "../../outside.html"]
    )
    def test_broken_links(self, site, target):
        said = site.problems("<h1>", f'<a href="{target}">x</a><h1>', site.html / "book" / "intro.html")
        assert f"links to {target}" in said

    def test_outputs_older_than_the_source(self, site):
        site.book.write(extra="rows")
        try:
            with pytest.raises(GateError, match="outputs are older than its source"):
                site.check()
        finally:
            site.book.write()

    def test_outputs_that_a_page_cannot_show(self, site):
        notebook = nbformat.read(site.staged, as_version=4)
        data = {"application/json": {"a": 1}, "text/plain": "{'a': 1}"}
        notebook.cells[-1].outputs.append(nbformat.v4.new_output("display_data", data=data))
        notebook.cells[-1].outputs.append(nbformat.v4.new_output("error", ename="E", evalue="", traceback=[]))
        nbformat.write(notebook, site.staged)
        with pytest.raises(GateError) as caught:
            site.check()
        assert "application/json, which the page cannot show" in str(caught.value)
        assert "holds an error" in str(caught.value)
        assert "not the one that the record describes" in str(caught.value)

    def test_incomplete_record(self, site):
        site.record = site.record.model_copy(update={"complete": False})
        with pytest.raises(GateError, match="was not completed"):
            site.check()

    def test_smoke_numbers_without_a_mark(self, site):
        assert "must say so on the page" in site.problems('data-notice="smoke"', "")

    def test_old_or_new_jupyter_book(self, monkeypatch):
        monkeypatch.setattr(gate.metadata, "version", lambda _: "2.0.1")
        with pytest.raises(GateError, match="needs a version below 2"):
            gate.check_tools()


class TestConfig:
    def test_ours_passes(self):
        from vitscope.runs.layout import Project

        gate.check_config(Project.find().root / "_config.yml")

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"titel": "x"}, "Did you mean 'title'"),
            ({"execute": {"execute_notebook": "off"}}, "Did you mean 'execute_notebooks'"),
            ({"only_build_toc_files": False}, "only_build_toc_files must be true"),
            ({"execute": {"execute_notebooks": "auto"}}, "must be off"),
        ],
    )
    def test_keys_that_would_be_ignored(self, book, change, said):
        path = book.project.root / "_config.yml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **change}))
        with pytest.raises(GateError, match=said):
            gate.check_config(path)


def test_every_page_of_the_real_toc_has_a_source():
    from vitscope.runs.layout import Project

    project = Project.find()
    assert [project.source(page).name for page in project.pages]
    assert json.dumps(project.pages)
