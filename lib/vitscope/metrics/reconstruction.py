"""Ridge reconstruction of patch embeddings from the tokens of a state, scored on images never fitted.

What is to be reconstructed is what differs between images: tokens and targets lose their mean over training
images at each place, so that neither the average picture nor a position embedding counts as content.

The parts of a fit, for tokens x_i of one state and targets y_i (i and j are patches of one image):

- z_i: all principal components of the tokens, each of unit variance; z'_i: the first d' of them;
- context: Σ_{j≠i} K^m_ij z'_j for M spatial maps K^m. K^1 is the mean of the others; the further maps are
  those of the terms Σ_m Σ_j K^m_ij z'_j W^m that best explain what is left, found on images of their own;
- arms: `self` sees [z_i ; tanh(R z_i)] with a fixed random R, `all` sees [z_i ; context], both of the same
  number of columns; `other` and `shuffled` are `all` with the context of another image and of permuted
  patches, their maps fitted anew; `linear` sees z_i alone.

The columns beside z_i have a penalty of their own. Tokens of one image are not independent samples, and with
one penalty for all, columns without information would cost each arm a different part of its score.

Patches come first here, tensors are [P, N, D]: then a map multiplies all images at once, and rows of single
tokens are a view.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitscope.metrics.held_out import (
    Columns,
    Parts,
    fit_ridge,
    fit_whitening,
    inverse,
    moments,
    split_images,
)

ARMS = ("self", "all", "other", "shuffled", "linear")
_SWEEPS = 4  # of alternating least squares; four times as many change R² by less than another split does
_DIRECTIONS = 16  # principal directions of the residual in which spatial maps are sought; more add nothing
_GUARD = 0.01  # relative ridge on W while maps are sought, for columns that depend on each other


def fit_maps(
    x: Float[Tensor, "P N D"],
    y: Float[Tensor, "P N E"],
    held_x: Float[Tensor, "P H D"],
    held_y: Float[Tensor, "P H E"],
    *,
    count: int,
    l2: Sequence[float],
    seed: int,
) -> Float[Tensor, "M P P"]:
    """`count` spatial maps K, zero on the diagonal, whose Σ_m Σ_j K^m_ij x_j W^m best explain y_i.

    All maps together, by alternating ridge regressions for the K and for the W from random W; the penalty of
    the K is chosen on the held images. One map after the other would leave each with an error that the ones
    not yet fitted cause, and that only more images reduce.
    """
    x, y = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    errors = y.flatten(0, 1)
    _, vectors = torch.linalg.eigh((errors.mT @ errors).double())
    directions = vectors[:, -_DIRECTIONS:].to(y.dtype)
    y, held_y = y @ directions, held_y @ directions
    generator = torch.Generator().manual_seed(seed)
    # a start in the whole space, projected, so that the sign of a direction makes no difference
    weight = torch.randn(count, x.shape[2], len(directions), generator=generator).to(x) @ directions
    maps = x.new_zeros(count, len(x), len(x))
    for _ in range(_SWEEPS):
        inputs, held_inputs = (
            (part.flatten(0, 1) @ weight).view(count, *part.shape[:2], -1) for part in (x, held_x)
        )
        maps = solve_maps(inputs, y, held_inputs, held_y, l2)
        found = moments([torch.cat([pool(k, x).flatten(0, 1) for k in maps], 1)], y.flatten(0, 1))
        guard = _GUARD * torch.diag(found.gram.diagonal().clamp_min(1e-12))
        weight = torch.linalg.solve(found.gram + guard, found.cross).to(x.dtype).view_as(weight)
    return maps


def solve_maps(
    inputs: Float[Tensor, "M P N E"],
    outputs: Float[Tensor, "P N E"],
    held_inputs: Float[Tensor, "M P H E"],
    held_outputs: Float[Tensor, "P H E"],
    l2: Sequence[float],
) -> Float[Tensor, "M P P"]:
    """Ridge regression Σ_m Σ_j K^m_ij inputs^m_j ≈ outputs_i with K^m_ii = 0; each K^m scaled to norm 1."""
    count, patches = inputs.shape[:2]
    scale = inverse(inputs.square().mean((1, 2, 3)).sqrt()).repeat_interleave(patches)
    fitted, held = (
        moments([x.flatten(2).flatten(0, 1).mT * scale], y.flatten(1).mT)
        for x, y in ((inputs, outputs), (held_inputs, held_outputs))
    )
    ridge = fit_ridge(fitted, held, l2=l2)
    penalty = ridge.l2 * fitted.rows * torch.eye(len(scale)).to(fitted.gram)
    inverted = torch.linalg.inv(fitted.gram + penalty).view(count, patches, -1)
    k = ridge.weight.mT.view(patches, count, patches).clone()
    # K_ii = 0 by Lagrange multipliers, M for each row
    place = torch.arange(patches, device=k.device)
    own = inverted.view(count, patches, count, patches)[:, place, :, place]
    multiplier = torch.linalg.solve(own, k[place, :, place])
    k -= torch.einsum("im,min->in", multiplier, inverted).view_as(k)
    k[place, :, place] = 0
    k = (k.transpose(0, 1).reshape(count, patches, patches) * scale.view(count, 1, patches)).to(inputs.dtype)
    return k / k.flatten(1).norm(dim=1).clamp_min(torch.finfo(k.dtype).tiny)[:, None, None]


@dataclass(frozen=True)
class StateFit:
    """What one state gave, by arm: squared error of each test image, penalties (own, extra), columns."""

    error: dict[str, Float[Tensor, " N"]]
    l2: dict[str, tuple[float, float]]
    columns: dict[str, int]


class Reconstruction:
    """The fits of one set of images, state by state. Split, centred targets and controls are made once.

    `targets` float32, `maps` the number M of spatial maps, `pca` the d' of the context. `total` holds the
    squared size of each test image's centred targets, so that R² = 1 − Σ error / Σ total.
    """

    def __init__(
        self,
        targets: Float[Tensor, "N P E"],
        ids: np.ndarray,
        *,
        pca: int,
        maps: int,
        l2: Sequence[float],
        seed: int,
    ) -> None:
        self.pca, self.maps, self.l2, self.seed = pca, maps, l2, seed
        self.split = Parts(*(part.to(targets.device) for part in split_images(ids, seed)))
        self.targets = _centred(self.parts(targets))
        self.total = self.targets.test.square().sum((0, 2))
        self._partners = Parts(*(_partners(ids[part.cpu().numpy()]).to(part) for part in self.split))
        generator = torch.Generator().manual_seed(seed)
        self._orders = Parts(
            *(
                torch.rand(len(p), targets.shape[1], generator=generator).argsort(1).to(p).mT
                for p in self.split
            )
        )

    def parts(self, x: Float[Tensor, "N P D"]) -> Parts:
        """The four parts of the images, patches first."""
        return Parts(*(x.transpose(0, 1).index_select(1, part) for part in self.split))

    def fit(self, tokens: Float[Tensor, "N P D"]) -> StateFit:
        """All arms of one state."""
        x = self.parts(tokens)
        whitening = fit_whitening(x.train)
        z = Parts(*(whitening.scores(part) for part in x))
        short = Parts(*(part[..., : self.pca].contiguous() for part in z))
        sources = {
            "all": short,
            "other": Parts(*(x.index_select(1, p) for x, p in zip(short, self._partners, strict=True))),
            "shuffled": _centred(
                Parts(*(_reordered(x, o) for x, o in zip(short, self._orders, strict=True)))
            ),
        }
        alone = Columns(self.targets, [z])
        result = StateFit({}, {}, {})
        self._score("linear", alone, result)
        self._score(
            "self", alone.joined(random_features(z, self.maps * short.train.shape[2], self.seed)), result
        )
        for arm, source in sources.items():
            self._score(arm, self._with_context(alone, source), result)
        return result

    def _with_context(self, alone: Columns, source: Parts) -> Columns:
        """[z_i ; context], the context pooled from the tokens `source` by M maps."""
        mean = others_mean(len(source.train)).to(source.train)
        columns = alone.joined(Parts(*(pool(mean, x) for x in source)))
        if self.maps == 1:
            return columns
        weight = columns.ridge(self.l2).weight
        left, held_left = (columns.residual(part, weight) for part in ("maps", "validation"))
        found = fit_maps(
            source.maps, left, source.validation, held_left, count=self.maps - 1, l2=self.l2, seed=self.seed
        )
        for k in found:
            columns = columns.joined(Parts(*(pool(k, x) for x in source)))
        return columns

    def _score(self, arm: str, columns: Columns, result: StateFit) -> None:
        ridge = columns.ridge(self.l2)
        result.error[arm] = columns.residual("test", ridge.weight).square().sum((0, 2))
        result.l2[arm] = (ridge.l2, ridge.extra_l2)
        result.columns[arm] = len(ridge.weight)


def others_mean(patches: int) -> Float[Tensor, "P P"]:
    """The spatial map that gives each patch the mean of all others.

    >>> others_mean(3)
    tensor([[0.0000, 0.5000, 0.5000],
            [0.5000, 0.0000, 0.5000],
            [0.5000, 0.5000, 0.0000]])
    """
    return (1 - torch.eye(patches)) / (patches - 1)


def pool(k: Float[Tensor, "P P"], x: Float[Tensor, "P N D"]) -> Float[Tensor, "P N D"]:
    """Σ_j K_ij x_j."""
    return (k @ x.flatten(1)).view_as(x)


def random_features(z: Parts, count: int, seed: int) -> Parts:
    """`count` random features tanh(R z_i) of each token itself, with R of variance 1/(width of z)."""
    generator = torch.Generator().manual_seed(seed)
    width = z.train.shape[2]
    projection = (torch.randn(width, count, generator=generator) / width**0.5).to(z.train)
    return _centred(Parts(*(torch.tanh(x @ projection) for x in z)))


def _reordered(x: Float[Tensor, "P N D"], order: Int[Tensor, "P N"]) -> Float[Tensor, "P N D"]:
    """Each image's patches in an order of its own."""
    return x[order, torch.arange(x.shape[1], device=x.device)]


def _centred(parts: Parts) -> Parts:
    """Less the mean of training images at each place."""
    mean = parts.train.mean(1, keepdim=True)
    return Parts(*(x - mean for x in parts))


def _partners(ids: np.ndarray) -> Int[Tensor, " N"]:
    """For each image of a part another one, with another id; images of one id must follow each other."""
    largest = int(np.unique(ids, return_counts=True)[1].max())
    if 2 * largest > len(ids):
        raise ValueError(
            f"one id holds {largest} of the {len(ids)} images of a part: its images have no partners for the "
            "control with another image's context"
        )
    return torch.arange(len(ids)).roll(-largest)


def each_state(
    tokens: Tensor | Iterable[Tensor] | Callable[[int], Tensor], targets: Tensor, states: Sequence[int]
) -> Iterator[Tensor]:
    """Tokens of one state after the other, checked, in float32 on the device of the targets.

    Raises ValueError where they do not fit the targets or the states, FloatingPointError for NaN.
    """
    stream = map(tokens, states) if callable(tokens) else iter(tokens)
    for number, state in enumerate(states):
        x = next(stream, None)
        if x is None:
            raise ValueError(f"there are tokens of {number} states for {len(states)} names: {list(states)}")
        if x.ndim != 3 or x.shape[:2] != targets.shape[:2]:
            raise ValueError(
                f"tokens of state {state} must be [N, P, D] with the {targets.shape[0]} images and "
                f"{targets.shape[1]} patches of the targets, got {tuple(x.shape)}"
            )
        require_finite(x, f"the tokens of state {state}")
        yield x.to(targets.device, torch.float32)
    if next(stream, None) is not None:
        raise ValueError(f"there are tokens of more than the {len(states)} states named: {list(states)}")


def require_finite(x: Float[Tensor, "N P D"], what: str) -> None:
    """Raise FloatingPointError naming `what` and counting its images with NaN or infinity."""
    low, high = x.flatten(1).aminmax(dim=1)  # NaN goes through both
    bad = ~(torch.isfinite(low) & torch.isfinite(high))
    if bad.any():
        raise FloatingPointError(f"{what} hold NaN or infinity in {int(bad.sum())} of {len(x)} images")
