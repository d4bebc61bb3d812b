"""Weights on the simplex that minimise cross-entropy: the metalearner of the Super Learner."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import minimize
from torch import Tensor

_BLOCK = 1 << 22  # logits in float64 at a time
_LEAST = 1e-12  # probability below which a member's certainty of being wrong counts no further

Objective = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""Weights [K] -> value and gradient [K]."""


def probability_weights(logits: Float[Tensor, "K N C"], codes: Int[Tensor, " N"]) -> Float[Tensor, " K"]:
    """The w ≥ 0, Σ w = 1 that minimise −(1/N) Σ_i log Σ_ℓ w_ℓ softmax(z_ℓi)[y_i].

    The problem is convex; it is solved in float64 by sequential quadratic programming from equal weights.

    >>> logits = torch.tensor([[[4.0, 0.0], [0.0, 4.0]], [[0.0, 4.0], [4.0, 0.0]]])
    >>> probability_weights(logits, torch.tensor([0, 1])).round(decimals=6).tolist()
    [1.0, 0.0]
    """
    own = logits.double().log_softmax(2)[:, torch.arange(len(codes), device=codes.device), codes]
    likelihood = own.exp().clamp_min(_LEAST).cpu().numpy()

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        mixed = w @ likelihood
        return float(-np.log(mixed).mean()), -(likelihood / mixed).mean(1)

    return _solve(objective, len(logits)).to(logits)


def logit_weights(logits: Float[Tensor, "K N C"], codes: Int[Tensor, " N"]) -> Float[Tensor, " K"]:
    """The w ≥ 0, Σ w = 1 that minimise the mean cross-entropy of Σ_ℓ w_ℓ z_ℓ; convex, too."""
    images, per_image = len(codes), logits.shape[0] * logits.shape[2]
    chunk = max(1, _BLOCK // per_image)

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        weight = torch.from_numpy(w).to(logits.device)
        value, gradient = 0.0, torch.zeros_like(weight)
        for z, y in zip(logits.split(chunk, 1), codes.split(chunk), strict=True):
            wide = z.double()
            p = torch.einsum("k,knc->nc", weight, wide).log_softmax(1)
            value -= float(p.gather(1, y[:, None]).sum())
            residual = p.exp()
            residual[torch.arange(len(y), device=y.device), y] -= 1
            gradient += torch.einsum("knc,nc->k", wide, residual)
        return value / images, (gradient / images).cpu().numpy()

    return _solve(objective, len(logits)).to(logits)


def _solve(objective: Objective, count: int) -> Float[Tensor, " K"]:
    found = minimize(
        objective,
        np.full(count, 1 / count),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * count,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"maxiter": 500, "ftol": 1e-10},
    )
    # the solver keeps bounds and sum up to rounding
    weights = torch.from_numpy(np.clip(found.x, 0, None))
    return weights / weights.sum()
