"""entmax-1.5: a softmax with exact zeros, by a few Newton steps, with a backward of its own.

For scores x, entmax-1.5 is p_i = [x_i/2 − τ]_+² with τ such that Σ p_i = 1. With u = (x − max x)/2 the root
of ‖[u − τ]_+‖ = 1 is sought: the norm is a convex, decreasing function of τ, so Newton's steps from τ = −1
climb to the root and never pass it, and where all entries are equal the first step is already exact. (Newton
on the square of the norm, or Halley's method on it, need more steps.)
"""

import shutil
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

MOST_STEPS = 16  # of the eager kernel, which stops as soon as every row of a part has converged
_CACHED = 1 << 16  # float32 elements that stay in a core's cache through all passes over them
_SHORT = 1024  # entries of a row up to which torch's own norm is exact enough in float32
_COMPILED_FROM = 1 << 20  # elements from which a compiled training step repays its compilation
BACKENDS = ("auto", "eager", "compiled")


def entmax15(x: Tensor, dim: int = -1, *, backend: str = "auto") -> Tensor:
    """entmax-1.5 of x along `dim`: argmax_p p·x + (4/3) Σ_j (p_j − p_j^1.5) over the simplex.

    p_i = [x_i/2 − τ]_+², Σ p_i = 1; entries far enough below the largest get exactly 0. The gradient is
    s ⊙ (g − (s·g)/Σ s) with s = √p. Shape and dtype are those of x; half precision is computed in float32. A
    row whose entries are all −inf (masked) is 0 throughout and has gradient 0; NaN or +inf gives a row of
    NaN.

    `backend`: "eager", "compiled" (torch.compile; needs a C++ compiler on CPU), or "auto": compiled on CUDA
    and for large tensors that need a gradient, where a compiler is found. Both give the same numbers up to
    rounding.

    Errors: `ValueError` for an unknown backend; `TypeError` for whole numbers.
    Source: Peters, Niculae and Martins 2019 (entmax); paper C uses it in place of softmax.

    >>> entmax15(torch.tensor([0.0, 0.0, -5.0]))
    tensor([0.5000, 0.5000, 0.0000])
    >>> entmax15(torch.tensor([1.0, 0.0]))  # ((1 + √7) / 4)² = 0.8307
    tensor([0.8307, 0.1693])
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if not x.is_floating_point():
        raise TypeError(f"entmax15 needs floating-point scores, got {x.dtype}; call .float() first")
    if x.numel() == 0:
        return x.clone()
    if x.ndim == 0:
        return entmax15(x.reshape(1), dim, backend=backend).reshape(())
    rows = x.movedim(dim, -1)
    compiled = backend == "compiled" or (backend == "auto" and _worth_compiling(x))
    return _Entmax15.apply(rows, compiled).movedim(-1, dim)


def _worth_compiling(x: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if x.device.type == "cuda":
        return True
    return x.requires_grad and x.numel() >= _COMPILED_FROM and compiler_found()


@cache
def compiler_found() -> bool:
    """Whether a C++ compiler is on the path, which torch.compile needs on CPU."""
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


class _Entmax15(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, compiled: bool) -> Tensor:
        p = (_compiled_forward if compiled else _forward)(x)
        ctx.save_for_backward(p)
        ctx.compiled = compiled
        return p

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (p,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is asked for: differentiable operations only
            return _gradient_along(_root(p), grads[0]).to(p.dtype), None
        return (_compiled_backward if ctx.compiled else _backward)(p, grads[0]), None


def steps(length: int, dtype: torch.dtype = torch.float32) -> int:
    """Newton steps of the compiled kernel, whose number is fixed, for rows of so many entries.

    A search for the worst rows found errors of p of at most 2e-8 from stopping there, and one step more
    squares them for float64; usual rows need one to three fewer.
    """
    return (7 if length <= 256 else 8 if length <= 2048 else 10) + (dtype == torch.float64)


def _solve(x: Tensor) -> Tensor:
    """p of rows [..., n], float32 or float64, as one expression that a compiler fuses."""
    top = x.amax(-1, keepdim=True)
    top = torch.where(top == -torch.inf, 0.0, top)  # a row of −inf: nothing in its support
    u = ((x - top) * 0.5).clamp_min(-1.0)
    tau = torch.full_like(top, -1.0)
    for _ in range(steps(x.shape[-1], x.dtype)):
        r = (u - tau).clamp_min(0.0)
        total, norm = r.sum(-1, keepdim=True), r.square().sum(-1, keepdim=True).sqrt()
        # in a row without support both are 0 and τ stays where it is
        tau = tau + (norm - 1.0) * norm / torch.where(total == 0, 1.0, total)
    return (u - tau).clamp_min(0.0).square()


def _gradient(p: Tensor, g: Tensor) -> Tensor:
    return _gradient_along(_at_least_float32(p).sqrt(), g).to(p.dtype)


def _gradient_along(s: Tensor, g: Tensor) -> Tensor:
    g = g.to(s.dtype)
    total = s.sum(-1, keepdim=True)
    mean = (s * g).sum(-1, keepdim=True) / torch.where(total == 0, 1.0, total)
    return s * (g - mean)


def _root(p: Tensor) -> Tensor:
    """√p, with slope 0 where p is 0: an infinite one times a gradient of 0 would be NaN."""
    inside = p != 0
    return torch.where(inside, torch.where(inside, _at_least_float32(p), 1.0).sqrt(), 0.0)


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _fused_forward(x: Tensor) -> Tensor:
    return _solve(_at_least_float32(x)).to(x.dtype)


_compiled_forward = torch.compile(_fused_forward, dynamic=True)
_compiled_backward = torch.compile(_gradient, dynamic=True)


def _forward(x: Tensor) -> Tensor:
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return _fused_forward(x)
    return _by_parts(_solve_in_place, x, x)


def _backward(p: Tensor, g: Tensor) -> Tensor:
    if torch.compiler.is_compiling() or p.device.type != "cpu":
        return _gradient(p, g)
    return _by_parts(_gradient, p, p, g)


def _by_parts(function: Callable[..., Tensor], like: Tensor, *inputs: Tensor) -> Tensor:
    """`function` over rows, so many at a time that they stay in the cache through all its passes."""
    length = like.shape[-1]
    flat = [x.reshape(-1, length).contiguous() for x in inputs]  # sums depend on the layout, in the last bit
    result = torch.empty(like.shape, dtype=like.dtype)
    out, step = result.view(-1, length), max(1, _CACHED // length)
    for start in range(0, len(out), step):
        out[start : start + step] = function(*(x[start : start + step] for x in flat))
    return result


def _solve_in_place(x: Tensor) -> Tensor:
    """`_solve` for a part in the cache: no array but two, and no step once every row has converged."""
    x = _at_least_float32(x)
    top = x.amax(-1, keepdim=True)
    top.masked_fill_(top == -torch.inf, 0.0)
    u = (x - top).mul_(0.5).clamp_min_(-1.0)
    tau = torch.full_like(top, -1.0)
    r = torch.empty_like(u)
    moving = torch.ones_like(tau)  # a row that has converged rests: no other row can move its last bit
    enough = 4 * torch.finfo(u.dtype).eps
    for _ in range(MOST_STEPS):
        torch.sub(u, tau, out=r).clamp_min_(0.0)
        total, norm = r.sum(-1, keepdim=True), _norm(r)
        step = (norm - 1.0).mul_(norm).div_(total.masked_fill_(total == 0, 1.0)).mul_(moving)
        tau += step
        moving = (step.abs() > enough).to(tau.dtype)
        if not bool(moving.any()):
            break
    return torch.sub(u, tau, out=r).clamp_min_(0.0).square_()


def _norm(r: Tensor) -> Tensor:
    """‖r‖ of every row. torch's own is faster, but adds up a row in a line, which loses digits if long."""
    if r.shape[-1] <= _SHORT:
        return torch.linalg.vector_norm(r, dim=-1, keepdim=True)
    return r.square().sum(-1, keepdim=True).sqrt_()
