"""Features brought to one scale: LayerNorm for each state, then mean and deviation of the training images."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import layer_norm


class Moments(NamedTuple):
    """Mean and deviation of every feature; 1 stands for the deviation of a constant one."""

    mean: Float[Tensor, "*K F"]
    scale: Float[Tensor, "*K F"]

    def standardise(self, x: Float[Tensor, "*K N F"]) -> Float[Tensor, "*K N F"]:
        return (x - self.mean.unsqueeze(-2)) / self.scale.unsqueeze(-2)


def moments(x: Float[Tensor, "*K N F"]) -> Moments:
    """Moments over the images.

    >>> [m.tolist() for m in moments(torch.tensor([[0.0, 5.0], [2.0, 5.0]]))]
    [[1.0, 5.0], [1.0, 1.0]]
    """
    wide = x.double()
    mean, scale = wide.mean(-2), wide.std(-2, correction=0)
    # a float32 constant of size |mean| can differ from itself by a few eps after summing
    constant = scale <= 8 * torch.finfo(torch.float32).eps * mean.abs()
    return Moments(mean.float(), torch.where(constant, 1.0, scale).float())


def joined(entries: Sequence[Float[Tensor, "N _"]]) -> Float[Tensor, "N F"]:
    """concat_ℓ LN(x_ℓ): each state of each image to mean 0 and variance 1 over its width, side by side.

    The LayerNorm has no gain and offset of its own; `Moments` of the training images take their place, and
    the linear layer that follows can undo either.

    >>> joined([torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 40.0]])]).round(decimals=2).tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """
    return torch.cat([layer_norm(entry, entry.shape[-1:]) for entry in entries], 1)
