"""Neural collapse: against explicit covariance matrices in float64, exact simplexes, refusals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope.metrics.collapse import ClassMoments, nc1, nc2, nc3, nc4, nc4_margin, nearest_class_mean

C, D = 5, 12


def normal(*shape, seed=0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sample(counts=(7, 20, 3, 11, 9), width=D, *, seed=0, spread=0.7) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes of unequal sizes, in shuffled order, around random means."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    means, noise = normal(len(counts), width, seed=seed + 1), normal(len(labels), width, seed=seed + 2)
    return means[labels] + spread * noise, labels


def moments_of(features, labels, classes=C, parts=1) -> ClassMoments:
    moments = ClassMoments(classes, features.shape[1])
    for x, y in zip(features.tensor_split(parts), labels.tensor_split(parts), strict=True):
        moments.update(x, y)
    return moments


def simplex(classes: int, width: int, *, seed=0) -> torch.Tensor:
    """C points with equal distances from one another, turned and moved, in `width` >= C − 1 dimensions."""
    corners = torch.eye(classes, dtype=torch.float64) - 1 / classes
    flat = torch.linalg.svd(corners)[2][: classes - 1]  # C − 1 directions hold them
    turned = torch.linalg.qr(normal(width, classes - 1, seed=seed))[0]
    return corners @ flat.T @ turned.T + normal(width, seed=seed + 1)


class Slow:
    """The definitions image by image with all matrices written out."""

    def __init__(self, features, labels):
        h, y, self.classes = features.double().numpy(), labels.numpy(), int(labels.max()) + 1
        self.means = np.stack([h[y == c].mean(0) for c in range(self.classes)])
        self.centred = self.means - self.means.mean(0)
        self.within = sum(np.outer(r, r) for r in h - self.means[y]) / len(h)
        self.between = sum(np.outer(m, m) for m in self.centred) / self.classes

    def nc1(self):
        values, vectors = np.linalg.eigh(self.between)
        top = min(self.classes - 1, len(values))
        inverse = vectors[:, -top:] @ np.diag(1 / values[-top:]) @ vectors[:, -top:].T
        return np.trace(self.within @ inverse) / self.classes

    def nc2(self):
        norms = [math.sqrt(m @ m) for m in self.centred]
        mean = sum(norms) / self.classes
        spread = math.sqrt(sum((n - mean) ** 2 for n in norms) / (self.classes - 1))
        pairs = [(a, b) for i, a in enumerate(self.centred) for j, b in enumerate(self.centred) if i != j]
        gaps = [abs(a @ b / math.sqrt((a @ a) * (b @ b)) + 1 / (self.classes - 1)) for a, b in pairs]
        return spread / mean, np.mean(gaps)

    def nc3(self, weight):
        w = weight.double().numpy()
        return np.sum((w / np.linalg.norm(w) - self.centred / np.linalg.norm(self.centred)) ** 2)

    def nearest(self, features):
        return [int(np.argmin([np.sum((h - m) ** 2) for m in self.means])) for h in features.double().numpy()]


@pytest.mark.parametrize("width", [1, 3, C - 1, D, 40])  # narrower than the simplex, just wide enough, wider
def test_equals_the_definitions(width):
    features, labels = sample(width=width)
    moments, slow = moments_of(features, labels), Slow(features, labels)
    np.testing.assert_allclose(moments.means, slow.means, rtol=1e-12)
    np.testing.assert_allclose(moments.within, slow.within, atol=1e-12)
    assert nc1(moments) == pytest.approx(slow.nc1(), rel=1e-9)
    assert nc1(moments, divide_by_classes=False) == pytest.approx(C * slow.nc1(), rel=1e-9)
    assert nc2(moments)[:2] == pytest.approx(slow.nc2(), rel=1e-9)
    assert moments.simplex_possible is nc2(moments).simplex_possible is (width >= C - 1)
    weight = normal(C, width, seed=9)
    assert nc3(moments, weight) == pytest.approx(slow.nc3(weight), rel=1e-9)
    others, predictions = normal(30, width, seed=10), torch.arange(30) % C
    assert nearest_class_mean(moments, others).tolist() == slow.nearest(others)
    expected = np.mean(np.array(slow.nearest(others)) != predictions.numpy())
    assert nc4(moments, others, predictions) == pytest.approx(expected)


def test_margin_equals_the_definition():
    logits, labels = normal(40, C), torch.arange(40) % C
    pairs = zip(logits.tolist(), labels.tolist(), strict=True)
    expected = np.mean([row[y] - max(row[:y] + row[y + 1 :]) for row, y in pairs])
    assert nc4_margin(logits, labels) == pytest.approx(expected)
    assert nc4_margin(3 * logits + 7, labels) == pytest.approx(3 * expected)
    perfect = 4.0 * torch.eye(C)
    assert nc4_margin(perfect, torch.arange(C)) == 4
    assert nc4_margin(perfect.roll(1, 0), torch.arange(C)) == -4


@pytest.mark.parametrize(("classes", "width"), [(2, 1), (3, 2), (5, 4), (5, 30), (20, 19)])
def test_an_exact_simplex_has_collapsed(classes, width):
    labels = torch.arange(classes).repeat(4)
    points = simplex(classes, width)
    moments = moments_of(points[labels], labels, classes)
    assert nc1(moments) == pytest.approx(0, abs=1e-12)
    assert nc2(moments) == (pytest.approx(0, abs=1e-10), pytest.approx(0, abs=1e-10), True)
    directions = points - points.mean(0)
    assert nc3(moments, 37 * directions) == pytest.approx(0, abs=1e-12)
    assert nc3(moments, -directions) == pytest.approx(4)
    assert nc4(moments, points[labels], labels) == 0
    assert nc4(moments, points[labels], (labels + 1) % classes) == 1


def test_spread_around_a_simplex_is_measured():
    """Σ_W = s²I against a simplex: Σ_B has C − 1 eigenvalues 1/C, so NC1 = s² (C − 1)."""
    points, spread = simplex(C, D), 0.3
    offsets = spread * math.sqrt(D) * torch.cat([torch.eye(D), -torch.eye(D)]).double()
    labels = torch.arange(C).repeat_interleave(2 * D)
    moments = moments_of(points[labels] + offsets.repeat(C, 1), labels)
    assert nc1(moments) == pytest.approx(spread**2 * (C - 1))


def test_a_simplex_needs_width():
    """Ten classes in two dimensions: NC1 can vanish, equal angles cannot."""
    labels = torch.arange(10).repeat(3)
    angles = (labels * 36.0).deg2rad()
    moments = moments_of(torch.stack([angles.cos(), angles.sin()], dim=1), labels, 10)
    gap = nc2(moments)
    assert nc1(moments) == pytest.approx(0, abs=1e-12)
    assert gap == (pytest.approx(0, abs=1e-6), pytest.approx(gap.equiangularity), False)
    assert gap.equiangularity > 0.5


def all_of(features, labels, weight, predictions):
    moments = moments_of(features, labels)
    return [nc1(moments), *nc2(moments)[:2], nc3(moments, weight), nc4(moments, features, predictions)]


def test_what_changes_nothing():
    features, labels = sample()
    weight, predictions = normal(C, D, seed=8), labels.roll(3)
    expected = all_of(features, labels, weight, predictions)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(4))
    relabelled = torch.randperm(C, generator=torch.Generator().manual_seed(5))
    turn = torch.linalg.qr(normal(D, D, seed=6))[0]
    same = {
        "order of images": (features[order], labels[order], weight, predictions[order]),
        "classes": (features, relabelled[labels], weight[relabelled.argsort()], relabelled[predictions]),
        "scale": (1e-3 * features, labels, 50 * weight, predictions),
        "small shift": (features + normal(D, seed=7), labels, weight, predictions),
        "large shift": (features + 1e5, labels, weight, predictions),
        "rotation": (features @ turn, labels, weight @ turn, predictions),
    }
    for name, inputs in same.items():
        assert all_of(*inputs) == pytest.approx(expected, rel=1e-6), name


@settings(max_examples=30, deadline=None)
@given(parts=st.lists(st.integers(1, 12), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_batches_and_merges_in_any_order_give_one_result(parts, seed):
    features, labels = sample(seed=seed)
    features = 100 + features
    whole = moments_of(features, labels)
    cuts = zip(features.split(parts[0]), labels.split(parts[0]), strict=True)
    pieces = [moments_of(x, y, parts=min(len(x), parts[-1])) for x, y in cuts]
    merged = ClassMoments(C, D)
    for index in np.random.default_rng(seed).permutation(len(pieces)):
        merged.merge(pieces[index])
    assert torch.equal(merged.counts, whole.counts)
    torch.testing.assert_close(merged.means, whole.means, rtol=1e-13, atol=0)
    torch.testing.assert_close(merged.within, whole.within, rtol=1e-9, atol=1e-11)
    assert nc1(merged) == pytest.approx(nc1(whole), rel=1e-9)


def test_merging_is_symmetric_and_leaves_the_other_alone():
    features, labels = sample()
    first, second = (features[:20], labels[:20]), (features[20:], labels[20:])
    a, b, ab, ba = (moments_of(*part) for part in (first, second, first, second))
    ab.merge(b)
    ba.merge(a)
    torch.testing.assert_close(ab.scatter, ba.scatter, rtol=1e-12, atol=1e-12)
    assert torch.equal(b.scatter, moments_of(*second).scatter)
    value = nc1(ab)
    ab.merge(ab)
    assert nc1(ab) == pytest.approx(value)
    with pytest.raises(ValueError, match="5 classes x 12 features cannot take in 5 x 3"):
        ab.merge(ClassMoments(C, 3))


def test_nothing_of_the_size_of_the_data_is_kept():
    features, labels = sample()
    often = moments_of(features.repeat(20, 1), labels.repeat(20), parts=33)
    held = [value.untyped_storage().nbytes() for value in vars(often).values()]
    assert held == [8 * C, 8 * C * D, 8 * D * D]
    assert nc1(often) == pytest.approx(nc1(moments_of(features, labels)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_any_floating_type_is_computed_in_float64(dtype):
    features, labels = sample()
    features = features.to(dtype)
    assert nc1(moments_of(features, labels.to(torch.uint8))) == pytest.approx(Slow(features, labels).nc1())


def test_where_all_class_means_coincide_nothing_is_defined():
    """CLS before the first block is one vector for all images: no perfect collapse, no collapse at all."""
    labels = torch.arange(3000) % C
    token = 37.3 * normal(D).float()
    moments = moments_of(token.expand(3000, D), labels, parts=17)
    assert math.isnan(nc1(moments))
    assert all(map(math.isnan, nc2(moments)[:2]))
    assert math.isnan(nc3(moments, normal(C, D)))
    # two of three alike is no such case: the pseudo-inverse leaves the missing direction out
    labels = torch.arange(3).repeat_interleave(torch.tensor([7, 11, 9]))
    aside = normal(27, D)
    aside[:, 0] = 0
    features = torch.where((torch.arange(D) == 0) & (labels == 2)[:, None], 1e6 + 3.1, 1e6 + 0.1)
    moments = moments_of(torch.cat([features + aside, features - aside]), labels.repeat(2), 3)
    assert nc1(moments) == pytest.approx(0, abs=1e-9)
    # a class at the middle has no direction, but a length
    points = 0.1 + torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64)
    line = moments_of(points, torch.arange(3), 3)
    assert math.isnan(nc2(line).equiangularity)
    assert nc2(line).equinorm == pytest.approx(math.sqrt(3) / 2)  # lengths 1, 0, 1


def test_one_class_and_empty_classes_are_refused():
    for sizes, message in (((1, D), "2 classes or more, got 1"), ((C, 0), "width of at least 1, got 0")):
        with pytest.raises(ValueError, match=message):
            ClassMoments(*sizes)
    features, labels = sample((4, 4))
    moments = moments_of(features, labels * 4, 9)
    weight, message = normal(9, D), "7 of 9 classes have no image, so no mean: 1, 2, 3, 5, 6, …"
    for measure in (nc1, nc2, lambda m: nc3(m, weight), lambda m: nc4(m, features, labels)):
        with pytest.raises(ValueError, match=message):
            measure(moments)


def test_bad_updates_are_refused_and_leave_no_trace():
    features, labels = sample()
    moments = moments_of(features, labels)
    before = nc1(moments)
    broken = features.clone()
    broken[4, 1], broken[9, 0] = torch.nan, torch.inf
    for x, y, message in (
        (broken, labels, "features: 2 of 50 rows hold values that are not finite, first row 4"),
        (features[:, :5], labels, r"features must be \[N, 12\] with N >= 1, got \(50, 5\)"),
        (features[:0], labels[:0], r"N >= 1, got \(0, 12\)"),
        (features, labels - 1, "class numbers must be 0 to 4, got -1 to 3"),
        (features, labels + 1, "class numbers must be 0 to 4, got 1 to 5"),
    ):
        with pytest.raises(ValueError, match=message):
            moments.update(x, y)
    assert nc1(moments) == before
    assert moments.counts.sum() == 50


def test_bad_classifiers_predictions_and_logits_are_refused():
    features, labels = sample()
    moments = moments_of(features, labels)
    endless = torch.where(torch.arange(50)[:, None] == 0, torch.inf, features)
    for message, use in (
        (r"weight must be \[C, D\] = \(5, 12\), got \(12, 5\)", lambda: nc3(moments, normal(D, C))),
        ("weights are all zero", lambda: nc3(moments, torch.zeros(C, D))),
        ("weight: 5 of 5 rows hold values that", lambda: nc3(moments, torch.full((C, D), torch.nan))),
        (r"features must be \[N, 12\]", lambda: nc4(moments, features[:, :3], labels)),
        ("class numbers must be 0 to 4, got 1 to 5", lambda: nc4(moments, features, labels + 1)),
        (r"2 classes or more, got \(50, 1\)", lambda: nc4_margin(features[:, :1], labels)),
        ("logits: 1 of 50 rows hold values that are not finite", lambda: nc4_margin(endless, labels)),
        ("class numbers must be 0 to 3, got 0 to 4", lambda: nc4_margin(features[:, :4], labels)),
    ):
        with pytest.raises(ValueError, match=message):
            use()


@pytest.mark.usefixtures("no_axis_check")
def test_numbers_of_labels_must_agree():
    features, labels = sample()
    moments = moments_of(features, labels)
    message = r"one label per image: expected shape \(50,\), got \(49,\)"
    for use in (moments.update, lambda x, y: nc4(moments, x, y), nc4_margin):
        with pytest.raises(ValueError, match=message):
            use(features, labels[1:])
    with pytest.raises(ValueError, match=r"got \(12,\)"):
        moments.update(features[0], labels[:1])
