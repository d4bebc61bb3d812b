"""Attentive layer fusion: a learned query attends to the states, one head for each of them."""

import math
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import layer_norm, normalize

from vitscope.fusion.base import Problem
from vitscope.fusion.checks import Blocks
from vitscope.fusion.layers import linear, stacked_linear
from vitscope.fusion.trained import TrainedHead
from vitscope.fusion.training import Configuration, Network, Noise, Schedule, Tensors, train

SITES = ("block", "norm2")
_CLIP, _LAST_LR, _JITTER, _JITTER_SHARE = 5.0, 1e-6, 0.05, 0.5
_MOMENTUM, _EPS = 0.1, 1e-5  # of the batch normalisation
_FIRST = ((1e-2, 1e-2, 0.1), (1e-3, 1e-2, 0.1), (1e-2, 1e-2, 0.0), (1e-3, 1e-2, 0.0))
_GRID = ((1e-1, 1e-2, 1e-3), tuple(10.0**e for e in range(-6, 1)), (0.0, 0.1, 0.3))


@dataclass
class AttentiveLayerFusion(TrainedHead):
    """Cross-attention of one learned query over T stacked tokens (2601.09322, ICML 2026).

    Each token of width D is scaled to norm 1. With H = T heads of width d = 2⌊D/H⌋, at least 1, and query u:

        q = W_q LN_q(u),  K = W_k LN_k(x),  V = W_v LN_v(x),  A_h = softmax(q_h·K_h / √d) over T tokens
        scores = W_c BN(W_o concat_h(A_h V_h) + b_o) + b_c           (no positions, no bias of q, k and v)

    Training as in the authors' code: cross-entropy weighted N/(C n_c), AdamW with decay on all parameters,
    cosine to 1e-6 step by step, gradient norm at most 5, and in training only, with probability ½ per sample,
    noise N(0, 0.05²) on all its entries. `schedule`: "budget" trains as long as all heads; "paper" takes
    batches of 2048, at least five an epoch, and max(40, ⌈1000 / batches⌉) epochs. Tried are the first of the
    authors' 63 settings of rate, decay and attention dropout, the likeliest first; the criterion is balanced
    accuracy; the choice is refitted on all images.

    Two things differ from that code, both defects there: validation images get no noise, and tokens are
    normalised over their width, never over the token axis. `site` records where the tokens come from: "block"
    outputs as our captures hold them, or "norm2" outputs as in the paper. In the paper the stack holds CLS
    and mean patch token of twelve sites, T = 24; stack both kinds to repeat it.

    Raises ValueError for an unknown `site` or `schedule`; else errors as `Head.fit`.

    >>> from vitscope.fusion.training import SelectionBudget
    >>> labels = torch.arange(60) % 3
    >>> noise = torch.randn(2, 60, 8, generator=torch.Generator().manual_seed(0))
    >>> noise[0] += 6.0 * torch.nn.functional.one_hot(labels, 8)
    >>> head = AttentiveLayerFusion(budget=SelectionBudget(steps=60)).fit(noise, None, labels)
    >>> head.report["parameters"], head.accuracy(noise, None, labels)["accuracy"]
    (619, 1.0)
    """

    criterion: ClassVar[str] = "balanced accuracy"

    site: str = "block"
    schedule: str = "budget"

    def __post_init__(self) -> None:
        if self.site not in SITES:
            raise ValueError(f"site must be one of {', '.join(SITES)}, got {self.site!r}")
        if self.schedule not in ("budget", "paper"):
            raise ValueError(f"schedule must be 'budget' or 'paper', got {self.schedule!r}")

    def configurations(self) -> list[Configuration]:
        rest = [c for c in product(*_GRID) if c not in _FIRST]
        return [{"lr": lr, "weight_decay": wd, "dropout": drop} for lr, wd, drop in (*_FIRST, *rest)]

    def _statistics(self, problem: Problem, part: Tensor) -> Tensors:
        return {}

    def _inputs(self, statistics: Tensors, blocks: Blocks, logits: Tensor | None) -> tuple[Tensor, ...]:
        return (normalize(blocks[0], dim=2).transpose(0, 1),)

    def _network(self, blocks: list[list[int]], classes: int) -> Network:
        tokens, width = blocks[0]
        return AttentivePool(tokens, width, classes)

    def _train(
        self,
        network: Network,
        inputs: tuple[Tensor, ...],
        codes: Tensor,
        tried: list[Configuration],
        seed: int,
    ) -> list[Tensors]:
        counts = codes.bincount()
        weight = len(codes) / (len(counts) * counts[codes].float())
        return train(network, inputs, codes, tried, self._schedule(len(codes)), seed=seed, weight=weight)

    def _schedule(self, images: int) -> Schedule:
        if self.schedule == "budget":
            own = self.budget.schedule(images)
            return Schedule(own.epochs, own.batches, _CLIP, _LAST_LR)
        batches = max(5, round(images / 2048))
        return Schedule(max(40, math.ceil(1000 / batches)), batches, _CLIP, _LAST_LR)


class AttentivePool(Network):
    """The network over tokens [B, T, D] of norm 1.

    The query is one for all images, so q_h·K_h = (W_kᵀ q)_h · LN_k(x), and W_v is applied to tokens already
    pooled: the same numbers with T times fewer products.
    """

    def __init__(self, tokens: int, width: int, classes: int) -> None:
        self.heads, self.width, self.classes = tokens, width, classes
        self.head_width = max(1, 2 * (width // tokens))

    def initial(self, generator: torch.Generator) -> Tensors:
        """Weights as `torch.nn.Linear` draws them, norms as the identity, the query from N(0, 0.02²)."""
        inner, width = self.heads * self.head_width, self.width
        p = {"query": 0.02 * torch.randn(width, generator=generator)}
        for name in ("q", "k", "v"):
            p[f"norm_{name}.weight"], p[f"norm_{name}.bias"] = torch.ones(width), torch.zeros(width)
            p[f"{name}.weight"], _ = linear(width, inner, generator)
        p["out.weight"], p["out.bias"] = linear(inner, width, generator)
        p["batch_norm.weight"], p["batch_norm.bias"] = torch.ones(width), torch.zeros(width)
        p["head.weight"], p["head.bias"] = linear(width, self.classes, generator)
        return p

    def buffers(self) -> Tensors:
        """Running mean and variance of the batch normalisation."""
        return {"batch_norm.mean": torch.zeros(self.width), "batch_norm.variance": torch.ones(self.width)}

    def attention(
        self, p: Tensors, x: Float[Tensor, "B T D"], noise: Noise | None = None
    ) -> Float[Tensor, "G B H T"]:
        """Attention over the tokens `x` (after plain LayerNorm); rows sum to 1 without dropout."""
        query = layer_norm(p["query"], (self.width,)) * p["norm_q.weight"] + p["norm_q.bias"]
        q = torch.einsum("ged,gd->ge", p["q.weight"], query).unflatten(1, (self.heads, self.head_width))
        k = p["k.weight"].unflatten(1, (self.heads, self.head_width))
        direction = torch.einsum("ghe,ghed->ghd", q, k) / math.sqrt(self.head_width)
        offset = torch.einsum("ghd,gd->gh", direction, p["norm_k.bias"])
        direction = (direction * p["norm_k.weight"][:, None]).flatten(0, 1)
        scores = torch.nn.functional.linear(x, direction, offset.flatten())
        weights = scores.softmax(1).unflatten(2, (-1, self.heads)).permute(2, 0, 3, 1)
        return weights if noise is None else noise.drop(weights)

    def forward(
        self, p: Tensors, *inputs: Tensor, noise: Noise | None = None
    ) -> tuple[Float[Tensor, "G B C"], None]:
        """Scores; with `noise`, jittered tokens, dropout, and batch statistics that update the buffers."""
        (tokens,) = inputs
        if noise is not None:
            tokens = noise.jitter(tokens, _JITTER_SHARE, _JITTER)
        x = layer_norm(tokens, (self.width,))
        weights = self.attention(p, x, noise)
        configurations = len(weights)
        pooled = weights.transpose(0, 1).flatten(1, 2) @ x  # [B, G·H, D]
        pooled = pooled.unflatten(1, (configurations, self.heads)).permute(1, 2, 0, 3)  # [G, H, B, D]
        v = p["v.weight"].unflatten(1, (self.heads, self.head_width))
        offset = torch.einsum("ghed,gd->ghe", v, p["norm_v.bias"])
        # dropout keeps no sum of 1, so the offset of LN_v counts as often as attention is left
        mass = weights.sum(3).transpose(1, 2)[..., None]
        values = pooled @ (v * p["norm_v.weight"][:, None, None]).mT + mass * offset[:, :, None]
        heads = values.transpose(1, 2).flatten(2)
        z = stacked_linear(heads, p["out.weight"], p["out.bias"])
        z = self._batch_norm(p, z, training=noise is not None)
        return stacked_linear(z, p["head.weight"], p["head.bias"]), None

    def _batch_norm(self, p: Tensors, z: Float[Tensor, "G B D"], *, training: bool) -> Tensor:
        mean, variance = p["batch_norm.mean"], p["batch_norm.variance"]
        if training:
            own_mean, own_variance = z.mean(1), z.var(1, correction=0)
            unbiased = own_variance.detach() * z.shape[1] / max(1, z.shape[1] - 1)
            mean.lerp_(own_mean.detach(), _MOMENTUM)
            variance.lerp_(unbiased, _MOMENTUM)
            mean, variance = own_mean, own_variance
        unit = (z - mean[:, None]) * (variance[:, None] + _EPS).rsqrt()
        return unit * p["batch_norm.weight"][:, None] + p["batch_norm.bias"][:, None]
