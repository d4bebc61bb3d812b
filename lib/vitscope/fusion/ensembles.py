"""Rivals that combine the predictions of per-state probes: Super Learner, logit controller, mixture."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from vitscope.fusion.base import Fitted, Problem
from vitscope.fusion.checks import Blocks, share_right
from vitscope.fusion.layers import linear, shared_linear, stacked_linear
from vitscope.fusion.linear import mean_probability
from vitscope.fusion.members import MemberHead
from vitscope.fusion.scaling import joined
from vitscope.fusion.simplex import logit_weights, probability_weights
from vitscope.fusion.trained import TrainedHead
from vitscope.fusion.training import RATES, Configuration, Network, Noise, Tensors
from vitscope.protocol import Moments, moments
from vitscope.splits import stratified


@dataclass
class SuperLearner(MemberHead):
    """One weight per state for all images, fitted on out-of-fold predictions (van der Laan et al. 2007).

    w ≥ 0, Σ w = 1 minimise the cross-entropy of out-of-fold predictions, each made by a probe that never saw
    the image; the probes are then refitted on all images. Tried: weights of probabilities (the classical
    form) or of logits, each as fitted and half way to equal weights, which varies less where states are
    alike. Weights are learned on the training part for the choice, then again on all images;
    `report["weights"]` are the final ones [K].

    >>> labels = torch.arange(60) % 3
    >>> noise = torch.randn(2, 60, 4, generator=torch.Generator().manual_seed(0))
    >>> noise[0] += 6.0 * torch.nn.functional.one_hot(labels, 4)
    >>> [round(w, 1) for w in SuperLearner().fit(noise, None, labels).report["weights"]]
    [1.0, 0.0]
    """

    CANDIDATES: ClassVar[tuple[tuple[str, float], ...]] = (
        ("probabilities", 0.0), ("logits", 0.0), ("probabilities", 0.5), ("logits", 0.5),
    )  # fmt: skip

    def _fit(self, problem: Problem) -> tuple[Tensors, dict[str, Any]]:
        problem, own = self._with_members(problem)
        z = problem.logits
        assert z is not None  # given, or just made
        tried = self.CANDIDATES[: self.budget.configurations]
        spaces = {space for space, _ in tried}
        part = {s: _weights(s, z[:, problem.train], problem.codes[problem.train]) for s in sorted(spaces)}
        truth = problem.codes[problem.held]
        right = [
            share_right(_combined(space, z[:, problem.held], _shrunk(part[space], shrink)), truth)
            for space, shrink in tried
        ]
        best = self._choose([{"space": space, "shrink": shrink} for space, shrink in tried], right)
        space, shrink = tried[best]
        weight = _shrunk(_weights(space, z, problem.codes) if self.budget.refit else part[space], shrink)
        self.report["weights"] = weight.tolist()
        self.report["parameters"] = len(weight)
        return own | {"weight": weight}, {"space": space}

    def _predict(self, fitted: Fitted, blocks: Blocks, logits: Tensor | None) -> Float[Tensor, "N C"]:
        z = self._member_logits(fitted, blocks, logits)
        return _combined(fitted.sizes["space"], z, fitted.tensors["weight"].to(z.device))


def _weights(space: str, logits: Tensor, codes: Tensor) -> Float[Tensor, " K"]:
    return (probability_weights if space == "probabilities" else logit_weights)(logits, codes)


def _shrunk(weight: Tensor, shrink: float) -> Float[Tensor, " K"]:
    return (1 - shrink) * weight + shrink / len(weight)


def _combined(space: str, logits: Tensor, weight: Tensor) -> Float[Tensor, "N C"]:
    if space == "probabilities":
        return mean_probability(logits, weight)
    return torch.einsum("k,knc->nc", weight, logits)


class _ControlledHead(TrainedHead, MemberHead):
    """A network that looks at all states and says, image by image, what each member's vote is worth."""

    def _fit(self, problem: Problem) -> tuple[Tensors, dict[str, Any]]:
        problem, own = self._with_members(problem)
        tensors, sizes = super()._fit(problem)
        return own | tensors, sizes

    def _predict(self, fitted: Fitted, blocks: Blocks, logits: Tensor | None) -> Float[Tensor, "N C"]:
        return super()._predict(fitted, blocks, self._member_logits(fitted, blocks, logits))

    def _statistics(self, problem: Problem, part: Tensor) -> Tensors:
        return moments(joined([state[part] for state in problem.blocks[0]]))._asdict()

    def _inputs(self, statistics: Tensors, blocks: Blocks, logits: Tensor | None) -> tuple[Tensor, ...]:
        assert logits is not None  # given, or the members' own
        return Moments(**statistics).standardise(joined(list(blocks[0]))), logits.transpose(0, 1)


@dataclass
class NeuralLogitController(_ControlledHead):
    """A small network predicts one temperature per member and image (Rodriguez-Opazo et al., 2405.17139).

    a = softplus(MLP([x_1 … x_K])) in R^K, scores Σ_ℓ a_ℓ z_ℓ; one hidden layer of ReLU. Start: a_ℓ = 1/K, the
    average of logits. The map from temperature to weight is not given in the paper, softplus is ours.

    `share`: the part of the images that the network learns from, so that it sees votes as they are on images
    no probe has learned (the paper's 10 %). Our members' logits are out-of-fold, so the other 90 % need not
    be their only training images, and a share of 1 is legitimate, too. Learning rates are chosen, 2e-4 (the
    paper's) among them; refitted on that share of all images.

    Raises ValueError for a share outside (0, 1] and no hidden units; else errors as `Head.fit`.
    """

    hidden: int = 128
    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must lie in (0, 1], got {self.share}")
        if self.hidden < 1:
            raise ValueError(f"hidden must be at least 1 unit, got {self.hidden}")

    def configurations(self) -> list[Configuration]:
        return [{"lr": lr, "weight_decay": 0.01} for lr in (2e-4, 1e-3, 3e-3, 1e-2)]

    def _lesson(self, problem: Problem, part: Tensor) -> Tensor:
        if self.share == 1:
            return part
        return part[stratified(problem.codes[part], self.share, problem.seed)[1]]

    def _network(self, blocks: list[list[int]], classes: int) -> Network:
        states, width = blocks[0]
        return Controller(states, states * width, self.hidden)


class Controller(Network):
    """softplus(MLP(x)) as weights of the members' logits; x is [B, F], votes are [B, K, C]."""

    def __init__(self, members: int, inputs: int, hidden: int) -> None:
        self.members, self.inputs, self.hidden = members, inputs, hidden

    def initial(self, generator: torch.Generator) -> Tensors:
        """Weights that start as the plain average of the members."""
        first, second = (
            linear(self.inputs, self.hidden, generator),
            linear(self.hidden, self.members, generator),
        )
        average = torch.full((self.members,), 1 / self.members)
        return {
            "first.weight": first[0],
            "first.bias": first[1],
            "second.weight": torch.zeros_like(second[0]),
            "second.bias": average.expm1().log(),  # softplus undone
        }

    def forward(
        self, p: Tensors, *inputs: Tensor, noise: Noise | None = None
    ) -> tuple[Float[Tensor, "G B C"], None]:
        """Scores from x and votes."""
        x, votes = inputs
        hidden = shared_linear(x, p["first.weight"], p["first.bias"]).relu()
        worth = softplus(stacked_linear(hidden, p["second.weight"], p["second.bias"]))
        return torch.einsum("gbk,bkc->gbc", worth, votes), None


@dataclass
class MixtureOfExperts(_ControlledHead):
    """A softmax gate over the probes' probabilities; the probes, the experts, stay as they are.

    g = softmax(W [x_1 … x_K] + b), p = Σ_ℓ g_ℓ softmax(z_ℓ); scores are log p. Start: equal gates, the
    average of probabilities. No load balancing. Learning rates are chosen; refitted on all images.
    """

    def configurations(self) -> list[Configuration]:
        return [{"lr": lr, "weight_decay": 0.01} for lr in RATES]

    def _network(self, blocks: list[list[int]], classes: int) -> Network:
        states, width = blocks[0]
        return Gate(states, states * width)


class Gate(Network):
    """log Σ_ℓ softmax(W x + b)_ℓ softmax(z_ℓ); x is [B, F], votes are [B, K, C]."""

    def __init__(self, experts: int, inputs: int) -> None:
        self.experts, self.inputs = experts, inputs

    def initial(self, generator: torch.Generator) -> Tensors:
        """Weights that start as the plain average of the members."""
        return {
            "gate.weight": torch.zeros(self.experts, self.inputs),
            "gate.bias": torch.zeros(self.experts),
        }

    def forward(
        self, p: Tensors, *inputs: Tensor, noise: Noise | None = None
    ) -> tuple[Float[Tensor, "G B C"], None]:
        """Scores from x and votes."""
        x, votes = inputs
        gate = shared_linear(x, p["gate.weight"], p["gate.bias"]).log_softmax(2)
        return (gate[..., None] + votes.log_softmax(2)).logsumexp(2), None
