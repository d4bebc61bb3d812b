"""An attention map read as a graph: where attention ends up, how alike its rows are, how wide it looks.

The field's: `attention_entropy`, `attention_distance`. Ours, where paper A names a measure whose formula we
did not find: `cls_centrality` and `cls_incoming`, two readings of its CLS Centrality; `attention_consensus`
and `head_consensus`, two readings of its Attention Consensus Index.

`attn` [N, H, T, T] or [N, T, T] holds for query i (row) the weights a_ij on the keys j, rows summing to 1.
`prefix` is the number of tokens before the patches (CLS, if any, first, then registers), as the model says.
Everything raises ValueError for a wrong shape, values that are not finite or negative, and rows that do not
sum to 1; it is computed in float32 (float64 if given) unless said otherwise.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

Maps = Float[Tensor, "N *H T T"]
PerHead = Float[Tensor, "N *H"]
"""One value per image and head, or per image of maps without heads."""

DAMPING = 0.85
"""Share of PageRank's walk that follows the attention map; the rest jumps to any token alike."""

_CLS = 0  # the place of CLS in timm's token row
# largest |row sum − 1| of a softmax that was rounded to the type
_ROW_SUM_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def token_centrality(attn: Maps, *, tolerance: float = 1e-6) -> Float[Tensor, "N T"]:
    """PageRank mass of each token in the head-mean map A, times T: 1 is a uniform share, T all of it.

    The stationary distribution π of the walk 0.85·A + 0.15/T, by power iteration in float64. Every step
    shrinks the distance to π by 0.85, so a step of size s (L1) ends within s·0.85/0.15: iteration stops
    where that bounds the error of each returned value by `tolerance`.

    Source: ours, on PageRank (Brin and Page 1998); close to TokenRank (2507.17657).

    >>> all_to_first = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    >>> token_centrality(all_to_first).round(decimals=4)  # T (0.85 + 0.15/T) and T·0.15/T
    tensor([[1.8500, 0.1500]], dtype=torch.float64)
    """
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}")
    walk = _head_mean(_checked(attn)).double()
    walk = walk / walk.sum(2, keepdim=True)  # exactly stochastic, so that no mass leaks along the walk
    count = walk.shape[1]
    mass = walk.new_ones(walk.shape[0], 1, count)
    # values sum to T in each iterate, so a value is off by at most half of the L1 error
    allowed = 2 * tolerance * (1 - DAMPING) / DAMPING
    for _ in range(1 + max(0, math.ceil(math.log(allowed / (2 * count), DAMPING)))):
        before, mass = mass, DAMPING * torch.bmm(mass, walk) + (1 - DAMPING)
        if (mass - before).abs().sum(2).le(allowed).all():
            break
    return mass.squeeze(1)


def cls_centrality(attn: Maps, *, prefix: int, tolerance: float = 1e-6) -> Float[Tensor, " N"]:
    """PageRank mass of CLS in the head-mean map, times T, in [0.15, 1 + 0.85 (T − 1)]; 1 is a uniform share.

    `token_centrality` (formula and tolerance there) at CLS, the first token. Raises ValueError for
    prefix = 0. For models whose prefix holds registers only it has no meaning: ask the model (`has_cls`).

    Source: ours, for the CLS Centrality of Mechanisms of Non-Monotonic Scaling in Vision Transformers
    (2511.21635), which is known by name only.

    >>> round(cls_centrality(torch.full((1, 5, 5), 0.2), prefix=1).item(), 6)
    1.0
    """
    _need_cls(attn, prefix)
    return token_centrality(attn, tolerance=tolerance)[:, _CLS]


def cls_incoming(attn: Maps, *, prefix: int) -> PerHead:
    """The share of all attention that CLS receives, (1/T) Σ_i a_i,CLS, in [0, 1]; 1/T is a uniform share.

    One step of the walk whose limit `cls_centrality` is (without its times T). CLS's look at itself counts.
    Raises ValueError for prefix = 0.
    Source: ours as a reading of CLS Centrality; the in-degree of a weighted graph.

    >>> cls_incoming(torch.tensor([[[0.5, 0.5], [1.0, 0.0]]]), prefix=1)
    tensor([0.7500])
    """
    _need_cls(attn, prefix)
    return _checked(attn)[..., _CLS].mean(-1)


def attention_consensus(attn: Maps, *, prefix: int) -> Float[Tensor, " N"]:
    """Mean cosine between the attention rows of different patches, in [0, 1]: do they look at one place?

    Of the head-mean map. Prefix columns are removed and the rows renormalised; with rows u_i of length 1,
    mean_{i≠j} u_i·u_j = (‖Σ u_i‖² − P) / (P(P − 1)), linear in P. A patch that gives the patches nothing has
    no row and is left out; NaN where fewer than two are left. Head by head: pass `attn.flatten(0, 1)`.

    Raises ValueError for fewer than two patches.
    Source: ours, for the Attention Consensus Index of Mechanisms of Non-Monotonic Scaling in Vision
    Transformers (2511.21635), which is known by name only.

    >>> at_itself, the_same_way = torch.eye(3), torch.full((3, 3), 1 / 3)
    >>> attention_consensus(torch.stack([at_itself, the_same_way]), prefix=1).round(decimals=4)
    tensor([0., 1.])
    """
    rows, defined = _among_patches(_head_mean(_checked(attn)), prefix)
    units = rows / torch.where(defined, torch.linalg.vector_norm(rows, dim=2), 1.0).unsqueeze(2)
    count = defined.sum(1)
    together = units.sum(1).square().sum(1)
    # Σ ‖u_i‖² as it was rounded, not as P: what cancels must be the same
    alone = units.square().sum((1, 2))
    return torch.where(count > 1, (together - alone) / (count * (count - 1)), torch.nan)


def head_consensus(attn: Float[Tensor, "N H T T"], *, prefix: int) -> Float[Tensor, " N"]:
    """1 − JSD/ln H between the heads' rows of a patch, mean over patches, in [0, 1]: 1 for equal heads.

    JSD = entropy(mean_h p_h) − mean_h entropy(p_h) ≤ ln H, for the rows p_h over patches, renormalised. A
    patch that gives the patches nothing in some head is left out; NaN where none is left.

    Raises ValueError for one head and for fewer than two patches.
    Source: ours, the other reading of paper A's consensus: agreement of heads, not of patches.

    >>> head_consensus(torch.eye(3).expand(1, 2, 3, 3), prefix=0)
    tensor([1.])
    """
    attn = _checked(attn)
    if attn.ndim != 4 or attn.shape[1] < 2:
        raise ValueError(f"agreement of heads needs [N, H, T, T] with H >= 2, got {tuple(attn.shape)}")
    rows, defined = _among_patches(attn, prefix)
    divergence = _entropy(rows.mean(1)) - _entropy(rows).mean(1)
    agreement = 1 - divergence / math.log(attn.shape[1])
    return _mean_where(agreement.clamp(0, 1), defined.all(1))


def attention_entropy(attn: Maps, *, normalised: bool = False) -> PerHead:
    """Mean over all queries of −Σ_j a_ij ln a_ij, in nats, from 0 (one key) to ln T (all keys alike).

    `normalised` divides by ln T. All tokens count, prefix included, as in `attention_maps.statistics`.
    Source: e.g. Zhai et al. 2023 (2303.06296).

    >>> round(attention_entropy(torch.full((1, 4, 4), 0.25)).item(), 4)  # ln 4
    1.3863
    """
    attn = _checked(attn)
    nats = _entropy(attn).mean(-1)
    return nats / math.log(attn.shape[-1]) if normalised else nats


def attention_distance(attn: Maps, grid: tuple[int, int], *, prefix: int) -> PerHead:
    """Mean distance between a patch and what it looks at, in patches: mean_i Σ_j a_ij ‖p_i − p_j‖.

    Places p are the cells of `grid` (rows, columns), row by row; weights are over patches, renormalised. A
    patch that gives the patches nothing is left out; NaN where none is left. Times the patch size: pixels.

    Raises ValueError where prefix + rows·columns is not T.
    Source: Dosovitskiy et al. 2021 (2010.11929), appendix on attention distance.

    >>> left_and_right = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]])
    >>> attention_distance(left_and_right, (1, 2), prefix=0)
    tensor([0.5000])
    """
    attn = _checked(attn)
    if prefix + grid[0] * grid[1] != attn.shape[-1]:
        raise ValueError(
            f"{attn.shape[-1]} tokens are not {prefix} prefix tokens and a grid of {grid[0]} x {grid[1]}"
        )
    cells = torch.cartesian_prod(torch.arange(grid[0]), torch.arange(grid[1])).to(attn)
    away = torch.linalg.vector_norm(cells[:, None] - cells, dim=-1)
    rows, defined = _among_patches(attn, prefix)
    return _mean_where((rows * away).sum(-1), defined)


def _checked(attn: Tensor) -> Tensor:
    """The maps in float32 or float64, once they are known to be attention maps."""
    if attn.ndim not in (3, 4) or attn.shape[-1] != attn.shape[-2] or 0 in attn.shape:
        raise ValueError(f"attention must be [N, H, T, T] or [N, T, T], got {tuple(attn.shape)}")
    tolerance = _ROW_SUM_TOLERANCE.get(attn.dtype)
    if tolerance is None:
        raise ValueError(f"attention must be of a floating type, got {attn.dtype}")
    attn = attn if attn.dtype == torch.float64 else attn.float()
    broken = attn.numel() - int(attn.isfinite().sum())
    if broken:
        image = int((~attn.isfinite()).flatten(1).any(1).nonzero()[0])
        raise ValueError(f"attention holds {broken} values that are not finite, first in image {image}")
    if attn.min() < 0:
        raise ValueError(f"attention weights must be >= 0, the least is {attn.min():.3g}")
    deviation = (attn.sum(-1) - 1).abs()
    if deviation.max() > tolerance:
        worst, *_, query = torch.unravel_index(deviation.argmax(), deviation.shape)
        raise ValueError(
            f"attention rows must sum to 1 (within {tolerance:g}); the largest deviation is "
            f"{deviation.max():.3g}, in image {int(worst)}, query {int(query)}"
        )
    return attn


def _need_cls(attn: Tensor, prefix: int) -> None:
    if not 1 <= prefix <= attn.shape[-1]:
        raise ValueError(
            f"CLS is one of the prefix tokens, got prefix = {prefix} of {attn.shape[-1]} tokens: "
            "a model without CLS has no such measure"
        )


def _head_mean(attn: Tensor) -> Tensor:
    return attn.mean(1) if attn.ndim == 4 else attn


def _among_patches(attn: Tensor, prefix: int) -> tuple[Tensor, Tensor]:
    """Rows [..., P, P] of the patches over the patches, renormalised, and which [..., P] have any mass."""
    patches = attn.shape[-1] - prefix
    if prefix < 0 or patches < 2:
        raise ValueError(f"at least 2 patches are needed, got prefix = {prefix} of {attn.shape[-1]} tokens")
    rows = attn[..., prefix:, prefix:]
    mass = rows.sum(-1)
    defined = mass > 0
    return rows / torch.where(defined, mass, 1.0).unsqueeze(-1), defined


def _entropy(rows: Tensor) -> Tensor:
    return torch.special.entr(rows).sum(-1)


def _mean_where(values: Tensor, counted: Tensor) -> Tensor:
    """Mean over the last axis of the counted values; NaN where none is."""
    return torch.where(counted, values, 0.0).sum(-1) / counted.sum(-1)
