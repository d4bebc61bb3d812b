"""Features of a backbone on a set of pictures, computed once and found again by what they were computed from.

The name of a file is a digest of all that can change a number in it: weights, pictures, preprocessing, norm,
number type, device, torch, and the sources of the code that computes them. A file is written aside and moved,
so processes may share a folder; one that cannot be read, or holds something else, is computed again. A
`FeatureCache` is such a folder that counts what was computed and what was found.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from vitscope.backbones import Backbone
from vitscope.capture import Capture, capture
from vitscope.data.images import Images

FORMAT = "vitscope-features-1"
KEPT = ("cls", "patch_mean")
_SOURCES = (
    "capture.py", "reductions.py", "source.py", "transfer.py", "transforms.py",
    "data/images.py", "data/emoji.py",
)  # fmt: skip


@dataclass
class FeatureCache:
    """A folder for features that counts pictures: those whose features were `computed`, those `found`.

    One belongs to one run, which hands it to whatever asks for features. `folder` None keeps nothing, so
    that everything is computed and counted as such.
    """

    folder: Path | None
    computed: int = 0
    found: int = 0


Cache = FeatureCache | Path | None
"""Where features are kept: a folder, one that counts, or nowhere."""


def key(backbone: Backbone, images: Images, *, norm: str) -> str:
    """Digest of everything that decides the features; equal keys mean equal features."""
    parameter = next(backbone.model.parameters())
    here = Path(__file__).parent
    parts = {
        "format": FORMAT,
        "weights": backbone.digest,
        "attention": backbone.attention,
        "grid": list(backbone.grid),
        "pictures": images.digest,
        "count": len(images),
        "transform": backbone.transform.describe(),
        "norm": norm,
        "dtype": str(parameter.dtype),
        "device": parameter.device.type,
        "torch": metadata.version("torch"),
        "timm": metadata.version("timm"),
        "code": [hashlib.sha256((here / name).read_bytes()).hexdigest() for name in _SOURCES],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def features(
    backbone: Backbone,
    images: Images,
    *,
    norm: str,
    folder: Cache,
    batch_size: int | str = "auto",
) -> Capture:
    """CLS and mean patch token of every state: a `Capture` of these two, from `folder` if they are there.

    `folder` None computes and keeps nothing. Labels and ids are always those of `images`; what is cached are
    numbers. Errors: as `capture`.
    """
    cache = folder if isinstance(folder, FeatureCache) else FeatureCache(folder)
    path = cache.folder and cache.folder / f"{key(backbone, images, norm=norm)}.safetensors"
    if path and (found := _read(path, backbone, images, norm)) is not None:
        cache.found += len(images)
        return found
    computed = capture(backbone, images, norm=norm, reductions=KEPT, batch_size=batch_size)
    if path:
        _write(path, computed, backbone, images)
    cache.computed += len(images)
    return computed


def _read(path: Path, backbone: Backbone, images: Images, norm: str) -> Capture | None:
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            names = file.keys()  # a list; the file itself is neither a mapping nor iterable
            kept = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError):
        return None
    shape = (len(backbone.states), len(images), backbone.width)
    if header.get("format") != FORMAT or any(tuple(t.shape) != shape for t in kept.values()):
        return None
    cls, patch_mean = kept.get("cls"), kept.get("patch_mean")
    if patch_mean is None or (cls is not None) != backbone.has_cls:
        return None
    return Capture(
        states=backbone.states,
        cls=cls,
        patch_mean=patch_mean,
        tokens=None,
        per_image={"cls_norm": cls.norm(dim=-1)} if cls is not None else {},
        attention={},
        labels=images.labels,
        ids=np.asarray(images.ids),
        norm=norm,
        batch_size=0,
        seconds=0.0,
        backbone=backbone.name,
    )


def _write(path: Path, captured: Capture, backbone: Backbone, images: Images) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {"cls": captured.cls, "patch_mean": captured.patch_mean}
    tensors: dict[str, torch.Tensor] = {k: v.contiguous() for k, v in kept.items() if v is not None}
    header = {"format": FORMAT, "backbone": backbone.name, "pictures": f"{images.name}/{images.split}"}
    temporary = path.with_name(f"{path.stem}-{uuid.uuid4().hex}.partial")
    try:
        save_file(tensors, temporary, metadata=header)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
