"""What the variants of a family make of the same pictures: PCA colours, and what CLS attends to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from vitscope import explore_gallery, gallery
from vitscope.dense.masks import patch_coverage
from vitscope.dense.pca import PcaMaps
from vitscope.dense_layers import Part
from vitscope.figures import Figure
from vitscope.pictures import picture_rows, shades
from vitscope.variants import Family
from vitscope.variants_measure import ATTENTION_PICTURES
from vitscope.variants_numbers import Measured


def pca(family: Family, part: Part, *, norm: str, count: int, name: str) -> Figure:
    """PCA colours of the last state of all variants of the first training, turned onto the baseline's.

    Readers explore all states. Components are fitted to the pictures whose attention is read; the first
    `count` of them are shown.
    """
    some = part.some(ATTENTION_PICTURES)
    models = [replace(v.dense, name=v.name) for v in family.trainings[0]]
    inputs = {m.name: some.seen.inputs for m in models}
    maps, places = explore_gallery.pca_of_states(models, inputs, norm=norm)
    last = [places.index((m.name, m.depth)) for m in models]
    shown = PcaMaps(maps.rgb[last], maps.explained[last], maps.agreement[last], tuple(inputs))
    pictures = gallery.originals(some.seen.inputs[:count], models[0].transform)
    figure = gallery.pca_colours(pictures, shown, shown.names, name)
    title = "what the patches of every variant are alike in, state by state"
    return replace(figure, explorer=explore_gallery.pca(pictures, maps, places, title=title))


def attention(one: Measured, part: Part, *, count: int, name: str) -> Figure | None:
    """What CLS of the last block attends to, the mean over heads (dark: most; white: exactly zero).

    Readers explore all blocks.
    The share of it on objects is in the table, where the set knows what is background. None without CLS.
    """
    some = part.some(ATTENTION_PICTURES)
    first = one.family.trainings[0][0].dense
    every = {}
    for n in one.family.names:
        looked = one.of(n)[0].looked
        if looked is not None and looked.cls is not None:
            every[n] = looked.cls.mean(2).numpy().astype(float)  # [L, N, P]
    if not every:
        return None
    maps = {n: of[-1] for n, of in every.items()}
    known = part.data.classes[0].startswith("background") and some.seen.mask is not None
    covered = (
        patch_coverage(some.seen.mask, first.grid).numpy() if known and some.seen.mask is not None else None
    )

    def found(a: np.ndarray) -> dict[str, float]:
        zeros = {"exact zeros (%)": 100 * float((a == 0).mean())}
        if covered is None:
            return zeros
        return zeros | {"on objects (%)": 100 * float(((a * covered).sum(1) / a.sum(1)).mean())}

    strips = [gallery.strip(_tiles(a[:count], first.grid)) for a in maps.values()]
    table = pd.DataFrame([{"variant": n, **found(a)} for n, a in maps.items()])
    said = "; ".join(
        ", ".join([str(row["variant"]), *(f"{k} {v:.1f}" for k, v in row.items() if k != "variant")])
        for row in table.to_dict("records")
    )
    pictures = gallery.originals(some.seen.inputs[:count], first.transform)
    figure = picture_rows(
        [gallery.strip(pictures), *strips],
        labels=["picture", *maps],
        name=name,
        data=table,
        alt=f"{count} pictures and the attention of CLS in the last block, mean over heads; {said}.",
    )
    explorer = explore_gallery.by_block(
        pictures,
        every,
        first.grid,
        title="where CLS of every variant looks, block by block",
        what="the attention of CLS, mean over heads (dark: most; white: exactly zero)",
        note=lambda a: ", ".join(f"{k} {v:.1f}" for k, v in found(a).items()),
        head=("variant", f"over {len(some.seen.inputs)} pictures"),
        draw=_tiles,
    )
    return replace(figure, explorer=explorer)


def _tiles(maps: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    return np.stack([_tile(one, grid) for one in maps])


def _tile(attention: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Shades of a map from 0 to its largest weight; exact zeros, of every head, are white."""
    tile = shades((attention / max(attention.max(), np.finfo(float).tiny)).reshape(grid))
    tile[(attention == 0).reshape(grid)] = 255
    return tile
