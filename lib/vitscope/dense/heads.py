"""What the dense heads share: checks of patch tokens and maps, standardisation, a linear head, resizing.

Patches are row-major over a grid (rows, cols). Resizing is bilinear without aligned corners, as in torch; it
is separable, so it is done as one small product per axis: u = R z Cᵀ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitscope.holdout import Groups
from vitscope.protocol import Moments, moments

Size = tuple[int, int]
"""Rows and columns."""

Maps = Tensor | Sequence[Tensor]
"""One map an image, all of one size: [N, h, w], or N maps [h, w]."""

CHUNK = 16
"""Images read at once where nothing depends on how many there are."""


@dataclass(frozen=True)
class PatchHead:
    """A linear map of standardised patch tokens, and of CLS if it was given, for each of S states.

    logits[s, n, k, p] = W[s, k]·(x − mean)/scale + W_cls[s, k]·(c − cls_mean)/cls_scale + bias[s, k]

    The second term is the same for all patches p of an image: CLS broadcast and concatenated to each patch.
    """

    patches: Moments
    weight: Float[Tensor, "S K D"]
    bias: Float[Tensor, "S K"]
    cls: Moments | None = None
    cls_weight: Float[Tensor, "S K E"] | None = None

    @torch.no_grad()
    def logits(
        self, tokens: Float[Tensor, "S N P D"], cls: Float[Tensor, "S N E"] | None = None
    ) -> Float[Tensor, "S N K P"]:
        """Logits of every patch. Raises ValueError for other states or widths, and for CLS given or missing
        unlike in the fit."""
        states, _, width = self.weight.shape
        if tokens.ndim != 4 or (len(tokens), tokens.shape[3]) != (states, width):
            raise ValueError(
                f"this head was fitted on {states} states of width {width}, got tokens of shape "
                f"{tuple(tokens.shape)}"
            )
        if (cls is None) != (self.cls is None):
            raise ValueError(
                f"this head was fitted {'without' if self.cls is None else 'with'} CLS: "
                f"{'leave cls out' if self.cls is None else 'pass cls as well'}"
            )
        device = self.weight.device
        x = self.patches.standardise(tokens.flatten(1, 2).to(device)).view(tokens.shape)
        found = self.weight[:, None] @ x.mT + self.bias[:, None, :, None]
        if cls is not None and self.cls is not None and self.cls_weight is not None:
            check_against(cls, tokens)
            found += (self.cls.standardise(cls.to(device)) @ self.cls_weight.mT)[..., None]
        return found


@dataclass(frozen=True)
class Inputs:
    """Standardised training inputs, turned to the eigenvectors of their covariance and divided by
    √(variance + floor): nearly white, so that one learning rate suits all directions.

    `x` [S, N, P, D], `cls` [S, N, E] or None. Weights w on them become `head(w, bias)` on tokens, and
    Σ penalty·w² is the squared length of the weights on standardised tokens.
    """

    x: Tensor
    cls: Tensor | None
    scaling: Moments
    cls_scaling: Moments | None
    turn: Float[Tensor, "S D D"]
    cls_turn: Float[Tensor, "S E E"] | None
    penalty: Float[Tensor, "S F"]

    @classmethod
    def of(cls, tokens: Tensor, cls_tokens: Tensor | None, floor: float = 1e-3) -> "Inputs":
        scaling = patch_moments(tokens)
        x, turn = _whiten(scaling.standardise(tokens.flatten(1, 2)), floor)
        if cls_tokens is None:
            return cls(x.view(tokens.shape), None, scaling, None, turn, None, turn.square().sum(1))
        cls_scaling = moments(cls_tokens)
        c, cls_turn = _whiten(cls_scaling.standardise(cls_tokens), floor)
        penalty = torch.cat([turn.square().sum(1), cls_turn.square().sum(1)], 1)
        return cls(x.view(tokens.shape), c, scaling, cls_scaling, turn, cls_turn, penalty)

    def head(self, weight: Float[Tensor, "S K F"], bias: Float[Tensor, "S K"]) -> PatchHead:
        width = self.x.shape[3]
        turned = weight[..., :width] @ self.turn.mT
        if self.cls_turn is None:
            return PatchHead(self.scaling, turned, bias)
        return PatchHead(self.scaling, turned, bias, self.cls_scaling, weight[..., width:] @ self.cls_turn.mT)


def _whiten(x: Float[Tensor, "S M D"], floor: float) -> tuple[Tensor, Float[Tensor, "S D D"]]:
    product = torch.stack([sum(p.double().mT @ p.double() for p in s.split(1 << 14)) for s in x])
    values, vectors = torch.linalg.eigh(product / x.shape[1])
    # Features in float32 carry rounding noise of relative variance eps²; a direction at that level is empty.
    noise = values[:, -1:].clamp_min(0) * x.shape[2] * torch.finfo(torch.float32).eps ** 2
    scale = torch.where(values > noise, (values.clamp_min(0) + floor).rsqrt(), 0.0)
    turn = (vectors * scale[:, None]).float()
    return x @ turn, turn


def join(heads: Sequence[PatchHead]) -> PatchHead:
    """One head of the states of several."""

    def cat(name: str) -> Any:
        parts = [getattr(h, name) for h in heads]
        if parts[0] is None or isinstance(parts[0], Tensor):
            return None if parts[0] is None else torch.cat(parts)
        return Moments(*(torch.cat(p) for p in zip(*parts, strict=True)))

    return PatchHead(*(cat(f.name) for f in fields(PatchHead)))


def cosine(step: int, steps: int) -> float:
    """The share of the learning rate at a step from 0: (1 + cos(π·step/steps))/2."""
    return 0.5 * (1 + math.cos(math.pi * step / steps))


def check_tokens(
    tokens: Tensor, cls: Tensor | None, maps: Tensor, grid: Size, what: str, maps_are: str
) -> None:
    """Raise ValueError, with the shapes, unless tokens, CLS and maps fit each other and the grid.

    The maps may have any size of the grid's aspect, to within a pixel.
    """
    if tokens.ndim != 4 or not tokens.is_floating_point() or 0 in tokens.shape:
        raise ValueError(
            f"{what} tokens must be floats [S, N, P, D] (states, images, patches without prefix tokens, "
            f"width), none of them 0; got {tokens.dtype} of shape {tuple(tokens.shape)}"
        )
    rows, cols = grid
    if tokens.shape[2] != rows * cols:
        raise ValueError(
            f"a grid of {rows} x {cols} has {rows * cols} patches, but the {what} tokens of shape "
            f"{tuple(tokens.shape)} have {tokens.shape[2]}: leave out CLS and registers"
        )
    if maps.ndim != 3 or len(maps) != tokens.shape[1]:
        raise ValueError(
            f"{what} {maps_are} must be [N, h, w] for the {tokens.shape[1]} images of tokens "
            f"{tuple(tokens.shape)}, got shape {tuple(maps.shape)}"
        )
    height, width = maps.shape[1:]
    if min(height, width) < 1 or abs(height - width * rows / cols) >= 1:
        raise ValueError(
            f"{what} {maps_are} of {height} x {width} pixels do not have the aspect of a grid of {rows} x "
            f"{cols}: crop them as the images were"
        )
    _check_states(tokens, f"{what} tokens")
    if cls is not None:
        check_against(cls, tokens, what)
        _check_states(cls, f"{what} cls")


def check_pair(train: Tensor | None, test: Tensor | None, what: str) -> None:
    """Raise ValueError unless both are missing, or both have the same states and width."""
    if (train is None) != (test is None):
        raise ValueError(
            f"{what} is given for {'test' if train is None else 'train'} alone: give both or none"
        )
    if train is None or test is None:
        return
    if (len(train), train.shape[-1]) != (len(test), test.shape[-1]):
        raise ValueError(
            f"train and test {what} must agree in states and width, got shapes {tuple(train.shape)} and "
            f"{tuple(test.shape)}"
        )


def check_against(cls: Tensor, tokens: Tensor, what: str = "the") -> None:
    """Raise ValueError unless CLS is [S, N, E] for the states and images of tokens [S, N, P, D]."""
    if cls.ndim != 3 or cls.shape[:2] != tokens.shape[:2]:
        raise ValueError(
            f"{what} cls must be [S, N, D] with the states and images of tokens {tuple(tokens.shape)}, "
            f"got shape {tuple(cls.shape)}"
        )


def _check_states(values: Tensor, what: str) -> None:
    for s, state in enumerate(values):
        for part in state.split(256):
            if not part.isfinite().all():
                raise ValueError(
                    f"{what} hold NaN or inf in state {s} (counting from 0): leave that state out"
                )


def stacked(maps: Maps, what: str) -> Tensor:
    """Maps as one tensor. Raises ValueError, with the shapes, where sizes differ among images.

    >>> stacked([torch.zeros(4, 4), torch.zeros(4, 6)], "masks")
    Traceback (most recent call last):
    ValueError: masks must have one size, got (4, 4), (4, 6): resize or crop them first
    """
    if isinstance(maps, Tensor):
        return maps
    shapes = sorted({tuple(m.shape) for m in maps})
    if len(shapes) != 1:
        listed = ", ".join(map(str, shapes[:4])) + (", …" if len(shapes) > 4 else "")
        raise ValueError(f"{what} must have one size, got {listed or 'no map'}: resize or crop them first")
    return torch.stack(list(maps))


def patch_moments(tokens: Float[Tensor, "S N P D"]) -> Moments:
    """Mean and deviation of every feature over all patches of all images, in float64, a chunk at a time."""
    count = tokens.shape[1] * tokens.shape[2]
    chunks = tokens.split(CHUNK, 1)
    mean = torch.stack([c.sum((1, 2), dtype=torch.float64) for c in chunks]).sum(0) / count
    centre = mean[:, None, None]
    squares = torch.stack([(c.double() - centre).square_().sum((1, 2)) for c in chunks]).sum(0)
    scale = (squares / count).sqrt()
    # A float32 constant of size |mean| can differ from itself by a few eps after summing: no signal.
    constant = scale <= 8 * torch.finfo(torch.float32).eps * mean.abs()
    return Moments(mean.float(), torch.where(constant, 1.0, scale).float())


def axes(size: Size, grid: Size, like: Tensor) -> tuple[Tensor, Tensor]:
    """The matrices R [h, rows] and C [w, cols] that resize bilinearly from `grid` to `size`.

    >>> axes((4, 2), (2, 2), torch.zeros(1))[0].tolist()
    [[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]]
    """

    def along(new: int, old: int) -> Tensor:
        unit = torch.eye(old, dtype=like.dtype, device=like.device)[None, None]
        return F.interpolate(unit, (new, old), mode="bilinear", align_corners=False)[0, 0]

    return along(size[0], grid[0]), along(size[1], grid[1])


def resized(z: Float[Tensor, "*B rows cols"], by: tuple[Tensor, Tensor]) -> Float[Tensor, "*B h w"]:
    """R z Cᵀ for the matrices of `axes`."""
    return by[0] @ (z @ by[1].mT)


def largest_class(z: Float[Tensor, "*B C h w"]) -> Int[Tensor, "*B h w"]:
    """The class with the largest score at every place, the first of equals.

    Image by image, and by a maximum without positions, both of which keep to the cache: with 80 classes in a
    third of the time of `argmax`.

    >>> largest_class(torch.tensor([[[1.0, 2.0]], [[3.0, 2.0]]])).tolist()
    [[1, 0]]
    """
    classes = z.shape[-3]
    names = torch.arange(classes, dtype=z.dtype, device=z.device)[:, None]
    found = []
    for image in z.flatten(-2).view(-1, classes, z.shape[-2] * z.shape[-1]):
        top = image.amax(0, keepdim=True)
        found.append(torch.where(image == top, names, float(classes)).amin(0))
    return torch.stack(found).long().view(*z.shape[:-3], *z.shape[-2:])


def hold_out(
    images: int, share: float, seed: int, groups: Groups | None
) -> tuple[Int[Tensor, " A"], Int[Tensor, " B"]]:
    """Positions of images to train on and to hold out: round(share·n) of n images, or of n whole groups.

    Raises ValueError for a share outside (0, 1), fewer than two groups and a wrong number of group names.

    >>> [len(part) for part in hold_out(10, 0.2, seed=0, groups=None)]
    [8, 2]
    """
    if not 0 < share < 1:
        raise ValueError(f"the held-out share must lie between 0 and 1, got {share}")
    labels = np.arange(images) if groups is None else np.asarray(groups)
    if labels.shape != (images,):
        raise ValueError(f"one group per image is needed: {labels.shape} for {images} images")
    names, member = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise ValueError(
            f"holding images out needs at least two of them in different groups, got {len(names)}"
        )
    count = min(max(1, round(share * len(names))), len(names) - 1)
    chosen = np.random.default_rng(seed).permutation(len(names))[:count]
    held = torch.from_numpy(np.isin(member, chosen))
    return (~held).nonzero()[:, 0], held.nonzero()[:, 0]
