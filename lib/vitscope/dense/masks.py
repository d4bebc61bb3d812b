"""Masks of the object without labels, from attention or the first principal component, and their fit.

DINO (2104.14294) keeps the patches that hold 60 % of a head's CLS attention; DINOv2 (2304.07193) cuts the
first principal component of the patches. Neither says which head, or which side of the cut, is the object:
heads are chosen on training images (`best_head`), the side by who owns less of the picture's rim.
"""

from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from vitscope.dense.pca import principal

Foreground = Literal["border", "label"]
Threshold = Literal["otsu", "zero"]

_ROUNDING = 1e-6  # share of the mass: what float32 attention loses


def attention_masks(attention: Float[Tensor, "N H P"], mass: float = 0.6) -> Bool[Tensor, "N H P"]:
    """The fewest patches that hold the share `mass` of what a head's CLS row gives to patches.

    `attention`: the CLS row of an attention map without prefix tokens. Patches are taken from the most
    attended down, the lower number first among equals, until their sum reaches mass·Σ_j a_j (to 1e-6 of it).
    Raises ValueError for other shapes, values that are negative or not finite, a row without any attention
    to patches, and a mass outside (0, 1]. Source: DINO, 2104.14294, section 4.2.2 and its code.

    >>> attention_masks(torch.tensor([[[0.1, 0.5, 0.2, 0.0]]]), mass=0.7).tolist()
    [[[False, True, True, False]]]
    """
    if not 0 < mass <= 1:
        raise ValueError(f"mass is a share in (0, 1], got {mass}")
    if attention.ndim != 3 or attention.numel() == 0:
        raise ValueError(f"attention must be [N, H, P], the CLS row's patches, got {tuple(attention.shape)}")
    a = attention.detach().to("cpu", torch.float64)
    if not (a.isfinite() & (a >= 0)).all():
        raise ValueError("attention holds values that are negative, NaN or infinite")
    total = a.sum(-1, keepdim=True)
    if not total.all():
        image, head = (total == 0).nonzero()[0, :2].tolist()
        raise ValueError(f"the CLS token gives no attention to any patch in image {image}, head {head}")
    ordered, order = a.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    # strictly positive: a mass of 1 is reached before patches without attention
    wanted = (before < (mass - _ROUNDING) * total) & (ordered > 0)
    return torch.zeros_like(wanted).scatter(-1, order, wanted)


class PcaMasks(NamedTuple):
    """Masks of `pca_masks`, with what they were cut from.

    `scores` [..., N, P] of the first component, larger towards the object; `masks` [..., N, P] where they are
    above `threshold` [...]; `explained` [...]: the component's share of variance.
    """

    masks: Bool[Tensor, "*S N P"]
    scores: Float[Tensor, "*S N P"]
    threshold: Float[Tensor, "*S"]
    explained: Float[Tensor, "*S"]


def pca_masks(
    patches: Float[Tensor, "*S N P D"],
    grid: tuple[int, int],
    foreground: Foreground = "border",
    *,
    threshold: Threshold = "otsu",
    target: Shaped[Tensor, "N P"] | None = None,
) -> PcaMasks:
    """Masks from the first principal component of all patches of all images, for each state by itself.

    `threshold="otsu"` cuts where the variance between both sides is largest (Otsu 1979), `"zero"` at the
    mean. `foreground="border"`: of all images together, the side with fewer patches on the rim of the grid
    is the object; if equal, the side with fewer patches; if equal again, the component's positive side. No
    label is seen. `foreground="label"`: the side with the larger mean share of object in `target` [N, P]
    (`patch_coverage`), to see what the border rule costs; positive if equal.

    One cut for all images: an image may get an empty or a full mask. Raises ValueError for shapes that do not
    fit, NaN or infinity, tokens that are all equal, a grid without interior for the border rule, a missing
    or a superfluous target.

    >>> tokens = torch.full((1, 9, 2), -1.0)
    >>> tokens[0, 4] = 3.0
    >>> pca_masks(tokens, (3, 3)).masks.nonzero().tolist()
    [[0, 4]]
    """
    for value, known, name in ((foreground, Foreground, "foreground"), (threshold, Threshold, "threshold")):
        if value not in get_args(known):
            raise ValueError(f"{name} must be one of {', '.join(map(repr, get_args(known)))}, got {value!r}")
    if patches.ndim < 3 or patches.shape[-2] != grid[0] * grid[1] or patches.numel() == 0:
        raise ValueError(
            f"patches must be [..., N, P, D] with P = {grid[0] * grid[1]} for a grid of {grid}, "
            f"got {tuple(patches.shape)}"
        )
    if (foreground == "label") != (target is not None):
        raise ValueError("a target goes with foreground='label', and with no other")
    if target is not None:
        weight = _coverage(target, tuple(patches.shape[-3:-1]))
    elif min(grid) < 3:
        raise ValueError(f"the border rule needs a grid of at least 3 x 3, got {grid}: all patches are rim")
    else:
        rim = torch.ones(grid, dtype=torch.float64)
        rim[1:-1, 1:-1] = 0
        weight = rim.flatten().expand(patches.shape[-3], -1)
    scores, cuts, explained = [], [], []
    for state in patches.flatten(0, -4) if patches.ndim > 3 else patches[None]:
        found = principal(state, 1, "patches")
        score = found.scores.squeeze(-1)
        cut = _otsu(score.flatten()) if threshold == "otsu" else 0.0
        upper = score > cut
        sides = [
            (float(weight[side].sum()), int(side.sum())) if target is None else (-float(weight[side].mean()),)
            for side in (upper, ~upper)
        ]
        sign = 1 if sides[0] <= sides[1] else -1
        scores.append(sign * score)
        cuts.append(sign * cut)
        explained.append(found.explained[0])
    lead = patches.shape[:-3]
    score = torch.stack(scores).reshape(patches.shape[:-1])
    level = torch.tensor(cuts, dtype=torch.float64).reshape(lead)
    return PcaMasks(score > level[..., None, None], score, level, torch.stack(explained).reshape(lead))


def _otsu(values: Tensor) -> float:
    """Cut between two different neighbours in the order of values that maximises n₁n₂(μ₁ − μ₂)²."""
    x = values.sort().values
    left = torch.arange(1, len(x), dtype=torch.float64)
    sums = x.cumsum(0)[:-1]
    gap = sums / left - (x.sum() - sums) / (len(x) - left)
    between = left * (len(x) - left) * gap.square()
    between[x[1:] == x[:-1]] = -1
    at = int(between.argmax())
    return float((x[at] + x[at + 1]) / 2)


def patch_coverage(mask: Shaped[Tensor, "N h w"], grid: tuple[int, int]) -> Tensor:
    """Share of each patch that the object covers, [N, P] in float64, row by row of the grid.

    `mask`: true, or a class number above 0, on the object. Exact by area also where the grid does not divide
    the picture. Raises ValueError for other shapes, masks of floats, negative numbers and grids finer than
    pixels.

    >>> patch_coverage(torch.tensor([[[0, 0, 3], [0, 1, 1]]]), (1, 2)).tolist()  # patches 1.5 pixels wide
    [[0.1666666..., 0.8333333...]]
    """
    fits = mask.ndim == 3 and 1 <= grid[0] <= mask.shape[1] and 1 <= grid[1] <= mask.shape[2]
    if not fits or mask.numel() == 0:
        raise ValueError(
            f"mask must be [N, h, w] with pixels no fewer than the grid {grid}, got {tuple(mask.shape)}"
        )
    if mask.is_floating_point() or (mask < 0).any():
        raise ValueError(f"mask must be bool or class numbers from 0 (background), got {mask.dtype}")
    height, width = mask.shape[1:]
    on = (mask.detach().cpu() != 0).double()
    # whole numbers up to the division, so that a half is exactly a half
    covered = _overlap(height, grid[0]) @ on @ _overlap(width, grid[1]).T
    return covered.flatten(1) / (height * width)


def _overlap(pixels: int, parts: int) -> Float[Tensor, "parts pixels"]:
    """Length that part i of an axis shares with pixel j, in 1/parts of a pixel."""
    part, pixel = torch.arange(parts)[:, None] * pixels, torch.arange(pixels)[None] * parts
    shared = torch.minimum(part + pixels, pixel + parts) - torch.maximum(part, pixel)
    return shared.clamp_min(0).double()


class MaskIoU(NamedTuple):
    """`iou` [..., N], NaN for the `empty` images without an object; `mean` [...] over the `kept` others."""

    iou: Float[Tensor, "*S N"]
    mean: Float[Tensor, "*S"]
    kept: int
    empty: int


def mask_iou(
    predicted: Bool[Tensor, "*S N P"],
    target: Shaped[Tensor, "N P"] | Bool[Tensor, "N h w"],
    grid: tuple[int, int] | None = None,
) -> MaskIoU:
    """Jaccard index |A ∩ B| / |A ∪ B| of each image.

    With `target` [N, P] on the patch grid: patches whose share of object is above 0.5 are the object
    (LaSt-ViT's rule). With a bool `target` [N, h, w]: on pixels, of which each takes the patch its centre
    lies in; needs the `grid`. Images without an object are left out and counted, never 0 or 1; at the patch
    grid that includes objects that fill no patch by more than half. Heads as a leading axis:
    `masks.transpose(0, 1)`.

    Raises ValueError for shapes or types that do not fit, shares outside [0, 1], and when no image has an
    object.

    >>> found = mask_iou(torch.tensor([[True, True], [True, False]]), torch.tensor([[0.9, 0.5], [0.1, 0.0]]))
    >>> found.iou.tolist(), float(found.mean), found.kept, found.empty
    ([0.5, nan], 0.5, 1, 1)
    """
    if predicted.dtype != torch.bool or predicted.ndim < 2:
        raise ValueError(
            f"predicted must be bool [..., N, P], got {predicted.dtype} {tuple(predicted.shape)}"
        )
    guess, (count, patches) = predicted.detach().cpu(), predicted.shape[-2:]
    if target.ndim == 2:
        truth = _coverage(target, (count, patches)) > 0.5
    elif target.ndim != 3 or target.dtype != torch.bool or len(target) != count:
        raise ValueError(
            f"target must be shares [{count}, {patches}] or bool pixels [{count}, h, w] (mask > 0), "
            f"got {target.dtype} {tuple(target.shape)}"
        )
    elif grid is None or grid[0] * grid[1] != patches:
        raise ValueError(f"a target of pixels needs the grid of the {patches} patches, got {grid}")
    else:
        truth = target.detach().cpu().flatten(1)
        height, width = target.shape[1:]
        row = (2 * torch.arange(height) + 1) * grid[0] // (2 * height)
        column = (2 * torch.arange(width) + 1) * grid[1] // (2 * width)
        guess = guess[..., (row[:, None] * grid[1] + column).flatten()]
    having = truth.any(1)
    if not having.any():
        raise ValueError(f"none of {count} images has an object in its target, so there is no IoU to average")
    shared, either = (guess & truth).sum(-1).double(), (guess | truth).sum(-1).double()
    iou = torch.where(having, shared / either, torch.nan)
    return MaskIoU(iou, iou[..., having].mean(-1), int(having.sum()), int((~having).sum()))


def best_head(iou: Float[Tensor, "N H"]) -> int:
    """Number of the head with the largest mean IoU, the first of equals. Only ever of training images.

    Rows of NaN, images without an object, do not count. Raises ValueError for other shapes, infinity, NaN in
    a part of a row, and when no row is left.

    >>> best_head(torch.tensor([[0.1, 0.4], [float("nan"), float("nan")], [0.3, 0.2]]))
    1
    """
    missing = iou.isnan()
    if iou.ndim != 2 or iou.isinf().any() or not torch.equal(missing.any(1), missing.all(1)):
        raise ValueError(f"iou must be finite [N, H] or NaN in a whole row, got shape {tuple(iou.shape)}")
    if iou.numel() == 0 or missing.all():
        raise ValueError(f"no image with an object is left to choose a head by: shape {tuple(iou.shape)}")
    return int(iou[~missing[:, 0]].double().mean(0).argmax())


def _coverage(target: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(target.shape) != shape:
        raise ValueError(f"target must be shares of object [N, P] = {shape}, got {tuple(target.shape)}")
    share = target.detach().to("cpu", torch.float64)
    if not ((share >= 0) & (share <= 1)).all():
        raise ValueError("target holds shares outside [0, 1] or NaN")
    return share
