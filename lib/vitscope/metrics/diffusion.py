"""Semantic diffusion: does what an image shows spread into patches that do not show it?

The measures are ours: of paper C (semantic diffusion) the effect is known, not its formulas.

`coverage` [N, P] is the share of every patch that objects cover, patches row by row over the grid. A patch
is foreground if more than half of it is covered, background if none of it is; the mixed ones between show
both and are left out. Numbers are taken per image first: images, not patches, are independent samples.
What single patches tell of the image's label: `metrics.leakage`.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.ndimage import distance_transform_cdt
from scipy.stats import rankdata
from torch import Tensor

FOREGROUND = 0.5
"""A patch of more coverage is foreground; one of coverage 0 is background."""

MADS = 6.0
"""A norm is high if it exceeds the median by more than so many median absolute deviations."""

_ROUNDED = 12  # decimals of a cosine in float64 that are no rounding: equal ones must have equal ranks
_PAIRS = 1 << 22  # pairs of tokens held at a time


class Kinds(NamedTuple):
    """Which patches are foreground, and which background; mixed ones are neither."""

    foreground: Bool[Tensor, "N P"]
    background: Bool[Tensor, "N P"]


def patch_kinds(coverage: Float[Tensor, "N P"]) -> Kinds:
    """Foreground: coverage > 0.5. Background: coverage 0. Raises ValueError for coverage outside [0, 1].

    >>> [kind.tolist() for kind in patch_kinds(torch.tensor([[0.0, 0.2, 0.5, 0.9]]))]
    [[[False, False, False, True]], [[True, False, False, False]]]
    """
    if coverage.ndim != 2 or not ((coverage >= 0) & (coverage <= 1)).all():
        raise ValueError(
            f"coverage must be shares [N, P] of patches, each in [0, 1], got shape {tuple(coverage.shape)}"
            + (f", values {coverage.min():.3g} to {coverage.max():.3g}" if coverage.numel() else "")
        )
    return Kinds(coverage > FOREGROUND, coverage == 0)


def patch_distance_to_foreground(
    coverage: Float[Tensor, "N P"], grid: tuple[int, int]
) -> Float[Tensor, "N P"]:
    """Steps to the nearest foreground patch, diagonal ones allowed (chessboard distance), in patches.

    0 for foreground, 1 for the ring around it (mixed patches, where the object has an edge, and background);
    inf in images without foreground. Raises ValueError for a grid (rows, columns) of another size.

    >>> patch_distance_to_foreground(torch.tensor([[0.9, 0.2, 0.0], [0.2, 0.0, 0.0]]), (1, 3)).tolist()
    [[0.0, 1.0, 2.0], [inf, inf, inf]]
    """
    foreground = patch_kinds(coverage).foreground
    _need_grid(grid, coverage.shape[1])
    away = torch.full(coverage.shape, torch.inf)
    for row in foreground.any(1).nonzero()[:, 0].tolist():
        board = ~foreground[row].view(grid).numpy()
        away[row] = torch.from_numpy(distance_transform_cdt(board, "chessboard")).flatten()
    return away


class CosineGap(NamedTuple):
    """Mean cosines of tokens per state and image; NaN where an image has fewer than two of a kind."""

    foreground: Float[Tensor, "*S N"]
    background: Float[Tensor, "*S N"]
    across: Float[Tensor, "*S N"]
    gap: Float[Tensor, "*S N"]


def foreground_background_gap(
    patches: Float[Tensor, "*S N P D"],
    coverage: Float[Tensor, "N P"],
    *,
    centre: Float[Tensor, "*S D"] | None = None,
) -> CosineGap:
    """gap = (fg–fg + bg–bg)/2 − fg–bg, mean cosines over pairs of different tokens of an image, in [−1, 2].

    `centre` is subtracted first: the mean patch token of the dataset at each state, say
    `patches.mean((-3, -2))`; None for raw cosines, which share a large common part in deep states. A token
    without length has cosine 0 with every other. In float64. Raises ValueError for shapes that do not fit,
    values that are not finite, and coverage outside [0, 1].

    >>> tokens = torch.tensor([[[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]]])
    >>> [round(v.item(), 6) for v in foreground_background_gap(tokens, torch.tensor([[1.0, 1.0, 0.0, 0.0]]))]
    [1.0, 1.0, 0.0, 1.0]
    """
    kinds = kinds_of(patches, coverage, "patches")
    found = []
    for x, middle in _states(patches, centre):
        units = _units(x, middle)
        sums, alone = [], []
        for kind in kinds:
            chosen = units * kind[:, :, None]
            sums.append(chosen.sum(1))
            alone.append(chosen.square().sum((1, 2)))
        few = [kind.sum(1).double() for kind in kinds]
        same = [
            torch.where(n > 1, (t.square().sum(1) - a) / (n * (n - 1)), torch.nan)
            for n, t, a in zip(few, sums, alone, strict=True)
        ]
        across = torch.where(few[0] * few[1] > 0, (sums[0] * sums[1]).sum(1) / (few[0] * few[1]), torch.nan)
        found.append(torch.stack([*same, across, (same[0] + same[1]) / 2 - across]))
    return CosineGap(*torch.stack(found, 1).view(4, *patches.shape[:-2]))


class DistanceCurve(NamedTuple):
    """Per image the `correlation` of cosine with distance, and the mean `cosine` of pairs `steps` apart."""

    correlation: Float[Tensor, " N"]
    steps: Int[Tensor, " K"]
    cosine: Float[Tensor, "N K"]


def similarity_against_distance(
    patches: Float[Tensor, "N P D"],
    grid: tuple[int, int],
    *,
    method: Literal["spearman", "pearson"] = "spearman",
    centre: Float[Tensor, " D"] | None = None,
) -> DistanceCurve:
    """Correlation, over pairs of patches, of the cosine of their tokens with their distance, in [−1, 1].

    Distances are Euclidean, in patches; for the curve they are rounded to whole ones. Negative: near patches
    are alike, as in pictures; 0: likeness knows no place. NaN where all cosines of an image are equal.
    `centre` as in `foreground_background_gap`. Raises ValueError for fewer than 3 patches, another grid
    (rows, columns), and values that are not finite.

    >>> line = torch.tensor([[[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]])
    >>> curve = similarity_against_distance(line, (1, 3))
    >>> round(curve.correlation.item(), 4), curve.steps.tolist(), curve.cosine.round(decimals=4).tolist()
    (-1.0, [1, 2], [[0.7071, 0.0]])
    """
    if method not in ("spearman", "pearson"):
        raise ValueError(f'method must be "spearman" or "pearson", got {method!r}')
    if patches.ndim != 3 or patches.shape[1] < 3 or 0 in patches.shape:
        raise ValueError(f"patches must be [N, P, D] with P >= 3, got {tuple(patches.shape)}")
    _need_grid(grid, patches.shape[1])
    _require_finite(patches, "patches")
    first, second = torch.triu_indices(patches.shape[1], patches.shape[1], 1)
    cells = torch.cartesian_prod(torch.arange(grid[0]), torch.arange(grid[1])).double()
    away = torch.linalg.vector_norm(cells[first] - cells[second], dim=1)
    steps, place = away.round().long().unique(return_inverse=True)
    ((x, middle),) = _states(patches, centre)
    correlations, curves = [], []
    for part in _units(x, middle).split(max(1, _PAIRS // len(away))):
        cosine = (part @ part.mT)[:, first, second].round(decimals=_ROUNDED)
        curves.append(cosine.new_zeros(len(part), len(steps)).index_add_(1, place, cosine))
        a, b = (torch.from_numpy(rankdata(v, axis=-1)) if method == "spearman" else v for v in (cosine, away))
        a, b = a - a.mean(-1, keepdim=True), b - b.mean()
        # 0/0 for cosines that are all equal
        vary = cosine.amax(1) > cosine.amin(1)
        correlations.append(torch.where(vary, a @ b / (a.norm(dim=1) * b.norm()), torch.nan))
    return DistanceCurve(torch.cat(correlations), steps, torch.cat(curves) / place.bincount())


class HighNorm(NamedTuple):
    """Patches of high norm at each state: which, their share, the threshold, and where they lie.

    `in_background` is the share of them that is background (NaN for none); by luck it would be
    `background`, the share of background among all patches. Both NaN without coverage.
    """

    high: Bool[Tensor, "*S N P"]
    share: Float[Tensor, "*S"]
    threshold: Float[Tensor, "*S"]
    in_background: Float[Tensor, "*S"]
    background: float


def high_norm(norms: Float[Tensor, "*S N P"], coverage: Float[Tensor, "N P"] | None = None) -> HighNorm:
    """Norms above median + 6·MAD of all patches of all images of a state (MAD without any factor).

    Where more than half of the norms are equal, the MAD is 0 and no norm counts as high: threshold inf.
    Raises ValueError for norms that are negative, not finite or not one per patch. Source: the relative rule
    is ours, in place of the absolute cut of Darcet et al. 2023 (2309.16588).

    >>> found = high_norm(torch.tensor([[1.0, 2.0, 3.0, 4.0, 50.0]]))
    >>> found.threshold.item(), found.share.item()  # 3 + 6·1
    (9.0, 0.2)
    """
    if norms.ndim < 2 or 0 in norms.shape or not (norms.isfinite() & (norms >= 0)).all():
        raise ValueError(
            f"norms must be [..., N, P], one or more, finite and >= 0; of {tuple(norms.shape)} "
            f"{int((~(norms.isfinite() & (norms >= 0))).sum())} are not"
        )
    flat = norms.double().flatten(-2)
    middle = _median(flat)
    spread = _median((flat - middle[..., None]).abs())
    threshold = torch.where(spread > 0, middle + MADS * spread, torch.inf)
    high = norms.double() > threshold[..., None, None]
    count = high.sum((-2, -1)).double()
    inside, by_luck = torch.full_like(threshold, torch.nan), float("nan")
    if coverage is not None:
        background = kinds_of(norms[..., None], coverage, "norms").background
        inside, by_luck = (high & background).sum((-2, -1)) / count, float(background.double().mean())
    return HighNorm(high, count / flat.shape[-1], threshold, inside, by_luck)


def _median(x: Tensor) -> Tensor:
    """Over the last axis, the mean of the two middle values of an even number (torch takes the lower)."""
    return torch.from_numpy(np.asarray(np.median(x.numpy(), axis=-1)))


def kinds_of(tokens: Tensor, coverage: Tensor, what: str) -> Kinds:
    """Kinds of the patches of tokens [..., N, P, D], once both are known to fit and to be finite."""
    if tokens.ndim < 3 or 0 in tokens.shape or tokens.shape[-3:-1] != coverage.shape:
        raise ValueError(
            f"{what} [..., N, P, D] and coverage [N, P] must have the same images and patches, got "
            f"{tuple(tokens.shape)} and {tuple(coverage.shape)}"
        )
    _require_finite(tokens, what)
    return patch_kinds(coverage)


def _require_finite(tokens: Tensor, what: str) -> None:
    broken = ~tokens.isfinite()
    if broken.any():
        first = tuple(broken.nonzero()[0, :-1].tolist())
        raise ValueError(f"{what} hold {int(broken.sum())} values that are not finite, first at {first}")


def _need_grid(grid: tuple[int, int], patches: int) -> None:
    if grid[0] * grid[1] != patches:
        raise ValueError(f"{patches} patches do not fill a grid of {grid[0]} x {grid[1]}")


def _states(patches: Tensor, centre: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Tokens [N, P, D] of every state with their centre [D]."""
    states = patches.reshape(-1, *patches.shape[-3:])
    if centre is None:
        yield from ((x, None) for x in states)
        return
    if centre.shape != (*patches.shape[:-3], patches.shape[-1]) or not centre.isfinite().all():
        raise ValueError(
            f"centre must be finite, [..., D] for patches [..., N, P, D], got {tuple(centre.shape)} for "
            f"{tuple(patches.shape)}"
        )
    yield from zip(states, centre.reshape(len(states), -1), strict=True)


def _units(x: Tensor, centre: Tensor | None) -> Tensor:
    """Tokens of length 1 in float64; those of no length, or centred to nothing but rounding, are 0."""
    wide = x.double()
    least = torch.zeros((), dtype=torch.float64)
    if centre is not None:
        least = 8 * torch.finfo(x.dtype).eps * wide.norm(dim=2, keepdim=True)
        wide = wide - centre.double()
    norms = wide.norm(dim=2, keepdim=True)
    return torch.where(norms <= least, 0.0, wide / norms)
