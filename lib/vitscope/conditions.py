"""The negative controls of a chapter: the same measurement where what is claimed should not be found."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from vitscope.attention_maps import UnknownAttention
from vitscope.backbones import Backbone, UnsupportedModel
from vitscope.controls import shuffled_patches, without_position
from vitscope.data.images import Images
from vitscope.source import Pictures

TRAINED = "as it is"


class Condition(NamedTuple):
    """A model, and what it is fed."""

    backbone: Backbone
    pictures: Pictures


def conditions(backbone: Backbone, untrained: Backbone, images: Images, *, seed: int) -> dict[str, Condition]:
    """The backbone itself and its controls, by name, all on the same images in the same order.

    - "as it is"
    - "random weights": the same architecture, `untrained`
    - "patches shuffled": patches of every picture in a random order of its own
    - "no position embedding": left out for models that have no learned one, or another way to tell places
    """
    found = {
        TRAINED: Condition(backbone, images),
        "random weights": Condition(untrained, images),
        "patches shuffled": Condition(backbone, shuffled_patches(backbone, images, seed=seed)),
    }
    with suppress(UnsupportedModel, UnknownAttention):
        # there is nothing to take away, or not all of it can be
        found["no position embedding"] = Condition(without_position(backbone), images)
    return found
