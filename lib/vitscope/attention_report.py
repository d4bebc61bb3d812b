"""Attention read as a graph, layer by layer: what is taken of each map, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from vitscope import plotting
from vitscope.attention_maps import MapStatistic
from vitscope.backbones import Backbone
from vitscope.capture import Capture
from vitscope.heatmap import heatmap
from vitscope.intervals import bootstrap_mean
from vitscope.metrics.attention_graph import attention_consensus, cls_centrality, head_consensus
from vitscope.reported import Reported

UPPER = 3  # the upper part of a network is its last third
STATISTICS = {
    "entropy": ("Entropy of attention", "nats"),
    "distance": ("Distance of attention between patches", "patches"),
    "consensus": ("Attention consensus of patches (ours)", "mean cosine of attention rows"),
    "head_consensus": ("Agreement of heads (ours)", "1 − JSD / ln H"),
    "cls_centrality": ("CLS centrality (ours)", "PageRank mass × tokens"),
    "cls_incoming": ("Attention that CLS receives", "share"),
}


def map_statistics(backbone: Backbone) -> dict[str, MapStatistic]:
    """What `capture(attention=…)` shall take of each map beyond the usual statistics.

    Heads can agree where every block has two or more, and only a CLS token can be central.
    """
    prefix = backbone.num_prefix_tokens
    found: dict[str, MapStatistic] = {"consensus": partial(attention_consensus, prefix=prefix)}
    if all(block.attn.num_heads > 1 for block in backbone.model.blocks):
        found["head_consensus"] = partial(head_consensus, prefix=prefix)
    if backbone.has_cls:
        found["cls_centrality"] = partial(cls_centrality, prefix=prefix, tolerance=1e-4)
    return found


def statistic_table(
    captures: Mapping[str, Capture], statistic: str, clusters: np.ndarray | None
) -> pd.DataFrame:
    """One statistic per backbone and block, mean over heads, with its interval over pictures.

    Backbones that lack it (no CLS) are left out. Columns: backbone, block, mean, low, high.
    """
    parts = []
    for name, captured in captures.items():
        if statistic not in captured.attention:
            continue
        values = captured.attention[statistic].numpy()
        interval = bootstrap_mean(values.mean(2) if values.ndim == 3 else values, clusters=clusters)
        parts.append(pd.DataFrame(interval._asdict()).assign(backbone=name, block=range(1, len(values) + 1)))
    columns = ["backbone", "block", "mean", "low", "high"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def statistic_figure(table: pd.DataFrame, statistic: str) -> plotting.Figure:
    """One statistic over the blocks, a curve per backbone."""
    title, unit = STATISTICS[statistic]
    return plotting.layer_curves(
        table,
        x="block",
        y="mean",
        hue="backbone",
        order=list(dict.fromkeys(table["backbone"])),
        band=("low", "high"),
        title=title,
        ylabel=unit,
        reference=(1.0, "1: as much as any token") if statistic == "cls_centrality" else None,
        name=f"attention_{statistic}",
        explore=True,
    )


def head_figure(captured: Capture, statistic: str) -> plotting.Figure:
    """One statistic of one backbone, head by head."""
    values = captured.attention[statistic].mean(1)
    rows = [
        {"block": block, "head": head, statistic: float(value)}
        for block, heads in enumerate(values, start=1)
        for head, value in enumerate(heads, start=1)
    ]
    title, unit = STATISTICS[statistic]
    return heatmap(
        pd.DataFrame(rows),
        x="block",
        y="head",
        value=statistic,
        title=f"{title} in {captured.backbone}, head by head ({unit})",
        name=f"heads_{statistic}",
    )


def centrality(captures: Mapping[str, Capture], clusters: np.ndarray | None) -> dict[str, Reported]:
    """CLS centrality of each backbone, mean over the last third of its blocks."""
    found: dict[str, Reported] = {}
    for name, captured in captures.items():
        if "cls_centrality" not in captured.attention:
            found[name] = {"value": None, "text": f"nothing ({name} has no CLS token)"}
            continue
        values = captured.attention["cls_centrality"].numpy()
        upper = values[-max(1, len(values) // UPPER) :].mean(0)
        value, low, high = map(float, bootstrap_mean(upper, clusters=clusters))
        found[name] = {
            "value": value,
            "spread": (low, high),
            "n": len(upper),
            "text": f"{value:.2f} ({low:.2f} to {high:.2f})",
        }
    return found


def against_accuracy(
    central: Mapping[str, Reported], accuracy: Mapping[str, float]
) -> tuple[pd.DataFrame, Reported]:
    """CLS centrality beside accuracy, model by model, and their rank correlation with an interval.

    The interval is the range over leaving out each model in turn (jackknife): models are few and related,
    and no standard error is honest here. Fewer than 4 models give no correlation, and neither do models
    that are all alike in one of the two.
    """
    rows = [
        {"model": name, "CLS centrality": central[name]["value"], "accuracy": accuracy[name]}
        for name in central
        if name in accuracy and central[name]["value"] is not None
    ]
    table = pd.DataFrame(rows, columns=["model", "CLS centrality", "accuracy"])
    if len(table) < 4:
        text = f"nothing ({len(table)} models with a CLS token and a known accuracy are too few)"
        return table, {"value": None, "text": text}
    rho = _spearman(table)
    if rho is None:
        text = "nothing (all models are alike in one of the two: there are no ranks to compare)"
        return table, {"value": None, "text": text}
    left_out = [_spearman(table.drop(index=i)) for i in table.index]
    others = [value for value in left_out if value is not None] or [rho]
    low, high = min(rho, *others), max(rho, *others)
    return table, {
        "value": rho,
        "spread": (low, high),
        "n": len(table),
        "text": f"{rho:+.2f} ({low:+.2f} to {high:+.2f} with one model left out)",
    }


def _spearman(table: pd.DataFrame) -> float | None:
    x, y = table["CLS centrality"], table["accuracy"]
    return float(spearmanr(x, y).statistic) if x.nunique() > 1 and y.nunique() > 1 else None
