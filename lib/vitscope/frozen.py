"""A task of a frozen backbone: the states of its training and test pictures, ready for probes and heads.

`recoverability` and `fusion` speak of the states 1 … L, the outputs of the blocks. The states before the
first block are left out: at 0 the CLS token is the same vector in every picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitscope import data
from vitscope.backbones import Backbone
from vitscope.data.images import Images
from vitscope.features import Cache, features

Tokens = Literal["cls", "patch_mean"]
INDEPENDENT = ("identity", "scene")
"""Extras of embedded sets that name what pictures share: renders of one emoji, say."""


@dataclass(frozen=True)
class Part:
    """States 1 … L of the pictures of one split [L, N, D], their labels (class names) and what they share.

    `groups` [N] name pictures that are not independent of each other; None where all are. `extras` are those
    of the image set. `dropped` counts pictures left out because training has no two pictures of their class.
    """

    features: Float[Tensor, "L N D"]
    labels: np.ndarray
    groups: np.ndarray | None
    extras: Mapping[str, np.ndarray]
    dropped: int

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Task:
    """A backbone's features on a dataset. `tokens` says which token: "cls", or "patch_mean" without one."""

    backbone: str
    dataset: str
    tokens: Tokens
    norm: str
    classes: tuple[str, ...]
    train: Part
    test: Part

    @property
    def groups(self) -> np.ndarray | None:
        """What must not be separated in training; None where every class is a single group.

        Naming the emoji itself is such a task: its renders are all that a class has.
        """
        groups = self.train.groups
        if groups is None or all(len(np.unique(groups[self.train.labels == c])) < 2 for c in self.classes):
            return None
        return groups

    def tested_on(self, backbone: Backbone, images: Images, *, cache: Cache = None) -> Task:
        """The same training part with another test set, whose classes are matched by name.

        Raises ValueError for a backbone other than the task's, and for a set none of whose classes the task
        has.
        """
        if backbone.name != self.backbone:
            raise ValueError(f"the task is of {self.backbone}, not of {backbone.name}")
        part = _part(backbone, images, set(self.classes), self.tokens, self.norm, cache)
        return replace(self, dataset=images.name, test=part)


def tokens_of(backbone: Backbone, tokens: Tokens) -> Tokens:
    """`tokens`, or the mean patch token for a backbone that has no CLS token."""
    return tokens if backbone.has_cls else "patch_mean"


def load(
    backbone: Backbone,
    dataset: str,
    *,
    images: int | None,
    test_images: int | None,
    seed: int,
    norm: str = "none",
    tokens: Tokens = "cls",
    cache: Cache = None,
) -> tuple[Task, dict[str, Images]]:
    """Capture a backbone on both splits of a dataset, or find its features in `cache`.

    `images` and `test_images` bound the pictures of each split. Returns the task and the image sets used, by
    split. Errors: as `data.load`, `capture` and `make`.
    """
    sets = {
        "train": data.load(dataset, "train", limit=images, seed=seed),
        "test": data.load(dataset, "test", limit=test_images, seed=seed),
    }
    return make(backbone, sets["train"], sets["test"], norm=norm, tokens=tokens, cache=cache), sets


def make(
    backbone: Backbone,
    train: Images,
    test: Images,
    *,
    norm: str = "none",
    tokens: Tokens = "cls",
    cache: Cache = None,
) -> Task:
    """The task of two image sets, whose classes are matched by name.

    A class that has fewer than two training pictures can be neither learned nor held out: its pictures are
    left out of both parts and counted. Raises ValueError when fewer than two classes are left.
    """
    names = np.asarray(train.classes, dtype=str)[train.labels]
    found, counts = np.unique(names, return_counts=True)
    kept = tuple(found[counts > 1].tolist())
    if len(kept) < 2:
        raise ValueError(
            f"{train.name}/{train.split}: {len(kept)} of {len(found)} classes have two or more pictures; a "
            "task needs two such classes: load more pictures"
        )
    kind = tokens_of(backbone, tokens)
    parts = [_part(backbone, images, set(kept), kind, norm, cache) for images in (train, test)]
    return Task(backbone.name, train.name, kind, norm, kept, *parts)


def block_states(
    backbone: Backbone, images: Images, *, tokens: Tokens, norm: str, cache: Cache = None
) -> Float[Tensor, "L N D"]:
    """One token of the states 1 … L of every picture; labels play no part. Errors: as `capture`."""
    captured = features(backbone, images, norm=norm, folder=cache)
    values = captured.cls if tokens_of(backbone, tokens) == "cls" else captured.patch_mean
    assert values is not None  # `tokens_of` chose what the backbone has
    return values[[k for k, state in enumerate(captured.states) if state > 0]]


def _part(
    backbone: Backbone, images: Images, classes: set[str], tokens: Tokens, norm: str, cache: Cache
) -> Part:
    names = np.asarray(images.classes, dtype=str)[images.labels]
    chosen = np.flatnonzero(np.isin(names, sorted(classes)))
    if not len(chosen):
        raise ValueError(
            f"{images.name}/{images.split} has no picture of the {len(classes)} classes learned "
            f"({', '.join(sorted(classes)[:5])}): class names of the splits must agree"
        )
    values = block_states(backbone, images, tokens=tokens, norm=norm, cache=cache)
    extras = {key: value[chosen] for key, value in images.extras.items()}
    shared = [extras[key] for key in INDEPENDENT if key in extras]
    return Part(
        features=values[:, chosen],
        labels=names[chosen],
        groups=shared[0] if shared else None,
        extras=extras,
        dropped=len(images) - len(chosen),
    )
