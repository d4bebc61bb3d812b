"""Held-out parts and folds in which samples that belong together stay together."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vitscope.splits import stratified

Groups = Sequence | np.ndarray
"""One name per image; images with the same name (renders of one identity, say) are never separated."""


def holdout(
    codes: Int[Tensor, " N"], share: float, seed: int, groups: Groups | None = None
) -> tuple[Int[Tensor, " A"], Int[Tensor, " B"]]:
    """Positions of a training and a held-out part; `share` of every class's images, or of its groups.

    Without `groups` this is `splits.stratified`. A class of n groups gives round(share·n) of them, at least
    one and at most n − 1. Raises ValueError when nothing can be held out, or when groups that several classes
    share leave a class without training images.

    >>> train, held = holdout(torch.tensor([0, 0, 0, 0, 1, 1]), 0.3, 0, groups=["a", "a", "b", "b", "c", "d"])
    >>> len(train), len(held)
    (3, 3)
    """
    if groups is None:
        return stratified(codes, share, seed)
    if not 0 < share < 1:
        raise ValueError(f"the held-out share must lie between 0 and 1, got {share}")
    values, member = codes.cpu().numpy(), _members(groups, len(codes))
    rng = np.random.default_rng(seed)
    chosen: set[int] = set()
    for code in np.unique(values):
        names = np.unique(member[values == code])
        count = min(max(1, round(share * len(names))), len(names) - 1)
        free = [int(name) for name in rng.permutation(names) if name not in chosen]
        chosen.update(free[: max(0, count - (len(names) - len(free)))])
    held = np.isin(member, sorted(chosen))
    if not held.any():
        raise ValueError(
            "every class is one group: nothing can be held out, name smaller groups or pass validation images"
        )
    lost = np.setdiff1d(values, values[~held])
    if len(lost):
        raise ValueError(
            f"class number {lost[0]} shares all its groups with other classes and would have no training "
            "images: name groups that lie within a class"
        )
    positions = torch.from_numpy(held).to(codes.device)
    return (~positions).nonzero()[:, 0], positions.nonzero()[:, 0]


def fold_numbers(
    codes: Int[Tensor, " N"], count: int, seed: int, groups: Groups | None = None
) -> Int[Tensor, " N"]:
    """The fold, 0 … count − 1, of every image: classes spread evenly over folds, groups kept whole.

    Raises ValueError for fewer than two folds, and for a class that lies in one fold alone: the probes of
    that fold would never have seen it.

    >>> fold_numbers(torch.tensor([0, 0, 1, 1]), 2, seed=0).tolist()
    [0, 1, 0, 1]
    """
    if count < 2:
        raise ValueError(f"out-of-fold predictions need at least 2 folds, got {count}")
    values = codes.cpu().numpy()
    member = _members(range(len(values)) if groups is None else groups, len(values))
    rng = np.random.default_rng(seed)
    fold = np.full(member.max() + 1, -1)
    following = 0
    for code in np.unique(values):
        for name in rng.permutation(np.unique(member[values == code])):
            if fold[name] < 0:
                fold[name] = following % count
                following += 1
    for code in np.unique(values):
        if len(np.unique(fold[member[values == code]])) < 2:
            what = "sample" if groups is None else "group of samples"
            raise ValueError(
                f"class number {code} lies in one of the {count} folds alone; every class needs at least two "
                f"samples in different folds, and this one may have a single {what}: drop it or add to it"
            )
    return torch.from_numpy(fold[member]).to(codes.device)


def _members(groups: Groups, images: int) -> np.ndarray:
    names = np.asarray(groups)
    if names.shape != (images,):
        raise ValueError(f"one group per image is needed: {names.shape} for {images} images")
    return np.unique(names, return_inverse=True)[1]
