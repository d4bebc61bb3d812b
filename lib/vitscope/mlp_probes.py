"""MLP probes of every state at once: one hidden layer, as paper B's probes on frozen features have.

Paper B (2607.10391) calls its probes MLPs; their width and training were not found, so these are ours. The
protocol is that of `probes`, the same for every state, and `mlp` has the networks:

1. Split: a share of each class is held out of the training images for validation, or of the groups of each
   class, or a set of your own is.
2. Standardise with the mean and deviation of the training part.
3. Train a network for every decay of the grid, and keep the epoch of least validation cross-entropy.
4. Choose, per state, the decay that is right most often on validation, the strongest if several tie.

Test images play no part. Validation images choose the epoch, so there is no second fit that includes them.
A state has the same probe alone as among others, up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitscope.mlp import Network, apply, fit_mlps
from vitscope.protocol import (
    Validation,
    encode_for,
    moments,
    shares_right,
    split,
    standardise_as_fitted,
)
from vitscope.splits import Labels, distinct

DECAYS: tuple[float, ...] = (10.0, 1.0, 0.1)
"""Decays of the weights: a step at learning rate r shrinks them by 1 − r · decay."""


@dataclass(frozen=True)
class MLPProbeSet:
    """Fitted MLP probes of S states over C classes with H hidden units; made by `fit_mlp_probes`.

    The `network` acts on standardised features (x − mean)/scale. `validation_accuracy` is per state and
    decay, columns as in `grid`, each at its own best epoch; `chosen_decay` and `chosen_epoch` (from 1) are
    per state. `majority` is the most frequent class among the `images` fitted. `warnings` says in sentences
    what a reader of the numbers should know; it is empty when all is well.
    """

    classes: tuple[int, ...] | tuple[str, ...]
    mean: Float[Tensor, "S D"]
    scale: Float[Tensor, "S D"]
    network: Network
    grid: tuple[float, ...]
    validation_accuracy: Float[Tensor, "S G"]
    chosen_decay: Float[Tensor, " S"]
    chosen_epoch: Int[Tensor, " S"]
    majority: int | str
    images: int
    warnings: tuple[str, ...]

    @torch.no_grad()
    def logits(self, features: Float[Tensor, "S N D"]) -> Float[Tensor, "S N C"]:
        """Scores of every class, before any softmax. Raises ValueError for other shapes, NaN and inf."""
        standard = standardise_as_fitted(features, self.mean, self.scale)
        # one state after the other: the hidden units of all would be large
        parts = (
            apply(Network(*(p[s : s + 1] for p in self.network)), standard[s : s + 1])
            for s in range(len(standard))
        )
        return torch.cat(list(parts))

    def accuracy(self, features: Float[Tensor, "S N D"], labels: Labels) -> dict[str, Tensor]:
        """Shares of right answers in [0, 1]: "accuracy" [S], "balanced_accuracy" [S] and "majority" [].

        As `ProbeSet.accuracy` has them.
        """
        codes = encode_for(features, labels, self.classes)
        return shares_right(self.logits(features), codes, self.classes.index(self.majority))


@torch.no_grad()
def fit_mlp_probes(
    features: Float[Tensor, "S N D"],
    labels: Labels,
    *,
    hidden: int = 128,
    grid: Sequence[float] = DECAYS,
    validation: Validation = 0.2,
    groups: np.ndarray | None = None,
    epochs: int = 25,
    batch_size: int = 128,
    learning_rate: float = 5e-3,
    seed: int = 0,
    names: Sequence[str] | None = None,
) -> MLPProbeSet:
    """Fit an MLP probe to each state; the protocol is at the top of this file.

    `features` hold one vector per state and image, in any float precision (computed in float32); `labels` are
    N integers or strings. `grid`: decays to choose from. `validation`: the share of each class to hold out,
    or a pair (features, labels); with `groups` [N] of images that belong together, the share of the groups of
    each class. `learning_rate` is that of the first step; it falls to 0 over the `epochs`.
    `seed` decides the held-out images, the start and the order. `names` say what warnings call each state, if
    not 0 … S−1.

    Raises ValueError for features that are not finite (naming the state), labels that are missing, −1,
    fractions or all alike, validation classes that training lacks, numbers out of range, and training that
    diverges.

    >>> x = torch.rand(2, 300, 2, generator=torch.Generator().manual_seed(0)) - 0.5
    >>> labels = (x[1, :, 0] > 0) != (x[1, :, 1] > 0)  # state 1 has it, but no line divides the classes
    >>> probes = fit_mlp_probes(x[:, :200], labels[:200], hidden=32, batch_size=16)
    >>> first, second = probes.accuracy(x[:, 200:], labels[200:])["accuracy"].tolist()
    >>> first < 0.7, second > 0.9
    (True, True)
    """
    decays = _strong_to_weak(grid)
    called = [str(s) for s in range(len(features))] if names is None else list(names)
    if len(called) != len(features):
        raise ValueError(f"{len(called)} names for {len(features)} states")
    classes = distinct(labels)
    (x, codes), (held_x, held_codes) = split(features, labels, classes, validation, groups, seed)
    scaling = moments(x)
    found = fit_mlps(
        scaling.standardise(x), codes, scaling.standardise(held_x), held_codes, len(classes),
        decays, hidden=hidden, epochs=epochs, batch_size=batch_size,
        learning_rate=learning_rate, seed=seed,
    )  # fmt: skip
    diverged = [name for name, fine in zip(called, found.loss.isfinite().all(1), strict=True) if not fine]
    if diverged:
        raise ValueError(f"training diverged for states {', '.join(diverged)}: lower learning_rate")
    best = found.right.argmax(1)  # the first of several equals: the strongest
    at = (torch.arange(len(x), device=x.device), best)
    return MLPProbeSet(
        classes=classes,
        mean=scaling.mean,
        scale=scaling.scale,
        network=Network(*(p[at] for p in found.networks)),
        grid=decays,
        validation_accuracy=found.right,
        chosen_decay=torch.tensor(decays, device=x.device)[best],
        chosen_epoch=found.epoch[at],
        majority=classes[int(codes.bincount().argmax())],
        images=len(codes),
        warnings=_warnings(found.right, best, len(held_codes), decays, called),
    )


def _strong_to_weak(grid: Sequence[float]) -> tuple[float, ...]:
    decays = tuple(sorted({float(v) for v in grid}, reverse=True))
    if not decays or not all(0 <= v < float("inf") for v in decays):
        raise ValueError(f"grid must be one or more decays, 0 or above, got {list(grid)}")
    return decays


def _warnings(
    right: Tensor, best: Tensor, images: int, decays: tuple[float, ...], names: list[str]
) -> tuple[str, ...]:
    """The grid was too short where an end of it beats its neighbour by more than a standard error."""
    last, found = len(decays) - 1, []
    for end, inner, name, further in ((0, 1, "strongest", "stronger"), (last, last - 1, "weakest", "weaker")):
        if last and decays[end]:  # nothing is weaker than 0
            wins = (best == end) & (right[:, end] - right[:, inner] > 0.5 / images**0.5)
            states = ", ".join(names[s] for s in wins.nonzero()[:, 0].tolist())
            if states:
                found.append(
                    f"decay = {decays[end]:g}, the {name} of the grid, was chosen for states {states}: "
                    f"add {further} values"
                )
    return tuple(found)
