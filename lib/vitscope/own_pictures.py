"""A person's own pictures made ready for fusion heads: a training and a test part, checked before long work.

Nothing is dropped in silence: every picture or class that is left out is counted and named in `remarks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vitscope import data
from vitscope.data.files import split_folders
from vitscope.data.images import Images
from vitscope.fusion.members import FOLDS
from vitscope.splits import stratified

TEST_SHARE = 0.2
FEWEST = 2 * FOLDS  # training pictures: below, a fold has less than one picture of each of two classes
_MOST_NAMED = 5


class PicturesRefused(ValueError):
    """Pictures on which nothing can be learned or tested; the message says what is missing."""


@dataclass(frozen=True)
class Pictures:
    """What heads learn from and what they are tested on; `rule` says how the test part came about."""

    train: Images
    test: Images
    rule: str
    remarks: tuple[str, ...]


def load(
    source: str,
    test: str | None = None,
    *,
    images: int | None = None,
    test_images: int | None = None,
    seed: int = 0,
) -> Pictures:
    """Both parts of a folder (`CLASS/*.jpg`, or `train` and `test` of those) or of another dataset.

    `test` is another folder or dataset to test on. Where a folder has no test part, a stratified fifth of its
    pictures is held out; classes of two pictures stay in training whole. `images` and `test_images` bound the
    parts.

    Left out, with a remark: pictures that do not decode; classes of a single training picture; test pictures
    of classes that training lacks. Raises `PicturesRefused` when fewer than two classes, `FEWEST` training
    pictures or no test picture are left, and when both parts are the same pictures; else as `data.load`.
    """
    train, rest, rule = _parts(source, test, seed)
    remarks = [text for part in (train, rest) for text in _undecoded(part)]
    train, rest = train.limited(images, seed), rest.limited(test_images, seed)
    train = _of_two_or_more(train, remarks)
    rest = _of_known_classes(rest, train, remarks)
    if train.digest == rest.digest:
        raise PicturesRefused(f"{rest.name} holds the very pictures that are learned: test on others")
    if len(rest) < 2:
        raise PicturesRefused(f"{len(rest)} picture to test on gives no interval: add test pictures")
    untested = sorted(set(_names(train)) - set(_names(rest)))
    if untested:
        remarks.append(f"learned, but without a test picture: {_some(untested, 'class')}")
    return Pictures(train, rest, rule, tuple(dict.fromkeys(remarks)))


def _parts(source: str, test: str | None, seed: int) -> tuple[Images, Images, str]:
    train = _opened(source, "train", seed)
    if test is not None:
        return train, _opened(test, "test", seed), f"pictures of {Path(test).name}"
    if not _is_folder(source) or "test" in split_folders(Path(source).expanduser()):
        return train, _opened(source, "test", seed), "its own test part"
    enough = np.flatnonzero(train.counts[train.labels] > 2)
    if not len(enough):
        raise PicturesRefused(
            f"no class of {source} has three pictures, so none can be held out for the test: add pictures, "
            "or name a folder of others to test on (--test)"
        )
    _, held = stratified(torch.from_numpy(train.labels[enough]), TEST_SHARE, seed)
    chosen = enough[held.numpy()]
    rest = np.setdiff1d(np.arange(len(train)), chosen)
    rule = f"{len(chosen)} of {len(train)} pictures held out, a fifth of each class, seed {seed}"
    return train.select(rest), train.select(chosen), rule


def _is_folder(name: str) -> bool:
    path = Path(name).expanduser()
    return path.is_dir() and not any(path.glob("*.parquet"))


def _opened(name: str, split: str, seed: int) -> Images:
    whole = _is_folder(name) and not split_folders(Path(name).expanduser())
    return data.load(name, "all" if whole else split, seed=seed, on_error="skip")


def _of_two_or_more(train: Images, remarks: list[str]) -> Images:
    """Without classes of a single picture, which can be learned or held out, but not both."""
    single = [train.classes[c] for c in np.flatnonzero(train.counts == 1)]
    left = np.flatnonzero(train.counts[train.labels] > 1)
    classes = np.unique(train.labels[left])
    if len(classes) < 2:
        raise PicturesRefused(
            f"{train.name}: {len(classes)} of {np.count_nonzero(train.counts)} classes have two or more "
            "pictures to learn from, and telling apart takes two such classes: expected a folder for each "
            "class, as FOLDER/CLASS/picture.jpg"
        )
    if len(left) < FEWEST:
        raise PicturesRefused(
            f"{train.name}: {len(left)} pictures to learn from are too few for {FOLDS} folds; at least "
            f"{FEWEST} are needed: add pictures or raise --images"
        )
    if single:
        remarks.append(f"left out, for having one picture to learn from: {_some(single, 'class')}")
    return train if len(left) == len(train) else train.select(left)


def _of_known_classes(rest: Images, train: Images, remarks: list[str]) -> Images:
    names, known = _names(rest), sorted(set(_names(train)))
    left = np.flatnonzero(np.isin(names, known))
    if not len(left):
        raise PicturesRefused(
            f"{rest.name} has no test picture of the {len(known)} classes learned ({_listed(known)}); its "
            f"own are {_listed(sorted(set(names)))}: class names must agree"
        )
    if len(left) == len(rest):
        return rest
    strange = sorted(set(names) - set(known))
    remarks.append(
        f"left out, {len(rest) - len(left)} test pictures, for not being of the classes learned: "
        f"{_some(strange, 'class')}"
    )
    return rest.select(left)


def _names(images: Images) -> np.ndarray:
    return np.asarray(images.classes, dtype=str)[images.labels]


def _undecoded(images: Images) -> list[str]:
    if not images.skipped:
        return []
    bad = _some([path for path, _ in images.skipped], "picture")
    return [f"left out, for not being readable: {bad} of {Path(images.name).name}"]


def _some(names: Sequence[str], what: str) -> str:
    """How many there are, and the first of them.

    >>> _some(["owl"], "class"), _some(["a", "b", "c", "d", "e", "f"], "picture")
    ('1 class (owl)', '6 pictures (a, b, c, d, e and 1 more)')
    """
    ending = "" if len(names) == 1 else "es" if what.endswith("s") else "s"
    return f"{len(names)} {what}{ending} ({_listed(names)})"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
