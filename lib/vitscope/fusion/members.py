"""Linear probes of every state as the members of an ensemble, with out-of-fold logits to fit it on."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vitscope.fusion.base import Fitted, Head, Problem
from vitscope.fusion.checks import Blocks, checked_states
from vitscope.fusion.training import Tensors
from vitscope.holdout import Groups, fold_numbers, holdout
from vitscope.probes import ProbeSet, fit_probes, logits_at
from vitscope.splits import Labels, distinct, encode, label_array

L2 = (1e-1, 1e-2, 1e-3, 1e-4)
"""Strengths of the penalty that linear heads and members choose from: four, as the default budget allows."""

FOLDS = 5


@dataclass(frozen=True)
class Members:
    """Out-of-fold `logits` of the images fitted, and `probes` of all of them for images to come."""

    logits: Float[Tensor, "K N C"]
    probes: ProbeSet


def out_of_fold(
    features: Float[Tensor, "K N D"],
    labels: Labels,
    *,
    folds: int = FOLDS,
    l2: tuple[float, ...] = L2,
    validation: float = 0.2,
    groups: Groups | None = None,
    seed: int = 0,
) -> Members:
    """Logits of every image from probes that were fitted without its fold (van der Laan et al. 2007).

    The strength of each state's penalty is chosen once, on the held-out share; then each of `folds` parts is
    predicted by probes of the others, standardised on the others. Images of one group share a fold. Pass
    `.logits` to the `fit` of several heads and `.probes.logits(test)` to their predictions: they then combine
    the same members, and the folds are fitted once.

    Raises ValueError for features that are not finite, labels that are none, and folds too many for a class.

    >>> labels = torch.arange(60) % 3
    >>> noise = torch.randn(2, 60, 4, generator=torch.Generator().manual_seed(0))
    >>> members = out_of_fold(noise + 6.0 * torch.nn.functional.one_hot(labels, 4), labels)
    >>> members.logits.shape, (members.logits.argmax(2) == labels).double().mean(1).tolist()
    (torch.Size([2, 60, 3]), [1.0, 1.0])
    """
    x = checked_states(features)
    classes = distinct(labels)
    codes = encode(labels, classes).to(x.device)
    if len(codes) != x.shape[1]:
        raise ValueError(f"there are {x.shape[1]} images in the features but {len(codes)} labels")
    numbers = fold_numbers(codes, folds, seed, groups)
    part, held = holdout(codes, validation, seed, groups)
    named = label_array(labels)
    probes = fit_probes(
        x[:, part], named[part.cpu()], l2=l2, validation=(x[:, held], named[held.cpu()]), seed=seed
    )  # fmt: skip
    logits = x.new_empty(len(x), len(codes), len(classes))
    for fold in range(int(numbers.max()) + 1):
        rest, own = (numbers != fold).nonzero()[:, 0], (numbers == fold).nonzero()[:, 0]
        logits[:, own], _ = logits_at(x[:, rest], codes[rest], len(classes), probes.chosen_l2, x[:, own])
    return Members(logits, probes)


def pack(probes: ProbeSet, states: slice | list[int] = slice(None)) -> Tensors:
    """What prediction needs of the probes of some states, as named tensors."""
    return {
        f"probes.{name}": getattr(probes, name)[states].contiguous()
        for name in ("mean", "scale", "weight", "bias")
    }


def budgeted_probes(head: Head, problem: Problem, x: Float[Tensor, "S N D"]) -> ProbeSet:
    """Linear probes at as many strengths as the head's budget allows, chosen on the validation part."""
    return fit_probes(
        x[:, problem.train],
        problem.codes[problem.train],
        l2=L2[: head.budget.configurations],
        validation=(x[:, problem.held], problem.codes[problem.held]),
        seed=problem.seed,
        refit=head.budget.refit,
    )


class MemberHead(Head):
    """A head over the logits of per-state probes: those given, or those of its own linear probes.

    Fitted without logits, a head fits its own members (`out_of_fold`) and always predicts with them. Fitted
    with logits, it needs the logits of the same probes at prediction.
    """

    uses_logits: ClassVar[bool] = True

    def _fit(self, problem: Problem) -> tuple[Tensors, dict[str, Any]]:
        """Members and nothing else: what a head needs that learns no combination."""
        if problem.logits is not None:
            return {}, {}
        return self._own(budgeted_probes(self, problem, problem.blocks[0])), {}

    def _with_members(self, problem: Problem) -> tuple[Problem, Tensors]:
        """The problem with honest logits, and the packed probes if they are the head's own."""
        if problem.logits is not None:
            return problem, {}
        members = out_of_fold(
            problem.blocks[0],
            problem.codes,
            l2=L2[: self.budget.configurations],
            validation=problem.validation,
            groups=problem.groups,
            seed=problem.seed,
        )
        return replace(problem, logits=members.logits), self._own(members.probes)

    def _own(self, probes: ProbeSet, states: slice | list[int] = slice(None)) -> Tensors:
        packed = pack(probes, states)
        self.report["probe_parameters"] = packed["probes.weight"].numel() + packed["probes.bias"].numel()
        self.report["warnings"] += list(probes.warnings)
        return packed

    def _member_logits(self, fitted: Fitted, blocks: Blocks, logits: Tensor | None) -> Float[Tensor, "M N C"]:
        """Logits of the states in sizes["members"] (all states, if there is no such entry)."""
        (x,) = blocks
        states = fitted.sizes.get("members", list(range(len(x))))
        if "probes.weight" in fitted.tensors:
            mean, scale, weight, bias = (
                fitted.tensors[f"probes.{name}"].to(x.device) for name in ("mean", "scale", "weight", "bias")
            )
            standard = (x[states] - mean[:, None]) / scale[:, None]
            return torch.baddbmm(bias[:, None], standard, weight.mT)
        if logits is None:
            raise ValueError(
                f"this {type(self).__name__} was fitted on given logits: pass those of the same probes, or "
                "fit it with logits=None to let it bring its own"
            )
        return logits[states]
