"""The book on one page and on paper: ids and links of many documents, what must be there before, the PDF."""

from __future__ import annotations

import shutil

import pytest
from bs4 import BeautifulSoup
from typer.testing import CliRunner

from vitscope import cli
from vitscope.runs import book as books
from vitscope.runs import gate, gate_html, one_page, printing
from vitscope.runs.gate import GateError
from vitscope.runs.printing import PrintError

PAGES = ("book/intro", "notebooks/a", "notebooks/b")
SINGLE = """
<nav><a href="#document-notebooks/b#same" id="menu">B</a></nav>
<article>
<section id="same"><a class="root" href="#only">own</a>
<a class="cross" href="#document-notebooks/b#same">b</a>
<a class="page" href="#document-notebooks/b">b</a>
<a class="top" href="#document-book/intro">top</a></section>
<span id="document-notebooks/a"></span>
<section id="menu"><h1 id="only">A</h1><a class="own" href="#same">here</a><p id="same">x</p></section>
<span id="document-notebooks/b"></span>
<section id="same"><a class="own" href="#same">here</a><a class="raw" href="a.html#only">a</a>
<a class="other" href="a.html">a</a><a class="up" href="../book/intro.html#same">up</a>
<a class="away" href="https://example.org/a.html#same">away</a><a class="file" href="data.csv">file</a>
<label for="box" class="box">x</label><input id="box"><p id="same">repeated here</p></section>
</article>
"""


@pytest.fixture(scope="module")
def single() -> BeautifulSoup:
    page = BeautifulSoup(SINGLE, "html.parser")
    one_page.separate(page, "book/intro", PAGES)
    return page


def test_ids_are_unique_and_the_first_keeps_its_name(single):
    assert [element["id"] for element in single.find_all(id=True)] == [
        "menu", "document-book/intro", "same", "document-notebooks/a", "a--menu", "only", "a--same",
        "document-notebooks/b", "b--same", "box", "b--same-2",
    ]  # fmt: skip
    assert list(gate_html.repeated_ids(single)) == []
    assert list(gate_html.repeated_ids(BeautifulSoup(SINGLE, "html.parser"))) == ["4 places have the id same"]


@pytest.mark.parametrize(
    ("where", "leads"),
    [
        ("nav a", "#b--same"),
        (".cross", "#b--same"),
        (".page", "#document-notebooks/b"),
        (".top", "#document-book/intro"),
        (".root", "#only"),
        ("#a--menu .own", "#a--same"),
        ("#b--same .own", "#b--same"),
        (".raw", "#only"),
        (".other", "#document-notebooks/a"),
        (".up", "#same"),
        (".away", "https://example.org/a.html#same"),
        (".file", "data.csv"),
    ],
)
def test_links_lead_to_the_place_that_they_mean(single, where, leads):
    assert single.select_one(where)["href"] == leads


def test_labels_stay_with_their_fields(single):
    assert single.select_one(".box")["for"] == "box"


def test_a_page_without_an_article_is_refused():
    with pytest.raises(ValueError, match="no <article>"):
        one_page.separate(BeautifulSoup("<p>x</p>", "html.parser"), "a", ("a",))


@pytest.fixture(scope="module")
def pair(module_book):
    """A book of two notebooks with equal headings, both of which were run."""
    module_book.add("other")
    config = module_book.project.root / "_config.yml"
    config.write_text(config.read_text() + "sphinx: {config: {mathjax_path: x.js}}\n")  # not from elsewhere
    path = module_book.notebooks / "other.ipynb"
    path.write_text(path.read_text().replace("# A tiny chapter", "# Another chapter"), encoding="utf-8")
    books.build("smoke", module_book.project.root / "site", project=module_book.project)
    return module_book


@pytest.fixture(scope="module")
def printed(pair, tmp_path_factory):
    return printing.print_book(tmp_path_factory.mktemp("print") / "out", "smoke", project=pair.project)


def test_page_holds_every_chapter_once(printed):
    page = gate_html.parse(printed.page)
    titles = [" ".join(h.get_text().split()).removesuffix("#") for h in page.select("article h1")]
    assert titles == ["Tiny", "A tiny chapter", "Another chapter"]
    assert len(page.select('[data-figure="line"]')) == 2
    assert len(page.select('article .cell_output img[alt^="A line of 4 values"]')) == 2


def test_page_asks_no_other_machine_and_no_link_is_broken(printed):
    gate.check_one_page(printed.page.parent, printed.page, {})


def test_pdf_has_a_sheet_for_each_chapter(printed):
    if not any(map(shutil.which, printing.BROWSERS)):
        pytest.skip("no browser is installed")
    assert printed.pdf.read_bytes().startswith(b"%PDF-")
    assert 3 <= printed.sheets <= 12


def test_without_a_browser_there_is_the_page_alone(pair, tmp_path, monkeypatch):
    monkeypatch.setattr(printing.shutil, "which", lambda name: None)
    monkeypatch.chdir(pair.project.root)
    result = CliRunner().invoke(cli.app, ["print", str(tmp_path / "out"), "--profile", "smoke"])
    assert result.exit_code == 0, result.output
    assert "pdf     none: none of chromium, chromium-browser" in result.output
    assert (tmp_path / "out" / "index.html").is_file()
    assert not (tmp_path / "out" / "book.pdf").exists()


def test_a_browser_that_fails_is_reported(pair, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<p>x</p>")
    with pytest.raises(PrintError, match="made no PDF"):
        printing.to_pdf(shutil.which("false"), page, tmp_path / "x.pdf")


def test_only_what_was_run_is_printed(book, tmp_path):
    before = tmp_path / "out"
    with pytest.raises(PrintError, match=r"no finished smoke run, .* of: tiny; `vitscope build"):
        printing.print_book(before, "smoke", project=book.project)
    assert not before.exists()


def test_gate_stops_a_page_with_something_missing(printed, tmp_path):
    copy = tmp_path / "out"
    shutil.copytree(printed.page.parent, copy)
    damaged = copy / "index.html"
    text = damaged.read_text(encoding="utf-8")
    text = text.replace("<h1>", '<h1><a href="#nowhere">x</a><i id="twice"></i>')
    text = text.replace("</article>", '<img src="https://example.org/x.png"></article>')
    damaged.write_text(text, encoding="utf-8")
    with pytest.raises(GateError) as caught:
        gate.check_one_page(copy, damaged, {})
    for said in ("3 places have the id twice", "links to #nowhere", "loads https://example.org/x.png"):
        assert said in str(caught.value)
