"""The scorecard: planted verdicts are counted, drawn and shown as planted; noise earns what luck gives."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from bs4 import BeautifulSoup

from chapters import run_chapter
from planted_claims import RECORDS, ledger, planted
from vitscope import scorecard as report
from vitscope import scorecard_noise as noise
from vitscope.runs import book, claims, gate_html, hashing, preflight, scorecard_html, verdicts
from vitscope.runs.claims import Ledger
from vitscope.runs.layout import Project
from vitscope.runs.schema import resolve
from vitscope.runs.scorecard_html import COLOURS, GRADES
from vitscope.runs.verdicts import DECISIONS, PAPERS, Decision

ROOT = Path(__file__).resolve().parents[1]
EVIL = '<script>alert("1")</script> & <b>'
DECIDED: dict[str, Decision] = {
    "A1": "reproduced", "A2": "partly", "B1": "reproduced", "B2": "contradicted",
    "C1": "inconclusive", "C2": "not attempted",
}  # fmt: skip
LEDGER = ledger(
    planted("A1", "holds"),
    planted("A2", "holds", "fails", "undecided", "holds"),
    planted("B1", "holds", grade="BRIEF"),
    planted("B2", "fails", "undecided", grade="BRIEF"),
    planted("C1", "undecided", grade="DERIVED"),
    planted("C2"),
)
FOUND = verdicts.verdicts(LEDGER, RECORDS)


def html(of: Ledger = LEDGER, found: list[verdicts.Verdict] = FOUND) -> str:
    data = report.rows(of, found, "twin")
    return scorecard_html.scorecard(of, found, data, "twin", "All of them.")


# --- counted, drawn, taken apart -------------------------------------------------------------------------


def test_the_plan_is_what_was_decided():
    assert {v.id: v.verdict for v in FOUND if v.setting == "twin"} == DECIDED


def test_planted_verdicts_give_planted_counts():
    counted = report.counts(LEDGER, FOUND, "twin").set_index(["paper", "verdict"])["claims"]
    assert len(counted) == len(PAPERS) * len(DECISIONS)
    expected = {("A", "reproduced"), ("A", "partly"), ("B", "reproduced"), ("B", "contradicted")}
    expected |= {("C", "inconclusive"), ("C", "not attempted")}
    assert set(counted[counted == 1].index) == expected
    assert counted.sum() == 6
    assert set(report.counts(LEDGER, FOUND, "paper").query("claims > 0")["verdict"]) == {"not attempted"}


def test_the_first_screen_names_them():
    said = report.first_screen(LEDGER, FOUND, "twin")
    assert said["claims"]["value"] == 6
    assert said["reproduced"] == {"value": 2, "n": 6, "text": "2 (A1, B1)"}
    assert said["reproduced_conditions"]["text"] == "1 (B1)"
    assert said["not_attempted"]["text"] == "1 (C2)"
    assert said["attempted_paper"] == {"value": 0, "n": 6, "text": "0"}
    assert said["fewest_seeds"]["value"] == 3
    assert report.first_screen(LEDGER, FOUND, "paper")["not_attempted"]["value"] == 6


def test_the_figure_stacks_every_claim_and_says_so():
    figure = report.verdict_figure(report.counts(LEDGER, FOUND, "twin"), "twin")
    assert "on 6 claims: paper A: 1 reproduced, 1 partly; paper B: 1 reproduced, 1 contradicted" in figure.alt
    bars = figure.fig.axes[0].patches
    assert sum(bar.get_width() for bar in bars) == 6
    ends = {round(bar.get_y(), 2): 0.0 for bar in bars}
    for bar in bars:  # each begins where the one before it ended
        assert bar.get_x() == ends[round(bar.get_y(), 2)]
        ends[round(bar.get_y(), 2)] += bar.get_width()


def test_contradicted_shows_what_failed_and_nothing_else():
    table = report.contradicted(LEDGER, FOUND, "twin")
    assert table["claim"].tolist() == ["B2"]
    assert table["what failed"].tolist() == ["It is so. 0: 9"]
    assert table["to bear in mind"].tolist() == ["A note. It is so."]
    assert report.contradicted(LEDGER, FOUND, "paper").empty


def test_grades_are_counted_where_they_occur():
    table = report.grades(LEDGER, FOUND, "twin").set_index("grade")
    assert table["claims"].to_dict() == {
        "P: the paper itself": 3, "BRIEF: a summary only": 2, "DERIVED: from others": 1,
    }  # fmt: skip
    assert table.at["BRIEF: a summary only", "contradicted"] == 1
    assert table.drop(columns="claims").to_numpy().sum() == 6
    assert report.grades(LEDGER, FOUND, "paper").columns.tolist() == ["grade", "claims", "not attempted"]


def test_grades_are_those_of_the_ledger_in_its_words():
    head = (ROOT / "data" / "claims.yml").read_text(encoding="utf-8").partition("format:")[0]
    line = re.search(r"Grades: (.+)\.", head)
    assert line
    assert dict(part.split(" ", 1) for part in line[1].split(", ")) == GRADES


def test_claims_that_are_no_findings_say_so_in_their_notes():
    plain = re.compile(r"^(A count of data, not a finding|A condition, not a finding|True by construction)")
    assert tuple(c.id for c in claims.load().claims if plain.match(c.note)) == report.NO_FINDINGS


# --- the table -------------------------------------------------------------------------------------------


def test_every_claim_of_the_ledger_has_its_row():
    whole = claims.load()
    found = verdicts.verdicts(whole, [])
    data = report.rows(whole, found, "twin")
    assert data["id"].tolist() == [claim.id for claim in whole.claims]
    page = BeautifulSoup(html(whole, found), "html.parser")
    rows = page.select("tbody")
    assert [row["id"] for row in rows] == [scorecard_html.anchor(claim.id) for claim in whole.claims]
    assert {len(row.select("[data-label]")) for row in rows} == {7}
    assert gate_html.has_table(page, "scorecard")
    for row, claim in zip(rows, whole.claims, strict=True):
        page_of = claim.section.partition("#")[0]
        assert row.select_one("th a")["href"] == f"{page_of}.html#{row['id']}"


def test_a_row_shows_what_was_published_measured_and_decided():
    page = BeautifulSoup(html(), "html.parser")
    row = page.select_one("#claim-a2")
    cells = {cell["data-label"]: cell.get_text("|") for cell in row.select("[data-label]")}
    assert cells == {
        "Paper": "A", "Statement": "It is so.", "Published": "3 of 3 It is so.", "Ours": "0.5|9|and 2 more",
        "Twin": "partly", "Papers' scale": "not attempted", "Grade": "P",
    }  # fmt: skip
    assert (row["data-paper"], row["data-verdict"], row["data-grade"]) == ("A", "partly", "P")
    details = row.select_one("details")
    assert not details.has_attr("open")
    assert len(details.select("ol > li")) == 8
    assert "seed 2: 9: fails, 9 lies outside 0 to 1" in details.get_text()
    assert page.select_one("#claim-c2 [data-label=Ours]").get_text() == "–"


def test_filters_are_native_labelled_and_offer_what_there_is():
    form = BeautifulSoup(html(), "html.parser").form
    assert form.has_attr("hidden")  # without JavaScript no control shows that would do nothing
    assert [len(label.select("select, input")) for label in form.select("label")] == [1, 1, 1, 1]
    offered = {s["data-filter"]: [o["value"] for o in s.select("option")] for s in form.select("select")}
    assert offered == {"paper": ["", *PAPERS], "verdict": ["", *DECISIONS], "grade": ["", *GRADES]}
    assert form.select_one("input[type=search]")["data-filter"] == "words"
    assert form.select_one("[aria-live=polite] output").get_text() == "6 of 6"
    assert form.select_one("button")["type"] == "button"


def test_nothing_is_fetched_and_no_row_starts_hidden():
    page = BeautifulSoup(html(), "html.parser")
    assert list(gate_html.outside_requests(page)) == []
    assert not page.select("script[src], link, img")
    assert not page.select("tbody[hidden]")


def test_all_text_is_escaped():
    of = ledger(planted("A1", "holds", text=EVIL))
    text = html(of, verdicts.verdicts(of, RECORDS))
    page = BeautifulSoup(text, "html.parser")
    assert len(page.select("script")) == 1  # ours
    assert not page.select("tbody b")
    assert page.select_one("[data-label=Statement]").get_text() == EVIL
    assert EVIL in page.select_one("details").get_text()
    assert EVIL not in text


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.2."""
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("decision", DECISIONS)
def test_verdicts_are_readable_on_their_own_ground(decision):
    dark, light = sorted(map(luminance, COLOURS[decision]))
    assert (light + 0.05) / (dark + 0.05) >= 4.5
    ground, text = COLOURS[decision]
    assert f"background:{ground};color:{text}" in scorecard_html.verdict_style(decision)


# --- what a run of the chapter depends on ----------------------------------------------------------------


@pytest.fixture
def carried(tmp_path, monkeypatch) -> Path:
    """A copy of the ledger and two records, as if the library carried it."""
    from vitscope.data import embedded

    data = ROOT / "data"
    (tmp_path / "records").mkdir()
    shutil.copy(data / "claims.yml", tmp_path)
    shutil.copy(data / "manifest.json", tmp_path)
    for seed in (0, 1):
        shutil.copy(data / "records" / f"06_shift-twin-seed{seed}.json", tmp_path / "records")
    monkeypatch.setattr(embedded, "root", lambda: tmp_path)
    return tmp_path


def test_a_new_record_and_a_new_rule_make_the_chapter_run_again_and_the_site(carried):
    project = Project(ROOT)

    def inputs(notebook: str) -> hashing.Inputs:
        return hashing.inputs_of("n", resolve(notebook), project, ROOT / "notebooks")

    before, other, tools = inputs("09_scorecard"), inputs("zoo_appendix"), book._tools(project)
    shutil.copy(ROOT / "data" / "records" / "06_shift-twin-seed2.json", carried / "records")
    assert inputs("09_scorecard").changed_since(before) == ["files"]
    assert inputs("zoo_appendix") == other
    assert book._tools(project) != tools
    before, tools = inputs("09_scorecard"), book._tools(project)
    (carried / "claims.yml").write_text("format: 1\nclaims: []\n")
    assert inputs("09_scorecard").changed_since(before) == ["files"]
    assert book._tools(project) != tools


def test_a_folder_of_records_is_found_and_checked_before_a_kernel_starts(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "record.json").write_text("{}")
    with pytest.raises(preflight.PreflightError, match=r"no folder yours with records; .* written \./NAME"):
        preflight.check(resolve("09_scorecard", overrides={"records": "yours"}), tmp_path)
    with pytest.raises(preflight.PreflightError, match=r"record\.json is JSON, but no record"):
        preflight.check(resolve("09_scorecard", overrides={"records": "mine"}), tmp_path)


def test_the_chapter_judges_a_folder_of_records(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    for path in (ROOT / "data" / "records").glob("06_shift-*.json"):
        shutil.copy(path, mine)
    made = run_chapter("09_scorecard", tmp_path / "run", tmp_path, records=str(mine))
    answered = [c.id for c in claims.load().claims if c.settings["twin"].notebook == "06_shift"]
    assert made.numbers["claims"].value - made.numbers["not_attempted"].value == len(answered)
    assert made.numbers["held"].n == len([
        c for id in answered for c in claims.load().claim(id).settings["twin"].clauses
        if isinstance(c.rule, claims.Sign)
    ])  # fmt: skip
    assert [t.name for t in made.tables][:1] == ["scorecard"]
    assert made.tables[0].rows == made.numbers["claims"].value
    assert [f.name for f in made.figures] == ["verdicts_by_paper"]


def test_the_chapter_says_what_does_not_apply_where_nothing_was_attempted(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    shutil.copy(ROOT / "data" / "records" / "06_shift-twin-seed0.json", mine)
    made = run_chapter("09_scorecard", tmp_path / "run", tmp_path, records=str(mine), setting="paper")
    assert {r.about: r.text for r in made.remarks} == {
        "contradicted": report.NONE_CONTRADICTED, "noise": noise.NOTHING,
    }  # fmt: skip
    assert made.numbers["held"].text == "nothing (no record)"
