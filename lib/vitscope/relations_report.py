"""How corrections are spread over depth, how states differ, and what goes with recovery over datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from vitscope import plotting
from vitscope.estimates import Estimate
from vitscope.heatmap import heatmap
from vitscope.recovery import Recovery
from vitscope.recovery_report import Found, Where, at
from vitscope.relations import Relation, relations
from vitscope.reported import Reported

SPREAD = {
    "correction_entropy": "correction entropy",
    "correction_entropy_samples": "correction entropy, by picture",
    "geometric_disagreement": "geometric disagreement",
    "geometric_disagreement_pairs": "geometric disagreement, all pairs",
    "feature_disagreement": "feature disagreement",
}
DIVERSITY = {
    "disagreement": "pairwise disagreement (%)",
    "double_fault": "double fault (%)",
    "q_statistic": "Q statistic",
}
NAMES = SPREAD | DIVERSITY
TOO_FEW = "An order needs two datasets on which the last state makes errors and earlier ones correct some."
CLAIMED = {"entropy_relation": "correction_entropy", "disagreement_relation": "geometric_disagreement"}
"""Keys of the claims of paper B's summary, and the measures that they are about."""


def measures(found: Found) -> pd.DataFrame:
    """Per backbone and dataset all measures of `NAMES`, the recovery rate and the last state's accuracy.

    Of the MLP probes. Diversity is the mean over pairs of different states; NaN: not defined.
    """
    rows = []
    for (backbone, dataset), r in found.items():
        row: dict[str, Any] = {"backbone": backbone, "dataset": dataset}
        row["recovery_rate"] = _value(r.mlp.recovery_rate)
        row["accuracy"] = float(r.mlp.accuracy.mean[-1])
        row |= {name: _value(getattr(r.mlp, name)) for name in SPREAD}
        row |= {name: _pairs(getattr(r.mlp, name)) for name in DIVERSITY}
        rows.append(row)
    return pd.DataFrame(rows)


def shown(table: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    """Columns of `measures` under the names that a reader sees, recovery rate and accuracy first."""
    first = {"backbone": "backbone", "dataset": "dataset", "recovery_rate": "recovery (%)"}
    wanted = first | {"accuracy": "last state (%)"} | names
    return table[list(wanted)].rename(columns=wanted)


def diversity_figure(recovery: Recovery, where: Where) -> plotting.Figure:
    """Share of pictures on which just one of two states is right, for all pairs of states."""
    values = recovery.mlp.disagreement
    table = pd.DataFrame(
        [
            {"state": i + 1, "other state": j + 1, "disagreement (%)": float(values[i, j])}
            for i in range(len(values))
            for j in range(len(values))
        ]
    )
    off = values[~np.eye(len(values), dtype=bool)]
    return heatmap(
        table,
        x="state",
        y="other state",
        value="disagreement (%)",
        title=f"Just one of two states is right:\n{at(where)}",
        name="disagreement",
        alt=f"Pairwise disagreement of {len(values)} states, {at(where)}: two different states disagree on "
        f"{off.min():.0f} to {off.max():.0f} % of the pictures, on average {off.mean():.0f} %.",
    )


def find(table: pd.DataFrame, seed: int = 0, draws: int = 1000) -> dict[str, Relation]:
    """Relations of recovery with every measure; the bootstrap draws datasets, with all backbones."""
    return relations(table, list(NAMES), clusters="dataset", draws=draws, seed=seed)


def relation_table(related: dict[str, Relation]) -> pd.DataFrame:
    """Spearman's correlation with the recovery rate, and at equal accuracy, per measure."""
    rows = []
    for name, relation in related.items():
        plain, partial = relation.spearman, relation.partial
        rows.append(
            {
                "measure": NAMES[name], "rows": relation.rows, "Spearman": plain.value, "low": plain.low,
                "high": plain.high, "at equal accuracy": partial.value, "partial low": partial.low,
                "partial high": partial.high, "remark": plain.reason or partial.reason,
            }
        )  # fmt: skip
    table = pd.DataFrame(rows)
    return table if table["remark"].any() else table.drop(columns="remark")


def numbers(related: dict[str, Relation]) -> dict[str, Reported]:
    """The correlations that claims rest on, by the keys of `CLAIMED`, each also with `_partial`."""
    result = {}
    for key, measure in CLAIMED.items():
        relation = related[measure]
        result[key] = _correlation(relation.spearman, relation.rows)
        result[f"{key}_partial"] = _correlation(relation.partial, relation.rows)
    return result


def order_figure(table: pd.DataFrame, measure: str) -> plotting.Figure | None:
    """Recovery rates, datasets in order of a rising measure (its mean over backbones); None for one dataset.

    A relation shows as points that rise or fall from left to right; as in a rank correlation, distances on
    the horizontal axis mean nothing.
    """
    there = table.dropna(subset=["recovery_rate", measure])
    means = there.groupby("dataset")[measure].mean().sort_values()
    if len(means) < 2:
        return None
    rates = there.groupby("dataset")["recovery_rate"].mean()
    said = ", ".join(f"{d} {measured:.2f} with {rates[d]:.0f} %" for d, measured in means.items())
    return plotting.category_points(
        there.assign(dataset=pd.Categorical(there["dataset"], means.index)),
        x="dataset",
        y="recovery_rate",
        hue="backbone",
        title=f"By rising {NAMES[measure]}",
        xlabel=f"dataset, {NAMES[measure]} rising to the right",
        ylabel="recovery rate (%)",
        name=f"recovery_by_{measure}",
        alt=f"Recovery rate by dataset in order of {NAMES[measure]} (means over backbones): {said}.",
    )


def _value(found: Estimate | None) -> float:
    return np.nan if found is None or found.value is None else found.value


def _pairs(values: np.ndarray) -> float:
    """Mean over pairs of different states of what is defined."""
    upper = values[np.triu_indices(len(values), 1)]
    return float(np.nanmean(upper)) if np.isfinite(upper).any() else np.nan


def _correlation(found: Estimate, rows: int) -> Reported:
    if found.value is None:
        return {"value": None, "text": found.reason}
    text = f"{found.value:+.2f}"
    if found.low is None or found.high is None:
        return {"value": found.value, "n": rows, "text": text}
    spread = (found.low, found.high)
    return {
        "value": found.value,
        "spread": spread,
        "n": rows,
        "text": f"{text} ({spread[0]:+.2f} to {spread[1]:+.2f})",
    }
