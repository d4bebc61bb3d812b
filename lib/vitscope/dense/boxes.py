"""Point-in-box: does the patch most like the CLS token lie on the object?

LaSt-ViT (2602.22394) scores every patch by its cosine with CLS, takes the best one and asks whether it lies
in the box of the only object. Its code decides that with defects that move the rate; `rule="last_vit"`
repeats them, `rule="center"` is ours. A rate says nothing alone: beside it stands what a random patch would
get.

Boxes are (x0, y0, x1, y1) in fractions of the model's input image, and may reach beyond 0 and 1. `crop_box`
makes them from pixels of the original picture.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.stats import binomtest
from torch import Tensor

from vitscope.intervals import Interval, bootstrap_mean

Rule = Literal["center", "last_vit"]

_ON_LINE = 1e-5  # patches: what float32 fractions lose, so that an edge on a line counts as on it
_NO_NOISE = 2.0**-8  # pixels, more than `_ON_LINE` for patches up to 390 pixels wide
_CHUNK = 64  # images whose float64 copies are held at once


@dataclass(frozen=True)
class PointInBox:
    """What `point_in_box` found. Shares lie in [0, 1]; "..." are the leading axes of the scores, say states.

    `rate` [...] of the `kept` images whose best patch is in the box, `hits` [..., kept] image by image,
    `patch` [..., kept] which patch it was. `chance`: the rate of a patch drawn at random, the mean share of
    patches that the boxes own. `kept` of `total` images at the places `kept_index` were scored; `excluded`
    counts the others by reason.
    """

    rate: np.ndarray
    hits: np.ndarray
    patch: np.ndarray
    chance: float
    kept: int
    total: int
    kept_index: np.ndarray
    excluded: dict[str, int]
    rule: Rule

    def interval(
        self, *, level: float = 0.95, clusters: np.ndarray | None = None, draws: int = 1000, seed: int = 0
    ) -> Interval:
        """Interval of `rate`: Wilson's score interval, which has a width also at rates of 0 and 1.

        With `clusters` [total], one name per image handed in, whole clusters are drawn instead, as in
        `intervals.bootstrap_mean`. Raises ValueError for another number of names and a level outside (0, 1).

        >>> scores, box = torch.tensor([[0.9, 0.1]] * 4), torch.tensor([[0.0, 0.0, 0.5, 1.0]] * 4)
        >>> [round(float(end), 3) for end in point_in_box(scores, box, (1, 2)).interval()]
        [1.0, 0.51, 1.0]
        """
        if clusters is not None:
            names = np.asarray(clusters)
            if names.shape != (self.total,):
                raise ValueError(f"one cluster per image is needed: {names.shape} for {self.total} images")
            kept = names[self.kept_index]
            return bootstrap_mean(self.hits, clusters=kept, level=level, draws=draws, seed=seed)
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level}")
        counts = self.hits.sum(-1)
        ends = [binomtest(int(k), self.kept).proportion_ci(level, "wilson") for k in counts.flat]
        low, high = (np.array(side).reshape(counts.shape) for side in zip(*ends, strict=True))
        return Interval(self.rate, low, high)


def cls_scores(cls: Float[Tensor, "*S N D"], patches: Float[Tensor, "*S N P D"]) -> Float[Tensor, "*S N P"]:
    """Cosine of the CLS token with every patch token of its image, LaSt-ViT's score, in float64 on the CPU.

    LaSt-ViT takes both after the final LayerNorm; on other states it is our extension, and which norm was
    applied changes the numbers. State −1 has no CLS token. Raises ValueError for shapes that do not fit, NaN
    or infinity, and tokens of norm zero, which have no direction.

    >>> cls_scores(torch.tensor([[2.0, 0.0]]), torch.tensor([[[1.0, 0.0], [0.0, 3.0]]])).tolist()
    [[1.0, 0.0]]
    """
    if patches.ndim < 3 or cls.shape != (*patches.shape[:-2], patches.shape[-1]):
        raise ValueError(
            f"cls [..., N, D] and patches [..., N, P, D] must agree in all but P: got {tuple(cls.shape)} and "
            f"{tuple(patches.shape)}"
        )
    if patches.numel() == 0:
        raise ValueError(f"there are no tokens to compare: patches have shape {tuple(patches.shape)}")
    flat_cls, flat = cls.detach().flatten(0, -2), patches.detach().flatten(0, -3)
    parts = [_cosines(c, x) for c, x in zip(flat_cls.split(_CHUNK), flat.split(_CHUNK), strict=True)]
    return torch.cat(parts).reshape(patches.shape[:-1])


def _cosines(cls: Tensor, patches: Tensor) -> Tensor:
    # row by row and not as a matrix product: equal patches get equal scores, in batches of any size
    c, x = cls.to("cpu", torch.float64).unsqueeze(1), patches.to("cpu", torch.float64)
    lengths = [torch.linalg.vector_norm(t, dim=-1) for t in (c, x)]
    for name, length in zip(("CLS", "patch"), lengths, strict=True):
        if not length.isfinite().all():
            raise ValueError(f"{name} tokens hold NaN or infinity (state −1 has no CLS token: leave it out)")
        if not length.all():
            raise ValueError(f"{name} tokens of norm zero have no direction, so no cosine")
    return (c * x).sum(-1) / (lengths[0] * lengths[1])


def point_in_box(
    scores: Float[Tensor, "*S N P"],
    boxes: Float[Tensor, "N 4"] | Float[Tensor, "N K 4"],
    grid: tuple[int, int],
    *,
    rule: Rule = "center",
    any_box: bool = False,
) -> PointInBox:
    """Share of images whose best-scored patch, the lowest number of equals, lies in the box of the object.

    `boxes`: one per image, or K of which rows of NaN are no object. Images without an object are left out,
    and those with several, unless `any_box` lets a hit in any of them count. `grid` is (rows, columns).

    `rule="center"`: a patch lies in a box that holds its centre, x0 ≤ x < x1 and y0 ≤ y < y1. Left out are
    images whose box lies beyond the picture and those whose box holds no centre, which could not be hit.
    `rule="last_vit"`: as its code does on pixels. The box, clipped to the picture, owns columns
    ⌊x0·W/patch⌋ … min(⌊x1·W/patch⌋, columns − 1), both inclusive, and rows likewise: an edge on the line
    between patches adds a patch of which nothing is covered, a box left of or above the picture owns the
    first column or row, and one right of or below it owns none, a certain miss. All stay in the count.

    An edge within 1e-5 patches of a line, or of a centre, is on it. Raises ValueError for shapes that do not
    fit, scores that are not finite, boxes with infinity, some NaN or ends in the wrong order, and when no
    image is left. Source: LaSt-ViT (2602.22394), evaluation code; rates there are in percent.

    >>> scores = torch.tensor([[0.1, 0.9, 0.3, 0.2]])
    >>> found = point_in_box(scores, torch.tensor([[0.5, 0.0, 1.0, 0.5]]), (2, 2))
    >>> float(found.rate), found.chance
    (1.0, 0.25)
    >>> point_in_box(scores, torch.tensor([[0.5, 0.0, 1.0, 0.5]]), (2, 2), rule="last_vit").chance
    0.5
    """
    values, stacked = scores.detach().cpu(), _stacked(boxes)
    patches = grid[0] * grid[1]
    if values.ndim < 2 or values.shape[-2:] != (len(stacked), patches):
        raise ValueError(
            f"scores must be [..., N, P], {len(stacked)} images as in the boxes and {patches} patches as in "
            f"the grid {grid}: got {tuple(scores.shape)}"
        )
    if values.numel() == 0:
        raise ValueError(f"there is nothing to score: scores have shape {tuple(scores.shape)}")
    if not values.isfinite().all():
        raise ValueError("scores hold NaN or infinity (state −1 has no CLS token: leave it out)")
    owned = box_patches(boxes, grid, rule=rule)
    count = (~stacked.isnan().any(2)).sum(1)
    reasons = {"no object": count == 0, "several objects": (count > 1) & (not any_box)}
    if rule == "center":
        x0, y0, x1, y1 = stacked.unbind(2)
        reasons["box outside"] = ~((x1 > 0) & (x0 < 1) & (y1 > 0) & (y0 < 1)).any(1)
        reasons["covers no patch centre"] = ~owned.any(1)
    keep, excluded = torch.ones(len(stacked), dtype=torch.bool), {}
    for reason, without in reasons.items():
        excluded[reason] = int((keep & without).sum())
        keep &= ~without
    if not keep.any():
        named = ", ".join(f"{n} {reason}" for reason, n in excluded.items() if n)
        raise ValueError(f"none of {len(keep)} images can be scored by the rule {rule!r}: {named}")
    best = values[..., keep, :].argmax(-1)  # the first of equals
    kept = owned[keep]
    hits = kept[torch.arange(len(kept)), best].numpy()
    return PointInBox(
        rate=np.asarray(hits.mean(-1)),
        hits=hits,
        patch=best.numpy(),
        chance=float(kept.double().mean()),
        kept=len(kept),
        total=len(keep),
        kept_index=keep.nonzero().squeeze(1).numpy(),
        excluded=excluded,
        rule=rule,
    )


def box_patches(
    boxes: Float[Tensor, "N 4"] | Float[Tensor, "N K 4"], grid: tuple[int, int], *, rule: Rule = "center"
) -> Bool[Tensor, "N P"]:
    """Patches, row by row of the grid, that an image's boxes own by the rule; see `point_in_box`.

    >>> box_patches(torch.tensor([[0.0, 0.0, 0.5, 1.0]]), (1, 4)).tolist()
    [[True, True, False, False]]
    >>> box_patches(torch.tensor([[0.0, 0.0, 0.5, 1.0]]), (1, 4), rule="last_vit").tolist()
    [[True, True, True, False]]
    """
    if rule not in get_args(Rule):
        raise ValueError(f"rule must be one of {', '.join(map(repr, get_args(Rule)))}, got {rule!r}")
    if min(grid) < 1:
        raise ValueError(f"grid must be (rows, columns) of at least 1, got {grid}")
    x0, y0, x1, y1 = _stacked(boxes).unbind(2)
    across, down = _owned(x0, x1, grid[1], rule), _owned(y0, y1, grid[0], rule)
    return (down.unsqueeze(3) & across.unsqueeze(2)).any(1).flatten(1)


def _owned(low: Tensor, high: Tensor, count: int, rule: Rule) -> Tensor:
    """Which of `count` columns or rows lie between two ends [N, K]: [N, K, count]; NaN owns none."""
    number = torch.arange(count, dtype=torch.float64)
    if rule == "center":
        low, high = (torch.ceil(end * count - 0.5 - _ON_LINE) for end in (low, high))
        return (number >= low.unsqueeze(2)) & (number < high.unsqueeze(2))
    low, high = (torch.floor(end.clamp(0, 1) * count + _ON_LINE) for end in (low, high))
    return (number >= low.unsqueeze(2)) & (number <= high.unsqueeze(2))


def crop_box(
    boxes: Float[Tensor, "N 4"], sizes: Tensor, *, resize: int, crop: int, faithful: bool = False
) -> Float[Tensor, "N 4"]:
    """Boxes in pixels of the original pictures, as fractions of what Resize(resize), CenterCrop(crop) leaves.

    `sizes` [N, 2] are (width, height). torchvision makes the shorter side `resize` pixels, the longer one
    ⌊resize·long/short⌋, and rounds the origin of the crop, halves to even. Fractions beyond 0 and 1 stay as
    they are, so that `point_in_box` can count boxes outside the crop. Rows of NaN stay NaN.

    `faithful=True`: LaSt-ViT's arithmetic. a = resize/min(W, H), W' = ⌊W·a⌋ (one pixel short for some W by
    rounding), origin (W' − crop)//2, x̂ = clip(a·x − origin, 0, crop), in float64 as in Python. A coordinate
    less than 1/256 pixel below a whole pixel is moved to that distance, in the same pixel still.

    Raises ValueError for shapes that do not fit, sizes that are not whole and positive, crop > resize, and
    boxes with infinity, some NaN or ends in the wrong order.

    >>> crop_box(torch.tensor([[100.0, 50.0, 300.0, 150.0]]), torch.tensor([[400, 200]]), resize=64, crop=32)
    tensor([[-0.5000,  0.0000,  1.5000,  1.0000]], dtype=torch.float64)
    """
    if not 1 <= crop <= resize:
        raise ValueError(f"the crop must be from 1 to resize = {resize} pixels wide, got {crop}")
    if boxes.ndim != 2:
        raise ValueError(f"crop_box takes one box per image, [N, 4], got {tuple(boxes.shape)}")
    box, size = _stacked(boxes).squeeze(1).numpy(), _sizes(sizes, len(boxes))
    short = size.min(1, keepdims=True)
    if faithful:
        scale = np.broadcast_to(resize / short, size.shape)
        origin = (np.floor(size * scale) - crop) // 2
    else:
        resized = np.floor(resize * size / short)
        scale, origin = resized / size, np.round((resized - crop) / 2)
    placed = box * np.tile(scale, 2) - np.tile(origin, 2)
    if faithful:
        placed = np.clip(placed, 0, crop)
        # floor(x̂) decides the patch: what rounding left just below a whole pixel must survive the division
        placed = np.where(placed % 1 > 1 - _NO_NOISE, np.floor(placed) + 1 - _NO_NOISE, placed)
    return torch.from_numpy(placed / crop)


def single_small(
    boxes_per_image: Sequence[Tensor] | Float[Tensor, "N K 4"], sizes: Tensor, limit: float = 0.25
) -> Bool[Tensor, " N"]:
    """Which images LaSt-ViT takes: one object, whose box is smaller than `limit` of the picture (strictly).

    `boxes_per_image`: for every image its boxes [K, 4], in pixels of the original picture, rows of NaN being
    no object; `sizes` [N, 2] are (width, height). Raises ValueError as `crop_box`; `limit` is in (0, 1].

    >>> small, quarter = torch.tensor([[0.0, 0.0, 4.0, 4.0]]), torch.tensor([[0.0, 0.0, 5.0, 5.0]])
    >>> single_small([small, quarter, torch.zeros(0, 4)], torch.tensor([[10, 10]] * 3)).tolist()
    [True, False, False]
    """
    if not 0 < limit <= 1:
        raise ValueError(f"limit is a share of the picture in (0, 1], got {limit}")
    size = _sizes(sizes, len(boxes_per_image))
    taken = []
    for boxes, (width, height) in zip(boxes_per_image, size, strict=True):
        rows = _stacked(boxes).squeeze(1)
        rows = rows[~rows.isnan().any(1)]
        small = [float((x1 - x0) * (y1 - y0)) < limit * width * height for x0, y0, x1, y1 in rows]
        taken.append(small == [True])
    return torch.tensor(taken, dtype=torch.bool)


def _stacked(boxes: Tensor) -> Tensor:
    """Boxes as float64 [N, K, 4], checked."""
    if boxes.ndim not in (2, 3) or boxes.shape[-1] != 4:
        raise ValueError(f"boxes must be [N, 4] or [N, K, 4] of x0, y0, x1, y1, got {tuple(boxes.shape)}")
    box = boxes.detach().to("cpu", torch.float64)
    box = box.unsqueeze(1) if box.ndim == 2 else box
    missing = box.isnan()
    for broken, what in (
        (box.isinf().any(2), "infinity"),
        (missing.any(2) & ~missing.all(2), "NaN beside numbers (no object is a row of four NaN)"),
        ((box[..., 2:] < box[..., :2]).any(2), "ends in the wrong order (x0 ≤ x1 and y0 ≤ y1 are needed)"),
    ):
        if broken.any():
            first = int(broken.nonzero()[0, 0])
            raise ValueError(f"boxes hold {what}: {int(broken.sum())} of them, first in image {first}")
    return box


def _sizes(sizes: Tensor, count: int) -> np.ndarray:
    if tuple(sizes.shape) != (count, 2):
        raise ValueError(f"sizes must be [{count}, 2], width and height per image, got {tuple(sizes.shape)}")
    values = sizes.detach().to("cpu", torch.float64).numpy()
    if not ((values >= 1) & (values % 1 == 0)).all():
        raise ValueError("sizes must be whole pixels of at least 1")
    return values
