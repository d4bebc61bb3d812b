"""What `gpu_check.py` checks, a section each: a function that yields rows."""

import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import Any

import common
import gpu_floor
import gpu_reference
import torch

FP32, BF16, FP64 = torch.float32, torch.bfloat16, torch.float64
NAMES = {FP32: "fp32", BF16: "bf16", torch.float16: "fp16", FP64: "fp64"}
Rows = Iterator[dict[str, Any]]


class Check:
    """Device, sizes, peaks and time, as all sections share them."""

    def __init__(self, device: str, reduced: bool, minutes: float) -> None:
        self.device, self.reduced = device, reduced
        self.end = time.monotonic() + 60 * minutes
        self.rounds = 1 if reduced else 3
        self.compiles = not reduced  # it takes longer than all that is small
        self.peaks = gpu_floor.Peaks()

    def left(self) -> float:
        return self.end - time.monotonic()

    def normal(self, *shape: int, seed: int = 0) -> torch.Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(self.device)

    def seconds(self, runs: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
        return common.alternate(runs, self.rounds, device=self.device)

    def to_floor(
        self, what: str, seconds: list[float], work: dict[torch.dtype, float], moved: float, **more: Any
    ) -> dict[str, Any]:
        """A row: how many times the floor the work took."""
        floor = self.peaks.floor(work, moved)
        setting = more.pop("setting", "")
        middle = sorted(seconds)[len(seconds) // 2]
        return common.row(
            what, "floor", common.spread([s / floor for s in seconds]), setting=setting, better="lower",
            ms=round(1000 * middle, 3), floor_ms=float(f"{1000 * floor:.3g}"), **more,
        )  # fmt: skip


def error(what: str, against: str, value: float, bound: float, **more: Any) -> dict[str, Any]:
    """A row of a deviation, which must not pass its bound."""
    spread = {"median": value, "min": value, "max": value}
    return common.row(what, against, spread, target=bound, better="lower", **more)


def peaks(check: Check) -> Rows:
    """Matrix products and a copy; every floor below divides by these."""
    side, copied = (256, 1 << 22) if check.reduced else (8192, 1 << 30)
    check.peaks = gpu_floor.measure(check.device, side, copied)
    for dtype, value in check.peaks.operations.items():
        rate = value / 1e12
        yield common.row(f"peak {NAMES[dtype]}", "TFLOP/s", common.spread([rate]), side=side)
    yield common.row("peak copy", "GB/s", common.spread([check.peaks.bandwidth / 1e9]), bytes=copied)


def entmax(check: Check) -> Rows:
    """Forward and backward of both kernels against bisection in float64, and their time against the floor."""
    from vitscope.entmax import compiler_found, entmax15

    cuda = check.device.startswith("cuda")
    backends = ["eager"] + ["compiled"] * (cuda or (compiler_found() and not check.reduced))
    for images, heads, tokens in [(2, 2, 65)] if check.reduced else [(64, 6, 197), (8, 12, 1370)]:
        x = 2 * check.normal(images, heads, tokens, tokens)
        upstream = check.normal(*x.shape, seed=1)
        part = slice(0, 2)
        exact = gpu_reference.entmax15(x[part]).cpu()
        slope = gpu_reference.entmax15_gradient(exact, upstream[part].cpu())
        ways: dict[str, Callable] = {"softmax": lambda z: z.softmax(-1)}
        ways |= {b: lambda z, b=b: entmax15(z, backend=b) for b in backends}
        if cuda and importlib.util.find_spec("adasplash"):
            from adasplash import triton_entmax

            ways["adasplash"] = lambda z: triton_entmax(z, alpha=1.5)
        setting = f"{images}×{heads}×{tokens}²"
        for name in backends:
            leaf = x[part].clone().requires_grad_()
            p = ways[name](leaf)
            p.backward(upstream[part])
            yield error(f"entmax15 {name}", "float64 bisection", gpu_reference.worst(p, exact), 1e-5,
                        setting=setting)  # fmt: skip
            yield error(f"entmax15 {name}, backward", "float64", gpu_reference.worst(leaf.grad, slope), 1e-4,
                        setting=setting)  # fmt: skip

        def both(way: Callable, x=x, upstream=upstream) -> Callable[[], None]:
            leaf = x.detach().requires_grad_()

            def run() -> None:
                leaf.grad = None
                way(leaf).backward(upstream)

            return run

        seconds = check.seconds({name: both(way) for name, way in ways.items()})
        for name, spent in seconds.items():  # x read and p written; p and g read and the slope written
            yield check.to_floor(f"{name}, both ways", spent, {}, 5 * 4 * x.numel(), setting=setting)


def parity(check: Check) -> Rows:
    """Capture's statistics against their definitions in float64; what bf16 makes of them and of features."""
    from vitscope import backbones
    from vitscope.capture import capture

    size, count = (32, 2) if check.reduced else (224, 8)
    backbone = backbones.load("vit_tiny_patch16_224", weights="random", img_size=size, device=check.device)
    images = check.normal(count, 3, size, size).cpu()
    exact = gpu_reference.states(backbone.model, images)

    def seen() -> dict[str, torch.Tensor]:  # by the backbone as it is when called
        c = capture(backbone, images, norm="none", attention=True, progress=False)
        return {"cls": c.cls, "patch_mean": c.patch_mean, **c.per_image, **c.attention}

    found = seen()
    for name, expected in exact.items():
        yield error(f"capture {name}, fp32", "float64", gpu_reference.worst(found[name], expected), 1e-4)
    backbone = backbones.load(
        "vit_tiny_patch16_224", weights="random", img_size=size, device=check.device, dtype="bfloat16"
    )
    half = seen()
    for name in ("cls", "patch_mean"):
        cosine = torch.cosine_similarity(half[name][1:].double(), exact[name][1:], dim=-1).min()
        yield error(f"capture {name}, bf16: 1 − cosine", "float64", float(1 - cosine), 1e-2)
    for name in ("similarity", "similarity_centred", "entropy"):
        apart = float((half[name].double() - exact[name]).abs().max())
        yield error(f"capture {name}, bf16: largest difference", "float64", apart, 0.05)


def captures(check: Check) -> Rows:
    """A bare forward, capture without and with attention statistics, and capture from the host's memory."""
    from vitscope import backbones
    from vitscope.capture import capture

    cases = [("vit_tiny_patch16_224", 32, 4, 2)] if check.reduced else [
        (f"vit_{kind}_patch14_dinov2", size, batch, 4)
        for size, batch in ((224, 128), (518, 16)) for kind in ("small", "base", "large")
    ]  # fmt: skip
    for name, size, batch, batches in cases:
        backbone = backbones.load(name, weights="random", img_size=size, device=check.device)
        shape = gpu_floor.of_model(backbone.model)
        host = check.normal(batch * batches, 3, size, size).cpu()
        for dtype in (FP32, BF16):
            if check.left() < 20 and not check.reduced:
                raise TimeoutError(f"{name} at {size} px and what follows did not fit into the time")
            backbone.model.to(dtype)
            images = host.to(check.device, dtype)

            @torch.inference_mode()
            def bare(images=images, backbone=backbone, batch=batch) -> None:
                for part in images.split(batch):
                    backbone.model.forward_features(part)

            def ours(images=images, backbone=backbone, batch=batch, **options: Any) -> Callable[[], Any]:
                return lambda: capture(
                    backbone, images, norm="none", batch_size=batch, progress=False, **options
                )

            runs = {
                "bare forward": bare,
                "capture": ours(),
                "capture with attention": ours(attention=True),
                "capture from host": ours(images=host),
            }
            if check.compiles and dtype == BF16 and check.left() > 200:
                runs |= _compiled(backbone.model.blocks, bare, runs["capture"])
            seconds = check.seconds(runs)
            count = len(host)
            forward = {dtype: count * gpu_floor.forward_operations(shape)}
            # every batch reads the weights
            moved = batches * gpu_floor.forward_bytes(shape, batch, gpu_floor.SIZE[dtype])
            maps = count * gpu_floor.map_operations(shape)
            setting = f"{name}, {size} px, {NAMES[dtype]}, batch {batch}"
            for what, spent in seconds.items():
                work = dict(forward)
                if "attention" in what:
                    work[FP32] = work.get(FP32, 0) + maps
                yield check.to_floor(
                    what, spent, work, moved, setting=setting,
                    of_bare=common.ratio(seconds, what, "bare forward")["median"],
                    images_per_s=round(count / min(spent), 1), peak_MiB=_peak(check, runs[what]),
                )  # fmt: skip


def _compiled(blocks: Any, bare: Callable[[], Any], ours: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
    """Both with compiled blocks.

    Capture's hooks lie outside of a block's compiled forward; those of attention statistics would be inside,
    and break the graph.
    """
    forwards = [torch.compile(block.forward) for block in blocks]

    def having(run: Callable[[], Any]) -> Callable[[], None]:
        def go() -> None:
            for block, forward in zip(blocks, forwards, strict=True):
                block.forward = forward
            try:
                run()
            finally:
                for block in blocks:
                    del block.forward

        return go

    return {"bare forward, compiled": having(bare), "capture, compiled": having(ours)}


def _peak(check: Check, run: Callable[[], Any]) -> float | None:
    """The most memory of the device in a run, weights and pictures included."""
    if not check.device.startswith("cuda"):
        return None
    torch.cuda.reset_peak_memory_stats()
    run()
    return round(torch.cuda.max_memory_allocated() / 2**20, 1)


def probes(check: Check) -> Rows:
    """Probes on the device against the CPU and a loop of scikit-learn; the solver against its floor."""
    from sklearn.linear_model import LogisticRegression, RidgeClassifier

    from vitscope.logistic import fit_logistic
    from vitscope.probes import GRID, fit_probes, fit_ridge

    states, images, width, classes = (2, 120, 8, 3) if check.reduced else (13, 5000, 384, 100)
    labels = torch.arange(images) % classes
    noise = check.normal(states, images, width).cpu()
    features = noise + 0.3 * check.normal(classes, width, seed=1).cpu()[labels]
    there, codes = features.to(check.device), labels.to(check.device)
    for what, fit, estimator in (
        ("logistic", fit_probes, lambda l2: LogisticRegression(C=1 / (l2 * images), max_iter=20_000)),
        ("ridge", fit_ridge, lambda l2: RidgeClassifier(alpha=l2 * images)),
    ):
        on_cpu, on_device = fit(features, labels), fit(there, codes)
        gap = on_device.logits(there).argmax(-1).cpu() != on_cpu.logits(features).argmax(-1)
        yield error(f"probes {what}: answers that differ", "CPU", float(gap.double().mean()), 0.01)

        x = (features[-1] - features[-1].mean(0)) / features[-1].std(0, correction=0)

        def one(
            estimator=estimator, x=x
        ) -> Any:  # one state, the middle of the grid: the loop has S·G of these
            return estimator(GRID[len(GRID) // 2]).fit(x.numpy(), labels.numpy())

        seconds = check.seconds({"ours": lambda fit=fit: fit(there, codes), "one of the loop": one})
        loop = [states * len(GRID) * s for s in seconds["one of the loop"]]
        ratio = common.spread([a / b for a, b in zip(loop, seconds["ours"], strict=True)])
        yield common.row(f"probes {what}", "scikit-learn loop on the CPU, from one fit of it", ratio,
                         setting=f"{states} states × {len(GRID)}, {images} × {width}, {classes} classes",
                         seconds=round(min(seconds["ours"]), 4))  # fmt: skip
    x = ((there - there.mean(1, keepdim=True)) / there.std(1, keepdim=True)).float()
    l2 = torch.tensor(GRID, device=check.device).expand(states, -1)
    steps = int(fit_logistic(x, codes, classes, l2).iterations.sum())
    seconds = check.seconds({"fit": lambda: fit_logistic(x, codes, classes, l2)})
    # a step is at least one product for the scores and one for the gradient
    work = steps * 4 * images * width * classes
    moved = steps * 4 * images * width
    yield check.to_floor("logistic solver", seconds["fit"], {FP32: work}, moved, steps=steps)


def training(check: Check) -> Rows:
    """Forward and backward of one batch in bf16: attention fused, written out, and entmax-1.5."""
    import timm

    from vitscope.attention import swap_attention
    from vitscope.pretrain.zoo import Architecture

    if check.reduced:
        small = Architecture(width=16, depth=2, heads=2, num_classes=5)
        cases = [("twin, small", small.build, 64, 4)]
    else:
        twin_b = Architecture(width=128, depth=12, heads=4, num_classes=1291)
        cases = [
            ("twin_b", twin_b.build, 64, 512),
            ("ViT-S/16", lambda: timm.create_model("vit_small_patch16_224"), 224, 128),
        ]
    for name, build, size, batch in cases:
        images = check.normal(batch, 3, size, size)
        runs = {}
        for kind in ("SDPA", "softmax", "entmax15"):
            torch.manual_seed(0)
            model = build().to(check.device).train()
            if kind != "SDPA":
                swap_attention(model, kind)
            runs[kind] = _step(check, model, images)
            if check.compiles and check.left() > 150:
                compiled = build().to(check.device).train()
                if kind != "SDPA":
                    swap_attention(compiled, kind)
                for block in compiled.blocks:
                    block.compile()
                runs[f"{kind}, compiled"] = _step(check, compiled, images)
        shape = gpu_floor.of_model(model)
        seconds = check.seconds(runs)
        # backward: two products for each of the forward's, and what they read and write
        work = {BF16: 3 * batch * gpu_floor.forward_operations(shape)}
        moved = 3 * gpu_floor.forward_bytes(shape, batch, 2)
        for kind, spent in seconds.items():
            base = "softmax, compiled" if "compiled" in kind else "softmax"
            yield check.to_floor(
                f"training step, {kind}", spent, work, moved, setting=f"{name}, bf16, batch {batch}",
                of_softmax=common.ratio(seconds, kind, base)["median"],
            )  # fmt: skip


def _step(check: Check, model: Any, images: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast(images.device.type, BF16):
            out = model(images)
        out.float().square().mean().backward()

    return run


SECTIONS = {f.__name__: f for f in (peaks, entmax, parity, captures, probes, training)}
