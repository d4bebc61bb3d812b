"""Sparse attention against its rivals: tables and figures of its chapter. Its numbers: `variants_numbers`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch

from vitscope import plotting
from vitscope.entmax import entmax15
from vitscope.plotting import GROUP_WIDTH, Figure
from vitscope.variants import Family
from vitscope.variants_measure import Key, Sets
from vitscope.variants_numbers import Measured, leads
from vitscope.variants_scores import gain, level, of_curves

EXAMPLE = (3.0, 2.4, 2.0, 1.2, 0.9, 0.3, 0.0, -0.4, -1.0, -1.5)
"""Scores of one query with ten keys, to look at."""

TITLES = {
    "top1": "Linear probe",
    "knn": "k-NN",
    "miou": "Segmentation from patches",
    "miou_cls": "Segmentation from patches with CLS",
    "rmse": "Depth error",
    "pib": "Point-in-box",
}
SHORT = TITLES | {"top1": "linear"}  # as fits below a bar
UNITS = {
    "rmse": "RMSE",
    "miou": "mIoU (%)",
    "miou_cls": "mIoU (%)",
    "top1": "accuracy (%)",
    "pib": "rate (%)",
}
LOOKS = {
    "support": ("Keys with a weight above zero", "% of keys"),
    "entropy": ("Normalised entropy of attention", "% of that of equal weights"),
    "mass": ("Attention of objects that goes to background", "relative to equal weights"),
}
ALONE = "There is one variant here, so there is nothing to compare it with."
NO_BACKGROUND = "The first set has no class for the background."
NO_BOXES = "No set with masks has boxes here, or no variant has a CLS token."
NO_CLS = "No variant here has a CLS token."
NO_FAMILY = "No self-supervised variants are named in this profile."


def variant_table(families: Sequence[Family]) -> pd.DataFrame:
    """A row per model: what it is, its parameters, and what its card says of its training."""
    rows = []
    for one in families:
        base = one.trainings[0][0].parameters
        for number, training in enumerate(one.trainings, start=1):
            for v in training:
                own = None if v.card is None else next(iter(v.card["accuracy"].values()))
                rows.append(
                    {
                        "model": v.name,
                        "training": f"{one.label}, {number}",
                        "attention": v.dense.attention,
                        "registers": v.dense.num_registers,
                        "parameters": v.parameters,
                        "added": v.parameters - base,
                        "images seen": v.images_seen,
                        "own top-1 (%)": None if own is None else own.get("top1"),
                    }
                )
    return pd.DataFrame(rows)


def row_figure(scores: Sequence[float] = EXAMPLE) -> Figure:
    """One row of scores under softmax, softmax at temperature 0.5, and entmax-1.5."""
    x = torch.tensor(scores)
    kinds = {
        "softmax": x.softmax(0),
        "softmax at temperature 0.5": (x / 0.5).softmax(0),
        "entmax-1.5": entmax15(x),
    }
    rows = [
        {"key": str(n), "score": float(x[n - 1]), "attention": float(p[n - 1]), "normalization": kind}
        for kind, p in kinds.items()
        for n in range(1, len(x) + 1)
    ]
    zeros = ", ".join(f"{kind} {int((p == 0).sum())}" for kind, p in kinds.items())
    largest = ", ".join(f"{kind} {float(p.max()):.2f}" for kind, p in kinds.items())
    figure = plotting.category_bars(
        pd.DataFrame(rows),
        x="key",
        y="attention",
        hue="normalization",
        hue_order=list(kinds),
        title="One query, ten keys",
        xlabel="key, from the highest score to the lowest",
        alt=f"Attention of one query on {len(x)} keys. Exact zeros: {zeros}. Largest weight: {largest}.",
        name="entmax_row",
    )
    return replace(figure, data=pd.DataFrame(rows))


def remarks(measured: Sequence[Measured]) -> list[tuple[str, str]]:
    """What a reader must know of the probes: which models, and a sentence."""
    models: dict[str, list[str]] = {}
    for found in (found for one in measured for training in one.found for found in training):
        for text in found.warnings:
            models.setdefault(text, []).append(found.name)
    return [(", ".join(names), text) for text, names in models.items()]


def score_table(measured: Sequence[Measured], keys: Sequence[Key]) -> pd.DataFrame:
    """Every variant on every set: its mean over trainings with the interval, each training, and its gain.

    Columns: family, measure, set, variant, value, low, high, trainings (the number of each), gain, gain low,
    gain high, chance (what answers reach that do not look). What cannot be measured is left out.
    """
    rows = []
    for one in measured:
        for key in keys:
            base = one.score(one.family.baseline, key)
            for n in one.family.names:
                score = one.score(n, key)
                if score is None:
                    continue
                at = level(score)
                row: dict[str, Any] = {
                    "family": one.family.label,
                    "measure": key[0],
                    "set": key[1],
                    "variant": n,
                    "value": at.value,
                    "low": at.low,
                    "high": at.high,
                    "trainings": "; ".join(f"{v:.4g}" for v in score.each),
                    "chance": one.of(n)[0].chance.get(key),
                }
                if base is not None and n != one.family.baseline:
                    g = gain(score, base)
                    row |= {"gain": g.value, "gain low": g.low, "gain high": g.high}
                rows.append(row)
    columns = ["family", "measure", "set", "variant", "value", "low", "high", "trainings"]
    return pd.DataFrame(rows, columns=[*columns, "gain", "gain low", "gain high", "chance"])


def score_figure(one: Measured, keys: Sequence[Key], name: str) -> Figure:
    """A bar per variant with its interval, by set or by measure, and a dot a training.

    Raises ValueError where nothing was measured.
    """
    table = score_table([one], keys)
    measures = list(dict.fromkeys(table["measure"]))
    table["shown"] = table["set"] if len(measures) == 1 else table["measure"].map(SHORT)
    title = TITLES[measures[0]] if len(measures) == 1 else str(table["set"].iloc[0])
    unit = UNITS.get(measures[0], "%")
    variants = [n for n in one.family.names if n in set(table["variant"])]
    figure = plotting.category_bars(
        table,
        x="shown",
        y="value",
        hue="variant",
        hue_order=variants,
        band=("low", "high"),
        title=f"{title}, {_trainings(one)}",
        xlabel="set" if len(measures) == 1 else "measure",
        ylabel=unit,
        alt=lambda drawn: f"{title}, in {unit}, {_trainings(one)}: {_listed(drawn, 'value')}.",
        name=name,
    )
    _dots(figure, table, variants)
    return replace(figure, data=table.drop(columns="shown"))


def _dots(figure: Figure, table: pd.DataFrame, hues: Sequence[str]) -> None:
    """A dot on each bar for every number of the column `trainings`."""
    places, width = list(dict.fromkeys(table["shown"])), GROUP_WIDTH / len(hues)
    for row in table.to_dict("records"):
        values = [float(v) for v in row["trainings"].split("; ")]
        place = places.index(row["shown"]) + (list(hues).index(row["variant"]) - (len(hues) - 1) / 2) * width
        look: dict[str, Any] = {
            "ls": "none",
            "marker": "o",
            "ms": 3,
            "mfc": "white",
            "mec": "black",
            "mew": 0.8,
        }
        figure.fig.axes[0].plot([place] * len(values), values, **look)


def gain_figure(one: Measured, keys: Sequence[Key], name: str) -> Figure | None:
    """Gains over the baseline by set, paired by picture and training; None for a family of one variant."""
    table = score_table([one], keys)
    if table["gain"].isna().all():
        return None
    # the baseline stays, at 0: every variant keeps the colour it has in the other figures
    table.loc[table["variant"] == one.family.baseline, ["gain", "gain low", "gain high"]] = 0.0
    title = f"{TITLES[keys[0][0]]}: gain"
    return plotting.category_bars(
        table.assign(shown=table["set"]),
        x="shown",
        y="gain",
        hue="variant",
        hue_order=one.family.names,
        band=("gain low", "gain high"),
        reference=(0.0, "baseline"),
        title=f"{title}, {_trainings(one)}",
        xlabel="set",
        ylabel=f"points above {one.family.baseline}",
        alt=lambda drawn: f"{title} in points, {_trainings(one)}: {_listed(drawn, 'gain', '+.2f')}.",
        name=name,
    )


def lead_table(measured: Sequence[Measured], tests: Sets) -> pd.DataFrame:
    """The entmax-1.5 variant of each family less every other variant, in points, by set."""
    rows = []
    for one in measured:
        for key in tests.keys("top1", "miou"):
            for n, row in leads(one, key).items():
                ends = row.get("spread") or (None, None)
                rows.append((one.family.label, *key, n, row["value"], *ends))
    return pd.DataFrame(rows, columns=["family", "measure", "set", "over", "lead", "low", "high"])


def attention_table(measured: Sequence[Measured]) -> pd.DataFrame:
    """Support, entropy (%) and mass to background by block and variant, the mean over trainings.

    Columns: variant, measure, block, value, low, high.
    """
    rows = []
    for one in measured:
        for n in one.family.names:
            looked = [f.looked for f in one.of(n) if f.looked is not None]
            for measure in LOOKS:
                found = [curve for a in looked if (curve := getattr(a, measure)) is not None]
                for block in found[0].states if found else ():
                    at = level(of_curves([curve.only([block]) for curve in found]))
                    rows.append((n, measure, block, at.value, at.low, at.high))
    return pd.DataFrame(rows, columns=["variant", "measure", "block", "value", "low", "high"])


def attention_figure(table: pd.DataFrame, measure: str) -> Figure:
    """One measure of attention by block, a curve per variant."""
    shown = table[table["measure"] == measure].reset_index(drop=True)
    title, unit = LOOKS[measure]
    return plotting.layer_curves(
        shown.rename(columns={"value": unit}),
        x="block",
        y=unit,
        hue="variant",
        order=list(dict.fromkeys(shown["variant"])),
        band=("low", "high"),
        title=title,
        name=f"attention_{measure}",
        explore=True,
    )


def training_figure(table: pd.DataFrame, measure: str) -> Figure:
    """One measure against images seen, a curve per model."""
    shown = table[table["measure"] == measure].reset_index(drop=True)
    return plotting.layer_curves(
        shown.rename(columns={"value": "%"}),
        x="images",
        y="%",
        hue="model",
        order=list(dict.fromkeys(shown["model"])),
        band=("low", "high"),
        title=f"{TITLES[measure]}, along training",
        xlabel="images seen in training",
        name=f"training_{measure}",
        explore=True,
    )


def _trainings(one: Measured) -> str:
    k = len(one.family.trainings)
    return f"{k} training{'' if k == 1 else 's'}"


def _listed(table: pd.DataFrame, value: str, style: str = ".2f") -> str:
    rows = zip(table["shown"], table["variant"], table[value], strict=True)
    return ", ".join(f"{place} {variant} {v:{style}}" for place, variant, v in rows)
