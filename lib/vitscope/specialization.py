"""CLS and patches apart: norms, and in early blocks projections, of their own for the two kinds of token.

The variant that paper C compares with (its source: arXiv 2602.08626): attention stays joint and the MLPs stay
shared, so the operations of a forward pass do not change; parameters are added.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from vitscope.projections import require_known


class SplitNorm(nn.Module):
    """One LayerNorm for the first `prefix` tokens (CLS), another for the patches; both start equal."""

    def __init__(self, norm: nn.LayerNorm, prefix: int) -> None:
        super().__init__()
        self.prefix = prefix
        self.cls, self.patches = norm, deepcopy(norm)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [..., T, D]; CLS alone, [N, D], as a head reads it, takes the norm of CLS."""
        if x.ndim == 2:
            return self.cls(x)
        return torch.cat([self.cls(x[..., : self.prefix, :]), self.patches(x[..., self.prefix :, :])], dim=-2)


class SplitLinear(nn.Module):
    """One projection for the first `prefix` tokens (CLS), another for the patches; both start equal."""

    def __init__(self, linear: nn.Linear, prefix: int) -> None:
        super().__init__()
        self.prefix = prefix
        self.cls, self.patches = linear, deepcopy(linear)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [N, T, D] to [N, T, E]."""
        return torch.cat([self.cls(x[:, : self.prefix]), self.patches(x[:, self.prefix :])], dim=1)


def specialize(model: Any, *, qkv_blocks: int) -> int:
    """Give CLS and patches of a timm ViT norms of their own everywhere, and projections in early blocks.

    Both norms of every block and the last norm are split; queries, keys and values are split in the first
    `qkv_blocks` blocks (a third of the blocks in the source, by one reading; half by another). A specialized
    model starts as the model it was made from: its output is the same until it is trained. Returns the number
    of parameters added.

    Errors: `ValueError` for a model without CLS, with registers, or specialized already, and for a number of
    blocks it has not; `UnknownAttention` naming the block whose projections are not known.
    Source: 2602.08626; compared with in paper C.
    """
    prefix = int(getattr(model, "num_prefix_tokens", 0))
    if prefix != 1 or getattr(model, "cls_token", None) is None:
        raise ValueError(
            f"specialization needs a CLS token and no registers; this model has {prefix} prefix tokens"
        )
    if isinstance(model.norm, SplitNorm):
        raise ValueError("the model is specialized already")
    if not 0 <= qkv_blocks <= len(model.blocks):
        raise ValueError(f"qkv_blocks must be 0 to {len(model.blocks)}, got {qkv_blocks}")
    require_known(type(model).__name__, model.blocks)
    norms = [model.norm, *(norm for block in model.blocks for norm in (block.norm1, block.norm2))]
    strange = next((n for n in norms if not isinstance(n, nn.LayerNorm)), None)
    projections = [block.attn.qkv for block in model.blocks[:qkv_blocks]]
    # EVA's fused projection keeps its biases, and is applied, outside the layer
    apart = any(getattr(block.attn, "q_bias", None) is not None for block in model.blocks[:qkv_blocks])
    if strange is not None or apart or not all(isinstance(p, nn.Linear) for p in projections):
        raise ValueError(
            "specialization splits LayerNorm and fused qkv projections; "
            f"found {type(strange).__name__ if strange is not None else 'another projection'}"
        )
    before = sum(p.numel() for p in model.parameters())
    model.norm = SplitNorm(model.norm, prefix)
    for number, block in enumerate(model.blocks):
        block.norm1, block.norm2 = SplitNorm(block.norm1, prefix), SplitNorm(block.norm2, prefix)
        if number < qkv_blocks:
            block.attn.qkv = SplitLinear(block.attn.qkv, prefix)
    return sum(p.numel() for p in model.parameters()) - before
