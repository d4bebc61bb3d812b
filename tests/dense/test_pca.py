"""PCA maps: against scikit-learn and Procrustes by singular values; planted colours; refusals."""

import math

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from vitscope.dense.pca import pca_rgb, principal

GRID = (3, 4)


def normal(*shape, seed=0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(width=6, *, images=5, seed=0, mean=0.0) -> torch.Tensor:
    """Patches [N, P, D] whose variances along hidden axes are well apart."""
    spread = torch.arange(width, 0, -1, dtype=torch.float64) ** 2
    return (normal(images, 12, width, seed=seed) * spread) @ rotation(width, width, seed + 1) + mean


def rotation(rows, columns, seed) -> torch.Tensor:
    return torch.linalg.qr(normal(columns, rows, seed=seed))[0].T


def stretched(scores) -> np.ndarray:
    flat = scores.reshape(-1, 3)
    low, high = np.percentile(flat, 1, axis=0), np.percentile(flat, 99, axis=0)
    return np.clip((scores - low) / (high - low), 0, 1)


def test_components_are_those_of_scikit_learn():
    x = tokens(mean=50.0)
    found, slow = principal(x, 4), PCA(4, svd_solver="full").fit(x.flatten(0, 1).numpy())
    signs = np.sign((slow.components_ * found.axes.numpy()).sum(1))
    np.testing.assert_allclose(found.axes, signs[:, None] * slow.components_, atol=1e-10)
    np.testing.assert_allclose(found.explained, slow.explained_variance_ratio_, rtol=1e-10)
    expected = signs * slow.transform(x.flatten(0, 1).numpy())
    np.testing.assert_allclose(found.scores.flatten(0, 1), expected, atol=1e-9)


def test_the_largest_entry_of_every_axis_is_positive_whatever_the_order_of_images():
    x = tokens(images=9)
    found, turned = principal(x, 3), principal(x.flip(0), 3)
    assert (found.axes.gather(1, found.axes.abs().argmax(1, keepdim=True)) > 0).all()
    torch.testing.assert_close(turned.axes, found.axes)
    torch.testing.assert_close(turned.scores.flip(0), found.scores)


def test_components_do_not_depend_on_how_many_rows_are_held_at_once(monkeypatch):
    x = tokens()
    whole = principal(x, 3)
    monkeypatch.setattr("vitscope.dense.pca._ROWS", 7)
    torch.testing.assert_close(principal(x, 3).scores, whole.scores)


def test_a_large_common_offset_costs_no_digits_in_float32():
    x = (tokens() / 1000).float()
    torch.testing.assert_close(principal(x + 64, 3).explained, principal(x, 3).explained, rtol=1e-3, atol=0)


def test_single_entry_is_its_scores_scaled_to_percentiles():
    x = tokens()
    maps = pca_rgb(x, GRID)
    expected = stretched(principal(x, 3).scores.numpy()).reshape(5, 3, 4, 3)
    np.testing.assert_allclose(maps.rgb, expected, atol=1e-6)
    assert (maps.rgb.dtype, maps.rgb.min(), maps.rgb.max()) == (np.float32, 0, 1)
    assert (maps.explained.shape, float(maps.agreement), maps.names) == ((3,), 1.0, ("0",))


def test_maps_are_row_by_row_of_the_grid():
    x = tokens(images=1)
    x[0, 7] += 200 * rotation(1, 6, 3)[0]  # row 1, column 3 of 3 x 4
    away = np.abs(pca_rgb(x, GRID, percentiles=(0.0, 100.0)).rgb[0, ..., 0] - 0.5)
    assert np.unravel_index(away.argmax(), GRID) == (1, 3)


def test_planted_parts_get_one_colour_in_all_images():
    parts = torch.randint(4, (6, 12), generator=torch.Generator().manual_seed(0))
    x = normal(4, 8, seed=1)[parts] + 1e-4 * normal(6, 12, 8, seed=2)
    rgb = pca_rgb(x, GRID).rgb.reshape(6, 12, 3)
    colours = np.stack([rgb[parts == k].mean(0) for k in range(4)])
    assert max(np.ptp(rgb[parts == k], axis=0).max() for k in range(4)) < 0.01
    assert min(np.abs(colours[i] - colours[j]).max() for i in range(4) for j in range(i)) > 0.1


def test_turned_mirrored_and_rescaled_features_get_the_same_colours():
    x = tokens()
    mirror = torch.diag(torch.tensor([1.0, -1, 1, 1, -1, 1], dtype=torch.float64))
    others = {"wide": 7 * x @ rotation(6, 11, 4) + 3, "mirrored": x @ mirror}
    maps = pca_rgb({"reference": x, **others}, GRID)
    np.testing.assert_allclose(maps.agreement, 1, rtol=1e-9)
    np.testing.assert_allclose(maps.rgb[1:], np.stack([maps.rgb[0]] * 2), atol=1e-6)
    np.testing.assert_allclose(maps.explained[1], maps.explained[0], rtol=1e-9)
    assert maps.names == ("reference", "wide", "mirrored")


def test_alignment_solves_the_procrustes_problem():
    entries = {"a": tokens(seed=0), "b": tokens(9, seed=5) + tokens(9, seed=7)}
    a, b = (principal(e, 3).scores.flatten(0, 1).numpy() for e in entries.values())
    u, s, vt = np.linalg.svd(b.T @ a)
    maps = pca_rgb(entries, GRID)
    np.testing.assert_allclose(maps.agreement[1], s.sum() / np.linalg.norm(a) / np.linalg.norm(b))
    np.testing.assert_allclose(maps.rgb[1].reshape(-1, 3), stretched(b @ (u @ vt)), atol=1e-6)


def test_unrelated_entries_agree_less_than_related_ones():
    x = tokens(images=40)
    maps = pca_rgb(
        {"x": x, "noisy": x + 5 * normal(40, 12, 6, seed=8), "other": tokens(images=40, seed=9)}, GRID
    )
    assert 1 > maps.agreement[1] > 0.9 > 0.4 > maps.agreement[2] > 0


def test_own_basis_leaves_every_entry_as_it_is_alone():
    states = torch.stack([tokens(seed=0), tokens(seed=5)])
    maps = pca_rgb(states, GRID, basis="own")
    for state, rgb, explained in zip(states, maps.rgb, maps.explained, strict=True):
        alone = pca_rgb(state, GRID)
        np.testing.assert_array_equal(rgb, alone.rgb)
        np.testing.assert_array_equal(explained, alone.explained)
    assert (maps.agreement[0], math.isnan(maps.agreement[1])) == (1, True)
    assert not np.allclose(pca_rgb(states, GRID).rgb[1], maps.rgb[1])


def test_outliers_do_not_take_the_colours():
    x = tokens(images=30)
    spoiled = x.clone()
    spoiled[0, 0] *= 3
    inner = np.abs(pca_rgb(spoiled, GRID).rgb[1:] - pca_rgb(x, GRID).rgb[1:])
    assert np.median(inner) < 0.05


@pytest.mark.parametrize(
    ("given", "grid", "keywords", "message"),
    [
        (torch.ones(2, 12), GRID, {}, r"\[N, P, D\].*Got \(12,\)"),
        (torch.ones(2, 13, 5), GRID, {}, r"\(N, P\) = \(2, 12\).*Got \(2, 13, 5\). Leave out prefix tokens"),
        ({"a": tokens(), "b": tokens(images=4)}, GRID, {}, r"'b'.*\(5, 12\).*Got \(4, 12, 6\)"),
        ({}, GRID, {}, "no tokens to map"),
        (torch.ones(0, 12, 5), GRID, {}, r"Got \(0, 12, 5\)"),
        (torch.ones(2, 12, 5), GRID, {}, "'0' vary in 0 directions only, 3 components"),
        (normal(2, 12, 2) @ rotation(2, 5, 1), GRID, {}, "vary in 2 directions only"),
        (normal(2, 12, 2), GRID, {}, r"3 components need .* width 3 or more, got shape \(2, 12, 2\)"),
        (torch.full((2, 12, 5), float("nan")), GRID, {}, "NaN or infinity in 24 of 24 rows"),
        (tokens(), GRID, {"basis": "shared"}, "basis must be one of 'common', 'own', got 'shared'"),
        (tokens(), GRID, {"percentiles": (99, 1)}, r"low < high, got \(99, 1\)"),
    ],
)
def test_pca_rgb_refuses(given, grid, keywords, message, no_axis_check):
    with pytest.raises(ValueError, match=message):
        pca_rgb(given, grid, **keywords)
