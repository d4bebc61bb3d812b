"""What a study of all states of a Vision Transformer costs at a size that nobody has tried here.

From a plan (how many images, which backbone, how many classes), unit costs that were measured and a site that
is assumed, to operations, hours, bytes, and the number of images at which each limit is reached. Everything
is a product of counts: what grows faster than its work, or waits, is not in it. A GB is 10⁹ bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

HOUR, DAY = 3600.0, 86400.0
Kept = Literal["vectors", "tokens"]
"""CLS and mean patch token of every state, or all tokens of every state."""
VECTORS = 2
TOKEN_BUDGET = 1 << 30
"""Bytes of tokens that the scrambling index holds at once, as in `vitscope.information`."""


@dataclass(frozen=True)
class Vit:
    """A plain ViT with CLS. Counts are of one image; states are −1, 0, 1 … `depth`."""

    name: str
    width: int
    depth: int
    patch: int = 16
    size: int = 224
    mlp_ratio: int = 4

    @property
    def patches(self) -> int:
        return (self.size // self.patch) ** 2

    @property
    def tokens(self) -> int:
        return self.patches + 1

    @property
    def states(self) -> int:
        return self.depth + 2

    @property
    def macs(self) -> int:
        """Multiply–adds of the patch embedding and all blocks: matrix products alone, no head.

            P·3p²·D  +  L·(4·T·D² + 2·T²·D + 2·T·D·M),      M = mlp_ratio · D

        Papers often call these FLOPs: their "17.6 GFLOPs" of ViT-B/16 are multiply–adds.
        """
        t, d = self.tokens, self.width
        block = 4 * t * d * d + 2 * t * t * d + 2 * t * d * self.mlp_ratio * d
        return self.patches * 3 * self.patch**2 * d + self.depth * block

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiply–add is two, as in data sheets and `vitscope.cost`."""
        return 2 * self.macs

    def bytes_kept(self, kept: Kept, item: int) -> int:
        """Bytes of one image's features at all states, `item` bytes a number."""
        rows = VECTORS if kept == "vectors" else self.tokens
        return self.states * rows * self.width * item


VITS = (Vit("ViT-S/16", 384, 12), Vit("ViT-B/16", 768, 12), Vit("ViT-L/16", 1024, 24))


@dataclass(frozen=True)
class Site:
    """The machines of a plan. All of it is assumed, and to be replaced by your own."""

    gpu_peak: float = 312e12
    """FLOP/s of one GPU in bfloat16, dense (the data sheet of NVIDIA's A100)"""
    gpu_peak_float32: float = 19.5e12
    """FLOP/s of the same GPU in float32, the type in which backbones are loaded"""
    utilisation: tuple[float, float] = (0.3, 0.5)
    """share of a peak which a forward pass reaches, low and high, where no GPU was measured"""
    cores: int = 64
    """CPU cores of a node"""
    cores_per_gpu: int = 16
    """CPU cores beside each GPU"""
    memory: float = 512e9
    """bytes of memory of a node"""
    disk: float = 10e12
    """bytes of disk for features"""
    files: float = 1e6
    """files that one may have, a common quota of shared file systems"""
    network: float = 1.25e9
    """bytes/s from storage to a node: 10 Gbit/s"""
    image_bytes: float = 115e3
    """bytes of a JPEG, as ImageNet's training part has them on average"""
    gpu_hours_between_failures: float = 50_000.0
    """GPU-hours for each unexpected interruption, near those of Llama 3's training"""


@dataclass(frozen=True)
class UnitCosts:
    """What was measured, on one core unless it says otherwise; None or empty where it was not."""

    seconds_per_gflop: float | None = None
    decode_seconds: float | None = None
    probe_seconds: float | None = None
    """a logistic probe with its grid, for each image × state × class × feature"""
    probe_memory: float | None = None
    """peak memory of a probe fit in multiples of its features"""
    gpu_images_per_s: Mapping[str, float] = field(default_factory=dict)
    """images a second of a forward pass on a GPU, by the name of the ViT"""


MEASURED = {
    "seconds_per_gflop": "capture, for each GFLOP",
    "decode_seconds": "reading a picture",
    "probe_seconds": "logistic probes, fit",
    "probe_memory": "memory of logistic probes, peak",
}
"""What `benchmarks/costs.py` calls the unit costs above in its results."""
ATTENTION_SHARE = "attention statistics, of all seconds"


@dataclass(frozen=True)
class Collection:
    """Pictures to go through: how many, of how many classes, and image passes beyond the first."""

    name: str
    images: int
    classes: int
    more_passes: int = 0


IMAGENET_1K = Collection("ImageNet-1k", 1_281_167, 1000)
IMAGENET_21K = Collection("ImageNet-21k", 14_197_122, 21_841)
BILLION = Collection("10⁹ images", 10**9, 21_841)


@dataclass(frozen=True)
class Estimate:
    """What a collection takes with one ViT. Hours of GPUs are at the low and at the high utilisation or twice
    what was measured; those in float32 are always assumed. None: nothing was measured."""

    flops: float
    gpu_hours: tuple[float, float]
    gpu_hours_float32: tuple[float, float]
    gpu_measured: bool
    cpu_core_hours: float | None
    decode_core_hours: float | None
    probe_core_hours: float | None
    image_bytes: float
    interruptions: float


def scrambling_passes(vit: Vit, images: int, budget: int = TOKEN_BUDGET) -> int:
    """Image passes of the reconstruction index: one for the targets, then as tokens fit into `budget`."""
    together = max(1, budget // (4 * images * vit.patches * vit.width))
    return images * (1 + math.ceil(vit.states / together))


def images_per_second(vit: Vit, site: Site, units: UnitCosts) -> tuple[float, float]:
    """Images a second of one GPU, low and high; both are the measured value where there is one."""
    measured = units.gpu_images_per_s.get(vit.name)
    if measured is not None:
        return measured, measured
    low, high = (share * site.gpu_peak / vit.flops for share in site.utilisation)
    return low, high


def estimate(collection: Collection, vit: Vit, site: Site, units: UnitCosts) -> Estimate:
    """One forward pass over all images, one decoding for each, logistic probes of one token at all states.

    >>> found = estimate(IMAGENET_1K, VITS[1], Site(), UnitCosts(seconds_per_gflop=0.02))
    >>> f"{found.flops:.3g} FLOP, {found.gpu_hours[1]:.2f} to {found.gpu_hours[0]:.2f} GPU-hours"
    '4.5e+16 FLOP, 0.08 to 0.13 GPU-hours'
    >>> round(found.cpu_core_hours)
    250
    """
    passes = collection.images + collection.more_passes
    slow, fast = images_per_second(vit, site, units)
    hours = passes / slow / HOUR, passes / fast / HOUR
    at_float32 = passes * vit.flops / site.gpu_peak_float32 / HOUR
    probe = collection.images * vit.states * collection.classes * vit.width
    return Estimate(
        flops=float(passes * vit.flops),
        gpu_hours=hours,
        gpu_hours_float32=(at_float32 / site.utilisation[0], at_float32 / site.utilisation[1]),
        gpu_measured=vit.name in units.gpu_images_per_s,
        cpu_core_hours=_hours(passes * vit.flops / 1e9, units.seconds_per_gflop),
        decode_core_hours=_hours(passes, units.decode_seconds),
        probe_core_hours=_hours(probe, units.probe_seconds),
        image_bytes=collection.images * site.image_bytes,
        interruptions=hours[0] / site.gpu_hours_between_failures,
    )


def _hours(count: float, seconds: float | None) -> float | None:
    return None if seconds is None else count * seconds / HOUR


def probe_bytes(vit: Vit, classes: int, units: UnitCosts) -> float:
    """Bytes of memory that logistic probes of one token at all states need for each image.

    Copies of the features, as measured, or two (as given and standardised) where nothing was; and the labels
    one-hot, as 64-bit integers and as float32: with many classes these are more than the features.
    """
    features = vit.bytes_kept("vectors", 4) / VECTORS
    return features * (units.probe_memory or 2.0) + 12 * classes


def gram_bytes(vit: Vit, classes: int) -> int:
    """Float64 moments from which a ridge probe of one token follows exactly, at all states, for any N.

    XᵀX [D, D], XᵀY [D, C], the sums of x and the class counts, of each state: no term has the images in it.
    """
    return 8 * vit.states * (vit.width**2 + vit.width * classes + vit.width + classes)


def gram_flops(vit: Vit, images: int) -> float:
    """Operations to gather them: 2·D² for XᵀX and D additions for XᵀY, an image and state."""
    return float(images * vit.states * (2 * vit.width**2 + vit.width))


@dataclass(frozen=True)
class Limit:
    """Something that holds so many images and no more."""

    key: str
    what: str
    images: float


def limits(vit: Vit, site: Site, units: UnitCosts, classes: int) -> list[Limit]:
    """How many images each limit allows, the smallest first; without those that hang on a missing unit."""
    found = {
        "capture": site.memory / vit.bytes_kept("vectors", 4),
        "probes": site.memory / probe_bytes(vit, classes, units),
        "files": site.files,
        "vectors": site.disk / vit.bytes_kept("vectors", 2),
        "tokens": site.disk / vit.bytes_kept("tokens", 2),
        "gpu_day": DAY * images_per_second(vit, site, units)[0],
        "failure": HOUR * site.gpu_hours_between_failures * images_per_second(vit, site, units)[0],
    }
    if units.seconds_per_gflop:
        found["cpu_day"] = site.cores * DAY / (units.seconds_per_gflop * vit.flops / 1e9)
    if units.probe_seconds:
        found["probe_day"] = site.cores * DAY / (units.probe_seconds * vit.states * classes * vit.width)
    ordered = sorted(found.items(), key=lambda item: item[1])
    return [Limit(key, LIMITS[key], images) for key, images in ordered]


LIMITS = {
    "tokens": "all tokens of all states, float16, on the disk",
    "capture": "CLS and mean patch of all states, float32, in a node's memory (what capture returns)",
    "probes": "logistic probes of one token at all states, in a node's memory",
    "files": "one file an image, within the quota of files",
    "vectors": "CLS and mean patch of all states, float16, on the disk",
    "cpu_day": "a forward pass in a day of a node's CPU cores",
    "probe_day": "logistic probes in a day of a node's CPU cores",
    "gpu_day": "a forward pass in a day of one GPU",
    "failure": "a forward pass with one interruption expected",
}


@dataclass(frozen=True)
class Feed:
    """What one GPU at full speed asks of the rest of the machine."""

    images_per_s: float
    decode_cores: float | None
    read_bytes_per_s: float
    written_bytes_per_s: float
    gpus_per_link: float


def feed(vit: Vit, site: Site, units: UnitCosts) -> Feed:
    """At the faster of the two rates; what is written are vectors in float16."""
    rate = images_per_second(vit, site, units)[1]
    return Feed(
        images_per_s=rate,
        decode_cores=None if units.decode_seconds is None else rate * units.decode_seconds,
        read_bytes_per_s=rate * site.image_bytes,
        written_bytes_per_s=rate * vit.bytes_kept("vectors", 2),
        gpus_per_link=site.network / (rate * site.image_bytes),
    )
