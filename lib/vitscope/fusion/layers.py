"""Linear layers of several configurations at once."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def linear(inputs: int, outputs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Weight [outputs, inputs] and bias [outputs], uniform in ±1/√inputs as `torch.nn.Linear` draws them."""
    bound = 1 / math.sqrt(inputs)
    weight = torch.empty(outputs, inputs).uniform_(-bound, bound, generator=generator)
    return weight, torch.empty(outputs).uniform_(-bound, bound, generator=generator)


def shared_linear(
    x: Float[Tensor, "B I"], weight: Float[Tensor, "G O I"], bias: Float[Tensor, "G O"]
) -> Float[Tensor, "G B O"]:
    """x W_gᵀ + b_g of one input: a single product, which is faster than G small ones.

    >>> shared_linear(torch.tensor([[1.0, 2.0]]), torch.ones(2, 1, 2), torch.tensor([[0.0], [5.0]])).tolist()
    [[[3.0]], [[8.0]]]
    """
    wide = torch.nn.functional.linear(x, weight.flatten(0, 1), bias.flatten())
    return wide.view(len(x), len(weight), -1).transpose(0, 1)


def stacked_linear(
    x: Float[Tensor, "G B I"], weight: Float[Tensor, "G O I"], bias: Float[Tensor, "G O"]
) -> Float[Tensor, "G B O"]:
    """x_g W_gᵀ + b_g, each configuration with its own input."""
    return torch.baddbmm(bias[:, None], x, weight.mT)
