"""What a run shows besides its figures: cards, tables, notices. HTML without scripts or addresses.

Colours are the theme's own variables, with fallbacks for Jupyter, so that light and dark pages are readable.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape

import pandas as pd

from vitscope.runs.record import Record

_BORDER = "var(--pst-color-border, #9aa0a6)"
_CARD = f"font-size:.85em;margin:.3em 0 1em;padding:.2em .7em;border-left:3px solid {_BORDER}"
_NOTICE = f"margin:.6em 0;padding:.5em .8em;border:1px solid {_BORDER};border-left:4px solid #c4560b"
SMOKE_TEXT = "smoke run: not a result"
RUN_CARD = "about-this-run"
"""The HTML id of a page's run card, to which its figure cards lead."""
SCROLLS = "pst-scrollable-table-container"
"""The theme's class for a part that scrolls sideways: its script lets Tab reach what is cut off."""

MOST_ROWS = 20
"""A longer table scrolls in a box of its own, so that a page stays one that can be read through."""


def csv(data: pd.DataFrame) -> str:
    """A table as CSV: no index, shortest text that reads back to the same float, unix line ends."""
    return data.to_csv(index=False, lineterminator="\n")


def figure_card(name: str, facts: Mapping[str, str], data: str, alt: str) -> str:
    """A closed box under a figure: what it came from, its alt text, its data, and a link to the run's."""
    rows = facts_table({**facts, "In words": alt})
    more = f'<a href="#{RUN_CARD}">All parameters of this run</a>'
    return (
        f'<details class="vitscope-card" data-figure="{escape(name)}" style="{_CARD}">'
        f"<summary>About this figure</summary>{rows}<p>{download(name, data)} · {more}</p></details>"
    )


def run_card(facts: Mapping[str, str], parameters: Mapping[str, object], record: str) -> str:
    """A closed box at the end of a page: the run behind it and the record to take away."""
    table = facts_table(
        {**facts, **{f"<code>{escape(k)}</code>": repr(v) for k, v in parameters.items()}}, raw_keys=True
    )
    href = _data_uri("application/json", record)
    link = f'<a download="record.json" href="{href}">record.json</a>'
    return (
        f'<details class="vitscope-run" id="{RUN_CARD}" style="{_CARD};scroll-margin-top:6rem">'
        f"<summary>About this run</summary>"
        f"{table}<p>Download {link}</p></details>"
    )


def run_facts(record: Record, digest: str) -> dict[str, str]:
    """What every card says of the run behind it; `digest` is that of its parameters."""
    facts = {
        "Run": f"{record.notebook}, profile {record.profile}, {record.run_id}",
        "Parameters": digest[:12] + _changes(record.changed),
    }
    for model in record.models:
        facts[f"Model {model.name}"] = f"SHA-256 {model.digest[:12]}, {model.device}, {model.dtype}"
    for data in record.data:
        facts[f"Data {data.name}/{data.split}"] = f"SHA-256 {data.digest[:12]}, {data.count} images"
    facts["Versions"] = ", ".join(
        f"{name} {record.versions[name]}" for name in ("python", "torch", "timm") if name in record.versions
    )
    return facts


def _changes(changed: Mapping[str, object]) -> str:
    return (
        ", as in the profile"
        if not changed
        else "; changed: " + ", ".join(f"{k}={v!r}" for k, v in changed.items())
    )


def facts_table(facts: Mapping[str, str], *, raw_keys: bool = False) -> str:
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left">{key if raw_keys else escape(key)}</th>'
        f'<td style="text-align:left;overflow-wrap:anywhere">{escape(str(value))}</td></tr>'
        for key, value in facts.items()
    )
    return f'<table class="vitscope-facts"><tbody>{rows}</tbody></table>'


def table(name: str, data: pd.DataFrame, caption: str, *, precision: int = 3) -> str:
    """A table with caption and column headers, floats at `precision` digits, and its data to take away."""
    # na_rep does not reach None; a name of the columns would add an empty one
    filled = data.astype(object).where(data.notna(), "–").rename_axis(columns=None)
    with pd.option_context("display.max_colwidth", None):  # else long texts are cut
        numbers = filled.to_html(
            index=False, border=0, float_format=lambda v: f"{v:.{precision}f}",
            classes=["table", "vitscope-table"],
            justify="left", table_id=f"table-{name}",
        )  # fmt: skip
    words = f'<caption style="text-align:left;min-width:20em">{escape(caption)}</caption>'
    numbers = numbers.replace("<thead>", f"{words}<thead>", 1).replace("<th>", '<th scope="col">')
    numbers = numbers.replace("<table ", '<table style="margin-left:0;width:auto" ', 1)
    link = download(name, csv(data))
    look = f'class="{SCROLLS}" style="overflow-x:auto"'
    if len(data) > MOST_ROWS:
        look = f'class="{SCROLLS} vitscope-long" style="overflow:auto;max-height:36rem"'
    return (
        f'<div data-table="{escape(name)}"><div {look}>{numbers}</div>'
        f'<p style="font-size:.85em">{link}</p></div>'
    )


def notice(title: str, text: str, *, kind: str) -> str:
    """A box that must not be overlooked. `kind` is the hook that the book's gate looks for."""
    return (
        f'<div role="note" data-notice="{escape(kind)}" style="{_NOTICE}">'
        f"<strong>{escape(title)}</strong> {escape(text)}</div>"
    )


def download(name: str, data: str) -> str:
    rows = max(0, data.count("\n") - 1)
    href = _data_uri("text/csv;charset=utf-8", data)
    return f'<a download="{escape(name)}.csv" href="{href}">Data as CSV ({rows} rows)</a>'


def _data_uri(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"
