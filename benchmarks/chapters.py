"""Seconds for all statistics of chapters 01 and 02 for one backbone, part by part.

    python benchmarks/chapters.py                   twin_s, 2,000 test and 4,000 training images, two threads
    python benchmarks/chapters.py --images 200 --rounds 1
    python benchmarks/chapters.py --backbone twin_b --threads 1

What the chapters compute of a backbone as it is, by the functions they call, on the task of their `course`
profile: no controls, snapshots, figures or record. Pictures are rendered while they are read, and that time
is in the parts that read them. A number of seconds belongs to a machine; the total is therefore given as a
multiple of a bare `forward_features` over the same pictures too, rendering included.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import common
import torch
from threadpoolctl import threadpool_limits

from vitscope import backbones, data, geometry, information, layerwise, phase_report, tradeoff_report
from vitscope.attention_report import map_statistics
from vitscope.data.images import Images

NORM = "none"
RANK_IMAGES = 512
ISI_SHARE = 0.5  # of the test images, for both forms of the index


def bare(backbone: backbones.Backbone, *sets: Images, batch: int = 64) -> None:
    """What no measurement can do without: read the pictures, run the model."""
    with torch.inference_mode():
        for images in sets:
            for start in range(0, len(images), batch):
                pictures = backbone.transform(images.pixels(slice(start, start + batch)))
                backbone.model.forward_features(pictures.to(backbone.device))


class Parts:
    """Seconds by name of a part, in the order in which the parts are first met."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds.setdefault(name, []).append(time.perf_counter() - begin)


def measure(name: str, images: int, seed: int, part: Parts) -> None:
    """Everything once. A later part takes what the parts before it made, as in the chapters."""
    backbone = backbones.load(name, device="cpu")
    train = data.load("emoji_group", "train", limit=2 * images, seed=seed)
    test = data.load("emoji_group", "test", limit=images, seed=seed)
    few, fewer = test.limited(round(ISI_SHARE * images), seed), test.limited(min(RANK_IMAGES, images), seed)
    groups, clusters = train.extras["identity"], test.extras["identity"]
    bare(backbone, train.limited(64, seed))  # opens files and starts threads, which is no part's own time

    with part(f"bare forward of {len(train):,} + {len(test):,} images"):
        bare(backbone, train, test)
    with part("capture: tokens of both parts, attention of the test part"):
        captured = layerwise.capture_all([backbone], train, test, norm=NORM, attention=map_statistics)
        sets = captured[backbone.name]
        seen = {backbone.name: sets["test"]}
    with part(f"effective rank of {len(fewer):,} images"):
        layerwise.capture(backbone, fewer, norm=NORM, reductions=("effective_rank",))
    with part("similarity: means with intervals"):
        layerwise.similarity_table(seen, clusters)
    with part("phases, with their bootstrap"):
        phase_report.detect(seen, clusters)
    with part("probes of all states and tokens"):
        fitted = layerwise.probe_layers(
            sets["train"], sets["test"], groups=groups, clusters=clusters, seed=seed
        )
    with part(f"ISI by reconstruction on {len(few):,} images"):
        found = information.scrambling(backbone, few, norm=NORM, ids=few.extras["identity"], seed=seed)
    with part(f"ISI from attention on {len(few):,} images"):
        information.attention_index(backbone, few)
    with part("neural collapse"):
        geometry.collapse_table(sets["train"], sets["test"], fitted)
    with part("CKA of all pairs of states"):
        geometry.states_cka(sets["test"])
    with part("trade-off, with its bootstrap"):
        tradeoff_report.find({backbone.name: found}, {backbone.name: fitted}, clusters)


def rows(seconds: dict[str, list[float]], setting: str) -> list[dict[str, Any]]:
    """Every part, and the total, as multiples of the bare forward over the same pictures."""
    (unit, bare_seconds), *rest = seconds.items()
    total = [sum(parts) for parts in zip(*(times for _, times in rest), strict=True)]
    made = []
    for name, times in [("all parts", total), *rest]:
        found = common.ratio({"part": times, "unit": bare_seconds}, "part", "unit")
        made.append(
            common.row(
                name, unit, found, setting=setting, better="lower",
                seconds=float(f"{statistics.median(times):.3g}"),
                **{"seconds of the other": float(f"{statistics.median(bare_seconds):.3g}")},
            )
        )  # fmt: skip
    return made


def main() -> None:
    parser = common.parser(__doc__, images=2000, threads=2, rounds=3, seed=0)
    parser.add_argument("--backbone", default="twin_s", help="a model of the zoo, or any that loads")
    args = common.parse(parser, images=60, threads=1, rounds=1)

    part = Parts()
    with threadpool_limits(args.threads or None):
        for _ in range(args.rounds):
            measure(args.backbone, args.images, args.seed, part)
    setting = f"{args.backbone}, {args.images} test images, {args.threads} threads"
    common.write("chapters", rows(part.seconds, setting), args)


if __name__ == "__main__":
    main()
