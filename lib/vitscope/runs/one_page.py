"""All pages on one: Sphinx's builder `singlehtml`, and ids that still mean one thing.

Sphinx puts the documents one after the other and leaves their ids as they are: "#what-the-paper-says" is then
the place of the first of many. Here links keep the document they mean until the page is written (that is the
extension), and `separate` gives every place an id of its own.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator
from itertools import chain, count
from typing import Any

from bs4 import BeautifulSoup, Tag
from docutils import nodes
from sphinx import addnodes
from sphinx.builders.singlehtml import SingleFileHTMLBuilder

BEGIN = "document-"  # Sphinx's id of the place where a document begins
_SEARCH = (
    "script[src*='searchindex.js'], link[rel=search], link[rel=index], .search-button, .search-button-field, "
    "#pst-search-dialog"
)
_POINTING = ("for", "aria-labelledby", "aria-describedby", "aria-controls", "headers")


class OnePage(SingleFileHTMLBuilder):
    """`singlehtml` as `index.html`, whose links across documents stay `#document-PAGE#id`."""

    def get_outfilename(self, pagename: str) -> str:
        """At the top, from where Sphinx counts addresses, whatever folder the root is in."""
        return super().get_outfilename("index" if pagename == self.config.root_doc else pagename)

    def assemble_doctree(self) -> nodes.document:
        """Chapters beside the text of the root, within which their titles would be second to its own."""
        tree = super().assemble_doctree()
        for chapter in list(tree.findall(addnodes.start_of_file)):
            chapter.parent.remove(chapter)
            tree.append(chapter)
        return tree

    def fix_refuris(self, tree: Any) -> None:
        """Sphinx would drop the document here."""


def _share_visitors(app: Any) -> None:
    """One extension that names `singlehtml` among its builders hides what all others registered for HTML."""
    handlers = app.registry.translation_handlers
    handlers[OnePage.name] = {**handlers.get("html", {}), **handlers.get(OnePage.name, {})}


def setup(app: Any) -> dict[str, bool]:
    app.add_builder(OnePage, override=True)
    app.connect("builder-inited", _share_visitors)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def separate(page: BeautifulSoup, root: str, pages: Collection[str]) -> None:
    """Make ids unique and let every link lead to the place it means; `root` is the first of the `pages`.

    The first of several equal ids keeps its name. The theme's search goes, since this builder makes no index;
    the browser's own finds everything on one page. Raises ValueError for a page without an article.
    """
    article = page.find("article")
    if not isinstance(article, Tag):
        raise ValueError("the page has no <article>; was it built with this book's theme?")
    for element in page.select(_SEARCH):
        element.decompose()
    article.insert(0, page.new_tag("span", id=f"{BEGIN}{root}"))
    names = _name(page, article, root)
    first: dict[str, str] = {}
    for (_, old), new in names.items():
        first.setdefault(old, new)

    def place(document: str, name: str) -> str:
        """The id that `name` of a document has now; citations and the like lie in a document of their own."""
        return names.get((document, name)) or names.get((root, name)) or first.get(name, name)

    def address(document: str, link: str) -> str:
        path, _, name = link.partition("#")
        if link.startswith(f"#{BEGIN}"):
            document, _, name = link.removeprefix(f"#{BEGIN}").partition("#")
        elif path:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(document), path))
            document = target.removesuffix(".html")
            if target == document or document not in pages:
                return link
        elif not name:
            return link
        return f"#{place(document, name) if name else BEGIN + document}"

    for document, element in [*_walk(article, root), *((root, one) for one in _outside(page, article))]:
        if element.name == "a" and element.get("href"):
            element["href"] = address(document, str(element["href"]))
        for attribute in _POINTING:
            if element.get(attribute):
                given = element[attribute]
                words = given if isinstance(given, list) else str(given).split()
                element[attribute] = " ".join(place(document, word) for word in words)


def _name(page: BeautifulSoup, article: Tag, root: str) -> dict[tuple[str, str], str]:
    """Give every place of the article an id of its own; (document, id it had) -> id it has."""
    taken = {str(element["id"]) for element in _outside(page, article) if element.get("id")}
    names: dict[tuple[str, str], str] = {}
    for document, element in _walk(article, root):
        old = str(element.get("id") or "")
        if not old or old.startswith(BEGIN):
            continue
        longer = f"{posixpath.basename(document)}--{old}"
        choices = chain([old, longer], (f"{longer}-{number}" for number in count(2)))
        new = next(choice for choice in choices if choice not in taken)
        taken.add(new)
        element["id"] = new
        names.setdefault((document, old), new)
    return names


def _walk(article: Tag, root: str) -> Iterator[tuple[str, Tag]]:
    """The elements of the article in their order, each with the document it is of."""
    document = root
    for element in article.find_all(True):
        name = str(element.get("id") or "")
        if name.startswith(BEGIN):
            document = name.removeprefix(BEGIN)
        yield document, element


def _outside(page: BeautifulSoup, article: Tag) -> list[Tag]:
    inside = {id(element) for element in article.find_all(True)}
    return [element for element in page.find_all(True) if id(element) not in inside]
