"""Neural collapse: do the images of a class fall on one point, and the class points on a simplex?

With class means μ_c, their mean μ_G (every class counts alike), M = [μ_c − μ_G], the within-class covariance
Σ_W = (1/N) Σ_i (h_i − μ_{y_i})(h_i − μ_{y_i})ᵀ (every image counts alike) and Σ_B = MMᵀ/C: `nc1` … `nc4`
are the field's, after Papyan, Han and Donoho 2020 (2008.08186) and their notebook. `nc4_margin` is what paper
A calls NC4, in our formula. All are 0 at collapse, the margin aside; computed in float64, on the CPU.

Rules. Every class needs an image: an empty one raises ValueError, for it has no mean. Where all class means
coincide (CLS before the first block), NC1 to NC3 are not defined and NaN. A simplex of C points needs C − 1
dimensions: below that (`simplex_possible` is False) the equiangularity of NC2 cannot reach 0, and models of
different widths differ in it for that reason alone.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

_ROUNDING = 1e-11  # spread of equal means, relative to their size, after sums over many images in float64


class ClassMoments:
    """Counts, sums and within-class scatter of features, gathered batch by batch: memory C·D + D².

    The scatter Σ_i (h_i − μ_{y_i})(h_i − μ_{y_i})ᵀ is kept about the means (Chan, Golub and LeVeque 1983), so
    that a large common offset costs no digits. Batches, and `merge`d parts, may come in any order and size.

    >>> moments = ClassMoments(classes=2, width=1)
    >>> moments.update(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([0, 0, 1]))
    >>> moments.means.T.tolist(), moments.within.item()  # (1 + 1 + 0) / 3
    ([[1.0, 9.0]], 0.6666666666666666)
    """

    def __init__(self, classes: int, width: int) -> None:
        if classes < 2:
            raise ValueError(f"neural collapse is about 2 classes or more, got {classes}")
        if width < 1:
            raise ValueError(f"features need a width of at least 1, got {width}")
        self.counts = torch.zeros(classes, dtype=torch.int64)
        self.sums = torch.zeros(classes, width, dtype=torch.float64)
        self.scatter = torch.zeros(width, width, dtype=torch.float64)

    @property
    def classes(self) -> int:
        """C."""
        return len(self.counts)

    @property
    def width(self) -> int:
        """D."""
        return self.sums.shape[1]

    @property
    def simplex_possible(self) -> bool:
        """Whether C points can have equal distances in D dimensions: D ≥ C − 1."""
        return self.width >= self.classes - 1

    def update(self, features: Float[Tensor, "N D"], labels: Integer[Tensor, " N"]) -> None:
        """Add images. Raises ValueError, leaving all as it was, for a wrong width, number or range of labels,
        and for values that are not finite."""
        x = _features(features, self.width)
        y = _classes(labels, len(x), self.classes)
        present, codes = y.unique(return_inverse=True)
        counts = torch.bincount(codes, minlength=len(present))
        sums = x.new_zeros(len(present), self.width).index_add_(0, codes, x)
        x = x - (sums / counts[:, None])[codes]
        self._add(present, counts, sums, x.T @ x)

    def merge(self, other: "ClassMoments") -> None:
        """Add the images of other moments. Raises ValueError for other numbers of classes or widths."""
        if self.sums.shape != other.sums.shape:
            raise ValueError(
                f"moments of {self.classes} classes x {self.width} features cannot take in "
                f"{other.classes} x {other.width}"
            )
        present = other.counts.nonzero().squeeze(1)
        self._add(present, other.counts[present], other.sums[present], other.scatter)

    def _add(self, present: Tensor, counts: Tensor, sums: Tensor, scatter: Tensor) -> None:
        old = self.counts[present]
        # the means of two parts differ by δ: together they scatter by n₁n₂/(n₁ + n₂) δδᵀ more
        delta = sums / counts[:, None] - self.sums[present] / old.clamp_min(1)[:, None]
        delta *= (old * counts / (old + counts).double()).sqrt()[:, None]
        self.scatter += scatter + delta.T @ delta
        self.counts[present] += counts
        self.sums[present] += sums

    @property
    def means(self) -> Float[Tensor, "C D"]:
        """μ_c. Raises ValueError naming the classes without an image."""
        empty = (self.counts == 0).nonzero().squeeze(1).tolist()
        if empty:
            named = ", ".join(map(str, empty[:5])) + (", …" if len(empty) > 5 else "")
            raise ValueError(
                f"{len(empty)} of {self.classes} classes have no image, so no mean: {named}. "
                "Number the classes that occur from 0 and leave out the others"
            )
        return self.sums / self.counts[:, None]

    @property
    def centred_means(self) -> Float[Tensor, "C D"]:
        """μ_c − μ_G, the rows of Mᵀ; exactly zero for a class mean that is at μ_G but for rounding."""
        means = self.means
        centred = means - means.mean(0)
        centred = centred - centred.mean(0)  # the second pass removes the rounding error of the first
        nothing = centred.abs().amax(1, keepdim=True) <= _ROUNDING * means.abs().max()
        return torch.where(nothing, torch.zeros_like(centred), centred)

    @property
    def within(self) -> Float[Tensor, "D D"]:
        """Σ_W."""
        return self.scatter / self.counts.sum()


def nc1(moments: ClassMoments, *, divide_by_classes: bool = True) -> float:
    """Variability collapse, Tr(Σ_W Σ_B⁺)/C: the spread within classes in units of that between them.

    Σ_B⁺ is the pseudo-inverse over the (at most C − 1) directions in which the class means differ by more
    than rounding. `divide_by_classes=False` leaves out /C, as the authors' notebook does. 0 by construction
    with one image a class. Raises ValueError for a class without images.

    >>> moments = ClassMoments(classes=2, width=1)
    >>> moments.update(torch.tensor([[-3.0], [-1.0], [1.0], [3.0]]), torch.tensor([0, 0, 1, 1]))
    >>> round(nc1(moments), 6), round(nc1(moments, divide_by_classes=False), 6)  # Σ_W = 1, Σ_B = 4
    (0.125, 0.25)
    """
    m = moments.centred_means
    _, singular, directions = torch.linalg.svd(m, full_matrices=False)
    # centred means span at most C − 1 directions; what is left in the others is rounding
    kept = singular > _ROUNDING * max(singular[0], moments.means.abs().max())
    if not kept.any():
        return float("nan")
    v = directions[kept]
    spread = ((v @ moments.within) * v).sum(1)
    trace = float((spread * moments.classes / singular[kept].square()).sum())
    return trace / moments.classes if divide_by_classes else trace


class SimplexGap(NamedTuple):
    """NC2: how far the class means are from a simplex of equal sides, and whether one is possible at all."""

    equinorm: float
    equiangularity: float
    simplex_possible: bool


def nc2(moments: ClassMoments) -> SimplexGap:
    """Convergence of the class means to a simplex: two numbers, both 0 there.

    - `equinorm`: std_c / mean_c of ‖μ_c − μ_G‖ (std with C − 1, as the authors' notebook)
    - `equiangularity`: mean over c ≠ c' of |cos(μ_c − μ_G, μ_c' − μ_G) + 1/(C − 1)|; presumably paper A's
      "ETF gap". NaN if a class mean is at μ_G

    Raises ValueError for a class without images.

    >>> moments = ClassMoments(classes=3, width=3)
    >>> moments.update(torch.eye(3), torch.arange(3))
    >>> gap = nc2(moments)
    >>> round(gap.equinorm, 6), round(gap.equiangularity, 6), gap.simplex_possible
    (0.0, 0.0, True)
    """
    m = moments.centred_means
    norms = torch.linalg.vector_norm(m, dim=1)
    units = m / norms[:, None]
    off = ~torch.eye(moments.classes, dtype=torch.bool)
    gaps = (units @ units.T + 1 / (moments.classes - 1))[off].abs()
    return SimplexGap(
        float(norms.std() / norms.mean()), float(gaps.mean()), simplex_possible=moments.simplex_possible
    )


def nc3(moments: ClassMoments, weight: Float[Tensor, "C D"]) -> float:
    """Self-duality, ‖W/‖W‖_F − Mᵀ/‖M‖_F‖²_F, in [0, 4]: does the classifier point at the class means?

    W [C, D] is the classifier's weight for features as they went into the moments; 2 for unrelated ones.
    Raises ValueError for another shape, values that are not finite, weights that are all zero, and a class
    without images.

    >>> moments = ClassMoments(classes=2, width=1)
    >>> moments.update(torch.tensor([[4.0], [6.0]]), torch.tensor([0, 1]))
    >>> round(nc3(moments, torch.tensor([[-3.0], [3.0]])), 6)
    0.0
    """
    if weight.shape != moments.sums.shape:
        raise ValueError(
            f"the classifier's weight must be [C, D] = {tuple(moments.sums.shape)}, got {tuple(weight.shape)}"
        )
    w = _features(weight, moments.width, "weight")
    if not w.any():
        raise ValueError("the classifier's weights are all zero: they point nowhere")
    m = moments.centred_means
    return float((w / torch.linalg.vector_norm(w) - m / torch.linalg.vector_norm(m)).square().sum())


def nearest_class_mean(moments: ClassMoments, features: Float[Tensor, "N D"]) -> Int[Tensor, " N"]:
    """The class whose mean is nearest to each image, argmin_c ‖h − μ_c‖; the first of equals.

    Raises ValueError for another width, values that are not finite, and a class without images.
    """
    m = moments.centred_means
    h = _features(features, moments.width) - moments.means.mean(0)
    return (m.square().sum(1) - 2 * h @ m.T).argmin(1)


def nc4(moments: ClassMoments, features: Float[Tensor, "N D"], predictions: Integer[Tensor, " N"]) -> float:
    """Simplification to the nearest class mean: the share of images where it differs from the prediction.

    `moments` are of the training images; `features` and `predictions` (class numbers) may be of any images,
    batch by batch: shares average by batch size. Where all class means coincide, the nearest is class 0.
    Raises ValueError as `nearest_class_mean`, and for predictions of another number or range.

    >>> moments = ClassMoments(classes=2, width=1)
    >>> moments.update(torch.tensor([[0.0], [4.0]]), torch.tensor([0, 1]))
    >>> nc4(moments, torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]))
    0.5
    """
    nearest = nearest_class_mean(moments, features)
    return float((nearest != _classes(predictions, len(nearest), moments.classes)).double().mean())


def nc4_margin(logits: Float[Tensor, "N C"], labels: Integer[Tensor, " N"]) -> float:
    """Decision margin, mean_i (z_{i,y_i} − max_{k≠y_i} z_ik), in units of the logits; negative where wrong.

    Paper A's "NC4" (Mechanisms of Non-Monotonic Scaling in Vision Transformers, 2511.21635), which is not
    Papyan's `nc4`; the formula is ours. It grows with the scale of the logits: compare like with like.
    Raises ValueError for one class, values that are not finite, and labels of another number or range.

    >>> nc4_margin(torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 5.0]]), torch.tensor([0, 1]))  # (2 − 3) / 2
    -0.5
    """
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise ValueError(f"a margin needs logits [N, C] of 2 classes or more, got {tuple(logits.shape)}")
    z = _features(logits, logits.shape[1], "logits")
    own = _classes(labels, len(z), z.shape[1])[:, None]
    rival = z.scatter(1, own, -torch.inf).amax(1)
    return float((z.gather(1, own).squeeze(1) - rival).mean())


def _features(x: Tensor, width: int, name: str = "features") -> Tensor:
    if x.ndim != 2 or x.shape[1] != width or len(x) == 0:
        raise ValueError(f"{name} must be [N, {width}] with N >= 1, got {tuple(x.shape)}")
    broken = ~x.isfinite().all(1)
    if broken.any():
        raise ValueError(
            f"{name}: {int(broken.sum())} of {len(x)} rows hold values that are not finite, "
            f"first row {int(broken.nonzero()[0])}"
        )
    return x.detach().to("cpu", torch.float64)


def _classes(labels: Tensor, count: int, classes: int) -> Tensor:
    if labels.shape != (count,):
        raise ValueError(f"one label per image: expected shape ({count},), got {tuple(labels.shape)}")
    y = labels.detach().to("cpu", torch.int64)
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(f"class numbers must be 0 to {classes - 1}, got {int(y.min())} to {int(y.max())}")
    return y
