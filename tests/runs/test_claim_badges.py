"""Badges beside the claims: their words, links and warnings in a small build, and their place in the book."""

from __future__ import annotations

import io
import re
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import docutils_namespace

from planted_claims import RECORDS, ledger, planted
from vitscope.runs import claim_badges, claims
from vitscope.runs.layout import Project
from vitscope.runs.scorecard_html import verdict_style

WHOLE = claims.load()
ROOT = Path(__file__).resolve().parents[2]
ROLE = re.compile(r"\{claim\}`([^`]*)`")
BRIEF = re.compile(r"\{verdict\}`([^`]*)`")
COUNT = re.compile(r"\{claim-count\}`([^`]*)`")
PAGES = {
    "index.md": "# Tiny\n\n```{toctree}\nnotebooks/02\nnotebooks/03\nnotebooks/09_scorecard\n```\n",
    "notebooks/02.md": "# Two\n\nClaims: {claim}`A1` {claim}`B2` {claim}`C2`\n\nAgain {claim}`A1`.\n",
    "notebooks/03.md": "# Three\n\nSo: {verdict}`A1`.\n\n## There\n\nClaim: {claim}`A1`\n\nOf "
    "{claim-count}`all`: {claim-count}`reproduced`, {claim-count}`B contradicted`, {claim-count}`C`.\n",
    "notebooks/09_scorecard.md": "# Scorecard\n\nHere {claim}`A1`.\n",
}


@pytest.fixture(scope="module", autouse=True)
def small_ledger():
    """Three claims, of which one is reproduced, one contradicted and one not attempted."""
    made = ledger(planted("A1", "holds"), planted("B2", "fails"), planted("C2"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "load", lambda: made)
        patch.setattr(claims, "published_records", lambda: RECORDS)
        yield


def built(folder: Path, builder: str = "html", index: str = "") -> tuple[Path, str]:
    """The output folder of a small book, with a line more on its first page, and what Sphinx warned of."""
    for name, text in PAGES.items():
        path = folder / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + (index if name == "index.md" else ""), encoding="utf-8")
    warnings, out = io.StringIO(), folder / builder
    extensions = ["myst_parser", "vitscope.runs.claim_badges"]
    with docutils_namespace():
        app = Sphinx(
            folder / "source", None, out, folder / "doctrees", builder,
            {"extensions": extensions}, status=None, warning=warnings, freshenv=True,
        )  # fmt: skip
        app.build()
    return out, warnings.getvalue()


@pytest.fixture(scope="module")
def site(small_ledger, tmp_path_factory) -> dict[str, BeautifulSoup]:
    out, said = built(tmp_path_factory.mktemp("book"))
    assert said == ""
    return {
        path.stem: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for path in out.rglob("*.html")
    }


# --- in a small book -------------------------------------------------------------------------------------


def test_a_badge_names_claim_and_verdict_and_leads_to_its_row(site):
    badges = site["02"].select("a.vitscope-claim")
    assert [b.get_text() for b in badges] == [
        "A1 · reproduced", "B2 · contradicted", "C2 · not attempted", "A1 · reproduced",
    ]  # fmt: skip
    assert [b["href"].split("#")[1] for b in badges] == ["claim-a1", "claim-b2", "claim-c2", "claim-a1"]
    assert {b["href"].split("#")[0] for b in badges} == {"09_scorecard.html"}


def test_its_title_says_both_settings_and_how_many_seeds(site):
    titles = [b["title"] for b in site["02"].select("a.vitscope-claim")]
    assert titles[0] == "twin: reproduced over 3 seeds; papers' scale: not attempted"
    assert titles[2] == "twin: not attempted; papers' scale: not attempted"


def test_its_colours_are_those_of_the_verdict(site):
    badges = site["02"].select("a.vitscope-claim")
    for badge, decision in zip(badges, ("reproduced", "contradicted", "not attempted"), strict=False):
        assert badge["style"].startswith(verdict_style(decision))


def test_the_scorecard_can_link_to_the_first_badge_of_a_claim(site):
    assert [b.get("id") for b in site["02"].select("a.vitscope-claim")] == [
        "claim-a1", "claim-b2", "claim-c2", None,
    ]  # fmt: skip
    on_scorecard = site["09_scorecard"].select_one("a.vitscope-claim")
    assert on_scorecard.get("id") is None  # there it is the row that has it
    assert on_scorecard["href"] == "#claim-a1"


def test_a_verdict_alone_looks_like_the_badge_and_leaves_the_place_to_it(site):
    alone, badge = site["03"].select("a.vitscope-claim")
    assert (alone.get_text(), alone["href"], alone["style"]) == (
        badge.get_text(),
        badge["href"],
        badge["style"],
    )
    assert (alone.get("id"), badge.get("id")) == (None, "claim-a1")


def test_counts_are_computed_from_the_verdicts(site):
    assert "Of 3: 1, 1, 1." in site["03"].get_text()


@pytest.mark.parametrize(
    ("asked", "number"),
    [("all", 3), ("A", 1), ("A all", 1), (" reproduced ", 1), ("A contradicted", 0), ("C not attempted", 1)],
)
def test_counts_by_paper_and_verdict(asked, number):
    assert claim_badges.count(claim_badges.badges(), asked) == number


def test_a_count_of_something_else_is_a_warning_with_the_place(tmp_path):
    _, said = built(tmp_path, index="\n\nThere are {claim-count}`A contradictd` of them.\n")
    assert re.search(r"index\.md:\d+: WARNING: Unknown verdict 'contradictd'\. Did you mean 'contra", said)


def test_an_unknown_claim_is_a_warning_with_the_place_and_near_ids(tmp_path):
    out, said = built(tmp_path, index="\n\nNo {claim}`B22` here.\n")
    assert re.search(r"index\.md:\d+: WARNING: Unknown claim 'B22'\. Did you mean 'B2'\?", said)
    assert "No B22 here." in (out / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("builder", "pattern"), [("text", "**/02.txt"), ("latex", "*.tex")])
def test_other_builders_show_the_words(tmp_path, builder, pattern):
    out, _ = built(tmp_path, builder)
    text = "".join(path.read_text(encoding="utf-8") for path in out.glob(pattern))
    for words in ("A1", "reproduced", "B2", "contradicted", "C2", "not attempted"):
        assert words in text
    assert "vitscope-claim" not in text


def test_without_a_scorecard_there_is_no_link(tmp_path, monkeypatch):
    monkeypatch.setattr(claim_badges, "PAGE", "elsewhere")
    out, _ = built(tmp_path)
    page = BeautifulSoup((out / "notebooks" / "02.html").read_text(encoding="utf-8"), "html.parser")
    assert not any(badge.has_attr("href") for badge in page.select(".vitscope-claim"))


def test_records_that_cannot_be_judged_stop_the_build(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "published_records", lambda: [*RECORDS, RECORDS[0]])
    with pytest.raises(ExtensionError, match=r"verdicts beside the claims cannot be computed: .*there twice"):
        built(tmp_path)


# --- in the book's own chapters --------------------------------------------------------------------------


def markdown(notebook: str) -> list[str]:
    cells = nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "markdown"]


def slug(heading: str) -> str:
    """The anchor that the ledger writes for a heading."""
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).strip().replace(" ", "-")


def test_every_claim_has_its_badge_under_the_heading_of_its_section():
    for claim in WHOLE.claims:
        notebook, _, anchor = claim.section.partition("#")
        places = [
            (slug(heading) if level != "#" else "", ROLE.findall(line))
            for text in markdown(notebook)
            for level, heading, line in re.findall(r"^(#+) (.+)\n\n(Claims?: .+)$", text, re.MULTILINE)
        ]
        assert [ids for where, ids in places if where == anchor and claim.id in ids], claim.id
        assert sum(claim.id in ids for _, ids in places) == 1, claim.id


def test_verdicts_and_counts_in_the_prose_are_of_the_ledger():
    known = claim_badges.badges() | {claim.id: claim for claim in WHOLE.claims}
    pages = [*(ROOT / "book").glob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    assert len(BRIEF.findall(text)) > 20
    assert set(BRIEF.findall(text)) <= set(known)
    for asked in COUNT.findall(text):
        assert claim_badges.count(claim_badges.badges(), asked) >= 0


def test_every_badge_of_the_book_is_of_a_claim():
    known = {claim.id for claim in WHOLE.claims}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        found = {id for text in markdown(path.stem) for id in ROLE.findall(text)}
        assert found <= known, path.name


def test_the_book_loads_the_extension_and_has_the_page():
    assert "vitscope.runs.claim_badges" in (ROOT / "_config.yml").read_text(encoding="utf-8")
    assert claim_badges.PAGE in Project(ROOT).pages
