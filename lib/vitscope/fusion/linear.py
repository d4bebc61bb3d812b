"""Rivals without a network: one layer's probe, the average of all, and one linear probe on all states."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitscope.fusion.base import Fitted, Head, Problem
from vitscope.fusion.checks import Blocks, share_right
from vitscope.fusion.members import MemberHead, budgeted_probes, pack
from vitscope.fusion.training import Tensors
from vitscope.probes import ProbeSet


def _report(head: Head, probes: ProbeSet, state: int) -> None:
    head._choose([{"l2": v} for v in probes.grid], probes.validation_accuracy[state].tolist())


@dataclass
class LastLayer(MemberHead):
    """The usual practice: the linear probe of the last state, everything before it unused.

    With logits it repeats those of the last state. Its own probe tries the strengths `members.L2` and is
    refitted on all images. Errors as `Head.fit`.

    >>> labels = torch.arange(60) % 3
    >>> noise = torch.randn(2, 60, 4, generator=torch.Generator().manual_seed(0))
    >>> noise[1] += 6.0 * torch.nn.functional.one_hot(labels, 4)
    >>> LastLayer().fit(noise, None, labels).accuracy(noise, None, labels)["accuracy"]
    1.0
    """

    def _fit(self, problem: Problem) -> tuple[Tensors, dict[str, Any]]:
        last = len(problem.blocks[0]) - 1
        if problem.logits is not None:
            return {}, {"members": [last]}
        probes = budgeted_probes(self, problem, problem.blocks[0][-1:])
        _report(self, probes, 0)
        return self._own(probes), {"members": [last]}

    def _predict(self, fitted: Fitted, blocks: Blocks, logits: Tensor | None) -> Float[Tensor, "N C"]:
        return self._member_logits(fitted, blocks, logits)[0]


@dataclass
class BestLayer(LastLayer):
    """The linear probe of the one state that is right most often on validation; the deepest of equals.

    `report["chosen"]` names the "state" (position in the stack); its own probes choose their strength, too.
    The best state found on test images instead would be no method: it cannot be known before the labels.
    """

    def _fit(self, problem: Problem) -> tuple[Tensors, dict[str, Any]]:
        if problem.logits is not None:
            truth = problem.codes[problem.held]
            right = [share_right(z[problem.held], truth) for z in problem.logits]
            best = _deepest_best(right)
            self.report["state_accuracy"] = right
            self.report["chosen"] = {"state": best}
            return {}, {"members": [best]}
        probes = budgeted_probes(self, problem, problem.blocks[0])
        right = probes.validation_accuracy.amax(1).tolist()
        best = _deepest_best(right)
        _report(self, probes, best)
        self.report["state_accuracy"] = right
        self.report["chosen"]["state"] = best
        return self._own(probes, [best]), {"members": [best]}


def _deepest_best(right: list[float]) -> int:
    return max(range(len(right)), key=lambda state: (right[state], state))


@dataclass
class LogitAverage(MemberHead):
    """The mean over states of logits z_ℓ, or of probabilities softmax(z_ℓ): nothing is learned or chosen.

    `space`: "logits" (a geometric mean of the probabilities) or "probabilities" (scores are then the log of
    the mean). Its own members are linear probes refitted on all images.

    Raises ValueError for another `space`; else errors as `Head.fit`.

    >>> labels = torch.tensor([0, 0, 0, 1, 1, 1])
    >>> logits = torch.tensor([[[0.0, 2.0]], [[0.0, 4.0]]]).expand(2, 6, 2)
    >>> head = LogitAverage().fit(torch.randn(2, 6, 4), logits, labels)
    >>> head.predict_logits(torch.randn(2, 6, 4), logits)[0].tolist()
    [0.0, 3.0]
    """

    space: str = "logits"

    def __post_init__(self) -> None:
        if self.space not in ("logits", "probabilities"):
            raise ValueError(f"space must be 'logits' or 'probabilities', got {self.space!r}")

    def _predict(self, fitted: Fitted, blocks: Blocks, logits: Tensor | None) -> Float[Tensor, "N C"]:
        z = self._member_logits(fitted, blocks, logits)
        if self.space == "logits":
            return z.mean(0)
        return mean_probability(z, z.new_full((len(z),), 1 / len(z)))


def mean_probability(logits: Float[Tensor, "K N C"], weight: Float[Tensor, " K"]) -> Float[Tensor, "N C"]:
    """log Σ_ℓ w_ℓ softmax(z_ℓ).

    >>> mean_probability(torch.tensor([[[0.0, 0.0]], [[0.0, 50.0]]]), torch.tensor([0.5, 0.5])).exp().tolist()
    [[0.25, 0.75]]
    """
    return (logits.log_softmax(2) + weight.log()[:, None, None]).logsumexp(0)


@dataclass
class ConcatLinear(Head):
    """One linear probe on all states side by side: what fusion gives without a nonlinear encoder.

    Multinomial logistic regression on [x_1 … x_K] in R^{KD}, standardised; the strength of its penalty is
    chosen among `members.L2` on validation, then it is refitted on all images. Errors as `Head.fit`.

    >>> labels = torch.arange(60) % 3
    >>> noise = torch.randn(2, 60, 4, generator=torch.Generator().manual_seed(0))
    >>> noise[0] += 6.0 * torch.nn.functional.one_hot(labels, 4)
    >>> head = ConcatLinear().fit(noise, None, labels)
    >>> head.report["parameters"], head.accuracy(noise, None, labels)["accuracy"]
    (27, 1.0)
    """

    def _fit(self, problem: Problem) -> tuple[Tensors, dict[str, Any]]:
        probes = budgeted_probes(self, problem, _side_by_side(problem.blocks[0]))
        _report(self, probes, 0)
        self.report["warnings"] += list(probes.warnings)
        packed = pack(probes)
        self.report["parameters"] = packed["probes.weight"].numel() + packed["probes.bias"].numel()
        return {k.removeprefix("probes."): v for k, v in packed.items()}, {}

    def _predict(self, fitted: Fitted, blocks: Blocks, logits: Tensor | None) -> Float[Tensor, "N C"]:
        x = _side_by_side(blocks[0])[0]
        t = {k: v[0].to(x.device) for k, v in fitted.tensors.items()}
        return torch.addmm(t["bias"], (x - t["mean"]) / t["scale"], t["weight"].mT)


def _side_by_side(x: Float[Tensor, "K N D"]) -> Float[Tensor, "1 N F"]:
    return x.transpose(0, 1).flatten(1)[None]
