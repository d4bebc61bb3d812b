"""What a built page may not contain: error outputs, widgets without a kernel, anything from elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup

_OUTSIDE = re.compile(r"^\s*(https?:)?//", re.I)
_OUTSIDE_CSS = re.compile(r"""(@import\s+(url\()?|url\()\s*['"]?\s*(https?:)?//[^'")\s]+""", re.I)
_OUTSIDE_IMPORT = re.compile(r"""\bimport\s*(\(\s*)?(['"]|[\w{}*,\s$]+from\s*['"])\s*(https?:)?//""")
_FETCHED = {
    "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src",
    "embed": "src",     "track": "src", "input": "src", "object": "data", "link": "href",
}  # fmt: skip
_HARMLESS_LINKS = {"canonical", "search", "index", "next", "prev", "author", "license", "copyright", "help"}
_RAISED = re.compile(r"^\w*(Error|Exception|Interrupt|Warning)\b.*", re.M)
_WIDGET = re.compile(r"^\s*(\w*Box|\w*Progress|\w*Slider|interactive|Output|Dropdown)\(.*\)\s*$")


def parse(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def outside_requests(page: BeautifulSoup) -> Iterator[str]:
    """Addresses that a browser would fetch from another machine when it opens the page."""
    for tag, attribute in _FETCHED.items():
        for element in page.find_all(tag):
            address = str(element.get(attribute) or "")
            loaded = tag != "link" or not set(_words(element.get("rel"))) & _HARMLESS_LINKS
            if loaded and _OUTSIDE.match(address):
                yield f"<{tag}> loads {address}"
    for element in page.find_all(srcset=True):
        if _OUTSIDE.match(str(element["srcset"])):
            yield f"<{element.name}> loads {element['srcset']}"
    for element in page.find_all(style=True):
        yield from outside_in_css(str(element["style"]))
    for style in page.find_all("style"):
        yield from outside_in_css(style.get_text())
    for script in page.find_all("script", src=False):
        if _OUTSIDE_IMPORT.search(script.get_text()):
            yield "an inline script imports from another machine"


def outside_in_css(text: str) -> Iterator[str]:
    for match in _OUTSIDE_CSS.finditer(text):
        yield f"style loads {match.group(0)[:80]}"


def error_outputs(page: BeautifulSoup) -> Iterator[str]:
    """Tracebacks, papermill's banners, widgets without a kernel."""
    if page.find(id="papermill-error-cell") or "An Exception was encountered at" in page.get_text():
        yield "carries papermill's error banner"
    for output in page.select(".cell_output"):
        text = output.get_text()
        if output.select(".traceback") or "Traceback (most recent call last)" in text:
            named = _RAISED.search(text)
            yield f"shows a traceback: {named.group(0)[:100] if named else 'of an unnamed error'}"
        lines = [line for block in output.select("pre") for line in block.get_text().splitlines()]
        if output.find("script", type=re.compile("jupyter.widget")) or any(map(_WIDGET.match, lines)):
            yield f"shows a widget placeholder: {text.strip()[:60]!r}"


def images_without_alt(page: BeautifulSoup, shortest: int) -> Iterator[str]:
    """Pictures of the article without words; myst-nb's default alt text is a file path."""
    for image in page.select("article img"):
        alt, source = str(image.get("alt") or ""), str(image.get("src") or "")
        in_output = image.find_parent(class_="cell_output") is not None
        if (
            not alt.strip()
            or alt.endswith(Path(urlsplit(source).path).name)
            or (in_output and len(alt) < shortest)
        ):
            yield f"picture {Path(source).name[:24]} has the alt text {alt[:60]!r}"


def broken_links(page: BeautifulSoup, path: Path, root: Path) -> Iterator[str]:
    """Relative links of the article to a file or an anchor that is not there."""
    own = {str(element["id"]) for element in page.find_all(id=True)}
    for link in page.select("article a[href], article img[src]"):
        address = str(link.get("href") or link.get("src"))
        parts = urlsplit(address)
        if parts.scheme or parts.netloc or address in ("", "#"):
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
        if not target.is_relative_to(root.resolve()) or not target.exists():
            yield f"links to {address}, which is not in the site"
        elif parts.fragment and target.suffix == ".html":
            ids = own if target == path.resolve() else _anchors(target, target.stat().st_mtime_ns)
            if unquote(parts.fragment) not in ids:
                yield f"links to {address}, where there is no such anchor"


@lru_cache(maxsize=64)
def _anchors(path: Path, mtime_ns: int) -> frozenset[str]:
    """Every id of a page as it was at that time: many links lead to one page, which takes long to parse."""
    return frozenset(str(element["id"]) for element in parse(path).find_all(id=True))


def figure_problem(page: BeautifulSoup, name: str, alt: str) -> str | None:
    """Why a recorded figure is not properly on the page, or None."""
    card = page.select_one(f'[data-figure="{name}"]')
    if card is None:
        return f"figure {name} is missing"
    alts = {" ".join(str(image.get("alt") or "").split()) for image in page.select(".cell_output img")}
    return None if " ".join(alt.split()) in alts else f"figure {name} is shown without its own alt text"


def runs_script(page: BeautifulSoup, path: Path, name: str) -> bool:
    """Whether a page loads a script file of that name which lies in the site."""
    addresses = [urlsplit(str(script["src"])).path for script in page.find_all("script", src=True)]
    return any(Path(a).name == name and (path.parent / unquote(a)).is_file() for a in addresses)


def has_table(page: BeautifulSoup, name: str) -> bool:
    holder = page.select_one(f'[data-table="{name}"]')
    return holder is not None and holder.find("td") is not None


def is_marked_smoke(page: BeautifulSoup) -> bool:
    return page.select_one('[data-notice="smoke"]') is not None


def button_links(page: BeautifulSoup) -> list[str]:
    """Addresses on other machines that the buttons above the article lead to."""
    links = [str(link.get("href")) for link in page.select(".article-header-buttons a[href]")]
    return [link for link in links if _OUTSIDE.match(link)]


def repeated_ids(page: BeautifulSoup) -> Iterator[str]:
    """Ids that several places have: a link leads to the first of them only."""
    ids = Counter(str(element["id"]) for element in page.select("article [id]"))
    for name, count in ids.items():
        if count > 1:
            yield f"{count} places have the id {name}"


def _words(value: object) -> list[str]:
    return [str(v).lower() for v in value] if isinstance(value, list) else str(value or "").lower().split()
