"""Controls: the same pictures without their layout, the same model without position.

A curve over depth that survives shuffled patches does not need the layout of the picture; one that survives
the removal of the position embedding does not need to know where a patch is.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitscope import attention_maps
from vitscope.backbones import Backbone, UnsupportedModel
from vitscope.data.images import Images
from vitscope.data.seeding import uniforms
from vitscope.position import scaled

_AT_ONCE = 256  # pictures that are decoded at a time


def shuffled_patches(
    backbone: Backbone, images: Images, *, seed: int
) -> tuple[Float[Tensor, "N 3 H W"], np.ndarray]:
    """Transformed pictures whose patches change places, each picture by a permutation of its own, and labels.

    Squares of the backbone's patch size are moved whole after its transform, so a model reads the same
    patches in another order. The permutation of picture n is a function of (`seed`, n) alone, uniform over
    all orders. The pair can be passed to `capture`.

    Errors: `ValueError` for a negative seed; `UnsupportedModel` for a grid that does not divide the picture.
    """
    height, width = backbone.transform.height, backbone.transform.width
    rows, columns = backbone.grid
    if height % rows or width % columns:
        raise UnsupportedModel(
            f"{backbone.name}: its grid of {rows} × {columns} patches does not divide pictures of "
            f"{height} × {width} pixels"
        )
    pictures = torch.empty(len(images), 3, height, width)
    for start in range(0, len(images), _AT_ONCE):
        where = slice(start, start + _AT_ONCE)
        pictures[where] = backbone.transform(images.pixels(where))
    order = torch.from_numpy(uniforms(seed, np.arange(len(images)), rows * columns).argsort(1, kind="stable"))
    patches = pictures.view(-1, 3, rows, height // rows, columns, width // columns)
    patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # [N, P, 3, h, w]
    moved = patches[torch.arange(len(order))[:, None], order].unflatten(1, (rows, columns))
    return moved.permute(0, 3, 1, 4, 2, 5).reshape(pictures.shape), images.labels


def without_position(backbone: Backbone) -> Backbone:
    """A copy of a backbone that does not know where a patch is: position embedding × 0 (`position.scaled`).

    Such a model is equivariant: patches in another order give the same tokens in that order, hence the same
    CLS token and the same means, at every state.

    Errors: `UnsupportedModel` for models without a learned position embedding, and for those that rotate
    queries and keys by position as well; `UnknownAttention` for attention that may hold a position bias.
    """
    attention_maps.require_known(backbone.name, backbone.model.blocks)
    if getattr(backbone.model, "rope", None) is not None:
        raise UnsupportedModel(
            f"{backbone.name} ({type(backbone.model).__name__}) has a rotary position embedding, which stays "
            "when the learned one is taken away; use a model that has a learned one only"
        )
    return scaled(backbone, 0.0)
