"""Labels as class numbers, and splits in which no class goes missing from training.

Every function here is deterministic: the same labels and seed give the same codes and the same split.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

Labels = Sequence[int] | Sequence[str] | np.ndarray | Tensor
"""One label per image: integers (gaps allowed) or strings."""


def label_array(labels: Labels) -> np.ndarray:
    """Labels as a flat array of integers or strings. Raises ValueError for anything that is no label.

    Refused: no label at all, missing values, fractions, and −1, by which datasets mark hidden labels.

    >>> label_array([7, 3, 7])
    array([7, 3, 7])
    """
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"labels must be a non-empty list with one label per image, got shape {array.shape}")
    if array.dtype.kind == "O":
        missing = np.flatnonzero(pd.isna(array))
        if len(missing):
            raise ValueError(
                f"{len(missing)} labels are missing, first at position {missing[0]}: drop those images"
            )
        array = np.asarray(array.tolist())
    if array.dtype.kind == "f":
        whole = np.isfinite(array) & (array == np.round(array))
        if not whole.all():
            first = array[np.flatnonzero(~whole)[0]]
            raise ValueError(f"labels must be class numbers or names, got {first}: this is no class")
    if array.dtype.kind in "fbiu":
        array = array.astype(np.int64)
        hidden = int((array == -1).sum())
        if hidden:
            raise ValueError(f"{hidden} of {array.size} labels are -1 (hidden labels): use a labelled split")
    elif array.dtype.kind not in "UT":
        raise ValueError(f"labels must be integers or strings, got {array.dtype}")
    return array


def encode(labels: Labels, classes: Sequence[int] | Sequence[str]) -> Int[Tensor, " N"]:
    """Each label's position in `classes`. Raises ValueError, naming them, for labels that are not there.

    >>> encode(["dog", "cat"], ["cat", "dog"])
    tensor([1, 0])
    """
    position = {name: i for i, name in enumerate(classes)}
    values = label_array(labels).tolist()
    strangers = sorted({str(v) for v in values if v not in position})
    if strangers:
        raise ValueError(
            f"{len(strangers)} classes are not among the {len(position)} seen in training: "
            f"{', '.join(strangers[:5])}{', …' if len(strangers) > 5 else ''}"
        )
    return torch.tensor([position[v] for v in values])


def distinct(labels: Labels) -> tuple[int, ...] | tuple[str, ...]:
    """The classes that occur, sorted. Raises ValueError when there is only one: nothing to tell apart."""
    classes = tuple(np.unique(label_array(labels)).tolist())
    if len(classes) < 2:
        raise ValueError(f"labels hold one class only ({classes[0]!r}): a probe needs at least two")
    return classes


def stratified(
    codes: Int[Tensor, " N"], share: float, seed: int
) -> tuple[Int[Tensor, " A"], Int[Tensor, " B"]]:
    """Positions of a training and a held-out part, in order; `share` of every class is held out.

    A class of n images gives round(share·n) of them, at least one and at most n − 1; a class of a single
    image stays in training. Raises ValueError when `share` is not inside (0, 1) or nothing can be held out.

    >>> train, held = stratified(torch.tensor([0, 0, 0, 0, 0, 1, 1, 2]), 0.2, seed=0)
    >>> len(train), len(held)
    (6, 2)
    """
    if not 0 < share < 1:
        raise ValueError(f"the held-out share must lie between 0 and 1, got {share}")
    rng = np.random.default_rng(seed)
    held = []
    values = codes.cpu().numpy()
    for code in np.unique(values):
        members = np.flatnonzero(values == code)
        count = min(max(1, round(share * len(members))), len(members) - 1)
        held.append(rng.permutation(members)[:count])
    chosen = np.sort(np.concatenate(held))
    if not len(chosen):
        raise ValueError(
            "every class has a single image: nothing can be held out, pass validation=(features, labels)"
        )
    rest = np.setdiff1d(np.arange(len(values)), chosen)
    return torch.from_numpy(rest).to(codes.device), torch.from_numpy(chosen).to(codes.device)
