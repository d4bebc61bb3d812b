"""Captures of a backbone on a set of pictures, computed once and found again by what they were computed from.

`feature_key` says what that is, `store` how it is kept. A `FeatureCache` is a folder that counts what was
computed and what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from vitscope.attention_maps import MapStatistic
from vitscope.backbones import Backbone
from vitscope.capture import Capture, capture
from vitscope.data.images import Images
from vitscope.entry_file import Header
from vitscope.feature_key import parts_of
from vitscope.reductions import DEFAULT, Reduction
from vitscope.source import Pictures, Source
from vitscope.store import Store

KIND = "capture"
KEPT = ("cls", "patch_mean")
_WHOLE = ("cls", "patch_mean", "tokens")
_GROUPS = ("per_image", "attention", "extra")
Build = Callable[[], dict[str, Tensor]]


@dataclass
class FeatureCache:
    """A folder for features that counts pictures: those whose features were `computed`, those `found`.

    One belongs to one run, which hands it to whatever asks for features. `folder` None keeps nothing, so
    that everything is computed and counted as such.
    """

    folder: Path | None
    computed: int = 0
    found: int = 0

    @cached_property
    def store(self) -> Store | None:
        """What keeps the entries. Errors: `AmountError` for a limit in the environment that is no size."""
        return None if self.folder is None else Store(self.folder)


Cache = FeatureCache | Path | None
"""Where features are kept: a folder, one that counts, or nowhere."""


def key(backbone: Backbone, images: Images, *, norm: str) -> str | None:
    """Digest of all that decides `features`; equal keys mean equal features. None: they are not kept."""
    parts = parts_of(backbone, images, norm=norm, reductions=KEPT)
    return None if parts is None else Header(KIND, parts).key


def features(
    backbone: Backbone,
    images: Images,
    *,
    norm: str,
    folder: Cache,
    batch_size: int | str = "auto",
) -> Capture:
    """CLS and mean patch token of every state: `captured` with these two reductions."""
    return captured(backbone, images, norm=norm, reductions=KEPT, folder=folder, batch_size=batch_size)


def captured(
    backbone: Backbone,
    images: Pictures,
    *,
    norm: str,
    reductions: Sequence[str] | Mapping[str, Reduction] = DEFAULT,
    keep_tokens: int = 0,
    attention: bool | Mapping[str, MapStatistic] = False,
    batch_size: int | str = "auto",
    folder: Cache,
) -> Capture:
    """`capture` of these arguments, from `folder` if it is there; a found one has `seconds` 0.

    `folder` None computes and keeps nothing. Labels and ids are always those of `images`; what is kept are
    numbers. Reductions and statistics of one's own are kept only if they have a `cache_key`
    (`feature_key.parts_of` says what else is not). Errors: as `capture`; `AmountError` for a bad
    `VITSCOPE_CACHE_LIMIT`.
    """
    cache = folder if isinstance(folder, FeatureCache) else FeatureCache(folder)
    asked: dict[str, Any] = {
        "norm": norm,
        "reductions": reductions,
        "keep_tokens": keep_tokens,
        "attention": attention,
        "batch_size": batch_size,
    }
    source = Source(images, backbone)  # what cannot be captured is refused here, found or not
    computed: list[Capture] = []

    def build() -> dict[str, Tensor]:
        computed.append(capture(backbone, images, **asked))
        return _tensors(computed[0])

    store = cache.store
    parts = None if store is None else parts_of(backbone, images, **asked)
    if store is None or parts is None:
        build()
    else:
        about = {"backbone": backbone.name, "pictures": _words(images), "norm": norm}
        kept, _ = store.fetch(KIND, parts, build, about=about, accept=_fits(backbone, source, asked))
    if computed:
        cache.computed += len(source)
        return computed[0]
    cache.found += len(source)
    return _capture(kept, backbone, source, norm)


def _tensors(captured: Capture) -> dict[str, Tensor]:
    """All numbers of a capture by name, "cls" or "GROUP/NAME"."""
    whole = {name: getattr(captured, name) for name in _WHOLE}
    kept = {name: value for name, value in whole.items() if value is not None}
    for group in _GROUPS:
        kept |= {f"{group}/{name}": value for name, value in getattr(captured, group).items()}
    return kept | {"batch_size": Tensor([captured.batch_size]).int()}


def _capture(kept: Mapping[str, Tensor], backbone: Backbone, source: Source, norm: str) -> Capture:
    groups: dict[str, dict[str, Tensor]] = {group: {} for group in _GROUPS}
    for name, value in kept.items():
        group, slash, rest = name.partition("/")
        if slash:
            groups[group][rest] = value
    return Capture(
        states=backbone.states,
        cls=kept.get("cls"),
        patch_mean=kept.get("patch_mean"),
        tokens=kept.get("tokens"),
        per_image=groups["per_image"],
        attention=groups["attention"],
        extra=groups["extra"],
        labels=source.labels,
        ids=source.ids,
        norm=norm,
        batch_size=int(kept["batch_size"]),
        seconds=0.0,
        backbone=backbone.name,
    )


def _fits(backbone: Backbone, source: Source, asked: Mapping[str, Any]) -> Callable[..., bool]:
    """Whether found tensors have the names and shapes that a capture of this backbone must have.

    Which names a mapping of functions gives is known to the functions alone.
    """
    states, width, count = len(backbone.states), backbone.width, len(source)
    tokens = (states, asked["keep_tokens"], backbone.num_prefix_tokens + backbone.num_patches, width)
    shapes = {"cls": (states, count, width), "patch_mean": (states, count, width), "tokens": tokens}
    there = {"tokens": asked["keep_tokens"] > 0}
    if not isinstance(asked["reductions"], Mapping):
        there["cls"] = "cls" in asked["reductions"] and backbone.has_cls
        there["patch_mean"] = "patch_mean" in asked["reductions"]

    def fits(kept: Mapping[str, Tensor]) -> bool:
        for name, value in kept.items():
            group, slash, _ = name.partition("/")
            first = (backbone.depth if group == "attention" else states, count)
            if slash and (group not in _GROUPS or tuple(value.shape[:2]) != first):
                return False
        mapped = any(name.startswith("attention/") for name in kept)
        return (
            "batch_size" in kept
            and mapped == (asked["attention"] is not False)
            and all((name in kept) == wanted for name, wanted in there.items())
            and all(tuple(kept[name].shape) == shape for name, shape in shapes.items() if name in kept)
        )

    return fits


def _words(images: Pictures) -> str:
    if isinstance(images, Images):
        return f"{len(images)} of {images.name}/{images.split}"
    return f"{len(images[0] if isinstance(images, tuple) else images)} given as a tensor"
