"""A drawing as PNG in fewer bytes and with the same look: a palette, where 256 colours are enough."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

MOST_COLOURS = 256
KEPT = 64
"""Colours that a palette takes over as they are: grounds, lines and fills, which are most of the pixels."""
FURTHEST = 16
"""How far, of 255 levels, a channel of any other colour may be moved: of edges of lines and letters."""
SPREAD = 1.0
"""What it may cost over the whole picture, root mean square in levels; heat maps would show bands."""
DRAWN = 1 << 13
"""Colours beyond which a picture is taken for a photograph and left alone."""


def small_png(png: bytes) -> bytes:
    """The same picture in the fewest bytes of those tried: as it came, or with a palette.

    Up to 256 colours are kept exactly. Of more, the most frequent ones are, and the others are put into what
    is left of the palette if that moves no channel of any by more than `FURTHEST` levels, and the whole by at
    most `SPREAD`. Photographs, and what is not opaque, are returned as they came. Equal bytes give equal
    bytes.
    """
    picture = Image.open(io.BytesIO(png))
    pixels = np.asarray(picture.convert("RGBA"))
    if pixels[..., 3].min() < 255:
        return png
    codes = pixels[..., :3].astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], dtype=np.uint32)
    found, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
    colours = np.stack([found >> 16, found >> 8 & 255, found & 255], axis=1).astype(np.uint8)
    palette, entries = colours, np.arange(len(colours))
    if len(colours) > MOST_COLOURS:
        if len(colours) > DRAWN:
            return png
        palette = _palette(colours[np.argsort(-counts, kind="stable")])
        entries = _nearest(colours, palette)
        moved = np.abs(palette[entries].astype(int) - colours)
        spread = np.sqrt(np.average(np.square(moved).mean(axis=1), weights=counts))
        if moved.max() > FURTHEST or spread > SPREAD:
            return png
    made = Image.fromarray(entries.astype(np.uint8)[places].reshape(codes.shape))
    made.putpalette(palette.tobytes())
    buffer = io.BytesIO()
    made.save(buffer, format="png", optimize=True, dpi=picture.info.get("dpi"))
    return min(png, buffer.getvalue(), key=len)


def _palette(colours: np.ndarray) -> np.ndarray:
    """256 colours for those given, most frequent first: these as they are, and some near all others."""
    others = Image.fromarray(colours[None, KEPT:]).quantize(
        MOST_COLOURS - KEPT, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
    )
    near = np.asarray(others.getpalette(), dtype=np.uint8).reshape(-1, 3)[: MOST_COLOURS - KEPT]
    return np.concatenate([colours[:KEPT], near])


def _nearest(colours: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """Of each colour, the entry of the palette that is nearest to it."""
    from scipy.spatial import cKDTree

    return cKDTree(palette.astype(float)).query(colours.astype(float))[1]
