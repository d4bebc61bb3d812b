"""Information against task over depth, and what that advises: tables, figures and sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from vitscope import plotting
from vitscope.advice import Advice, advise
from vitscope.backbones import Backbone
from vitscope.cost import layer_costs
from vitscope.layerwise import KINDS, LayerProbes
from vitscope.metrics.scrambling import Scrambling
from vitscope.reported import Reported
from vitscope.tradeoff import TradeOff, trade_off


def find(
    scrambled: Mapping[str, Scrambling],
    probes: Mapping[str, LayerProbes],
    clusters: np.ndarray | None,
    *,
    kind: str = "patch_mean",
) -> dict[str, TradeOff]:
    """Onset per backbone: information from own tokens against the probe of one token kind.

    The bootstrap draws test pictures (or clusters of them) of the probe; information is held fixed.
    """
    found = {}
    for name, fitted in probes.items():
        rows = (fitted.table["kind"] == KINDS[kind]).to_numpy()
        correct = 100.0 * fitted.correct[rows]
        if clusters is not None:
            correct = np.stack([correct[:, clusters == c].mean(1) for c in np.unique(clusters)], axis=1)
        states = fitted.table["state"][rows].tolist()
        information = [
            r2
            for r2, state in zip(scrambled[name].r2_self, scrambled[name].states, strict=True)
            if state in states
        ]
        found[name] = trade_off(information, correct, states, floor=fitted.majority)
    return found


def trade_off_figure(found: TradeOff, backbone: str) -> plotting.Figure:
    """Both curves of one backbone as shares of their range."""
    table = pd.DataFrame(
        {
            "state": [*found.states, *found.states],
            "share": [*found.information, *found.task],
            "curve": ["information in the own token"] * len(found.states)
            + ["accuracy of the probe"] * len(found.states),
        }
    )
    return plotting.layer_curves(
        table,
        y="share",
        hue="curve",
        title=f"What {backbone} keeps of its patches, and what it has for the task",
        ylabel="share of its range",
        name=f"tradeoff_{file_name(backbone)}",
        explore=True,
        alt=f"Two curves of {backbone} over {len(found.states)} states: information falls to "
        f"{found.information[-1]:.2f} of its first value, accuracy reaches {found.task[-1]:.2f} of its best. "
        f"{found.summary()}",
    )


def file_name(backbone: str) -> str:
    """A backbone's name as part of a file's name."""
    return re.sub(r"[^a-z0-9_-]", "-", backbone.lower())


def trade_off_table(found: Mapping[str, TradeOff], models: Sequence[Backbone]) -> pd.DataFrame:
    """Onset of every backbone, in states and as a share of its depth, or the reason why there is none."""
    depth = {m.name: m.depth for m in models}
    rows = []
    for name, each in found.items():
        low, high = each.interval or (np.nan, np.nan)
        rows.append(
            {
                "backbone": name,
                "blocks": depth[name],
                "onset": np.nan if each.onset is None else each.onset,
                "low": low,
                "high": high,
                "share of depth": np.nan if each.onset is None else each.onset / depth[name],
                "said": each.summary(),
            }
        )
    return pd.DataFrame(rows)


def onsets(found: Mapping[str, TradeOff]) -> dict[str, Reported]:
    """`onset` of every backbone."""
    return {
        name: {"value": None, "text": each.reason}
        if each.onset is None
        else {
            "value": each.onset,
            "spread": each.interval,
            "text": f"{each.onset:.1f}"
            + (f" ({each.interval[0]:.1f} to {each.interval[1]:.1f})" if each.interval else ""),
        }
        for name, each in found.items()
    }


def onset_text(found: Mapping[str, TradeOff]) -> Reported:
    """All onsets in a sentence's end; the value is the last one less the first, None where one is missing."""
    if not found:
        return {"value": None, "text": "nothing (no such backbones were asked for)"}
    clauses = [
        f"state {each.onset:.1f} in {name}" if each.onset is not None else f"none in {name}"
        for name, each in found.items()
    ]
    onsets = [each.onset for each in found.values()]
    first, last = onsets[0], onsets[-1]
    if len(onsets) < 2 or first is None or last is None:
        return {"value": None, "text": ", ".join(clauses)}
    return {"value": last - first, "text": ", ".join(clauses)}


def costs(models: Sequence[Backbone]) -> pd.DataFrame:
    """`layer_costs` of every backbone, in the form that `vitscope advise` reads."""
    return pd.concat([layer_costs(m).assign(backbone=m.name) for m in models], ignore_index=True)


def advices(
    probes: Mapping[str, LayerProbes], cost: pd.DataFrame, clusters: np.ndarray | None
) -> dict[str, Advice]:
    """Advice per backbone from the mean patch token's probes, which exist for every backbone."""
    found = {}
    for name, fitted in probes.items():
        rows = (fitted.table["kind"] == KINDS["patch_mean"]) & (fitted.table["state"] >= 0)
        found[name] = advise(
            fitted.table[rows],
            cost[cost["backbone"] == name],
            correct=fitted.correct[rows.to_numpy()],
            clusters=clusters,
        )
    return found


def advice_table(found: Mapping[str, Advice]) -> pd.DataFrame:
    """Per backbone: where to stop, what that saves, what to freeze and to fine-tune."""
    return pd.DataFrame(
        [
            {
                "backbone": name,
                "blocks": advice.depth,
                "best state": advice.best,
                "stop at state": advice.truncate,
                "operations saved": f"{100 * advice.saved:.0f} %",
                "freeze": _blocks(advice.freeze),
                "fine-tune": _blocks(advice.fine_tune) or advice.reason,
            }
            for name, advice in found.items()
        ]
    )


def _blocks(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    return f"block {numbers[0]}" if len(numbers) == 1 else f"blocks {numbers[0]} to {numbers[-1]}"


def depths(found: Mapping[str, Advice]) -> dict[str, dict[str, Reported]]:
    """`useful_depth` and `unused_depth` of every backbone, in blocks."""
    return {
        "useful_depth": {
            name: {"value": a.truncate, "text": f"{a.truncate} of {a.depth} blocks"}
            for name, a in found.items()
        },
        "unused_depth": {
            name: {"value": a.unused, "text": f"{a.unused} of {a.depth} blocks"} for name, a in found.items()
        },
    }
