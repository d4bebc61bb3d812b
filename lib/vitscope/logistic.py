"""Multinomial logistic regression of many states and regularisations as one batched problem.

For each state with features x_i in R^D, labels y_i and each strength λ it minimises

    (1/N) Σ_i −log softmax(W x_i + b)[y_i]  +  (λ/2) ‖W‖²        (b is not penalised),

the objective of scikit-learn's `LogisticRegression` with C = 1/(λN). Features are first rotated onto the
eigenvectors of their covariance. The penalty does not see a rotation, but the Hessian at W = 0 becomes
almost diagonal, π_c·e_d + λ for class share π_c and eigenvalue e_d: a preconditioner that makes one step of
the solver nearly a Newton step, at every λ, however ill-conditioned the features are.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitscope.lbfgs import minimise

TOLERANCE = 3e-5
"""Largest entry of the gradient at which a fit counts as converged. Accuracies then agree to about 0.1 points
with those of a float64 solution, also where the classes nearly separate and l2 is weakest."""

_CPU_BLOCK_BYTES = 1 << 20  # logits of one block stay in cache
_DEVICE_BLOCK_BYTES = 512 << 20


@dataclass(frozen=True)
class Spectrum:
    """Eigenvectors and eigenvalues of the features' second moments, directions without variance left out.

    Padded with zeros where a state of the block has a lower rank than the others.
    """

    vectors: Float[Tensor, "S D K"]
    values: Float[Tensor, "S K"]


@dataclass(frozen=True)
class Fits:
    """Weights and bias of every state and strength, in the coordinates of the features given."""

    weight: Float[Tensor, "S G C D"]
    bias: Float[Tensor, "S G C"]
    converged: Bool[Tensor, "S G"]
    iterations: Int[Tensor, "S G"]


def spectrum(features: Float[Tensor, "S N D"]) -> Spectrum:
    """Eigendecomposition of XᵀX/N for each state (features centred), in float64, returned in float32."""
    x = features.double()
    images, width = x.shape[1:]
    few = images < width  # then the images' products have the same eigenvalues in a smaller matrix
    values, vectors = torch.linalg.eigh((x @ x.mT if few else x.mT @ x) / images)
    # Features in float32 carry rounding noise of relative variance eps²; a direction at that level is empty.
    noise = values[:, -1:].clamp_min(0) * width * torch.finfo(torch.float32).eps ** 2
    filled = values > noise
    if few:
        vectors = x.mT @ vectors / (images * torch.where(filled, values, 1.0)).sqrt()[:, None]
    rank = max(1, int(filled.sum(1).max()))
    values, vectors, filled = values[:, -rank:], vectors[..., -rank:], filled[:, -rank:]
    return Spectrum((vectors * filled[:, None]).float(), (values * filled).float())


def fit_logistic(
    features: Float[Tensor, "S N D"],
    codes: Int[Tensor, " N"],
    classes: int,
    l2: Float[Tensor, "S G"],
    *,
    tolerance: float = TOLERANCE,
    max_iter: int = 1000,
) -> Fits:
    """Fit all states at all strengths `l2` (each > 0). Features: standardised float32. Labels: 0…classes−1.

    `tolerance` bounds the largest entry of the gradient of the mean loss, as `tol` does in scikit-learn.
    All start from W = 0 and b = log shares: with this preconditioner, starting a strength from the solution
    of the next stronger one saves few iterations, and solving all at once makes larger, faster products.
    """
    states, images, _ = features.shape
    per_state = images * l2.shape[1] * classes * features.element_size()
    block = max(1, _block_bytes(features) // per_state)
    parts = [
        _fit_block(features[i : i + block], codes, classes, l2[i : i + block], tolerance, max_iter)
        for i in range(0, states, block)
    ]
    return Fits(*(torch.cat([getattr(p, name) for p in parts]) for name in Fits.__dataclass_fields__))


def _fit_block(
    features: Tensor, codes: Tensor, classes: int, l2: Tensor, tolerance: float, max_iter: int
) -> Fits:
    basis = spectrum(features)
    rotated = features @ basis.vectors
    problem = _Problem(rotated, codes, classes, l2)
    shape = (*l2.shape, classes, problem.x.shape[2])
    share = problem.share[:, None]
    eigenvalues = torch.cat([basis.values, torch.ones_like(basis.values[:, :1])], 1)
    curvature = share * eigenvalues[:, None, None, :] + problem.penalty
    start = torch.zeros(shape, device=features.device)
    start[..., -1] = problem.share.log()
    # The weight of an empty direction has no gradient and stays 0; the tiny number only avoids 1/0.
    inverse = 1.0 / curvature.clamp_min(1e-12)
    found = minimise(
        problem.evaluate, start.flatten(2), inverse.flatten(2), tolerance=tolerance, max_iter=max_iter
    )
    solution = found.x.view(shape)
    weight = solution[..., :-1] @ basis.vectors.mT[:, None]
    return Fits(weight, solution[..., -1], found.converged, found.iterations)


class _Problem:
    """Loss and gradient over a grid of states × strengths; the last column of `x` is 1, for the bias."""

    def __init__(self, rotated: Tensor, codes: Tensor, classes: int, l2: Tensor) -> None:
        states, images, rank = rotated.shape
        self.x = torch.cat([rotated, rotated.new_ones(states, images, 1)], 2)
        self.codes, self.classes = codes, classes
        onehot = torch.nn.functional.one_hot(codes, classes).to(self.x.dtype)
        self.share = onehot.mean(0)
        # Σ_i (e_{y_i} ⊗ x_i)/N, the part of the gradient that does not depend on the weights.
        self.target = onehot.T @ self.x / images
        self.penalty = torch.zeros(*l2.shape, 1, rank + 1, device=self.x.device)
        self.penalty[..., :-1] = l2[..., None, None]
        self._selected = (torch.arange(states, device=self.x.device), self.x)

    def evaluate(self, flat: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        b, g = flat.shape[:2]
        x = self._rows(rows)
        images, width = x.shape[1:]
        weights = flat.view(b, g, self.classes, width)
        stacked = weights.view(b, g * self.classes, width)
        gradient = torch.zeros_like(stacked)
        loss = torch.zeros(b, g, dtype=torch.float64, device=x.device)
        chunk = max(1, _block_bytes(x) // (b * g * self.classes * x.element_size()))
        for i in range(0, images, chunk):
            part = x[:, i : i + chunk]
            # Classes on an outer axis: reductions over them run along contiguous images.
            z = (stacked @ part.mT).view(b, g, self.classes, -1)
            z.sub_(z.amax(2, keepdim=True))
            # Their difference, image by image: log-sum and true logit share most of their rounding error.
            true = z.gather(2, self.codes[i : i + chunk].expand(b, g, 1, -1))
            p = z.exp_()
            total = p.sum(2, keepdim=True)
            p.div_(total)
            loss += (total.log_() - true).sum((2, 3), dtype=torch.float64)
            gradient.baddbmm_(p.view(b, g * self.classes, -1), part)
        target = self.target[rows][:, None]
        penalty = self.penalty[rows][:, columns]
        value = loss / images + 0.5 * (penalty * weights.double().square()).sum((2, 3))
        slope = gradient.view_as(weights) / images - target + penalty * weights
        return value, slope.flatten(2)

    def _rows(self, rows: Tensor) -> Tensor:
        if len(rows) != len(self._selected[0]):
            self._selected = (rows, self.x if len(rows) == len(self.x) else self.x[rows])
        return self._selected[1]


def _block_bytes(x: Tensor) -> int:
    return _CPU_BLOCK_BYTES if x.device.type == "cpu" else _DEVICE_BLOCK_BYTES
