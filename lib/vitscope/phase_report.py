"""Tables, figures and sentences of the chapter on phase curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from vitscope import plotting
from vitscope.backbones import Backbone
from vitscope.capture import Capture
from vitscope.conditions import TRAINED
from vitscope.intervals import bootstrap_mean
from vitscope.layerwise import KINDS, LayerProbes
from vitscope.metrics.similarity import similarity_floor
from vitscope.phases import SHORTEST_CURVE, Phases, detect_phases, undetected
from vitscope.reported import Reported, listed


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
    """One form of similarity per state; centred per image with its floor.

    Below the raw form readers explore all of them, below the centred one the thresholds of the detector.
    """
    from vitscope.explore_phases import (
        of_similarity,
    )  # brings altair, which not every reader of reports needs

    shown = table[table["statistic"] == statistic]
    patches = {m.num_patches for m in models}
    floor = similarity_floor(patches.pop()) if statistic == "centred" and len(patches) == 1 else None
    ends = "; ".join(
        f"{name}: {part['mean'].iloc[0]:.3f} before the position embedding, "
        f"{part['mean'].iloc[1]:.3f} after it, {part['mean'].iloc[-1]:.3f} at the last layer"
        for name, part in shown.groupby("backbone", sort=False)
    )
    figure = plotting.layer_curves(
        shown,
        y="mean",
        hue="backbone",
        order=[m.name for m in models],
        band=("low", "high"),
        title=f"Mean pairwise cosine of patch tokens, {statistic}",
        ylabel="cosine",
        reference=None if floor is None else (floor, f"floor {floor:.4f}"),
        name="similarity_" + statistic.replace(" ", "_"),
        alt=f"Token similarity ({statistic}) by layer. {ends}.",
    )
    return replace(figure, explorer=of_similarity(table, statistic, [m.name for m in models]))


def statistic_figure(
    table: pd.DataFrame, models: Sequence[Backbone], *, title: str, ylabel: str, name: str
) -> plotting.Figure:
    """One statistic per state, a curve per backbone, with its interval."""
    there = set(table["backbone"])
    return plotting.layer_curves(
        table,
        y="mean",
        hue="backbone",
        order=[m.name for m in models if m.name in there],
        band=("low", "high"),
        title=title,
        ylabel=ylabel,
        name=name,
        explore=True,
    )


def aligned_figure(table: pd.DataFrame, models: Sequence[Backbone], name: str) -> plotting.Figure:
    """Centred similarity over relative depth ℓ/L, so that models of different depth lie over each other."""
    depth = {m.name: m.depth for m in models}
    shown = table[(table["statistic"] == "centred") & (table["state"] >= 0)]
    shown = shown.assign(relative=shown["state"] / shown["backbone"].map(depth))
    lows = []
    for backbone, part in shown.groupby("backbone", sort=False):
        low = part.loc[part["mean"].idxmin()]
        lows.append(
            f"{backbone} ({depth[backbone]} blocks): lowest {low['mean']:.3f} at {low['relative']:.2f}"
        )
    return plotting.layer_curves(
        shown,
        x="relative",
        y="mean",
        hue="backbone",
        order=[m.name for m in models],
        band=("low", "high"),
        title="Centred similarity over relative depth",
        xlabel="state / number of blocks",
        ylabel="cosine",
        name=name,
        alt=f"Centred token similarity against relative depth: {'; '.join(lows)}.",
    )


def control_figure(conditions: Mapping[str, pd.DataFrame], backbone: str) -> plotting.Figure:
    """Centred similarity of one backbone under several conditions, by name."""
    parts = [table.assign(condition=condition) for condition, table in conditions.items()]
    both = pd.concat(parts, ignore_index=True)
    both = both[(both["statistic"] == "centred") & (both["backbone"] == backbone)]
    ranges = both.groupby("condition", sort=False)["mean"].agg(lambda v: v.max() - v.min())
    return plotting.layer_curves(
        both,
        y="mean",
        hue="condition",
        order=list(ranges.index),
        band=("low", "high"),
        title=f"Centred similarity of {backbone} and of its controls",
        ylabel="cosine",
        name="similarity_control",
        alt=f"Centred token similarity of {backbone} by layer under {len(ranges)} conditions; range over "
        "layers: " + ", ".join(f"{name} {value:.3f}" for name, value in ranges.items()) + ".",
    )


def training_figure(table: pd.DataFrame, backbone: str) -> plotting.Figure:
    """Centred similarity per state at several moments of a training; `images` seen is a column."""
    from vitscope.explore_levels import curve_at

    shown = table[table["statistic"] == "centred"]
    first, last = (shown[shown["images"] == at] for at in (shown["images"].min(), shown["images"].max()))
    figure = plotting.layer_curves(
        shown,
        y="mean",
        hue="images",
        band=("low", "high"),
        title=f"Centred similarity while {backbone} learns",
        ylabel="cosine",
        name="similarity_training",
        alt=f"Centred token similarity of {backbone} by layer after {shown['images'].nunique()} amounts of "
        f"training. {_ends(first)}; {_ends(last)}.",
    )
    explorer = curve_at(
        shown, x="state", y="mean", slider="images", band=("low", "high"), ylabel="cosine",
        title=f"centred similarity while {backbone} learns", label="images seen",
    )  # fmt: skip
    return replace(figure, explorer=explorer)


def _ends(curve: pd.DataFrame) -> str:
    ends = f"from {curve['mean'].iloc[0]:.3f} to {curve['mean'].iloc[-1]:.3f}"
    return f"After {int(curve['images'].iloc[0]):,} images it goes {ends}"


def detect(captures: Mapping[str, Capture], clusters: np.ndarray | None = None) -> dict[str, Phases]:
    """Phases of centred similarity, with uncertainty over images (or clusters of images)."""
    found = {}
    for name, captured in captures.items():
        curve = captured.per_image["similarity_centred"].numpy()
        if clusters is not None:
            curve = np.stack([curve[:, clusters == c].mean(1) for c in np.unique(clusters)], axis=1)
        found[name] = detect_curve(curve, captured.states)
    return found


def detect_conditions(
    controls: Mapping[str, Mapping[str, Capture]], clusters: np.ndarray | None = None
) -> dict[str, Phases]:
    """Phases under every condition of every backbone, by "BACKBONE, CONDITION"."""
    return {
        f"{name}, {condition}": phases
        for name, captures in controls.items()
        for condition, phases in detect(captures, clusters).items()
    }


def without_trained(found: Mapping[str, Phases]) -> dict[str, Phases]:
    """The controls alone, of what `detect_conditions` found."""
    return {name: phases for name, phases in found.items() if not name.endswith(f", {TRAINED}")}


def detect_curve(curve: np.ndarray, states: Sequence[int]) -> Phases:
    """`detect_phases`, and for a curve too short for it the answer that says so."""
    if len(states) < SHORTEST_CURVE:
        return undetected(curve.mean(1), states)
    return detect_phases(curve, states=states)


def detect_accuracy(probes: Mapping[str, LayerProbes]) -> dict[str, Phases]:
    """Phases of the CLS probe's accuracy (share of right answers); backbones without CLS are left out."""
    found = {}
    for name, fitted in probes.items():
        rows = (fitted.table["kind"] == KINDS["cls"]).to_numpy()
        if rows.any():
            states = fitted.table["state"][rows].tolist()
            found[name] = detect_curve(fitted.correct[rows].astype(float), states)
    return found


def numbers(
    captures: Mapping[str, Capture], found: Mapping[str, Phases], clusters: np.ndarray | None
) -> dict[str, dict[str, Reported]]:
    """Per backbone the quantities that claims about similarity rest on, by key.

    - `cliff`: S(−1) − S(0) of centred similarity, paired over pictures; `after_pe`: S(0)
    - `plateau_length`, `climb_onset`: in states, or None with the reason
    - `climb_rise`: from the lowest state to the last one
    """
    keys = ("cliff", "after_pe", "plateau_length", "climb_onset", "climb_rise")
    result: dict[str, dict[str, Reported]] = {key: {} for key in keys}
    for name, captured in captures.items():
        curve, phases = captured.per_image["similarity_centred"].numpy(), found[name]
        lowest = int(curve.mean(1).argmin())
        for key, values in (
            ("cliff", curve[0] - curve[1]),
            ("after_pe", curve[1]),
            ("climb_rise", curve[-1] - curve[lowest]),
        ):
            value, low, high = map(float, bootstrap_mean(values, clusters=clusters))
            result[key][name] = {
                "value": value,
                "spread": (low, high),
                "n": len(values),
                "text": f"{value:.4f} ({low:.4f} to {high:.4f})",
            }
        for key, phase, attribute in (
            ("plateau_length", "plateau", "length"),
            ("climb_onset", "climb", "onset"),
        ):
            there = getattr(phases, phase)
            result[key][name] = (
                {"value": None, "text": phases.reasons[phase]}
                if there is None
                else {
                    "value": getattr(there, attribute),
                    "spread": phases.interval.get(key),
                    "n": curve.shape[1],
                    "text": f"{getattr(there, attribute)}{_range(phases, key)}",
                }
            )
    return result


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
                "pieces by BIC": phases.segmented.best if phases.segmented else "too short",
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
    """How many curves show all three phases; None where there is no curve, which is not none of them."""
    if not found:
        return {"value": None, "text": "nothing (no backbone here has such a curve)"}
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
    return {"value": mean, "text": listed(clauses), "n": len(found)}


def shape_text(found: Mapping[str, Phases]) -> Reported:
    """Where each curve is lowest, and how far it has risen again at the last state."""
    rises, clauses = [], []
    for name, phases in found.items():
        values = np.asarray(phases.values)
        lowest = int(values.argmin())
        rises.append(float(values[-1] - values[lowest]))
        at = f"at state {phases.states[lowest]}"
        clauses.append(f"{values[0]:.3f} → {values[lowest]:.3f} {at} → {values[-1]:.3f} in {name}")
    return {"value": float(np.mean(rises)), "text": listed(clauses), "n": len(found)}
