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
_CACHED = 1 << 18  # elements that stay in the caches through all passes, and few enough calls for all of them
_SHORT = 1024  # entries of a row up to which torch's own norm is exact enough in float32
_COMPILED_FROM = 1 << 20  # elements from which a compiled training step repays its compilation
# inductor's C++: what is one number a row is written down where it reads four others; products and sums fused
_CPP: dict[str, Any] = {"realize_reads_threshold": 3, "cpp.enable_floating_point_contract_flag": "fast"}
BACKENDS = ("auto", "eager", "compiled")


def entmax15(x: Tensor, dim: int = -1, *, backend: str = "auto") -> Tensor:
    """entmax-1.5 of x along `dim`: argmax_p p·x + (4/3) Σ_j (p_j − p_j^1.5) over the simplex.

    p_i = [x_i/2 − τ]_+², Σ p_i = 1; entries far enough below the largest get exactly 0. The gradient is
    s ⊙ (g − (s·g)/Σ s) with s = √p. Shape and dtype are those of x; half precision is computed in float32. A
    row whose entries are all −inf (masked) is 0 throughout and has gradient 0; NaN or +inf gives a row of
    NaN.

    `backend`: "eager", "compiled" (torch.compile; needs a C++ compiler on CPU), or "auto": compiled on CUDA
    and for large tensors that need a gradient, where a compiler is found. Both give the same numbers up to
    rounding. Without a gradient "auto" stays eager on CPU: compiling takes longer than the maps of a model
    do, and a row then gives the same bits in a batch of any size.

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
    if torch.is_grad_enabled() and x.requires_grad:
        return _Entmax15.apply(rows, compiled).movedim(-1, dim)
    return (_compiled_forward if compiled else _forward)(rows).movedim(-1, dim)


def _worth_compiling(x: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if x.device.type == "cuda":
        return True
    learns = x.requires_grad and torch.is_grad_enabled()
    return learns and x.numel() >= _COMPILED_FROM and compiler_found()


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
    squares them for float64; usual rows need one to three fewer. (A step costs about a seventh of a softmax.)
    """
    return (7 if length <= 256 else 8 if length <= 2048 else 10) + (dtype == torch.float64)


def _solve(x: Tensor) -> Tensor:
    """p of rows [..., n], float32 or float64, as one expression that a compiler fuses.

    In doubled units, r = [x − max x − 2τ]_+ with ‖r‖ = 2 at the root, an entry costs two subtractions, a
    maximum, a product and two sums in each step.
    """
    largest = x.amax(-1, keepdim=True)
    top = largest.clamp_min(torch.finfo(x.dtype).min)  # a row of −inf stays −inf: nothing in its support
    tau = torch.full_like(top, -2.0)
    for _ in range(steps(x.shape[-1], x.dtype)):
        r = (x - top - tau).clamp_min(0.0)
        total, norm = r.sum(-1, keepdim=True), r.square().sum(-1, keepdim=True).sqrt()
        # with `largest` τ reads four numbers, and _CPP has it written down: otherwise the loop over a row
        # derives it again, roots and quotients of all steps before, for every vector of entries
        tau = torch.where(largest == -torch.inf, tau, tau + (norm - 2.0) * norm / total)
    return ((x - top - tau).clamp_min(0.0) * 0.5).square()


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


@cache
def _compiler(function: Callable[..., Tensor], device: str) -> Callable[..., Tensor]:
    return torch.compile(function, options=_CPP if device == "cpu" else None)


def _compiled(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`function` compiled: for the first row length as a constant, from the second on for any length."""
    if torch.compiler.is_compiling():
        return function(*inputs)
    length = inputs[0].shape[-1]
    # neither the number of axes, nor strides, nor whether a gradient is wanted asks for a compilation more
    flat = [x.detach().reshape(-1, length).contiguous() for x in inputs]
    for x in flat:
        torch._dynamo.maybe_mark_dynamic(x, 0)
    return _compiler(function, flat[0].device.type)(*flat).view(inputs[0].shape)


def _compiled_forward(x: Tensor) -> Tensor:
    return _compiled(_fused_forward, x)


def _compiled_backward(p: Tensor, g: Tensor) -> Tensor:
    return _compiled(_gradient, p, g)


def _forward(x: Tensor) -> Tensor:
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return _fused_forward(x)
    return _by_parts(_solve_part, x)


def _backward(p: Tensor, g: Tensor) -> Tensor:
    if torch.compiler.is_compiling() or p.device.type != "cpu":
        return _gradient(p, g)
    return _by_parts(_gradient_part, p, g)


def _by_parts(function: Callable[..., None], *inputs: Tensor) -> Tensor:
    """`function` over rows, so many at a time that they stay in the cache through all its passes."""
    length = inputs[0].shape[-1]
    flat = [x.reshape(-1, length).contiguous() for x in inputs]  # sums depend on the layout, in the last bit
    result = torch.empty(inputs[0].shape, dtype=inputs[0].dtype)
    parts = (x.split(max(1, _CACHED // length)) for x in (*flat, result.view(-1, length)))
    for part in zip(*parts, strict=True):
        function(*part)
    return result


def _solve_part(x: Tensor, out: Tensor) -> None:
    """`_solve` for a part in the cache: no array but two, and no step once every row has converged."""
    x = _at_least_float32(x)
    limits, rests_at = torch.finfo(x.dtype), _rests_at(x.shape[-1], x.dtype)
    top = x.amax(-1, keepdim=True).clamp_min_(limits.min)
    below, r = x - top, torch.empty_like(x)
    minus_tau = torch.ones_like(top)
    moving = torch.ones_like(top)  # a row that has converged rests: no other row can move its last bit
    for _ in range(MOST_STEPS):
        torch.add(minus_tau, below, alpha=0.5, out=r).clamp_min_(0.0)
        total, norm = r.sum(-1, keepdim=True).clamp_min_(limits.tiny), _norm(r)
        gap = (norm - 1.0).mul_(moving)
        minus_tau.addcdiv_(norm.mul_(gap), total, value=-1.0)
        torch.gt(gap, rests_at, out=moving)
        if not bool(moving.any()):
            break
    torch.add(minus_tau, below, alpha=0.5, out=r).clamp_min_(0.0)
    torch.mul(r, r, out=out)


def _rests_at(length: int, dtype: torch.dtype) -> float:
    """The gap h − 1, with h = ‖[u − τ]_+‖, from which one more step is the last one a row needs.

    Left of the root h ≥ 1, h'' ≤ n/h ≤ n and −h' = Σ[u − τ]_+/h ≥ 1: the root is at most h − 1 away, and a
    Newton step misses it by at most n (h − 1)²/2, here a quarter of the dtype's eps. p is off by twice that.
    """
    return (torch.finfo(dtype).eps / (2 * length)) ** 0.5


def _gradient_part(p: Tensor, g: Tensor, out: Tensor) -> None:
    """`_gradient` for a part in the cache. √p is p/√p, as torch's √ takes five times as long where p is 0."""
    p, g = _at_least_float32(p), g.to(_at_least_float32(p).dtype)
    tiny = torch.finfo(p.dtype).tiny
    s = p.clamp_min(tiny).rsqrt_().mul_(p)
    total, r = s.sum(-1, keepdim=True).clamp_min_(tiny), s * g
    torch.sub(g, r.sum(-1, keepdim=True).div_(total), out=r)
    torch.mul(r, s, out=out)


def _norm(r: Tensor) -> Tensor:
    """‖r‖ of every row. torch's own is faster, but adds up a row in a line, which loses digits if long."""
    if r.shape[-1] <= _SHORT:
        return torch.linalg.vector_norm(r, dim=-1, keepdim=True)
    return r.square().sum(-1, keepdim=True).sqrt_()
