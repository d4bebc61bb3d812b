"""One interface for all fusion heads: fit on stacked states, predict class scores, report the choice made."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitscope.fusion.checks import Blocks, checked_logits, checked_states, described, share_right
from vitscope.fusion.training import SelectionBudget, Tensors
from vitscope.holdout import Groups, holdout
from vitscope.splits import Labels, distinct, encode

Features = Tensor | Sequence[Tensor]
"""States of one backbone [K, N, D], the last one last; for `HFusion` a list over backbones."""


@dataclass(frozen=True)
class Problem:
    """What a head is fitted to. `train` and `held` are positions of the training and validation images."""

    blocks: Blocks
    logits: Float[Tensor, "K N C"] | None
    codes: Int[Tensor, " N"]
    classes: tuple[int, ...] | tuple[str, ...]
    groups: Groups | None
    train: Int[Tensor, " A"]
    held: Int[Tensor, " B"]
    validation: float
    seed: int


@dataclass(frozen=True)
class Fitted:
    """All that prediction needs. `sizes` is plain data: numbers, text and lists of them."""

    classes: tuple[int, ...] | tuple[str, ...]
    tensors: Tensors
    sizes: dict[str, Any]


@dataclass
class Head(ABC):
    """A way to turn the states of a frozen backbone into class scores.

    Options are fields. `uses_logits` heads combine the logits of per-state probes; the others ignore logits.
    `takes_list` heads want a list over backbones as features, `needs_labels` heads the labels at prediction.

    After `fit`, `report` holds: head, options, images (in the training and the validation part),
    configurations tried, their validation_accuracy (criterion says which), the chosen one, whether it was
    refitted, parameters (numbers learned; those of member probes apart), warnings.
    """

    uses_logits: ClassVar[bool] = False
    takes_list: ClassVar[bool] = False
    needs_labels: ClassVar[bool] = False
    criterion: ClassVar[str] = "accuracy"

    budget: SelectionBudget = field(default_factory=SelectionBudget, kw_only=True)
    fitted: Fitted | None = field(default=None, init=False, repr=False, compare=False)
    report: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def options(self) -> dict[str, Any]:
        """The options as plain data; the head is rebuilt from them."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.init and f.name != "budget"}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in own.items()}
        return plain | {"budget": {f.name: getattr(self.budget, f.name) for f in fields(self.budget)}}

    def fit(
        self,
        features: Features,
        logits: Float[Tensor, "K N C"] | None,
        labels: Labels,
        *,
        validation: float = 0.2,
        groups: Groups | None = None,
        seed: int = 0,
    ) -> "Head":
        """Fit to N images; the choice among configurations is made on a held-out share of them.

        `logits` are scores of per-state probes on the same images, classes in sorted order. They must be what
        the probes would say of unseen images, as those of `out_of_fold` are; scores of probes on their own
        training images would reward the state that overfits most. `validation` is the share of each class to
        hold out, `groups` names images that must not be separated, `seed` decides the split and the training.

        Raises ValueError for features or logits that are not finite (naming the state), lengths that differ,
        a single class, logits with another number of classes, and classes that cannot be split.
        """
        blocks = self._read(features)
        classes = distinct(labels)
        codes = encode(labels, classes).to(blocks[0].device)
        images = blocks[0].shape[1]
        if len(codes) != images:
            raise ValueError(f"there are {images} images in the features but {len(codes)} labels")
        if logits is not None and self.uses_logits:
            logits = checked_logits(logits, blocks, classes)
        part, held = holdout(codes, validation, seed, groups)
        problem = Problem(
            blocks, logits if self.uses_logits else None, codes, classes, groups, part, held, validation, seed
        )
        self.report = {
            "head": type(self).__name__,
            "options": self.options(),
            "images": {"train": len(part), "validation": len(held)},
            "configurations": [],
            "validation_accuracy": [],
            "criterion": self.criterion,
            "chosen": None,
            "refit": False,
            "parameters": 0,
            "probe_parameters": None,
            "warnings": [],
        }
        tensors, sizes = self._fit(problem)
        sizes["blocks"] = [[len(b), b.shape[2]] for b in blocks]
        sizes["classes"] = len(classes)
        self.fitted = Fitted(classes, {k: v.detach() for k, v in tensors.items()}, sizes)
        return self

    @torch.no_grad()
    def predict_logits(
        self, features: Features, logits: Float[Tensor, "K N C"] | None = None
    ) -> Float[Tensor, "N C"]:
        """Scores of every class, in the order of `classes`; softmax makes them probabilities.

        Raises ValueError before `fit`, and for features or logits that are not finite or of other shapes
        than those fitted.
        """
        return self._predict(*self._checked(features, logits))

    @property
    def classes(self) -> tuple[int, ...] | tuple[str, ...]:
        """The classes, in the order of the columns of `predict_logits`."""
        return self._require_fitted().classes

    def accuracy(
        self, features: Features, logits: Float[Tensor, "K N C"] | None, labels: Labels
    ) -> dict[str, float]:
        """Shares in [0, 1]: "accuracy" and "balanced_accuracy" (mean recall over the classes that occur).

        Raises ValueError, naming them, for labels that the head was not fitted on.
        """
        codes = encode(labels, self.classes)
        scores = self._scores_for(features, logits, labels)
        codes = codes.to(scores.device)
        if len(scores) != len(codes):
            raise ValueError(f"there are {len(scores)} images in the features but {len(codes)} labels")
        return {
            "accuracy": share_right(scores, codes),
            "balanced_accuracy": share_right(scores, codes, balanced=True),
        }

    def _checked(self, features: Features, logits: Tensor | None) -> tuple[Fitted, Blocks, Tensor | None]:
        fitted = self._require_fitted()
        blocks = self._read(features)
        found = [[len(b), b.shape[2]] for b in blocks]
        if found != fitted.sizes["blocks"]:
            raise ValueError(
                f"fitted on {described(fitted.sizes['blocks'])}, got {described(found)}: pass the same states"
            )
        if logits is not None and self.uses_logits:
            logits = checked_logits(logits, blocks, fitted.classes)
        return fitted, blocks, logits

    def _scores_for(self, features: Features, logits: Tensor | None, labels: Labels) -> Tensor:
        return self.predict_logits(features, logits)

    def _require_fitted(self) -> Fitted:
        if self.fitted is None:
            raise ValueError(f"this {type(self).__name__} is not fitted: call fit first")
        return self.fitted

    def _read(self, features: Features) -> Blocks:
        if not isinstance(features, Tensor):
            raise ValueError(
                f"{type(self).__name__} takes one tensor [K, N, D] of stacked states, got "
                f"{type(features).__name__}: only HFusion takes a list"
            )
        return (checked_states(features),)

    @abstractmethod
    def _fit(self, problem: Problem) -> tuple[Tensors, dict[str, Any]]:
        """Tensors and sizes of the fitted head; fills in the report."""

    @abstractmethod
    def _predict(self, fitted: Fitted, blocks: Blocks, logits: Tensor | None) -> Float[Tensor, "N C"]:
        """Scores, from checked input."""

    def _choose(self, tried: Sequence[Mapping[str, Any]], right: Sequence[float]) -> int:
        """Record what was tried; the first of the best is chosen."""
        best = int(np.argmax(right))
        self.report["configurations"] = [dict(t) for t in tried]
        self.report["validation_accuracy"] = [float(r) for r in right]
        self.report["chosen"] = dict(tried[best])
        self.report["refit"] = self.budget.refit
        return best
