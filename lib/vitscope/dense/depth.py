"""Depth: how far away each pixel is, read by one linear map into depth bins from a state's patch tokens.

The head is dinov2's (facebookresearch/dinov2): patch tokens, or tokens with CLS broadcast
and concatenated, are resized bilinearly to `upsample` (4) times the grid; a 1x1 linear map gives a logit l_k
for each of 256 uniform bins b_k of `bounds`; the depth is their weighted mean,

    p = Σ_k w_k b_k,   w_k = (relu(l_k) + 0.1) / Σ_j (relu(l_j) + 0.1).

The loss is that of Eigen et al. (1406.2283) as dinov2 weights it, over the valid pixels of a step:

    √(Var g + 0.15·mean(g)²),   g = log(p + 10⁻³) − log(t + 10⁻³),

without dinov2's gradient term, which needs whole maps. A pixel is valid if its depth t is finite, above 0 (0
means no measurement) and within `bounds`.

What differs for speed: features are whitened (which the linear map can undo), and a step sees `points` random
valid cells of each of `batch` images at the resized grid, each with the depth of the pixel at its centre.
All states are fitted together by Adam with a cosine schedule; nothing is chosen, so nothing is held out. The
defaults of `lr` and `l2`, of three and four values, gave the least error on 100 held-out training scenes, for
three states of `sup_softmax` together.
Scores are taken at every valid pixel: the depths of the resized grid are resized bilinearly to the map.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from vitscope.dense.depth_fit import FLOOR, descend
from vitscope.dense.heads import (
    CHUNK,
    Inputs,
    Maps,
    PatchHead,
    Size,
    axes,
    check_pair,
    check_tokens,
    resized,
    stacked,
)
from vitscope.estimates import divided, resampled_sums
from vitscope.holdout import Groups
from vitscope.intervals import Interval


@dataclass(frozen=True)
class Depth:
    """Errors of S states (of one if `layers` were joined) over all valid pixels of the test images.

    `rmse` √mean (p − t)², in the unit of the maps; `abs_rel` mean |p − t|/t; `delta1` the percentage of
    pixels with max(p/t, t/p) < 1.25. `baseline_rmse` is that of predicting the mean depth of the training
    pixels, `position_rmse` that of predicting their mean at the same place of the picture. `valid_share` is
    the percentage of test pixels that are valid; `train_excluded` and `test_excluded` count images without
    one. Per test image: `squared_error` (sums), `pixels` (how many are valid). `train_rmse` is over the
    cells that the last tenth of the steps saw, at the resized grid: far below `rmse` it tells of overfitting.
    """

    rmse: Float[Tensor, " S"]
    abs_rel: Float[Tensor, " S"]
    delta1: Float[Tensor, " S"]
    baseline_rmse: float
    position_rmse: float
    valid_share: float
    train_excluded: int
    test_excluded: int
    squared_error: Float[Tensor, "S N"]
    pixels: Int[Tensor, " N"]
    train_rmse: Float[Tensor, " S"]
    head: PatchHead
    bins: Float[Tensor, " K"]
    layers: tuple[int, ...] | None
    patches: Size
    upsample: int
    warnings: tuple[str, ...]

    @torch.no_grad()
    def predict(
        self, tokens: Float[Tensor, "S N P D"], size: Size, cls: Float[Tensor, "S N E"] | None = None
    ) -> Float[Tensor, "R N h w"]:
        """Depth maps of `size`, one of each of the R heads (S, or 1 if `layers` were joined).

        Raises ValueError as `PatchHead.logits` does.
        """
        tokens, cls = _joined(tokens, self.layers), None if cls is None else _joined(cls, self.layers)
        fine = (self.patches[0] * self.upsample, self.patches[1] * self.upsample)
        by, to_map = axes(fine, self.patches, self.bins), axes(size, fine, self.bins)
        sums = torch.stack([self.bins, torch.ones_like(self.bins)])
        found = self.bins.new_empty(len(self.rmse), tokens.shape[1], *size)
        for i in range(tokens.shape[1]):  # one image at a time: its bins at the resized grid are in cache
            z = self.head.logits(tokens[:, i : i + 1], None if cls is None else cls[:, i : i + 1])[:, 0]
            for s, state in enumerate(z):
                relu = resized(state.unflatten(1, self.patches), by).relu_().add_(FLOOR).flatten(1)
                weighted, total = sums @ relu
                found[s, i] = resized((weighted / total).unflatten(0, fine), to_map)
        return found

    def interval(
        self,
        states: Sequence[int] | None = None,
        *,
        groups: Groups | None = None,
        level: float = 0.95,
        draws: int = 1000,
        seed: int = 0,
    ) -> Interval:
        """RMSE [S'] of the states at positions `states` (all), with its bootstrap interval over test images.

        Whole `groups` [N] of images are drawn, or single images; those without a valid pixel take no part.
        Raises ValueError for fewer than two images or groups and a level outside (0, 1).
        """
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level}")
        which = list(range(len(self.rmse)) if states is None else states)
        names = np.arange(len(self.pixels)) if groups is None else np.asarray(groups)
        if names.shape != (len(self.pixels),):
            raise ValueError(f"one group per image is needed: {names.shape} for {len(self.pixels)} images")
        seen = (self.pixels > 0).numpy()
        columns = {"error": self.squared_error[which].T.numpy()[seen], "pixels": self.pixels.numpy()[seen]}
        total, drawn = resampled_sums(columns, clusters=names[seen], draws=draws, seed=seed)
        low, high = np.quantile(
            np.sqrt(divided(drawn["error"], drawn["pixels"])), [(1 - level) / 2, (1 + level) / 2], axis=0
        )
        return Interval(np.sqrt(divided(total["error"], total["pixels"])), low, high)


def depth_probe(
    train_tokens: Float[Tensor, "S N P D"],
    train_depth: Maps,
    test_tokens: Float[Tensor, "S M P D"],
    test_depth: Maps,
    *,
    grid: Size,
    bounds: tuple[float, float],
    bins: int = 256,
    train_cls: Float[Tensor, "S N E"] | None = None,
    test_cls: Float[Tensor, "S M E"] | None = None,
    layers: Sequence[int] | None = None,
    upsample: int = 4,
    lr: float = 0.03,
    l2: float = 1e-4,
    seed: int = 0,
    steps: int = 500,
    batch: int = 32,
    points: int = 16,
    device: torch.device | str | None = None,
) -> Depth:
    """Fit and score a depth head for every state; head, loss and protocol are at the top of this file.

    Tokens are patches alone, row-major over `grid`; maps hold the depth of every pixel [h, w], in one size of
    the grid's aspect, for train and test each, in the unit of `bounds` = (nearest, farthest). With
    `train_cls` and `test_cls` every patch sees its image's CLS as well, as dinov2's does. `layers` are
    positions of states to concatenate into one head (dinov2: four of them). `l2` is the strength λ of the
    penalty (λ/2) ‖W‖², on weights of standardised tokens.

    Raises ValueError for shapes that do not fit (with the shapes), values that are not finite (naming the
    state), depths below 0, maps without a valid pixel, and bounds, bins, layers or settings out of range.

    >>> draw = torch.Generator().manual_seed(0)
    >>> depth = 1 + torch.rand(60, 1, 1, generator=draw).expand(60, 4, 4)
    >>> tokens = depth.reshape(1, 60, 16, 1) * torch.tensor([1.0, -1.0])
    >>> train, test = (tokens[:, :40], depth[:40]), (tokens[:, 40:], depth[40:])
    >>> found = depth_probe(*train, *test, grid=(4, 4), bounds=(0.5, 2.5), bins=64, steps=200)
    >>> found.rmse.item() < 0.05 < found.baseline_rmse
    True
    """
    low, high = bounds
    if not 0 <= low < high < float("inf"):
        raise ValueError(f"bounds must be (nearest, farthest) with 0 <= nearest < farthest, got {bounds}")
    if bins < 2 or min(upsample, steps, batch) < 1 or points < 2 or not (lr > 0 and l2 >= 0):
        raise ValueError(
            "bins and points must be at least 2, upsample, steps and batch at least 1, lr above 0 and l2 not "
            f"below 0; got {bins=}, {upsample=}, {steps=}, {batch=}, {points=}, {lr=}, {l2=}"
        )
    train_t, train_valid = _checked(train_tokens, train_depth, train_cls, grid, bounds, "train")
    test_t, test_valid = _checked(test_tokens, test_depth, test_cls, grid, bounds, "test")
    check_pair(train_tokens, test_tokens, "tokens")
    check_pair(train_cls, test_cls, "cls")
    if layers is not None and (not layers or any(not 0 <= s < len(train_tokens) for s in layers)):
        raise ValueError(f"layers must be positions among the {len(train_tokens)} states, got {list(layers)}")
    joint = None if layers is None else tuple(layers)
    fine = (grid[0] * upsample, grid[1] * upsample)
    cells, cell_valid = (_at(m, fine).flatten(1) for m in (train_t, train_valid))
    kept = cell_valid.any(1)
    if not kept.any():
        raise ValueError("no valid training pixel lies at the centre of a cell: use a smaller upsample")
    where = train_tokens.device if device is None else torch.device(device)
    x = _joined(train_tokens, joint)[:, kept].to(where)
    c = None if train_cls is None else _joined(train_cls, joint)[:, kept].to(where)
    inputs = Inputs.of(x, c)
    centres = torch.linspace(low, high, bins, device=where)
    schedule = (steps, batch, points, seed)
    weights, train_rmse = descend(
        inputs,
        cells[kept].to(where),
        cell_valid[kept].to(where),
        centres,
        axes(fine, grid, x),
        l2,
        lr,
        schedule,
    )
    states = len(weights)
    found = Depth(
        rmse=torch.full((states,), torch.nan),
        abs_rel=torch.full((states,), torch.nan),
        delta1=torch.full((states,), torch.nan),
        baseline_rmse=_constant_rmse(train_t, train_valid, test_t, test_valid, by_position=False),
        position_rmse=_constant_rmse(train_t, train_valid, test_t, test_valid, by_position=True),
        valid_share=100 * float(test_valid.double().mean()),
        train_excluded=int((~kept).sum()),
        test_excluded=int((~test_valid.flatten(1).any(1)).sum()),
        squared_error=torch.empty(states, len(test_t)),
        pixels=test_valid.flatten(1).sum(1),
        train_rmse=train_rmse.cpu(),
        head=inputs.head(weights[..., :-1], weights[..., -1]),
        bins=centres,
        layers=joint,
        patches=grid,
        upsample=upsample,
        warnings=tuple(_warnings(steps * batch, int(kept.sum()))),
    )
    return _scored(found, test_tokens, test_cls, test_t, test_valid)


def _checked(
    tokens: Tensor, maps: Maps, cls: Tensor | None, grid: Size, bounds: tuple[float, float], what: str
) -> tuple[Tensor, Tensor]:
    """Depth maps in float32, 1 where they are not valid, and where they are."""
    depth = stacked(maps, f"{what} depth maps")
    check_tokens(tokens, cls, depth, grid, what, "depth maps")
    if bool((depth < 0).any()):
        raise ValueError(
            f"{what} depth maps hold {float(depth.nan_to_num(0).min()):g}: depth cannot be below 0"
        )
    valid = depth.isfinite() & (depth > 0) & (depth >= bounds[0]) & (depth <= bounds[1])
    if not valid.any():
        raise ValueError(
            f"{what} depth maps have no valid pixel: none is finite, above 0 and within {bounds[0]:g} to "
            f"{bounds[1]:g}; bounds are in the unit of the maps"
        )
    return torch.where(valid, depth, 1.0).float(), valid


def _joined(values: Tensor, layers: tuple[int, ...] | None) -> Tensor:
    """The states `layers` as one, their features side by side."""
    return values if layers is None else torch.cat([values[s] for s in layers], -1)[None]


def _at(maps: Shaped[Tensor, "N h w"], size: Size) -> Shaped[Tensor, "N a b"]:
    """The pixel at the centre of each cell. Mixing pixels would blur edges and mix in missing depths."""
    rows, cols = (
        ((torch.arange(n, device=maps.device) + 0.5) * old / n).long()
        for n, old in zip(size, maps.shape[1:], strict=True)
    )
    return maps[:, rows[:, None], cols]


def _scored(found: Depth, tokens: Tensor, cls: Tensor | None, depth: Tensor, valid: Tensor) -> Depth:
    errors, ratios, close = [], [], []
    for i in range(0, len(depth), CHUNK):
        rows = slice(i, i + CHUNK)
        t, seen = depth[rows], valid[rows]
        p = found.predict(
            tokens[:, rows], (t.shape[1], t.shape[2]), None if cls is None else cls[:, rows]
        ).cpu()
        off = (p - t).abs() * seen
        errors.append(off.square().sum((2, 3), dtype=torch.float64))
        ratios.append((off / t).sum((2, 3), dtype=torch.float64))
        close.append(((torch.maximum(p / t, t / p) < 1.25) & seen).sum((2, 3)))
    squared, count = torch.cat(errors, 1), valid.sum()
    return replace(
        found,
        squared_error=squared,
        rmse=(squared.sum(1) / count).sqrt(),
        abs_rel=torch.cat(ratios, 1).sum(1) / count,
        delta1=100 * torch.cat(close, 1).sum(1).double() / count,
    )


def _constant_rmse(
    train: Tensor, train_valid: Tensor, test: Tensor, test_valid: Tensor, *, by_position: bool
) -> float:
    """RMSE of the mean training depth; of the mean at each position, where any training image has one."""
    guess = train[train_valid].double().mean()
    if by_position:
        count = train_valid.sum(0)
        mean = (train.double() * train_valid).sum(0) / count.clamp_min(1)
        mean = torch.where(count > 0, mean, guess)
        size = (test.shape[1], test.shape[2])
        guess = F.interpolate(mean[None, None], size, mode="bilinear", align_corners=False)[0, 0]
    return float((test.double() - guess)[test_valid].square().mean().sqrt())


def _warnings(seen: int, images: int) -> Iterator[str]:
    if seen < images:
        yield f"{seen} of {images} training images were used: raise steps or batch"
