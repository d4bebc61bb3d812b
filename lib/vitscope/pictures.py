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
    width = max(r.shape[1] for r in rows) * _INCH_PER_PIXEL + 1.4
    height = sum(r.shape[0] for r in rows) * _INCH_PER_PIXEL + 0.1 * len(rows)
    with plotting.style():
        # no pyplot: its open figures are shown a second time by a notebook
        figure = Canvas(figsize=(width, height), layout="constrained")
        ratios = {"height_ratios": [r.shape[0] for r in rows]}
        axes = figure.subplots(len(rows), 1, squeeze=False, gridspec_kw=ratios)
        for axis, row, label in zip(axes[:, 0], rows, labels, strict=True):
            axis.imshow(row, interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_frame_on(False)
            axis.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=10)
    return plotting.Figure(fig=figure, data=data, alt=alt, name=name)


def class_colours(mask: np.ndarray, classes: int) -> np.ndarray:
    """A class mask [h, w] as uint8 [h, w, 3]: class 0 dark grey, the others evenly around the colour circle."""
    hues = matplotlib.colormaps["hsv"](np.linspace(0, 1, classes, endpoint=False))[:, :3]
    colours = np.concatenate([[[0.18, 0.18, 0.18]], hues[: classes - 1]])
    return np.rint(255 * colours[mask]).astype(np.uint8)


def shades(values: np.ndarray) -> np.ndarray:
    """Values in [0, 1] as uint8 [h, w, 3] on a perceptual scale, small values bright."""
    return np.rint(255 * matplotlib.colormaps["viridis_r"](values)[..., :3]).astype(np.uint8)
