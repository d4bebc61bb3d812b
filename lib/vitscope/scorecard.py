"""The ledger as a page: its verdicts counted, drawn, and taken apart where they contradict a paper.

Everything here reads what `runs.verdicts` decided and decides nothing itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Canvas

from vitscope.plotting import Figure, style
from vitscope.runs import verdicts
from vitscope.runs.claims import Ledger, SettingName
from vitscope.runs.scorecard_html import COLOURS, GRADES, SETTING_WORDS
from vitscope.runs.verdicts import DECISIONS, PAPERS, Verdict

NO_FINDINGS = ("B1", "B17", "C1", "C11", "C12")
"""Claims that count data or state a condition: where they hold, the experiment is of the same kind."""
NONE_CONTRADICTED = "No claim is contradicted in this setting."


def rows(ledger: Ledger, found: Sequence[Verdict], setting: SettingName) -> pd.DataFrame:
    """One row for each claim, in the ledger's order; `ours` and `seeds` are of `setting`.

    Columns: id, paper, statement, published, ours, twin, paper_scale, grade, seeds, section. `ours` goes
    clause by clause.
    """
    decided = {(v.id, v.setting): v.verdict for v in found}
    table = verdicts.table(ledger, [v for v in found if v.setting == setting]).set_index("id")
    return pd.DataFrame(
        {
            "id": claim.id,
            "paper": claim.paper,
            "statement": claim.statement,
            "published": table.at[claim.id, "published"],
            "ours": table.at[claim.id, "ours"],
            "twin": decided[claim.id, "twin"],
            "paper_scale": decided[claim.id, "paper"],
            "grade": claim.grade,
            "seeds": table.at[claim.id, "seeds"],
            "section": claim.section,
        }
        for claim in ledger.claims
    )


def first_screen(ledger: Ledger, found: Sequence[Verdict], setting: SettingName) -> dict[str, dict[str, Any]]:
    """Numbers for the prose, as keywords of `run.report`: how many claims have which verdict, and which."""
    ids = {d: [v.id for v in found if v.setting == setting and v.verdict == d] for d in DECISIONS}
    trivial = [id for id in ids["reproduced"] if id in NO_FINDINGS]
    tried = [v.id for v in found if v.setting == "paper" and v.seeds]
    named = {
        **{decision.replace(" ", "_"): chosen for decision, chosen in ids.items()},
        "reproduced_conditions": trivial,
        "attempted_paper": tried,
    }
    total = len(ledger.claims)
    seeds = [len(v.seeds) for v in found if v.setting == setting and v.seeds]
    return {
        "claims": {"value": total},
        "setting": {"value": None, "text": SETTING_WORDS[setting]},
        "fewest_seeds": {"value": min(seeds, default=0)},
        **{key: {"value": len(chosen), "n": total, "text": _named(chosen)} for key, chosen in named.items()},
    }


def _named(ids: Sequence[str]) -> str:
    return f"{len(ids)} ({', '.join(ids)})" if ids else "0"


def counts(ledger: Ledger, found: Sequence[Verdict], setting: SettingName) -> pd.DataFrame:
    """How many claims of each paper have each verdict: columns paper, verdict, claims."""
    tally = Counter((ledger.claim(v.id).paper, v.verdict) for v in found if v.setting == setting)
    return pd.DataFrame(
        {"paper": paper, "verdict": decision, "claims": tally[paper, decision]}
        for paper in PAPERS
        for decision in DECISIONS
    )


def verdict_figure(table: pd.DataFrame, setting: SettingName) -> Figure:
    """The verdicts of each paper as parts of one bar, of what `counts` gives."""
    wide = table.pivot(index="paper", columns="verdict", values="claims").reindex(columns=DECISIONS)
    with style():
        fig = Canvas(figsize=(7.0, 2.6), layout="constrained")
        ax = fig.subplots()
        start = pd.Series(0, index=wide.index)
        for decision in DECISIONS:
            ground, text = COLOURS[decision]
            look: dict[str, Any] = {"color": ground, "edgecolor": "#555555", "lw": 0.6, "label": decision}
            bars = ax.barh([f"paper {p}" for p in wide.index], wide[decision], left=start, **look)
            labels = [str(n) if n else "" for n in wide[decision]]
            ax.bar_label(bars, labels, label_type="center", color=text, fontsize=8)
            start = start + wide[decision]
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        ax.set(title=f"Verdicts, setting {SETTING_WORDS[setting]}", xlabel="claims")
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    said = "; ".join(
        f"paper {paper}: " + ", ".join(f"{wide.at[paper, d]} {d}" for d in DECISIONS if wide.at[paper, d])
        for paper in wide.index
    )
    alt = f"Stacked bars of the verdicts on {table['claims'].sum()} claims: {said}."
    return Figure(fig, table, alt, "verdicts_by_paper")


def contradicted(ledger: Ledger, found: Sequence[Verdict], setting: SettingName) -> pd.DataFrame:
    """The claims that a setting contradicts, what failed, and the ledger's note; without rows if none."""
    made = [
        {
            "claim": v.id,
            "statement": ledger.claim(v.id).statement,
            "published": verdicts.table(ledger, [v]).at[0, "published"],
            "what failed": "; ".join(f"{j.says}: {j.ours}" for j in v.clauses if j.outcome == "fails"),
            "to bear in mind": ledger.claim(v.id).note,
        }
        for v in found
        if v.setting == setting and v.verdict == "contradicted"
    ]
    return pd.DataFrame(made, columns=["claim", "statement", "published", "what failed", "to bear in mind"])


def grades(ledger: Ledger, found: Sequence[Verdict], setting: SettingName) -> pd.DataFrame:
    """Claims and verdicts by how well we know that the paper says so; grades and verdicts that occur."""
    tally: Counter[tuple[str, str]] = Counter(
        (ledger.claim(v.id).grade, v.verdict) for v in found if v.setting == setting
    )
    there = [decision for decision in DECISIONS if any(tally[grade, decision] for grade in GRADES)]
    table = []
    for grade, words in GRADES.items():
        row: dict[str, int] = {decision: tally[grade, decision] for decision in there}
        if any(row.values()):
            table.append({"grade": f"{grade}: {words}", "claims": sum(row.values()), **row})
    return pd.DataFrame(table)
