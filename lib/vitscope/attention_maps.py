"""Attention statistics of a timm ViT whose forward stays fused.

A fused kernel never writes the attention map down. Here hooks read the queries and keys that the module
itself projects, repeat its norms and rotations, take the softmax in fp32, reduce it per head and free it.
Only classes whose arithmetic is known are accepted; others raise with their name.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from timm.layers import apply_rot_embed_cat
from timm.layers.attention import Attention, AttentionRope
from timm.models.eva import EvaAttention
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

MapStatistic = Callable[[Tensor], Tensor]
_CACHED_ELEMENTS = 1 << 18  # fp32 elements of one map, about what a core keeps in its cache
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
                f"known: {', '.join(k.__qualname__ for k in KNOWN)}. "
                "Token reductions work without attention=True"
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
        qk = _project(module, x) if projected is None else projected
        parts = 2 if projected is None else 3
        q, k = qk.view(n, t, parts, heads, -1).permute(2, 0, 3, 1, 4)[:2]
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


def _project(module: Any, x: Tensor) -> Tensor:
    """The first two thirds of a fused projection [N, T, 2·H·d]; values are not needed."""
    weight, bias = module.qkv.weight, module.qkv.bias
    if getattr(module, "q_bias", None) is not None:
        bias = torch.cat((module.q_bias, module.k_bias, module.v_bias))
    part = 2 * weight.shape[0] // 3
    return nn.functional.linear(x, weight[:part], None if bias is None else bias[:part])


class Geometry:
    """Distances between patches of a grid, in patches, and where the patches start in the token row."""

    def __init__(self, grid: tuple[int, int], prefix: int, has_cls: bool, device: torch.device) -> None:
        rows = torch.arange(grid[0], device=device).repeat_interleave(grid[1])
        columns = torch.arange(grid[1], device=device).repeat(grid[0])
        points = torch.stack([rows, columns], dim=1).float()
        self.distance = torch.cdist(points, points)  # [P, P]
        distance = nn.functional.pad(self.distance, (prefix, 0, prefix, 0))
        is_patch = torch.ones_like(distance)
        is_patch[:, :prefix] = 0
        # [T, T, 2]: for query i and key j their distance, and whether j is a patch. A product of a map's row
        # with both columns gives distance and patch mass at once, without copying a slice of the map
        self.readout = torch.stack([distance, is_patch], dim=-1)
        self.prefix, self.has_cls = prefix, has_cls


def statistics(
    q: Tensor, k: Tensor, geometry: Geometry, own: Mapping[str, MapStatistic] | None = None
) -> dict[str, Tensor]:
    """Per image and head [N, H], from scaled queries and keys; the map lives only inside this call.

    `own`: further statistics by name, called with maps [n, H, T, T] of a part of the images.

    - `entropy`: mean over queries of −Σ_j a_ij log a_ij, in nats; computed as logsumexp − q·(Σ_j a_ij k_j)
    - `distance`: mean over patch queries of Σ_j a_ij ‖p_i − p_j‖ over patch keys, renormalised, in patches
    - `cls_incoming`: (1/T) Σ_i a_i0, the CLS column's mean (models with CLS)
    - `cls_to_patches`: the share of the CLS row that goes to patches (models with CLS)
    """
    if q.device.type != "cpu":
        return _statistics(q, k, geometry, own or {})
    # a map of a few images at a time stays in the cache through all the passes over it
    step = max(1, _CACHED_ELEMENTS // (q.shape[1] * q.shape[2] ** 2))
    parts = [
        _statistics(a, b, geometry, own or {}) for a, b in zip(q.split(step), k.split(step), strict=True)
    ]
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


def _statistics(
    q: Tensor, k: Tensor, geometry: Geometry, own: Mapping[str, MapStatistic]
) -> dict[str, Tensor]:
    n, heads, t, d = q.shape
    q, k = q.float().reshape(n * heads, t, d), k.float().reshape(n * heads, t, d)
    logits = torch.bmm(q, k.transpose(1, 2))
    top = logits.amax(dim=-1, keepdim=True)
    # softmax up to the factor 1/total of each row, which enters every result below
    weight = logits.sub_(top).exp_()
    total = weight.sum(dim=-1)
    expected = (q * torch.bmm(weight, k)).sum(-1) / total  # Σ_j a_ij (q_i·k_j)
    entropy = top.squeeze(-1) + total.log() - expected
    p = geometry.prefix
    travelled, mass = torch.bmm(weight.transpose(0, 1), geometry.readout).permute(2, 1, 0)
    result = {
        "entropy": entropy.mean(-1),
        "distance": (travelled[:, p:] / mass[:, p:].clamp_min(torch.finfo(torch.float32).tiny)).mean(-1),
    }
    if geometry.has_cls:
        result["cls_incoming"] = (weight[:, :, 0] / total).mean(-1)
        result["cls_to_patches"] = mass[:, 0] / total[:, 0]
    result = {key: value.view(n, heads) for key, value in result.items()}
    if own:
        maps = (weight / total.unsqueeze(-1)).view(n, heads, t, t)
        result |= {name: _checked(name, statistic(maps), n, result) for name, statistic in own.items()}
    return result


def _checked(name: str, value: Tensor, images: int, taken: Mapping[str, Tensor]) -> Tensor:
    if name in taken:
        raise ValueError(f"{name!r} is one of the usual statistics ({', '.join(taken)}); choose another name")
    if value.ndim not in (1, 2) or len(value) != images:
        raise ValueError(
            f"statistic {name!r} gave shape {list(value.shape)}; expected [{images}] or [{images}, heads]"
        )
    return value


def full_map(module: Any, x: Tensor, rope: Tensor | None = None) -> Tensor:
    """The attention map [N, H, T, T] of one module in fp32, rows summing to 1. For a few images."""
    q, k = queries_and_keys(module, x, rope)
    return torch.softmax(q.float() @ k.float().transpose(-2, -1), dim=-1)


def tap(module: Any, receive: Callable[[Tensor, Tensor], None]) -> Iterator[RemovableHandle]:
    """Hooks that hand the scaled queries and keys of each forward of an attention module to `receive`.

    The output of the module's own projection is read where it is called as a layer, so that nothing is
    computed twice. Yields the handles as they are registered.
    """
    seen: dict[str, Any] = {}

    def before(module: Any, args: tuple, kwargs: dict) -> None:
        if kwargs.get("attn_mask") is not None or kwargs.get("is_causal"):
            raise UnknownAttention(
                f"{type(module).__name__} was called with a mask; masked maps are not recomputed"
            )
        seen.clear()
        seen.update(x=args[0], rope=kwargs.get("rope"))

    def projected(layer: nn.Module, args: tuple, output: Tensor) -> None:
        seen["projected"] = output

    def after(module: Any, args: tuple, output: Tensor) -> None:
        receive(*queries_and_keys(module, **seen))
        seen.clear()

    yield module.register_forward_pre_hook(before, with_kwargs=True)
    if module.qkv is not None:
        yield module.qkv.register_forward_hook(projected)
    yield module.register_forward_hook(after)
