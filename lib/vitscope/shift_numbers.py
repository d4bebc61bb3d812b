"""Heads under shift: the numbers of its chapter, for its sentences and for the ledger of claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from vitscope import shifted
from vitscope.comparison import BEST, ORACLE
from vitscope.estimates import Estimate, divided, estimate, resampled_sums
from vitscope.intervals import bootstrap_mean
from vitscope.reported import Reported
from vitscope.shift_report import Found
from vitscope.shifted import METHODS


def numbers(found: Found) -> dict[str, dict[str, Reported]]:
    """Per set the quantities that claims about shift rest on, by key; `…_clean` where there is a clean part.

    - `best`, `vfusion`, `oracle`: accuracy under shift, in percent
    - `gain_over_best`: VFusion less the best layer, in points
    - `gap_closed`: its share of the way from the best layer to the oracle, in percent
    - `recovery_shifted`, `recovery_clean`: errors of the last layer that some state gets right, in percent
    """
    result: dict[str, dict[str, Reported]] = {}
    for name, tested in found.items():
        rows = {
            "best": reported(shifted.accuracy(tested, BEST), "%"),
            "vfusion": reported(shifted.accuracy(tested, "VFusion"), "%"),
            "oracle": reported(shifted.accuracy(tested, ORACLE), "%"),
            "gain_over_best": reported(shifted.gain(tested), "points"),
            "gap_closed": reported(shifted.gap_closed(tested), "%"),
            "recovery_shifted": reported(shifted.recovery(tested), "%"),
        }
        if tested[0].clean is not None:
            rows["recovery_clean"] = reported(shifted.recovery(tested, clean=True), "%")
        for key, row in rows.items():
            result.setdefault(key, {})[name] = {**row, "n": len(tested[0].clusters)}
    return result


def means_over_sets(found: Found) -> dict[str, Reported]:
    """Accuracy under shift of every method, the mean over sets with its interval over sets."""
    return {
        method: _over_sets([shifted.accuracy(t, method) for t in found.values()], "%") for method in METHODS
    }


def overall(found: Found) -> dict[str, Reported]:
    """What the sets say together; intervals are over sets.

    - `shifted_sets`: their number
    - `gain_over_best`: VFusion less the best layer, in points, the mean over sets
    - `gain_most`: the largest gain of a set, with that set's interval
    - `gap_closed`: ratio of the mean gain to the mean distance between best layer and oracle, in percent
    - `recovery_shifted`, `recovery_clean`: means over the sets that have a clean part
    - `clean_gain_over_best`: the gain on the clean parts of these
    """
    gains = {name: shifted.gain(tested) for name, tested in found.items()}
    most = max(gains, key=lambda name: gains[name].value or 0.0)
    twins = [tested for tested in found.values() if tested[0].clean is not None]
    best = reported(gains[most], "points")
    result: dict[str, Reported] = {
        "shifted_sets": {"value": len(found), "text": str(len(found))},
        "gain_over_best": _over_sets(list(gains.values()), "points"),
        "gain_most": {**best, "text": f"{best['text']} on {most}"},
        "gap_closed": {**reported(_gap(found), "%"), "n": len(found)},
    }
    pairs = {
        "recovery_shifted": [shifted.recovery(t) for t in twins],
        "recovery_clean": [shifted.recovery(t, clean=True) for t in twins],
        "clean_gain_over_best": [shifted.gain(t, clean=True) for t in twins],
    }
    for key, estimates in pairs.items():
        result[key] = _over_sets(estimates, "points" if key == "clean_gain_over_best" else "%")
    return result


def group_numbers(tables: Sequence[pd.DataFrame]) -> dict[str, dict[str, Reported]]:
    """`worst_group` and `average_group` by method, from `shifted.by_group`; means over sets with groups."""
    result: dict[str, dict[str, Reported]] = {"worst_group": {}, "average_group": {}}
    for method in METHODS if tables else ():
        for key, group in (("worst_group", "worst"), ("average_group", "average")):
            rows = [t[(t["method"] == method) & (t["group"] == group)].iloc[0] for t in tables]
            each = [Estimate(float(r["accuracy"]), float(r["low"]), float(r["high"])) for r in rows]
            result[key][method] = _over_sets(each, "%")
    return result


def worst_group_gain(groups: Mapping[str, Mapping[str, Reported]], over: str = BEST) -> Reported:
    """VFusion less another method in its worst group, in points; each method has its own worst group."""
    worst = groups["worst_group"]
    if not worst:
        return {"value": None, "text": "not measured, because no set here has groups"}
    value = worst["VFusion"]["value"] - worst[over]["value"]
    return {"value": value, "text": f"{value:+.1f} points", "unit": "points"}


def _gap(found: Found) -> Estimate:
    tested = list(found.values())
    if len(tested) == 1:
        return shifted.gap_closed(tested[0])
    right = {
        m: np.array([np.mean([t.right(m).mean() for t in of]) for of in tested])
        for m in (BEST, "VFusion", ORACLE)
    }
    columns = {"gained": right["VFusion"] - right[BEST], "gap": right[ORACLE] - right[BEST]}
    total, drawn = resampled_sums(columns, clusters=None, draws=shifted.DRAWS, seed=0)
    value, spread = (divided(100 * x["gained"], x["gap"]) for x in (total, drawn))
    return estimate(
        value, spread, "not measured, because the oracle is right no more often than the best layers"
    )


def _over_sets(estimates: Sequence[Estimate], unit: str) -> Reported:
    """The mean of the sets' values with an interval over sets; a single set keeps its own."""
    having = [e for e in estimates if e.value is not None]
    if not having:
        return {"value": None, "text": "not measured, because no set here allows it", "n": 0}
    if len(having) == 1:
        return {**reported(having[0], unit), "n": 1}
    mean = bootstrap_mean(np.array([e.value for e in having], dtype=float))
    return {**reported(Estimate(float(mean.mean), float(mean.low), float(mean.high)), unit), "n": len(having)}


def reported(found: Estimate, unit: str) -> Reported:
    """An estimate as `Run.report` takes it; points carry their sign."""
    if found.value is None:
        return {"value": None, "text": found.reason}
    style, tail = ("+.1f", " points") if unit == "points" else (".1f", " %")
    between = "" if found.low is None else f" ({found.low:{style}} to {found.high:{style}})"
    ends = None if found.low is None or found.high is None else (found.low, found.high)
    return {
        "value": found.value,
        "spread": ends,
        "unit": unit,
        "text": f"{found.value:{style}}{tail}{between}",
    }
