"""A Sphinx extension: roles for the verdicts on claims, which are computed once a build and never typed.

- ``{claim}`A2` `` becomes a small badge, "A2 · contradicted", that leads to the claim's row in the scorecard.
  It stands beside the section that answers the claim, and carries the id that the scorecard links back to.
- ``{verdict}`A2` `` is the same badge without that id, for a summary or another page.
- ``{claim-count}`A contradicted` `` is how many claims of a paper have a verdict; without a paper, of all
  three; without a verdict, or with *all*, whatever it is.

Verdicts are those of the published records in the twin setting. Builders without links get the words alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from docutils import nodes
from sphinx.errors import ExtensionError
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

from vitscope.errors import UnknownName, unknown
from vitscope.runs import claims, verdicts
from vitscope.runs.claims import ClaimError
from vitscope.runs.scorecard_html import SETTING_WORDS, anchor, verdict_style
from vitscope.runs.verdicts import DECISIONS, PAPERS, Decision, Verdict

PAGE = "notebooks/09_scorecard"
SHOWN: claims.SettingName = "twin"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Badge:
    """What is shown of one claim: its verdict in the twin setting, and in words that in both."""

    id: str
    decision: Decision
    title: str

    @property
    def text(self) -> str:
        return f"{self.id} · {self.decision}"


class claim_badge(nodes.General, nodes.Inline, nodes.TextElement):
    """A badge in a document; its child is the text that builders without links show."""


class ClaimRole(SphinxRole):
    """Turns a claim's id into its badge; an id that is not in the ledger is a warning.

    Of an `anchored` badge's claim the first one on a page has the id that the scorecard links to.
    """

    def __init__(self, *, anchored: bool = True) -> None:
        self.anchored = anchored

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        known: dict[str, Badge] = self.env.claim_badges  # type: ignore[attr-defined]
        id = self.text.strip()
        if id not in known:
            _log.warning("%s", unknown("claim", id, known), location=self.get_location())
            return [nodes.Text(id)], []
        badge = known[id]
        node = claim_badge(self.rawtext, badge.text, decision=badge.decision, title=badge.title)
        node["claim"] = id
        seen, place = self.inliner.document.ids, anchor(id)
        # on the scorecard's own page the row has this id
        if self.anchored and self.env.docname != PAGE and place not in seen:
            node["ids"] = [place]
            seen[place] = node
        return [node], []


class CountRole(SphinxRole):
    """Turns a paper and a verdict, both optional, into a number; any other word is a warning."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        known: dict[str, Badge] = self.env.claim_badges  # type: ignore[attr-defined]
        try:
            number = count(known, self.text)
        except UnknownName as error:
            _log.warning("%s", error, location=self.get_location())
            return [nodes.Text(self.text)], []
        return [nodes.Text(str(number))], []


def count(known: Mapping[str, Badge], asked: str) -> int:
    """How many badges are of a paper and have a verdict, as "A contradicted", "A", "partly" or "all" ask.

    Raises UnknownName for another paper or verdict.

    >>> two = {"A1": Badge("A1", "partly", ""), "B2": Badge("B2", "not attempted", "")}
    >>> count(two, "all"), count(two, "A"), count(two, "not attempted"), count(two, "B partly")
    (2, 1, 1, 0)
    """
    first, _, rest = asked.strip().partition(" ")
    paper, verdict = (first, rest.strip()) if first in PAPERS else ("", asked.strip())
    if verdict not in ("", "all", *DECISIONS):
        raise unknown("verdict", verdict, DECISIONS)
    return sum(
        badge.id.startswith(paper) and verdict in ("", "all", badge.decision) for badge in known.values()
    )


def badges() -> dict[str, Badge]:
    """The badge of every claim, from the ledger and the published records. Errors: `ClaimError`."""
    ledger = claims.load()
    found = verdicts.verdicts(ledger, claims.published_records())
    decided = {(v.id, v.setting): v for v in found}
    return {
        claim.id: Badge(
            claim.id,
            decided[claim.id, SHOWN].verdict,
            "; ".join(_said(decided[claim.id, setting]) for setting in claim.settings),
        )
        for claim in ledger.claims
    }


def _said(verdict: Verdict) -> str:
    seeds = f" over {len(verdict.seeds)} seeds" if verdict.seeds else ""
    return f"{SETTING_WORDS[verdict.setting]}: {verdict.verdict}{seeds}"


def _compute(app: Any) -> None:
    try:
        app.env.claim_badges = badges()
    except ClaimError as error:
        raise ExtensionError(f"the verdicts beside the claims cannot be computed: {error}") from None


def _open(translator: Any, node: claim_badge) -> None:
    builder = translator.builder
    look = f"{verdict_style(node['decision'])};text-decoration:none;scroll-margin-top:9rem"
    attributes = {"CLASS": "vitscope-claim", "style": look, "title": node["title"]}
    if PAGE in builder.env.found_docs:
        address = builder.get_relative_uri(builder.current_docname, PAGE)
        attributes["href"] = f"{address}#{anchor(node['claim'])}"
    translator.body.append(translator.starttag(node, "a", "", **attributes))


def _close(translator: Any, node: claim_badge) -> None:
    translator.body.append("</a>")


def _nothing(translator: Any, node: claim_badge) -> None:
    """The text within is all that this builder shows."""


def setup(app: Any) -> dict[str, bool]:
    plain = (_nothing, _nothing)
    app.add_node(claim_badge, html=(_open, _close), latex=plain, text=plain, man=plain, texinfo=plain)
    app.add_role("claim", ClaimRole())
    app.add_role("verdict", ClaimRole(anchored=False))
    app.add_role("claim-count", CountRole())
    app.connect("builder-inited", _compute)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
