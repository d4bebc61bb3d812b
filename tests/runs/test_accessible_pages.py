"""The passes over finished pages, each on a small page of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from PIL import Image

from vitscope.runs import accessible_pages


@pytest.fixture
def improved(tmp_path):
    for name, size in (("a.png", (40, 30)), ("b.png", (7, 9))):
        Image.new("RGB", size).save(tmp_path / name)

    def improve(html: str, folder: Path = tmp_path) -> BeautifulSoup:
        page = BeautifulSoup(html, "html.parser")
        accessible_pages.improve(page, folder)
        return page

    return improve


def test_head_loses_what_is_not_needed_and_nothing_else(improved):
    kept = '<meta content="1" name="viewport"/><link href="theme.css"/><script src="doctools.js"></script>'
    page = improved(
        f'<head>{kept}<meta name="viewport" content="2"/><link href="../sphinx-thebe.css?v=1"/>'
        '<script defer src="scripts/fontawesome.js?digest=1"></script>'
        '<script type="text/x-thebe-config">{}</script></head>'
    )
    assert str(page) == f"<head>{kept}</head>"


def test_icons_are_silent_and_other_marks_are_not(improved):
    page = improved('<i class="fa-solid fa-bars"></i><i class="fas fa-file"></i><i class="fast">x</i>')
    assert [i.get("aria-hidden") for i in page.find_all("i")] == ["true", "true", None]


def test_visible_words_of_a_box_are_its_name(improved):
    page = improved('<summary aria-label="Toggle hidden content"><p>Show code</p></summary>')
    assert page.summary.attrs == {}


def test_pictures_have_their_size_and_open_alone(improved):
    page = improved(
        '<img src="out.png"/><article><img src="a.png"/><a href="x"><img src="b.png"/></a></article>'
    )
    outside, first, second = page.find_all("img")
    assert list(outside.attrs) == ["src"]
    assert (first["width"], first["height"], first["loading"]) == ("40", "30", "lazy")
    assert first.parent["href"] == "a.png"
    assert second.parent["href"] == "x"  # a link in a link would be none


@pytest.mark.parametrize("source", ["data:image/png;base64,AA", "none.png", "text.svg"])
def test_pictures_without_a_size_are_left_alone(improved, tmp_path, source):
    (tmp_path / "text.svg").write_text("<svg/>", encoding="utf-8")
    html = f'<article><img src="{source}"/></article>'
    assert str(improved(html)) == html


def test_tables_and_their_holders_are_named(improved):
    page = improved(
        '<article><div class="pst-scrollable-table-container"><table><caption>Ten <b>models</b></caption>'
        '<thead><tr><th>a</th><th scope="row">b</th></tr></thead></table></div>'
        '<div class="pst-scrollable-table-container"><table></table></div></article>'
    )
    first, second = page.find_all("div")
    assert (first["role"], first["aria-label"]) == ("group", "Table: Ten models")
    assert second["aria-label"] == "Table"
    assert [th["scope"] for th in page.find_all("th")] == ["col", "row"]


def test_code_and_formulas_can_be_named_and_reached(improved):
    page = improved('<article><div class="highlight"><pre>x</pre></div><div class="math">y</div></article>')
    assert page.pre["aria-label"] == "Code"
    assert page.select_one(".math").attrs == {
        "class": ["math"], "role": "group", "aria-label": "Formula", "tabindex": "0",
    }  # fmt: skip


def test_text_with_marks_of_html_stays_what_it_is(improved):
    html = "<article><p>a &lt; b &amp; c</p><script>if (1 < 2 && 3) {}</script><p>\\(x_1\\)</p></article>"
    assert str(improved(html)) == html
