"""Semantic diffusion: known answers, double loops in float64, extremes, refusals."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr

from vitscope.metrics.diffusion import (
    foreground_background_gap,
    high_norm,
    patch_distance_to_foreground,
    patch_kinds,
    similarity_against_distance,
)

GRID = (6, 6)


def normal(*shape, seed=0, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# --- kinds and distance -------------------------------------------------------------------------------


def test_distance_counts_steps_to_the_nearest_foreground_patch():
    coverage = (normal(20, 35, seed=8) > 1.5).float() * 0.8
    coverage[0] = 0.4
    found = patch_distance_to_foreground(coverage, (5, 7))
    assert found[0].isinf().all()
    for row, away in zip(coverage[1:], found[1:], strict=True):
        objects = [divmod(i, 7) for i in range(35) if row[i] > 0.5]
        for i in range(35):
            r, c = divmod(i, 7)
            steps = [max(abs(r - a), abs(c - b)) for a, b in objects]
            assert away[i] == min(steps, default=math.inf)
    kinds = patch_kinds(coverage)
    assert torch.equal(found == 0, kinds.foreground)
    assert not (kinds.foreground & kinds.background).any()


# --- cosines ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("centred", [False, True])
def test_gap_equals_means_over_all_pairs(centred):
    tokens = normal(2, 5, 9, 4, seed=9) + 1.0
    coverage = torch.tensor([0.0, 0.9, 0.3, 0.0, 1.0, 0.5, 0.0, 0.6, 0.0]).expand(5, 9).clone()
    coverage[3:] = coverage[3:].flip(1) * (normal(2, 9).abs() > 0.1)
    centre = tokens.mean((1, 2)) if centred else None
    found = foreground_background_gap(tokens, coverage, centre=centre)
    for s in range(2):
        for n in range(5):
            x = (tokens[s, n] - (centre[s] if centred else 0)).double().numpy()
            u = x / np.linalg.norm(x, axis=1, keepdims=True)
            fg = [i for i in range(9) if coverage[n, i] > 0.5]
            bg = [i for i in range(9) if coverage[n, i] == 0]
            same = [np.mean([u[i] @ u[j] for i, j in combinations(kind, 2)]) for kind in (fg, bg)]
            across = np.mean([u[i] @ u[j] for i in fg for j in bg])
            expected = [*same, across, np.mean(same) - across]
            assert [v[s, n].item() for v in found] == pytest.approx(expected, abs=1e-6)
    single = foreground_background_gap(tokens[1], coverage, centre=None if centre is None else centre[1])
    torch.testing.assert_close(single.gap, found.gap[1])


def test_gap_knows_its_extremes_and_what_it_cannot_know():
    coverage = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    opposite = torch.tensor([[1.0], [2.0], [-1.0], [-3.0]]).expand(3, 4, 1)
    gap = foreground_background_gap(opposite, coverage).gap
    assert gap[0] == 2
    assert gap[1:].isnan().all()
    equal = torch.full((3, 4, 2), 0.1)
    assert foreground_background_gap(equal, coverage).gap[0].abs() < 1e-12
    nothing = foreground_background_gap(equal, coverage, centre=equal.mean((0, 1)))
    assert nothing.foreground[0] == nothing.across[0] == 0  # centred to rounding: no direction


@pytest.mark.parametrize("method", ["spearman", "pearson"])
def test_similarity_against_distance_equals_scipy_and_a_loop(method):
    tokens = normal(4, 12, 5, seed=10)
    tokens[1, 3:7] = tokens[1, 2]  # ties
    found = similarity_against_distance(tokens, (3, 4), method=method)
    reference = spearmanr if method == "spearman" else pearsonr
    for n in range(4):
        u = torch.nn.functional.normalize(tokens[n].double(), dim=1)
        away = [math.dist(divmod(i, 4), divmod(j, 4)) for i, j in combinations(range(12), 2)]
        cosine = [round((u[i] @ u[j]).item(), 12) for i, j in combinations(range(12), 2)]
        assert found.correlation[n].item() == pytest.approx(reference(cosine, away)[0], abs=1e-6)
        for k, step in enumerate(found.steps.tolist()):
            mean = np.mean([c for c, d in zip(cosine, away, strict=True) if round(d) == step])
            assert found.cosine[n, k].item() == pytest.approx(mean, abs=1e-6)


def test_smooth_pictures_fall_with_distance_shuffled_and_equal_ones_do_not():
    places = torch.cartesian_prod(torch.arange(6.0), torch.arange(6.0))
    smooth = torch.cat([torch.ones(36, 1), places / 4], 1)[None]
    centre = smooth.mean((0, 1))
    assert similarity_against_distance(smooth, GRID, centre=centre).correlation < -0.7
    shuffled = smooth[:, torch.randperm(36, generator=torch.Generator().manual_seed(0))]
    assert abs(similarity_against_distance(shuffled, GRID, centre=centre).correlation) < 0.2
    assert similarity_against_distance(torch.full((1, 36, 3), 0.1), GRID).correlation.isnan()


# --- norms --------------------------------------------------------------------------------------------


def test_high_norms_are_found_counted_and_placed():
    norms = normal(2, 10, 36, seed=11).abs() + 5
    norms[1, :3, :2] = 100.0
    coverage = torch.zeros(10, 36)
    coverage[:, 0] = 1.0
    found = high_norm(norms, coverage)
    assert torch.equal(found.high[1], norms[1] == 100)
    flat = norms[1].double().numpy()
    mad = np.median(np.abs(flat - np.median(flat)))
    assert found.threshold[1].item() == pytest.approx(np.median(flat) + 6 * mad)
    assert found.share.tolist() == [0.0, pytest.approx(6 / 360)]
    assert found.in_background[0].isnan()
    assert found.in_background[1] == 0.5
    assert found.background == pytest.approx(35 / 36)
    torch.testing.assert_close(high_norm(3 * norms).high, found.high)
    assert high_norm(norms).in_background.isnan().all()


def test_no_norm_is_high_where_most_are_equal():
    norms = torch.ones(2, 5)
    norms[0, 0] = 9.0
    found = high_norm(norms)
    assert found.share == 0
    assert found.threshold.isinf()


def test_measures_refuse_what_does_not_fit(no_axis_check):
    tokens, coverage = normal(2, 9, 3), torch.zeros(2, 9)
    broken = tokens.clone()
    broken[1, 4, 2] = torch.nan
    gap, curve = foreground_background_gap, similarity_against_distance
    for call, message in [
        (lambda: gap(tokens, coverage[:, :8]), r"got \(2, 9, 3\) and \(2, 8\)"),
        (lambda: gap(tokens[0], coverage), r"got \(9, 3\) and \(2, 9\)"),
        (lambda: gap(broken, coverage), r"patches hold 1 values that are not finite, first at \(1, 4\)"),
        (lambda: gap(tokens, coverage - 1), r"each in \[0, 1\]"),
        (lambda: gap(tokens, coverage, centre=torch.zeros(4)), r"got \(4,\) for \(2, 9, 3\)"),
        (lambda: curve(tokens, (2, 4)), "9 patches do not fill a grid of 2 x 4"),
        (lambda: curve(tokens[:, :2], (1, 2)), r"P >= 3, got \(2, 2, 3\)"),
        (lambda: curve(broken, (3, 3)), "patches hold 1 values that are not finite"),
        (lambda: curve(tokens, (3, 3), method="kendall"), "got 'kendall'"),
        (lambda: high_norm(tokens), "finite and >= 0"),
        (lambda: high_norm(torch.ones(2, 9), coverage[:1]), r"got \(2, 9, 1\) and \(1, 9\)"),
        (lambda: high_norm(torch.ones(0, 9)), r"one or more, finite and >= 0; of \(0, 9\)"),
        (lambda: patch_distance_to_foreground(coverage, (3, 4)), "9 patches do not fill a grid of 3 x 4"),
        (lambda: patch_kinds(coverage * torch.nan), r"each in \[0, 1\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
