"""What backbones make of a few pictures, for the galleries of the chapter on semantic diffusion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitscope import gallery
from vitscope.backbones import Backbone
from vitscope.dense import examples
from vitscope.dense.boxes import box_patches, cls_scores
from vitscope.dense.pca import PcaMaps, pca_rgb
from vitscope.dense_parts import Part
from vitscope.diffusion_attention import Attention
from vitscope.diffusion_measures import coverage
from vitscope.figures import Figure


def scores(backbone: Backbone, part: Part, *, norm: str, count: int) -> Figure:
    """Cosine of patches with CLS over some block states, on the first pictures that have one object."""
    boxes = part.seen.boxes
    if boxes is None:
        raise ValueError(f"{part.data.name} has no boxes")
    single = (~boxes.isnan().any(2)).sum(1) == 1
    rows = single.nonzero()[:count, 0]
    inputs = part.seen.inputs[rows]
    states = gallery.shown(backbone.states[2:])
    tokens = examples.tokens(backbone, inputs, norm=norm, states=states)
    assert tokens.cls is not None  # models without CLS are told apart before
    return gallery.score_maps(
        gallery.originals(inputs, backbone.transform),
        cls_scores(tokens.cls, tokens.patches).numpy(),
        states,
        backbone.grid,
        box_patches(boxes[rows], backbone.grid).numpy(),
        "score_maps",
    )


def pca_layers(backbone: Backbone, part: Part, *, norm: str, count: int) -> Figure:
    """PCA colours of some of the states on the basis of the last one, fitted to all pictures of `part`."""
    states = gallery.shown(backbone.states[1:])
    tokens = examples.tokens(backbone, part.seen.inputs, norm=norm, states=states)
    by_state = {f"state {s}": x for s, x in zip(reversed(states), tokens.patches.flip(0), strict=True)}
    maps = pca_rgb(by_state, backbone.grid)  # the first entry is the basis
    upwards = PcaMaps(maps.rgb[::-1], maps.explained[::-1], maps.agreement[::-1], maps.names[::-1])
    return gallery.pca_colours(_first(backbone, part, count), upwards, upwards.names, "pca_layers")


def pca_models(backbones: Sequence[Backbone], parts: Sequence[Part], *, norm: str, count: int) -> Figure:
    """PCA colours of the last state of several backbones of one grid, on the basis of the first.

    Raises ValueError for other grids or pictures, as `dense.pca.pca_rgb`.
    """
    last = {
        b.name: examples.tokens(b, part.seen.inputs, norm=norm, states=[b.depth]).patches[0]
        for b, part in zip(backbones, parts, strict=True)
    }
    maps = pca_rgb(last, backbones[0].grid)
    return gallery.pca_colours(_first(backbones[0], parts[0], count), maps, maps.names, "pca_models")


def heads(backbone: Backbone, part: Part, looked: Attention, *, count: int) -> Figure:
    """CLS attention of the last block, head by head. Raises ValueError for a model without CLS."""
    if looked.cls is None:
        raise ValueError(f"{backbone.name} has no CLS token, so there is no attention of it to show")
    rows = looked.cls[-1, :count].transpose(0, 1).numpy()
    covered = coverage(part, backbone)[:count].numpy()
    return gallery.head_maps(_first(backbone, part, count), rows, backbone.grid, covered, "head_maps")


def _first(backbone: Backbone, part: Part, count: int) -> np.ndarray:
    return gallery.originals(part.seen.inputs[:count], backbone.transform)
