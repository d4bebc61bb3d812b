"""Mini-batch training of a fusion head at several configurations at once.

The parameters of all configurations are stacked along a first axis G and go through one forward pass. Start,
order of the images and dropout masks are shared, so what a configuration becomes depends on its own settings
and the seed, not on which others are tried beside it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

Configuration = dict[str, float]
"""Settings of one run: "lr", "weight_decay", and where the head has them "dropout" and "penalty"."""

Tensors = dict[str, Tensor]

RATES = (3e-4, 1e-3, 3e-3, 1e-2)
"""Learning rates of heads that have nothing else to choose; the first ones if the budget is smaller."""

_EVALUATE = 1024  # images in one pass without gradients: members of many classes are large


@dataclass(frozen=True)
class Schedule:
    """How long to train: near-equal batches an epoch; cosine from the configuration's rate to `last_lr`.

    Step s of S has the rate ½(1 + cos πs/S)(lr − last_lr) + last_lr. `clip` bounds the norm of each
    configuration's gradient.
    """

    epochs: int
    batches: int
    clip: float | None = None
    last_lr: float = 0.0

    def rate(self, start: float, step: int) -> float:
        turn = 0.5 * (1 + math.cos(math.pi * step / (self.epochs * self.batches)))
        return turn * (start - self.last_lr) + self.last_lr


@dataclass(frozen=True)
class SelectionBudget:
    """What every head may spend, so that none wins by a longer search.

    A head tries the first `configurations` of its list on the training part and keeps the one that is right
    most often on validation, the first of equals. Each is trained for `epochs` in batches of about `batch`
    images, and for at least `steps` updates; convex heads are solved instead. With `refit` the choice is
    fitted again, with the same schedule, on training and validation images together.

    Raises ValueError for counts below 1.

    >>> SelectionBudget(epochs=12, batch=256, steps=300).schedule(8000)
    Schedule(epochs=12, batches=31, clip=None, last_lr=0.0)
    >>> SelectionBudget(epochs=12, batch=256, steps=300).schedule(800).epochs
    100
    """

    configurations: int = 4
    epochs: int = 12
    batch: int = 256
    steps: int = 300
    refit: bool = True

    def __post_init__(self) -> None:
        for name in ("configurations", "epochs", "batch", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of a budget must be at least 1, got {getattr(self, name)}")

    def schedule(self, images: int) -> Schedule:
        batches = max(1, round(images / self.batch))
        return Schedule(max(self.epochs, math.ceil(self.steps / batches)), batches)


class Noise:
    """Random parts of a training pass, drawn once for all configurations and scaled for each."""

    def __init__(self, configurations: Sequence[Configuration], seed: int, device: torch.device) -> None:
        self.generator = torch.Generator(device).manual_seed(seed)
        rates = [c.get("dropout", 0.0) for c in configurations]
        # one rate for all needs one mask for all
        self.rates = torch.tensor(rates[:1] if len(set(rates)) == 1 else rates, device=device)

    def drop(self, x: Float[Tensor, "G ..."]) -> Float[Tensor, "G ..."]:
        """Dropout at each configuration's rate; what survives is divided by the chance to survive."""
        if not self.rates.any():
            return x
        rate = self.rates.view(-1, *[1] * (x.ndim - 1))
        drawn = torch.rand(x.shape[1:], generator=self.generator, device=x.device)
        return x * ((drawn >= rate).to(x.dtype) / (1 - rate))

    def jitter(self, x: Float[Tensor, "B ..."], share: float, deviation: float) -> Tensor:
        """Gaussian noise on all entries of a `share` of the samples."""
        chosen = torch.rand(len(x), generator=self.generator, device=x.device) < share
        added = deviation * torch.randn(x.shape, generator=self.generator, device=x.device)
        return x + chosen.view(-1, *[1] * (x.ndim - 1)) * added


class Network(ABC):
    """What can be trained: tensors of one configuration, and a pass over stacked ones."""

    @abstractmethod
    def initial(self, generator: torch.Generator) -> Tensors:
        """Parameters before training."""

    def buffers(self) -> Tensors:
        """Tensors that a training pass updates in place and no gradient reaches, such as running means."""
        return {}

    @abstractmethod
    def forward(
        self, p: Tensors, *inputs: Tensor, noise: Noise | None = None
    ) -> tuple[Float[Tensor, "G B C"], Float[Tensor, "G B k"] | None]:
        """Scores, and the latent state that a penalty looks at, if any. `noise` is given in training only."""


def train(
    network: Network,
    inputs: Sequence[Tensor],
    codes: Int[Tensor, " N"],
    configurations: Sequence[Configuration],
    schedule: Schedule,
    *,
    seed: int,
    weight: Float[Tensor, " N"] | None = None,
) -> list[Tensors]:
    """Train every configuration by AdamW; returns parameters and buffers of each, on the inputs' device.

    Per batch: Σ_i w_i CE_i / Σ_i w_i + λ · `decorrelation`(z), with λ = "penalty" and weights 1 by default.
    Inputs have images first. Weight decay acts on all parameters.
    """
    device = codes.device
    start = network.initial(torch.Generator().manual_seed(seed))
    stacked = {
        k: v.to(device).repeat(len(configurations), *[1] * v.ndim).requires_grad_() for k, v in start.items()
    }
    # slices of the stacked tensors: the optimiser writes through them, and nothing is copied at a step
    leaves = [{k: v.detach()[g] for k, v in stacked.items()} for g in range(len(configurations))]
    buffers = {
        k: v.to(device).repeat(len(leaves), *[1] * v.ndim).contiguous() for k, v in network.buffers().items()
    }
    groups = [
        {"params": list(leaf.values()), "lr": c["lr"], "weight_decay": c["weight_decay"]}
        for leaf, c in zip(leaves, configurations, strict=True)
    ]
    optimiser = torch.optim.AdamW(groups, fused=True)
    penalty = torch.tensor([c.get("penalty", 0.0) for c in configurations], device=device)
    noise = Noise(configurations, seed, device)
    shuffle = torch.Generator().manual_seed(seed)
    step = 0
    with torch.enable_grad():
        for _ in range(schedule.epochs):
            order = torch.randperm(len(codes), generator=shuffle).to(device)
            for batch in order.tensor_split(schedule.batches):
                for group, c in zip(optimiser.param_groups, configurations, strict=True):
                    group["lr"] = schedule.rate(c["lr"], step)
                scores, latent = network.forward(stacked | buffers, *(x[batch] for x in inputs), noise=noise)
                loss = _cross_entropy(scores, codes[batch], None if weight is None else weight[batch])
                if latent is not None and penalty.any():
                    loss = loss + penalty * decorrelation(latent)
                slopes = torch.autograd.grad(loss.sum(), list(stacked.values()))
                for name, slope in zip(stacked, slopes, strict=True):
                    # the fused step reads memory in order, whatever the strides say
                    for leaf, own in zip(leaves, slope.contiguous(), strict=True):
                        leaf[name].grad = own
                if schedule.clip is not None:
                    for leaf in leaves:
                        torch.nn.utils.clip_grad_norm_(leaf.values(), schedule.clip)
                optimiser.step()
                step += 1
    return [
        {k: v.clone() for k, v in leaf.items()} | {k: v[g].clone() for k, v in buffers.items()}
        for g, leaf in enumerate(leaves)
    ]


def _cross_entropy(scores: Tensor, codes: Tensor, weight: Tensor | None) -> Float[Tensor, " G"]:
    each = cross_entropy(scores.flatten(0, 1), codes.repeat(len(scores)), reduction="none")
    each = each.view(len(scores), -1)
    return each.mean(1) if weight is None else (each * weight).sum(1) / weight.sum()


@torch.no_grad()
def evaluate(network: Network, trained: Tensors, inputs: Sequence[Tensor]) -> Float[Tensor, "N C"]:
    """Scores of all images at one configuration, without noise, a block of images at a time."""
    p = {k: v[None] for k, v in trained.items()}
    parts = [x.split(_EVALUATE) for x in inputs]
    return torch.cat([network.forward(p, *part)[0][0] for part in zip(*parts, strict=True)])


def decorrelation(z: Float[Tensor, "*G B k"]) -> Float[Tensor, "*G"]:
    """Mean squared correlation between different latent dimensions over a batch, in [0, 1].

        Σ_{i≠j} Ĉ_ij² / (k (k − 1)),      Ĉ the correlation matrix of z [B, k] over the batch

    It is the second term of Barlow Twins with both views equal (Zbontar et al. 2021). A dimension that does
    not vary counts as uncorrelated. With fewer than k + 1 samples no z can reach 0: keep batches larger.

    Raises ValueError for a latent of one dimension, which has no pairs.

    >>> x = torch.tensor([1.0, -1.0, 1.0, -1.0])
    >>> y = torch.tensor([1.0, 1.0, -1.0, -1.0])
    >>> decorrelation(torch.stack([x, 2 * x], 1)).item(), decorrelation(torch.stack([x, y], 1)).item()
    (1.0, 0.0)
    """
    k = z.shape[-1]
    if k < 2:
        raise ValueError("correlations need a latent of at least 2 dimensions, got 1")
    unit = normalize(z - z.mean(-2, keepdim=True), dim=-2, eps=1e-6)
    squared = (unit.mT @ unit).square()
    off = squared.sum((-2, -1)) - squared.diagonal(dim1=-2, dim2=-1).sum(-1)
    return off / (k * (k - 1))
