"""Every page under axe-core, from the keyboard alone, and on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from site_pages import PAGES

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
VIEWS = [("light", 1280), ("dark", 1280), ("light", 390)]
WRONG: list[tuple[str, str, str]] = []
"""Findings that are wrong: rule, a part of the selector, and why."""
SMALLEST_TEXT = 15  # px, on a phone
SMALLEST_TARGET = 24

SMALL_TEXT = """smallest => {
  const found = new Set();
  const article = document.querySelector("article.bd-article");
  const walker = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const e = node.parentElement;
    if (!node.data.trim() || !e.checkVisibility()) continue;
    if (e.closest("sup, sub, mjx-container, script, style")) continue;
    const size = parseFloat(getComputedStyle(e).fontSize);
    if (size < smallest) found.add(`${size} px in ${e.tagName}: ${node.data.trim().slice(0, 40)}`);
  }
  return [...found];
}"""

SMALL_TARGETS = """smallest => [...document.querySelectorAll(
    "article summary, article a[download], a.vitscope-claim, a.vitscope-enlarge, "
    + "#scorecard :is(select, input, button, th a)")]
  .filter(e => e.checkVisibility())
  .map(e => [e.getBoundingClientRect(), e])
  .filter(([box]) => box.height < smallest || box.width < smallest)
  .map(([box, e]) => `${box.width.toFixed(0)} × ${box.height.toFixed(0)} px: ${e.outerHTML.slice(0, 80)}`)"""

CUT_OFF = """() => [...document.querySelectorAll("article *")]
  .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0)
  .filter(e => getComputedStyle(e).display !== "inline" && !e.closest("mjx-assistive-mml, svg"))
  .filter(e => getComputedStyle(e).overflowX !== "visible")
  .filter(e => !e.matches("span.math")  // what is only read aloud is wider than what is seen
    || e.querySelector("mjx-math").getBoundingClientRect().right > e.getBoundingClientRect().right + 1)
  .filter(e => getComputedStyle(e).overflowX === "hidden" || e.tabIndex !== 0
    || !(e.ariaLabel || e.getAttribute("aria-labelledby")))
  .map(e => e.outerHTML.slice(0, 120))"""

FOCUS = """() => {
  const e = document.activeElement;
  const style = getComputedStyle(e), box = e.getBoundingClientRect();
  const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2
    || style.boxShadow !== "none"
    || [...e.children].some(c => getComputedStyle(c).outlineStyle !== "none");
  const classes = [...e.classList].map(c => "." + c).join("");
  return {end: e === document.body, name: e.tagName.toLowerCase() + (e.id && "#" + e.id) + classes,
          href: e.getAttribute("href") || "", filter: e.dataset.filter || "", seen,
          label: (e.ariaLabel || e.innerText || e.title || "").trim().slice(0, 40),
          within: box.bottom > 0 && box.top < innerHeight && getComputedStyle(e).opacity > 0.5};
}"""


def findings(page) -> list[dict]:
    """What axe-core has to say about a page, without what is known to be wrong."""
    page.evaluate(AXE)
    result = page.evaluate("tags => axe.run(document, {runOnly: tags, resultTypes: ['violations']})", TAGS)
    return [
        {"rule": rule["id"], "impact": node["impact"] or rule["impact"], "where": where, "help": rule["help"],
         "what": " ".join(node["failureSummary"].split())}
        for rule in result["violations"]
        for node in rule["nodes"]
        if not is_wrong(rule["id"], where := " ".join(map(str, node["target"])))
    ]  # fmt: skip


def is_wrong(rule: str, where: str) -> bool:
    return any(rule == known and part in where for known, part, _ in WRONG)


@pytest.mark.parametrize(("scheme", "width"), VIEWS)
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(site, visit, name, scheme, width):
    page = visit(site / f"{name}.html", width=width, scheme=scheme).page
    settle(page)
    grave = [
        f"{f['rule']} ({f['impact']}) at {f['where']}: {f['help']}. {f['what']}"
        for f in findings(page)
        if f["impact"] in ("serious", "critical")
    ]
    assert grave == []


def settle(page) -> None:
    """Wait until formulas stand and the theme's scripts have run."""
    page.evaluate("() => window.MathJax?.startup?.promise")
    page.wait_for_timeout(400)


def walk(page, most: int = 600) -> list[dict]:
    """What has the focus after each press of Tab, from the top of the page to its end."""
    stops: list[dict] = []
    for _ in range(most):
        page.keyboard.press("Tab")
        stop = page.evaluate(FOCUS)
        if stop["end"]:
            break
        stops.append(stop)
    return stops


@pytest.mark.parametrize("name", ["notebooks/01_phase_curves", "notebooks/09_scorecard"])
def test_everything_is_reached_with_tab(site, visit, name):
    page = visit(site / f"{name}.html").page
    settle(page)
    stops = walk(page)
    names = [stop["name"] for stop in stops]
    assert stops[0]["href"] == "#main-content"  # past the navigation
    assert [stop for stop in stops if not stop["seen"]] == [], "the focus must be seen"
    assert [stop for stop in stops if not stop["within"]] == []
    assert any("search-button-field" in name for name in names)
    assert any("theme-switch-button" in name for name in names)
    assert sum(stop["href"].endswith(".html") for stop in stops) >= len(PAGES) - 1
    boxes = page.locator("article summary").evaluate_all("all => all.filter(e => e.checkVisibility()).length")
    assert sum(name.startswith("summary") for name in names) >= boxes > 5
    links = page.locator("article table a[href]").evaluate_all(
        "all => all.filter(e => e.checkVisibility()).map(e => e.getAttribute('href'))"
    )
    assert set(links) <= {stop["href"] for stop in stops}
    if name.endswith("scorecard"):
        assert {"paper", "verdict", "grade", "words"} <= {stop["filter"] for stop in stops}
        assert any(stop["label"] == "Show all" for stop in stops)


def test_skip_link_leads_past_the_navigation(site, visit):
    page = visit(site / "notebooks/01_phase_curves.html").page
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")


def test_a_box_opens_from_the_keyboard(site, visit):
    page = visit(site / "notebooks/01_phase_curves.html").page
    card = page.locator("details.vitscope-card").first
    card.locator("summary").focus()
    page.keyboard.press("Enter")
    assert card.evaluate("e => e.open")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.download").endswith(".csv")


@pytest.mark.parametrize("name", PAGES)
def test_page_is_usable_on_a_phone(site, visit, name):
    page = visit(site / f"{name}.html", width=390).page
    settle(page)
    assert page.evaluate(SMALL_TEXT, SMALLEST_TEXT) == []
    assert page.evaluate(SMALL_TARGETS, SMALLEST_TARGET) == []
    assert page.evaluate(CUT_OFF) == [], "what is cut off must scroll, with a name, from the keyboard"


def test_a_picture_opens_alone(site, visit):
    page = visit(site / "notebooks/01_phase_curves.html", width=390).page
    link = page.locator("a.vitscope-enlarge").first
    address = link.get_attribute("href")
    assert link.locator("img").bounding_box()["width"] <= 390
    link.focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/{Path(address).name}")
