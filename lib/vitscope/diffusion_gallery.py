"""What backbones make of a few pictures, for the galleries of the chapter on semantic diffusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vitscope import explore_gallery, gallery
from vitscope.backbones import Backbone
from vitscope.dense import examples
from vitscope.dense.boxes import box_patches, cls_scores
from vitscope.dense.pca import PcaMaps
from vitscope.dense_parts import Part
from vitscope.diffusion_attention import Attention
from vitscope.diffusion_measures import coverage
from vitscope.figures import Figure


def scores(backbone: Backbone, part: Part, *, norm: str, count: int) -> Figure:
    """Cosine of patches with CLS over some block states, on the first pictures that have one object.

    Readers explore all of them.
    """
    boxes = part.seen.boxes
    if boxes is None:
        raise ValueError(f"{part.data.name} has no boxes")
    single = (~boxes.isnan().any(2)).sum(1) == 1
    rows = single.nonzero()[:count, 0]
    inputs = part.seen.inputs[rows]
    every = backbone.states[2:]
    states = gallery.shown(every)
    tokens = examples.tokens(backbone, inputs, norm=norm, states=every)
    assert tokens.cls is not None  # models without CLS are told apart before
    originals = gallery.originals(inputs, backbone.transform)
    cosines = cls_scores(tokens.cls, tokens.patches).numpy()
    some = cosines[[every.index(s) for s in states]]
    owned = box_patches(boxes[rows], backbone.grid).numpy()
    figure = gallery.score_maps(originals, some, states, backbone.grid, owned, "score_maps")
    explorer = explore_gallery.scores(originals, cosines, every, backbone.grid, owned, name=backbone.name)
    return replace(figure, explorer=explorer)


def pca_layers(backbone: Backbone, part: Part, *, norm: str, count: int) -> Figure:
    """PCA colours of some of the states on the basis of the last one, fitted to all pictures of `part`.

    Readers explore all states.
    """
    originals, name = _first(backbone, part, count), backbone.name
    maps, places = explore_gallery.pca_of_states([backbone], {name: part.seen.inputs}, norm=norm)
    states = gallery.shown(backbone.states[1:])
    some = [places.index((name, s)) for s in states]
    shown = PcaMaps(maps.rgb[some], maps.explained[some], maps.agreement[some], tuple(map(str, states)))
    figure = gallery.pca_colours(originals, shown, [f"state {s}" for s in states], "pca_layers")
    title = f"what the patches of {name} are alike in, state by state"
    return replace(figure, explorer=explore_gallery.pca(originals, maps, places, title=title))


def pca_models(backbones: Sequence[Backbone], parts: Sequence[Part], *, norm: str, count: int) -> Figure:
    """PCA colours of the last state of several backbones of one grid, on the basis of the first.

    Readers explore all states of all of them on that basis. Raises ValueError for other grids or pictures, as
    `dense.pca.pca_rgb`.
    """
    originals = _first(backbones[0], parts[0], count)
    inputs = {b.name: part.seen.inputs for b, part in zip(backbones, parts, strict=True)}
    maps, places = explore_gallery.pca_of_states(backbones, inputs, norm=norm)
    last = [places.index((b.name, b.depth)) for b in backbones]
    shown = PcaMaps(maps.rgb[last], maps.explained[last], maps.agreement[last], tuple(inputs))
    figure = gallery.pca_colours(originals, shown, shown.names, "pca_models")
    title = f"what the patches are alike in, {', '.join(inputs)}, state by state"
    return replace(figure, explorer=explore_gallery.pca(originals, maps, places, title=title))


def heads(backbone: Backbone, part: Part, looked: Attention, *, count: int) -> Figure:
    """CLS attention of the last block, head by head; readers explore all blocks.

    Raises ValueError for a model without CLS.
    """
    if looked.cls is None:
        raise ValueError(f"{backbone.name} has no CLS token, so there is no attention of it to show")
    every = looked.cls[:, :count].permute(2, 0, 1, 3).numpy()  # [H, L, N, P]
    originals, covered = _first(backbone, part, count), coverage(part, backbone)[:count].numpy()
    figure = gallery.head_maps(originals, every[:, -1], backbone.grid, covered, "head_maps")
    explorer = explore_gallery.by_block(
        originals,
        {f"head {h}": of for h, of in enumerate(every, start=1)},
        backbone.grid,
        title=f"where CLS of {backbone.name} looks, head by head and block by block",
        what="the attention of CLS (dark: most, each map on a scale of its own)",
        note=lambda maps: f"{100 * float(((maps * covered).sum(1) / maps.sum(1)).mean()):.0f} %",
        head=("head", f"on objects, which cover {100 * float(covered.mean()):.0f} %"),
    )
    return replace(figure, explorer=explorer)


def _first(backbone: Backbone, part: Part, count: int) -> np.ndarray:
    return gallery.originals(part.seen.inputs[:count], backbone.transform)
