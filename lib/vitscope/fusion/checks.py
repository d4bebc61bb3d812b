"""Checks of features and logits, with errors that name the state, and the shares of right answers."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitscope.protocol import check_finite

Blocks = tuple[Float[Tensor, "_ N _"], ...]
"""Checked features in float32 [K, N, D], one block per backbone."""


def share_right(scores: Float[Tensor, "N C"], codes: Int[Tensor, " N"], *, balanced: bool = False) -> float:
    """Share of images whose true class scores highest; balanced: mean of the share over classes.

    A score that is not finite is never right.

    >>> scores, codes = torch.tensor([[1.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1])
    >>> share_right(scores, codes), share_right(scores, codes, balanced=True)
    (0.75, 0.5)
    """
    right = ((scores.argmax(1) == codes) & scores.isfinite().all(1)).double()
    if not balanced:
        return float(right.mean())
    return float(torch.stack([right[codes == c].mean() for c in codes.unique()]).mean())


def checked_states(features: Tensor, what: str = "features") -> Float[Tensor, "K N D"]:
    """Features in float32 without a graph. Raises ValueError for other shapes, NaN and inf."""
    if features.ndim != 3 or not features.numel():
        raise ValueError(
            f"{what} must be [K, N, D] (stacked states, images, width), got shape {tuple(features.shape)}"
        )
    check_finite(features, what)
    return features.detach().float()


def checked_logits(logits: Tensor, blocks: Blocks, classes: Sequence) -> Float[Tensor, "K N C"]:
    logits = checked_states(logits, "logits").to(blocks[0].device)
    states, images, columns = logits.shape
    if (states, images) != (len(blocks[0]), blocks[0].shape[1]):
        raise ValueError(
            f"logits are of {states} states and {images} images, features of {len(blocks[0])} states and "
            f"{blocks[0].shape[1]} images: pass the probes' logits of the same states and images"
        )
    if columns != len(classes):
        raise ValueError(
            f"logits have {columns} classes, labels have {len(classes)} ({', '.join(map(str, classes[:5]))}"
            f"{', …' if len(classes) > 5 else ''}): fit the probes on the same classes"
        )
    return logits


def described(blocks: list[list[int]]) -> str:
    return " and ".join(f"{k} states of width {d}" for k, d in blocks)
