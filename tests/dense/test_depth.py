"""Depth head: against a float64 reference with torch's own modules, planted depth, scores, refusals."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from vitscope.dense.depth import depth_probe

GRID, SIDE, BOUNDS = (4, 4), 16, (0.001, 5.0)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def planted(images, seed=0, noise=(0.05, 0.5, 20.0), width=5):
    """Smooth depth from a value a patch, and tokens linear in it; one direction holds it."""
    draw = torch.Generator().manual_seed(seed)
    values = 1 + 3 * torch.rand(images, 1, *GRID, generator=draw)
    maps = F.interpolate(values, (SIDE, SIDE), mode="bilinear", align_corners=False)[:, 0]
    signal = values.flatten(1)[..., None] * normal(width, seed=99)
    states = [signal + n * normal(*signal.shape, seed=seed + 7 + s) for s, n in enumerate(noise)]
    return torch.stack(states), maps


def fitted(train, maps, test, truth, **more):
    return depth_probe(
        train, maps, test, truth, grid=GRID, bounds=BOUNDS, **{"steps": 200, "bins": 64, **more}
    )


@pytest.fixture(scope="module")
def world():
    train, maps = planted(80)
    test, truth = planted(40, seed=1000)
    return train, maps, test, truth


def slow_map(head, bins, tokens, state, size, upsample=4, cls=None):
    """The head step by step in float64: features are resized, not logits."""
    x = (tokens.double() - head.patches.mean[state]) / head.patches.scale[state]
    weight = head.weight[state].double()
    if cls is not None:
        c = (cls.double() - head.cls.mean[state]) / head.cls.scale[state]
        x = torch.cat([x, c[:, None].expand(-1, x.shape[1], -1)], 2)
        weight = torch.cat([weight, head.cls_weight[state].double()], 1)
    maps = x.mT.unflatten(2, GRID)
    fine = F.interpolate(maps, scale_factor=upsample, mode="bilinear", align_corners=False)
    logits = F.conv2d(fine, weight[..., None, None], head.bias[state].double())
    weights = logits.relu() + 0.1
    weights = weights / weights.sum(1, keepdim=True)
    depth = torch.einsum("nkhw,k->nhw", weights, bins.double())
    return F.interpolate(depth[:, None], size, mode="bilinear", align_corners=False)[:, 0]


def test_predicted_maps_are_those_of_the_head_step_by_step(world):
    train, maps, test, truth = world
    cls, cls_test = normal(3, 80, 4, seed=3) + 2, normal(3, 40, 4, seed=4) + 2
    found = fitted(train, maps, test, truth, steps=40, train_cls=cls, test_cls=cls_test)
    assert torch.equal(found.bins, torch.linspace(*BOUNDS, 64))
    assert found.head.cls_weight.abs().max() > 0
    ours = found.predict(test, (20, 20), cls_test)
    for s in range(3):
        exact = slow_map(found.head, found.bins, test[s], s, (20, 20), cls=cls_test[s])
        np.testing.assert_allclose(ours[s], exact, atol=1e-4)


def test_the_error_is_near_that_of_a_long_full_batch_fit_of_the_state_alone(world):
    train, maps, test, truth = world
    s = 1
    found = fitted(train, maps, test, truth, steps=500, bins=32)
    mean, scale = train[s].mean((0, 1)), train[s].std((0, 1), correction=0)
    fine = F.interpolate(((train[s] - mean) / scale).mT.unflatten(2, GRID), (16, 16), mode="bilinear")
    weight = torch.zeros(32, 5, requires_grad=True)
    bias = torch.full((32,), 0.05, requires_grad=True)
    solver = torch.optim.Adam([weight, bias], lr=0.04)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(solver, 200)
    for _ in range(200):
        w = F.conv2d(fine, weight[..., None, None], bias).relu() + 0.1
        p = torch.einsum("nkhw,k->nhw", w / w.sum(1, keepdim=True), found.bins)
        g = (p + 1e-3).log() - (maps + 1e-3).log()
        loss = (g.var() + 0.15 * g.mean() ** 2).sqrt()
        solver.zero_grad()
        loss.backward()
        solver.step()
        schedule.step()
    x = F.interpolate(((test[s] - mean) / scale).mT.unflatten(2, GRID), (16, 16), mode="bilinear")
    w = F.conv2d(x, weight[..., None, None], bias).relu() + 0.1
    p = torch.einsum("nkhw,k->nhw", w / w.sum(1, keepdim=True), found.bins)
    exact = (p - truth).square().mean().sqrt().item()
    assert found.rmse[s].item() == pytest.approx(exact, rel=0.03)


def test_scores_are_those_of_the_predicted_maps_over_valid_pixels(world):
    train, maps, test, truth = world
    truth = truth.clone()
    truth[:, :4], truth[0, 5, 5], truth[1, 6, 6], truth[3] = 0, torch.nan, 90.0, torch.inf
    found = fitted(train, maps, test, truth, steps=40)
    seen = (truth > 0) & truth.isfinite() & (truth <= 5)
    assert found.test_excluded == 1
    assert found.train_excluded == 0
    assert found.valid_share == pytest.approx(100 * seen.double().mean().item())
    assert torch.equal(found.pixels, seen.sum((1, 2)))
    p = found.predict(test, (SIDE, SIDE))
    for s in range(3):
        a, t = p[s][seen].double(), truth[seen].double()
        assert found.rmse[s].item() == pytest.approx((a - t).square().mean().sqrt().item(), rel=1e-5)
        assert found.abs_rel[s].item() == pytest.approx(((a - t).abs() / t).mean().item(), rel=1e-5)
        near = torch.maximum(a / t, t / a) < 1.25
        assert found.delta1[s].item() == pytest.approx(100 * near.double().mean().item())
    np.testing.assert_allclose(found.squared_error.sum(1) / seen.sum(), found.rmse.square(), rtol=1e-6)


# --- known answers ------------------------------------------------------------------------------------


def test_planted_depth_is_read_and_noise_gives_the_baseline(world):
    found = fitted(*world)
    assert found.rmse[0] < 0.15 * found.baseline_rmse
    assert found.delta1[0] > 98
    assert found.rmse[0] < found.rmse[1] < found.rmse[2]
    assert found.rmse[2].item() == pytest.approx(found.baseline_rmse, rel=0.08)


def test_baselines_by_hand():
    train = torch.tensor([[[1.0, 2.0], [3.0, 0.0]], [[3.0, 2.0], [1.0, 0.0]]])
    test = torch.tensor([[[2.0, 4.0], [0.0, 2.0]]])
    tokens = normal(1, 2, 4, 3)
    found = depth_probe(
        tokens, train, tokens[:, :1], test, grid=(2, 2), bounds=BOUNDS, steps=2, upsample=1, bins=8
    )
    # mean of the six valid training pixels: 2; at their places 2, 2, 2 and, where there is none, 2
    assert found.baseline_rmse == pytest.approx(np.sqrt(4 / 3))
    assert found.position_rmse == pytest.approx(np.sqrt(4 / 3))
    train[:, 0, 1] = 4.0
    found = depth_probe(
        tokens, train, tokens[:, :1], test, grid=(2, 2), bounds=BOUNDS, steps=2, upsample=1, bins=8
    )
    mean = 16 / 6
    assert found.baseline_rmse == pytest.approx(np.sqrt(((2 - mean) ** 2 * 2 + (4 - mean) ** 2) / 3))
    assert found.position_rmse == pytest.approx(np.sqrt((0 + 0 + (2 - mean) ** 2) / 3))


def test_a_depth_in_cls_alone_is_read_with_cls():
    draw = torch.Generator().manual_seed(0)
    values = 1 + 3 * torch.rand(120, generator=draw)
    maps = values[:, None, None].expand(-1, SIDE, SIDE).contiguous()
    cls, tokens = values[None, :, None] * torch.tensor([1.0, -2.0]), normal(1, 120, 16, 3, seed=1)
    split = (tokens[:, :80], maps[:80], tokens[:, 80:], maps[80:])
    without, found = fitted(*split), fitted(*split, train_cls=cls[:, :80], test_cls=cls[:, 80:])
    assert without.rmse.item() > 0.9 * without.baseline_rmse
    assert found.rmse.item() < 0.2 * found.baseline_rmse


def test_layers_joined_are_one_state_of_their_features_side_by_side(world):
    train, maps, test, truth = world
    joined = fitted(train, maps, test, truth, layers=(1, 2), steps=60)
    wide, wide_test = (torch.cat([t[1], t[2]], -1)[None] for t in (train, test))
    alone = fitted(wide, maps, wide_test, truth, steps=60)
    assert joined.rmse.shape == (1,)
    np.testing.assert_allclose(joined.rmse, alone.rmse, rtol=1e-5)
    np.testing.assert_allclose(joined.predict(test, GRID), alone.predict(wide_test, GRID), rtol=1e-4)


# --- invariances --------------------------------------------------------------------------------------


def test_states_fitted_together_are_states_fitted_alone(world):
    train, maps, test, truth = world
    whole = fitted(train, maps, test, truth, steps=60)
    for s in range(3):
        alone = fitted(train[s : s + 1], maps, test[s : s + 1], truth, steps=60)
        assert alone.rmse.item() == pytest.approx(whole.rmse[s].item(), rel=0.01)


def test_pixels_without_a_measurement_never_reach_the_fit(world):
    train, maps, test, truth = world
    one, other = maps.clone(), maps.clone()
    one[:, 3:9, 2:7], other[:, 3:9, 2:7] = 0.0, torch.nan
    one[5], other[5] = 0.0, 77.0
    first, second = (fitted(train, m, test, truth, steps=40) for m in (one, other))
    assert torch.equal(first.head.weight, second.head.weight)
    assert first.train_excluded == second.train_excluded == 1
    without = torch.arange(80) != 5
    same = fitted(train[:, without], one[without], test, truth, steps=40)
    assert torch.equal(first.head.weight, same.head.weight)


def test_the_unit_of_depth_scales_the_error(world):
    train, maps, test, truth = world
    metres = fitted(train, maps, test, truth)
    bounds = (100 * BOUNDS[0], 100 * BOUNDS[1])
    found = depth_probe(train, 100 * maps, test, 100 * truth, grid=GRID, bounds=bounds, steps=200, bins=64)
    np.testing.assert_allclose(found.rmse / 100, metres.rmse, rtol=0.05)
    np.testing.assert_allclose(found.delta1, metres.delta1, atol=1.5)


def test_the_interval_is_a_bootstrap_of_the_error_over_images(world):
    train, maps, test, truth = world
    truth = truth.clone()
    truth[3], truth[7, :8] = 0.0, 0.0
    found = fitted(train, maps, test, truth, steps=40)
    interval = found.interval(draws=400)
    np.testing.assert_allclose(interval.mean, found.rmse, rtol=1e-6)
    keep = found.pixels > 0
    error, pixels = found.squared_error[1][keep].numpy(), found.pixels[keep].numpy()
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(400):
        pick = rng.integers(39, size=39)
        drawn.append(np.sqrt(error[pick].sum() / pixels[pick].sum()))
    np.testing.assert_allclose([interval.low[1], interval.high[1]], np.quantile(drawn, [0.025, 0.975]))
    np.testing.assert_allclose(found.interval([2], groups=np.arange(40) // 2).mean, found.rmse[2:])


def test_few_steps_are_warned_of(world):
    assert "64 of 80 training images were used" in fitted(*world, steps=2).warnings[0]


# --- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": (3, 5)}, r"a grid of 3 x 5 has 15 patches, but the train tokens of shape \(3, 80, 16, 5\)"),
        ({"bounds": (5.0, 1.0)}, r"bounds must be \(nearest, farthest\).*\(5.0, 1.0\)"),
        ({"bounds": (50.0, 60.0)}, "no valid pixel: none is finite, above 0 and within 50 to 60"),
        ({"train_depth": torch.zeros(80, 16, 16)}, "train depth maps have no valid pixel"),
        ({"test_depth": -torch.ones(40, 16, 16)}, "test depth maps hold -1: depth cannot be below 0"),
        ({"test_depth": torch.ones(4, 16, 16)}, r"test depth maps must be \[N, h, w\] for the 40 images"),
        ({"test_depth": torch.ones(40, 16, 30)}, "test depth maps of 16 x 30 pixels do not have the aspect"),
        (
            {"train_depth": [torch.ones(4, 4), torch.ones(4, 5)]},
            r"must have one size, got \(4, 4\), \(4, 5\)",
        ),
        (
            {"test_tokens": torch.zeros(2, 40, 16, 5)},
            r"agree in states.*\(3, 80, 16, 5\) and \(2, 40, 16, 5\)",
        ),
        ({"test_cls": torch.zeros(3, 40, 5)}, "cls is given for test alone"),
        ({"layers": (0, 3)}, r"layers must be positions among the 3 states, got \[0, 3\]"),
        ({"layers": ()}, "layers must be positions"),
        ({"bins": 1}, "bins and points must be at least 2.*bins=1"),
        ({"points": 1}, "points must be at least 2.*points=1"),
        ({"lr": 0.0}, "lr above 0.*lr=0.0"),
    ],
)
def test_what_does_not_fit_is_refused(world, change, message, no_axis_check):
    train, maps, test, truth = world
    given = {"train_tokens": train, "train_depth": maps, "test_tokens": test, "test_depth": truth}
    with pytest.raises(ValueError, match=message):
        depth_probe(**{**given, "grid": GRID, "bounds": BOUNDS, **change})


def test_cls_that_is_not_finite_names_the_state(world):
    train, maps, test, truth = world
    cls = torch.zeros(3, 80, 5)
    cls[0] = torch.nan
    with pytest.raises(ValueError, match="train cls hold NaN or inf in state 0"):
        fitted(train, maps, test, truth, train_cls=cls, test_cls=torch.zeros(3, 40, 5))
