"""Queries, keys and values as a known attention class of timm projects them.

Only classes whose arithmetic is known are accepted; others raise with their name.
"""

from collections.abc import Iterable
from typing import Any

import torch
from timm.layers import apply_rot_embed_cat
from timm.layers.attention import Attention, AttentionRope
from timm.models.eva import EvaAttention
from torch import Tensor, nn

KNOWN = (Attention, AttentionRope, EvaAttention)


class UnknownAttention(TypeError):
    """The attention of a model cannot be recomputed here."""


def original_class(module: Any) -> type:
    """The class of an attention module, or the class it had before its attention was swapped."""
    return getattr(module, "swapped_from", type(module))


def require_known(name: str, blocks: Iterable[nn.Module], instead: str = "", *, first: int = 1) -> None:
    """Raise `UnknownAttention` naming the block and attention class, unless every block is understood.

    `first` is the number of the first of the blocks.
    """
    for number, block in enumerate(blocks, start=first):
        attention = getattr(block, "attn", None)
        found = original_class(attention)
        if found not in KNOWN:
            raise UnknownAttention(
                f"{name}, block {number} ({type(block).__name__}): attention class "
                f"{found.__module__}.{found.__qualname__} has no known softmax form; "
                f"known: {', '.join(k.__qualname__ for k in KNOWN)}{instead}"
            )


def queries_and_keys(
    module: Any, x: Tensor, rope: Tensor | None, projected: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Queries (scaled) and keys [N, H, T, d] of one attention module for its input [N, T, D].

    `projected` [N, T, 3·H·d] is what the module's fused projection gave in its own forward; without it the
    part that is needed is computed again.
    """
    n, t, _ = x.shape
    heads = module.num_heads
    if module.qkv is None:
        q = module.q_proj(x).view(n, t, heads, -1).transpose(1, 2)
        k = module.k_proj(x).view(n, t, getattr(module, "num_kv_heads", heads), -1).transpose(1, 2)
    else:
        qkv = project(module, x) if projected is None else projected
        q, k = qkv.view(n, t, 3, heads, -1).permute(2, 0, 3, 1, 4)[:2]
    q, k = module.q_norm(q), module.k_norm(k)
    if rope is not None:
        prefix, half = module.num_prefix_tokens, getattr(module, "rotate_half", False)
        q, k = (
            torch.cat([z[:, :, :prefix], apply_rot_embed_cat(z[:, :, prefix:], rope, half=half)], dim=2)
            for z in (q, k)
        )
    return q * module.scale, _for_every_head(k, heads)


def values(module: Any, x: Tensor, projected: Tensor | None = None) -> Tensor:
    """Values [N, H, T, d] of one attention module for its input [N, T, D]."""
    n, t, _ = x.shape
    heads = module.num_heads
    if module.qkv is None:
        v = module.v_proj(x).view(n, t, getattr(module, "num_kv_heads", heads), -1).transpose(1, 2)
        return _for_every_head(v, heads)
    qkv = project(module, x) if projected is None else projected
    return qkv.view(n, t, 3, heads, -1).permute(2, 0, 3, 1, 4)[2]


def project(module: Any, x: Tensor) -> Tensor:
    """What a module's fused projection gives, [N, T, 3·H·d], with the biases the module adds to it."""
    if getattr(module, "q_bias", None) is None:
        return module.qkv(x)
    bias = torch.cat((module.q_bias, module.k_bias, module.v_bias))
    return nn.functional.linear(x, module.qkv.weight, bias)


def _for_every_head(x: Tensor, heads: int) -> Tensor:
    """Keys or values shared by groups of heads, repeated for each."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
