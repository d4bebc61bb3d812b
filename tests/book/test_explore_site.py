"""The explorers of the built site, as a reader's browser without network draws them."""

from __future__ import annotations

import csv
import io

import pytest

CURVES, GALLERY, SHIFT = "01_phase_curves", "07_semantic_diffusion", "06_shift"


def opened(visit, site, notebook: str, figure: str, **options):
    """A page, the box of a figure's explorer in it, drawn, and the visit."""
    visited = visit(site / f"notebooks/{notebook}.html", **options)
    box = visited.page.locator(f"details.vitscope-explore[data-figure={figure}]")
    box.locator("summary").click()
    visited.page.wait_for_selector(f"details.vitscope-explore[data-figure={figure}][data-drawn=yes]")
    return visited, box


def values(box) -> dict[str, str]:
    """The table beside a chart: name -> value."""
    rows = box.locator("tbody tr").all()
    return {r.locator("th").inner_text().strip(): r.locator("td").first.inner_text() for r in rows}


def data_of(page, figure: str) -> list[dict[str, str]]:
    address = page.locator(f"details.vitscope-card[data-figure={figure}] a[download]").get_attribute("href")
    text = page.evaluate("async address => await (await fetch(address)).text()", address)
    return list(csv.DictReader(io.StringIO(text)))


def test_nothing_is_loaded_before_a_box_is_opened(site, visit):
    page = visit(site / f"notebooks/{CURVES}.html").page
    assert page.evaluate("typeof window.vega") == "undefined"
    assert page.locator("details.vitscope-explore[open]").count() == 0
    assert page.locator("script[src*='explore.js']").count() == 1
    intro = visit(site / "book/intro.html").page
    assert intro.locator("script[src*='explore.js']").count() == 0


def test_the_slider_reads_off_the_numbers_of_the_figure(site, visit):
    visited, box = opened(visit, site, CURVES, "probes_cls")
    page = visited.page
    assert box.locator("svg").count() == 1
    slider = box.get_by_role("slider", name="state")
    data = data_of(page, "probes_cls")
    for key, step in (("Home", None), ("ArrowRight", 1), ("ArrowRight", 1)):
        before = int(slider.input_value())
        slider.press(key)
        at = int(slider.input_value())
        assert step is None or at == before + step
        page.wait_for_function(
            "([box, text]) => box.querySelector('caption').textContent === text",
            arg=[box.element_handle(), f"state: {at}"],
        )
        wanted = {r["backbone"]: float(r["accuracy"]) for r in data if int(r["state"]) == at}
        assert {k: float(v) for k, v in values(box).items()} == pytest.approx(wanted, abs=0.05)
    assert visited.errors == []
    assert visited.requests == []


def test_a_select_shows_another_measure(site, visit):
    _, box = opened(visit, site, CURVES, "similarity_raw")
    before = values(box)
    box.get_by_role("combobox", name="measure").select_option(index=1)
    box.page.wait_for_function(
        "([box, text]) => box.querySelector('tbody td').textContent !== text",
        arg=[box.element_handle(), next(iter(before.values()))],
    )
    assert values(box).keys() == before.keys()


def test_a_curve_stands_out_by_its_row_and_by_the_field(site, visit):
    _, box = opened(visit, site, GALLERY, "segmentation")
    names = list(values(box))
    assert len(names) > 1
    field = box.get_by_role("combobox", name="highlight")
    box.locator("tbody tr").nth(1).click()
    box.page.wait_for_function("box => box.querySelector('select').value !== 'all'", arg=box.element_handle())
    assert field.input_value() == names[1]
    faint = "box => [...box.querySelectorAll('svg .mark-line path')].map(e => e.getAttribute('opacity'))"
    assert sorted(box.evaluate(faint), key=str) == sorted(["0.15"] * (len(names) - 1) + ["1"])
    field.select_option("all")
    box.page.wait_for_function(
        "box => !box.querySelector('svg .mark-line path[opacity=\"0.15\"]')", arg=box.element_handle()
    )


def test_thresholds_change_what_is_found(site, visit):
    _, box = opened(visit, site, CURVES, "similarity_centred")
    seen = {tuple(values(box).values())}
    slider = box.get_by_role("slider", name="tolerance of a step")
    slider.press("End")
    box.page.wait_for_timeout(200)
    seen.add(tuple(values(box).values()))
    assert set(values(box)) == {"cliff", "plateau", "climb"}
    assert slider.get_attribute("aria-valuetext") == "0.05"


def test_a_gallery_shows_other_pictures_at_another_state(site, visit):
    visited, box = opened(visit, site, GALLERY, "pca_layers")
    images = (
        "box => [...box.querySelectorAll('svg image')].map(i => i.getAttribute('href') ?? i.href.baseVal)"
    )
    before = box.evaluate(images)
    assert len(before) >= 4
    assert all(address.startswith("data:image/png") for address in before)
    box.get_by_role("slider", name="state").press("Home")
    box.page.wait_for_function(
        "([b, old]) => [...b.querySelectorAll('svg image')].some(i => !old.includes(i.href.baseVal))",
        arg=[box.element_handle(), before],
    )
    assert visited.errors == []


def test_bars_at_the_highest_severity_are_those_of_the_figure(site, visit):
    visited, box = opened(visit, site, SHIFT, "severity")
    slider = box.get_by_role("slider", name="severity")
    clean = values(box)
    slider.press("End")
    box.page.wait_for_function(
        "box => !box.querySelector('caption').textContent.endsWith(' 0')", arg=box.element_handle()
    )
    under = values(box)
    assert under.keys() == clean.keys()
    data = data_of(visited.page, "severity")
    highest = max(int(r["severity"]) for r in data)
    wanted = {r["method"]: float(r["accuracy"]) for r in data if int(r["severity"]) == highest}
    assert {k: float(under[k]) for k in wanted} == pytest.approx(wanted, abs=0.05)
    assert visited.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("notebook", "figure"), [(CURVES, "similarity_raw"), (GALLERY, "pca_layers")])
def test_a_narrow_page_does_not_scroll_sideways(site, visit, notebook, figure, scheme):
    visited, box = opened(visit, site, notebook, figure, width=390, scheme=scheme)
    assert visited.page.evaluate("document.documentElement.scrollWidth") <= 390
    chart = box.locator(".vitscope-explore-chart")
    assert chart.evaluate("e => e.querySelector('svg').getBoundingClientRect().width <= e.clientWidth + 1")
    assert chart.evaluate("e => getComputedStyle(e).backgroundColor") == "rgb(255, 255, 255)"
    for label in box.locator("label").all():
        assert label.evaluate("e => e.getBoundingClientRect().right") <= 390
    assert visited.errors == []


def test_every_explorer_can_be_drawn(site, visit, pages):
    count = 0
    for path in pages:
        if "vitscope-explore" not in path.read_text(encoding="utf-8"):
            continue
        visited = visit(path)
        boxes = visited.page.locator("details.vitscope-explore")
        for i in range(boxes.count()):
            boxes.nth(i).locator("summary").click()
        visited.page.wait_for_function(
            "n => document.querySelectorAll('details.vitscope-explore[data-drawn=yes]').length === n",
            arg=boxes.count(),
            timeout=60_000,
        )
        empty = "box => !box.querySelector('svg') || !box.querySelector('.vitscope-explore-values tr')"
        named = [b.get_attribute("data-figure") for b in boxes.all() if b.evaluate(empty)]
        assert named == [], path.name
        assert visited.errors == [], path.name
        assert visited.requests == [], path.name
        count += boxes.count()
    assert count > 20


def test_without_javascript_words_and_figure_remain(site, browser):
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto((site / f"notebooks/{CURVES}.html").as_uri())
        box = page.locator("details.vitscope-explore[data-figure=similarity_raw]")
        box.locator("summary").click()
        assert "At the start" in box.inner_text()
        assert "The figure above stays as it is." in box.inner_text()
        assert page.locator("main .cell_output img").first.is_visible()
    finally:
        context.close()
