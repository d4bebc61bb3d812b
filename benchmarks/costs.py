"""How cost grows with the work, and the unit costs from which larger work can be computed.

    python benchmarks/costs.py            one thread, about five minutes
    python benchmarks/costs.py --quick    tiny sizes, for the tests: its numbers say nothing

Writes `results/costs.json`, from which the book's page "Toward scale" is made. Sizes take turns; each round
gives one exponent b of cost ∝ size^b (`vitscope.growth`), and a row its median and range. A unit cost belongs
to one core of the machine it was measured on. Pictures are noise and weights random, on which no cost here
depends, except the number of the probes' iterations: their features are planted, clearer with depth.
"""

import argparse
import io
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import timm
import torch
from common import alternate, row, spread, write
from PIL import Image
from probes import planted
from safetensors.torch import load_file, save_file
from threadpoolctl import threadpool_limits

from vitscope import backbones
from vitscope.capture import capture
from vitscope.cost import layer_costs
from vitscope.data.images import Images, decode
from vitscope.features import features
from vitscope.fusion import AttentiveLayerFusion, SelectionBudget, VFusion
from vitscope.growth import exponents
from vitscope.metrics.scrambling import isi_reconstruction
from vitscope.probes import fit_probes, fit_ridge
from vitscope.scale import ATTENTION_SHARE, MEASURED, VECTORS
from vitscope.transforms import Transform

Rows = list[dict[str, Any]]
Work = dict[int, Callable[[], Any]]
EPOCHS = 3
CLASSES = 10
HALF = (0.5,) * 3

FULL: dict[str, Any] = {
    "images": (64, 128, 256, 512), "layers": (3, 6, 12, 24), "widths": (64, 128, 256, 512), "batch": 16,
    "sides": (8, 12, 16, 24, 32),
    "units": {"ViT-S/16": "vit_small_patch16_224", "ViT-B/16": "vit_base_patch16_224"},
    "probe_images": (1000, 2000, 4000, 8000), "probe_states": (2, 4, 8, 16),
    "probe_classes": (5, 10, 20, 40, 80), "probe_widths": (64, 128, 256),
    "fusion_images": (1000, 2000, 4000), "fusion_states": (3, 6, 12, 24), "isi_images": (200, 400, 800),
    "memory_capture": (1000, 4000, 16_000), "memory_probes": (16_000, 32_000, 64_000), "pictures": 200,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "images": (4, 8), "layers": (1, 2), "widths": (32, 64), "batch": 2, "sides": (4, 8),
    "units": {"tiny": "vit_tiny_patch16_224"}, "probe_images": (100, 200), "probe_states": (1, 2),
    "probe_classes": (2, 4), "probe_widths": (16, 32), "fusion_images": (100, 200), "fusion_states": (2, 4),
    "isi_images": (40, 80), "memory_capture": (128, 256), "memory_probes": (16_000, 32_000), "pictures": 4,
}  # fmt: skip


def grown(
    what: str, against: str, work: Work, rounds: int, setting: str, expected: str
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """One row with the exponent of seconds over the sizes, and the seconds. One round means a quick look."""
    seconds = alternate({str(size): run for size, run in work.items()}, rounds, warm_up=rounds > 1)
    by_size = {size: seconds[str(size)] for size in work}
    line = row(
        what, against, spread(exponents(by_size)), setting=setting, unit="exponent", expected=expected,
        at_the_end=spread(exponents(by_size, last=2))["median"], sizes=f"{min(work):,} to {max(work):,}",
        seconds=spread(by_size[max(work)])["median"],
    )  # fmt: skip
    return line, seconds


def unit(what: str, of: str, values: list[float], measure: str, setting: str, **more: Any) -> dict[str, Any]:
    """One row with what a unit of work takes: the less, the better."""
    return row(what, of, spread(values), setting=setting, unit=measure, better="lower", **more)


def tiny(width: int = 128, depth: int = 6, side: int = 8) -> backbones.Backbone:
    """A ViT of random weights with side² tokens beside CLS, and heads of width 32."""
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=4 * side, patch_size=4, embed_dim=width, depth=depth,
        num_heads=width // 32, num_classes=0,
    )  # fmt: skip
    name = f"{width} wide, {depth} blocks"
    return backbones.describe(name, model, Transform(4 * side, 4 * side, HALF, HALF))


def zeros(count: int) -> Images:
    """Black pictures of 32 pixels."""
    labels, ids = np.zeros(count, dtype=np.int64), np.arange(count).astype(str)

    def read(indices: np.ndarray) -> torch.Tensor:
        return torch.zeros(len(indices), 3, 32, 32, dtype=torch.uint8)

    return Images("zeros", "test", labels, ids, ("one",), "", {}, read)


def captured(backbone: backbones.Backbone, images: int, attention: bool = False) -> Callable[[], Any]:
    t = backbone.transform
    pictures = torch.randn(images, 3, t.height, t.width)
    options: dict[str, Any] = {"norm": "none", "batch_size": 64, "progress": False}
    return lambda: capture(backbone, pictures, attention=attention, **options)


def of_capture(size: dict[str, Any], rounds: int) -> Rows:
    """Images, layers, width, tokens with and without attention statistics; seconds a GFLOP at 224 pixels."""
    few, rows = size["batch"], []
    model = tiny()
    for against, work, setting, expected in (
        ("images", {n: captured(model, n) for n in size["images"]}, "6 blocks, width 128", "1"),
        ("layers", {n: captured(tiny(depth=n), 4 * few) for n in size["layers"]}, "width 128", "1"),
        ("width", {n: captured(tiny(n, 4), 2 * few) for n in size["widths"]}, "4 blocks", "1 to 2"),
    ):
        setting += ", 65 tokens, token reductions"
        rows.append(grown("capture", against, work, rounds, setting, expected)[0])
    seconds, setting = [], "4 blocks, width 128, 4 heads"
    for name, attention in (("capture", False), ("capture with attention statistics", True)):
        runs = {n * n + 1: captured(tiny(128, 4, n), few, attention) for n in size["sides"]}
        line, found = grown(name, "tokens", runs, rounds, setting, "1 to 2")
        rows.append(line)
        seconds.append(found)
    for tokens, all_of_it in seconds[1].items():
        share = [1 - a / b for a, b in zip(seconds[0][tokens], all_of_it, strict=True)]
        rows.append(unit(ATTENTION_SHARE, f"{int(tokens):,} tokens", share, "share", setting))
    for name, architecture in size["units"].items():
        made = timm.create_model(architecture, num_classes=0)
        whole = backbones.describe(name, made, Transform(224, 224, HALF, HALF))
        gflops, count = float(layer_costs(whole)["gflops"].sum()), few // 2
        each = [s / count / gflops for s in alternate({name: captured(whole, count)}, rounds)[name]]
        setting = "224 pixels, float32, token reductions, one core"
        more = {"gflops_per_image": round(gflops, 2)}
        rows.append(unit(MEASURED["seconds_per_gflop"], name, each, "s / GFLOP", setting, **more))
    return rows


def of_probes(size: dict[str, Any], rounds: int) -> Rows:
    """Logistic probes with the grid of seven strengths; ridge beside them."""
    few = size["probe_images"][1]

    def fit(images: int = few, states: int = 4, width: int = 128, classes: int = CLASSES, how=fit_probes):
        x, labels = planted(states, images, width, classes, 0)
        return lambda: how(x, labels)

    rows, basis = [], f"4 states, {few:,} images, width 128, {CLASSES} classes, but for what grows"
    for against, work in (
        ("states", {n: fit(states=n) for n in size["probe_states"]}),
        ("classes", {n: fit(classes=n) for n in size["probe_classes"]}),
        ("width", {n: fit(width=n) for n in size["probe_widths"]}),
        ("images", {n: fit(n) for n in size["probe_images"]}),
    ):
        line, seconds = grown("logistic probes", against, work, rounds, basis, "1")
        rows.append(line)
    work = {n: fit(n, how=fit_ridge) for n in size["probe_images"]}
    rows.append(grown("ridge probes", "images", work, rounds, basis, "1")[0])
    most = size["probe_images"][-1]
    each = [s / (most * 4 * CLASSES * 128) for s in seconds[str(most)]]
    setting = f"4 states, {most:,} images, width 128, {CLASSES} classes, seven strengths, one core"
    rows.append(unit(MEASURED["probe_seconds"], "image × state × class × feature", each, "s", setting))
    return rows


def of_fusion(size: dict[str, Any], rounds: int) -> Rows:
    """Four configurations of each head and the refit; no least number of updates, which would hide growth."""
    budget, rows = SelectionBudget(epochs=EPOCHS, steps=1), []
    few, most = size["fusion_images"][0], size["fusion_images"][-1]

    def fit(head: Any, states: int, images: int) -> Callable[[], Any]:
        x, labels = planted(states, images, 128, CLASSES, 0)
        return lambda: head(budget=budget).fit(x, None, labels)

    for name, head in (("VFusion", VFusion), ("attentive fusion", AttentiveLayerFusion)):
        setting = f"{few:,} images of width 128, {EPOCHS} epochs"
        work = {n: fit(head, n, few) for n in size["fusion_states"]}
        rows.append(grown(name, "states", work, rounds, setting, "1" if head is VFusion else "1 to 2")[0])
        setting = f"12 states of width 128, {EPOCHS} epochs"
        work = {n: fit(head, 12, n) for n in size["fusion_images"]}
        line, seconds = grown(name, "images", work, rounds, setting, "1")
        each = [s / (most * 12 * EPOCHS) for s in seconds[str(most)]]
        setting = f"{most:,} images of 12 states, width 128, 4 configurations and the refit, one core"
        rows += [line, unit(f"{name}, fit", "image × state × epoch", each, "s", setting)]
    return rows


def of_scrambling(size: dict[str, Any], rounds: int) -> Rows:
    """The reconstruction form on two states of 64 patches of width 64."""
    most = size["isi_images"][-1]
    patches = torch.randn(most, 64, 64, generator=torch.Generator().manual_seed(0))
    states = [patches, patches.roll(1, dims=1)]

    def index(images: int) -> Callable[[], Any]:
        return lambda: isi_reconstruction([s[:images] for s in states], patches[:images], states=[0, 1])

    setting = "2 states, 64 patches of width 64, intervals included, one core"
    work = {n: index(n) for n in size["isi_images"]}
    line, seconds = grown("ISI by reconstruction", "images", work, rounds, setting, "1")
    each = [s / (2 * most * 64) for s in seconds[str(most)]]
    return [line, unit("ISI by reconstruction, fit", "image × state × patch", each, "s", setting)]


def of_storage(size: dict[str, Any], rounds: int) -> Rows:
    """Bytes as the feature cache writes them, and the same tensors in float16; reading of a JPEG."""
    backbone, count, rows = tiny(384, 4), size["images"][-1], []
    with tempfile.TemporaryDirectory() as folder:
        features(backbone, zeros(count), norm="none", folder=Path(folder))
        written = next(Path(folder).rglob("*.safetensors"))
        half = Path(folder) / "half.safetensors"
        save_file({k: v.half() for k, v in load_file(written).items() if v.is_floating_point()}, half)
        for name, path, item in (("float32", written, 4), ("float16", half, 2)):
            each = path.stat().st_size / (count * len(backbone.states) * VECTORS * 384)
            of, setting = (
                "image × state × vector × feature",
                f"{count:,} images, CLS and mean patch, width 384",
            )
            rows.append(unit(f"features on disk, {name}", of, [each], "bytes", setting, arithmetic=item))
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    grain = np.asarray(coarse.resize((500, 375)), dtype=float) + rng.normal(0, 12, (375, 500, 3))
    file, count = io.BytesIO(), size["pictures"]
    Image.fromarray(grain.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    data, transform = file.getvalue(), Transform(224, 224, HALF, HALF, crop_pct=0.9)

    def read() -> None:
        for _ in range(count):
            transform(decode(data, "planted")[None])

    each = [s / count for s in alternate({"read": read}, rounds)["read"]]
    setting = "JPEG of 500 × 375 by Pillow, resized, cropped, normalised, one core"
    return [*rows, unit(MEASURED["decode_seconds"], "image", each, "s", setting, jpeg_bytes=len(data))]


def of_memory(size: dict[str, Any], rounds: int) -> Rows:
    """Peaks of a process each: capture less its results, and a probe fit in multiples of its features."""
    rows = []
    for kind, key, expected in (("capture", "capture", "0"), ("logistic probes", "probes", "1")):
        sizes = size[f"memory_{key}"]
        peaks = {n: _peak(key, n) for n in sizes}
        last = peaks[sizes[-1]]
        found = spread(exponents({n: [peak["bytes"]] for n, peak in peaks.items()}))
        more = {"sizes": f"{sizes[0]:,} to {sizes[-1]:,}", "mib": round(last["bytes"] / 2**20)}
        setting = last["setting"]
        rows.append(row(f"memory of {kind}", "images", found, setting=setting, unit="exponent",
                        expected=expected, **more))  # fmt: skip
    multiple = [last["bytes"] / last["features"]]
    return [*rows, unit(MEASURED["probe_memory"], "bytes of features", multiple, "multiples", setting)]


def _peak(kind: str, images: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", kind, str(images)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def memory_child(kind: str, images: int) -> None:
    """Prints bytes at the peak: of a process with a capture, less its results; of a fit with its features."""
    if kind == "capture":
        kept = capture(tiny(), zeros(images), norm="none", batch_size=64, progress=False)
        tensors = [kept.cls, kept.patch_mean, *kept.per_image.values()]
        returned = sum(t.numel() * t.element_size() for t in tensors if t is not None)
        found = {"bytes": _most_held() - returned, "setting": "batches of 64, the process less its results"}
    else:
        fit_probes(torch.randn(4, 200, 128), torch.arange(200) % CLASSES)  # what libraries take at first
        before = psutil.Process().memory_info().rss
        labels = torch.arange(images) % CLASSES
        x = torch.randn(4, images, 128, generator=torch.Generator().manual_seed(0))
        x[:, torch.arange(images), labels] += 3.0
        fit_probes(x, labels)
        setting = f"4 states, width 128, {CLASSES} classes, features included"
        found = {"bytes": _most_held() - before, "features": 4 * x.numel(), "setting": setting}
    print(json.dumps(found))


def _most_held() -> int:
    """Bytes at the peak. Linux hands `ru_maxrss` of a large parent on to its children, but not this."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    for line in lines:
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


PARTS = {
    "capture": of_capture, "probes": of_probes, "fusion": of_fusion, "scrambling": of_scrambling,
    "storage": of_storage, "memory": of_memory,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes; written only with --json")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="only these; written only with --json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="unit costs are those of this many cores")
    parser.add_argument("--json", help="where to write, if not results/costs.json")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.child:
        memory_child(args.child[0], int(args.child[1]))
        return
    rows: Rows = []
    with threadpool_limits(args.threads):
        for name in args.parts or PARTS:
            rows += PARTS[name](QUICK if args.quick else FULL, 1 if args.quick else args.rounds)
    if args.json or not (args.quick or args.parts):
        print(write("costs", rows, args))


if __name__ == "__main__":
    main()
