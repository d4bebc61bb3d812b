"""Images per second of capture against timm's bare forward, and memory against images and depth.

Each ratio is the median over rounds in which the contestants run one after the other on the same batches, so
that a machine that slows down slows them all. Usage:

    python benchmarks/capture.py                    ViT-S/16 at 224 px, random weights
    python benchmarks/capture.py --memory           peak memory: 2,000 and 20,000 images, 12 and 24 blocks
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import torch

from vitscope import backbones
from vitscope.capture import capture


def contestants(backbone, batches):
    """Name -> function that processes all batches once."""
    model, prefix = backbone.model, backbone.num_prefix_tokens

    @torch.inference_mode()
    def bare():
        for batch in batches:
            model.forward_features(batch)

    @torch.inference_mode()
    def intermediates():
        for batch in batches:
            states = model.forward_intermediates(
                batch, output_fmt="NLC", intermediates_only=True, return_prefix_tokens=prefix > 0
            )
            [(s[1][:, 0], s[0].mean(1)) if prefix else s.mean(1) for s in states]

    def run(**options):
        images, size = torch.cat(batches), len(batches[0])
        return lambda: capture(backbone, images, norm="none", batch_size=size, progress=False, **options)

    return {
        "bare forward": bare,
        "timm forward_intermediates + reduce": intermediates,
        "capture, CLS and patch mean": run(reductions=("cls", "patch_mean")),
        "capture, token reductions": run(),
        "capture, with attention statistics": run(attention=True),
    }


def speed(args) -> dict:
    backbone = backbones.load(args.model, weights="random", device=args.device)
    t = backbone.transform
    generator = torch.Generator().manual_seed(0)
    batches = [
        torch.randn(args.batch, 3, t.height, t.width, generator=generator).to(backbone.device)
        for _ in range(args.batches)
    ]
    runs = contestants(backbone, batches)
    for run in runs.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(args.rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    images = args.batch * args.batches
    result = {}
    for name, times in seconds.items():
        ratios = [b / t for b, t in zip(seconds["bare forward"], times, strict=True)]
        result[name] = {
            "images_per_s": round(images / statistics.median(times), 1),
            "ratio": round(statistics.median(ratios), 3),
            "ratio_min": round(min(ratios), 3),
            "ratio_max": round(max(ratios), 3),
        }
        print(f"{name:38s} {result[name]['images_per_s']:8.1f} images/s   ratio {result[name]['ratio']:.3f} "
              f"({result[name]['ratio_min']:.3f}–{result[name]['ratio_max']:.3f})")  # fmt: skip
    return result


def memory_child(images: int, depth: int) -> None:
    """Peak memory of one capture beyond what it returns, in MiB; run as a process, whose own peak it is."""
    import numpy as np
    import timm

    from vitscope.data.images import Images
    from vitscope.transforms import Transform

    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=depth, num_classes=0)
    backbone = backbones.describe("tiny", model, Transform(32, 32, (0.5,) * 3, (0.5,) * 3))
    labels = np.zeros(images, dtype=np.int64)

    def read(indices):
        return torch.zeros(len(indices), 3, 32, 32, dtype=torch.uint8)

    data = Images("zeros", "test", labels, np.arange(images).astype(str), ("one",), "", {}, read)
    capture(backbone, data.select(range(256)), norm="none", batch_size=64, attention=True)  # warm up
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kept = capture(backbone, data, norm="none", batch_size=64, attention=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tensors = [kept.cls, kept.patch_mean, *kept.per_image.values(), *kept.attention.values()]
    returned = sum(t.numel() * t.element_size() for t in tensors) / 2**20
    print(json.dumps({"images": images, "depth": depth,
                      "peak_mib": peak / 2**10, "before_mib": before / 2**10,
                      "returned_mib": returned, "beyond_mib": peak / 2**10 - returned}))  # fmt: skip


def memory() -> list[dict]:
    rows = []
    for images, depth in ((2_000, 12), (20_000, 12), (2_000, 24), (20_000, 24)):
        command = [sys.executable, __file__, "--child", str(images), str(depth)]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        r = rows[-1]
        print(f"{images:6d} images, {depth} blocks: returned {r['returned_mib']:7.1f} MiB, "
              f"peak beyond it {r['beyond_mib']:7.1f} MiB")  # fmt: skip
    base = rows[0]["beyond_mib"]
    print("largest deviation from the first row: "
          f"{max(abs(r['beyond_mib'] / base - 1) for r in rows):.1%}")  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory", action="store_true", help="measure memory instead of speed")
    parser.add_argument("--json", help="write the results here")
    parser.add_argument("--child", nargs=2, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        memory_child(*args.child)
        return
    result = memory() if args.memory else speed(args)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(
                {"torch": torch.__version__, "threads": torch.get_num_threads(), "result": result},
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()
