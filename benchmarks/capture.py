"""Images per second of capture against a bare forward, and against what others offer.

    make peers                              once: ViT-Prisma, beside our own torch; without it its rows say so
    python benchmarks/capture.py            ViT-S/16 at 224 px with 12 and with 24 blocks, random weights
    python benchmarks/capture.py --quick --no-peers

All contestants share one set of weights and run in turn on the same batches. A peer's own bare forward may be
slower or faster than timm's, so what reading its states costs is told against that, too. At equal outputs
means: the same reductions of the same states, and the same statistics of every attention map; how far the
numbers differ is in the row. timm's `forward_intermediates` gives L states, the others L + 2.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import common
import torch
from torch import Tensor

from vitscope import backbones
from vitscope.attention_maps import Geometry
from vitscope.capture import capture
from vitscope.transforms import Transform

import capture_peers as peers  # isort: skip

BARE = "timm, bare forward_features"
TOKENS = "capture, token reductions"
MAPS = "capture, with attention statistics"
INTERMEDIATES = "timm forward_intermediates, same reductions"
VISION, VISION_BARE = "torchvision create_feature_extractor, same reductions", "torchvision, bare forward"
PRISMA_BARE = "ViT-Prisma, bare forward"
PRISMA = {
    "states": "ViT-Prisma run_with_cache of the states, same reductions",
    "states and maps": "ViT-Prisma run_with_cache of states and maps, same reductions and statistics",
    "everything": "ViT-Prisma run_with_cache of everything, same reductions and statistics",
}

Runs = dict[str, Callable[[], Any]]


def ours(backbone: backbones.Backbone, batches: list[Tensor]) -> Runs:
    images, size = torch.cat(batches), len(batches[0])

    def run(**options: Any) -> Callable[[], Any]:
        return lambda: capture(backbone, images, norm="none", batch_size=size, progress=False, **options)

    return {
        "capture, CLS and patch mean": run(reductions=("cls", "patch_mean")),
        TOKENS: run(),
        MAPS: run(attention=True),
    }


def each(batches: list[Tensor], work: Callable[[Tensor], Any]) -> Callable[[], Any]:
    """All batches once, without gradients; the last one's result."""

    @torch.inference_mode()
    def run() -> Any:
        for batch in batches:
            found = work(batch)
        return found

    return run


def contestants(backbone: backbones.Backbone, batches: list[Tensor], with_peers: bool) -> Runs:
    """Name -> function that processes all batches once."""
    source = backbone.model
    runs: Runs = {
        BARE: each(batches, source.forward_features),
        INTERMEDIATES: each(batches, lambda x: peers.reduced(peers.intermediates(source, x))),
        **ours(backbone, batches),
    }
    vision = peers.torchvision_twin(source).to(backbone.device)
    extract = peers.extractor(vision)
    runs[VISION_BARE] = each(batches, vision)
    runs[VISION] = each(batches, lambda x: peers.reduced(extract(x)))
    if with_peers:
        runs |= prisma_runs(backbone, batches)
    return runs


def prisma_runs(backbone: backbones.Backbone, batches: list[Tensor]) -> Runs:
    twin, depth = peers.prisma_twin(backbone.model).to(backbone.device), backbone.depth
    geometry = Geometry(backbone.grid, backbone.num_prefix_tokens, backbone.has_cls, backbone.device)

    def run(keep: str) -> Callable[[Tensor], Any]:
        def work(batch: Tensor) -> Any:
            cache = peers.prisma_cache(twin, batch, keep)
            states = peers.reduced(peers.prisma_states(cache, depth))
            if keep == "states":
                return states, []
            return states, [peers.map_statistics(a, geometry) for a in peers.prisma_maps(cache, depth)]

        return work

    return {PRISMA_BARE: each(batches, twin), **{PRISMA[k]: each(batches, run(k)) for k in PRISMA}}


def difference(kept: Any, states: list[dict[str, Tensor]], maps: list[dict[str, Tensor]]) -> float:
    """The largest difference to what capture kept of the last images, in units of each largest value."""
    worst = 0.0
    named = {"cls": kept.cls, "patch_mean": kept.patch_mean, **kept.per_image}
    pairs = [
        (named[name][len(named[name]) - len(states) + i], value)
        for i, row in enumerate(states)
        for name, value in row.items()
    ]
    pairs += [(kept.attention[name][i], value) for i, row in enumerate(maps) for name, value in row.items()]
    for own, other in pairs:
        own = own[-len(other) :]
        worst = max(worst, float((own - other.cpu()).abs().max() / own.abs().max()))
    return float(f"{worst:.1e}")


def measure(depth: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one depth."""
    source = peers.model(depth, args.image).to(args.device)
    backbone = backbones.describe(
        f"vit_{depth}", source, Transform(args.image, args.image, (0.5,) * 3, (0.5,) * 3)
    )
    generator = torch.Generator().manual_seed(0)
    batches = [
        torch.randn(args.batch, 3, args.image, args.image, generator=generator).to(args.device)
        for _ in range(args.batches)
    ]
    with_peers = args.peers and peers.prisma_found()
    runs = contestants(backbone, batches, with_peers)
    kept = runs[MAPS]()
    apart = {INTERMEDIATES: difference(kept, runs[INTERMEDIATES](), []),
             VISION: difference(kept, runs[VISION](), [])}  # fmt: skip
    if with_peers:
        apart |= {name: difference(kept, *runs[name]()) for name in PRISMA.values()}
    del kept
    seconds = common.alternate(runs, args.rounds, device=args.device)
    images = args.batch * args.batches
    setting = f"ViT-S/16, {args.image} px, {depth} blocks, batches of {args.batch}"

    def line(what: str, against: str, target: float | None = None) -> dict[str, Any]:
        """How many times as fast `what` is as `against`."""
        values: dict[str, Any] = {"images/s": round(images / statistics.median(seconds[what]), 2)}
        values["images/s of the other"] = round(images / statistics.median(seconds[against]), 2)
        found = apart.get(against if what in (TOKENS, MAPS) else what)
        if found is not None:
            values["largest relative difference"] = found
        ratio = common.ratio(seconds, against, what)
        return common.row(what, against, ratio, setting=setting, target=target, **values)

    rows = [
        line("capture, CLS and patch mean", BARE),
        line(TOKENS, BARE, 0.95),
        line(MAPS, BARE, 0.75),
        line(INTERMEDIATES, BARE),
        line(TOKENS, INTERMEDIATES),
        line(VISION, VISION_BARE),
        line(TOKENS, VISION),
    ]
    if not with_peers:
        why = peers.HOW_TO_GET if args.peers else "--no-peers"
        return [
            *rows,
            common.absent(MAPS, PRISMA["states and maps"], why, setting=setting, target=1.5),
            common.absent(MAPS, PRISMA["everything"], why, setting=setting, target=1.5),
        ]
    return [
        *rows,
        line(PRISMA_BARE, BARE),
        *(line(name, PRISMA_BARE) for name in PRISMA.values()),
        line(TOKENS, PRISMA["states"]),
        line(MAPS, PRISMA["states and maps"], 1.5),
        line(MAPS, PRISMA["everything"], 1.5),
    ]


def main() -> None:
    parser = common.parser(__doc__, image=224, batch=16, batches=2, rounds=7, threads=0)
    parser.add_argument("--depths", type=int, nargs="+", default=[12, 24])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave ViT-Prisma out")
    args = common.parse(parser, image=32, batch=4, batches=1, rounds=2, depths=[2])
    if args.peers:
        common.under("peers")
    rows = [row for depth in args.depths for row in measure(depth, args)]
    common.write("capture", rows, args)


if __name__ == "__main__":
    main()
