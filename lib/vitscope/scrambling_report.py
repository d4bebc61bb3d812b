"""Information scrambling in both forms: tables, figures and sentences of its chapter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from torch import Tensor

from vitscope import plotting
from vitscope.intervals import bootstrap_mean
from vitscope.metrics.scrambling import Scrambling, regimes
from vitscope.reported import Reported
from vitscope.tradeoff import reach

CONTROLS = {
    "isi": "ISI",
    "isi_shuffled": "own image, places permuted",
    "isi_control": "context of another image",
}
UPPER = 3  # the upper part of a network is its last third
TOLERANCE = 0.01  # change of `isi_attention` that counts as one

Found = Mapping[str, Scrambling]


def measure_table(found: Found, names: Mapping[str, str]) -> pd.DataFrame:
    """Measures per backbone and state with their interval; `names` say what the table calls them."""
    parts = []
    for backbone, scrambled in found.items():
        table = scrambled.stats
        table = table[table["measure"].isin(names)].assign(backbone=backbone)
        parts.append(table.assign(measure=table["measure"].map(names)).rename(columns={"value": "mean"}))
    columns = ["backbone", "measure", "state", "mean", "low", "high"]
    return pd.concat(parts, ignore_index=True)[columns]


def information_figure(found: Found) -> plotting.Figure:
    """What own tokens still hold of their patches, per state (R² on pictures never fitted)."""
    table = measure_table(found, {"r2_self": "own token"})
    ends = "; ".join(
        f"{name} {part['mean'].iloc[0]:.2f} → {part['mean'].iloc[-1]:.2f}"
        for name, part in table.groupby("backbone", sort=False)
    )
    return plotting.layer_curves(
        table,
        y="mean",
        hue="backbone",
        order=list(found),
        band=("low", "high"),
        title="How much of a patch its own token still holds",
        ylabel="R² of the patch embedding",
        name="information",
        explore=True,
        alt=f"R² of the patch embedding reconstructed from the patch's own token, by state: {ends}.",
    )


def isi_figure(found: Found, name: str = "isi") -> plotting.Figure:
    """ISI (reconstruction form) per state, a curve per backbone."""
    table = measure_table(found, {"isi": "ISI"})
    ends = "; ".join(
        f"{backbone} highest {part['mean'].max():.3f} at state "
        f"{int(part.loc[part['mean'].idxmax(), 'state'])}, last {part['mean'].iloc[-1]:.3f}"
        for backbone, part in table.groupby("backbone", sort=False)
    )
    return plotting.layer_curves(
        table,
        y="mean",
        hue="backbone",
        order=list(found),
        band=("low", "high"),
        title="Information Scrambling Index, reconstruction form",
        ylabel="ISI",
        reference=(0.0, "0: other tokens add nothing"),
        name=name,
        explore=True,
        alt=f"Information Scrambling Index by state: {ends}.",
    )


def control_figure(scrambled: Scrambling, backbone: str) -> plotting.Figure:
    """ISI of one backbone beside the same index with wrong contexts."""
    table = measure_table({backbone: scrambled}, CONTROLS)
    ends = ", ".join(
        f"{name} up to {part['mean'].max():.3f}" for name, part in table.groupby("measure", sort=False)
    )
    return plotting.layer_curves(
        table,
        y="mean",
        hue="measure",
        order=list(CONTROLS.values()),
        band=("low", "high"),
        title=f"ISI of {backbone} and its controls",
        ylabel="ISI",
        reference=(0.0, "0"),
        name="isi_controls",
        explore=True,
        alt=f"ISI of {backbone} by state beside two controls: {ends}.",
    )


def conditions_figure(conditions: Mapping[str, Scrambling], backbone: str) -> plotting.Figure:
    """ISI of one backbone as it is, with random weights, on shuffled pictures, without position."""
    table = measure_table(conditions, {"isi": "ISI"}).rename(columns={"backbone": "condition"})
    tops = ", ".join(f"{name} up to {value.isi.max():.3f}" for name, value in conditions.items())
    return plotting.layer_curves(
        table,
        y="mean",
        hue="condition",
        order=list(conditions),
        band=("low", "high"),
        title=f"ISI of {backbone} under other conditions",
        ylabel="ISI",
        reference=(0.0, "0"),
        name="isi_conditions",
        explore=True,
        alt=f"ISI of {backbone} by state under {len(conditions)} conditions: {tops}.",
    )


def regime_table(found: Found, reference: str) -> pd.DataFrame:
    """How many blocks of each backbone lie in which regime; the band ends at q90 of `reference`'s ISI."""
    band = float(np.quantile(_blocks(found[reference]), 0.9))
    rows = []
    for name, scrambled in found.items():
        of_blocks = _blocks(scrambled)
        named = regimes(of_blocks, band)
        rows.append(
            {
                "backbone": name,
                "band ends at": band,
                **{regime: named.count(regime) for regime in ("collapse", "consensus", "diffusion")},
                "highest ISI": float(of_blocks.max()),
                "at state": 1 + int(of_blocks.argmax()),
                "last ISI": float(scrambled.isi[-1]),
            }
        )
    return pd.DataFrame(rows)


def _blocks(scrambled: Scrambling) -> np.ndarray:
    """ISI of the block outputs, states 1…L."""
    return scrambled.isi[np.asarray(scrambled.states) > 0]


def index_figure(index: Mapping[str, Tensor], clusters: np.ndarray | None) -> plotting.Figure:
    """The attention-based index per block."""
    parts = []
    for name, values in index.items():
        interval = bootstrap_mean(values.numpy(), clusters=clusters)
        parts.append(pd.DataFrame(interval._asdict()).assign(backbone=name, block=range(1, len(values) + 1)))
    table = pd.concat(parts, ignore_index=True)
    ends = "; ".join(
        f"{name} {part['mean'].iloc[0]:.3f} → {part['mean'].iloc[-1]:.3f}"
        for name, part in table.groupby("backbone", sort=False)
    )
    return plotting.layer_curves(
        table,
        x="block",
        y="mean",
        hue="backbone",
        order=list(index),
        band=("low", "high"),
        title="The summary's index: cosine across attention over its entropy",
        ylabel="isi_attention (1/nat)",
        name="isi_attention",
        explore=True,
        alt=f"Attention-based index by block, first to last: {ends}.",
    )


def agreement_table(found: Found, index: Mapping[str, Tensor]) -> pd.DataFrame:
    """Spearman correlation over blocks between the two forms of the index, per backbone.

    NaN where one of them is the same at all blocks: there are no ranks to compare.
    """
    rows = []
    for name, values in index.items():
        pair = pd.DataFrame({"reconstruction": _blocks(found[name]), "attention": values.mean(1).numpy()})
        ranked = (pair.nunique() > 1).all()
        rho = pair["reconstruction"].corr(pair["attention"], method="spearman") if ranked else np.nan
        rows.append({"backbone": name, "blocks": len(pair), "Spearman": float(rho)})
    return pd.DataFrame(rows)


def jump_flat_rise(curve: np.ndarray, tolerance: float = TOLERANCE) -> bool:
    """Whether a curve over blocks jumps at first, rests, and rises mildly at the end (the summary's pattern).

    Over the first, middle and last third of the blocks: the first rises by more than `tolerance`; the
    middle's ends differ by at most a third of that rise; the last rises by more than `tolerance`, and by
    less than the first.

    >>> jump_flat_rise(np.array([0.0, 0.2, 0.3, 0.3, 0.31, 0.3, 0.3, 0.33, 0.36]))
    True
    >>> jump_flat_rise(np.linspace(0, 1, 9))
    False
    """
    third = len(curve) // 3
    if third < 2:
        return False
    first, middle, last = (
        curve[: third + 1],
        curve[third : len(curve) - third],
        curve[len(curve) - third - 1 :],
    )
    jump, drift, rise = (float(part[-1] - part[0]) for part in (first, middle, last))
    return jump > tolerance and abs(drift) <= jump / 3 and tolerance < rise < jump


def numbers(found: Found, index: Mapping[str, Tensor]) -> dict[str, dict[str, Reported]]:
    """Per backbone the quantities that claims about scrambling rest on, by key.

    - `isi_last`: at the last state; `isi_upper`: mean over the last third of the blocks
    - `isi_band_low`, `isi_band_high`: quartiles of ISI over the blocks
    - `isi_half`: block at which the attention-based index has covered half of its way; None where it stays
    """
    keys = ("isi_last", "isi_upper", "isi_band_low", "isi_band_high", "isi_half")
    result: dict[str, dict[str, Reported]] = {key: {} for key in keys}
    for name, scrambled in found.items():
        interval, of_blocks = scrambled.intervals["isi"], _blocks(scrambled)
        upper = slice(-max(1, len(of_blocks) // UPPER), None)
        n = scrambled.images["test"]
        result["isi_last"][name] = _number(scrambled.isi[-1], (interval.low[-1], interval.high[-1]), n)
        # the ends of intervals are averaged like the values: states are measured on the same pictures
        spread = (float(interval.low[upper].mean()), float(interval.high[upper].mean()))
        result["isi_upper"][name] = _number(of_blocks[upper].mean(), spread, n)
        for key, share in (("isi_band_low", 0.25), ("isi_band_high", 0.75)):
            result[key][name] = _number(np.quantile(of_blocks, share), None, n)
        result["isi_half"][name] = _half_way(index[name].mean(1).numpy())
    return result


def _half_way(curve: np.ndarray) -> Reported:
    """Block at which a curve over blocks has covered half of its way."""
    if len(curve) < 2:
        return {"value": None, "text": "not detected, because one block is no way to cover"}
    at = reach(curve, range(1, len(curve) + 1), share=0.5, tolerance=TOLERANCE)
    return {"value": None, "text": at.reason} if at.depth is None else _number(at.depth, None, None, ".1f")


def _number(value: float, spread: tuple[float, float] | None, n: int | None, style: str = ".4f") -> Reported:
    at = f"{value:{style}}"
    text = at if spread is None else f"{at} ({spread[0]:{style}} to {spread[1]:{style}})"
    ends = None if spread is None else (float(spread[0]), float(spread[1]))
    return {"value": float(value), "spread": ends, "n": n, "text": text}


def pattern_text(index: Mapping[str, Tensor]) -> Reported:
    """In how many backbones the attention-based index jumps, rests and rises mildly."""
    hits = [name for name, values in index.items() if jump_flat_rise(values.mean(1).numpy())]
    text = f"{len(hits)} of {len(index)} backbones" + (f" ({', '.join(hits)})" if hits else "")
    return {"value": len(hits), "text": text, "n": len(index)}


def peak_text(found: Found) -> Reported:
    """The highest ISI and its place, a clause per backbone."""
    clauses = [
        f"{s.isi.max():.3f} at state {s.states[int(s.isi.argmax())]} in {name}" for name, s in found.items()
    ]
    return {"value": float(np.mean([s.isi.max() for s in found.values()])), "text": ", ".join(clauses)}


def lost_text(found: Found) -> Reported:
    """The share of the patch that its own token has lost at the last state, a clause per backbone."""
    lost = {name: 100 * float(1 - s.normalised_self[-1]) for name, s in found.items()}
    text = ", ".join(f"{value:.0f} % in {name}" for name, value in lost.items())
    return {"value": float(np.mean(list(lost.values()))), "text": text, "n": len(lost), "unit": "%"}
