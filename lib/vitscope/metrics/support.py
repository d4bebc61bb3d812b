"""How many keys a query looks at, and how much of what an object's patch looks at is background.

Maps `attn` [N, H, T, T] or [N, T, T] hold for query i (row) the weights a_ij on the keys j, rows summing to
1; with entmax many weights are exactly 0, with softmax none unless float32 underflows. `prefix` is the number
of tokens before the patches, as the model says. Queries are the patches; keys are all tokens unless said
otherwise. One value comes back per image and head, and depends on that image alone. All raise ValueError for
what is no attention map (as `attention_graph`) and where the prefix leaves no patch.

The measures are ours, for the reach of attention in paper C (semantic diffusion).
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitscope.metrics.attention_graph import Maps, PerHead, _checked
from vitscope.metrics.diffusion import patch_kinds


def attention_support(attn: Maps, *, prefix: int) -> PerHead:
    """Mean number of keys of weight > 0, |{j: a_ij > 0}|, in [1, T].

    >>> attention_support(torch.tensor([[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.4, 0.3, 0.3]]]), prefix=1)
    tensor([2.5000])
    """
    rows = _patch_rows(attn, prefix)
    return (rows > 0).sum(-1).to(rows.dtype).mean(-1)


def zero_share(attn: Maps, *, prefix: int) -> PerHead:
    """Share of the weights that are exactly 0, 1 − `attention_support`/T, in [0, 1).

    >>> zero_share(torch.tensor([[[0.5, 0.5], [1.0, 0.0]]]), prefix=0)
    tensor([0.2500])
    """
    rows = _patch_rows(attn, prefix)
    return (rows == 0).to(rows.dtype).mean((-2, -1))


def effective_support(attn: Maps, *, prefix: int) -> PerHead:
    """Mean over queries of exp(−Σ_j a_ij ln a_ij), in keys, in [1, T]: K for K keys looked at alike.

    At most `attention_support`; unlike it, small weights hardly count. 0 ln 0 = 0.

    >>> effective_support(torch.tensor([[[0.5, 0.5], [1.0, 0.0]]]), prefix=0).round(decimals=4)  # (2 + 1) / 2
    tensor([1.5000])
    """
    return _entropy(_patch_rows(attn, prefix)).exp().mean(-1)


def normalised_entropy(attn: Maps, *, prefix: int) -> PerHead:
    """Mean over queries of −Σ_j a_ij ln a_ij / ln T, from 0 (one key) to 1 (all alike).

    `attention_graph.attention_entropy(normalised=True)` for patch queries only. Raises ValueError for T = 1.

    >>> normalised_entropy(torch.tensor([[[0.5, 0.5], [1.0, 0.0]]]), prefix=0).round(decimals=4)
    tensor([0.5000])
    """
    rows = _patch_rows(attn, prefix)
    if rows.shape[-1] < 2:
        raise ValueError("a single token has no entropy to normalise: ln 1 = 0")
    return _entropy(rows).mean(-1) / math.log(rows.shape[-1])


class BackgroundMass(NamedTuple):
    """Attention of foreground patches that goes to background; NaN for images without either kind.

    `share` of the mass on patches, `uniform` the share that equal weights would give (the background's share
    of the patches), `ratio` = share/uniform: 1 for attention blind to objects. `undefined` counts the images
    without foreground or without background.
    """

    share: PerHead
    uniform: Float[Tensor, " N"]
    ratio: PerHead
    undefined: int


def mass_to_background(attn: Maps, coverage: Float[Tensor, "N P"], *, prefix: int) -> BackgroundMass:
    """Mean over foreground queries i of Σ_{j background} a_ij / Σ_{j patch} a_ij, in [0, 1].

    Kinds as `diffusion.patch_kinds`: mixed patches are no queries, and their mass counts below the line only.
    A query that gives the patches nothing is left out; NaN where none is left. Raises ValueError for coverage
    that is not [N, P] in [0, 1].

    >>> attn = torch.tensor([[[0.6, 0.2, 0.2], [0.2, 0.4, 0.4], [0.0, 0.0, 1.0]]])
    >>> found = mass_to_background(attn, torch.tensor([[1.0, 0.3, 0.0]]), prefix=0)
    >>> [round(v.item(), 4) for v in (found.share, found.uniform, found.ratio)]
    [0.2, 0.3333, 0.6]
    """
    rows, foreground = _foreground_rows(attn, coverage, prefix)
    background = patch_kinds(coverage).background
    both = foreground.any(1) & background.any(1)
    to_background = (rows * _over_heads(background[:, None], rows)).sum(-1)
    share = _mean_of_queries(to_background, rows.sum(-1), foreground & both[:, None])
    uniform = torch.where(both, background.to(rows.dtype).mean(1), torch.nan)
    by_luck = uniform if share.ndim == 1 else uniform[:, None]
    return BackgroundMass(share, uniform, share / by_luck, int((~both).sum()))


def foreground_attention_distance(
    attn: Maps, coverage: Float[Tensor, "N P"], grid: tuple[int, int], *, prefix: int
) -> PerHead:
    """Mean over foreground queries i of Σ_j a_ij ‖p_i − p_j‖ / Σ_j a_ij over patches j, in patches.

    `attention_graph.attention_distance` for queries on objects. Objects lie where they lie: compare with the
    same of a uniform map. NaN for images without foreground. Raises ValueError for another grid (rows,
    columns) and for coverage that is not [N, P] in [0, 1].

    >>> uniform, coverage = torch.full((1, 3, 3), 1 / 3), torch.tensor([[1.0, 0.0, 0.0]])
    >>> foreground_attention_distance(uniform, coverage, (1, 3), prefix=0)  # (0 + 1 + 2) / 3
    tensor([1.])
    """
    rows, foreground = _foreground_rows(attn, coverage, prefix)
    if grid[0] * grid[1] != rows.shape[-1]:
        raise ValueError(f"{rows.shape[-1]} patches do not fill a grid of {grid[0]} x {grid[1]}")
    cells = torch.cartesian_prod(torch.arange(grid[0]), torch.arange(grid[1])).to(rows)
    away = torch.linalg.vector_norm(cells[:, None] - cells, dim=-1)
    return _mean_of_queries((rows * away).sum(-1), rows.sum(-1), foreground)


def _patch_rows(attn: Tensor, prefix: int) -> Tensor:
    """Rows [..., P, T] of the patch queries of a checked map."""
    attn = _checked(attn)
    if not 0 <= prefix < attn.shape[-1]:
        raise ValueError(f"the prefix must leave a patch, got prefix = {prefix} of {attn.shape[-1]} tokens")
    return attn[..., prefix:, :]


def _foreground_rows(attn: Tensor, coverage: Tensor, prefix: int) -> tuple[Tensor, Bool[Tensor, "N P"]]:
    """Weights [..., P, P] among patches, not renormalised, and which patches are foreground."""
    rows = _patch_rows(attn, prefix)[..., prefix:]
    if coverage.shape != (len(rows), rows.shape[-1]):
        raise ValueError(
            f"coverage must be [N, P] = {(len(rows), rows.shape[-1])} for maps {tuple(attn.shape)} with "
            f"prefix = {prefix}, got {tuple(coverage.shape)}"
        )
    return rows, patch_kinds(coverage).foreground


def _mean_of_queries(above: Tensor, mass: Tensor, chosen: Bool[Tensor, "N P"]) -> Tensor:
    """Mean of above/mass [..., P] over the chosen queries that have mass; NaN for none."""
    counted = _over_heads(chosen, mass) & (mass > 0)
    ratio = above / torch.where(mass > 0, mass, 1.0)
    return torch.where(counted, ratio, 0.0).sum(-1) / counted.sum(-1)


def _over_heads(kind: Tensor, like: Tensor) -> Tensor:
    """A heads axis after the images, where there is one."""
    return kind if kind.ndim == like.ndim else kind.unsqueeze(1)


def _entropy(rows: Tensor) -> Tensor:
    return torch.special.entr(rows).sum(-1)
