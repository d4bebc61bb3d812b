"""A Sphinx extension: finished pages made lighter, and right for keyboards, screen readers and phones.

Theme, MyST-NB and Sphinx write what these passes change, and none of them has a setting for it. A pass takes
a parsed page and changes it in place; what CSS can do is in `_static/reading.css`.

- Icons come from a font that the theme carries; the script that draws them anew weighs ten times as much.
- Pictures are loaded when they come near, have their size in advance, and open alone.
- Whatever may scroll sideways has a name and can be reached with Tab.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup, Tag

_DIALOGS = {
    "pst-search-dialog": "Search",
    "pst-primary-sidebar-modal": "Contents of the book",
    "pst-secondary-sidebar-modal": "Contents of this page",
}
_ICON = re.compile(r"(^|\s)fa[srb]?(-|\s)")


def improve(page: BeautifulSoup, folder: Path) -> None:
    """All passes over one page; `folder` is where it lies, so that pictures are found."""
    for change in (_light_head, _icons, _names, _references, _tables, _scrolling):
        change(page)
    _pictures(page, folder)


def _light_head(page: BeautifulSoup) -> None:
    """Away with the drawing of icons, what thebe left, and a second viewport, which browsers ignore."""
    for script in page.find_all("script"):
        if "fontawesome.js" in str(script.get("src") or "") or "thebe" in str(script.get("type") or ""):
            script.decompose()
    for link in page.find_all("link", href=re.compile("sphinx-thebe")):
        link.decompose()
    for second in page.find_all("meta", attrs={"name": "viewport"})[1:]:
        second.decompose()


def _icons(page: BeautifulSoup) -> None:
    for icon in page.find_all(["i", "span"], class_=_ICON):
        icon["aria-hidden"] = "true"


def _names(page: BeautifulSoup) -> None:
    """Names that say what a thing is, and no name where the visible text is one."""
    for element in page.select("summary[aria-label], .search-button-field[aria-label]"):
        del element["aria-label"]  # it would hide "Show code cell source" and "Ctrl+K"
    for id, name in _DIALOGS.items():
        if isinstance(dialog := page.find(id=id), Tag):
            dialog["aria-label"] = name
    if isinstance(sidebar := page.find(id="pst-primary-sidebar"), Tag):
        sidebar["role"], sidebar["aria-label"] = "complementary", "Book"


def _references(page: BeautifulSoup) -> None:
    """A list of sources without roles that ARIA gave up, and that docutils gives to the wrong elements."""
    for element in page.select(".citation-list[role], .citation[role]"):
        del element["role"]


def _tables(page: BeautifulSoup) -> None:
    """Header cells say of what they are the header; a table's own words name the part that scrolls."""
    for table in page.select("article table"):
        for cell in table.select("thead th"):
            if not cell.get_text(strip=True) and cell.find("img") is None:
                cell.name = "td"  # the corner above row headers
        for cell in table.select("thead th:not([scope])"):
            cell["scope"] = "col"
        holder = table.parent
        if holder is not None and "pst-scrollable-table-container" in holder.get_attribute_list("class"):
            caption = table.find("caption")
            holder["role"] = "group"
            holder["aria-label"] = f"Table: {caption.get_text(' ', strip=True)}" if caption else "Table"


def _scrolling(page: BeautifulSoup) -> None:
    """The theme's script lets Tab reach code and tables that are cut off; formulas it does not know."""
    for code in page.select("article pre"):
        code["role"], code["aria-label"] = "group", "Code" if code.find_parent(class_="highlight") else "Text"
    for formula in page.select("article div.math"):
        formula["role"], formula["aria-label"], formula["tabindex"] = "group", "Formula", "0"


def _pictures(page: BeautifulSoup, folder: Path) -> None:
    for picture in page.select("article img"):
        source = str(picture.get("src") or "")
        size = None if source.startswith("data:") else _size(folder / source)
        if size is None:
            continue
        picture["width"], picture["height"] = map(str, size)
        picture["loading"] = "lazy"
        if picture.find_parent("a") is None:
            link = page.new_tag("a", attrs={"class": "vitscope-enlarge", "href": source})
            link["title"] = "Open this picture alone, in full size"
            picture.wrap(link)


@lru_cache(maxsize=1024)
def _size(path: Path) -> tuple[int, int] | None:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            return picture.size
    except (OSError, UnidentifiedImageError):
        return None  # a drawing in SVG, or a file that the gate will miss


def _all_pages(app: Any, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    for path in sorted(Path(app.outdir).rglob("*.html")):
        if "_static" in path.relative_to(app.outdir).parts:
            continue
        page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        improve(page, path.parent)
        path.write_text(str(page), encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    app.connect("build-finished", _all_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
