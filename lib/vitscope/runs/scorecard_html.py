"""The ledger with its verdicts as one table that can be filtered, in HTML that needs nothing beside it.

Without JavaScript, or before it runs, all rows show and no control does. Verdicts carry their own ground
colour, so that they read alike on a light and a dark page; everything else takes the page's colours. Where
there is little room, a claim becomes a card.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

import pandas as pd

from vitscope.runs import cards
from vitscope.runs.claims import Claim, Ledger, SettingName
from vitscope.runs.verdicts import DECISIONS, PAPERS, Decision, Judged, Verdict

COLOURS: Mapping[Decision, tuple[str, str]] = {
    "reproduced": ("#005a8c", "#ffffff"),
    "partly": ("#f0c75e", "#332600"),
    "contradicted": ("#a33b00", "#ffffff"),
    "inconclusive": ("#5f5f5f", "#ffffff"),
    "not attempted": ("#f2f2f2", "#333333"),
}
"""Ground and text of each verdict; they differ in lightness too, for eyes that see hues otherwise."""
SETTING_WORDS: Mapping[SettingName, str] = {"twin": "twin", "paper": "papers' scale"}
GRADES: Mapping[str, str] = {
    "P": "the paper itself",
    "R": "a published reading of it",
    "C": "official code",
    "BRIEF": "a summary only",
    "DERIVED": "from others",
}
"""How well we know that a paper says so, in the words of the ledger's head."""
LINES = 2  # of measured values in a cell; the rest is in the details

_STYLE = """
#scorecard { container-type: inline-size; font-size: .78rem; line-height: 1.4 }
#scorecard form { display: flex; flex-wrap: wrap; gap: .5em 1em; align-items: end; margin: 0 0 .6em }
#scorecard :is(form, tbody)[hidden] { display: none !important }
#scorecard label { display: grid; gap: .1em }
#scorecard :is(select, input, button, option) { font: inherit; color: #1a1a1a; background: #fff }
#scorecard :is(select, input, button) { border: 1px solid #6b6b6b; border-radius: 3px; padding: .2em .4em }
#scorecard .scroll { overflow-x: auto; max-width: 100% }
#scorecard table { border-collapse: collapse; width: 100%; margin: 0; font-size: inherit; display: table }
#scorecard caption { caption-side: top; text-align: left; color: inherit }
#scorecard :is(th, td) { text-align: left; vertical-align: top; padding: .35em .3em 0; color: inherit;
  border: 0; background: transparent; overflow-wrap: break-word }
#scorecard tr { background: transparent }
#scorecard tbody { border-top: 1px solid #8888; scroll-margin-top: 6rem }
#scorecard tbody:target { outline: 3px solid #b35c00; outline-offset: -3px }
#scorecard th a { color: inherit; text-decoration: underline }
#scorecard td[data-label="Statement"] { min-width: 12em }
#scorecard td[data-label="Ours"] { min-width: 9em }
#scorecard td span { white-space: normal !important; display: inline-block }
#scorecard td div { margin: 0 0 .2em .7em; text-indent: -.7em }
#scorecard td[colspan] { padding: 0 .3em .35em }
#scorecard details :is(ol, ul, li, p) { margin: .1em 0; color: inherit }
#scorecard details :is(ol, ul) { padding-left: 1.6em }
@container (max-width: 600px) {
  #scorecard thead { position: absolute; clip-path: inset(50%); height: 1px; overflow: hidden }
  #scorecard :is(table, tbody, caption, tr) { display: block }
  #scorecard tbody { padding: .4em 0; border-top-width: 2px }
  #scorecard :is(tbody th, td) { display: block; padding: .1em .3em }
  #scorecard td[data-label]::before { content: attr(data-label) ": "; font-weight: 600 }
}
"""

_SCRIPT = """
(() => {
  const root = document.getElementById("scorecard");
  const form = root.querySelector("form");
  const rows = [...root.querySelectorAll("tbody")];
  const filters = [...form.querySelectorAll("[data-filter]")];
  const fits = (row, filter) => filter.dataset.filter === "words"
    ? filter.value.toLowerCase().split(/\\s+/).every(w => row.textContent.toLowerCase().includes(w))
    : !filter.value || row.dataset[filter.dataset.filter] === filter.value;
  const apply = () => {
    for (const row of rows) row.hidden = !filters.every(filter => fits(row, filter));
    form.querySelector("output").value = `${rows.filter(row => !row.hidden).length} of ${rows.length}`;
  };
  const all = () => { for (const filter of filters) filter.value = ""; apply(); };
  form.addEventListener("input", apply);
  form.addEventListener("submit", event => event.preventDefault());
  form.querySelector("button").addEventListener("click", all);
  addEventListener("hashchange", all);
  form.hidden = false;
  apply();
})();
"""


def verdict_style(decision: Decision) -> str:
    """The CSS of a verdict, wherever one is shown."""
    ground, text = COLOURS[decision]
    return (
        f"background:{ground};color:{text};border:1px solid #8888;border-radius:.7em;"
        "padding:.05em .5em;white-space:nowrap;font-size:.85em"
    )


def anchor(id: str) -> str:
    """The HTML id of a claim's row, and of its badge in the chapter that answers it.

    >>> anchor("A2")
    'claim-a2'
    """
    return f"claim-{id.lower()}"


def scorecard(
    ledger: Ledger, found: Sequence[Verdict], data: pd.DataFrame, setting: SettingName, caption: str
) -> str:
    """The table, its filters and its script; one group of rows for each claim.

    `data` is what `vitscope.scorecard.rows` gives of the same ledger, verdicts and setting; it can be taken
    away as CSV. What was measured, and the filter by verdict, are of `setting`.
    """
    by_claim = {id: {v.setting: v for v in found if v.id == id} for id in data["id"]}
    body = "".join(
        _row(ledger.claim(row["id"]), row, by_claim[row["id"]], setting) for row in data.to_dict("records")
    )
    columns = ("Claim", "Paper", "Statement", "Published", "Ours", "Twin", "Papers' scale", "Grade")
    head = "".join(f'<th scope="col" role="columnheader">{escape(name)}</th>' for name in columns)
    return (
        f'<div id="scorecard" data-table="scorecard"><style>{_STYLE}</style>{_form(setting, len(data))}'
        '<div class="scroll" role="region" aria-label="Table of all claims" tabindex="0">'
        f'<table role="table"><caption>{escape(caption)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f"{body}</table></div>"
        f"<p>{cards.download('scorecard', cards.csv(data))}</p><script>{_SCRIPT}</script></div>"
    )


def _form(setting: SettingName, count: int) -> str:
    choices: dict[str, tuple[str, dict[str, str]]] = {
        "paper": ("Paper", {paper: paper for paper in PAPERS}),
        "verdict": (f"Verdict ({SETTING_WORDS[setting]})", {decision: decision for decision in DECISIONS}),
        "grade": ("Grade", {grade: f"{grade}: {words}" for grade, words in GRADES.items()}),
    }
    selects = "".join(
        f'<label>{escape(label)} <select data-filter="{name}"><option value="">all</option>'
        + "".join(f'<option value="{escape(v)}">{escape(text)}</option>' for v, text in options.items())
        + "</select></label>"
        for name, (label, options) in choices.items()
    )
    return (
        f'<form hidden role="search" aria-label="Filter the claims">{selects}'
        '<label>Words <input type="search" data-filter="words" autocomplete="off"></label>'
        '<button type="button">Show all</button>'
        f'<span role="status" aria-live="polite"><output>{count} of {count}</output> shown</span></form>'
    )


def _row(
    claim: Claim, row: Mapping[str, str], found: Mapping[SettingName, Verdict], setting: SettingName
) -> str:
    """A claim as a group of two rows, the second of which opens."""
    page = claim.section.partition("#")[0]
    cells = [
        ("Paper", escape(claim.paper)),
        ("Statement", escape(claim.statement)),
        ("Published", escape(row["published"])),
        ("Ours", _ours(found[setting])),
        ("Twin", _verdict(found["twin"].verdict)),
        ("Papers' scale", _verdict(found["paper"].verdict)),
        ("Grade", f'<abbr title="{escape(GRADES[claim.grade])}">{escape(claim.grade)}</abbr>'),
    ]
    link = f'<a href="{escape(page)}.html#{anchor(claim.id)}">{escape(claim.id)}</a>'
    return (
        f'<tbody role="rowgroup" id="{anchor(claim.id)}" data-paper="{escape(claim.paper)}" '
        f'data-verdict="{escape(found[setting].verdict)}" data-grade="{escape(claim.grade)}">'
        f'<tr role="row"><th scope="row" role="rowheader">{link}</th>'
        + "".join(f'<td role="cell" data-label="{escape(label)}">{text}</td>' for label, text in cells)
        + f'</tr><tr role="row"><td role="cell" colspan="{len(cells) + 1}">'
        f"{_details(claim, found.values())}</td></tr></tbody>"
    )


def _verdict(decision: Decision) -> str:
    return f'<span style="{verdict_style(decision)}">{escape(decision)}</span>'


def _ours(verdict: Verdict) -> str:
    """What the first clauses gave, one a line, and how many more there are."""
    if not verdict.seeds:
        return "–"
    lines = [judged.ours for judged in verdict.clauses[:LINES]]
    if len(verdict.clauses) > LINES:
        lines.append(f"and {len(verdict.clauses) - LINES} more")
    return "".join(f"<div>{escape(line)}</div>" for line in lines)


def _details(claim: Claim, found: Iterable[Verdict]) -> str:
    """What the ledger says of a claim, and every clause with what each seed gave."""
    told = f"<p>Conditions: {escape(claim.conditions)}. {escape(claim.note)}</p>"
    for verdict in found:
        setting = claim.settings[verdict.setting]
        title = f"{SETTING_WORDS[verdict.setting]} ({setting.notebook}, {setting.profile}): {verdict.verdict}"
        told += f"<p><strong>{escape(title)}</strong></p>"
        told += f"<ol>{''.join(map(_clause, verdict.clauses))}</ol>"
    return f"<details><summary>Clauses and seeds of {escape(claim.id)}</summary>{told}</details>"


def _clause(judged: Judged) -> str:
    said = [f"seed {r.seed}: {r.text}: {r.outcome}, {r.reason}" for r in judged.readings]
    outcome = f": {judged.outcome}, {judged.reason}; ours {judged.ours}" if said else ""
    seeds = f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in said)}</ul>" if said else ""
    return f"<li>{escape(judged.says + outcome)}{seeds}</li>"
