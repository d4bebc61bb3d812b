"""VFusion: all states of one backbone condensed into one token; and the last state alone, at equal size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from vitscope.fusion.base import Problem
from vitscope.fusion.checks import Blocks
from vitscope.fusion.layers import linear, shared_linear, stacked_linear
from vitscope.fusion.scaling import joined
from vitscope.fusion.trained import TrainedHead
from vitscope.fusion.training import RATES, Configuration, Network, Noise, Tensors
from vitscope.protocol import Moments, moments

SUBSETS = ("holistic", "last_half", "strided")
_WEIGHT_DECAY = 0.05
_SLOW_AND_FAST = (RATES[0], RATES[2])  # many classes with few images each need the fast one


def subset(count: int, states: str) -> list[int]:
    """Positions that a strategy keeps of `count` stacked states, in order.

    "holistic": all; "last_half": the last ⌊count/2⌋ (of states 0 … L those with ℓ > L/2); "strided": every
    second one, ending at the last.

    >>> subset(5, "holistic"), subset(5, "last_half"), subset(5, "strided")
    ([0, 1, 2, 3, 4], [3, 4], [0, 2, 4])
    """
    if states == "last_half":
        return list(range(count - max(1, count // 2), count))
    return list(range((count - 1) % 2, count, 2)) if states == "strided" else list(range(count))


@dataclass
class VFusion(TrainedHead):
    """Vertical fusion: concatenated states through a bottleneck (paper B, 2607.10391; sizes are ours).

        v = concat_ℓ LN(x_ℓ),   z = LN(W₂ GELU(W₁ v)),   scores = W₃ z        (biases everywhere)
        loss = cross-entropy + λ Σ_{i≠j} Ĉ_ij² / (k (k − 1)),   Ĉ the batch correlation of z in R^k

    v is standardised with the training images in place of the LayerNorms' own gains. `states` says which are
    used (`subset`), `encoder="linear"` leaves out GELU and hidden layer, `hidden` and `latent` are sizes,
    `dropout` acts on the hidden layer. `penalty` is λ: of several, one is chosen on validation together with
    a slow or a fast learning rate, both rates before the next λ; a single λ (0: a control without penalty)
    spends the same budget on the rates of `training.RATES`. The choice is refitted on all images.

    Raises ValueError for unknown `states` or `encoder`, sizes and rates out of range; else as `Head.fit`.

    >>> from vitscope.fusion.training import SelectionBudget
    >>> labels = torch.arange(60) % 3
    >>> noise = torch.randn(2, 60, 8, generator=torch.Generator().manual_seed(0))
    >>> noise[0] += 6.0 * torch.nn.functional.one_hot(labels, 8)
    >>> head = VFusion(penalty=0.0, hidden=16, latent=4, budget=SelectionBudget(steps=60))
    >>> head = head.fit(noise, None, labels)
    >>> head.report["parameters"], head.accuracy(noise, None, labels)["accuracy"]
    (363, 1.0)
    """

    states: str = "holistic"
    encoder: str = "mlp"
    penalty: float | Sequence[float] = (0.0, 0.1, 0.01, 1.0)
    hidden: int = 256
    latent: int = 64
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.states not in SUBSETS:
            raise ValueError(f"states must be one of {', '.join(SUBSETS)}, got {self.states!r}")
        if self.encoder not in ("mlp", "linear"):
            raise ValueError(f"encoder must be 'mlp' or 'linear', got {self.encoder!r}")
        if self.hidden < 1 or self.latent < 2:
            raise ValueError(
                f"hidden must be at least 1 and latent at least 2, got {self.hidden} and {self.latent}"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")
        if isinstance(self.penalty, Sequence):
            self.penalty = tuple(float(v) for v in self.penalty)
        if not self._penalties() or min(self._penalties()) < 0:
            raise ValueError(f"penalty must be one or more λ ≥ 0, got {self.penalty}")

    def _penalties(self) -> tuple[float, ...]:
        return tuple(self.penalty) if isinstance(self.penalty, Sequence) else (float(self.penalty),)

    def configurations(self) -> list[Configuration]:
        fixed = {"weight_decay": _WEIGHT_DECAY, "dropout": self.dropout}
        penalties = self._penalties()
        if len(penalties) == 1:
            return [{"lr": lr, "penalty": penalties[0], **fixed} for lr in RATES]
        return [{"lr": lr, "penalty": penalty, **fixed} for penalty in penalties for lr in _SLOW_AND_FAST]

    def _kept(self, blocks: list[list[int]]) -> list[list[int]]:
        """Positions used, for each block."""
        return [subset(count, self.states) for count, _ in blocks]

    def _entries(self, blocks: Blocks) -> list[Float[Tensor, "N _"]]:
        kept = self._kept([[len(b), b.shape[2]] for b in blocks])
        return [block[s] for block, positions in zip(blocks, kept, strict=True) for s in positions]

    def _inputs_width(self, blocks: list[list[int]]) -> int:
        kept = self._kept(blocks)
        return sum(len(positions) * width for positions, (_, width) in zip(kept, blocks, strict=True))

    def _statistics(self, problem: Problem, part: Tensor) -> Tensors:
        return moments(joined([entry[part] for entry in self._entries(problem.blocks)]))._asdict()

    def _inputs(self, statistics: Tensors, blocks: Blocks, logits: Tensor | None) -> tuple[Tensor, ...]:
        return (Moments(**statistics).standardise(joined(self._entries(blocks))),)

    def _network(self, blocks: list[list[int]], classes: int) -> Network:
        hidden = None if self.encoder == "linear" else self.hidden
        return FusionEncoder(self._inputs_width(blocks), hidden, self.latent, classes)

    def _fit(self, problem: Problem) -> tuple[Tensors, dict[str, Any]]:
        smallest = len(problem.train) // self.budget.schedule(len(problem.train)).batches
        if max(self._penalties()) > 0 and smallest <= self.latent:
            self.report["warnings"].append(
                f"batches of {smallest} images cannot decorrelate {self.latent} latent dimensions: the "
                "penalty is limited by their rank; use a larger batch or a smaller latent"
            )
        return super()._fit(problem)


@dataclass
class LastLayerMLP(VFusion):
    """The control for size: VFusion's encoder on the last state alone, with as many parameters.

    The hidden layer is as wide as makes the count that of `VFusion` with the same options, to within half a
    hidden unit. What VFusion gains over it comes from the other states, not from parameters.

    Raises ValueError for a linear encoder, which has no width to adapt; else as `VFusion`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder == "linear":
            raise ValueError("LastLayerMLP adapts its hidden layer to VFusion's size: encoder must be 'mlp'")

    def _kept(self, blocks: list[list[int]]) -> list[list[int]]:
        return [[count - 1] for count, _ in blocks]

    def _network(self, blocks: list[list[int]], classes: int) -> Network:
        own = self._inputs_width(blocks)
        fused = sum(len(subset(count, self.states)) * width for count, width in blocks)
        # a hidden unit costs its inputs, its bias and its latent weights
        hidden = round(self.hidden * (fused + 1 + self.latent) / (own + 1 + self.latent))
        return FusionEncoder(own, hidden, self.latent, classes)


class FusionEncoder(Network):
    """v -> hidden -> z -> scores; without hidden layer if `hidden` is None."""

    def __init__(self, inputs: int, hidden: int | None, latent: int, classes: int) -> None:
        self.inputs, self.hidden, self.latent, self.classes = inputs, hidden, latent, classes

    def initial(self, generator: torch.Generator) -> Tensors:
        """Weights as `torch.nn.Linear` draws them; the LayerNorm starts as the identity."""
        sizes = {"encoder.0": (self.inputs, self.hidden or self.latent)}
        if self.hidden is not None:
            sizes["encoder.1"] = (self.hidden, self.latent)
        sizes["head"] = (self.latent, self.classes)
        p = {}
        for name, (inputs, outputs) in sizes.items():
            p[f"{name}.weight"], p[f"{name}.bias"] = linear(inputs, outputs, generator)
        return p | {"norm.weight": torch.ones(self.latent), "norm.bias": torch.zeros(self.latent)}

    def forward(
        self, p: Tensors, *inputs: Tensor, noise: Noise | None = None
    ) -> tuple[Float[Tensor, "G B C"], Float[Tensor, "G B k"]]:
        """Scores and the latent token z."""
        (v,) = inputs
        z = shared_linear(v, p["encoder.0.weight"], p["encoder.0.bias"])
        if self.hidden is not None:
            z = gelu(z)
            z = z if noise is None else noise.drop(z)
            z = stacked_linear(z, p["encoder.1.weight"], p["encoder.1.bias"])
        z = layer_norm(z, (self.latent,)) * p["norm.weight"][:, None] + p["norm.bias"][:, None]
        return stacked_linear(z, p["head.weight"], p["head.bias"]), z
