"""HFusion: the same encoder over several frozen backbones, on their last states or on all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vitscope.fusion.base import Features
from vitscope.fusion.checks import Blocks, checked_states
from vitscope.fusion.vfusion import VFusion


@dataclass
class HFusion(VFusion):
    """Horizontal fusion: VFusion's encoder and loss over backbones instead of depths (paper B, 2607.10391).

    `features` are a list over backbones, widths may differ: last states [N, D_b] (horizontal), or stacked
    states [K_b, N, D_b], of which `states` keeps a subset (vertical and horizontal). Other options as
    `VFusion`.

    Raises ValueError for anything but a list, and for backbones that saw different numbers of images.

    >>> import torch
    >>> from vitscope.fusion.training import SelectionBudget
    >>> labels = torch.arange(60) % 3
    >>> signal = 6.0 * torch.nn.functional.one_hot(labels, 5)
    >>> noise = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    >>> head = HFusion(penalty=0.0, hidden=16, latent=4, budget=SelectionBudget(steps=60))
    >>> head = head.fit([noise, signal], None, labels)
    >>> head.accuracy([noise, signal], None, labels)["accuracy"]
    1.0
    """

    takes_list: ClassVar[bool] = True

    def _read(self, features: Features) -> Blocks:
        if isinstance(features, Tensor) or not isinstance(features, Sequence) or not features:
            raise ValueError(
                "HFusion takes a list over backbones of last states [N, D] or stacked states [K, N, D]; "
                "for the states of one backbone use VFusion"
            )
        blocks = tuple(
            checked_states(x[None] if x.ndim == 2 else x, f"features of backbone {b}")
            for b, x in enumerate(features)
        )
        counts = [block.shape[1] for block in blocks]
        if len(set(counts)) > 1:
            raise ValueError(f"backbones must have seen the same images, got {counts} of them")
        return blocks
