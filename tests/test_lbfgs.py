import pytest
import torch

from vitscope.lbfgs import minimise


def quadratics(curvature, centre, seen=None):
    def objective(x, rows, columns):
        if seen is not None:
            seen.append((len(rows), len(columns)))
        h, c = curvature[rows][:, columns], centre[rows][:, columns]
        return (0.5 * h * (x - c) ** 2).sum(2, dtype=torch.float64), h * (x - c)

    return objective


def test_quadratics_of_every_condition_reach_their_centres():
    generator = torch.Generator().manual_seed(0)
    curvature = 10 ** (4 * torch.rand(3, 4, 20, generator=generator) - 2)
    centre = torch.randn(3, 4, 20, generator=generator)
    found = minimise(
        quadratics(curvature, centre), torch.zeros(3, 4, 20), torch.ones(3, 4, 20), tolerance=1e-5
    )
    assert found.converged.all()
    assert ((found.x - centre) * curvature).abs().max() <= 1.01e-5


def test_the_exact_hessian_takes_one_step():
    generator = torch.Generator().manual_seed(0)
    curvature = 10 ** (6 * torch.rand(2, 3, 8, generator=generator) - 3)
    found = minimise(
        quadratics(curvature, torch.ones(2, 3, 8)), torch.zeros(2, 3, 8), 1 / curvature, tolerance=1e-3
    )
    assert found.iterations.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_rosenbrock_needs_line_searches_and_gets_there():
    def objective(x, rows, columns):
        a, b = x.double().unbind(2)
        value = (1 - a) ** 2 + 100 * (b - a**2) ** 2
        slope = torch.stack([-2 * (1 - a) - 400 * a * (b - a**2), 200 * (b - a**2)], 2)
        return value, slope.to(x.dtype)

    start = torch.tensor([[[-1.2, 1.0], [2.0, -3.0]], [[0.0, 0.0], [-3.0, -4.0]]], dtype=torch.float64)
    found = minimise(objective, start, torch.ones_like(start), tolerance=1e-6)
    assert found.converged.all()
    torch.testing.assert_close(found.x, torch.ones_like(start), atol=1e-5, rtol=0)


def test_problems_that_are_done_leave_the_grid():
    curvature = torch.ones(4, 2, 6)
    curvature[3] = torch.logspace(-3, 3, 6)
    seen = []
    minimise(quadratics(curvature, torch.ones(4, 2, 6), seen), torch.zeros(4, 2, 6), torch.ones(4, 2, 6))
    assert seen[0] == (4, 2)
    assert seen[-1] == (1, 2)


def test_neighbours_do_not_change_a_solution():
    generator = torch.Generator().manual_seed(1)
    curvature = 10 ** (3 * torch.rand(3, 2, 10, generator=generator))
    centre = torch.randn(3, 2, 10, generator=generator)
    together = minimise(quadratics(curvature, centre), torch.zeros(3, 2, 10), torch.ones(3, 2, 10))
    for b in range(3):
        alone = minimise(
            quadratics(curvature[b : b + 1], centre[b : b + 1]), torch.zeros(1, 2, 10), torch.ones(1, 2, 10)
        )
        torch.testing.assert_close(alone.x[0], together.x[b])
        assert alone.iterations[0].tolist() == together.iterations[b].tolist()


def test_too_few_iterations_are_reported_per_problem():
    curvature = torch.stack([torch.ones(1, 6), torch.logspace(-3, 3, 6)[None]])
    found = minimise(
        quadratics(curvature, torch.ones(2, 1, 6)), torch.zeros(2, 1, 6), torch.ones(2, 1, 6), max_iter=3
    )
    assert found.converged[:, 0].tolist() == [True, False]
    assert found.iterations.max() == 3


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_an_objective_that_is_not_finite_ends_without_convergence(value):
    def objective(x, rows, columns):
        bad = (x.sum(2) != 0).double()
        return torch.where(bad > 0, value, 1.0).double(), torch.ones_like(x)

    found = minimise(objective, torch.zeros(1, 1, 3), torch.ones(1, 1, 3))
    assert not found.converged.any()
    assert found.x.tolist() == [[[0.0, 0.0, 0.0]]]
