"""Peak memory of capture against images and depth, and of what others offer, a process each.

    make peers                                  once: ViT-Prisma; without it its rows say so
    python benchmarks/capture_memory.py         2,000 and 20,000 images, 12 and 24 blocks
    python benchmarks/capture_memory.py --quick --no-peers

The model is small (64 wide, 65 tokens) so that arrays, not weights, are what grows. `beyond` is the most
that the process held, less the results it returns: interpreter and libraries are in it. `working` leaves them
out: it counts from what was held before the first picture. Peers reduce every batch at once, as we do, unless
their name says that they keep the tokens of all images, as their plain use does. Needs a Unix (`resource`).
"""

import argparse
import json
import resource
import sys
from collections.abc import Callable
from typing import Any

import common
import numpy as np
import torch
from torch import Tensor

from vitscope import backbones
from vitscope.attention_maps import Geometry
from vitscope.capture import capture
from vitscope.data.images import Images
from vitscope.transforms import Transform

import capture_peers as peers  # isort: skip

SIZE, BATCH = 32, 64
OURS = "capture, with attention statistics"
TIMM, TIMM_ALL = (
    "timm forward_intermediates, reduced batch by batch",
    "timm forward_intermediates, tokens kept",
)
PRISMA = "ViT-Prisma run_with_cache of everything, reduced batch by batch"
PRISMA_MAPS = "ViT-Prisma run_with_cache of states and maps, reduced batch by batch"
_UNIT = 2**20 if sys.platform == "darwin" else 2**10  # of ru_maxrss, in MiB


def peak() -> float:
    """The most this process has held, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _UNIT


def zeros(count: int) -> Images:
    """Pictures that take no memory of their own."""

    def read(indices: Any) -> Tensor:
        return torch.zeros(len(indices), 3, SIZE, SIZE, dtype=torch.uint8)

    names = np.arange(count).astype(str)
    return Images("zeros", "test", np.zeros(count, dtype=np.int64), names, ("one",), "", {}, read)


def mib(tensors: list[Tensor]) -> float:
    return sum(t.numel() * t.element_size() for t in tensors) / 2**20


def captured(backbone: backbones.Backbone, count: int) -> float:
    kept = capture(backbone, zeros(count), norm="none", batch_size=BATCH, attention=True, progress=False)
    return mib([kept.cls, kept.patch_mean, *kept.per_image.values(), *kept.attention.values()])


def by_batch(
    backbone: backbones.Backbone, count: int, work: Callable[[Tensor], list[dict[str, Tensor]]]
) -> float:
    """MiB of results, which lie in arrays allocated once, as capture's do."""
    images, held = zeros(count), {}
    for start in range(0, count, BATCH):
        batch = backbone.transform(images.pixels(slice(start, start + BATCH)))
        for number, found in enumerate(work(batch)):
            for name, value in found.items():
                key = number, name
                if key not in held:
                    held[key] = torch.empty(count, *value.shape[1:])
                held[key][start : start + len(value)] = value
    return mib(list(held.values()))


def prepared(what: str, depth: int) -> Callable[[int], float]:
    """A function of a number of images that gives MiB of results; all models are made here."""
    source = peers.model(depth, SIZE, patch=4, width=64, heads=4)
    backbone = backbones.describe("small", source, Transform(SIZE, SIZE, (0.5,) * 3, (0.5,) * 3))
    geometry = Geometry(backbone.grid, backbone.num_prefix_tokens, backbone.has_cls, backbone.device)
    if what == OURS:
        return lambda count: captured(backbone, count)
    if what == TIMM:
        return lambda count: by_batch(
            backbone, count, lambda x: peers.reduced(peers.intermediates(source, x))
        )
    if what == TIMM_ALL:
        return lambda count: by_batch(
            backbone, count, lambda x: [{"tokens": t} for _, _, t in peers.intermediates(source, x)]
        )
    twin, keep = peers.prisma_twin(source), "everything" if what == PRISMA else "states and maps"

    def work(batch: Tensor) -> list[dict[str, Tensor]]:
        cache = peers.prisma_cache(twin, batch, keep)
        rows = peers.reduced(peers.prisma_states(cache, depth))
        return rows + [peers.map_statistics(a, geometry) for a in peers.prisma_maps(cache, depth)]

    return lambda count: by_batch(backbone, count, work)


@torch.inference_mode()
def measure_here(what: str, images: int, depth: int, threads: int) -> dict[str, float]:
    """Peak memory of one pass; this process does nothing else."""
    if threads:
        torch.set_num_threads(threads)
    run = prepared(what, depth)
    before = peak()
    returned = run(images)
    # tokens that are kept are no results: without reductions they are only on the way to them
    results = 0.0 if what == TIMM_ALL else returned
    return {"peak": peak(), "returned": results, "beyond": peak() - results,
            "working": peak() - before - results}  # fmt: skip


def compare(what: str, cases: list[tuple[int, int]], target: float | None, threads: int) -> list[dict]:
    """One process for each number of images and depth, each told against the first."""
    found = {case: common.child(__file__, "--child", what, *case, threads) for case in cases}
    first, *others = cases
    rows = []
    for case in others:
        values = {f"{name} MiB": round(found[case][name], 1) for name in ("beyond", "working", "returned")}
        values |= {f"{name} MiB of the first": round(found[first][name], 1) for name in ("beyond", "working")}
        row = common.row(
            f"{what}: {case[0]:,} images, {case[1]} blocks",
            f"{first[0]:,} images, {first[1]} blocks",
            common.spread([found[case]["beyond"] / found[first]["beyond"]]),
            setting=f"64 wide, 65 tokens, batches of {BATCH}; beyond the results",
            target=target,
            better="lower",
            **values,
        )
        rows.append(row)
    return rows


def main() -> None:
    parser = common.parser(__doc__, few=2_000, many=20_000, threads=0)
    parser.add_argument("--depths", type=int, nargs=2, default=[12, 24])
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave ViT-Prisma out")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = common.parse(parser, few=64, many=192, depths=[1, 2])
    if args.child:
        what, *numbers = args.child
        print(json.dumps(measure_here(what, *map(int, numbers))))
        return
    if args.peers:
        common.under("peers")
    (shallow, deep), few, many = args.depths, args.few, args.many
    rows = compare(OURS, [(few, shallow), (many, shallow), (few, deep), (many, deep)], 1.05, args.threads)
    grown = [(few, shallow), (few, deep)]
    rows += compare(TIMM, grown, None, args.threads)
    rows += compare(TIMM_ALL, [(few // 2, shallow), (few, shallow), (few, deep)], None, args.threads)
    if args.peers and peers.prisma_found():
        rows += compare(PRISMA_MAPS, [*grown, (many, shallow)], None, args.threads)
        rows += compare(PRISMA, grown, None, args.threads)
    else:
        why = peers.HOW_TO_GET if args.peers else "--no-peers"
        rows.append(common.absent(PRISMA, "itself, fewer blocks", why))
    common.write("capture_memory", rows, args)


if __name__ == "__main__":
    main()
