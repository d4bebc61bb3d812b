"""Tables, figures and sentences of the chapter on phase curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from vitscope import plotting
from vitscope.backbones import Backbone
from vitscope.capture import Capture
from vitscope.layerwise import KINDS, LayerProbes
from vitscope.metrics.similarity import similarity_floor
from vitscope.phases import Phases, detect_phases

Reported = dict[str, Any]  # keyword arguments of `Run.report`: value, text, n


def model_table(models: Sequence[Backbone]) -> pd.DataFrame:
    """Shape, tokens and preprocessing of each backbone."""
    return pd.DataFrame(
        [
            {
                "backbone": m.name,
                "blocks": m.depth,
                "width": m.width,
                "patches": f"{m.grid[0]} × {m.grid[1]}",
                "CLS": "yes" if m.has_cls else "no",
                "registers": m.num_registers,
                "input": f"{m.transform.height} × {m.transform.width}",
                "mean / std": f"{m.transform.mean[0]:g} / {m.transform.std[0]:g}",
                "weights": m.source["kind"],
                "digest": m.digest[:12],
            }
            for m in models
        ]
    )


def similarity_figure(table: pd.DataFrame, statistic: str, models: Sequence[Backbone]) -> plotting.Figure:
    """Raw or centred similarity per state; centred with its floor."""
    shown = table[table["statistic"] == statistic]
    patches = {m.num_patches for m in models}
    floor = similarity_floor(patches.pop()) if statistic == "centred" and len(patches) == 1 else None
    ends = "; ".join(
        f"{name}: {part['mean'].iloc[0]:.3f} before the position embedding, "
        f"{part['mean'].iloc[1]:.3f} after it, {part['mean'].iloc[-1]:.3f} at the last layer"
        for name, part in shown.groupby("backbone", sort=False)
    )
    return plotting.layer_curves(
        shown,
        y="mean",
        hue="backbone",
        order=[m.name for m in models],
        band=("low", "high"),
        title=f"Mean pairwise cosine of patch tokens, {statistic}",
        ylabel="cosine",
        reference=None if floor is None else (floor, f"floor {floor:.4f}"),
        name=f"similarity_{statistic}",
        alt=f"Token similarity ({statistic}) by layer. {ends}.",
    )


def control_figure(learned: pd.DataFrame, unlearned: pd.DataFrame) -> plotting.Figure:
    """Centred similarity of trained and random weights together."""
    both = pd.concat(
        [
            learned.assign(weights=learned["backbone"] + ", trained"),
            unlearned.assign(weights=unlearned["backbone"] + ", random"),
        ]
    )
    both = both[both["statistic"] == "centred"]
    ranges = both.groupby("weights", sort=False)["mean"].agg(lambda v: v.max() - v.min())
    return plotting.layer_curves(
        both,
        y="mean",
        hue="weights",
        order=list(ranges.index),
        band=("low", "high"),
        title="Centred similarity, trained against random weights",
        ylabel="cosine",
        name="similarity_control",
        alt="Centred token similarity by layer with trained and with random weights; range over layers: "
        + ", ".join(f"{name} {value:.3f}" for name, value in ranges.items())
        + ".",
    )


def detect(captures: Mapping[str, Capture], clusters: np.ndarray | None = None) -> dict[str, Phases]:
    """Phases of centred similarity, with uncertainty over images (or clusters of images)."""
    found = {}
    for name, captured in captures.items():
        curve = captured.per_image["similarity_centred"].numpy()
        if clusters is not None:
            curve = np.stack([curve[:, clusters == c].mean(1) for c in np.unique(clusters)], axis=1)
        found[name] = detect_phases(curve, states=captured.states)
    return found


def detect_accuracy(probes: Mapping[str, LayerProbes]) -> dict[str, Phases]:
    """Phases of the CLS probe's accuracy (share of right answers); backbones without CLS are left out."""
    found = {}
    for name, fitted in probes.items():
        rows = (fitted.table["kind"] == KINDS["cls"]).to_numpy()
        if rows.any():
            states = fitted.table["state"][rows].tolist()
            found[name] = detect_phases(fitted.correct[rows].astype(float), states=states)
    return found


def phase_table(found: Mapping[str, Phases]) -> pd.DataFrame:
    """One row per curve: what was detected, or the reason why not."""
    rows = []
    for name, phases in found.items():
        cliff, plateau, climb = phases.cliff, phases.plateau, phases.climb
        rows.append(
            {
                "backbone": name,
                "cliff": f"{cliff.size:.3f} ({cliff.share:.0%} of the range)"
                if cliff
                else phases.reasons["cliff"],
                "plateau": (
                    f"states {plateau.start} to {plateau.end}, {plateau.length} in all"
                    f"{_range(phases, 'plateau_length')}"
                    if plateau
                    else phases.reasons["plateau"]
                ),
                "climb": (
                    f"from state {climb.onset}{_range(phases, 'climb_onset')}, by {climb.rise:.3f}"
                    if climb
                    else phases.reasons["climb"]
                ),
                "all three": "yes" if phases.detected else "no",
                "pieces by BIC": phases.segmented.best,
            }
        )
    return pd.DataFrame(rows)


def _range(phases: Phases, key: str) -> str:
    """The bootstrap range of a whole number, in brackets, where there is one."""
    if key not in phases.interval:
        return ""
    low, high = phases.interval[key]
    return f" [{low:.0f} to {high:.0f}]"


def count_detected(found: Mapping[str, Phases]) -> Reported:
    """How many curves show all three phases."""
    hits = [name for name, phases in found.items() if phases.detected]
    text = f"{len(hits)} of {len(found)} backbones" + (f" ({', '.join(hits)})" if hits else "")
    return {"value": len(hits), "text": text, "n": len(found)}


def cliff_text(found: Mapping[str, Phases]) -> Reported:
    """The mean change of centred similarity from state −1 to 0, with one clause per backbone."""
    steps = {name: p.values[:2] for name, p in found.items()}
    mean = float(np.mean([after - before for before, after in steps.values()]))
    clauses = [
        f"{after - before:+.3f} in {name} ({before:.3f} → {after:.3f})"
        for name, (before, after) in steps.items()
    ]
    return {"value": mean, "text": " and ".join(clauses), "n": len(found)}


def shape_text(found: Mapping[str, Phases]) -> Reported:
    """Where each curve is lowest, and how far it has risen again at the last state."""
    rises, clauses = [], []
    for name, phases in found.items():
        values = np.asarray(phases.values)
        lowest = int(values.argmin())
        rises.append(float(values[-1] - values[lowest]))
        at = f"at state {phases.states[lowest]}"
        clauses.append(f"{values[0]:.3f} → {values[lowest]:.3f} {at} → {values[-1]:.3f} in {name}")
    return {"value": float(np.mean(rises)), "text": " and ".join(clauses), "n": len(found)}


def pe_table(models: Sequence[Backbone], captures: Mapping[str, Capture]) -> pd.DataFrame:
    """PE dominance ‖PE‖ / E‖z₀‖ per backbone: mean norms over positions, and over tokens and pictures."""
    rows = []
    for m in models:
        embedding = getattr(m.model, "pos_embed", None)
        content = float(captures[m.name].per_image["patch_norm"][0].mean())
        row = {"backbone": m.name, "mean norm of patch embedding": content}
        if embedding is None:
            row |= {"mean norm of position embedding": float("nan"), "ratio": float("nan")}
        else:
            position = float(embedding[0, -m.num_patches :].norm(dim=-1).mean())
            row |= {"mean norm of position embedding": position, "ratio": position / content}
        rows.append(row)
    return pd.DataFrame(rows)


def _label(backbone: str, kind: str) -> str:
    return f"{backbone}, {kind}"


def probe_figure(probes: Mapping[str, LayerProbes]) -> plotting.Figure:
    """Probe accuracy per state, CLS and mean patch token of every backbone."""
    table = pd.concat([fitted.table.assign(backbone=name) for name, fitted in probes.items()])
    table["probe"] = [_label(b, k) for b, k in zip(table["backbone"], table["kind"], strict=True)]
    majority = float(np.mean([fitted.majority for fitted in probes.values()]))
    last = table[table["state"] == table.groupby("probe")["state"].transform("max")]
    ends = ", ".join(f"{row.probe} {row.accuracy:.1f} %" for row in last.itertuples())
    return plotting.layer_curves(
        table,
        y="accuracy",
        hue="probe",
        order=list(dict.fromkeys(table["probe"])),
        band=("low", "high"),
        title="Accuracy of a linear probe, layer by layer",
        ylabel="accuracy (%)",
        reference=(majority, f"majority {majority:.1f} %"),
        name="probes_by_layer",
        alt=f"Probe accuracy by layer against a majority baseline of {majority:.1f} %. "
        f"At the last layer: {ends}.",
    )


def probe_table(probes: Mapping[str, LayerProbes]) -> pd.DataFrame:
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


def last_text(probes: Mapping[str, LayerProbes], kind: str) -> Reported:
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
    return {"value": mean, "text": " and ".join(clauses), "n": len(rows), "unit": "%"}


def best_text(probes: Mapping[str, LayerProbes]) -> Reported:
    """By how much the best state beats the last one, over all probes, as a sentence's end."""
    gaps = {}
    for name, fitted in probes.items():
        for kind, part in fitted.table.groupby("kind", sort=False):
            best = part.loc[part["accuracy"].idxmax()]
            gaps[_label(name, kind)] = (
                float(best["accuracy"] - part["accuracy"].iloc[-1]),
                int(best["state"]),
            )
    label, (gap, state) = max(gaps.items(), key=lambda item: item[1][0])
    text = f"the largest lead of an earlier state over the last is {gap:.1f} points ({label}, state {state})"
    return {"value": gap, "text": text, "n": len(gaps), "unit": "points"}
