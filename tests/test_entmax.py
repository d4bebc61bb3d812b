import copy

import entmax as package
import pytest
import torch
from torch import nn

from vitscope import entmax as kernel
from vitscope.entmax import BACKENDS, compiler_found, entmax15


def bisection(x):
    """By definition, in float64: halve the interval of τ until nothing is left of it."""
    u = x.double() / 2
    u = u - u.amax(-1, keepdim=True)
    low, high = torch.full_like(u[..., :1], -1.0), torch.zeros_like(u[..., :1])
    for _ in range(80):
        middle = (low + high) / 2
        below = (u - middle).clamp_min(0).square().sum(-1, keepdim=True) >= 1
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (u - (low + high) / 2).clamp_min(0).square()


def scores(*shape, scale=2.0, seed=0, dtype=torch.float32):
    return (scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def clear_of_the_threshold(rows, length, scale=2.0):
    """Rows in which no entry lies within 0.01 of entering or leaving the support, with zeros in most."""
    x = scores(400, length, scale=scale, dtype=torch.float64)
    u = (x - x.amax(-1, keepdim=True)) / 2
    p = bisection(x)
    tau = (u - p.sqrt()).amax(-1, keepdim=True)  # that of the largest entry is exact
    kept = x[((u - tau).abs() > 0.01).all(-1) & (p == 0).any(-1)]
    assert len(kept) >= rows
    return kept[:rows]


def hard_rows(count, length, seed):
    """Groups of equal values whose sizes grow and whose values fall geometrically, some of them jittered."""
    generator = torch.Generator().manual_seed(seed)
    growth, fall, gap, kind, jitter = torch.rand(5, count, 1, generator=generator, dtype=torch.float64)
    group = (torch.arange(1, length + 1).log() / (1.05 + 8 * growth).log()).floor()
    halving, even, slow = (
        -2 * (1 - 0.001 ** (fall * group)),
        -2 * 0.001**gap * group,
        -2 * (1 - (1 - 0.001**gap) ** group),
    )
    x = torch.where(kind < 1 / 3, halving, torch.where(kind < 2 / 3, even, slow))
    noise = torch.rand(count, length, generator=generator, dtype=torch.float64)
    return x - torch.where(jitter < 0.5, 0.0, 10 ** (-12 * (jitter - 0.5))) * noise


# --- the numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0, 3.0, 30.0, 300.0])
@pytest.mark.parametrize("length", [2, 17, 197, 1370])
def test_equals_bisection_and_the_package(length, scale):
    x = scores(60, length, scale=scale, dtype=torch.float64)
    exact = bisection(x)
    torch.testing.assert_close(entmax15(x), exact, rtol=0, atol=1e-14)
    torch.testing.assert_close(entmax15(x), package.entmax15(x, dim=-1), rtol=0, atol=1e-12)
    single = x.float()
    torch.testing.assert_close(entmax15(single).double(), bisection(single), rtol=0, atol=5e-7)
    torch.testing.assert_close(entmax15(single), package.entmax15(single, dim=-1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("length", [8, 64, 197, 256, 577, 1024, 2048, 4097])
def test_hard_rows_are_exact_for_the_eager_and_for_the_fixed_number_of_steps(length):
    x = hard_rows(200, length, seed=length)
    exact, exact_single = bisection(x), bisection(x.float())
    for solve in (entmax15, kernel._fused_forward):
        torch.testing.assert_close(solve(x), exact, rtol=0, atol=1e-13)
        torch.testing.assert_close(solve(x.float()).double(), exact_single, rtol=0, atol=1e-6)
        assert float((solve(x.float()).double().sum(-1) - 1).abs().max()) < 5e-6


@pytest.mark.parametrize(
    "groups",
    [
        {-1.330011: 190, -1.704239: 60, 0.0: 2, -0.650096: 1, -1.330031: 1, -1.420216: 1, -1.655908: 1},
        {-1.62117: 1311, -1.88224: 701, -1.890684: 32, -0.07416: 1, -0.353198: 1, -1.886473: 1, -2.0: 1},
    ],
)
def test_the_hardest_rows_that_a_search_found_need_the_fixed_steps_and_no_more(groups, monkeypatch):
    x = torch.tensor(list(groups), dtype=torch.float64).repeat_interleave(torch.tensor([*groups.values()]))
    assert len(x) in (256, 2048)
    exact = bisection(x)
    torch.testing.assert_close(kernel._solve(x), exact, rtol=0, atol=1e-14)
    torch.testing.assert_close(kernel._solve(x.float()).double(), bisection(x.float()), rtol=0, atol=1e-6)
    fewer = kernel.steps(len(x)) - 1
    monkeypatch.setattr(kernel, "steps", lambda *_: fewer)
    assert float((kernel._solve(x) - exact).abs().max()) > 1e-6


@pytest.mark.parametrize("length", [16, 256, 700, 2048, 4097])
def test_after_the_fixed_steps_no_hard_row_is_further_off_than_is_said(length, monkeypatch):
    x = hard_rows(400, length, seed=2)
    single = kernel.steps(length)
    monkeypatch.setattr(kernel, "steps", lambda *_: single)  # float64, so that rounding hides nothing
    assert float((kernel._solve(x) - bisection(x)).abs().max()) < 2e-8


@pytest.mark.parametrize("length", [2, 64, 197, 1024, 4097])
def test_a_row_that_rests_is_as_exact_as_is_proved(length, monkeypatch):
    x = torch.cat([hard_rows(300, length, seed=3), scores(100, length, scale=0.3, dtype=torch.float64)])
    single, norm, taken = kernel._rests_at(length, torch.float32), kernel._norm, []
    monkeypatch.setattr(kernel, "_norm", lambda r: taken.append(len(r)) or norm(r))
    monkeypatch.setattr(kernel, "_CACHED", x.numel())  # one part: each norm is a step
    exact, entmax = bisection(x), entmax15(x)
    before = len(taken)
    assert before < kernel.MOST_STEPS
    monkeypatch.setattr(kernel, "_rests_at", lambda *_: single)  # float64, so that rounding hides nothing
    early = entmax15(x)
    assert len(taken) - before <= before
    for found, most in ((entmax, 1e-14), (early, torch.finfo(torch.float32).eps / 2)):
        assert float((found - exact).abs().max()) <= most


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([0.0, 0.0, 0.0, 0.0], [0.25] * 4),
        ([1.0, 0.0], [((1 + 7**0.5) / 4) ** 2, ((7**0.5 - 1) / 4) ** 2]),
        ([2.0, 0.0], [1.0, 0.0]),  # a lead of 2 takes all
        ([5.0, 3.0, -1.0, 3.0], [1.0, 0.0, 0.0, 0.0]),
        ([0.0, 0.0, -5.0], [0.5, 0.5, 0.0]),
        ([-7.0], [1.0]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_known_answers(x, expected, dtype):
    torch.testing.assert_close(
        entmax15(torch.tensor(x, dtype=dtype)), torch.tensor(expected, dtype=dtype), rtol=0, atol=2e-7
    )


def test_zeros_are_exact_and_where_bisection_has_them():
    x = clear_of_the_threshold(100, 50)
    zeros = bisection(x) == 0
    assert 0.5 < float(zeros.double().mean()) < 1
    for dtype in (torch.float64, torch.float32):
        assert torch.equal(entmax15(x.to(dtype)) == 0, zeros)
    assert int((x.softmax(-1) == 0).sum()) == 0


def test_the_optimum_is_not_beaten_by_nearby_points():
    x = scores(20, 12, dtype=torch.float64)

    def objective(p):
        return (p * x).sum(-1) + (4 / 3) * (p - p**1.5).sum(-1)

    best = entmax15(x)
    for seed in range(20):
        other = scores(20, 12, seed=seed, scale=1.0, dtype=torch.float64).softmax(-1)
        for share in (1e-4, 1e-2, 0.5):
            assert bool((objective((1 - share) * best + share * other) < objective(best)).all())


# --- invariances ------------------------------------------------------------------------------------------


def test_a_shift_of_a_row_does_not_matter():
    x = scores(30, 40).mul(64).round().div(64)  # so that the shifted scores are exact
    assert torch.equal(entmax15(x + 1000), entmax15(x))
    assert torch.equal(entmax15(x - 1000), entmax15(x))


def test_a_permutation_is_followed():
    x, order = scores(30, 41), torch.randperm(41, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(entmax15(x[:, order]), entmax15(x)[:, order], rtol=0, atol=3e-7)


def test_larger_scores_get_no_less():
    p = entmax15(scores(50, 30).sort(-1).values)
    assert bool((p.diff(dim=-1) >= 0).all())
    assert bool((p >= 0).all())


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_any_axis(dim):
    x = scores(5, 7, 11)
    expected = bisection(x.movedim(dim, -1)).movedim(-1, dim)
    found = entmax15(x, dim)
    assert found.shape == x.shape
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=5e-7)


def test_the_layout_in_memory_does_not_move_a_bit():
    x = scores(90, 197)
    expected = entmax15(x)
    assert torch.equal(entmax15(x.T.contiguous().T), expected)
    assert torch.equal(entmax15(x.T.contiguous(), 0).T, expected)
    assert torch.equal(entmax15(torch.stack([x, -x], -1)[..., 0]), expected)
    assert torch.equal(entmax15(x[:1].expand(4, -1)), expected[:1].expand(4, -1))


@pytest.mark.parametrize("length", [5, 197, 1370])
def test_a_row_alone_equals_the_row_in_a_batch_forward_and_backward(length, monkeypatch):
    hard = hard_rows(20, length, seed=1).float()  # rows that need many steps beside rows that need few
    x = torch.cat([scores(100, length), hard, torch.zeros(2, length)])
    upstream = scores(len(x), length, seed=3)

    def both(rows, chosen=slice(None)):
        rows = rows.clone().requires_grad_()
        p = entmax15(rows)
        p.backward(upstream[chosen])
        return p.detach(), rows.grad

    together = both(x)
    for i in range(0, len(x), 7):
        for found, expected in zip(both(x[i : i + 1], slice(i, i + 1)), together, strict=True):
            assert torch.equal(found, expected[i : i + 1])
        assert torch.equal(entmax15(x[i]), together[0][i])
    for cached in (1, 3 * length, 1 << 30):
        monkeypatch.setattr(kernel, "_CACHED", cached)
        for found, expected in zip(both(x), together, strict=True):
            assert torch.equal(found, expected)


# --- shapes and dtypes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (4, 1), (2, 3, 1)])
def test_a_single_entry_gets_everything_and_no_gradient(shape):
    x = scores(*shape).requires_grad_()
    p = entmax15(x)
    assert torch.equal(p, torch.ones(shape))
    p.sum().backward()
    assert torch.equal(x.grad, torch.zeros(shape))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (2, 0, 4)])
def test_nothing_in_nothing_out(shape):
    x = torch.empty(shape, requires_grad=True)
    p = entmax15(x)
    assert p.shape == shape
    p.sum().backward()
    assert x.grad.shape == shape


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
def test_half_precision_is_the_float32_result_rounded(dtype, rounding):
    x = scores(50, 300, scale=20.0).to(dtype)
    x[0], x[1, :5] = -1000.0, torch.finfo(dtype).min
    p = entmax15(x)
    assert p.dtype == dtype
    assert torch.equal(p, entmax15(x.float()).to(dtype))
    x.requires_grad_()
    upstream = scores(50, 300, seed=1)
    entmax15(x).backward(upstream.to(dtype))
    exact = x.detach().float().requires_grad_()
    entmax15(exact).backward(upstream)
    assert x.grad.dtype == dtype
    torch.testing.assert_close(x.grad.float(), exact.grad, rtol=4 * rounding, atol=4 * rounding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_largest_finite_numbers_do_not_overflow(dtype):
    top = torch.finfo(dtype).max
    x = torch.tensor([[top, -top, 0.0], [-top, -top, -top], [top, top, -top]], dtype=dtype)
    expected = torch.tensor([[1, 0, 0], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0]]).to(dtype)
    torch.testing.assert_close(entmax15(x), expected, rtol=0, atol=2e-7)


def test_autocast_trains():
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)
    x = torch.randn(16, 8)
    with torch.autocast("cpu", torch.bfloat16):
        a = layer(x)
        p = entmax15(a @ a.T)
        loss = (p @ a).float().square().mean()
    assert a.dtype == p.dtype == torch.bfloat16
    loss.backward()
    reference = copy.deepcopy(layer)
    reference.zero_grad()
    a = reference(x)
    (entmax15(a @ a.T) @ a).square().mean().backward()
    torch.testing.assert_close(layer.weight.grad, reference.weight.grad, rtol=0.1, atol=0.02)
    assert float(layer.weight.grad.abs().max()) > 0.05


# --- masks and bad rows -----------------------------------------------------------------------------------


def test_masked_entries_are_exactly_zero_and_the_rest_is_the_row_without_them():
    x = scores(40, 30)
    masked = torch.rand(40, 30, generator=torch.Generator().manual_seed(1)) < 0.5
    masked[:, 0] = False
    p = entmax15(x.masked_fill(masked, -torch.inf))
    assert bool((p[masked] == 0).all())
    for row, found, hidden in zip(x, p, masked, strict=True):
        torch.testing.assert_close(found[~hidden], entmax15(row[~hidden]), rtol=0, atol=3e-7)


@pytest.mark.parametrize("solve", [entmax15, kernel._fused_forward])
def test_a_masked_row_is_zero_and_a_broken_row_is_nan_and_no_other_row_notices(solve):
    x = scores(6, 20)
    whole = solve(x)
    x[1], x[2, 3], x[4, 7] = -torch.inf, torch.nan, torch.inf
    p = solve(x)
    assert torch.equal(p[1], torch.zeros(20))
    assert bool(p[[2, 4]].isnan().all())
    assert torch.equal(p[[0, 3, 5]], whole[[0, 3, 5]])


def test_gradients_of_masked_and_broken_rows_stay_in_their_rows():
    x, upstream = scores(6, 20), scores(6, 20, seed=1)
    clean = x.clone().requires_grad_()
    entmax15(clean).backward(upstream)
    x[1], x[2, 3], x[4, 7], x[5, :4] = -torch.inf, torch.nan, torch.inf, -torch.inf
    x.requires_grad_()
    entmax15(x).backward(upstream)
    assert torch.equal(x.grad[1], torch.zeros(20))
    assert bool(x.grad[[2, 4]].isnan().all())
    assert torch.equal(x.grad[[0, 3]], clean.grad[[0, 3]])
    assert torch.equal(x.grad[5, :4], torch.zeros(4))
    assert bool(x.grad[5].isfinite().all())


# --- derivatives ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2, 3, 6])
def test_first_and_second_derivatives_away_from_changes_of_support(length):
    x = clear_of_the_threshold(4, length).requires_grad_()
    assert bool((entmax15(x) == 0).any())
    torch.autograd.gradcheck(entmax15, (x,))
    torch.autograd.gradcheck(lambda z: entmax15(z, 0), (x.detach().T.clone().requires_grad_(),))
    torch.autograd.gradgradcheck(entmax15, (x,))


def test_second_derivatives_of_masked_rows_are_zero():
    x = scores(3, 5, scale=0.3, dtype=torch.float64)
    x[1], x[2, 0] = -torch.inf, -torch.inf
    x.requires_grad_()
    (slope,) = torch.autograd.grad(entmax15(x)[:, 1].sum(), x, create_graph=True)
    slope.square().sum().backward()
    assert torch.equal(x.grad[1], torch.zeros(5, dtype=torch.float64))
    assert float(x.grad[2, 0]) == 0
    assert bool(x.grad.isfinite().all())
    assert float(x.grad[0].abs().max()) > 0


def test_gradient_equals_that_of_the_package_sums_to_zero_and_leaves_zeros_alone():
    x, upstream = scores(50, 197, dtype=torch.float64).requires_grad_(), scores(50, 197, seed=1).double()
    (found,) = torch.autograd.grad(entmax15(x), x, upstream)
    (expected,) = torch.autograd.grad(package.entmax15(x, dim=-1), x, upstream)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert float(found.sum(-1).abs().max()) < 1e-14
    assert bool((found[entmax15(x) == 0] == 0).all())
    (single,) = torch.autograd.grad(entmax15(y := x.detach().float().requires_grad_()), y, upstream.float())
    torch.testing.assert_close(single.double(), found, rtol=0, atol=1e-5)


def test_a_gradient_that_is_a_view_is_read_as_what_it_is():
    x = scores(8, 9).requires_grad_()
    upstream = scores(9, 8, seed=1).T
    (found,) = torch.autograd.grad(entmax15(x), x, upstream)
    (expected,) = torch.autograd.grad(entmax15(x), x, upstream.contiguous())
    assert torch.equal(found, expected)
    (of_a_sum,) = torch.autograd.grad(entmax15(x).sum(), x)  # arrives expanded
    torch.testing.assert_close(of_a_sum, torch.zeros(8, 9), rtol=0, atol=1e-7)


# --- backends ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not compiler_found(), reason="torch.compile needs a C++ compiler")
def test_compiled_equals_eager():
    x, upstream = scores(2, 30, 197), scores(2, 30, 197, seed=1)
    x[0, 0], x[1, 3, 4] = -torch.inf, -torch.inf
    results = []
    for backend in ("eager", "compiled"):
        leaf = x.clone().requires_grad_()
        p = entmax15(leaf, backend=backend)
        p.backward(upstream)
        results.append((p.detach(), leaf.grad))
    for eager, compiled, close in zip(*results, (1e-6, 1e-5), strict=True):
        torch.testing.assert_close(compiled, eager, rtol=0, atol=close)
        assert torch.equal(compiled[0, 0], torch.zeros(197))


@pytest.mark.skipif(not compiler_found(), reason="torch.compile needs a C++ compiler")
def test_compiled_takes_any_length_layout_and_number_of_axes():
    x = scores(6, 40, 33)
    x[0, 0], x[1, 3, 4], x[2, 0, 1] = -torch.inf, -torch.inf, torch.nan
    for rows, dim in ((x, -1), (x, 1), (x[0, 1:2], -1), (x[3].T, -1), (x[:1].expand(4, -1, -1), 2)):
        torch.testing.assert_close(
            entmax15(rows, dim, backend="compiled"), entmax15(rows, dim), rtol=0, atol=1e-6, equal_nan=True
        )
    leaf = x[3].clone().requires_grad_()
    (of_a_sum,) = torch.autograd.grad(entmax15(leaf, backend="compiled").sum(), leaf)  # arrives expanded
    torch.testing.assert_close(of_a_sum, torch.zeros(40, 33), rtol=0, atol=1e-7)


def test_without_a_gradient_the_numbers_are_those_of_training():
    x = scores(50, 65)
    learnt = entmax15(x.clone().requires_grad_())
    assert learnt.grad_fn is not None
    with torch.inference_mode():
        assert torch.equal(entmax15(x), learnt)
    with torch.no_grad():
        unlearnt = entmax15(x.clone().requires_grad_())
    assert torch.equal(unlearnt, learnt)
    assert not unlearnt.requires_grad


def test_auto_compiles_only_large_tensors_that_learn(monkeypatch):
    monkeypatch.setattr(kernel, "_COMPILED_FROM", 100)
    monkeypatch.setattr(kernel, "compiler_found", lambda: True)
    assert kernel._worth_compiling(torch.zeros(100, requires_grad=True))
    assert not kernel._worth_compiling(torch.zeros(99, requires_grad=True))
    assert not kernel._worth_compiling(torch.zeros(100))
    with torch.no_grad():
        assert not kernel._worth_compiling(torch.zeros(100, requires_grad=True))
    monkeypatch.setattr(kernel, "compiler_found", lambda: False)
    assert not kernel._worth_compiling(torch.zeros(100, requires_grad=True))
    x = torch.zeros(10, 20, requires_grad=True)
    entmax15(x).sum().backward()  # without a compiler, eager
    assert torch.equal(x.grad, torch.zeros(10, 20))


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="backend must be one of auto, eager, compiled, got 'triton'"):
        entmax15(torch.zeros(3), backend="triton")
    assert BACKENDS == ("auto", "eager", "compiled")
    for whole in (torch.int64, torch.bool):
        with pytest.raises(TypeError, match=rf"needs floating-point scores, got {whole}; call \.float\(\)"):
            entmax15(torch.zeros(3, dtype=whole))
    with pytest.raises(IndexError, match="Dimension out of range"):
        entmax15(torch.zeros(3, 2), 2)
