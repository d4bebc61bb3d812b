"""Weighted k-nearest-neighbour classification of every state: what a state groups without any training."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitscope.holdout import Groups
from vitscope.intervals import Interval, bootstrap_mean
from vitscope.protocol import check_finite
from vitscope.splits import Labels, distinct, encode

Ids = Sequence | np.ndarray

_CPU_CHUNK = 1 << 22  # similarities at once
_DEVICE_CHUNK = 1 << 28


@dataclass(frozen=True)
class Neighbours:
    """Votes of the nearest training images: `scores` [S, N, C] sum to 1, columns as in `classes`."""

    scores: Float[Tensor, "S N C"]
    classes: tuple[int, ...] | tuple[str, ...]
    k: int
    temperature: float

    def accuracy(
        self,
        labels: Labels,
        *,
        groups: Groups | None = None,
        level: float = 0.95,
        draws: int = 1000,
        seed: int = 0,
    ) -> Interval:
        """Percentages [S] of images whose class has the largest score, with bootstrap intervals.

        Whole `groups` [N] of images are drawn, or single images. Raises ValueError for another number of
        labels, classes that training lacks, and fewer than two images or groups.
        """
        codes = encode(labels, self.classes)
        if len(codes) != self.scores.shape[1]:
            raise ValueError(f"there are {self.scores.shape[1]} images in the scores but {len(codes)} labels")
        right = (self.scores.argmax(2).cpu() == codes).numpy() * 100.0
        clusters = None if groups is None else np.asarray(groups)
        return bootstrap_mean(right, clusters=clusters, level=level, draws=draws, seed=seed)


@torch.no_grad()
def knn_classify(
    train_features: Float[Tensor, "S N D"],
    train_labels: Labels,
    test_features: Float[Tensor, "S M D"],
    *,
    k: int = 20,
    temperature: float = 0.07,
    train_ids: Ids | None = None,
    test_ids: Ids | None = None,
    chunk: int | None = None,
) -> Neighbours:
    """DINO's weighted k-NN, for all states: with s_j the cosines to the k nearest training images,

        score_c = Σ_{j: y_j = c} exp(s_j/τ) / Σ_j exp(s_j/τ),

    which names the same class as DINO's sum of exp(s_j/τ). With ids of both sets, training images that have
    the test image's id are no neighbours of it. `chunk` is the number of test images compared at once.

    Raises ValueError for shapes that do not fit, values that are not finite (naming the state), features of
    length 0, ids of one set alone, k below 1 or above the number of training images that are left, and a
    temperature that is not positive.
    Source: DINO, 2104.14294, §4.1 and its code (k = 20, τ = 0.07); after Wu et al., 1805.01978.

    >>> train = torch.tensor([[[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]])
    >>> found = knn_classify(train, ["a", "a", "b"], torch.tensor([[[2.0, 0.1], [0.0, 3.0]]]), k=2)
    >>> [[round(v, 3) for v in row] for row in found.scores[0].tolist()], found.accuracy(["a", "b"]).mean
    ([[1.0, 0.0], [0.0, 1.0]], array([100.]))
    """
    check_finite(train_features, "training features")
    check_finite(test_features, "test features")
    shapes = f"{tuple(train_features.shape)} and {tuple(test_features.shape)}"
    if (len(train_features), train_features.shape[2]) != (len(test_features), test_features.shape[2]):
        raise ValueError(f"training and test features must agree in states and width, got shapes {shapes}")
    if 0 in train_features.shape or 0 in test_features.shape:
        raise ValueError(f"training and test features must not be empty, got shapes {shapes}")
    classes = distinct(train_labels)
    codes = encode(train_labels, classes).to(train_features.device)
    states, count, _ = train_features.shape
    if len(codes) != count:
        raise ValueError(f"there are {count} images in the training features but {len(codes)} labels")
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    same = _same(train_ids, test_ids, count, test_features.shape[1])
    least = count if same is None else count - int(np.bincount(same[0]).max(initial=0))
    if not 1 <= k <= least:
        raise ValueError(
            f"k must be between 1 and the {least} training images that every test image can be compared "
            f"with, got {k}"
        )
    train, test = _unit(train_features, "training"), _unit(test_features, "test")
    votes = test.new_zeros(states, test.shape[1], len(classes))
    budget = _CPU_CHUNK if train.device.type == "cpu" else _DEVICE_CHUNK
    step = chunk or max(1, budget // (states * count))
    for i in range(0, test.shape[1], step):
        cosine = test[:, i : i + step] @ train.mT
        if same is not None:
            mine = (same[0] >= i) & (same[0] < i + step)
            query, other = (torch.from_numpy(v[mine]).to(train.device) for v in same)
            cosine[:, query - i, other] = -torch.inf
        nearest = cosine.topk(k, dim=2)
        weight = ((nearest.values - nearest.values[..., :1]) / temperature).exp()
        weight /= weight.sum(2, keepdim=True)
        votes[:, i : i + step].scatter_add_(2, codes[nearest.indices], weight)
    return Neighbours(votes, classes, k, temperature)


def _unit(features: Tensor, what: str) -> Tensor:
    wide = features.float()
    length = wide.norm(dim=2, keepdim=True)
    if not bool((length > 0).all()):
        state = int((length <= 0).any(1).flatten().nonzero()[0])
        raise ValueError(f"{what} features of length 0 in state {state} (counting from 0) have no direction")
    return wide / length


def _same(
    train_ids: Ids | None, test_ids: Ids | None, count: int, queries: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Pairs (test image, training image) with one id; None without ids."""
    if train_ids is None and test_ids is None:
        return None
    if train_ids is None or test_ids is None:
        raise ValueError("ids are given for one set alone: give train_ids and test_ids, or neither")
    train, test = np.asarray(train_ids), np.asarray(test_ids)
    if train.shape != (count,) or test.shape != (queries,):
        raise ValueError(
            f"one id per image is needed: {train.shape} for {count} training images, {test.shape} for "
            f"{queries} test images"
        )
    order = np.argsort(train, kind="stable")
    first, last = (np.searchsorted(train[order], test, side=side) for side in ("left", "right"))
    query = np.repeat(np.arange(queries), last - first)
    other = [order[a:b] for a, b in zip(first, last, strict=True)]
    return query, np.concatenate(other)
