"""An explorer on a page: a closed box below its figure with words, a place for the chart, and its data.

Nothing in it is a program. `extra/explore/explore.js`, which the built book adds, reads the JSON when the box
is opened; without it (in Jupyter, in print, without JavaScript) the words and the figure above remain.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from vitscope.runs.cards import SMOKE_TEXT
from vitscope.runs.hashing import sha256_text

if TYPE_CHECKING:
    from bs4 import BeautifulSoup

    from vitscope.explore import Explorer

CLASS = "vitscope-explore"
_BOX = (
    "font-size:.9em;margin:.3em 0 1em;padding:.2em .7em;"
    "border-left:3px solid var(--pst-color-primary, #0072b2)"
)
_LESS = "\\u003c"
_WITHOUT = "Sliders appear here in the built book, where JavaScript is on. The figure above stays as it is."


def card(name: str, explorer: Explorer, run: str, *, smoke: bool = False) -> str:
    """The box of a figure's explorer; `run` says which run computed its numbers."""
    mark = f" [{SMOKE_TEXT}]" if smoke else ""
    text = explorer.spec.replace("<", _LESS)  # no text in it may end the script
    return (
        f'<details class="{CLASS}" data-figure="{escape(name)}" style="{_BOX}">'
        f"<summary>Explore: {escape(explorer.title)}{mark}</summary>"
        f'<p class="{CLASS}-words">{escape(explorer.words)}</p>'
        f'<div class="{CLASS}-view" id="explore-{escape(name)}"><p>{_WITHOUT}</p></div>'
        f'<p class="{CLASS}-run" style="font-size:.85em">Computed in the run {escape(run)}; its data and '
        "record: see <em>About this figure</em> and <em>About this run</em>.</p>"
        f'<script type="application/json">{text}</script></details>'
    )


def problem(page: BeautifulSoup, name: str, words: str, digest: str) -> str | None:
    """Why a recorded explorer is not properly on the page, or None."""
    from vitscope.explore import spec_problem

    box = page.select_one(f'details.{CLASS}[data-figure="{name}"]')
    if box is None:
        return f"the explorer of figure {name} is missing"
    said, script = box.select_one(f".{CLASS}-words"), box.find("script", type="application/json")
    if said is None or " ".join(said.get_text().split()) != " ".join(words.split()):
        return f"the explorer of figure {name} does not say in its own words what it shows"
    if script is None or box.select_one(f".{CLASS}-view") is None:
        return f"the explorer of figure {name} has no chart, or no place for it"
    text = script.get_text().replace(_LESS, "<")
    if sha256_text(text) != digest:
        return f"the chart of the explorer of figure {name} is not the one that its run made"
    found = spec_problem(text)
    return None if found is None else f"the explorer of figure {name} {found}"
