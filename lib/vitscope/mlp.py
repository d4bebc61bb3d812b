"""Many small networks trained together: one per state and weight decay, by batched products.

Each of the S × G networks has one hidden layer,

    logits = W₂ GELU(W₁ x + b₁) + b₂,

and minimises the mean cross-entropy by Adam, with decoupled decay of W₁ and W₂ (Loshchilov and Hutter 2019,
1711.05101) and a learning rate that falls to 0 on a cosine. All have the same start and the same order of
images, and none reads another: a network is what it would be alone, up to rounding.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

_IMAGES_AT_ONCE = 1024  # of the held-out ones


class Network(NamedTuple):
    """Weights and biases of networks; `...` are the axes along which they are stacked."""

    hidden_weight: Float[Tensor, "... D H"]
    hidden_bias: Float[Tensor, "... 1 H"]
    weight: Float[Tensor, "... H C"]
    bias: Float[Tensor, "... 1 C"]


class MLPs(NamedTuple):
    """Every network at its epoch of least held-out cross-entropy: `loss`, share `right`, `epoch` from 1.

    An infinite loss: it never had a finite one.
    """

    networks: Network
    loss: Float[Tensor, "S G"]
    right: Float[Tensor, "S G"]
    epoch: Int[Tensor, "S G"]


def apply(network: Network, x: Float[Tensor, "P N D"]) -> Float[Tensor, "P N C"]:
    """Logits of P networks, each on its own features."""
    units = functional.gelu(torch.baddbmm(network.hidden_bias, x, network.hidden_weight))
    return torch.baddbmm(network.bias, units, network.weight)


def fit_mlps(
    x: Float[Tensor, "S N D"],
    codes: Int[Tensor, " N"],
    held: Float[Tensor, "S V D"],
    held_codes: Int[Tensor, " V"],
    classes: int,
    decays: Sequence[float],
    *,
    hidden: int,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> MLPs:
    """Train S × G networks on standardised float32 features; labels are 0…classes−1.

    `learning_rate` is that of the first step. A step at rate r shrinks the weights by 1 − r · decay. Raises
    ValueError for counts below 1, and for a rate that is not positive or at which a decay overshoots 0.
    """
    counts = {"hidden": hidden, "epochs": epochs, "batch_size": batch_size}
    for what, number in counts.items():
        if number < 1:
            raise ValueError(f"{what} must be at least 1, got {number}")
    if not 0 < learning_rate < float("inf") or learning_rate * max(decays) >= 1:
        raise ValueError(
            f"learning_rate must be positive and below 1 / (strongest decay), got {learning_rate} with decay "
            f"{max(decays):g}"
        )
    training = _Training(x, codes, classes, decays, hidden, seed)
    best = _Best(training.network)
    batches = math.ceil(len(codes) / batch_size)
    for epoch in range(epochs):
        phases = ((epoch + i / batches) / epochs for i in range(batches))
        training.epoch(batch_size, [learning_rate * (1 + math.cos(math.pi * p)) / 2 for p in phases])
        best.update(training.network, *training.measure(held, held_codes), epoch + 1)
    shape = (len(x), len(decays))
    return MLPs(
        Network(*(p.unflatten(0, shape) for p in best.network)),
        best.loss.view(shape),
        best.right.view(shape),
        best.epoch.view(shape),
    )


class _Training:
    """P = S·G networks; number s·G + g is that of state s with decay g."""

    def __init__(
        self,
        x: Tensor,
        codes: Tensor,
        classes: int,
        decays: Sequence[float],
        hidden: int,
        seed: int,
    ) -> None:
        self.x, self.codes, self.each = x, codes, len(decays)
        # On the CPU, so that a seed means the same start and order on every device.
        self.generator = torch.Generator().manual_seed(seed)
        start = (
            _uniform(x.shape[2], hidden, self.generator),
            torch.zeros(1, hidden),
            _uniform(hidden, classes, self.generator),
            torch.zeros(1, classes),
        )
        problems = len(x) * self.each
        self.network = Network(*(p.to(x.device).repeat(problems, 1, 1).requires_grad_() for p in start))
        self.optimizer = torch.optim.Adam(self.network)
        self.decay = torch.tensor(list(decays), device=x.device).repeat(len(x))[:, None, None]

    @torch.enable_grad()
    def epoch(self, batch_size: int, rates: list[float]) -> None:
        order = torch.randperm(self.x.shape[1], generator=self.generator).to(self.x.device)
        for rows, rate in zip(order.split(batch_size), rates, strict=True):
            logits = apply(self.network, self._for_each(self.x[:, rows]))
            # A sum over networks of means over images: each gets the gradient of its own loss.
            targets = self.codes[rows].repeat(len(logits))
            loss = functional.cross_entropy(logits.flatten(0, 1), targets, reduction="sum") / len(rows)
            self.optimizer.zero_grad()
            loss.backward()
            with torch.no_grad():
                self.network.hidden_weight.mul_(1 - rate * self.decay)
                self.network.weight.mul_(1 - rate * self.decay)
            self.optimizer.param_groups[0]["lr"] = rate
            self.optimizer.step()

    @torch.no_grad()
    def measure(self, held: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy and share right of each network, in float64."""
        loss = torch.zeros(len(self.decay), dtype=torch.float64, device=held.device)
        right = torch.zeros_like(loss)
        for i in range(0, len(codes), _IMAGES_AT_ONCE):
            part = codes[i : i + _IMAGES_AT_ONCE]
            logits = apply(self.network, self._for_each(held[:, i : i + _IMAGES_AT_ONCE]))
            true = logits.log_softmax(2).gather(2, part.expand(len(logits), -1)[..., None])
            loss -= true.sum((1, 2), dtype=torch.float64)
            right += (logits.argmax(2) == part).sum(1)
        return loss / len(codes), right / len(codes)

    def _for_each(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.each, 0)


class _Best:
    """The best epoch of each network so far."""

    def __init__(self, network: Network) -> None:
        self.network = Network(*(p.detach().clone() for p in network))
        problems, device = len(network.bias), network.bias.device
        self.loss = torch.full((problems,), torch.inf, dtype=torch.float64, device=device)
        self.right = torch.zeros_like(self.loss)
        self.epoch = torch.zeros(problems, dtype=torch.long, device=device)

    @torch.no_grad()
    def update(self, network: Network, loss: Tensor, right: Tensor, epoch: int) -> None:
        better = loss < self.loss
        for kept, now in zip(self.network, network, strict=True):
            kept[better] = now[better]
        self.loss = torch.where(better, loss, self.loss)
        self.right = torch.where(better, right, self.right)
        self.epoch[better] = epoch


def _uniform(width: int, units: int, generator: torch.Generator) -> Tensor:
    """The start that torch gives a linear layer: uniform within ± 1/√width."""
    return (2 * torch.rand(width, units, generator=generator) - 1) / width**0.5
