"""The linear depth heads of several states, fitted together; what and why: `dense.depth`."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from vitscope.dense.heads import Inputs, cosine

FLOOR = 0.1  # what dinov2 adds to every bin after the ReLU
_EPSILON = 1e-3
_MEAN_WEIGHT = 0.15
_START = 0.05
_BETAS = (0.9, 0.99)


def descend(
    inputs: Inputs,
    depth: Float[Tensor, "N q"],
    valid: Bool[Tensor, "N q"],
    centres: Float[Tensor, " K"],
    by: tuple[Tensor, Tensor],
    l2: float,
    lr: float,
    schedule: tuple[int, int, int, int],
) -> tuple[Float[Tensor, "S K F"], Float[Tensor, " S"]]:
    """Adam on random valid cells, for all states at once: weights, the bias last, and RMSE of late steps.

    ∂p/∂l_k = (b_k − p)/Σ_j (relu(l_j) + 0.1) where l_k > 0, so the slope is written out.
    """
    steps, batch, points, seed = schedule
    images, batch = len(depth), min(batch, len(depth))
    x, cls, states = inputs.x, inputs.cls, len(inputs.x)
    blend = torch.einsum("ap,bq->abpq", *by).flatten(2).flatten(0, 1)
    count = valid.sum(1)
    listed = valid.byte().argsort(dim=1, descending=True, stable=True)  # each image's valid cells come first
    width = x.shape[3]
    w = x.new_zeros(states, len(centres), inputs.penalty.shape[1] + 1)
    w[..., -1] = _START  # alive: where the ReLU is 0 there is no slope
    decay = l2 * F.pad(inputs.penalty, (0, 1))[:, None]
    sums = torch.stack([centres, torch.ones_like(centres)], 1)
    first, second, late = torch.zeros_like(w), torch.zeros_like(w), []
    draw = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.long)
    for step in range(steps):
        if len(order) < batch:
            order = torch.cat([order, torch.randperm(images, generator=draw)])
        now, order = order[:batch].to(x.device), order[batch:]
        pick = torch.rand(batch, points, generator=draw).to(x.device)
        cell = listed[now].gather(1, (pick * count[now, None]).long())
        true = depth[now].gather(1, cell).flatten()
        seen = (blend[cell] @ x[:, now]).flatten(1, 2)
        logits = torch.baddbmm(w[:, None, :, -1], seen, w[..., :width].mT)
        if cls is not None:
            per_image = cls[:, now] @ w[..., width:-1].mT
            logits.unflatten(1, (batch, points)).add_(per_image[:, :, None])
        alive = logits > 0
        weighted, total = (logits.relu_().add_(FLOOR) @ sums).unbind(2)
        guess = (weighted / total).requires_grad_()
        g = (guess + _EPSILON).log() - (true + _EPSILON).log()
        loss = (g.var(1) + _MEAN_WEIGHT * g.mean(1).square()).clamp_min(1e-12).sqrt().sum()
        (slope_of_guess,) = torch.autograd.grad(loss, guess)
        guess = guess.detach()
        if step >= int(0.9 * steps):
            late.append((guess - true).square().mean(1))
        of_logits = (slope_of_guess / total)[..., None] * (centres - guess[..., None]) * alive
        parts = [of_logits.mT @ seen]
        if cls is not None:
            parts.append(of_logits.unflatten(1, (batch, points)).sum(2).mT @ cls[:, now])
        slope = torch.cat([*parts, of_logits.sum(1)[..., None]], 2) + decay * w
        first.lerp_(slope, 1 - _BETAS[0])
        second.lerp_(slope.square(), 1 - _BETAS[1])
        size_of = (second / (1 - _BETAS[1] ** (step + 1))).sqrt_().add_(1e-8)
        w -= lr * cosine(step, steps) / (1 - _BETAS[0] ** (step + 1)) * first / size_of
    return w, torch.stack(late).mean(0).sqrt()
