"""VFusion with one thing changed at a time, with fewer images, and across backbones instead of depths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch

from vitscope.comparison import VALIDATION, Comparison, separable
from vitscope.frozen import Part, Task
from vitscope.fusion import Head, HFusion, SuperLearner, VFusion

Kind = TypeVar("Kind", bound=VFusion)

WHOLE, SUPER = "VFusion", "SuperLearner"
LAST_HALF, STRIDED, LINEAR = "last half", "every second", "linear encoder"
LATENT, PENALTY, LAST_STATES = "latent", "λ =", "last states:"
UNPENALISED, PENALISED = f"{PENALTY} 0", "λ > 0"
"""The penalised head that is best on validation, of those that were compared."""
PENALTIES = (0.0, 0.01, 0.1, 1.0)
PORTIONS = (0.25, 0.5)
"""Weights λ, and shares of the training images, that are compared."""
VERTICAL, HORIZONTAL, BOTH = "best VFusion", "HFusion, last states", "HFusion, all states"
VOTES = "Super Learner, last states"


@dataclass
class LastStates(VFusion):
    """VFusion on the last `last` states alone; on all of them where there are no more.

    Raises ValueError for `last` below 1; else as `VFusion`.
    """

    last: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.last < 1:
            raise ValueError(f"at least one state is needed, got last={self.last}")

    def _kept(self, blocks: list[list[int]]) -> list[list[int]]:
        return [list(range(max(0, count - self.last), count)) for count, _ in blocks]


def with_rival(base: VFusion) -> dict[str, Head]:
    """VFusion as it is and the Super Learner, neither fitted."""
    return {WHOLE: replace(base), SUPER: SuperLearner(budget=base.budget)}


def variants(
    base: VFusion, states: int, *, latents: Sequence[int], penalties: Sequence[float] = PENALTIES
) -> dict[str, Head]:
    """`with_rival`, and `base` with one thing changed, by name, none fitted; the same budget for all.

    Changed are which states are used (`LAST_HALF`, `STRIDED`, the last 1, 2 and 4 of `states`), the encoder
    (`LINEAR`), the latent's width, and the weight of the penalty: a single λ spends on learning rates what
    several spend on choosing λ.

    >>> list(variants(VFusion(latent=64), 2, latents=[8, 64], penalties=[0.0]))[2:]
    ['last half', 'every second', 'last states: 1', 'linear encoder', 'latent 8', 'λ = 0']
    """
    made = with_rival(base)
    made[LAST_HALF] = replace(base, states="last_half")
    made[STRIDED] = replace(base, states="strided")
    for count in (1, 2, 4):
        if count < states:
            made[f"{LAST_STATES} {count}"] = _like(base, LastStates, last=count)
    made[LINEAR] = replace(base, encoder="linear")
    for width in latents:
        if width != base.latent:
            made[f"{LATENT} {width}"] = replace(base, latent=width)
    for weight in penalties:
        made[f"{PENALTY} {weight:g}"] = replace(base, penalty=float(weight))
    return made


def _like(base: VFusion, kind: type[Kind], **changes: Any) -> Kind:
    """A head of another kind with the options of `base`."""
    options = {f.name: getattr(base, f.name) for f in fields(VFusion) if f.init}
    return kind(**options, **changes)


def penalties_of(compared: Comparison) -> dict[str, float]:
    """Best validation accuracy of each single λ that was compared, by name."""
    return {
        name: max(head.report["validation_accuracy"])
        for name, head in compared.heads.items()
        if name.startswith(PENALTY)
    }


def with_best_penalty(compared: Comparison) -> Comparison:
    """The comparison with the answers of `PENALISED` added, where any λ > 0 was compared."""
    held = {name: value for name, value in penalties_of(compared).items() if name != UNPENALISED}
    if not held:
        return compared
    best = max(held, key=lambda name: held[name])
    return replace(compared, right=compared.right | {PENALISED: compared.right[best]})


def portion(task: Task, share: float, *, seed: int) -> Task:
    """The task with a share of its training images; smaller shares lie within larger ones.

    Of every class ⌈share · n⌉ of its n images are kept, or of its groups, and at least two.
    Raises ValueError for a share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"a share of the training images lies in (0, 1], got {share}")
    labels, groups = task.train.labels, separable(task)
    member = np.arange(len(labels)) if groups is None else groups
    rng = np.random.default_rng(seed)
    kept = np.zeros(len(labels), dtype=bool)
    for name in task.classes:
        own = labels == name
        order = rng.permutation(np.unique(member[own]))  # drawn for all shares alike, so they are nested
        kept |= own & np.isin(member, order[: max(2, math.ceil(share * len(order)))])
    part = task.train
    return replace(
        task,
        train=Part(
            features=part.features[:, torch.from_numpy(kept)],
            labels=labels[kept],
            groups=None if part.groups is None else part.groups[kept],
            extras={key: value[kept] for key, value in part.extras.items()},
            dropped=part.dropped,
        ),
    )


@dataclass(frozen=True)
class Horizontal:
    """Heads over several backbones on one dataset, and which test images each gets right.

    `task` is that of the backbone whose VFusion is best on validation, and `VERTICAL` is that head.
    """

    task: Task
    right: dict[str, np.ndarray]
    heads: dict[str, Head]
    backbones: int

    def accuracy(self, method: str) -> float:
        """Accuracy on the test images, in percent."""
        return 100 * float(self.right[method].mean())


def horizontal(compared: Mapping[str, Comparison], base: VFusion, *, seed: int) -> Horizontal:
    """Fuse backbones that saw the same images: their last states, all their states, their last logits.

    `compared` are comparisons by backbone, with `WHOLE` in each; `base` gives size, penalty and budget of the
    heads. All heads have the same split. Raises ValueError for fewer than two backbones and for images that
    differ between them.
    """
    several = list(compared.values())
    if len(several) < 2:
        raise ValueError(f"fusing across backbones needs two of them, got {len(several)}")
    tasks = [c.task for c in several]
    for task in tasks[1:]:
        for own, other in ((task.train, tasks[0].train), (task.test, tasks[0].test)):
            if not np.array_equal(own.labels, other.labels):
                raise ValueError(
                    f"{task.backbone} and {tasks[0].backbone} saw different images of {task.dataset}: load "
                    "both with the same limits and seed"
                )
    best = max(several, key=lambda c: max(c.heads[WHOLE].report["validation_accuracy"]))
    train, test, groups = tasks[0].train, tasks[0].test, separable(tasks[0])
    heads: dict[str, Head] = {VERTICAL: best.heads[WHOLE]}
    right = {VERTICAL: best.right[WHOLE]}
    for name, states in ((HORIZONTAL, slice(-1, None)), (BOTH, slice(None))):
        head = _like(base, HFusion)
        lesson = [task.train.features[states] for task in tasks]
        heads[name] = head.fit(lesson, None, train.labels, validation=VALIDATION, groups=groups, seed=seed)
        scores = head.predict_logits([task.test.features[states] for task in tasks])
        right[name] = _right(head, scores, test.labels)
    # Votes need no features: logits stand in for them, as widths of backbones differ.
    lesson_votes = torch.stack([c.members.logits[-1] for c in several])
    test_votes = torch.stack([c.test_logits[-1] for c in several])
    votes = SuperLearner(budget=base.budget)
    heads[VOTES] = votes.fit(
        lesson_votes, lesson_votes, train.labels, validation=VALIDATION, groups=groups, seed=seed
    )
    right[VOTES] = _right(votes, votes.predict_logits(test_votes, test_votes), test.labels)
    return Horizontal(best.task, right, heads, len(several))


def _right(head: Head, scores: torch.Tensor, labels: np.ndarray) -> np.ndarray:
    return np.asarray(head.classes)[scores.argmax(1).cpu().numpy()] == labels
