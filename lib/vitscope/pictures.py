"""Figures made of pictures: rows of tiles, class maps, depth maps."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from vitscope import plotting

_INCH_PER_PIXEL = 1 / 110


def picture_rows(
    rows: Sequence[np.ndarray], *, labels: Sequence[str], name: str, data: pd.DataFrame, alt: str
) -> plotting.Figure:
    """Strips uint8 [h, w, 3] one above the other, each with its label at the left."""
    if len(rows) != len(labels):
        raise ValueError(f"{len(rows)} strips need as many labels, got {len(labels)}")
    gap, margin = 0.06, 0.1 + 0.075 * max(len(label) for label in labels)  # inches
    width = margin + max(r.shape[1] for r in rows) * _INCH_PER_PIXEL
    heights = [r.shape[0] * _INCH_PER_PIXEL for r in rows]
    height = sum(heights) + gap * (len(rows) - 1)
    with plotting.style():
        # no pyplot: its open figures are shown a second time by a notebook
        figure = Canvas(figsize=(width, height))
        top = height
        for row, label, tall in zip(rows, labels, heights, strict=True):
            wide = row.shape[1] * _INCH_PER_PIXEL
            box = (margin / width, (top - tall) / height, wide / width, tall / height)
            axis = figure.add_axes(box, frameon=False, xticks=[], yticks=[])
            axis.imshow(row, interpolation="nearest", aspect="auto")
            axis.text(-0.06 / wide, 0.5, label, ha="right", va="center", fontsize=9, transform=axis.transAxes)
            top -= tall + gap
    return plotting.Figure(fig=figure, data=data, alt=alt, name=name)


def class_colours(mask: np.ndarray, classes: int) -> np.ndarray:
    """A class mask [h, w] as uint8 [h, w, 3]: class 0 dark grey, others evenly around the colour circle."""
    hues = matplotlib.colormaps["hsv"](np.linspace(0, 1, classes, endpoint=False))[:, :3]
    colours = np.concatenate([[[0.18, 0.18, 0.18]], hues[: classes - 1]])
    return np.rint(255 * colours[mask]).astype(np.uint8)


def shades(values: np.ndarray) -> np.ndarray:
    """Values in [0, 1] as uint8 [h, w, 3] on a perceptual scale, small values bright."""
    return np.rint(255 * matplotlib.colormaps["viridis_r"](values)[..., :3]).astype(np.uint8)
