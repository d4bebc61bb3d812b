"""A comparison of runs as lines of text, and as a page: the same sections in the same order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from vitscope.runs import cards
from vitscope.runs.compare_around import seed_of
from vitscope.runs.compare_rule import EXACT, LEVEL, RANKED, exceeds, plain
from vitscope.runs.compare_runs import Comparison

RULE = (
    "A number is the same where it equals the reference of the same seed, or without one the mean m, up to "
    "the rounding of its printed text; counts must be equal. It lies within the seeds' spread where it is at "
    "most the allowance a = t · s · √(1 + 1/k) from m: s is the standard deviation of the k seeds and t the "
    f"two-sided {LEVEL:.0%} factor of Student's distribution with k − 1 degrees of freedom, so that m ± a is "
    "the prediction interval of one more seed. Where all seeds agree, or there is one reference only, a "
    "number may differ by rounding, and one that is no count by a thousandth, as machines round differently. "
    "Beyond that, it counts whether the intervals that the records carry for the number overlap; outside is "
    "what fails both, and a value on one side only is not detected on the other. Of the numbers of another "
    "seed, about 5 in 100 leave the prediction interval although all is well."
)
_WIDEST = 100  # characters of a cell on a terminal
_STYLE = """
:root{color-scheme:light dark;--text:#1b1f24;--back:#fff;--soft:#57606a;--line:#c8ced5;--mark:#b42318}
@media (prefers-color-scheme:dark){
:root{--text:#e6e9ed;--back:#14181d;--soft:#a2abb5;--line:#3d454e;--mark:#ff8a75}}
body{margin:0;background:var(--back);color:var(--text);font:1rem/1.5 system-ui,sans-serif}
main{max-width:75rem;margin:auto;padding:1rem;overflow-x:auto}
h1,p,td{overflow-wrap:break-word}
h1{font-size:1.4rem;line-height:1.25}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}
a{color:inherit}.soft{color:var(--soft);max-width:48rem}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;vertical-align:top;padding:.3rem .8rem .3rem 0;border-bottom:1px solid var(--line)}
tbody th{font-weight:600}tr.exceeds>:first-child{border-left:4px solid var(--mark);padding-left:.5rem}
tr.exceeds .verdict{color:var(--mark);font-weight:600}
@media (max-width:60rem){
.rows thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.rows tr{display:block;padding:.4rem 0;border-bottom:1px solid var(--line)}
.rows tr.exceeds{border-left:4px solid var(--mark);padding-left:.6rem}
.rows tr.exceeds>:first-child{border-left:0;padding-left:0}
.rows :is(td,tbody th){display:grid;grid-template-columns:6.5rem 1fr;gap:.5rem;border:0;padding:.1rem 0}
.rows :is(td,tbody th)::before{content:attr(data-label);color:var(--soft);font-weight:400}
.rows span{overflow-wrap:anywhere;min-width:0}.rows td:has(span:empty){display:none}}
""".strip()


@dataclass(frozen=True)
class Section:
    """A part of the report: its rows as text, which of them exceed, and what is said where there are none."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    empty: str
    marked: frozenset[int] = frozenset()


def report(comparison: Comparison, *, every: bool = False) -> str:
    """What was compared and what differs, as text; `every` adds what is within tolerance, and whole texts."""
    lines = [f"{name}: {text}" for name, text in _heading(comparison).items()]
    if warning := _warning(comparison):
        lines += ["", f"! {warning}"]
    for section in _sections(comparison, every):
        lines += ["", section.title if section.rows else section.empty]
        lines += _aligned(section.columns, section.rows, 10_000 if every else _WIDEST)
    return "\n".join([*map(_printable, lines), "", closing(comparison)])


def page(comparison: Comparison, *, every: bool = False) -> str:
    """The same as an HTML page of its own: no script, no address, every text of a record escaped."""
    record = comparison.record
    title = escape(f"{record.notebook} compared with the {comparison.against}")
    warning = _warning(comparison)
    parts = [
        f"<h1>{title}</h1>",
        cards.facts_table(_heading(comparison)),
        cards.notice("Another question.", warning, kind="other-question") if warning else "",
        f"<p><strong>{escape(closing(comparison))}</strong></p>",
        *map(_html, _sections(comparison, every)),
        f"<p>{cards.download('numbers', cards.csv(comparison.numbers))}</p>",
        f'<h2>How numbers are compared</h2><p class="soft">{escape(RULE)}</p>',
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body><main>\n"
        + "\n".join(filter(None, parts))
        + "\n</main></body></html>\n"
    )


def closing(comparison: Comparison) -> str:
    """One sentence with the count of each verdict.

    >>> from vitscope.runs.compare_runs import compare
    >>> from vitscope.runs.record import Number, Record
    >>> one = Record(complete=True, notebook="x", profile="course", parameters={"profile": "course"},
    ...              numbers={"n": Number(value=1, text="1"), "m": Number(value=0.5, text="0.5")})
    >>> closing(compare(one, one))
    'Of 2 numbers that both have: 2 same; only here: 0; only in the reference: 0. Nothing exceeds.'
    """
    counts = comparison.numbers["verdict"].value_counts()
    ranked = sorted(counts.index, key=lambda verdict: RANKED.index(verdict) if verdict in RANKED else 99)
    each = "; ".join(f"{counts[verdict]} {verdict}" for verdict in ranked) or "none"
    here = int((comparison.alone["where"] == "only here").sum())
    there = len(comparison.alone) - here
    exceeding = len(comparison.exceeding)
    last = f"{exceeding} exceed{'s' if exceeding == 1 else ''}." if exceeding else "Nothing exceeds."
    if exceeding and comparison.other_question:
        last = "They answer another question, so none counts as exceeding."
    return (
        f"Of {len(comparison.numbers)} numbers that both have: {each}; "
        f"only here: {here}; only in the {comparison.against}: {there}. {last}"
    )


def _heading(comparison: Comparison) -> dict[str, str]:
    """What was compared, mine first."""
    mine, theirs = comparison.record, comparison.references
    known = " · mine is one of them" if mine.key and mine.key in [one.key for one in theirs] else ""
    described = [
        ", ".join(dict.fromkeys(one.profile for one in theirs)),
        f"{len(theirs)} record{'s' if len(theirs) > 1 else ''}",
        "seed " + ", ".join(str(seed_of(one)) for one in theirs),
        "run " + ", ".join(one.run_id for one in theirs),
    ]
    return {
        "Mine": f"{mine.notebook} · {mine.profile} · seed {seed_of(mine)} · run {mine.run_id}",
        comparison.against.capitalize(): " · ".join(described) + known,
    }


def _warning(comparison: Comparison) -> str:
    if not (names := comparison.other_question):
        return ""
    return (
        f"The runs differ in {', '.join(names)}, so these numbers answer another question than those of the "
        f"{comparison.against}; what differs below is no disagreement."
    )


def _sections(comparison: Comparison, every: bool) -> Iterator[Section]:
    against = comparison.against
    three = ("name", against, "mine")
    yield Section(
        "Parameters that differ", three, _texts(comparison.parameters), "The parameters are the same."
    )
    yield Section(
        "Environment that differs", three, _texts(comparison.environment), "The environment is the same."
    )
    chosen = comparison.numbers if every else comparison.differing
    yield Section(
        "All numbers" if every else "Numbers that differ beyond tolerance",
        ("number", against, "mine", "difference", "allowance", "verdict", "why"),
        [_number(row) for row in chosen.to_dict("records")],
        "No number that both have differs beyond tolerance.",
        frozenset(i for i, verdict in enumerate(chosen["verdict"]) if exceeds(verdict)),
    )
    yield Section(
        "Numbers only in one of the two", ("number", "where", "text"), _texts(comparison.alone),
        "Both report the same numbers.",
    )  # fmt: skip
    yield Section(
        "Remarks only in one of the two", ("where", "records", "about", "text"), _texts(comparison.remarks),
        "Both make the same remarks.",
    )  # fmt: skip


def _number(row: dict[str, Any]) -> tuple[str, ...]:
    unit = f" {row['unit']}" if row["unit"] else ""
    book = "not detected" if math.isnan(row["book"]) else plain(row["book"]) + unit
    if row["low"] < row["high"]:
        book += f" ({plain(row['low'])} to {plain(row['high'])})"
    if row["missing"] and row["seeds"]:
        book += f", {row['missing']} not detected"
    mine = "not detected" if math.isnan(row["mine"]) else plain(row["mine"]) + unit
    difference = "" if math.isnan(row["difference"]) else f"{row['difference']:+.3g}"
    exact = row["allowance"] <= EXACT * abs(row["book"])
    allowance = "" if math.isnan(row["allowance"]) else "0" if exact else f"{row['allowance']:.2g}"
    return row["key"], book, mine, difference, allowance, row["verdict"], row["why"]


def _texts(table: pd.DataFrame) -> list[tuple[str, ...]]:
    return [tuple(map(str, row)) for row in table.itertuples(index=False)]


def _aligned(columns: Sequence[str], rows: Sequence[Sequence[str]], widest: int) -> list[str]:
    """Lines of a table with cells of at most `widest` characters; nothing without rows."""
    if not rows:
        return []
    texts = [[_printable(cell) for cell in row] for row in rows]
    lines = [list(columns), *([c if len(c) <= widest else f"{c[: widest - 2]} …" for c in t] for t in texts)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _printable(text: str) -> str:
    """One line without control characters: records come from elsewhere, and a terminal obeys them."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def _html(section: Section) -> str:
    if not section.rows:
        return f'<h2>{escape(section.title)}</h2><p class="soft">{escape(section.empty)}</p>'
    head = "".join(f'<th role="columnheader" scope="col">{escape(name)}</th>' for name in section.columns)
    body = "".join(
        f'<tr role="row"{" class=exceeds" if i in section.marked else ""}>{_cells(section.columns, row)}</tr>'
        for i, row in enumerate(section.rows)
    )
    # roles, because a table whose rows are blocks on narrow screens is none to a screen reader
    return (
        f'<h2>{escape(section.title)}</h2><table class="rows" role="table"><thead role="rowgroup">'
        f'<tr role="row">{head}</tr></thead><tbody role="rowgroup">{body}</tbody></table>'
    )


def _cells(columns: Sequence[str], row: Sequence[str]) -> str:
    cells = []
    for i, (name, text) in enumerate(zip(columns, row, strict=True)):
        tag, role = ('th scope="row"', "rowheader") if i == 0 else ("td", "cell")
        kind = ' class="verdict"' if name == "verdict" else ""
        cells.append(
            f'<{tag} role="{role}" data-label="{escape(name)}"{kind}><span>{escape(text)}</span></{tag[:2]}>'
        )
    return "".join(cells)
