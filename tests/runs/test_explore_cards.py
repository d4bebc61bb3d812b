"""Explorers on a page: the box, the record, the script, and what the gate says of each damage."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pandas as pd
import pytest
from bs4 import BeautifulSoup
from matplotlib.figure import Figure as Canvas

from vitscope.explore import Explorer
from vitscope.figures import Figure
from vitscope.runs import explore_cards, explore_pages, gate_html
from vitscope.runs.record import Record

CHART = {"mark": "bar", "data": {"values": [{"t": "</script><!-- & 1 < 2"}]}}
SPEC = json.dumps(CHART, separators=(",", ":"))
EXPLORER = Explorer("a & b", "Move the slider from 0 to 12; it starts at 3.", SPEC)


def drawn() -> Figure:
    data = pd.DataFrame({"x": [0, 1]})
    return Figure(Canvas(figsize=(2, 1)), data, "A line that rises from 0 to 1.", "line", EXPLORER)


@pytest.fixture
def made(begin, shown):
    """A run with one explorer: its box, and its record."""
    run = begin()
    run.figure(drawn())
    box = shown[-1][0]["text/html"]
    run.finish()
    return box, Record.load(run.folder)


def said(html: str, record: Record) -> str | None:
    (explored,) = record.explorers
    page = BeautifulSoup(html, "html.parser")
    return explore_cards.problem(page, explored.name, explored.words, explored.spec_sha256)


def test_box_holds_words_chart_and_run_and_no_program(made):
    html, record = made
    page = BeautifulSoup(html, "html.parser")
    box = page.select_one("details.vitscope-explore")
    assert not box.has_attr("open")
    assert box["data-figure"] == "line"
    assert box.find("summary").get_text() == "Explore: a & b"
    assert EXPLORER.words in box.get_text()
    assert "zoo_appendix, profile course" in box.get_text()
    assert [s["type"] for s in page.find_all("script")] == ["application/json"]
    assert json.loads(page.find("script").get_text()) == json.loads(SPEC)
    assert said(html, record) is None


def test_smoke_runs_mark_the_title(begin, shown):
    begin("smoke").figure(drawn())
    assert "a &amp; b [smoke run: not a result]</summary>" in shown[-1][0]["text/html"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('data-figure="line"', 'data-figure="other"', "is missing"),
        ("it starts at 3", "it starts at 4", "own words"),
        ('class="vitscope-explore-view"', 'class="other"', "no place for it"),
        ("application/json", "text/plain", "has no chart"),
        ('"mark":"bar"', '"mark":"line"', "not the one that its run made"),
    ],
)
def test_damage_is_named(made, old, new, problem):
    html, record = made
    assert old in html
    assert problem in said(html.replace(old, new), record)


def test_old_records_know_no_explorers(made):
    _, record = made
    old = record.model_dump(mode="json")
    del old["explorers"]
    assert Record.model_validate(old).explorers == []


def test_the_script_is_added_where_there_is_an_explorer_and_nowhere_else(made):
    html, _ = made
    added = []
    app = SimpleNamespace(add_js_file=lambda name, **options: added.append((name, options)))
    explore_pages._with_script(app, "a", "page.html", {"body": html}, None)
    explore_pages._with_script(app, "b", "page.html", {"body": "<p>vitscope-explore</p>"}, None)
    explore_pages._with_script(app, "search", "search.html", {}, None)
    assert added == [("../explore/explore.js", {"loading_method": "defer"})]


def test_a_page_must_load_a_script_that_is_there(tmp_path):
    page = BeautifulSoup('<script src="../explore/explore.js?v=1"></script>', "html.parser")
    path = tmp_path / "notebooks" / "a.html"
    assert not gate_html.runs_script(page, path, "explore.js")
    (tmp_path / "explore").mkdir()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "explore" / "explore.js").write_text("")
    assert gate_html.runs_script(page, path, "explore.js")
