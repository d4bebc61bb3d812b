"""The built site as a reader's browser sees it, without network."""

import json
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from site_pages import PAGES

CONTRAST = """() => {
  const luminance = rgb => rgb.map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.99) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const texts = 'main p, article.bd-article h1, main h2, main td, main th, main summary, main li'
    + ', main .vitscope-claim, #scorecard span';
  return [...document.querySelectorAll(texts)]
    .filter(e => e.offsetParent && e.textContent.trim())
    .map(e => {
      const [a, b] = [luminance(parse(getComputedStyle(e).color).slice(0, 3)), luminance(ground(e))];
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      return [ratio, e.tagName + ': ' + e.textContent.trim().slice(0, 40)];
    })
    .filter(([ratio]) => ratio < 4.5);
}"""


def test_every_page_of_the_book_is_tried(pages):
    assert sorted(f"{p.parent.name}/{p.stem}" for p in pages) == sorted(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_page_loads_without_error_and_without_network(site, visit, name):
    opened = visit(site / f"{name}.html")
    assert opened.errors == []
    assert opened.requests == []
    assert opened.page.locator("article.bd-article h1").count() == 1


@pytest.mark.parametrize("name", [p for p in PAGES if p.startswith("notebooks/")])
def test_figures_are_shown_and_described(site, visit, name):
    opened = visit(site / f"{name}.html")
    figures = opened.page.locator("main .cell_output img")
    assert figures.count() >= 1
    for i in range(figures.count()):
        figure = figures.nth(i)
        figure.scroll_into_view_if_needed()  # pictures further down are loaded when they come near
        assert figure.evaluate("async e => { await e.decode(); return e.naturalWidth }") > 300
        alt = figure.get_attribute("alt")
        assert len(alt) >= 20, alt
        assert re.search(r"\d", alt), alt
    assert opened.page.locator("details.vitscope-card").count() == figures.count()


def test_smoke_pages_say_so(site, visit):
    text = visit(site / "notebooks/01_phase_curves.html").page.locator("main").inner_text()
    assert "no number here is a result" in text


def test_card_opens_and_its_data_are_those_plotted(site, visit):
    page = visit(site / "notebooks/01_phase_curves.html").page
    card = page.locator("details.vitscope-card").first
    card.locator("summary").click()
    assert "SHA-256" in card.inner_text()
    content = card.locator("a[download]").get_attribute("href")
    text = page.evaluate("async address => await (await fetch(address)).text()", content)
    assert {"backbone", "state", "mean"} <= set(text.splitlines()[0].split(","))
    assert len(text.splitlines()) > 10


def test_record_can_be_taken_away(site, visit):
    page = visit(site / "notebooks/01_phase_curves.html").page
    address = page.locator("details.vitscope-run a[download='record.json']").get_attribute("href")
    record = json.loads(page.evaluate("async address => await (await fetch(address)).text()", address))
    assert record["profile"] == "smoke"
    assert record["numbers"]["test_images"]["value"] == 80


def test_scorecard_can_be_filtered(site, visit):
    page = visit(site / "notebooks/09_scorecard.html").page
    rows, shown = page.locator("#scorecard tbody"), page.locator("#scorecard output")
    total = rows.count()
    assert shown.inner_text() == f"{total} of {total}"
    page.locator("[data-filter=paper]").select_option("A")
    page.locator("[data-filter=words]").fill("OCCURS nowhere")
    assert shown.inner_text() == f"0 of {total}"
    page.locator("[data-filter=words]").fill("vit-l about TEN")
    count = page.locator("#scorecard tbody:visible").count()
    assert 0 < count < page.locator("#scorecard tbody[data-paper=A]").count()
    assert shown.inner_text() == f"{count} of {total}"
    page.get_by_role("button", name="Show all").click()
    assert shown.inner_text() == f"{total} of {total}"
    page.locator("[data-filter=grade]").select_option("R")
    page.evaluate("location.hash = 'claim-b1'")  # a badge's target shows, whatever the filters
    page.wait_for_selector("#claim-b1", state="visible")


def test_badges_lead_to_the_scorecard_and_back(site, visit):
    page = visit(site / "notebooks/02_information_scrambling.html").page
    badge = page.locator("a#claim-a2.vitscope-claim")  # the first screen has another, without a place
    assert "papers' scale: " in badge.get_attribute("title")
    badge.click()
    page.wait_for_selector("#claim-a2")
    assert page.url.endswith("09_scorecard.html#claim-a2")
    page.locator("#claim-a2 th a").click()
    page.wait_for_selector("a#claim-a2")
    assert page.url.endswith("02_information_scrambling.html#claim-a2")


def test_formulas_are_typeset_offline(site, visit):
    page = visit(site / "notebooks/01_phase_curves.html").page
    page.wait_for_selector("mjx-container mjx-math", state="attached")
    assert page.locator("mjx-container").count() >= 5
    assert page.locator("mjx-merror").count() == 0


def test_search_finds_a_chapter(site, visit):
    opened = visit(site / "search.html", query="?q=plateau")
    opened.page.wait_for_selector("#search-results li a")
    found = opened.page.locator("#search-results li a").evaluate_all("links => links.map(a => a.href)")
    assert any("01_phase_curves" in address for address in found)
    assert opened.requests == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_text_is_readable_in_both_themes(site, visit, name, scheme):
    page = visit(site / f"{name}.html", scheme=scheme).page
    page.evaluate("scheme => { document.documentElement.dataset.theme = scheme }", scheme)
    assert page.evaluate(CONTRAST) == []


@pytest.mark.parametrize("name", PAGES)
def test_page_fits_a_phone(site, visit, name):
    page = visit(site / f"{name}.html", width=390).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("article.bd-article h1").bounding_box()["width"] <= 390


def test_links_lead_somewhere(site, visit):
    page = visit(site / "book/intro.html").page
    addresses = page.locator("a[href]").evaluate_all("links => links.map(a => a.href)")
    local = {unquote(urlsplit(a).path) for a in addresses if a.startswith("file:")}
    assert len(local) > 5
    assert [path for path in local if not Path(path).exists()] == []
