"""Semantic diffusion: tables and figures of its chapter. Its numbers: `diffusion_numbers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from vitscope import plotting
from vitscope.dense_layers import BOTH, PATCH, Layers
from vitscope.dense_parts import Pair
from vitscope.diffusion_attention import Attention, FoundMasks
from vitscope.diffusion_curves import Curve
from vitscope.diffusion_measures import Leaks, Likeness, Norms
from vitscope.gallery import shown

NO_CLS = "No backbone here has a CLS token."
NO_LABEL = "Single patches of objects tell no more of the label than luck does, at any state."
NO_ATTENTION = "No backbone here has an attention that can be read."
ONE_BACKBONE = "There is one backbone only; its layers are shown above."


def sets_table(seen: Mapping[str, Pair]) -> pd.DataFrame:
    """What is measured on which set: pictures, classes, share of object pixels."""
    rows = []
    for use, of in seen.items():
        mask = of.test.seen.mask
        rows.append(
            {
                "for": use,
                "set": of.name,
                "training pictures": len(of.train.data),
                "test pictures": len(of.test.data),
                "classes": len(of.test.data.classes),
                "objects cover (%)": None if mask is None else 100 * float((mask > 0).double().mean()),
            }
        )
    return pd.DataFrame(rows)


def curve_table(curves: Mapping[str, Curve], name: str = "backbone") -> pd.DataFrame:
    """Curves one below the other: their name, state, value, low, high."""
    return pd.concat(
        [curve.table().assign(**{name: label}) for label, curve in curves.items()], ignore_index=True
    )[[name, "state", "value", "low", "high"]]


def curves_figure(
    curves: Mapping[str, Curve],
    *,
    title: str,
    ylabel: str,
    name: str,
    hue: str = "backbone",
    xlabel: str = "state",
    reference: tuple[float, str] | None = None,
) -> plotting.Figure:
    """A curve for each name over states or blocks, with its 95 % interval over pictures."""
    return plotting.layer_curves(
        curve_table(curves, hue).rename(columns={"value": ylabel}),
        y=ylabel,
        hue=hue,
        order=list(curves),
        band=("low", "high"),
        reference=reference,
        title=title,
        xlabel=xlabel,
        name=name,
        explore=True,
    )


def boxes_figure(found: Mapping[str, Layers]) -> plotting.Figure:
    """Point-in-box by layer (rule "center"), with what a random patch would get."""
    pointed = {name: one.point_in_box for name, one in found.items() if one.point_in_box is not None}
    chance = float(np.mean([p.by_rule["center"].chance for p in pointed.values()]))
    return curves_figure(
        {name: p.curve for name, p in pointed.items()},
        title="Is the patch most like CLS on the object?",
        ylabel="point-in-box (%)",
        reference=(100 * chance, "random patch"),
        name="point_in_box",
    )


def boxes_table(found: Mapping[str, Layers]) -> pd.DataFrame:
    """Point-in-box by both rules, in percent, with chance and the number of pictures that count."""
    rows = []
    for name, one in found.items():
        if one.point_in_box is None:
            continue
        by_rule = one.point_in_box.by_rule
        for s, state in enumerate(one.point_in_box.states):
            row: dict[str, object] = {"backbone": name, "state": state}
            for rule, result in by_rule.items():
                row |= {
                    rule: 100 * float(result.rate[s]),
                    f"{rule} by chance": 100 * result.chance,
                    f"{rule} pictures": result.kept,
                }
            rows.append(row)
    return pd.DataFrame(rows)


def probe_figure(found: Mapping[str, Layers], what: str) -> plotting.Figure:
    """`what`: "segmentation" or "depth" by layer, patches alone and with CLS, with the baseline."""
    probed = {name: getattr(one, what) for name, one in found.items()}
    curves = {
        f"{name}, {kind}": p.curves[kind]
        for kind in (PATCH, BOTH)
        for name, p in probed.items()
        if kind in p.curves
    }
    mask = what == "segmentation"
    baseline = next(iter(probed.values())).baseline
    return curves_figure(
        curves,
        title="Linear segmentation of every state" if mask else "Depth from every state (lower is better)",
        ylabel="mIoU (%)" if mask else "RMSE",
        hue="backbone, tokens",
        reference=(baseline, "largest class" if mask else "mean depth"),
        name=what,
    )


def gain_table(found: Mapping[str, Layers], what: str) -> pd.DataFrame:
    """What CLS adds to patches by state: change of mIoU in points, or of RMSE, paired by picture."""
    tables = {}
    for name, one in found.items():
        curves = getattr(one, what).curves
        if BOTH in curves:
            both = curves[BOTH]
            tables[name] = both.minus(curves[PATCH].only(both.states))
    return curve_table(tables) if tables else pd.DataFrame()


def parted_figure(one: Layers) -> plotting.Figure:
    """Point-in-box and mIoU of the states of one backbone."""
    assert one.point_in_box is not None  # asked before
    curves = {
        "point-in-box (%)": one.point_in_box.curve,
        "mIoU of patches (%)": one.segmentation.curves[PATCH].only(one.point_in_box.states),
    }
    return curves_figure(
        curves,
        title=f"{one.backbone.name}: the patch most like CLS, and what patches tell",
        ylabel="%",
        hue="measure",
        name="parted",
    )


def leakage_figure(found: Mapping[str, Leaks]) -> plotting.Figure:
    """Leakage by layer: 0 for none, 1 where background tells as much as the object."""
    return curves_figure(
        {name: one.curve for name, one in found.items()},
        title="Leakage of the label into background patches",
        ylabel="background / foreground, above luck",
        reference=(0.0, "none"),
        name="leakage",
    )


def distance_figure(leaks: Leaks, name: str) -> plotting.Figure:
    """Accuracy above luck of single patches, by state and distance to the object."""
    above = "accuracy above luck (points)"
    table = leaks.table.assign(**{above: leaks.table["accuracy"] - leaks.table["luck"]})
    kept = table[table["part"] != "background"]
    names = {"foreground": "object", ">=4": "4 or more away"}
    kept = kept.assign(patch=[names.get(part, f"{part} away") for part in kept["part"]])
    return plotting.layer_curves(
        kept,
        y=above,
        hue="patch",
        order=list(dict.fromkeys(kept["patch"])),
        reference=(0.0, "luck"),
        title=f"{name}: the label, read from one patch",
        name="leakage_distance",
        explore=True,
    )


def similarity_figure(likeness: Likeness, name: str) -> plotting.Figure:
    """Mean cosine of patches against their distance, a curve for some of the states; all can be explored."""
    from vitscope.explore_levels import curve_at  # brings altair

    table = likeness.by_distance
    chosen = shown(sorted(set(table["state"])))
    figure = plotting.layer_curves(
        table[table["state"].isin(chosen)].astype({"state": str}),
        x="distance",
        y="cosine",
        hue="state",
        order=[str(state) for state in chosen],
        title=f"{name}: likeness of patches against distance",
        xlabel="distance (patches)",
        ylabel="mean cosine, centred",
        name="similarity_distance",
    )
    explorer = curve_at(
        table, x="distance", y="cosine", slider="state", xlabel="distance (patches)",
        ylabel="mean cosine, centred", title=f"likeness of patches of {name} against distance, by state",
    )  # fmt: skip
    return replace(figure, explorer=explorer)


def attention_table(found: Mapping[str, Attention]) -> pd.DataFrame:
    """Support, entropy and mass on background, by block."""
    rows = []
    for name, one in found.items():
        for i, block in enumerate(one.support.states):
            row = {
                "backbone": name,
                "block": block,
                "keys above zero (%)": one.support.value[i],
                "entropy (% of uniform)": one.entropy.value[i],
            }
            rows.append(
                row if one.mass is None else row | {"object to background, × uniform": one.mass.value[i]}
            )
    return pd.DataFrame(rows)


def mass_figure(found: Mapping[str, Attention]) -> plotting.Figure:
    """What patches of objects give to background by block, relative to equal weights."""
    return curves_figure(
        {name: one.mass for name, one in found.items() if one.mass is not None},
        title="What patches of objects give to background",
        ylabel="relative to uniform",
        name="mass",
        xlabel="block",
        reference=(1.0, "blind to objects"),
    )


def norms_table(found: Mapping[str, Norms]) -> pd.DataFrame:
    """Share of patches of high norm, and how much of them lies in the background, by state."""
    rows = []
    for name, one in found.items():
        for i, state in enumerate(one.states):
            inside = float(one.found.in_background[i])
            rows.append(
                {
                    "backbone": name,
                    "state": state,
                    "threshold": float(one.found.threshold[i]),
                    "share (%)": float(one.share.value[i]),
                    "of them background (%)": None if np.isnan(inside) else 100 * inside,
                    "by luck (%)": 100 * one.found.background,
                }
            )
    return pd.DataFrame(rows)


def masks_figure(found: Mapping[str, FoundMasks]) -> plotting.Figure:
    """IoU of masks without labels by state: CLS attention of the best head, and the first component."""
    curves = {f"{name}, attention": one.attention for name, one in found.items() if one.attention is not None}
    curves |= {f"{name}, PCA": one.pca for name, one in found.items()}
    everything = float(np.mean([one.everything for one in found.values()]))
    return curves_figure(
        curves,
        title="Masks of objects that no label has made",
        ylabel="IoU (%)",
        hue="backbone, mask",
        xlabel="state; block for attention",
        reference=(everything, "every patch"),
        name="masks",
    )


def measures(one: Layers, leaks: Leaks | None) -> dict[str, Curve]:
    """The curves that the negative control is held against, by name."""
    found = {} if one.point_in_box is None else {"point-in-box (%)": one.point_in_box.curve}
    found |= {f"mIoU of {kind} (%)": curve for kind, curve in one.segmentation.curves.items()}
    if leaks is not None:
        c = leaks.curve
        found["leakage (%)"] = Curve(c.states, 100 * c.value, 100 * c.drawn, c.count)
    return found


def control_table(learned: Mapping[str, Curve], random: Mapping[str, Curve]) -> pd.DataFrame:
    """Each measure in the first and last third of the blocks, learned weights and random ones."""
    rows = []
    for measure, curve in learned.items():
        for weights, one in (("learned", curve), ("random", random[measure])):
            ends = one.thirds()
            parts: Sequence = (ends.shallow, ends.deep, ends.shallow_minus_deep)
            names = ("first third", "last third", "first less last")
            row: dict[str, object] = {"measure": measure, "weights": weights}
            row |= {name: part.value for name, part in zip(names, parts, strict=True)}
            rows.append(row | {"low": parts[2].low, "high": parts[2].high})
    return pd.DataFrame(rows)
