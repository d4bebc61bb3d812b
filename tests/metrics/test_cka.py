"""CKA: against explicit HSIC in float64, known answers, splitting of the stream, refusals."""

import math

import numpy as np
import pytest
import torch

from vitscope.metrics.cka import MinibatchCKA, linear_cka, linear_cka_unbiased


def normal(*shape, seed=0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def related(images=40, widths=(6, 9), *, seed=0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two sets of features that share some of what they hold."""
    common = normal(images, 3, seed=seed)
    return tuple(
        common @ normal(3, width, seed=seed + width) + normal(images, width, seed=seed + 2 * width)
        for width in widths
    )


def slow_biased_hsic(k: np.ndarray, el: np.ndarray) -> float:
    n = len(k)
    centring = np.eye(n) - 1 / n
    return np.trace(k @ centring @ el @ centring) / (n - 1) ** 2


def slow_hsic_1(k: np.ndarray, el: np.ndarray) -> float:
    """Song et al.'s estimator as printed, with zeroed diagonals."""
    n, one = len(k), np.ones(len(k))
    k, el = k - np.diag(np.diag(k)), el - np.diag(np.diag(el))
    total = np.trace(k @ el) + (one @ k @ one) * (one @ el @ one) / ((n - 1) * (n - 2))
    return (total - 2 / (n - 2) * one @ k @ el @ one) / (n * (n - 3))


def slow_hsic_1_by_tuples(k: np.ndarray, el: np.ndarray) -> float:
    """The U-statistic itself: means over all tuples of different images."""
    n = len(k)
    pairs = np.mean([k[i, j] * el[i, j] for i in range(n) for j in range(n) if i != j])
    triples = np.mean(
        [k[i, j] * el[i, q] for i in range(n) for j in range(n) for q in range(n) if len({i, j, q}) == 3]
    )
    quadruples = np.mean(
        [
            k[i, j] * el[q, r]
            for i in range(n) for j in range(n) for q in range(n) for r in range(n)
            if len({i, j, q, r}) == 4
        ]
    )  # fmt: skip
    return pairs - 2 * triples + quadruples


def slow_cka(hsic, x, y) -> float:
    k, el = (np.asarray(z.double() @ z.double().T) for z in (x, y))
    return hsic(k, el) / math.sqrt(hsic(k, k) * hsic(el, el))


def slow_minibatch(x, y, size) -> float:
    """Nguyen et al.'s mean over minibatches, each weighted by its images."""
    cross = left = right = 0.0
    for a, b in zip(x.split(size), y.split(size), strict=True):
        if len(a) >= 4:
            k, el = (np.asarray(z @ z.T) for z in (a, b))
            cross += len(a) * slow_hsic_1(k, el)
            left += len(a) * slow_hsic_1(k, k)
            right += len(a) * slow_hsic_1(el, el)
    return cross / math.sqrt(left * right)


def stream(x, y=None, *, minibatch=16, parts=1) -> torch.Tensor:
    cka = MinibatchCKA(minibatch)
    for index in torch.arange(x[0].shape[0]).tensor_split(parts):
        cka.update([s[index] for s in x], None if y is None else [s[index] for s in y])
    return cka.compute()


@pytest.mark.parametrize("widths", [(6, 9), (200, 5), (200, 300)])  # both ways of summing
def test_equals_the_definitions(widths):
    x, y = related(widths=widths)
    assert linear_cka(x, y) == pytest.approx(slow_cka(slow_biased_hsic, x, y), rel=1e-10)
    centred = [z - z.mean(0) for z in (x, y)]
    formula = torch.linalg.norm(centred[1].T @ centred[0]) ** 2 / math.prod(
        float(torch.linalg.norm(z.T @ z)) for z in centred
    )
    assert linear_cka(x, y) == pytest.approx(float(formula), rel=1e-10)
    assert linear_cka_unbiased(x, y) == pytest.approx(slow_cka(slow_hsic_1, x, y), rel=1e-9)


def test_the_estimator_is_the_u_statistic():
    x, y = related(images=8)
    expected = slow_cka(slow_hsic_1_by_tuples, x, y)
    assert slow_cka(slow_hsic_1, x, y) == pytest.approx(expected)
    assert linear_cka_unbiased(x, y) == pytest.approx(expected)


@pytest.mark.parametrize("cka", [linear_cka, linear_cka_unbiased])
def test_rotation_shift_and_scale_change_nothing(cka):
    x, y = related()
    turn = torch.linalg.qr(normal(6, 6, seed=5))[0]
    moved = 0.01 * x @ turn + normal(6, seed=6)
    assert cka(x, moved) == pytest.approx(1)
    assert cka(moved, y) == pytest.approx(cka(x, y))
    assert cka(y, x) == pytest.approx(cka(x, y))
    assert cka(x + 1e6, y - 1e6) == pytest.approx(cka(x, y), rel=1e-6)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    assert cka(x[order], y[order]) == pytest.approx(cka(x, y))
    assert cka(x, y[order]) < cka(x, y) - 0.1  # but the images must correspond
    stretched = x * torch.tensor([100.0, 1, 1, 1, 1, 1])
    assert cka(x, stretched) < 0.95  # not every linear map is forgiven


def test_independent_features():
    """Wide unrelated features: the biased value is near 1, the unbiased one near 0 on either side."""
    values = [linear_cka_unbiased(normal(50, 200, seed=s), normal(50, 300, seed=s + 99)) for s in range(20)]
    assert abs(np.mean(values)) < 0.01
    assert min(values) < 0 < max(values)
    assert max(map(abs, values)) < 0.1
    assert linear_cka(normal(50, 200), normal(50, 300, seed=99)) > 0.8
    assert abs(linear_cka_unbiased(normal(2000, 8), normal(2000, 8, seed=1))) < 0.01
    assert linear_cka(normal(2000, 8), normal(2000, 8, seed=1)) < 0.01


def test_planted_values():
    """Centred orthogonal columns: ‖YᵀX‖² counts the shared ones, so CKA = shared / √(p q)."""
    basis = torch.linalg.qr(torch.cat([torch.ones(20, 1, dtype=torch.float64), normal(20, 7)], dim=1))[0][
        :, 1:
    ]
    assert linear_cka(basis[:, :4], basis[:, 1:6]) == pytest.approx(3 / math.sqrt(4 * 5))
    assert linear_cka(basis[:, :2], basis[:, 2:4]) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("images", [64, 70, 67])  # no rest; a rest that counts; one too small to count
def test_stream_equals_the_mean_over_minibatches(images):
    x, y = related(images=images)
    matrix = stream([x, y], minibatch=16)
    assert matrix[0, 1] == pytest.approx(slow_minibatch(x, y, 16), rel=1e-9)
    torch.testing.assert_close(matrix.diagonal(), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(matrix, matrix.T)
    one_batch = stream([x, y], minibatch=images)
    assert one_batch[0, 1] == pytest.approx(linear_cka_unbiased(x, y))


@pytest.mark.parametrize("parts", [2, 7, 70])
def test_how_images_arrive_changes_nothing(parts):
    states = torch.stack([*related(images=70, widths=(6, 6)), normal(70, 6, seed=9)])
    assert torch.equal(stream(states, parts=parts), stream(states))


def test_order_of_states_and_two_models():
    x = [normal(50, 4), *related(images=50)]
    y = [normal(50, 7, seed=3), x[1] + 0.5 * normal(50, 6, seed=4)]
    matrix = stream(x, y)
    assert matrix.shape == (3, 2)
    together = stream([*x, *y])
    torch.testing.assert_close(matrix, together[:3, 3:])
    torch.testing.assert_close(stream(x[::-1], y), matrix.flip(0))
    torch.testing.assert_close(stream(y, x), matrix.T)
    for i, a in enumerate(x):
        for j, b in enumerate(y):
            assert matrix[i, j] == pytest.approx(slow_minibatch(a, b, 16), abs=1e-9)


def test_order_of_images_matters_little_and_small_minibatches_do_not_bias():
    x, y = related(images=2000)
    full = linear_cka_unbiased(x, y)
    for size in (8, 50):
        values = []
        for seed in range(5):
            order = torch.randperm(2000, generator=torch.Generator().manual_seed(seed))
            values.append(float(stream([x[order], y[order]], minibatch=size)[0, 1]))
        assert np.mean(values) == pytest.approx(full, abs=0.02)
    # the biased value of eight images would be far off
    assert np.mean([linear_cka(a, b) for a, b in zip(x.split(8), y.split(8), strict=True)]) > full + 0.1


def test_no_features_are_kept_but_a_minibatch():
    def held(cka):
        tensors = [t for v in vars(cka).values() for t in (v if isinstance(v, list) else [v])]
        return sum(t.untyped_storage().nbytes() for t in tensors if isinstance(t, torch.Tensor))

    cka = MinibatchCKA(8)
    for seed in range(30):
        cka.update(normal(3, 101, 5, seed=seed))
        assert held(cka) <= 8 * 3 * 7 * 5 + 8 * 3 * 3
    assert cka.images == 3030
    before = cka.compute()
    assert torch.equal(before, cka.compute())  # asking changes nothing
    cka.update(normal(3, 101, 5, seed=99))
    assert not torch.equal(before, cka.compute())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_any_floating_type_is_computed_in_float64(dtype):
    x, y = (z.to(dtype) for z in related())
    assert linear_cka(x, y) == pytest.approx(slow_cka(slow_biased_hsic, x, y))
    assert linear_cka_unbiased(x, y) == pytest.approx(slow_cka(slow_hsic_1, x, y))
    assert stream([x, y], minibatch=40)[0, 1] == pytest.approx(slow_cka(slow_hsic_1, x, y))


def test_equal_features_of_all_images_have_no_cka():
    same, other = 37.3 * normal(1, 6).expand(40, 6), normal(40, 6)
    assert (same - same.mean(0)).any()  # rounding is left, and must not pass for features
    assert math.isnan(linear_cka(same, other))
    assert math.isnan(linear_cka_unbiased(other, same))
    matrix = stream([same, other])
    assert matrix.isnan().tolist() == [[True, True], [True, False]]


def test_too_few_images_and_broken_values_are_refused():
    x, y = related(images=3)
    with pytest.raises(ValueError, match="at least 2 images, got 1"):
        linear_cka(x[:1], y[:1])
    with pytest.raises(ValueError, match="at least 4 images, got 3"):
        linear_cka_unbiased(x, y)
    with pytest.raises(ValueError, match="minibatches of at least 4 images, got 3"):
        MinibatchCKA(3)
    cka = MinibatchCKA()
    with pytest.raises(ValueError, match="at least 4 images, got 0"):
        cka.compute()
    cka.update([x, y])
    with pytest.raises(ValueError, match="at least 4 images, got 3"):
        cka.compute()
    y[1, 2:4] = torch.nan
    for measure in (linear_cka, linear_cka_unbiased):
        with pytest.raises(ValueError, match="y holds 2 values that are not finite"):
            measure(x.repeat(2, 1), y.repeat(2, 1)[:6].where(torch.arange(6)[:, None] < 3, 0.0))


def test_bad_updates_are_refused_and_leave_no_trace():
    x, y = related()
    cka = MinibatchCKA(16)
    cka.update([x, y])
    before = cka.compute()
    broken = y.clone()
    broken[0, 0] = torch.inf
    with pytest.raises(ValueError, match="state 1 of x holds 1 values that are not finite"):
        cka.update([x, broken])
    with pytest.raises(
        ValueError, match=r"widths of the states were \(\(6, 9\), \(\)\), now \(\(9, 6\), \(\)\)"
    ):
        cka.update([y, x])
    with pytest.raises(ValueError, match=r"now \(\(6,\), \(9,\)\)"):
        cka.update([x], [y])
    with pytest.raises(ValueError, match=r"must be \[N, D\] with the same N, got none"):
        cka.update([])
    assert torch.equal(cka.compute(), before)
    assert cka.images == 40


@pytest.mark.usefixtures("no_axis_check")
def test_images_must_correspond():
    x, y = related()
    for measure in (linear_cka, linear_cka_unbiased):
        with pytest.raises(ValueError, match=r"of the same images, got \(40, 6\) and \(39, 9\)"):
            measure(x, y[1:])
        with pytest.raises(ValueError, match=r"got \(40, 6\) and \(9,\)"):
            measure(x, y[0])
    with pytest.raises(ValueError, match=r"with the same N, got \(40, 6\), \(39, 9\)"):
        MinibatchCKA().update([x, y[1:]])
    with pytest.raises(ValueError, match=r"with the same N, got \(40, 6\), \(39, 9\)"):
        MinibatchCKA().update([x], [y[1:]])
