"""Both parts of an annotated set as a backbone sees them, and their tokens within a budget of memory.

Tokens of as many states as fit the budget are held at once; the model runs again for the next ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vitscope.backbones import Backbone
from vitscope.dense import examples
from vitscope.dense.examples import Annotated, Prepared
from vitscope.transforms import Transform

_BYTES = 4 << 30  # tokens of all states held at a time


@dataclass(frozen=True)
class Part:
    """One split of a set, and what a backbone sees of it."""

    data: Annotated
    seen: Prepared

    @property
    def clusters(self) -> np.ndarray:
        """What belongs together when pictures are drawn again [N]."""
        return np.asarray(self.data.clusters)

    def some(self, count: int) -> Part:
        """At most `count` of the pictures, evenly spaced over the part."""
        if count >= len(self.data):
            return self
        at = np.linspace(0, len(self.data) - 1, count).round().astype(int)
        rows = torch.from_numpy(at)
        data = replace(self.data, images=self.data.images.select(at), clusters=self.clusters[at])
        maps = (self.seen.mask, self.seen.depth, self.seen.boxes)
        return Part(data, Prepared(self.seen.inputs[rows], *(None if m is None else m[rows] for m in maps)))


@dataclass(frozen=True)
class Pair:
    """The training and the test part of a set, as one backbone sees them."""

    train: Part
    test: Part

    @property
    def name(self) -> str:
        return self.test.data.name


def load(
    scenes: str, boxes: str, depth: str, *, images: int, test_images: int, seed: int
) -> dict[str, tuple[Annotated, Annotated]]:
    """Training and test part of the sets by use: "scenes", "boxes", "depth", and "objects".

    "objects" is the set of `boxes` where it has masks and labels as well: one object, of which the label
    speaks. Where it has not there is no such use, and "boxes", which trains nothing, is its test part twice.
    """
    found: dict[str, tuple[Annotated, Annotated]] = {}
    for use, name in (("scenes", scenes), ("boxes", boxes), ("depth", depth)):
        known = [parts for other, parts in found.items() if parts[0].name == name and other != "boxes"]
        if known:
            found[use] = known[0]
            continue
        test = examples.load(name, "test", limit=test_images, seed=seed)
        whole = "segmentation" in test.kinds and len(test.images.classes) > 1
        if use == "boxes" and not whole:
            found[use] = (test, test)
            continue
        found[use] = (examples.load(name, "train", limit=images, seed=seed), test)
        if use == "boxes":
            found["objects"] = found[use]
    return found


def prepared(
    backbones: Sequence[Backbone], sets: Mapping[str, Sequence[Annotated]]
) -> dict[str, dict[str, Pair]]:
    """By backbone and use: training and test part of every set as the backbone sees them.

    Sets of equal digest, and backbones of equal transform, share what is prepared. Errors as
    `dense.examples.prepare`.
    """
    made: dict[tuple[str, Transform], Part] = {}

    def part(backbone: Backbone, one: Annotated) -> Part:
        key = (f"{one.name} {one.images.digest}", backbone.transform)
        if key not in made:
            made[key] = Part(one, examples.prepare(backbone, one))
        return made[key]

    return {
        b.name: {use: Pair(*(part(b, one) for one in loaded)) for use, loaded in sets.items()}
        for b in backbones
    }


def by_states(
    backbone: Backbone, parts: Sequence[Part], norm: str, states: Sequence[int], *, single: bool = False
) -> Iterator:
    """Tokens of all parts, of as many states at a time as the budget holds."""
    pictures = sum(len(part.seen.inputs) for part in parts)
    size = 4 * pictures * backbone.num_patches * backbone.width
    step = max(1, _BYTES // size)
    for start in range(0, len(states), step):
        some = list(states[start : start + step])
        found = [examples.tokens(backbone, part.seen.inputs, norm=norm, states=some) for part in parts]
        yield found[0] if single else found


def needed(part: Part, kind: str) -> Tensor:
    value = getattr(part.seen, kind)
    if value is None:
        raise ValueError(
            f"{part.data.name} has no {kind}; its annotations are: {', '.join(part.data.kinds) or 'none'}"
        )
    return value
