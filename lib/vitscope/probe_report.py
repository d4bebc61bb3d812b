"""Probe accuracy layer by layer: tables, figures and sentences, for every chapter that fits probes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from vitscope import plotting
from vitscope.intervals import bootstrap_mean
from vitscope.layerwise import KINDS, LayerProbes
from vitscope.reported import listed

Probes = Mapping[str, LayerProbes]
Reported = dict[str, Any]  # keyword arguments of `Run.report`: value, text, spread, n, unit


def _label(backbone: str, kind: str) -> str:
    return f"{backbone}, {kind}"


def state_table(probes: Probes) -> pd.DataFrame:
    """Every probe: backbone, token, state, accuracy with its interval, balanced accuracy, chosen l2."""
    parts = [fitted.table.assign(backbone=name) for name, fitted in probes.items()]
    table = pd.concat(parts, ignore_index=True).rename(columns={"kind": "token"})
    return table[["backbone", "token", "state", "accuracy", "low", "high", "balanced", "l2"]]


def probe_figure(probes: Probes, kind: str, name: str = "") -> plotting.Figure:
    """Accuracy per state of one token kind ("cls" | "patch_mean"), a curve per backbone that has it."""
    table = state_table(probes)
    table = table[table["token"] == KINDS[kind]]
    majority = float(np.mean([fitted.majority for fitted in probes.values()]))
    ends = ", ".join(
        f"{backbone} {part['accuracy'].iloc[-1]:.1f} % (best {part['accuracy'].max():.1f} %)"
        for backbone, part in table.groupby("backbone", sort=False)
    )
    return plotting.layer_curves(
        table,
        y="accuracy",
        hue="backbone",
        order=list(dict.fromkeys(table["backbone"])),
        band=("low", "high"),
        title=f"Accuracy of a linear probe on the {KINDS[kind]}",
        ylabel="accuracy (%)",
        reference=(majority, f"majority {majority:.1f} %"),
        name=name or f"probes_{kind}",
        explore=True,
        alt=f"Accuracy by layer of linear probes on the {KINDS[kind]}, against a majority baseline of "
        f"{majority:.1f} %. At the last layer: {ends}.",
    )


def has_cls(probes: Probes) -> bool:
    """Whether any backbone here has a CLS token to probe."""
    return any((fitted.table["kind"] == KINDS["cls"]).any() for fitted in probes.values())


def probe_table(probes: Probes) -> pd.DataFrame:
    """Best and last state of each probe."""
    rows = []
    for name, fitted in probes.items():
        for kind, part in fitted.table.groupby("kind", sort=False):
            best, last = part.loc[part["accuracy"].idxmax()], part.iloc[-1]
            rows.append(
                {
                    "backbone": name,
                    "token": kind,
                    "best state": int(best["state"]),
                    "best": best["accuracy"],
                    "last": last["accuracy"],
                    "last, low": last["low"],
                    "last, high": last["high"],
                    "last, balanced": last["balanced"],
                    "majority": fitted.majority,
                }
            )
    return pd.DataFrame(rows)


def last_text(probes: Probes, kind: str) -> Reported:
    """Mean last-layer accuracy of one token kind, with one clause per backbone."""
    rows = {
        name: part.iloc[-1]
        for name, fitted in probes.items()
        if len(part := fitted.table[fitted.table["kind"] == KINDS[kind]])
    }
    if not rows:
        return {"value": None, "text": f"nothing (no backbone here has a {KINDS[kind]})"}
    clauses = [
        f"{r['accuracy']:.1f} % ({r['low']:.1f} to {r['high']:.1f}) in {name}" for name, r in rows.items()
    ]
    mean = float(np.mean([r["accuracy"] for r in rows.values()]))
    return {"value": mean, "text": listed(clauses), "n": len(rows), "unit": "%"}


def best_text(probes: Probes) -> Reported:
    """By how much the best state beats the last one, the most over all probes, as a sentence's end."""
    gaps = {}
    for name, fitted in probes.items():
        for kind, part in fitted.table.groupby("kind", sort=False):
            best = part.loc[part["accuracy"].idxmax()]
            gaps[_label(name, kind)] = (
                float(best["accuracy"] - part["accuracy"].iloc[-1]),
                int(best["state"]),
            )
    label, (gap, state) = max(gaps.items(), key=lambda item: item[1][0])
    text = (
        f"the largest lead of an earlier state over the last is {gap:.1f} points ({label}, state {state})"
        if gap > 0
        else "no earlier state leads over the last"
    )
    return {"value": gap, "text": text, "n": len(gaps), "unit": "points"}


def numbers(probes: Probes, clusters: np.ndarray | None) -> dict[str, dict[str, Reported]]:
    """Per backbone the quantities that claims about probes rest on, by key, all in percentage points.

    - `patch_minus_cls`: lead of the mean patch token over CLS at the last state (paired over pictures)
    - `patch_late_fall`: how far the mean patch token's accuracy at the last state is below its best state
    - `cls_fall`: the largest fall of CLS accuracy from one state to a later one
    - `task_accuracy`: accuracy at the last state, the better of the two tokens
    - `best_probe`: accuracy of the best state and token
    """
    found: dict[str, dict[str, Reported]] = {
        key: {} for key in ("patch_minus_cls", "patch_late_fall", "cls_fall", "task_accuracy", "best_probe")
    }
    for name, fitted in probes.items():
        table, correct = fitted.table, 100.0 * fitted.correct
        rows = {kind: np.flatnonzero(table["kind"] == label) for kind, label in KINDS.items()}
        patch = rows["patch_mean"]
        best = patch[table["accuracy"].to_numpy()[patch].argmax()]
        found["patch_late_fall"][name] = _points(correct[best] - correct[patch[-1]], clusters)
        if len(rows["cls"]):
            last = rows["cls"][-1]
            found["patch_minus_cls"][name] = _points(correct[patch[-1]] - correct[last], clusters)
            high, low = _largest_fall(table["accuracy"].to_numpy()[rows["cls"]])
            difference = correct[rows["cls"][high]] - correct[rows["cls"][low]]
            found["cls_fall"][name] = _points(difference, clusters)
        else:
            for key in ("patch_minus_cls", "cls_fall"):
                found[key][name] = {"value": None, "text": f"nothing ({name} has no CLS token)"}
        lasts = [part[-1] for part in rows.values() if len(part)]
        better = max(lasts, key=lambda row: table["accuracy"].iloc[row])
        found["task_accuracy"][name] = _points(correct[better], clusters, unit="%")
        found["best_probe"][name] = _points(correct[table["accuracy"].argmax()], clusters, unit="%")
    return found


def _points(values: np.ndarray, clusters: np.ndarray | None, unit: str = "points") -> Reported:
    interval = bootstrap_mean(values, clusters=clusters)
    value, low, high = map(float, interval)
    text = f"{value:.1f} {unit} ({low:.1f} to {high:.1f})"
    return {"value": value, "spread": (low, high), "n": len(values), "unit": unit, "text": text}


def _largest_fall(curve: np.ndarray) -> tuple[int, int]:
    """Positions of the point before and after the largest fall of a curve; equal where it never falls.

    >>> _largest_fall(np.array([1.0, 3.0, 2.0, 2.5, 0.5, 4.0]))
    (1, 4)
    """
    peak = np.maximum.accumulate(curve)
    low = int((peak - curve).argmax())
    return int(curve[: low + 1].argmax()), low
