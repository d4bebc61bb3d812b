"""Seconds for all statistics of chapters 01 and 02 for one backbone, part by part.

    python benchmarks/chapters.py                   twin_s, 2,000 test and 4,000 training images, two threads
    python benchmarks/chapters.py --images 200      a quick look
    python benchmarks/chapters.py --backbone twin_b --threads 1

What the chapters compute of a backbone as it is, by the functions they call, on the task of their `course`
profile: no controls, snapshots, figures or record. Pictures are rendered while they are read, and that time
is in the parts that read them. A number of seconds belongs to a machine; the total is therefore given as a
multiple of a bare `forward_features` over the same pictures too, rendering included.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
    backbone = backbones.load(name)
    train = data.load("emoji_group", "train", limit=2 * images, seed=seed)
    test = data.load("emoji_group", "test", limit=images, seed=seed)
    few, fewer = test.limited(round(ISI_SHARE * images), seed), test.limited(min(RANK_IMAGES, images), seed)
    groups, clusters = train.extras["identity"], test.extras["identity"]
    bare(backbone, train.limited(64, seed))  # opens files and starts threads, which is no part's own time

    with part(f"bare forward of {len(train):,} + {len(test):,} images (not in the total)"):
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


def report(seconds: dict[str, list[float]], say: Callable[[str], None]) -> None:
    """A line for each part, then the total."""
    middle = {name: statistics.median(times) for name, times in seconds.items()}
    (first, unit), *rest = middle.items()
    total = sum(value for _, value in rest)
    say(f"{first:<64} {unit:7.2f} s")
    for name, value in rest:
        say(f"{name:<64} {value:7.2f} s {value / total:6.1%}")
    say(f"{'total':<64} {total:7.2f} s, {total / unit:.1f} times the bare forward")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", default="twin_s", help="a model of the zoo, or any that loads")
    parser.add_argument("--images", type=int, default=2000, help="test images; twice as many train probes")
    for name, value in (("threads", 2), ("rounds", 1), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    part = Parts()
    with threadpool_limits(args.threads):
        for _ in range(args.rounds):
            measure(args.backbone, args.images, args.seed, part)
    print(f"{args.backbone}, {args.threads} threads, median of {args.rounds}")
    report(part.seconds, print)


if __name__ == "__main__":
    main()
