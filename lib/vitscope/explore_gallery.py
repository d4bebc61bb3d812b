"""The galleries of the book with a slider: PCA colours, likeness to CLS and attention, state by state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from vitscope.backbones import Backbone
from vitscope.dense import examples
from vitscope.dense.pca import PcaMaps, pca_rgb
from vitscope.explore import Explorer
from vitscope.explore_pictures import Tiles, pictures
from vitscope.gallery import shaded

Originals = UInt8[np.ndarray, "N s s 3"]
Draw = Callable[[np.ndarray, tuple[int, int]], np.ndarray]
Note = Callable[[np.ndarray], str]


def pca_of_states(
    backbones: Sequence[Backbone], inputs: Mapping[str, Tensor], *, norm: str
) -> tuple[PcaMaps, list[tuple[str, int]]]:
    """PCA colours of every state of several backbones of one grid, and the (name, state) of each entry.

    All are turned onto the basis of the last state of the first backbone, which is the first entry; the
    others follow by backbone, from state 0 on. Errors: as `dense.pca.pca_rgb`.
    """
    first, entries = backbones[0], dict[tuple[str, int], Tensor]()
    for b in backbones:
        states = b.states[1:]
        tokens = examples.tokens(b, inputs[b.name], norm=norm, states=states)
        entries |= {(b.name, s): x for s, x in zip(states, tokens.patches, strict=True)}
    places = sorted(entries, key=lambda place: place != (first.name, first.depth))
    maps = pca_rgb({f"{name}, state {state}": entries[name, state] for name, state in places}, first.grid)
    return maps, places


def pca(originals: Originals, maps: PcaMaps, places: Sequence[tuple[str, int]], *, title: str) -> Explorer:
    """PCA colours by state, a row for each model; `places` name the model and state of every entry of `maps`.

    All entries are on the basis of the first one, so that colours can be followed along the slider.
    """
    count = len(originals)
    tiles = [
        Tiles(
            name,
            state,
            np.rint(255 * maps.rgb[k, :count]).astype(np.uint8),
            f"{100 * maps.explained[k].sum():.0f} % of variance, agreement {maps.agreement[k]:.2f}",
        )
        for k, (name, state) in enumerate(places)
    ]
    return pictures(
        originals,
        sorted(tiles, key=lambda one: one.step),
        title=title,
        label="state",
        what="three principal components of their patches as colours, turned onto the basis of "
        f"{places[0][0]} at state {places[0][1]}",
        head=("model", "three components, and their agreement with the basis"),
        start=places[0][1],
    )


def scores(
    originals: Originals,
    cosines: Float[np.ndarray, "S N P"],
    states: Sequence[int],
    grid: tuple[int, int],
    owned: Bool[np.ndarray, "N P"],
    *,
    name: str,
) -> Explorer:
    """How alike each patch is to CLS, by state, and whether the best patch is in the box (`owned`)."""
    tiles = []
    for state, by_picture in zip(states, cosines, strict=True):
        hits = sum(bool(owned[n, score.argmax()]) for n, score in enumerate(by_picture))
        note = (
            f"cosines {by_picture.min():.2f} to {by_picture.max():.2f}; most alike patch in the box in "
            f"{hits} of {len(by_picture)}"
        )
        tiles.append(Tiles("likeness to CLS", state, shaded(by_picture, grid), note))
    return pictures(
        originals,
        tiles,
        title=f"which patches of {name} are most like CLS, state by state",
        label="state",
        what="the cosine of every patch with CLS (dark: most alike, each map on a scale of its own)",
        head=("map", "what was found"),
    )


def by_block(
    originals: Originals,
    rows: Mapping[str, Float[np.ndarray, "L N P"]],
    grid: tuple[int, int],
    *,
    title: str,
    what: str,
    note: Note,
    head: tuple[str, str],
    draw: Draw = shaded,
    start: int | None = None,
) -> Explorer:
    """Maps of every block, a row for each name; `note` says in words what the maps of one block [N, P] hold.

    `draw` makes tiles of them, of as many as there are originals. The first entry of each row is block 1.
    """
    count = len(originals)
    tiles = [
        Tiles(name, block, draw(maps[:count], grid), note(maps))
        for name, of in rows.items()
        for block, maps in enumerate(of, start=1)
    ]
    return pictures(originals, tiles, title=title, label="block", what=what, head=head, start=start)
