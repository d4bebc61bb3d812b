"""The position embedding's weight, and what scaling it does: tables, figure and sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from vitscope import plotting
from vitscope.backbones import Backbone
from vitscope.capture import Capture
from vitscope.data.images import Images
from vitscope.position import pe_dominance, position_effect, position_embedding
from vitscope.reported import Reported, listed

FACTORS = (0.0, 0.5, 1.0, 2.0, 4.0)


def pe_table(models: Sequence[Backbone], captures: Mapping[str, Capture]) -> pd.DataFrame:
    """PE dominance ‖PE‖ / E‖z₀‖ per backbone: mean norms over positions, and over tokens and pictures.

    NaN for a position embedding that is not there, and for patch embeddings that a capture has normalised
    (`norm` other than "none"): their length is then the norm's, not the model's.
    """
    rows = []
    for m in models:
        embedding, captured = position_embedding(m), captures[m.name]
        plain = captured.norm == "none"
        content = float(captured.per_image["patch_norm"][0].mean()) if plain else np.nan
        known = plain and embedding is not None
        rows.append(
            {
                "backbone": m.name,
                "mean norm of patch embedding": content,
                "mean norm of position embedding": (
                    np.nan if embedding is None else float(embedding.norm(dim=-1).mean())
                ),
                "ratio": pe_dominance(m, content).tokens if known else np.nan,
            }
        )
    return pd.DataFrame(rows)


def effect_table(
    models: Sequence[Backbone], images: Images, factors: Sequence[float] = FACTORS
) -> pd.DataFrame:
    """`position_effect` of every model with a head and a position embedding of its own.

    Top-1 counts where a head has as many outputs as `images` has classes, which then must be the same ones.
    """
    parts = []
    for m in models:
        outputs = int(getattr(m.model, "num_classes", 0))
        if outputs and position_embedding(m) is not None:
            effect = position_effect(m, images, factors, own_classes=outputs == len(images.classes))
            parts.append(effect.assign(backbone=m.name))
    columns = ["backbone", "factor", "top1", "agreement", "before", "after", "cliff"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def effect_figure(table: pd.DataFrame) -> plotting.Figure:
    """Top-1 (agreement with the unscaled model where there is no top-1) over the factor."""
    known = table["top1"].notna().all()
    y, what = ("top1", "top-1") if known else ("agreement", "agreement with factor 1")
    ends = "; ".join(
        f"{name}: {part[y].iloc[0]:.1f} % at factor {part['factor'].iloc[0]:g}, "
        f"{part[y].max():.1f} % at best, {part[y].iloc[-1]:.1f} % at {part['factor'].iloc[-1]:g}"
        for name, part in table.groupby("backbone", sort=False)
    )
    return plotting.layer_curves(
        table,
        x="factor",
        y=y,
        hue="backbone",
        order=list(dict.fromkeys(table["backbone"])),
        title="The model's own answers with its position embedding scaled",
        xlabel="factor on the position embedding",
        ylabel=f"{what} (%)",
        name="position_effect",
        alt=f"The model's own {what} against the factor on its position embedding. {ends}.",
    )


def effect_text(table: pd.DataFrame) -> Reported:
    """What is lost without the embedding, in points of top-1 or of agreement, with a clause per backbone."""
    if table.empty:
        return {"value": None, "text": "nothing that was measured (no head for a named task)"}
    y = "top1" if table["top1"].notna().all() else "agreement"
    losses = {}
    for name, part in table.groupby("backbone", sort=False):
        by_factor = part.set_index("factor")[y]
        losses[name] = float(by_factor[1.0] - by_factor[0.0])
    text = listed([f"{loss:.1f} points in {name}" for name, loss in losses.items()])
    return {"value": float(np.mean(list(losses.values()))), "text": text, "n": len(losses), "unit": "points"}


def own_accuracy(table: pd.DataFrame) -> dict[str, Reported]:
    """Top-1 of each backbone's own head, unscaled; None where its classes are others."""
    found: dict[str, Reported] = {}
    for row in table[table["factor"] == 1.0].itertuples():
        known = not np.isnan(row.top1)
        value = float(row.top1) if known else None
        text = f"{row.top1:.1f} %" if known else "not measured: its head names other classes"
        found[row.backbone] = {"value": value, "unit": "%", "text": text}
    return found
