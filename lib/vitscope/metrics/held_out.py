"""Tools for fits that are scored on images never fitted: the split, whitening, ridge at many penalties."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

SHARES = (0.3, 0.3, 0.2, 0.2)
"""Parts of the images: to find spatial maps, to fit weights, to choose penalties, and to score."""

RATIOS = (1.0, 30.0, 1e3, float("inf"))
"""How much more the extra columns of an arm may be penalised than z_i; at ∞ they are not used."""


class Parts(NamedTuple):
    """One tensor for each of the four parts of the images."""

    maps: Tensor
    train: Tensor
    validation: Tensor
    test: Tensor


def split_images(ids: np.ndarray, seed: int) -> Parts:
    """Positions of the images of each part, `SHARES` of the ids. Images with the same id stay together.

    The parts, and the order in each, depend on the ids and the seed, not on the order of the images.

    >>> [part.tolist() for part in split_images(np.arange(10), seed=0)]
    [[4, 6, 2], [7, 3, 5], [9, 0], [8, 1]]
    >>> [part.tolist() for part in split_images(np.arange(10)[::-1], seed=0)]
    [[5, 3, 7], [2, 6, 4], [0, 9], [1, 8]]
    """
    names, member = np.unique(ids, return_inverse=True)
    rank = np.empty(len(names), dtype=np.int64)
    rank[np.random.default_rng(seed).permutation(len(names))] = np.arange(len(names))
    order = np.argsort(rank[member], kind="stable")
    cuts = np.round(np.cumsum(SHARES)[:-1] * len(names))
    starts = np.searchsorted(rank[member][order], cuts)
    return Parts(*(torch.from_numpy(part) for part in np.split(order, starts)))


class Whitening(NamedTuple):
    """The mean token of each place, and axes whose scores have unit variance, the largest variance first."""

    mean: Float[Tensor, "P 1 D"]
    axes: Float[Tensor, "D K"]

    def scores(self, x: Float[Tensor, "P N D"]) -> Float[Tensor, "P N K"]:
        return (x - self.mean) @ self.axes


def fit_whitening(x: Float[Tensor, "P N D"]) -> Whitening:
    """Principal axes of tokens around the mean of their place; axes of nothing but rounding are left out.

    The sign of an axis is such that its largest score is positive: rotated tokens give the same scores.
    Tokens that do not vary give one axis of zeros.
    """
    mean = x.mean(1, keepdim=True)
    rows = (x - mean).flatten(0, 1)
    values, vectors = torch.linalg.eigh((rows.mT @ rows).double() / len(rows))
    rounding = x.shape[2] * torch.finfo(x.dtype).eps ** 2 * float(x.square().mean((0, 1)).max())
    kept = int((values > rounding).sum())
    if not kept:
        return Whitening(mean, x.new_zeros(x.shape[2], 1))
    axes = (vectors[:, -kept:] / values[-kept:].sqrt()).flip(1).to(x.dtype)
    low, high = (rows @ axes).aminmax(dim=0)
    return Whitening(mean, axes * torch.where(high >= -low, 1.0, -1.0))


class Moments(NamedTuple):
    """XᵀX and XᵀY of rows X and Y, all that a ridge needs of them."""

    gram: Float[Tensor, "Q Q"]
    cross: Float[Tensor, "Q E"]
    rows: int


def moments(
    blocks: Sequence[Float[Tensor, "R _"]], targets: Float[Tensor, "R E"], known: Moments | None = None
) -> Moments:
    """Moments of columns that come in blocks; of those before the last one they may be `known`."""
    new = blocks[-1]
    border = torch.cat([(block.mT @ new).double() for block in blocks])
    cross = (new.mT @ targets).double()
    if known is None:
        return Moments(border, cross, len(new))
    side = border[: len(known.gram)]
    gram = torch.cat([torch.cat([known.gram, side], 1), border.mT])
    return Moments(gram, torch.cat([known.cross, cross]), len(new))


class Ridge(NamedTuple):
    """Weights, and the penalties that did best on held rows: `l2` of own columns, `extra_l2` of the rest."""

    weight: Float[Tensor, "Q E"]
    l2: float
    extra_l2: float


def fit_ridge(fitted: Moments, held: Moments, *, l2: Sequence[float], own: int | None = None) -> Ridge:
    """Minimise (1/R)‖XW − Y‖² + λ‖W_own‖² + λρ‖W_extra‖²; held rows choose λ of `l2` and ρ of `RATIOS`.

    The first `own` columns are the own ones (all, if None); the extra ones are taken at unit mean square. For
    each ρ one eigendecomposition XᵀX/R = VΛVᵀ, extra columns divided by √ρ, serves all λ: with
    M = VᵀXᵀY/R, H = VᵀX_hᵀY_h, G = VᵀX_hᵀX_hV and s = 1/(Λ + λ), the held-out squared error is
    ‖Y_h‖² − 2 s·diag(MHᵀ) + sᵀ(G ∘ MMᵀ)s. No intercept: both sides are centred. Without extra columns the
    objective is that of scikit-learn's `Ridge` with alpha = λR.
    """
    gram, cross = fitted.gram / fitted.rows, fitted.cross / fitted.rows
    own = len(gram) if own is None else own
    unit = inverse(gram.diagonal().sqrt())
    strengths = torch.tensor(l2, dtype=torch.float64, device=gram.device)
    least, best = float("inf"), Ridge(torch.zeros_like(cross), float(l2[0]), float(l2[0]))
    for ratio in RATIOS if own < len(gram) else RATIOS[:1]:
        size = own if ratio == float("inf") else len(gram)
        scale = torch.cat([torch.ones_like(unit[:own]), unit[own:size] * ratio**-0.5])
        values, vectors = torch.linalg.eigh(scale[:, None] * gram[:size, :size] * scale)
        vectors = scale[:, None] * vectors
        signal = vectors.mT @ cross[:size]
        shrink = 1 / (values.clamp_min(0) + strengths[:, None])
        seen = (vectors.mT @ held.gram[:size, :size] @ vectors) * (signal @ signal.mT)
        met = (signal * (vectors.mT @ held.cross[:size])).sum(1)
        error = ((shrink @ seen) * shrink).sum(1) - 2 * shrink @ met
        place = int(error.argmin())
        if error[place] < least:
            least = float(error[place])
            weight = torch.zeros_like(cross)
            weight[:size] = vectors @ (shrink[place, :, None] * signal)
            best = Ridge(weight, float(l2[place]), float(l2[place]) * ratio)
    return best


class Columns:
    """Columns in blocks [P, N, q], z first, and their moments where ridges are fitted and chosen."""

    def __init__(
        self,
        targets: Parts,
        blocks: Sequence[Parts],
        train: Moments | None = None,
        validation: Moments | None = None,
    ) -> None:
        self.targets, self.blocks = targets, blocks
        self.train = self._moments("train", train)
        self.validation = self._moments("validation", validation)

    def joined(self, block: Parts) -> "Columns":
        """With one block more. Moments of the columns that are there are kept."""
        return Columns(self.targets, [*self.blocks, block], self.train, self.validation)

    def _moments(self, part: str, known: Moments | None) -> Moments:
        rows = [getattr(block, part).flatten(0, 1) for block in self.blocks]
        return moments(rows, getattr(self.targets, part).flatten(0, 1), known)

    def ridge(self, l2: Sequence[float]) -> Ridge:
        return fit_ridge(self.train, self.validation, l2=l2, own=self.blocks[0].train.shape[2])

    def residual(self, part: str, weight: Float[Tensor, "Q E"]) -> Float[Tensor, "P N E"]:
        """What the columns times `weight` leave of a part's targets."""
        left = getattr(self.targets, part).clone()
        weights = weight.to(left.dtype).split([block.train.shape[2] for block in self.blocks])
        for block, w in zip(self.blocks, weights, strict=True):
            left.flatten(0, 1).addmm_(getattr(block, part).flatten(0, 1), w, alpha=-1)
        return left


def inverse(size: Tensor) -> Tensor:
    """1 / size, and 0 for sizes of nothing but rounding."""
    return torch.where(size > 1e-6, 1 / size.clamp_min(1e-6), torch.zeros_like(size))
