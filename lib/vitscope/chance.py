"""Recovery by luck: the share of the last state's errors that is "recovered" without any use of depth.

Paper B counts an error as recovered when any earlier state is right, without a control for how many states
try (2607.10391, §3.2.1). These controls are ours.

- `permuted`: the answers of every earlier state change places among images of one group, so that a state is
  as often right, or as often unlike the last one, as before, but no longer on the images where it matters.
- `reseeded`: as many more probes of the last state itself, each fitted to another bootstrap of the training
  images. What they recover needs no earlier state.

Each gives the recovery rate of the control and the excess of the real one over it, on the same images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitscope.estimates import Estimate, Sums, divided, estimate, resampled_sums
from vitscope.probes import GRID, fit_probes, logits_at
from vitscope.recoverability import checked, correctness
from vitscope.splits import Labels, distinct, encode

Within = Literal["predicted", "true"]


@dataclass(frozen=True)
class Chance:
    """A control: its recovery `rate`, the `real` one, in percent, and their difference `excess` in points.

    All three on the same errors, with intervals from the same resamples. `accuracy`, in percent, is of the
    control's members: S−1 permuted states, or the reseeded probes. `warnings` are those of the probes.
    """

    rate: Estimate
    real: Estimate
    excess: Estimate
    accuracy: np.ndarray
    warnings: tuple[str, ...] = ()

    def summary(self) -> str:
        """Control, reality and excess in one sentence."""
        rate, real, excess = self.rate.value, self.real.value, self.excess.value
        if rate is None or real is None or excess is None:
            return f"Recovery by luck {self.rate.reason}."
        between = "" if self.excess.low is None else f" ({self.excess.low:+.1f} to {self.excess.high:+.1f})"
        return (
            f"By luck {rate:.1f} % of the last state's errors would be recovered, {real:.1f} % are: "
            f"{excess:+.1f} points{between}."
        )


def permuted(
    logits: Float[Tensor, "S N C"],
    labels: Labels,
    *,
    within: Within = "predicted",
    classes: Sequence[int] | Sequence[str] | None = None,
    clusters: np.ndarray | None = None,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Chance:
    """Recovery rate after the answers of each earlier state are permuted, independently, within groups.

    `within="predicted"`: groups of one answer of the last state. A state keeps how often it differs from the
    last one and what it says instead; it loses whether it differs where the last one is wrong. An excess over
    this is knowledge about single images.
    `within="true"`: groups of one true class. A state keeps its accuracy and its whole confusion matrix; its
    errors become independent of those of the other states. An excess below 0: states fail together.

    The rate is the exact expectation over all permutations, so there is no noise from drawing them: with
    n_ℓ(g, c) images of group g that state ℓ calls c,

        rate = 100 · mean over the last state's errors of 1 − Π_{ℓ<L} (1 − n_ℓ(g, y) / n(g)).

    An image can stay where it was, and a group of one must: this makes the control a little too lucky where
    groups are small. Intervals draw images, or whole `clusters`, with the shares n_ℓ/n as they are. Other
    arguments and errors as in `recoverability.analyse`.

    >>> logits = torch.eye(2)[torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0]])]  # one of two errors is corrected
    >>> found = permuted(logits, [1, 1, 0, 0])
    >>> found.real.value, found.rate.value, found.excess.value
    (50.0, 25.0, 25.0)
    """
    if within not in ("predicted", "true"):
        raise ValueError(f"within must be 'predicted' or 'true', got {within!r}")
    codes = checked(logits, labels, classes)
    right, answers = correctness(logits, codes), logits.argmax(2).cpu().numpy()
    groups, count = (answers[-1] if within == "predicted" else codes), logits.shape[2]
    size = np.bincount(groups, minlength=count)[groups]
    missed, accuracy = np.ones(len(codes)), []
    for row in answers[:-1]:
        named = np.bincount(groups * count + row, minlength=count * count)
        lucky = named[groups * count + codes] / size
        missed *= 1 - lucky
        accuracy.append(100 * lucky.mean())
    return _compare(right, 1 - missed, np.array(accuracy), (), clusters, draws, level, seed)


def reseeded(
    features: Float[Tensor, "N D"],
    labels: Labels,
    test_features: Float[Tensor, "M D"],
    test_labels: Labels,
    *,
    logits: Float[Tensor, "S M C"],
    count: int | None = None,
    l2: Sequence[float] = GRID,
    groups: np.ndarray | None = None,
    clusters: np.ndarray | None = None,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Chance:
    """Recovery rate of `count` more linear probes of the last state in place of the S − 1 earlier states.

    `features` are the last state's of the training images, `test_features` of the test images, `logits` those
    of the real probes, whose last one makes the errors and whose columns are the sorted classes of `labels`.
    `count` is S − 1 if not given.

    Every probe is fitted to another bootstrap of the training images: within each class as many as it has,
    drawn with replacement, or as many whole `groups` [N], such as renders of one identity. All have the one
    l2 that validation on the training images as they are prefers, as the real last probe has.

    Raises ValueError as `recoverability.analyse` and `fit_probes` do, for features of other widths, and for a
    count below 1.

    >>> labels = torch.arange(90) % 3
    >>> noise = torch.randn(3, 90, 4, generator=torch.Generator().manual_seed(0))
    >>> x = noise + torch.nn.functional.one_hot(labels, 4)  # two states whose probes were fitted to others
    >>> real = fit_probes(x[:2], labels).logits(x[1:])
    >>> found = reseeded(x[1], labels, x[2], labels, logits=real, count=4)
    >>> len(found.accuracy), 0 < found.rate.value < 50
    (4, True)
    """
    count = len(logits) - 1 if count is None else count
    if count < 1:
        raise ValueError(f"count must be at least 1 probe, got {count}")
    classes = distinct(labels)
    codes = checked(logits, test_labels, classes)
    if features.ndim != 2 or test_features.shape != (len(codes), features.shape[1]):
        raise ValueError(
            f"features must be [N, D] and test_features [M, D] with {len(codes)} images, as the logits have: "
            f"got {tuple(features.shape)} and {tuple(test_features.shape)}"
        )
    own = encode(labels, classes).numpy()
    if len(own) != len(features):
        raise ValueError(f"there are {len(features)} images in the features but {len(own)} labels")
    plain = fit_probes(features[None], own, l2=l2, groups=groups, seed=seed, refit=False)
    rng = np.random.default_rng(seed)
    rows, warnings, unsolved = [], list(plain.warnings), 0
    for _ in range(count):
        drawn = torch.from_numpy(_bootstrap(own, groups, rng))
        said, converged = logits_at(
            features[None, drawn.to(features.device)],
            torch.from_numpy(own[drawn]).to(features.device),
            len(classes),
            plain.chosen_l2,
            test_features[None],
        )
        rows.append(said[0].argmax(1).cpu().numpy() == codes)
        unsolved += int(not converged[0])
    if unsolved:
        warnings.append(f"the solver did not converge for {unsolved} of {count} reseeded probes")
    named, real = np.stack(rows), correctness(logits, codes)
    accuracy = 100 * named.mean(1)
    return _compare(real, np.any(named, axis=0), accuracy, tuple(warnings), clusters, draws, level, seed)


def _compare(
    right: np.ndarray,
    lucky: np.ndarray,
    accuracy: np.ndarray,
    warnings: tuple[str, ...],
    clusters: np.ndarray | None,
    draws: int,
    level: float,
    seed: int,
) -> Chance:
    """Rates over the last state's errors; `lucky` [N] is each image's chance to be recovered."""
    wrong = ~right[-1]
    columns = {"wrong": wrong, "real": right[:-1].any(0) & wrong, "lucky": lucky * wrong}
    total, drawn = resampled_sums(columns, clusters=clusters, draws=draws, seed=seed)
    reason = f"not measured, because the last state makes no error on these {len(wrong)} images"

    def share(sums: Sums, of: str) -> np.ndarray:
        return divided(100 * sums[of], sums["wrong"])

    def excess(sums: Sums) -> np.ndarray:
        return np.asarray(share(sums, "real") - share(sums, "lucky"))

    return Chance(
        rate=estimate(share(total, "lucky"), share(drawn, "lucky"), reason, level),
        real=estimate(share(total, "real"), share(drawn, "real"), reason, level),
        excess=estimate(excess(total), excess(drawn), reason, level),
        accuracy=accuracy,
        warnings=warnings,
    )


def _bootstrap(codes: np.ndarray, groups: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """Positions drawn with replacement, class by class, so that no class goes missing."""
    names = np.arange(len(codes)) if groups is None else np.asarray(groups)
    chosen: list[np.ndarray] = []
    for code in np.unique(codes):
        members = np.flatnonzero(codes == code)
        units, unit = np.unique(names[members], return_inverse=True)
        by_unit = np.split(members[np.argsort(unit, kind="stable")], np.cumsum(np.bincount(unit))[:-1])
        chosen.extend(by_unit[u] for u in rng.integers(len(units), size=len(units)))
    return np.concatenate(chosen)
