"""Many smooth minimisations at once: L-BFGS over a grid of problems that share their evaluations.

A grid has `B` rows (say, the states of a backbone) and `G` columns (say, strengths of regularisation); each
cell is one problem over `n` numbers. One call of the objective evaluates all cells still at work. Every
problem has its own step: in one round it either accepts its step, or shortens it and tries again in the
next, so no problem waits for another's line search. Rows and columns that are done leave the grid.

Method: L-BFGS two-loop recursion (Nocedal and Wright, Numerical Optimization, algorithm 7.4) with a given
diagonal preconditioner, scaled by the usual sᵀy / yᵀHy, and Armijo backtracking.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_ARMIJO = 1e-4
_SHORTEN = 0.3
_SHORTEST_STEP = 1e-8
_COMPACT_BELOW = 0.75

Objective = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""`(x [b, g, n], rows [b], columns [g]) -> (values float64 [b, g], gradients [b, g, n])`.

Values are taken to be of order 1, as a mean loss is: changes below the precision of `x` count as none."""


@dataclass(frozen=True)
class Minima:
    """Where each problem stopped; `converged` is False where `max_iter` or the smallest step ended it."""

    x: Float[Tensor, "B G n"]
    iterations: Int[Tensor, "B G"]
    converged: Bool[Tensor, "B G"]


@torch.no_grad()
def minimise(
    objective: Objective,
    start: Float[Tensor, "B G n"],
    inverse_hessian: Float[Tensor, "B G n"],
    *,
    tolerance: float = 1e-4,
    max_iter: int = 1000,
    memory: int = 10,
) -> Minima:
    """Minimise every problem of the grid until the largest entry of its gradient is at most `tolerance`.

    `inverse_hessian` is a positive diagonal approximation of each problem's inverse Hessian (ones: none is
    known). An iteration is one evaluation of the objective, accepted or not.

    >>> curvature = torch.tensor([[[1.0, 100.0]], [[3.0, 0.1]]])
    >>> def bowl(x, rows, columns):
    ...     h = curvature[rows][:, columns]
    ...     return (0.5 * h * (x - 1) ** 2).sum(2, dtype=torch.float64), h * (x - 1)
    >>> found = minimise(bowl, torch.zeros(2, 1, 2), torch.ones(2, 1, 2), tolerance=1e-5)
    >>> found.converged.all().item(), (found.x - 1).abs().max().item() < 1e-3
    (True, True)
    """
    grid = _Grid(objective, start, inverse_hessian, memory)
    x = start.clone()
    iterations = torch.zeros(start.shape[:2], dtype=torch.long, device=start.device)
    converged = torch.zeros(start.shape[:2], dtype=torch.bool, device=start.device)
    for _ in range(max_iter + 1):
        done = grid.gradient.abs().amax(2) <= tolerance
        at = (grid.rows[:, None], grid.columns[None, :])
        newly = done & grid.active
        x[at] = torch.where(grid.active[..., None], grid.x, x[at])
        converged[at] |= newly
        grid.active = grid.active & ~done & (grid.step >= _SHORTEST_STEP)
        if not grid.active.any() or int(iterations.max()) >= max_iter:
            break
        iterations[at] += grid.active
        grid.compact()
        grid.advance()
    return Minima(x, iterations, converged)


class _Grid:
    """The problems still at work: where they are, where they go next, and what they remember."""

    def __init__(self, objective: Objective, start: Tensor, inverse_hessian: Tensor, memory: int) -> None:
        size, device = start.shape[:2], start.device
        self.objective, self.memory = objective, memory
        self.rows = torch.arange(size[0], device=device)
        self.columns = torch.arange(size[1], device=device)
        self.active = torch.ones(size, dtype=torch.bool, device=device)
        self.x, self.inverse_hessian = start, inverse_hessian
        self.value, self.gradient = objective(start, self.rows, self.columns)
        self.scale = torch.ones(size, dtype=start.dtype, device=device)
        self.step = torch.ones(size, dtype=start.dtype, device=device)
        self.direction = -inverse_hessian * self.gradient
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []

    def advance(self) -> None:
        """One evaluation at every problem's next point; accept it, or shorten the step."""
        x = self.x + self.step[..., None] * self.direction
        value, gradient = self.objective(x, self.rows, self.columns)
        slope = _dot(self.gradient, self.direction).double()
        # Near the minimum a true decrease drowns in rounding: allow for what the precision cannot resolve.
        slack = torch.finfo(x.dtype).eps * self.value.abs().clamp_min(1.0)
        enough = value <= self.value + _ARMIJO * self.step.double() * slope + slack
        accepted = enough & self.active
        self._remember(x, gradient, accepted)
        self.x = torch.where(accepted[..., None], x, self.x)
        self.gradient = torch.where(accepted[..., None], gradient, self.gradient)
        self.value = torch.where(accepted, value, self.value)
        self.direction = torch.where(accepted[..., None], self._newton_step(), self.direction)
        self.step = torch.where(accepted, 1.0, self.step * _SHORTEN)

    def _remember(self, x: Tensor, gradient: Tensor, accepted: Tensor) -> None:
        s = torch.where(accepted[..., None], x - self.x, 0.0)
        y = torch.where(accepted[..., None], gradient - self.gradient, 0.0)
        sy, yhy = _dot(s, y), _dot(y, self.inverse_hessian * y)
        # A pair without positive curvature would spoil the model; weight 0 makes it count for nothing.
        curved = sy > torch.finfo(x.dtype).eps * yhy
        weight = torch.where(curved, 1.0 / torch.where(curved, sy, 1.0), 0.0)
        self.scale = torch.where(curved, sy / torch.where(curved, yhy, 1.0), self.scale)
        self.pairs = [*self.pairs[-self.memory + 1 :], (s, y, weight)]

    def _newton_step(self) -> Tensor:
        q = self.gradient.clone()
        alphas = []
        for s, y, weight in reversed(self.pairs):
            alphas.append((weight * _dot(s, q))[..., None])
            q.addcmul_(alphas[-1], y, value=-1)
        q.mul_(self.inverse_hessian).mul_(self.scale[..., None])
        for (s, y, weight), alpha in zip(self.pairs, reversed(alphas), strict=True):
            q.addcmul_(alpha - (weight * _dot(y, q))[..., None], s)
        return q.neg_()

    def compact(self) -> None:
        """Drop rows and columns in which nothing is left to do, once that saves a quarter or more."""
        rows = self.active.any(1).nonzero()[:, 0]
        columns = self.active.any(0).nonzero()[:, 0]
        if len(rows) * len(columns) > _COMPACT_BELOW * self.active.numel():
            return

        def keep(t: Tensor) -> Tensor:
            return t[rows][:, columns]

        self.rows, self.columns = self.rows[rows], self.columns[columns]
        for name in ("active", "x", "inverse_hessian", "value", "gradient", "scale", "step", "direction"):
            setattr(self, name, keep(getattr(self, name)))
        self.pairs = [(keep(s), keep(y), keep(weight)) for s, y, weight in self.pairs]


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(2)
