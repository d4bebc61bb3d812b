"""Neural collapse and CKA in figures and sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from vitscope import plotting
from vitscope.geometry import last_collapse
from vitscope.heatmap import heatmap
from vitscope.layerwise import KINDS
from vitscope.reported import Reported


def collapse_figure(tables: Mapping[str, pd.DataFrame], kind: str = "patch_mean") -> plotting.Figure:
    """NC1 over the states, a curve per backbone, of one token kind."""
    parts = [t[t["token"] == KINDS[kind]].assign(backbone=name) for name, t in tables.items()]
    table = pd.concat(parts, ignore_index=True)
    ends = "; ".join(
        f"{name} {part['NC1'].iloc[0]:.2f} → {part['NC1'].iloc[-1]:.2f}"
        for name, part in table.groupby("backbone", sort=False)
    )
    return plotting.layer_curves(
        table[["backbone", "state", "NC1"]],
        y="NC1",
        hue="backbone",
        order=list(tables),
        title=f"NC1 of the {KINDS[kind]}: spread within classes over spread between them",
        ylabel="NC1",
        name="nc1",
        explore=True,
        alt=f"NC1 of the {KINDS[kind]} by state, first to last: {ends}.",
    )


def cka_figure(table: pd.DataFrame, title: str, name: str) -> plotting.Figure:
    """CKA of all pairs of states; readers explore it a state at a time."""
    from vitscope.explore_levels import curve_at  # brings altair

    figure = heatmap(
        table, x="state", y="other state", value="CKA", limits=(0.0, 1.0), title=title, name=name
    )
    explorer = curve_at(
        table, x="other state", y="CKA", slider="state", title=f"{title}, one state at a time"
    )
    return replace(figure, explorer=explorer)


def numbers(tables: Mapping[str, pd.DataFrame]) -> dict[str, dict[str, Reported]]:
    """`nc1_last` and `nc2_last` (angles) of every backbone at its last state; None where not defined."""
    found: dict[str, dict[str, Reported]] = {"nc1_last": {}, "nc2_last": {}}
    for row in last_collapse(tables).to_dict("records"):
        for key, measure in (("nc1_last", "NC1"), ("nc2_last", "NC2 angles")):
            value = float(row[measure])
            found[key][row["backbone"]] = (
                {"value": value, "text": f"{value:.3f}"}
                if np.isfinite(value)
                else {"value": None, "text": "not defined, because a class mean lies at the mean of all"}
            )
    return found


def caveat(tables: Mapping[str, pd.DataFrame], classes: int) -> str:
    """Which backbones are too narrow for a simplex of so many classes, as a sentence."""
    narrow = [name for name, table in tables.items() if not table["simplex_possible"].all()]
    if not narrow:
        return f"All backbones here are wide enough for {classes} classes at equal angles."
    return (
        f"{', '.join(narrow)} cannot hold {classes} class means at equal angles (that takes a width of "
        f"{classes - 1}): part of their distance from the simplex is width, not training."
    )
