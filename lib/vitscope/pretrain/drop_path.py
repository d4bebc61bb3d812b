"""Stochastic depth whose draws do not depend on how many processes share a batch."""

from timm.layers import DropPath
from torch import Tensor, nn


class SharedDropPath(nn.Module):
    """`timm.layers.DropPath` that draws for the whole batch and keeps the part of this process.

    Rows are views × samples: of each view, samples `place` … `place + count − 1` of `batch`. All processes
    must draw from the same random state. Alone, the draws are timm's.
    """

    def __init__(self, drop: float, *, batch: int, place: int, count: int) -> None:
        super().__init__()
        self.keep, self.batch, self.place, self.count = 1 - drop, batch, place, count

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.keep == 1:
            return x
        views = x.shape[0] // self.count
        drawn = x.new_empty(views, self.batch).bernoulli_(self.keep)
        kept = drawn[:, self.place : self.place + self.count].reshape(-1, *[1] * (x.ndim - 1))
        return x * kept.div(self.keep) if self.keep > 0 else x * kept


def share_drop_path(model: nn.Module, *, batch: int, place: int, count: int) -> int:
    """Replace every `DropPath` inside `model`; returns how many there were."""
    replaced = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, DropPath):
                setattr(module, name, SharedDropPath(child.drop_prob, batch=batch, place=place, count=count))
                replaced += 1
    return replaced
