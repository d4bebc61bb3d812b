"""What the variants of a family make of the same pictures: PCA colours, and what CLS attends to."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vitscope import gallery
from vitscope.dense import examples
from vitscope.dense.masks import patch_coverage
from vitscope.dense.pca import pca_rgb
from vitscope.dense_layers import Part
from vitscope.figures import Figure
from vitscope.pictures import picture_rows, shades
from vitscope.variants import Family
from vitscope.variants_measure import ATTENTION_PICTURES
from vitscope.variants_numbers import Measured


def pca(family: Family, part: Part, *, norm: str, count: int, name: str) -> Figure:
    """PCA colours of the last state of all variants of the first training, turned onto the baseline's.

    Components are fitted to the pictures whose attention is read; the first `count` of them are shown.
    """
    some = part.some(ATTENTION_PICTURES)
    last = {
        v.name: examples.tokens(v.dense, some.seen.inputs, norm=norm, states=[v.dense.depth]).patches[0]
        for v in family.trainings[0]
    }
    first = family.trainings[0][0].dense
    maps = pca_rgb(last, first.grid)
    pictures = gallery.originals(some.seen.inputs[:count], first.transform)
    return gallery.pca_colours(pictures, maps, maps.names, name)


def attention(one: Measured, part: Part, *, count: int, name: str) -> Figure | None:
    """What CLS of the last block attends to, the mean over heads (dark: most; white: exactly zero).

    The share of it on objects is in the table, where the set knows what is background. None without CLS.
    """
    some = part.some(ATTENTION_PICTURES)
    first = one.family.trainings[0][0].dense
    maps = {}
    for n in one.family.names:
        looked = one.of(n)[0].looked
        if looked is not None and looked.cls is not None:
            maps[n] = looked.cls[-1].mean(1).numpy().astype(float)  # [N, P]
    if not maps:
        return None
    known = part.data.classes[0].startswith("background") and some.seen.mask is not None
    covered = (
        patch_coverage(some.seen.mask, first.grid).numpy() if known and some.seen.mask is not None else None
    )
    rows, strips = [], []
    for n, a in maps.items():
        row = {"variant": n, "exact zeros (%)": 100 * float((a == 0).mean())}
        if covered is not None:
            row["on objects (%)"] = 100 * float(((a * covered).sum(1) / a.sum(1)).mean())
        rows.append(row)
        strips.append(gallery.strip(np.stack([_tile(m, first.grid) for m in a[:count]])))
    table = pd.DataFrame(rows)
    said = "; ".join(
        ", ".join([str(row["variant"]), *(f"{k} {v:.1f}" for k, v in row.items() if k != "variant")])
        for row in table.to_dict("records")
    )
    pictures = gallery.originals(some.seen.inputs[:count], first.transform)
    return picture_rows(
        [gallery.strip(pictures), *strips],
        labels=["picture", *maps],
        name=name,
        data=table,
        alt=f"{count} pictures and the attention of CLS in the last block, mean over heads; {said}.",
    )


def _tile(attention: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Shades of a map from 0 to its largest weight; exact zeros, of every head, are white."""
    tile = shades((attention / max(attention.max(), np.finfo(float).tiny)).reshape(grid))
    tile[(attention == 0).reshape(grid)] = 255
    return tile
