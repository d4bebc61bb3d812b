"""States of different scale side by side: LayerNorm for each of them."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import layer_norm


def joined(entries: Sequence[Float[Tensor, "N _"]]) -> Float[Tensor, "N F"]:
    """concat_ℓ LN(x_ℓ): each state of each image to mean 0 and variance 1 over its width, side by side.

    The LayerNorm has no gain and offset of its own; `Moments` of the training images take their place, and
    the linear layer that follows can undo either.

    >>> joined([torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 40.0]])]).round(decimals=2).tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """
    return torch.cat([layer_norm(entry, entry.shape[-1:]) for entry in entries], 1)
