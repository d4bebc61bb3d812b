"""Linear segmentation: which class each pixel shows, read by one linear map from a state's patch tokens.

The head is dinov2's (facebookresearch/dinov2): patch tokens, or tokens with CLS broadcast
and concatenated, are standardised; a 1x1 linear map gives class logits; they are resized bilinearly to the
mask; the loss is the mean cross-entropy over the pixels that are not `ignore`. It minimises, for each state,

    mean over pixels q of −log softmax(u(q))[y(q)]  +  (λ/2) ‖W‖²,    u = bilinear(W x̂ + b),

which is convex. All states are fitted together, by Adam with a cosine schedule, on whitened features:

1. Mean, deviation and covariance come from all training patches; no label and no test image plays a part.
2. A share of the training images is held out. Every pair of learning rate and λ is fitted on the rest, in
   fewer steps and at one cell a patch, and per state the one with the best mIoU on the held-out pixels is
   chosen, the strongest λ of several equals.
3. The head is fitted again with the chosen pair on all training images, at `train_size`.

Cells larger than a pixel hold the share of each class among their pixels, not the class of one of them: the
loss is then that of all pixels, but for the change of the logits within a cell.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitscope.dense.heads import (
    CHUNK,
    Inputs,
    Maps,
    PatchHead,
    Size,
    axes,
    check_pair,
    check_tokens,
    hold_out,
    join,
    largest_class,
    resized,
    stacked,
)
from vitscope.dense.segmentation_fit import class_shares, fit_block
from vitscope.dense.segmentation_scores import Counts, resampled_miou, segmentation_scores
from vitscope.holdout import Groups
from vitscope.intervals import Interval

GRID: tuple[float, ...] = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""Strengths λ of the penalty that are tried."""

_BLOCK_BYTES = 4 << 30  # standardised tokens of as many states as fit are in memory at once
_CLEARLY = 1.0  # points of mIoU; on less, the end of a grid says nothing


@dataclass(frozen=True)
class Segmentation:
    """Scores of S states on the N test images, in percent, and the fitted head.

    `miou` is the mean of `iou` [S, C] over the classes that occur in the test masks; a class that is
    predicted but occurs nowhere has no IoU of its own (NaN, listed in `absent`) and counts in the unions of
    the others alone. `foreground_miou` leaves the background class out (NaN if there is no other).
    `majority` is the pixel accuracy of always naming `majority_class`, the largest training class, and
    `majority_miou` its mIoU. Rows of `confusion` are true classes. Pixels per image and class:
    `intersection`, `predicted`, `target`. `chosen` is the pair (learning rate, λ) of each state, one of the
    `settings`; `validation_miou` is what each reached on held-out images, NaN where there was nothing to
    choose. `patches` is the grid.
    """

    miou: Float[Tensor, " S"]
    foreground_miou: Float[Tensor, " S"]
    iou: Float[Tensor, "S C"]
    pixel_accuracy: Float[Tensor, " S"]
    majority: float
    majority_miou: float
    majority_class: int
    absent: tuple[int, ...]
    confusion: Int[Tensor, "S C C"]
    intersection: Int[Tensor, "S N C"]
    predicted: Int[Tensor, "S N C"]
    target: Int[Tensor, "N C"]
    chosen: Float[Tensor, "S 2"]
    settings: tuple[tuple[float, float], ...]
    validation_miou: Float[Tensor, "S G"]
    head: PatchHead
    patches: Size
    warnings: tuple[str, ...]

    def predict(
        self, tokens: Float[Tensor, "S N P D"], size: Size, cls: Float[Tensor, "S N E"] | None = None
    ) -> Int[Tensor, "S N h w"]:
        """The class of every pixel of a map of `size`. Raises ValueError as `PatchHead.logits` does."""
        z = self.head.logits(tokens, cls).unflatten(3, self.patches)
        return largest_class(resized(z, axes(size, self.patches, z)))

    def interval(
        self,
        states: Sequence[int] | None = None,
        *,
        groups: Groups | None = None,
        level: float = 0.95,
        draws: int = 1000,
        seed: int = 0,
    ) -> Interval:
        """mIoU [S'] of the states at positions `states` (all), with its bootstrap interval over test images.

        Whole `groups` [N] of images are drawn, or single ones, as in `resampled_miou`. Raises ValueError for
        fewer than two images or groups and a level outside (0, 1).
        """
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level}")
        which = list(range(len(self.miou)) if states is None else states)
        counts = (self.intersection[which].numpy(), self.predicted[which].numpy(), self.target.numpy())
        clusters = None if groups is None else np.asarray(groups)
        value, drawn = resampled_miou(*counts, clusters=clusters, draws=draws, seed=seed)
        low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return Interval(value, low, high)


def linear_segmentation(
    train_tokens: Float[Tensor, "S N P D"],
    train_masks: Maps,
    test_tokens: Float[Tensor, "S M P D"],
    test_masks: Maps,
    *,
    grid: Size,
    num_classes: int,
    train_cls: Float[Tensor, "S N E"] | None = None,
    test_cls: Float[Tensor, "S M E"] | None = None,
    ignore: int | None = 255,
    background: int | None = 0,
    train_size: Size | None = None,
    lr: Sequence[float] = (0.05,),
    l2: Sequence[float] = GRID,
    validation: float = 0.2,
    train_groups: Groups | None = None,
    seed: int = 0,
    steps: int = 600,
    batch: int = 16,
    device: torch.device | str | None = None,
) -> Segmentation:
    """Fit and score a linear segmentation head for every state; the protocol is at the top of this file.

    Tokens are patches alone, row-major over `grid`; masks hold whole class numbers below `num_classes`, or
    `ignore`, for every image [h, w], in one size of the grid's aspect, for train and test each. With
    `train_cls` and `test_cls` every patch sees its image's CLS as well. The loss is taken at `train_size`
    (None: twice the grid, or the mask's size if that is smaller); scores at the full size of the test masks.
    `lr` and `l2` are values to choose from on a share `validation` of the images, or of whole `train_groups`,
    that `seed` holds out; with one of each nothing is held out. Each of the `steps` sees `batch` images.

    Raises ValueError for shapes that do not fit (with the shapes), values that are not finite (naming the
    state), classes out of range (naming them), masks of which every pixel is ignored, settings that are not
    positive and a held-out share outside (0, 1).

    >>> mask = (torch.rand(40, 4, 4, generator=torch.Generator().manual_seed(0)) > 0.5).long()
    >>> tokens = torch.nn.functional.one_hot(mask, 3).float().flatten(1, 2)[None]
    >>> found = linear_segmentation(
    ...     tokens[:, :30], mask[:30], tokens[:, 30:], mask[30:], grid=(4, 4), num_classes=2
    ... )
    >>> found.miou.tolist(), found.absent
    ([100.0], ())
    """
    train_masks = _checked(train_tokens, train_masks, train_cls, grid, num_classes, ignore, "train")
    test_masks = _checked(test_tokens, test_masks, test_cls, grid, num_classes, ignore, "test")
    check_pair(train_tokens, test_tokens, "tokens")
    check_pair(train_cls, test_cls, "cls")
    table = tuple(sorted(product({float(v) for v in lr}, {float(v) for v in l2}), key=lambda row: -row[1]))
    if not table or not all(0 < v < float("inf") for row in table for v in row):
        raise ValueError(f"lr and l2 must be one or more positive numbers, got {list(lr)} and {list(l2)}")
    if min(steps, batch) < 1:
        raise ValueError(f"steps and batch must be at least 1, got {steps} and {batch}")
    if background is not None and not 0 <= background < num_classes:
        raise ValueError(f"background must be a class below {num_classes} or None, got {background}")
    height, width = train_masks.shape[1:]
    size = train_size or (min(2 * grid[0], height), min(2 * grid[1], width))
    if not (1 <= size[0] <= height and 1 <= size[1] <= width):
        raise ValueError(f"train_size {size} must lie within the masks' {height} x {width}")
    inner, held = torch.arange(len(train_masks)), torch.arange(0)
    if len(table) > 1:
        inner, held = hold_out(len(train_masks), validation, seed, train_groups)
    order = torch.cat([inner, held])
    masks = train_masks[order]
    coarse = class_shares(
        masks[: len(inner)], (min(grid[0], height), min(grid[1], width)), num_classes, ignore
    )
    if not coarse.any():
        raise ValueError("every pixel of the images not held out is ignored: choose another seed or share")
    fine = class_shares(masks, size, num_classes, ignore)
    where = train_tokens.device if device is None else torch.device(device)
    block = max(1, _BLOCK_BYTES // (4 * train_tokens[0].numel()))
    fits = []
    for rows in torch.arange(len(train_tokens)).split(block):
        cls = None if train_cls is None else train_cls[rows][:, order].to(where)
        inputs, left = Inputs.of(train_tokens[rows][:, order].to(where), cls), masks[len(inner) :]
        schedule = (steps, batch, seed)
        fits.append(fit_block(inputs, coarse.to(where), fine.to(where), left, grid, table, schedule, ignore))
    heads, bests, validations = zip(*fits, strict=True)
    head, best, validated = join(heads), torch.cat(bests), torch.cat(validations)
    counts = Counts(num_classes, ignore)
    for i in range(0, len(test_masks), CHUNK):
        rows = slice(i, i + CHUNK)
        z = head.logits(test_tokens[:, rows], None if test_cls is None else test_cls[:, rows])
        counts.add(z.unflatten(3, grid), test_masks[rows])
    scores = segmentation_scores(counts.confusion)
    both, predicted, target = (torch.cat(p, p[0].ndim - 2) for p in zip(*counts.per_image, strict=True))
    present = target.sum(0) > 0
    front = present.clone()
    if background is not None:
        front[background] = False
    pixels = fine.sum((0, 2, 3))
    largest = int(pixels.argmax())
    share = 100 * float(target[:, largest].sum() / target.sum())
    return Segmentation(
        **scores,
        foreground_miou=scores["iou"][:, front].mean(1),
        majority=share,
        majority_miou=share / int(present.sum()),
        majority_class=largest,
        absent=tuple((~present).nonzero()[:, 0].tolist()),
        confusion=counts.confusion,
        intersection=both,
        predicted=predicted,
        target=target,
        chosen=torch.tensor(table, dtype=torch.float64)[best],
        settings=table,
        validation_miou=validated,
        head=head,
        patches=grid,
        warnings=tuple(_warnings(table, best, validated, present & (pixels == 0), steps * batch, len(masks))),
    )


def _checked(
    tokens: Tensor, maps: Maps, cls: Tensor | None, grid: Size, classes: int, ignore, what
) -> Tensor:
    masks = stacked(maps, f"{what} masks")
    if masks.is_floating_point() or masks.dtype == torch.bool or classes < 2:
        raise ValueError(
            f"{what} masks must hold whole numbers of 2 or more classes, got {masks.dtype}, {classes}"
        )
    check_tokens(tokens, cls, masks, grid, what, "masks")
    low, high = (int(v) for v in masks.aminmax())
    small = low >= 0 and high < 1 << 16  # counting is much faster than sorting, as `unique` does
    values = (masks.flatten().bincount().nonzero().flatten() if small else masks.unique()).tolist()
    strangers = [v for v in values if v != ignore and not 0 <= v < classes]
    if strangers:
        raise ValueError(
            f"{what} masks hold {', '.join(map(str, strangers[:5]))}: classes are 0 to {classes - 1}, and "
            f"{ignore} is ignored"
        )
    if values == [ignore]:
        raise ValueError(f"every pixel of the {what} masks is ignored: there is nothing to fit or score")
    return masks


def _warnings(
    table: tuple[tuple[float, float], ...],
    best: Tensor,
    validated: Tensor,
    untaught: Tensor,
    seen: int,
    images: int,
) -> Iterator[str]:
    if untaught.any():
        listed = ", ".join(map(str, untaught.nonzero()[:, 0].tolist()))
        yield f"classes {listed} occur in the test masks and in no training mask"
    if seen < images:
        yield f"{seen} of {images} training images were used: raise steps or batch"
    for name, column, further in (("lr", 0, ("lower", "higher")), ("l2", 1, ("weaker", "stronger"))):
        values = sorted({row[column] for row in table})
        for end, inner, more in (
            (values[0], values[1:2], further[0]),
            (values[-1], values[-2:-1], further[1]),
        ):
            at_end = torch.tensor([row[column] == end for row in table])
            at_inner = torch.tensor([row[column] in inner for row in table])
            if inner:
                ahead = validated[:, at_end].amax(1) > validated[:, at_inner].amax(1) + _CLEARLY
                wins = (at_end[best] & ahead).nonzero()[:, 0].tolist()
                if wins:
                    listed = ", ".join(map(str, wins))
                    yield f"{name} = {end:g} was chosen for states {listed}: try {more} values"
