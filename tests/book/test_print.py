"""The whole book on one page and on paper, from the runs that the smoke site was built from."""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Iterator

import pytest

from vitscope.runs import gate_html, printing
from vitscope.runs.layout import Project


@pytest.fixture(scope="module")
def printed(site, tmp_path_factory):
    return printing.print_book(tmp_path_factory.mktemp("print") / "out", "smoke")


def page_contents(pdf: bytes) -> Iterator[bytes]:
    """What is drawn on each page, unpacked."""
    objects = dict(re.findall(rb"(?m)^(\d+) 0 obj\b(.*?)\bendobj", pdf, re.S))
    for body in objects.values():
        if re.search(rb"/Type\s*/Page\b(?!s)", body):
            content = objects[re.search(rb"/Contents (\d+) 0 R", body)[1]]
            yield zlib.decompress(re.search(rb"stream\r?\n(.*)\r?\nendstream", content, re.S)[1])


def test_every_page_of_the_book_is_on_it(printed):
    page = gate_html.parse(printed.page)
    begun = [e["id"].removeprefix("document-") for e in page.select('article span[id^="document-"]')]
    assert begun == list(Project.find().pages)


def test_what_the_runs_took_is_on_it(printed):
    page = gate_html.parse(printed.page)
    assert page.select_one('[data-table="runs_took"]') is not None


def test_page_opens_without_error_and_without_network(printed, visit):
    opened = visit(printed.page)
    assert opened.errors == []
    assert opened.requests == []
    page = opened.page
    page.wait_for_selector("mjx-container mjx-math", state="attached")
    assert page.locator("mjx-merror").count() == 0
    page.emulate_media(media="print")
    assert not page.locator(".bd-sidebar-primary").is_visible()
    shown = page.locator("article h1").evaluate_all("all => all.filter(e => e.offsetParent).length")
    assert shown == len(Project.find().pages)
    wide = """() => {
      const right = document.querySelector('article').getBoundingClientRect().right + 1;
      return [...document.querySelectorAll('article :is(table, img, pre)')]
        .filter(e => e.offsetParent && !e.closest('details:not([open])'))
        .filter(e => e.getBoundingClientRect().right > right)
        .map(e => e.outerHTML.slice(0, 80)) }"""
    page.set_viewport_size({"width": 680, "height": 1000})  # A4 less its margins, in CSS pixels
    assert page.evaluate(wide) == []


def test_no_sheet_of_the_pdf_is_empty(printed):
    if not any(map(shutil.which, printing.BROWSERS)):
        pytest.skip("no browser is installed")
    pages = list(page_contents(printed.pdf.read_bytes()))
    assert len(pages) == printed.sheets > 40
    drawn = [len(re.findall(rb"\bT[jJ]\b|\bDo\b", page)) for page in pages]
    assert [i + 1 for i, count in enumerate(drawn) if count < 2] == [], "the page number alone is one"
