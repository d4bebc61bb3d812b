"""The parts of DINO that are no trainer: projection head, loss, and the two networks in one module."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitscope.pretrain.dino_recipe import DinoRecipe


class Head(nn.Module):
    """Features [N, D] to cosines with K prototypes [N, K]: a three-layer MLP, unit length, unit prototypes.

    Caron et al. (2021), appendix C. With `learn_norm` each prototype has a length of its own, which starts
    at 1; fixed lengths are the stabler choice.

    >>> head = Head(8, prototypes=5, hidden=16, bottleneck=4)
    >>> scores = head(torch.randn(3, 8))
    >>> tuple(scores.shape), bool((scores.abs() <= 1.0001).all())
    ((3, 5), True)
    """

    def __init__(
        self, width: int, *, prototypes: int, hidden: int, bottleneck: int, learn_norm: bool = False
    ) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, bottleneck),
        )
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                # keeps the scale at any width (0.022 at 2048, the authors 0.02): a bottleneck near zero has
                # a huge gradient through the unit length
                nn.init.trunc_normal_(layer.weight, std=layer.in_features**-0.5)
                nn.init.zeros_(layer.bias)
        self.last = nn.Parameter(torch.empty(prototypes, bottleneck))
        nn.init.normal_(self.last, std=1 / math.sqrt(bottleneck))
        self.length = nn.Parameter(torch.ones(prototypes)) if learn_norm else None

    def forward(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        points = F.normalize(self.mlp(features), dim=1)
        scores = points @ F.normalize(self.last, dim=1).T
        return scores if self.length is None else scores * self.length


class Dino(nn.Module):
    """Student and teacher, each a backbone with its head, and the centre of the teacher's scores [K]."""

    centre: Tensor

    def __init__(self, recipe: DinoRecipe) -> None:
        super().__init__()
        shape: dict[str, Any] = {
            "prototypes": recipe.prototypes,
            "hidden": recipe.hidden,
            "bottleneck": recipe.bottleneck,
            "learn_norm": recipe.learn_norm,
        }
        width = recipe.architecture.width
        # any multiple of the patch size; the tensors and their names are the plain architecture's
        self.student = recipe.architecture.build(dynamic_img_size=True, drop_path_rate=recipe.drop_path)
        self.teacher = recipe.architecture.build(dynamic_img_size=True)
        self.student_head, self.teacher_head = Head(width, **shape), Head(width, **shape)
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher_head.load_state_dict(self.student_head.state_dict())
        self.teacher.requires_grad_(False).eval()
        self.teacher_head.requires_grad_(False).eval()
        self.register_buffer("centre", torch.zeros(recipe.prototypes))

    def train(self, mode: bool = True) -> "Dino":
        """The teacher never leaves evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        self.teacher_head.eval()
        return self

    def learning(self) -> list[nn.Parameter]:
        """The parameters that gradients move: the student's."""
        return [p for p in self.parameters() if p.requires_grad]

    @torch.no_grad()
    def follow(self, momentum: float) -> None:
        """θ_teacher ← m·θ_teacher + (1 − m)·θ_student."""
        slow: list[Tensor] = [*self.teacher.parameters(), *self.teacher_head.parameters()]
        fast: list[Tensor] = [*self.student.parameters(), *self.student_head.parameters()]
        torch._foreach_lerp_(slow, fast, 1 - momentum)


def dino_loss(student: Float[Tensor, "V N K"], teacher: Float[Tensor, "G N K"]) -> Float[Tensor, ""]:
    """Mean cross-entropy H(teacher view g, student view v) over all pairs g ≠ v, in nats.

    `student` holds scores divided by the student's temperature, global views first; `teacher` holds
    probabilities of the global views. View g of both is the same crop, and such pairs are skipped.

    Raises `ValueError` where shapes do not match or no pair is left.

    >>> teacher = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> student = torch.zeros(2, 1, 2)
    >>> round(dino_loss(student, teacher).item(), 4)  # ln 2: the student does not know
    0.6931
    """
    views, globals_ = len(student), len(teacher)
    if student.shape[1:] != teacher.shape[1:] or globals_ > views:
        raise ValueError(
            f"student [V, N, K] and teacher [G, N, K] with G ≤ V are needed, "
            f"got {list(student.shape)} and {list(teacher.shape)}"
        )
    pairs = views * globals_ - globals_
    if pairs == 0:
        raise ValueError("one view in all leaves no pair of different views; give two or more")
    everyone = teacher.sum(0)
    # Σ_g −q_g·log p_v = G·logsumexp(s_v) − (Σ_g q_g)·s_v, with the own view taken out of both
    wanted = torch.cat([everyone - teacher, everyone.expand(views - globals_, *everyone.shape)])
    mass = wanted.sum(-1)
    return (mass * student.logsumexp(-1) - (wanted * student).sum(-1)).sum() / (pairs * student.shape[1])


def sinkhorn(
    scores: Float[Tensor, "G N K"],
    temperature: float,
    *,
    iterations: int = 3,
    mean: Callable[[Tensor], Tensor] = lambda part: part,
) -> Float[Tensor, "G N K"]:
    """Answers P ∝ exp(scores / T) that share the prototypes evenly: rows sum to 1, columns to G·N / K.

    Sinkhorn–Knopp as in SwAV (Caron et al. 2020, section 3.1) and DINOv2, over all views and samples of the
    batch: rows are scaled once, then `iterations` times columns and rows; rows are exact, columns nearly.
    `mean` averages a tensor over the processes that share a batch. Worked in float64 on logarithms: with low
    temperatures exp(scores / T) leaves single precision.

    Raises `ValueError` for a temperature that is not positive or fewer than one iteration.

    >>> answers = sinkhorn(torch.tensor([[[3.0, 0.0], [2.0, 1.9]]]), 1.0, iterations=50)
    >>> [round(v, 3) for v in answers.sum((0, 1)).tolist()]  # each prototype is used as often
    [1.0, 1.0]
    """
    if temperature <= 0 or iterations < 1:
        raise ValueError(
            f"need temperature > 0 and iterations ≥ 1, got temperature {temperature} and {iterations}"
        )
    log = (scores.double() / temperature).log_softmax(-1)
    for _ in range(iterations):
        used = mean(log.flatten(0, 1).logsumexp(0).exp()).log()
        log = (log - used).log_softmax(-1)
    return log.exp().to(scores.dtype)
