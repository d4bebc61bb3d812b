"""Galleries: what a backbone makes of a few pictures, map by map, each row a layer, a head or a model.

Maps are enlarged patch by patch, without smoothing: what looks like a patch is one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitscope.dense.pca import PcaMaps
from vitscope.figures import Figure
from vitscope.pictures import picture_rows, shades
from vitscope.transforms import Transform

MOST_ROWS = 6
SIDE = 96  # pixels of a tile
_GAP = 4


def shown(states: Sequence[int], most: int = MOST_ROWS) -> list[int]:
    """At most so many of the states, evenly spaced, the first and the last among them.

    >>> shown(range(1, 13), 4)
    [1, 5, 8, 12]
    """
    if not states or most < 2:
        raise ValueError(f"a gallery needs states, and room for two or more, got {len(states)} and {most}")
    at = np.linspace(0, len(states) - 1, min(most, len(states))).round().astype(int)
    return [states[i] for i in at]


def originals(inputs: Float[Tensor, "N 3 s s"], transform: Transform) -> UInt8[np.ndarray, "N s s 3"]:
    """The pictures a transform was made of, as the backbone sees them: resized and cut, colours undone."""
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (transform.mean, transform.std))
    pictures = (inputs.cpu() * std + mean).mul(255).round().clamp(0, 255)
    return pictures.permute(0, 2, 3, 1).to(torch.uint8).numpy()


def strip(tiles: UInt8[np.ndarray, "N r c 3"], side: int = SIDE) -> UInt8[np.ndarray, "h w 3"]:
    """Tiles side by side with white between, each enlarged or reduced to `side` pixels a row, nearest pixel.

    >>> strip(np.zeros((2, 1, 1, 3), np.uint8), side=3).shape
    (3, 10, 3)
    """
    if tiles.ndim != 4 or tiles.shape[3] != 3 or tiles.dtype != np.uint8 or 0 in tiles.shape:
        raise ValueError(f"tiles must be uint8 [N, rows, columns, 3], got {tiles.dtype} {tiles.shape}")
    high, wide = side, max(1, round(side * tiles.shape[2] / tiles.shape[1]))
    row = (2 * np.arange(high) + 1) * tiles.shape[1] // (2 * high)
    column = (2 * np.arange(wide) + 1) * tiles.shape[2] // (2 * wide)
    parts = [np.full((high, _GAP, 3), 255, np.uint8)] * (2 * len(tiles) - 1)
    parts[::2] = list(tiles[:, row][:, :, column])
    return np.concatenate(parts, axis=1)


def _scaled(maps: np.ndarray) -> np.ndarray:
    """Maps [N, P], each from its own smallest value, 0, to its own largest, 1; 0 for one that is flat."""
    low, high = maps.min(1, keepdims=True), maps.max(1, keepdims=True)
    return (maps - low) / np.where(high > low, high - low, 1.0)


def shaded(maps: Float[np.ndarray, "N P"], grid: tuple[int, int]) -> UInt8[np.ndarray, "N r c 3"]:
    """Maps as tiles, each from its own smallest value (bright) to its own largest (dark)."""
    return np.stack([shades(one.reshape(grid)) for one in _scaled(maps)])


def score_maps(
    pictures: UInt8[np.ndarray, "N s s 3"],
    scores: Float[np.ndarray, "S N P"],
    states: Sequence[int],
    grid: tuple[int, int],
    owned: np.ndarray,
    name: str,
) -> Figure:
    """Cosine of every patch with CLS by state (dark: most alike), and whether the best patch is in the box.

    `owned` [N, P]: the patches of each picture's box (`dense.boxes.box_patches`). Every map has a scale of
    its own. Raises ValueError for shapes that do not fit.
    """
    _fit(pictures, scores, len(states), grid)
    rows = []
    for state, by_picture in zip(states, scores, strict=True):
        for n, score in enumerate(by_picture):
            best = int(score.argmax())
            ends, place = (float(score.min()), float(score.max())), divmod(best, grid[1])
            rows.append((state, n + 1, *ends, *place, bool(owned[n, best])))
    columns = ["state", "picture", "lowest", "highest", "row", "column", "in box"]
    table = pd.DataFrame(rows, columns=columns)
    hits = "; ".join(
        f"state {state}: {int(part['in box'].sum())} of {len(part)}, cosines {part['lowest'].min():.2f} to "
        f"{part['highest'].max():.2f}"
        for state, part in table.groupby("state", sort=False)
    )
    return picture_rows(
        [strip(pictures), *(strip(shaded(one, grid)) for one in scores)],
        labels=["picture", *(f"state {state}" for state in states)],
        name=name,
        data=table,
        alt=f"{len(pictures)} pictures, and how alike each patch is to CLS; best patch in the box at {hits}.",
    )


def pca_colours(
    pictures: UInt8[np.ndarray, "N s s 3"], maps: PcaMaps, labels: Sequence[str], name: str
) -> Figure:
    """PCA colours of the first pictures of `maps`, a row an entry. Raises ValueError for other shapes."""
    count = len(pictures)
    if maps.rgb.ndim != 5 or len(maps.rgb) != len(labels) or maps.rgb.shape[1] < count:
        raise ValueError(
            f"maps must be [{len(labels)}, {count} or more, rows, columns, 3], got {maps.rgb.shape}"
        )
    table = pd.DataFrame(
        {
            "entry": list(labels),
            "variance explained (%)": 100 * maps.explained.sum(1),
            "agreement with the basis": maps.agreement,
        }
    )
    said = "; ".join(
        f"{row[0]}: {row[1]:.0f} % of variance, agreement {row[2]:.2f}"
        for row in table.itertuples(index=False, name=None)
    )
    tiles = np.rint(255 * maps.rgb[:, :count]).astype(np.uint8)
    return picture_rows(
        [strip(pictures), *map(strip, tiles)],
        labels=["picture", *labels],
        name=name,
        data=table,
        alt=f"{count} pictures and three principal components of their patches as colours, turned onto one "
        f"basis; {said}.",
    )


def head_maps(
    pictures: UInt8[np.ndarray, "N s s 3"],
    attention: Float[np.ndarray, "H N P"],
    grid: tuple[int, int],
    covered: np.ndarray,
    name: str,
) -> Figure:
    """What CLS attends to by head (dark: most), and the share of it on objects.

    `covered` [N, P]: share of each patch that is object. Every map has a scale of its own. Raises ValueError
    for shapes that do not fit.
    """
    _fit(pictures, attention, len(attention), grid)
    mass = (attention * covered).sum(2) / attention.sum(2)
    rows = [
        {"head": head, "picture": n, "attention on objects (%)": 100 * float(share)}
        for head, shares in enumerate(mass, start=1)
        for n, share in enumerate(shares, start=1)
    ]
    said = ", ".join(f"head {h} {100 * share:.0f} %" for h, share in enumerate(mass.mean(1), start=1))
    return picture_rows(
        [strip(pictures), *(strip(shaded(one, grid)) for one in attention)],
        labels=["picture", *(f"head {h}" for h in range(1, len(attention) + 1))],
        name=name,
        data=pd.DataFrame(rows),
        alt=f"{len(pictures)} pictures and the attention of CLS by head; of it on objects (which cover "
        f"{100 * float(covered.mean()):.0f} %): {said}.",
    )


def _fit(pictures: np.ndarray, maps: np.ndarray, rows: int, grid: tuple[int, int]) -> None:
    wanted = (rows, len(pictures), grid[0] * grid[1])
    if maps.shape != wanted or not np.isfinite(maps).all():
        raise ValueError(f"maps must be finite [{', '.join(map(str, wanted))}], got {maps.shape}")
