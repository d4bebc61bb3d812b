"""Attention statistics of a timm ViT whose forward stays fused.

A fused kernel never writes the attention map down. Here hooks read the queries and keys that the module
itself projects, repeat its norms and rotations, take the module's own normalization (softmax, unless its
attention was swapped) in fp32, reduce it per head and free it.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vitscope import projections
from vitscope.attention import SOFTMAX, Normalization, normalization_of
from vitscope.projections import UnknownAttention, queries_and_keys

MapStatistic = Callable[[Tensor], Tensor]
_CACHED_ELEMENTS = 1 << 18  # fp32 elements of one map, about what a core keeps in its cache


def require_known(name: str, blocks: nn.ModuleList | nn.Sequential) -> None:
    """Raise `UnknownAttention` naming the block and attention class, unless every block is understood."""
    projections.require_known(name, blocks, ". Token reductions work without attention=True")


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
    q: Tensor,
    k: Tensor,
    geometry: Geometry,
    own: Mapping[str, MapStatistic] | None = None,
    normalization: Normalization = SOFTMAX,
) -> dict[str, Tensor]:
    """Per image and head [N, H], from scaled queries and keys; the map lives only inside this call.

    `normalization` makes attention of their products. `own`: further statistics by name, called with maps
    [n, H, T, T] of a part of the images.

    - `entropy`: mean over queries of −Σ_j a_ij log a_ij, in nats; for softmax computed as
      logsumexp − q·(Σ_j a_ij k_j)
    - `distance`: mean over patch queries of Σ_j a_ij ‖p_i − p_j‖ over patch keys, renormalised, in patches
    - `cls_incoming`: (1/T) Σ_i a_i0, the CLS column's mean (models with CLS)
    - `cls_to_patches`: the share of the CLS row that goes to patches (models with CLS)
    """
    reduce = partial(_statistics, normalization=normalization, geometry=geometry, own=own or {})
    if q.device.type != "cpu":
        return reduce(q, k)
    # a map of a few images at a time stays in the cache through all the passes over it
    step = max(1, _CACHED_ELEMENTS // (q.shape[1] * q.shape[2] ** 2))
    parts = [reduce(a, b) for a, b in zip(q.split(step), k.split(step), strict=True)]
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


def _statistics(
    q: Tensor,
    k: Tensor,
    *,
    normalization: Normalization,
    geometry: Geometry,
    own: Mapping[str, MapStatistic],
) -> dict[str, Tensor]:
    n, heads, t, d = q.shape
    q, k = q.float().reshape(n * heads, t, d), k.float().reshape(n * heads, t, d)
    logits = torch.bmm(q, k.transpose(1, 2))
    if normalization == SOFTMAX:
        top = logits.amax(dim=-1, keepdim=True)
        # softmax up to the factor 1/total of each row, which enters every result below
        weight = logits.sub_(top).exp_()
        total = weight.sum(dim=-1)
        expected = (q * torch.bmm(weight, k)).sum(-1) / total  # Σ_j a_ij (q_i·k_j)
        entropy = top.squeeze(-1) + total.log() - expected
    else:
        weight = normalization(logits)
        total = weight.sum(dim=-1)
        entropy = -torch.special.xlogy(weight, weight).sum(-1)
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
    return normalization_of(module)(q.float() @ k.float().transpose(-2, -1))


def tap(module: Any, receive: Callable[[Tensor, Tensor, Normalization], None]) -> Iterator[RemovableHandle]:
    """Hooks that hand scaled queries, keys and the normalization of each forward of a module to `receive`.

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
        receive(*queries_and_keys(module, **seen), normalization_of(module))
        seen.clear()

    yield module.register_forward_pre_hook(before, with_kwargs=True)
    if module.qkv is not None:
        yield module.qkv.register_forward_hook(projected)
    yield module.register_forward_hook(after)
