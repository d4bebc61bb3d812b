"""Who corrects whom: how often earlier states are right where the last one is wrong, and in which way.

With ŷ_ℓ the class that the probe of state ℓ names, L the last state and E the images with ŷ_L ≠ y:

    recovery rate        R = P(some ℓ<L has ŷ_ℓ = y | E) = (a_oracle − a_L) / (100 − a_L)
    per layer, harm      R_ℓ = P(ŷ_ℓ = y | E),  H_ℓ = P(ŷ_ℓ ≠ y | ŷ_L = y)
    correction entropy   H = −Σ_ℓ<L q_ℓ log q_ℓ / log(S − 1),  q_ℓ = R_ℓ / Σ R_ℓ', of S states in all
    geometric disagreement, the mean over E and ℓ<L of 1 − cos(z_ℓ, z_L), with z an image's logits less their
                         mean over the classes, an offset that no softmax sees

R is paper B's (2607.10391, §3.2.1). Its formulas for the entropy and the disagreement were not found: ours.
An oracle counts any right answer, so it grows with the number of states even where they guess, and it does
not see what they spoil: read R beside `vitscope.chance` and beside the harm.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import entr
from torch import Tensor

from vitscope.estimates import Estimate, Sums, divided, estimate, resampled_sums
from vitscope.intervals import Interval
from vitscope.protocol import check_finite
from vitscope.splits import Labels, encode


@dataclass(frozen=True)
class Recoverability:
    """What `analyse` found. Every share is in percent; entropies lie in [0, 1], disagreements in [0, 2].

    `accuracy` [S] and `oracle` (some state is right) are of all `images`. `recovery_rate` and `per_layer`
    [S−1] are of the `errors` of the last state, `recovered` of which some earlier state gets right; `harm`
    [S−1] is of the last state's right answers. NaN stands where there are none to take a share of.

    `correction_entropy`: 1 when all earlier states correct equally often, 0 when one does it all.
    `correction_entropy_samples`: the same for one image, log(number of right states) / log(S − 1), averaged
    over recovered images: 1 when whatever is corrected is corrected by all. `geometric_disagreement` is of
    earlier states to the last, `…_pairs` of all pairs of states, over the last state's errors;
    `feature_disagreement` to the last state, of features, if they were given.

    Over all images and for each pair of states [S, S]: `disagreement`, just one of both is right;
    `double_fault`, both are wrong; `q_statistic` = (ad − bc)/(ad + bc) with a, d the shares both right, both
    wrong and b, c one right: 1 the same errors, 0 independent ones, NaN where both products are 0.
    """

    images: int
    errors: int
    recovered: int
    accuracy: Interval
    oracle: Estimate
    recovery_rate: Estimate
    per_layer: Interval
    harm: Interval
    correction_entropy: Estimate
    correction_entropy_samples: Estimate
    geometric_disagreement: Estimate
    geometric_disagreement_pairs: Estimate
    feature_disagreement: Estimate | None
    disagreement: np.ndarray
    double_fault: np.ndarray
    q_statistic: np.ndarray

    def summary(self) -> str:
        """The rate in one sentence."""
        rate = self.recovery_rate
        if rate.value is None:
            return f"Recovery {rate.reason}."
        between = "" if rate.low is None else f" ({rate.low:.1f} to {rate.high:.1f})"
        return (
            f"Earlier states get {rate.value:.1f} %{between} of the last state's errors right: "
            f"{self.recovered} of {self.errors}."
        )


@torch.no_grad()
def analyse(
    logits: Float[Tensor, "S N C"],
    labels: Labels,
    *,
    features: Float[Tensor, "S N D"] | None = None,
    classes: Sequence[int] | Sequence[str] | None = None,
    clusters: np.ndarray | None = None,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Recoverability:
    """Measure which states are right where the last one is wrong; formulas at the top of this file.

    `logits`: scores of every state's probe for the same images, the last state last; the largest names the
    class, the first of several equals. `labels` are column numbers of `logits`, or members of `classes`,
    which says what the columns are (as in `ProbeSet.classes`). `features`: the states themselves, for
    `feature_disagreement`; each state is centred by its mean over the images.

    Intervals are bootstrap percentiles over images, or over whole `clusters` [N] of images that belong
    together. Logits that are equal for all classes have no direction: their cosine to others counts as 0.
    With two classes a cosine is ±1, and the disagreement twice the share of flipped answers.

    Raises ValueError for fewer than two states, shapes that do not fit, values that are not finite (naming
    the state), labels that are no column, and fewer than two clusters.

    >>> right, wrong = [2.0, 0.0, -1.0], [0.0, 2.0, -1.0]  # the class is 0
    >>> first, second = [right, wrong, wrong, right], [wrong, right, wrong, wrong]
    >>> found = analyse(torch.tensor([first, second, [wrong, wrong, wrong, right]]), [0, 0, 0, 0])
    >>> round(found.recovery_rate.value, 1), found.per_layer.mean.round(1).tolist(), found.harm.mean.tolist()
    (66.7, [33.3, 33.3], [0.0, 100.0])
    >>> found.correction_entropy.value, found.correction_entropy_samples.value
    (1.0, 0.0)
    """
    codes = checked(logits, labels, classes)
    right = correctness(logits, codes)
    wrong, rescued = ~right[-1], right[:-1].any(0) & ~right[-1]
    earlier = right[:-1].T
    columns = {
        "images": np.ones(len(codes)),
        "right": right.T,
        "oracle": right.any(0),
        "wrong": wrong,
        "rescued": rescued,
        "corrections": earlier & wrong[:, None],
        "spoiled": ~earlier & right[-1][:, None],
        "spread": np.log(np.maximum(earlier.sum(1), 1)) * rescued,
    }
    chosen = torch.from_numpy(wrong).to(logits.device)
    missed = logits[:, chosen].double()
    columns["to_last"], columns["pairs"] = _apart(missed, missed.mean(2, keepdim=True), wrong)
    if features is not None:
        _check_features(features, logits)
        centre = features.mean(1, keepdim=True, dtype=torch.float64)
        columns["features"], _ = _apart(features[:, chosen.to(features.device)].double(), centre, wrong)
    total, drawn = resampled_sums(columns, clusters=clusters, draws=draws, seed=seed)

    def ratio(above: str, below: str, scale: int = 1) -> Callable[[Sums], np.ndarray]:
        return lambda sums: divided(scale * sums[above], sums[below])

    def scalar(measure: Callable[[Sums], np.ndarray], reason: str) -> Estimate:
        return estimate(measure(total), measure(drawn), reason, level)

    def vector(measure: Callable[[Sums], np.ndarray]) -> Interval:
        ends = [estimate(v, d, "", level) for v, d in zip(measure(total), measure(drawn).T, strict=True)]
        return Interval(*(np.array([getattr(e, k) for e in ends], float) for k in ("value", "low", "high")))

    flawless = f"not measured, because the last state makes no error on these {len(codes)} images"
    idle = flawless if not wrong.any() else "not measured, because no earlier state corrects an error"
    if len(right) == 2:
        idle = "not measured, because there is one earlier state only: nothing to spread over"
    return Recoverability(
        images=len(codes),
        errors=int(wrong.sum()),
        recovered=int(rescued.sum()),
        accuracy=vector(ratio("right", "images", 100)),
        oracle=scalar(ratio("oracle", "images", 100), ""),
        recovery_rate=scalar(ratio("rescued", "wrong", 100), flawless),
        per_layer=vector(ratio("corrections", "wrong", 100)),
        harm=vector(lambda sums: divided(100 * sums["spoiled"], sums["right"][..., -1])),
        correction_entropy=scalar(lambda sums: _entropy(sums["corrections"]), idle),
        correction_entropy_samples=scalar(
            lambda sums: divided(sums["spread"], sums["rescued"] * np.log(len(right) - 1)), idle
        ),
        geometric_disagreement=scalar(ratio("to_last", "wrong"), flawless),
        geometric_disagreement_pairs=scalar(ratio("pairs", "wrong"), flawless),
        feature_disagreement=None if features is None else scalar(ratio("features", "wrong"), flawless),
        **_diversity(right),
    )


def checked(
    logits: Tensor, labels: Labels, classes: Sequence[int] | Sequence[str] | None = None
) -> np.ndarray:
    """The labels as columns of `logits` [N]; raises ValueError as `analyse` says."""
    if logits.ndim != 3 or len(logits) < 2 or logits.shape[2] < 2:
        raise ValueError(
            "logits must be [S, N, C]: two or more states (the last one last), images, two or more classes; "
            f"got shape {tuple(logits.shape)}"
        )
    check_finite(logits, "logits")
    count = logits.shape[2]
    if classes is not None and len(classes) != count:
        raise ValueError(f"{len(classes)} classes are named for {count} columns of logits")
    codes = encode(labels, range(count) if classes is None else classes).numpy()
    if len(codes) != logits.shape[1]:
        raise ValueError(f"there are {logits.shape[1]} images in the logits but {len(codes)} labels")
    return codes


def correctness(logits: Tensor, codes: np.ndarray) -> np.ndarray:
    """Which state names the class of which image, bool [S, N]."""
    return logits.argmax(2).cpu().numpy() == codes


def _entropy(counts: np.ndarray) -> np.ndarray:
    """Entropy of counts [..., K] over the last axis, divided by log K."""
    shares = divided(counts, counts.sum(-1))
    return divided(entr(shares).sum(-1), np.log(counts.shape[-1]))


def _apart(values: Tensor, centre: Tensor, wrong: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean cosine distance per image, of earlier states to the last and over all pairs; 0 outside `wrong`."""
    centred, states = values - centre, len(values)
    length = centred.norm(dim=2, keepdim=True)
    # What rounding leaves of equal values is no direction.
    flat = length <= 1e-12 * values.abs().amax(2, keepdim=True)
    unit = torch.where(flat, 0.0, centred / torch.where(flat, 1.0, length))
    to_last, pairs = np.zeros(len(wrong)), np.zeros(len(wrong))
    to_last[wrong] = 1 - (unit[:-1] * unit[-1]).sum(2).mean(0).cpu().numpy()
    # Σ_{i<j} u_i·u_j from the length of the sum: no array of all pairs is needed.
    products = (unit.sum(0).square().sum(1) - unit.square().sum((0, 2))) / 2
    pairs[wrong] = 1 - products.cpu().numpy() / (states * (states - 1) / 2)
    return to_last, pairs


def _diversity(right: np.ndarray) -> dict[str, np.ndarray]:
    yes, no, images = right.astype(float), (~right).astype(float), right.shape[1]
    both, neither, one, other = yes @ yes.T, no @ no.T, yes @ no.T, no @ yes.T
    same, crossed = both * neither, one * other
    denominator = same + crossed
    q = np.where(denominator > 0, (same - crossed) / np.where(denominator > 0, denominator, 1.0), np.nan)
    return {
        "disagreement": 100 * (one + other) / images,
        "double_fault": 100 * neither / images,
        "q_statistic": q,
    }


def _check_features(features: Tensor, logits: Tensor) -> None:
    if features.ndim != 3 or features.shape[:2] != logits.shape[:2]:
        raise ValueError(
            f"features must be [S, N, D] with the states and images of the logits {tuple(logits.shape[:2])}, "
            f"got shape {tuple(features.shape)}"
        )
    check_finite(features)
