"""What the kernels must give, in float64 and by another way: bisection, explicit maps, explicit pairs."""

import copy

import torch
from torch import Tensor


def entmax15(x: Tensor, steps: int = 80) -> Tensor:
    """entmax-1.5 of the last axis by bisection of τ: Σ [x/2 − τ]_+² = 1."""
    x = x.double() / 2
    top = x.amax(-1, keepdim=True)
    low, high = top - 1, top.clone()
    for _ in range(steps):
        middle = (low + high) / 2
        above = (x - middle).clamp_min(0).square().sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    p = (x - low).clamp_min(0).square()
    return p / p.sum(-1, keepdim=True)


def entmax15_gradient(p: Tensor, upstream: Tensor) -> Tensor:
    """s ⊙ (g − (s·g)/Σ s) with s = √p."""
    s, g = p.double().sqrt(), upstream.double()
    return s * (g - (s * g).sum(-1, keepdim=True) / s.sum(-1, keepdim=True))


@torch.inference_mode()
def states(model, images: Tensor) -> dict[str, Tensor]:
    """What capture keeps of a plain ViT with CLS, by the definitions, in float64 on the CPU: [S, N, …]."""
    model = copy.deepcopy(model).cpu().double().eval()
    x = model.patch_embed(images.cpu().double())
    rows, maps = [_row(x.flatten(1, -2), None)], []
    x = model.norm_pre(model.patch_drop(model._pos_embed(x)))
    prefix = model.num_prefix_tokens
    rows.append(_row(x[:, prefix:], x[:, 0]))
    for block in model.blocks:
        maps.append(_map_row(block.attn, block.norm1(x), prefix, model.patch_embed.grid_size))
        x = block(x)
        rows.append(_row(x[:, prefix:], x[:, 0]))
    found = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return found | {name: torch.stack([row[name] for row in maps]) for name in maps[0]}


def _row(patches: Tensor, cls: Tensor | None) -> dict[str, Tensor]:
    centred = patches - patches.mean(1, keepdim=True)
    return {
        "cls": torch.full_like(patches[:, 0], float("nan")) if cls is None else cls,
        "patch_mean": patches.mean(1),
        "similarity": _pairs(patches),
        "similarity_centred": _pairs(centred),
    }


def _pairs(x: Tensor) -> Tensor:
    unit = torch.nn.functional.normalize(x, dim=-1)
    cosines, count = unit @ unit.mT, x.shape[1]
    return (cosines.sum((1, 2)) - cosines.diagonal(dim1=1, dim2=2).sum(1)) / (count * (count - 1))


def _map_row(attention, x: Tensor, prefix: int, grid: tuple[int, int]) -> dict[str, Tensor]:
    n, t, _ = x.shape
    q, k = attention.qkv(x).view(n, t, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)[:2]
    weights = (attention.scale * attention.q_norm(q) @ attention.k_norm(k).mT).softmax(-1)
    points = torch.cartesian_prod(torch.arange(grid[0]), torch.arange(grid[1])).double()
    patches = weights[:, :, prefix:, prefix:]
    travelled = (patches * torch.cdist(points, points)).sum(-1) / patches.sum(-1)
    return {
        "entropy": -torch.special.xlogy(weights, weights).sum(-1).mean(-1),
        "distance": travelled.mean(-1),
        "cls_incoming": weights[..., 0].mean(-1),
    }


def worst(found: Tensor, expected: Tensor) -> float:
    """Largest deviation as a share of the largest value expected; NaN must stand where it is expected."""
    expected = expected.to(torch.float64)
    found = found.detach().to("cpu", torch.float64)
    there = ~expected.isnan()
    if not torch.equal(there, ~found.isnan()):
        return float("inf")
    return float((found - expected)[there].abs().max() / expected[there].abs().max())
