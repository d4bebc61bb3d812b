"""entmax-1.5 against the entmax package, softmax and fused attention, and a training step with either.

(A script named like the package would hide it.)

    python benchmarks/entmax15.py                   197 tokens, 16 images of 6 heads; then a step of batch 8
    python benchmarks/entmax15.py --tokens 577 --images 4 --no-step
    python benchmarks/entmax15.py --device cuda     there, `adasplash` is one more kernel to compare with

Three settings: the map alone, forward and backward and forward only; a whole attention with entmax-1.5
against `scaled_dot_product_attention` with softmax, which never writes the map down; a step of ViT-S/16.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import common
import entmax as package
import timm
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from vitscope.attention import swap_attention
from vitscope.entmax import compiler_found, entmax15

Way = Callable[[Tensor], Tensor]
EAGER, COMPILED = "entmax15, eager", "entmax15, compiled"
PACKAGE, BISECT = "entmax.entmax15", "entmax.entmax_bisect"
FUSED = "scaled_dot_product_attention (softmax, fused)"
NO_COMPILER = "torch.compile needs a C++ compiler on a CPU: none was found, or --no-compile"


def queries_and_keys(args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Spread enough that their products, as scores, give many exact zeros."""
    generator = torch.Generator().manual_seed(0)
    size = (args.images, args.heads, args.tokens, 64)
    q, k = (torch.randn(size, generator=generator) for _ in range(2))
    return (args.sharpness * q).to(args.device), k.to(args.device)


def ways(args: argparse.Namespace) -> dict[str, Way]:
    """Every way to normalize scores."""
    found: dict[str, Way] = {
        "softmax": lambda z: z.softmax(-1),
        EAGER: lambda z: entmax15(z, backend="eager"),
        PACKAGE: lambda z: package.entmax15(z, dim=-1),
        BISECT: lambda z: package.entmax_bisect(z, alpha=1.5, dim=-1),
    }
    if args.compile:
        found[COMPILED] = lambda z: entmax15(z, backend="compiled")
    return found


def rows_of(
    seconds: dict[str, list[float]],
    pairs: list[tuple[str, str, float | None, str]],
    setting: str,
    **values: float,
) -> list[dict[str, Any]]:
    """A row for each (what, against, target, better); ratios as the target is worded."""
    rows = []
    for what, against, target, better in pairs:
        if what not in seconds:
            rows.append(common.absent(what, against, NO_COMPILER, setting=setting, target=target))
            continue
        slower, faster = (against, what) if better == "higher" else (what, against)
        ms = {"ms": statistics.median(seconds[what]), "ms of the other": statistics.median(seconds[against])}
        shown = {name: float(f"{1000 * value:.4g}") for name, value in ms.items()} | values
        ratio = common.ratio(seconds, slower, faster)
        rows.append(common.row(what, against, ratio, setting=setting, target=target, better=better, **shown))
    return rows


def maps(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The same scores normalized in every way: forward and backward, then forward alone."""
    q, k = queries_and_keys(args)
    x = q @ k.mT / 8
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.device)

    def both(way: Way) -> Callable[[], None]:
        def run() -> None:
            leaf = x.detach().requires_grad_()
            way(leaf).backward(upstream)

        return run

    def alone(way: Way) -> Callable[[], Tensor]:
        return torch.inference_mode()(lambda: way(x))

    p, exact = entmax15(x), package.entmax15(x, dim=-1)
    setting = (
        f"{args.images} × {args.heads} maps of {args.tokens}², zeros {float((p == 0).float().mean()):.1%}"
    )
    apart = float(f"{float((p - exact).abs().max()):.1e}")
    rows = []
    for name, wrap in (("forward and backward", both), ("forward", alone)):
        seconds = common.alternate(
            {n: wrap(way) for n, way in ways(args).items()}, args.rounds, device=args.device
        )
        first = wrap is both
        pairs = [
            (COMPILED, PACKAGE, 15.0 if first else None, "higher"),
            (COMPILED, "softmax", 2.0 if first else None, "lower"),
            (EAGER, PACKAGE, None, "higher"),
            (EAGER, "softmax", None, "lower"),
            (PACKAGE, "softmax", None, "lower"),
            (BISECT, "softmax", None, "lower"),
        ]
        rows += rows_of(seconds, pairs, f"{name}, {setting}", **{"largest difference to the package": apart})
    return rows


def attention(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Attention as a whole, values included, forward and backward: written out, and fused."""
    q, k = (x.detach().requires_grad_() for x in queries_and_keys(args))
    v = torch.randn(q.shape, generator=torch.Generator().manual_seed(2)).to(q.device).requires_grad_()
    upstream = torch.randn(v.shape, generator=torch.Generator().manual_seed(1)).to(v.device)

    def written(way: Way) -> Callable[[], None]:
        def run() -> None:
            for x in (q, k, v):
                x.grad = None
            (way(q @ k.mT / 8) @ v).backward(upstream)

        return run

    def fused() -> None:
        for x in (q, k, v):
            x.grad = None
        scaled_dot_product_attention(q, k, v).backward(upstream)

    runs = {name: written(way) for name, way in ways(args).items() if name != BISECT}
    seconds = common.alternate({FUSED: fused, **runs}, args.rounds, device=args.device)
    pairs = [(name, FUSED, None, "lower") for name in (COMPILED, EAGER, PACKAGE, "softmax")]
    setting = (
        f"attention with values, forward and backward, {args.images} × {args.heads} × {args.tokens} × 64"
    )
    return rows_of(seconds, pairs, setting)


def training_step(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Forward and backward of ViT-S/16, its attention written out with softmax and with entmax-1.5."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(args.batch, 3, 224, 224, generator=generator).to(args.device)

    def step(kind: str | None, compiled: bool = False) -> Callable[[], None]:
        torch.manual_seed(0)
        model = timm.create_model("vit_small_patch16_224", depth=args.depth).to(args.device).train()
        if kind is not None:
            swap_attention(model, kind)
        if compiled:
            for block in model.blocks:
                block.compile()

        def run() -> None:
            model.zero_grad()
            model(images).square().mean().backward()

        return run

    fused = "softmax, fused (timm's own)"
    runs = {fused: step(None), "softmax": step("softmax"), "entmax15": step("entmax15")}
    compiled = {f"{kind}, blocks compiled": kind for kind in ("softmax", "entmax15")}
    if args.compile:
        runs |= {name: step(kind, compiled=True) for name, kind in compiled.items()}
    seconds = common.alternate(runs, args.step_rounds, device=args.device)
    pairs = [
        ("entmax15", "softmax", None, "lower"),
        ("entmax15", fused, None, "lower"),
        ("entmax15, blocks compiled", "softmax, blocks compiled", None, "lower"),
    ]
    return rows_of(seconds, pairs, f"training step of ViT-S/16, {args.depth} blocks, batch {args.batch}")


def main() -> None:
    parser = common.parser(
        __doc__, tokens=197, images=16, heads=6, rounds=11, batch=8, depth=12, step_rounds=5, threads=0
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sharpness", type=float, default=2.0, help="standard deviation of the scores")
    parser.add_argument("--no-step", dest="step", action="store_false", help="leave the training step out")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="leave torch.compile out")
    quick = {"tokens": 20, "images": 2, "heads": 2, "rounds": 2, "batch": 1, "depth": 1, "step_rounds": 1}
    args = common.parse(parser, **quick)
    args.compile = args.compile and (args.device.startswith("cuda") or compiler_found())
    rows = maps(args) + attention(args)
    if args.step:
        rows += training_step(args)
    common.write("entmax15", rows, args)


if __name__ == "__main__":
    main()
