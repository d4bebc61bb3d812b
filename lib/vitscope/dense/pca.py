"""Patch features as colours: three principal components as red, green and blue.

Components are fitted to all patches of all images of an entry (one model at one state), so that a colour
means the same in all its pictures. Between entries it does not: two models have different widths, two states
different axes. Their scores are therefore turned onto those of the first entry, patch by patch, by an
orthogonal matrix (Procrustes), which changes no distance within an entry. Even so, equal colours in two
entries are no equal features, and where `agreement` is low they mean little.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import orthogonal_procrustes
from torch import Tensor

Basis = Literal["common", "own"]

_ROWS = 8192  # patches whose float64 copies are held at once
_ROUNDING = 1e-12  # variance of nothing, relative to that of the tokens


class Components(NamedTuple):
    """Leading principal components: `scores` [..., K] in float64, `axes` [K, D], `explained` shares [K]."""

    scores: Float[Tensor, "*M K"]
    axes: Float[Tensor, "K D"]
    explained: Float[Tensor, " K"]


class PcaMaps(NamedTuple):
    """Colour maps of `pca_rgb`.

    `rgb` [M, N, rows, columns, 3], float32 in [0, 1]; M is left out for a single entry, here and below.
    `explained` [M, 3]: share of an entry's variance along its own first, second and third component. After
    alignment a colour channel is a mix of the three. `agreement` [M]: the alignment's fit, the correlation
    of an entry's turned scores with the first entry's over patches and components, in [0, 1]; 1 for the
    first entry, NaN for the others without alignment. `names`: keys of a mapping, else numbers.
    """

    rgb: np.ndarray
    explained: np.ndarray
    agreement: np.ndarray
    names: tuple[str, ...]


def principal(tokens: Float[Tensor, "*M D"], count: int, what: str = "tokens") -> Components:
    """The `count` leading principal components over all but the last axis, in float64 on the CPU.

    Covariance about the mean, and its eigenvectors. The largest entry of each axis by size (the first of
    equals) is positive, which makes the sign a convention and not a finding. Components of equal variance can
    be turned into one another. Raises ValueError for NaN or infinity, fewer than two tokens, and when fewer
    than `count` directions have variance beyond rounding.

    >>> found = principal(torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]]), 1)
    >>> found.scores.squeeze(1).tolist(), found.explained.tolist()
    ([-2.0, 0.0, 2.0], [1.0])
    """
    x = tokens.detach().flatten(0, -2) if tokens.ndim > 1 else tokens
    if x.ndim != 2 or len(x) < 2 or x.shape[1] < count:
        raise ValueError(
            f"{what}: {count} components need [..., D] with two tokens or more of width {count} or more, "
            f"got shape {tuple(tokens.shape)}"
        )
    mean = sum(part.to("cpu", torch.float64).sum(0) for part in x.split(_ROWS)) / len(x)
    if not mean.isfinite().all():
        broken = int((~x.isfinite().all(1)).sum())
        raise ValueError(f"{what} hold NaN or infinity in {broken} of {len(x)} rows")
    covariance = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    for part in x.split(_ROWS):
        centred = part.to("cpu", torch.float64) - mean
        covariance += centred.T @ centred
    values, vectors = torch.linalg.eigh(covariance / len(x))
    values, axes = values.flip(0), vectors.flip(1).T
    size = float(values.sum() + mean.square().sum())
    rank = int((values > _ROUNDING * size).sum())
    if rank < count:
        raise ValueError(
            f"{what} vary in {rank} directions only, {count} components were asked for: "
            f"shape {tuple(tokens.shape)}"
        )
    axes = axes[:count]
    largest = axes.abs().round(decimals=9).argmax(1, keepdim=True)  # rounded: equals stay equal
    axes = axes * axes.gather(1, largest).sign()
    scores = torch.cat([(part.to("cpu", torch.float64) - mean) @ axes.T for part in x.split(_ROWS)])
    return Components(scores.reshape(*tokens.shape[:-1], count), axes, values[:count] / values.sum())


def pca_rgb(
    tokens: Float[Tensor, "N P D"] | Float[Tensor, "M N P D"] | Mapping[str, Float[Tensor, "N P _"]],
    grid: tuple[int, int],
    *,
    basis: Basis = "common",
    percentiles: tuple[float, float] = (1.0, 99.0),
) -> PcaMaps:
    """PCA maps of patch tokens: the first three components as colours.

    `tokens`: patches of one entry [N, P, D], of several of one width (states) [M, N, P, D], or a mapping from
    names to entries of any widths (models); all of the same images and grid (rows, columns).

    Every entry's three components are fitted to all its images. `basis="common"` then turns its scores Z onto
    those of the first entry, Z₁, by the orthogonal matrix that minimises ‖Z R − Z₁‖ (both of unit size first;
    reflections allowed), so that colours of entries can be compared; see the top of this file for how far.
    `basis="own"` leaves every entry its own components, in order of variance. Each channel is scaled so that
    its percentiles over all images and patches of the entry are 0 and 1, and cut there.

    Raises ValueError for shapes that do not fit each other or the grid, NaN or infinity, features that vary
    in fewer than three directions, and percentiles out of order.

    >>> tokens = torch.randn(2, 12, 5, generator=torch.Generator().manual_seed(0))
    >>> turned = tokens @ torch.linalg.qr(torch.randn(7, 5, generator=torch.Generator().manual_seed(1)))[0].T
    >>> maps = pca_rgb({"a": tokens, "turned": turned}, (3, 4))
    >>> maps.rgb.shape, maps.agreement.round(6).tolist(), np.allclose(maps.rgb[0], maps.rgb[1], atol=1e-4)
    ((2, 2, 3, 4, 3), [1.0, 1.0], True)
    """
    if basis not in get_args(Basis):
        raise ValueError(f"basis must be one of {', '.join(map(repr, get_args(Basis)))}, got {basis!r}")
    if not 0 <= percentiles[0] < percentiles[1] <= 100:
        raise ValueError(f"percentiles must be (low, high) from 0 to 100, low < high, got {percentiles}")
    entries, single = _entries(tokens, grid)
    found = {name: principal(entry, 3, f"tokens of {name!r}") for name, entry in entries.items()}
    scores = [f.scores.numpy() for f in found.values()]
    agreement = np.full(len(scores), np.nan)
    agreement[0] = 1.0
    reference = _unit(scores[0])
    if basis == "common":
        for number, score in enumerate(scores[1:], start=1):
            turn, agreement[number] = orthogonal_procrustes(_unit(score), reference)
            scores[number] = (score.reshape(-1, 3) @ turn).reshape(score.shape)
    rgb = np.stack([_colours(score, percentiles) for score in scores])
    rgb = rgb.reshape(*rgb.shape[:2], *grid, 3)
    explained = np.stack([f.explained.numpy() for f in found.values()])
    if single:
        return PcaMaps(rgb[0], explained[0], agreement[0], tuple(found))
    return PcaMaps(rgb, explained, agreement, tuple(found))


def _entries(tokens: Tensor | Mapping[str, Tensor], grid: tuple[int, int]) -> tuple[dict[str, Tensor], bool]:
    """Entries by name, checked, and whether there is just one without a name."""
    single = isinstance(tokens, Tensor) and tokens.ndim == 3
    if isinstance(tokens, Tensor):
        parts = {str(i): part for i, part in enumerate([tokens] if single else tokens)}
    else:
        parts = dict(tokens)
    if not parts:
        raise ValueError("there are no tokens to map")
    wanted = (*next(iter(parts.values())).shape[:1], grid[0] * grid[1])
    for name, part in parts.items():
        if part.ndim != 3 or tuple(part.shape[:2]) != wanted or part.numel() == 0:
            raise ValueError(
                f"tokens of {name!r} must be [N, P, D] with (N, P) = {wanted}: the images of the first "
                f"entry, and the patches of the grid {grid}. Got {tuple(part.shape)}. Leave out prefix tokens"
            )
    return parts, single


def _unit(scores: np.ndarray) -> np.ndarray:
    return scores.reshape(-1, 3) / np.linalg.norm(scores)


def _colours(scores: np.ndarray, percentiles: tuple[float, float]) -> np.ndarray:
    low, high = np.percentile(scores, percentiles, axis=(0, 1))
    # a channel that is flat but for outliers has no range: its middle is shown
    flat = high <= low
    scaled = np.where(flat, 0.5, (scores - low) / np.where(flat, 1.0, high - low))
    return np.clip(scaled, 0, 1).astype(np.float32)
