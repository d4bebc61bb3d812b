"""The linear segmentation heads of several states, fitted together; what and why: `dense.segmentation`."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from vitscope.dense.heads import CHUNK, Inputs, PatchHead, Size, axes, cosine, resized
from vitscope.dense.segmentation_scores import Counts

_TRIAL = 0.4  # the share of the steps that the choice of the settings takes
_BETAS = (0.9, 0.99)


def class_shares(masks: Tensor, size: Size, classes: int, ignore: int | None) -> Float[Tensor, "N C h w"]:
    """The share of each class in every cell; ignored pixels belong to none."""
    parts = []
    for part in masks.split(CHUNK):
        codes = part.long() if ignore is None else part.long().masked_fill(part == ignore, classes)
        high, wide = (length // cells for length, cells in zip(codes.shape[1:], size, strict=True))
        if (high * size[0], wide * size[1]) == codes.shape[1:]:
            cells = torch.arange(len(codes) * size[0] * size[1], device=codes.device)
            cells = cells.view(-1, size[0], 1, size[1], 1) * (classes + 1)
            found = (codes.view(-1, size[0], high, size[1], wide) + cells).flatten()
            counts = found.bincount(minlength=len(codes) * size[0] * size[1] * (classes + 1))
            shares = counts.view(len(codes), *size, classes + 1) / (high * wide)
            parts.append(shares.permute(0, 3, 1, 2)[:, :classes])
        else:  # cells overlap
            one = F.one_hot(codes, classes + 1).permute(0, 3, 1, 2)[:, :classes].float()
            parts.append(F.adaptive_avg_pool2d(one, size))
    return torch.cat(parts).contiguous()


def fit_block(
    inputs: Inputs,
    coarse: Tensor,
    fine: Tensor,
    held: Tensor,
    grid: Size,
    table: tuple[tuple[float, float], ...],
    schedule: tuple[int, int, int],
    ignore: int | None,
) -> tuple[PatchHead, Tensor, Tensor]:
    """Heads of some states, the row of `table` (lr, l2) chosen for each, and mIoU on the `held` masks.

    `coarse` shares are of the images trained on for the choice, `held` masks of the ones after them.
    """
    x, cls, states = inputs.x, inputs.cls, len(inputs.x)
    steps, batch, seed = schedule
    rates, l2 = torch.tensor(table, device=x.device).T[:, None].expand(-1, states, -1)
    validated = torch.full((states, len(table)), torch.nan, dtype=torch.float64)
    best = torch.zeros(states, dtype=torch.long)
    if len(table) > 1:
        trial = _descend(inputs, coarse, grid, rates, l2, (max(1, int(_TRIAL * steps)), batch, seed))
        for g in range(len(table)):
            counts = Counts(coarse.shape[1], ignore)
            for i in range(0, len(held), CHUNK):
                rows = slice(len(coarse) + i, len(coarse) + i + CHUNK)
                z = _logits(trial[:, g], x[:, rows], None if cls is None else cls[:, rows])
                counts.add(z.transpose(1, 2).unflatten(3, grid), held[i : i + CHUNK])
            validated[:, g] = counts.miou()
        best = validated.nan_to_num(-1).argmax(1)  # the first of several equals: the strongest penalty
    at = best[:, None].to(x.device)
    weights = _descend(inputs, fine, grid, rates.gather(1, at), l2.gather(1, at), schedule)[:, 0]
    return inputs.head(weights[..., :-1], weights[..., -1]), best, validated


def _logits(weights: Float[Tensor, "S K F"], x: Tensor, cls: Tensor | None) -> Float[Tensor, "S K N P"]:
    width = x.shape[3]
    z = (weights[..., :width] @ x.flatten(1, 2).mT).unflatten(2, x.shape[1:3])
    z += weights[..., -1:, None]
    if cls is not None:
        z += (weights[..., width:-1] @ cls.mT)[..., None]
    return z


def _descend(
    inputs: Inputs,
    shares: Float[Tensor, "N C h w"],
    grid: Size,
    rates: Float[Tensor, "S G"],
    l2: Float[Tensor, "S G"],
    schedule: tuple[int, int, int],
) -> Float[Tensor, "S G C F"]:
    """Adam with a cosine schedule, for all states and settings at once; the last weight is the bias.

    The gradient is written out: of an image's cells, (weight·softmax(u) − share) back through the resizing.
    """
    steps, batch, seed = schedule
    images, classes, size = len(shares), shares.shape[1], (shares.shape[2], shares.shape[3])
    batch = min(batch, images)
    by = axes(size, grid, inputs.x)
    back_by = (by[0].mT.contiguous(), by[1].mT.contiguous())
    same = size == grid  # nothing to resize
    cells = shares.sum(1).flatten(1)
    mean_cells = float(cells.sum(dtype=torch.float64)) / images
    frequency = shares.sum((0, 2, 3), dtype=torch.float64) / (mean_cells * images)
    width = inputs.penalty.shape[1] + 1
    w = shares.new_zeros(*l2.shape, classes, width)
    w[..., -1] = frequency.clamp_min(1e-6).log()
    decay = F.pad(inputs.penalty, (0, 1))[:, None, None] * l2[..., None, None]
    first, second = torch.zeros_like(w), torch.zeros_like(w)
    draw = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.long)
    for step in range(steps):
        if len(order) < batch:
            order = torch.cat([order, torch.randperm(images, generator=draw)])
        now, order = order[:batch].to(w.device), order[batch:]
        x, cls = inputs.x[:, now], None if inputs.cls is None else inputs.cls[:, now]
        u = _logits(w.flatten(1, 2), x, cls).unflatten(3, grid)
        u = u if same else resized(u, by)
        wrong = u.view(*l2.shape, classes, -1).softmax(2)
        wrong *= cells[now].flatten()
        wrong -= shares[now].transpose(0, 1).reshape(classes, -1)
        back = (wrong.view(u.shape) if same else resized(wrong.view(u.shape), back_by)).flatten(3)
        of_image = back.sum(3)
        parts = [back.flatten(2) @ x.flatten(1, 2), *([] if cls is None else [of_image @ cls])]
        slope = torch.cat([*parts, of_image.sum(2, keepdim=True)], 2).view_as(w) / (mean_cells * batch)
        slope += decay * w
        first.lerp_(slope, 1 - _BETAS[0])
        second.lerp_(slope.square(), 1 - _BETAS[1])
        size_of = (second / (1 - _BETAS[1] ** (step + 1))).sqrt_().add_(1e-8)
        rate = rates[..., None, None] * (cosine(step, steps) / (1 - _BETAS[0] ** (step + 1)))
        w -= rate * first / size_of
    return w
