"""Linear probes of every state at once: multinomial logistic regression, and ridge regression beside it.

A probe asks what a linear classifier can read from a state. All states and all strengths of
regularisation are fitted as one batched problem, so a curve over depth costs little more than a point
of it. The protocol is the same for every state:

1. Split: a share of each class is held out of the training images for validation, or a set of your own is.
2. Standardise with the mean and deviation of the training part. No other image is looked at.
3. Fit every strength; choose, per state, the one that is right most often on validation, the strongest if
   several tie. Test images play no part: `fit_probes` never sees them.
4. Fit the chosen strength again on training and validation images together, unless `refit=False`.

All images passed in count: for k-shot learning pass k images per class in total, validation included.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitscope.holdout import Groups
from vitscope.logistic import Fits, fit_logistic
from vitscope.protocol import (
    Validation,
    encode_for,
    moments,
    shares_right,
    split,
    standardise_as_fitted,
)
from vitscope.ridge import solve_ridge
from vitscope.splits import Labels, distinct

GRID: tuple[float, ...] = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""Strengths λ of the penalty; in scikit-learn's terms C = 1/(λN), alpha = λN for N training images."""

_Solver = Callable[[Tensor, Tensor, int, Tensor], Fits]


@dataclass(frozen=True)
class ProbeSet:
    """Fitted probes of S states over C classes; made by `fit_probes` and `fit_ridge`.

    `weight` and `bias` act on standardised features (x − mean)/scale. `chosen_l2` and `converged` are per
    state, `validation_accuracy` per state and strength, columns as in `grid`. `majority` is the most
    frequent class among the `images` fitted. `warnings` says in sentences what a reader of the numbers
    should know; it is empty when all is well.
    """

    kind: Literal["logistic", "ridge"]
    classes: tuple[int, ...] | tuple[str, ...]
    mean: Float[Tensor, "S D"]
    scale: Float[Tensor, "S D"]
    weight: Float[Tensor, "S C D"]
    bias: Float[Tensor, "S C"]
    grid: tuple[float, ...]
    validation_accuracy: Float[Tensor, "S G"]
    chosen_l2: Float[Tensor, " S"]
    converged: Bool[Tensor, " S"]
    majority: int | str
    images: int
    warnings: tuple[str, ...]

    @torch.no_grad()
    def logits(self, features: Float[Tensor, "S N D"]) -> Float[Tensor, "S N C"]:
        """Scores of every class, before any softmax. Raises ValueError for other shapes, NaN and inf."""
        standard = standardise_as_fitted(features, self.mean, self.scale)
        return torch.baddbmm(self.bias[:, None], standard, self.weight.mT)

    def accuracy(self, features: Float[Tensor, "S N D"], labels: Labels) -> dict[str, Tensor]:
        """Shares of right answers, each in [0, 1].

        Returns "accuracy" [S], "balanced_accuracy" [S] (mean recall over the classes that occur in
        `labels`) and "majority" [] (the accuracy of always naming the most frequent training class).
        """
        codes = encode_for(features, labels, self.classes)
        return shares_right(self.logits(features), codes, self.classes.index(self.majority))


def fit_probes(
    features: Float[Tensor, "S N D"],
    labels: Labels,
    *,
    l2: Sequence[float] = GRID,
    validation: Validation = 0.2,
    groups: Groups | None = None,
    seed: int = 0,
    max_iter: int = 1000,
    refit: bool = True,
    names: Sequence[str] | None = None,
) -> ProbeSet:
    """Fit a multinomial logistic probe to each state: min mean cross-entropy + (l2/2) ‖W‖², bias free.

    `features` hold one vector per state and image, in any float precision (computed in float32); `labels`
    are N integers or strings. `validation` is the share of each class to hold out, or a pair (features,
    labels); with `groups` [N] of images that belong together, such as renders of one identity, whole groups
    are held out. `seed` decides which images are held out. `max_iter` bounds the solver's iterations.
    `names` say what warnings and errors call each state, if not 0 … S−1.

    Raises ValueError for features that are not finite (naming the state), labels that are missing, −1,
    fractions or all alike, validation classes that training lacks, and strengths that are not positive.

    >>> labels = torch.arange(60) % 3
    >>> noise = torch.randn(2, 60, 4, generator=torch.Generator().manual_seed(0))
    >>> signal = 6.0 * torch.nn.functional.one_hot(labels, 4)
    >>> probes = fit_probes(torch.stack([noise[0], noise[1] + signal]), labels)
    >>> probes.accuracy(torch.stack([noise[1], noise[0] + signal]), labels)["accuracy"][1].item()
    1.0
    """
    if max_iter < 1:
        raise ValueError(f"max_iter must be at least 1, got {max_iter}")
    solve = partial(fit_logistic, max_iter=max_iter)
    return _fit("logistic", solve, features, labels, l2, validation, groups, seed, refit, names)


def fit_ridge(
    features: Float[Tensor, "S N D"],
    labels: Labels,
    *,
    l2: Sequence[float] = GRID,
    validation: Validation = 0.2,
    groups: Groups | None = None,
    seed: int = 0,
    refit: bool = True,
    names: Sequence[str] | None = None,
) -> ProbeSet:
    """Fit a ridge classifier to each state: least squares onto class indicators, in closed form.

    Same protocol, arguments and errors as `fit_probes`, many times cheaper, as a rule a little less
    accurate. Its logits are regression scores: they rank classes, they are no log-probabilities.
    """
    return _fit("ridge", solve_ridge, features, labels, l2, validation, groups, seed, refit, names)


@torch.no_grad()
def _fit(
    kind: Literal["logistic", "ridge"],
    solve: _Solver,
    features: Tensor,
    labels: Labels,
    l2: Sequence[float],
    validation: Validation,
    groups: Groups | None,
    seed: int,
    refit: bool,
    names: Sequence[str] | None,
) -> ProbeSet:
    grid = _strong_to_weak(l2)
    called = [str(s) for s in range(len(features))] if names is None else list(names)
    if len(called) != len(features):
        raise ValueError(f"{len(called)} names for {len(features)} states")
    classes = distinct(labels)
    (x, codes), (held_x, held_codes) = split(features, labels, classes, validation, groups, seed)
    strengths = torch.tensor(grid, device=x.device).expand(len(x), -1)
    scaling = moments(x)
    trial = solve(scaling.standardise(x), codes, len(classes), strengths)
    right = _validate(trial, scaling.standardise(held_x), held_codes)
    best = right.argmax(1)  # the first of several equals: the strongest
    chosen = strengths.gather(1, best[:, None])
    if refit:
        x, codes = torch.cat([x, held_x], 1), torch.cat([codes, held_codes])
        scaling = moments(x)
        final = solve(scaling.standardise(x), codes, len(classes), chosen)
        weight, bias, converged = final.weight[:, 0], final.bias[:, 0], final.converged[:, 0]
    else:
        at = (torch.arange(len(x), device=x.device), best)
        weight, bias, converged = trial.weight[at], trial.bias[at], trial.converged[at]
    return ProbeSet(
        kind=kind,
        classes=classes,
        mean=scaling.mean,
        scale=scaling.scale,
        weight=weight,
        bias=bias,
        grid=grid,
        validation_accuracy=right,
        chosen_l2=chosen[:, 0],
        converged=converged,
        majority=classes[int(codes.bincount().argmax())],
        images=len(codes),
        warnings=(
            *_edge_warnings(right, best, grid, called),
            *_solver_warnings(trial.converged, converged, called),
        ),
    )


def logits_at(
    features: Float[Tensor, "S N D"],
    codes: Int[Tensor, " N"],
    classes: int,
    l2: Float[Tensor, " S"],
    unseen: Float[Tensor, "S M D"],
) -> tuple[Float[Tensor, "S M C"], Bool[Tensor, " S"]]:
    """Scores of other images by logistic probes at strengths already chosen, and which probes converged.

    No image is held out. Labels are numbers 0 … classes − 1.
    """
    scaling = moments(features)
    fits = fit_logistic(scaling.standardise(features), codes, classes, l2[:, None])
    logits = torch.baddbmm(fits.bias, scaling.standardise(unseen), fits.weight[:, 0].mT)
    return logits, fits.converged[:, 0]


def _validate(fits: Fits, held: Tensor, codes: Tensor) -> Float[Tensor, "S G"]:
    """Validation accuracy, one state at a time: the logits of all would be large with many classes."""
    rows = []
    for x, weight, bias in zip(held, fits.weight, fits.bias, strict=True):
        logits = torch.baddbmm(bias[:, None], x.expand(len(weight), -1, -1), weight.mT)
        rows.append((logits.argmax(2) == codes).double().mean(1))
    return torch.stack(rows)


def _strong_to_weak(l2: Sequence[float]) -> tuple[float, ...]:
    grid = tuple(sorted({float(v) for v in l2}, reverse=True))
    if not grid or not all(0 < v < float("inf") for v in grid):
        raise ValueError(f"l2 must be one or more positive strengths, got {list(l2)}")
    return grid


def _edge_warnings(right: Tensor, best: Tensor, grid: tuple[float, ...], names: list[str]) -> list[str]:
    """The grid was too short where an end of it beats its neighbour; a tie there tells nothing."""
    last, found = len(grid) - 1, []
    for end, inner, name, further in ((0, 1, "strongest", "stronger"), (last, last - 1, "weakest", "weaker")):
        if last:
            wins = (best == end) & (right[:, end] > right[:, inner])
            states = ", ".join(names[s] for s in wins.nonzero()[:, 0].tolist())
            if states:
                found.append(
                    f"l2 = {grid[end]:g}, the {name} of the grid, was chosen for states {states}: "
                    f"add {further} values"
                )
    return found


def _solver_warnings(trial: Tensor, final: Tensor, names: list[str]) -> list[str]:
    found = []
    if not final.all():
        states = ", ".join(names[s] for s in (~final).nonzero()[:, 0].tolist())
        found.append(f"the solver did not converge for states {states}: raise max_iter")
    if not trial.all():
        count = int((~trial).sum())
        found.append(
            f"{count} of {trial.numel()} fits of the grid did not converge: the choice of l2 may be off"
        )
    return found
