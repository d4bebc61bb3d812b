"""entmax-1.5 against the entmax package and softmax, and a training step of ViT-S/16 with either.

Each ratio is the median over rounds in which the contestants run one after the other on the same inputs, so
that a machine that slows down slows them all. (A script named like the package would hide it.) Usage:

    python benchmarks/entmax15.py                   197 tokens, 16 images of 6 heads; then a step of batch 8
    python benchmarks/entmax15.py --tokens 577 --images 4 --no-step
    python benchmarks/entmax15.py --device cuda     there, `adasplash` is one more kernel to compare with
"""

import argparse
import json
import statistics
import time

import entmax as package
import timm
import torch

from vitscope.attention import swap_attention
from vitscope.entmax import compiler_found, entmax15


def alternate(runs, rounds, synchronize) -> dict[str, list[float]]:
    """Seconds of every contestant in every round, after one unmeasured run of each."""
    for run in runs.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            synchronize()
            start = time.perf_counter()
            run()
            synchronize()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def spread(values) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def ratios(seconds, of: str, to: str) -> dict[str, float]:
    """Round by round, the seconds of one to those of another."""
    return spread([a / b for a, b in zip(seconds[of], seconds[to], strict=True)])


def show(label: str, ms: float, ratio: dict[str, float], rest: str = "") -> None:
    print(f"{label:34s} {ms:9.2f} ms   {ratio['median']:7.2f} × "
          f"({ratio['min']:.2f}–{ratio['max']:.2f}){rest}")  # fmt: skip


def scores(args) -> torch.Tensor:
    """Scores as attention has them: products of queries and keys, spread enough for many exact zeros."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(args.images, args.heads, args.tokens, 64, generator=generator) for _ in range(2))
    return (args.sharpness * q @ k.mT / 8).to(args.device)


def kernels(args, synchronize) -> dict:
    """Forward and backward of every way to normalize the same scores."""
    x = scores(args)
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.device)
    ways = {
        "softmax": lambda z: z.softmax(-1),
        "entmax15, eager": lambda z: entmax15(z, backend="eager"),
        "entmax.entmax15": lambda z: package.entmax15(z, dim=-1),
        "entmax.entmax_bisect": lambda z: package.entmax_bisect(z, alpha=1.5, dim=-1),
    }
    if args.compile:
        ways["entmax15, compiled"] = lambda z: entmax15(z, backend="compiled")

    def both(way):
        def run():
            leaf = x.detach().requires_grad_()
            way(leaf).backward(upstream)

        return run

    seconds = alternate({name: both(way) for name, way in ways.items()}, args.rounds, synchronize)
    exact = package.entmax15(x, dim=-1)
    p = entmax15(x)
    result: dict = {
        "support": round(float((p > 0).sum(-1).float().mean()), 1),
        "zeros": round(float((p == 0).float().mean()), 4),
        "ways": {},
    }
    print(f"{args.images} images × {args.heads} heads × {args.tokens} tokens, forward and backward: "
          f"mean support {result['support']}, zeros {result['zeros']:.1%}; ratio to softmax")  # fmt: skip
    for name, way in ways.items():
        row = {
            "ms": round(1000 * statistics.median(seconds[name]), 3),
            "to_softmax": ratios(seconds, name, "softmax"),
        }
        rest = ""
        if name != "softmax":
            row["difference_to_package"] = float((way(x) - exact).abs().max())
            rest = f"   differs from the package by {row['difference_to_package']:.1e}"
        show(name, row["ms"], row["to_softmax"], rest)
        result["ways"][name] = row
    for name in (n for n in ways if n.startswith("entmax15")):
        faster = ratios(seconds, "entmax.entmax15", name)
        result["ways"][name]["faster_than_package"] = faster
        print(f"{name}: the package takes {faster['median']:.1f} × ({faster['min']:.1f}–{faster['max']:.1f})")
    return result


def training_step(args, synchronize) -> dict:
    """Forward and backward of ViT-S/16, its attention written out with softmax and with entmax-1.5."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(args.batch, 3, 224, 224, generator=generator).to(args.device)

    def step(kind, compiled=False):
        torch.manual_seed(0)
        model = timm.create_model("vit_small_patch16_224").to(args.device).train()
        if kind is not None:
            swap_attention(model, kind)
        if compiled:
            for block in model.blocks:
                block.compile()

        def run():
            model.zero_grad()
            model(images).square().mean().backward()

        return run

    runs = {
        "softmax, fused (timm's own)": step(None),
        "softmax": step("softmax"),
        "entmax15": step("entmax15"),
    }
    pairs = {"entmax15": "softmax", "softmax, fused (timm's own)": "softmax"}
    if args.compile:
        runs["softmax, blocks compiled"] = step("softmax", compiled=True)
        runs["entmax15, blocks compiled"] = step("entmax15", compiled=True)
        pairs["entmax15, blocks compiled"] = "softmax, blocks compiled"
    seconds = alternate(runs, args.step_rounds, synchronize)
    print(f"\nStep of ViT-S/16 at 224 px, batch {args.batch}, forward and backward")
    result = {}
    for name in runs:
        ms, to = 1000 * statistics.median(seconds[name]), pairs.get(name, name)
        result[name] = {"ms": round(ms, 1), "to": to, "ratio": ratios(seconds, name, to)}
        show(name, ms, result[name]["ratio"], f"   of {to}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=197)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--sharpness", type=float, default=2.0, help="standard deviation of the scores")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--batch", type=int, default=8, help="images of a training step")
    parser.add_argument("--step-rounds", type=int, default=5)
    parser.add_argument("--no-step", dest="step", action="store_false", help="leave the training step out")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="leave torch.compile out")
    parser.add_argument("--threads", type=int, help="threads of torch; its own choice otherwise")
    parser.add_argument("--json", help="write the results here")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    on_cuda = args.device.startswith("cuda")
    args.compile = args.compile and (on_cuda or compiler_found())
    synchronize = torch.cuda.synchronize if on_cuda else lambda: None
    if on_cuda:
        print("on CUDA, compare with `adasplash`, too (not part of this benchmark)")
    result = {"kernels": kernels(args, synchronize)}
    if args.step:
        result["step"] = training_step(args, synchronize)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(
                {"torch": torch.__version__, "threads": torch.get_num_threads(), "result": result},
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()
