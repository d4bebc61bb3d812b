"""Attention statistics of a timm ViT whose forward stays fused.

A fused kernel never writes the attention map down. Here a hook reads the queries and keys that the module
itself projects, repeats its norms and rotations, takes the softmax in fp32, reduces it per head and frees it.
Only classes whose arithmetic is known are accepted; others raise with their name.
"""

from collections.abc import Callable

import torch
from timm.layers import apply_rot_embed_cat
from timm.layers.attention import Attention, AttentionRope
from timm.models.eva import EvaAttention
from torch import Tensor, nn

KNOWN = (Attention, AttentionRope, EvaAttention)


class UnknownAttention(TypeError):
    """The attention of a model cannot be recomputed here."""


def require_known(name: str, blocks: nn.ModuleList | nn.Sequential) -> None:
    """Raise `UnknownAttention` naming the block and attention class, unless every block is understood."""
    for number, block in enumerate(blocks, start=1):
        attention = getattr(block, "attn", None)
        if type(attention) not in KNOWN:
            raise UnknownAttention(
                f"{name}, block {number} ({type(block).__name__}): attention class "
                f"{type(attention).__module__}.{type(attention).__qualname__} has no known softmax form; "
                f"known: {', '.join(k.__qualname__ for k in KNOWN)}. Token reductions work without attention=True"
            )


def queries_and_keys(module: nn.Module, x: Tensor, rope: Tensor | None) -> tuple[Tensor, Tensor]:
    """Queries (scaled) and keys [N, H, T, d] of one attention module for its input [N, T, D]."""
    n, t, _ = x.shape
    heads = module.num_heads
    if module.qkv is not None:
        # the first two thirds of the fused projection; values are not needed
        weight, bias = module.qkv.weight, module.qkv.bias
        if getattr(module, "q_bias", None) is not None:
            bias = torch.cat((module.q_bias, module.k_bias, module.v_bias))
        part = 2 * weight.shape[0] // 3
        qk = nn.functional.linear(x, weight[:part], None if bias is None else bias[:part])
        q, k = qk.view(n, t, 2, heads, -1).permute(2, 0, 3, 1, 4)
    else:
        q = module.q_proj(x).view(n, t, heads, -1).transpose(1, 2)
        k = module.k_proj(x).view(n, t, getattr(module, "num_kv_heads", heads), -1).transpose(1, 2)
    q, k = module.q_norm(q), module.k_norm(k)
    if rope is not None:
        prefix, half = module.num_prefix_tokens, getattr(module, "rotate_half", False)
        q, k = (
            torch.cat([z[:, :, :prefix], apply_rot_embed_cat(z[:, :, prefix:], rope, half=half)], dim=2)
            for z in (q, k)
        )
    if k.shape[1] != heads:
        k = k.repeat_interleave(heads // k.shape[1], dim=1)
    return q * module.scale, k


class Geometry:
    """Distances between patches of a grid, in patches, and where the patches start in the token row."""

    def __init__(self, grid: tuple[int, int], prefix: int, has_cls: bool, device: torch.device) -> None:
        rows = torch.arange(grid[0], device=device).repeat_interleave(grid[1])
        columns = torch.arange(grid[1], device=device).repeat(grid[0])
        points = torch.stack([rows, columns], dim=1).float()
        self.distance = torch.cdist(points, points)
        self.prefix, self.has_cls = prefix, has_cls


def statistics(q: Tensor, k: Tensor, geometry: Geometry) -> dict[str, Tensor]:
    """Per image and head [N, H], from scaled queries and keys; the map lives only inside this call.

    - `entropy`: mean over queries of −Σ_j a_ij log a_ij, in nats; computed as logsumexp − q·(Σ_j a_ij k_j)
    - `distance`: mean over patch queries of Σ_j a_ij ‖p_i − p_j‖ over patch keys, renormalised, in patches
    - `cls_incoming`: (1/T) Σ_i a_i0, the CLS column's mean (models with CLS)
    - `cls_to_patches`: the share of the CLS row that goes to patches (models with CLS)
    """
    n, heads, t, d = q.shape
    q, k = q.float().reshape(n * heads, t, d), k.float().reshape(n * heads, t, d)
    logits = torch.bmm(q, k.transpose(1, 2))
    # softmax does not move under a shift; the row maximum is found once and used for both
    top = logits.amax(dim=-1, keepdim=True)
    attention = logits.sub_(top).exp_()
    total = attention.sum(dim=-1, keepdim=True)
    attention.div_(total)
    expected = (q * torch.bmm(attention, k)).sum(-1)  # Σ_j a_ij (q_i·k_j)
    entropy = (top + total.log()).squeeze(-1) - expected
    p = geometry.prefix
    patches = attention[:, p:, p:]
    mass = patches.sum(-1)
    travelled = torch.einsum("bij,ij->bi", patches, geometry.distance)
    result = {
        "entropy": entropy.mean(-1),
        "distance": (travelled / mass.clamp_min(torch.finfo(torch.float32).tiny)).mean(-1),
    }
    if geometry.has_cls:
        result["cls_incoming"] = attention[:, :, 0].mean(-1)
        result["cls_to_patches"] = attention[:, 0, p:].sum(-1)
    return {key: value.view(n, heads) for key, value in result.items()}


def full_map(module: nn.Module, x: Tensor, rope: Tensor | None = None) -> Tensor:
    """The attention map [N, H, T, T] of one module in fp32, rows summing to 1. For a few images."""
    q, k = queries_and_keys(module, x, rope)
    return torch.softmax(q.float() @ k.float().transpose(-2, -1), dim=-1)


def hook(receive: Callable[[Tensor, Tensor], None]) -> Callable:
    """A forward pre-hook (with keyword arguments) that hands scaled queries and keys to `receive`."""

    def before(module: nn.Module, args: tuple, kwargs: dict) -> None:
        if kwargs.get("attn_mask") is not None or kwargs.get("is_causal"):
            raise UnknownAttention(
                f"{type(module).__name__} was called with a mask; masked maps are not recomputed"
            )
        receive(*queries_and_keys(module, args[0], kwargs.get("rope")))

    return before
