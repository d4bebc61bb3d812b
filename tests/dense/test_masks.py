"""Object masks: exhaustive search and loops as references, planted objects, empty targets, refusals."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope.data.scenes import annotations, load_scenes
from vitscope.dense.masks import attention_masks, best_head, mask_iou, patch_coverage, pca_masks

NAN = float("nan")
GRID = (4, 5)


def normal(*shape, seed=0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def planted(images=6, width=8, seed=0) -> tuple[torch.Tensor, torch.Tensor]:
    """Patches [N, 20, D] with an object off the rim, and where it is."""
    truth = torch.zeros(images, *GRID, dtype=torch.bool)
    for number in range(images):
        truth[number, 1 + number % 2, 1 : 2 + number % 3 + 1] = True
    truth = truth.flatten(1)
    background, thing = normal(2, width, seed=seed)
    x = torch.where(truth[..., None], thing, background) + 0.05 * normal(images, 20, width, seed=seed + 1)
    return x, truth


@pytest.mark.parametrize("mass", [0.3, 0.6, 0.95])
def test_attention_masks_are_the_smallest_that_hold_the_mass(mass):
    attention = torch.softmax(2 * normal(3, 2, 8), -1)
    masks = attention_masks(attention, mass)
    for n, h in np.ndindex(3, 2):
        row, mask = attention[n, h].numpy(), masks[n, h].numpy()
        assert row[mask].sum() >= mass
        size = int(mask.sum())
        assert all(row[list(c)].sum() < mass for c in itertools.combinations(range(8), size - 1))
        assert row[mask].min() >= row[~mask].max()


def test_attention_masks_agree_with_dinos_threshold_on_ascending_sums():
    attention = torch.softmax(3 * normal(5, 3, 49), -1)
    ascending, order = attention.sort(-1)
    kept = (ascending / ascending.sum(-1, keepdim=True)).cumsum(-1) > 1 - 0.6
    assert torch.equal(attention_masks(attention), torch.zeros_like(kept).scatter(-1, order, kept))


def test_attention_masks_share_the_mass_of_patches_whatever_went_to_other_tokens():
    attention = torch.softmax(3 * normal(5, 3, 49), -1)
    assert torch.equal(attention_masks(0.01 * attention), attention_masks(attention))


def test_equal_attention_keeps_the_lowest_patches_and_exact_masses():
    uniform = torch.full((1, 1, 10), 0.1)
    assert attention_masks(uniform, 0.6)[0, 0].tolist() == [True] * 6 + [False] * 4
    assert attention_masks(torch.tensor([[[0.5, 0.0, 0.5]]]), 1.0)[0, 0].tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("attention", "mass", "message"),
    [
        (torch.ones(2, 3), 0.6, r"\[N, H, P\].*\(2, 3\)"),
        (torch.ones(0, 2, 3), 0.6, r"\(0, 2, 3\)"),
        (torch.ones(1, 2, 3), 0.0, r"in \(0, 1\], got 0.0"),
        (torch.ones(1, 2, 3), 60, "got 60"),
        (-torch.ones(1, 2, 3), 0.6, "negative, NaN or infinite"),
        (torch.full((1, 2, 3), NAN), 0.6, "negative, NaN or infinite"),
        (torch.tensor([[[1.0, 1.0], [0.0, 0.0]]]), 0.6, "no attention to any patch in image 0, head 1"),
    ],
)
def test_attention_masks_refuse(attention, mass, message, no_axis_check):
    with pytest.raises(ValueError, match=message):
        attention_masks(attention, mass)


@pytest.mark.parametrize("threshold", ["otsu", "zero"])
@pytest.mark.parametrize("seed", range(4))
def test_planted_objects_are_found_whatever_the_sign_of_the_component(threshold, seed):
    x, truth = planted(seed=seed)
    for sign in (1, -1):
        found = pca_masks(sign * x, GRID, threshold=threshold)
        assert torch.equal(found.masks, truth)
        assert torch.equal(found.masks, found.scores > found.threshold)
        assert 0.8 < found.explained < 1


def test_states_are_cut_one_by_one():
    states = torch.stack([planted(seed=0)[0], 40 * planted(seed=5)[0] + 7])
    both = pca_masks(states, GRID)
    for i, state in enumerate(states):
        for mine, alone in zip(both, pca_masks(state, GRID), strict=True):
            torch.testing.assert_close(mine[i], alone)


def test_order_of_images_does_not_matter():
    x, truth = planted()
    assert torch.equal(pca_masks(x.flip(0), GRID).masks, truth.flip(0))


def test_otsu_cuts_where_a_search_over_all_cuts_does():
    x = torch.cat([normal(1, 17, 1) - 1, 0.4 * normal(1, 3, 1, seed=1) + 4], 1)
    found = pca_masks(x, GRID)
    scores = found.scores.flatten().numpy()

    def within(cut):
        return sum(part.size * part.var() for part in (scores[scores <= cut], scores[scores > cut]))

    cuts = np.sort(scores)[:-1]
    best = min(cuts, key=within)
    assert math.isclose(within(float(found.threshold)), within(best), rel_tol=1e-9)
    assert not math.isclose(within(0.0), within(best), rel_tol=1e-3)


def test_labels_turn_the_mask_of_an_object_on_the_rim():
    x, truth = planted()
    inside_out = ~truth
    assert torch.equal(pca_masks(x, GRID).masks, truth)
    turned = pca_masks(x, GRID, "label", target=inside_out)
    assert torch.equal(turned.masks, inside_out)
    assert torch.equal(pca_masks(x, GRID, "label", target=truth.double()).masks, truth)


def test_the_border_rule_decides_by_the_rim_and_not_by_size():
    # a large object that leaves the rim free but for its lower edge, on 6 x 6
    truth = torch.zeros(1, 6, 6, dtype=torch.bool)
    truth[0, 1:, 1:5] = True
    x = torch.where(truth.flatten(1)[..., None], 1.0, -1.0) * torch.ones(3)
    assert truth.sum() > 18
    assert torch.equal(pca_masks(x, (6, 6)).masks, truth.flatten(1))


@pytest.mark.parametrize(
    ("patches", "grid", "keywords", "message"),
    [
        (normal(2, 20, 3), (4, 4), {}, r"P = 16 for a grid of \(4, 4\), got \(2, 20, 3\)"),
        (normal(20, 3), GRID, {}, r"got \(20, 3\)"),
        (torch.ones(2, 20, 3), GRID, {}, "vary in 0 directions only"),
        (torch.full((2, 20, 3), NAN), GRID, {}, "NaN or infinity in 40 of 40 rows"),
        (normal(2, 20, 3), (2, 10), {}, r"at least 3 x 3, got \(2, 10\)"),
        (normal(2, 20, 3), GRID, {"foreground": "label"}, "a target goes with foreground='label'"),
        (normal(2, 20, 3), GRID, {"target": torch.ones(2, 20)}, "a target goes with foreground='label'"),
        (normal(2, 20, 3), GRID, {"foreground": "centre"}, "foreground must be one of .* got 'centre'"),
        (normal(2, 20, 3), GRID, {"threshold": "mean"}, "threshold must be one of .* got 'mean'"),
        (
            normal(2, 20, 3),
            GRID,
            {"foreground": "label", "target": torch.ones(2, 19)},
            r"\(2, 20\), got \(2, 19\)",
        ),
    ],
)
def test_pca_masks_refuse(patches, grid, keywords, message, no_axis_check):
    with pytest.raises(ValueError, match=message):
        pca_masks(patches, grid, **keywords)


def test_coverage_is_the_block_mean_where_the_grid_divides():
    mask = normal(4, 12, 10) > 0.3
    expected = torch.nn.functional.avg_pool2d(mask.double(), (3, 2)).flatten(1)
    torch.testing.assert_close(patch_coverage(mask, GRID), expected)


@given(height=st.integers(4, 11), width=st.integers(5, 11), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_coverage_is_exact_by_area_at_any_size(height, width, seed):
    mask = normal(2, height, width, seed=seed) > 0
    fine = mask.repeat_interleave(GRID[0], 1).repeat_interleave(GRID[1], 2).double()
    expected = torch.nn.functional.avg_pool2d(fine, (height, width)).flatten(1)
    torch.testing.assert_close(patch_coverage(mask, GRID), expected)


def test_half_a_patch_is_exactly_a_half():
    for side in (14, 15, 16, 7):
        mask = torch.zeros(1, 2 * side, 2 * side, dtype=torch.bool)
        mask[:, :, :side] = True
        mask[:, : 2 * side : 2] = ~mask[:, : 2 * side : 2]
        found = patch_coverage(mask, (1, 1))
        assert found.tolist() == [[0.5]]


def test_class_numbers_count_as_object_whatever_they_are():
    mask = torch.tensor([[[0, 3], [8, 0]]], dtype=torch.uint8)
    assert patch_coverage(mask, (2, 2)).tolist() == [[0, 1, 1, 0]]


@pytest.mark.parametrize(
    ("mask", "grid", "message"),
    [
        (torch.ones(4, 4, dtype=torch.bool), (2, 2), r"\[N, h, w\].*\(4, 4\)"),
        (torch.ones(1, 4, 4, dtype=torch.bool), (5, 2), r"no fewer than the grid \(5, 2\)"),
        (torch.ones(1, 4, 4), (2, 2), "class numbers from 0.*torch.float32"),
        (-torch.ones(1, 4, 4, dtype=torch.int64), (2, 2), "class numbers from 0"),
    ],
)
def test_coverage_refuses(mask, grid, message, no_axis_check):
    with pytest.raises(ValueError, match=message):
        patch_coverage(mask, grid)


def test_iou_at_the_patch_grid_agrees_with_sets():
    guess, share = normal(2, 3, 6, 20) > 0.2, torch.sigmoid(normal(6, 20, seed=1))
    found = mask_iou(guess, share)
    for i, j, n in np.ndindex(2, 3, 6):
        a, b = (
            set(guess[i, j, n].nonzero().flatten().tolist()),
            set((share[n] > 0.5).nonzero().flatten().tolist()),
        )
        assert math.isclose(found.iou[i, j, n], len(a & b) / len(a | b), rel_tol=1e-12)
    torch.testing.assert_close(found.mean, found.iou.mean(-1))
    assert (found.kept, found.empty) == (6, 0)


@pytest.mark.parametrize("size", [(8, 10), (9, 11)])
def test_iou_at_pixels_agrees_with_nearest_upsampling(size):
    guess, truth = normal(3, 20) > 0, normal(3, *size, seed=1) > 0
    up = (
        torch.nn.functional.interpolate(guess.view(3, 1, *GRID).float(), size=size, mode="nearest-exact")[
            :, 0
        ]
        > 0
    )
    expected = (up & truth).sum((1, 2)) / (up | truth).sum((1, 2))
    torch.testing.assert_close(mask_iou(guess, truth, GRID).iou, expected.double())


def test_perfect_disjoint_and_inverted_masks():
    truth = torch.tensor([[True, True, False, False]] * 3)
    guess = torch.tensor([[True, True, False, False], [False, False, True, True], [False] * 4])
    assert mask_iou(guess, truth).iou.tolist() == [1, 0, 0]


def test_images_without_an_object_are_left_out_and_counted():
    guess = torch.tensor([[False, False], [True, True], [True, False]])
    share = torch.tensor([[0.0, 0.0], [0.5, 0.5], [0.6, 0.0]])
    found = mask_iou(guess, share)
    assert found.iou.isnan().tolist() == [True, True, False]
    assert (float(found.mean), found.kept, found.empty) == (1, 1, 2)
    with pytest.raises(ValueError, match="none of 2 images has an object"):
        mask_iou(guess[:2], share[:2])


@pytest.mark.parametrize(
    ("guess", "target", "grid", "message"),
    [
        (torch.ones(2, 4), torch.ones(2, 4), None, "predicted must be bool.*torch.float32"),
        (torch.ones(2, 4) > 0, torch.ones(3, 4), None, r"\(2, 4\), got \(3, 4\)"),
        (torch.ones(2, 4) > 0, 2 * torch.ones(2, 4), None, r"outside \[0, 1\]"),
        (torch.ones(2, 4) > 0, torch.full((2, 4), NAN), None, r"outside \[0, 1\] or NaN"),
        (torch.ones(2, 4) > 0, torch.ones(2, 4, 4), (2, 2), r"bool pixels \[2, h, w\].*float32 \(2, 4, 4\)"),
        (torch.ones(2, 4) > 0, torch.ones(3, 4, 4) > 0, (2, 2), r"\[2, h, w\].*\(3, 4, 4\)"),
        (torch.ones(2, 4) > 0, torch.ones(2, 4, 4) > 0, None, "needs the grid of the 4 patches, got None"),
        (torch.ones(2, 4) > 0, torch.ones(2, 4, 4) > 0, (2, 3), r"got \(2, 3\)"),
    ],
)
def test_iou_refuses(guess, target, grid, message, no_axis_check):
    with pytest.raises(ValueError, match=message):
        mask_iou(guess, target, grid)


def test_the_head_with_the_planted_object_is_chosen():
    _, truth = planted()
    attention = torch.rand(6, 3, 20, generator=torch.Generator().manual_seed(0))
    attention[:, 1] = 0.01 + truth
    iou = mask_iou(attention_masks(attention, 0.9).transpose(0, 1), truth).iou.T
    assert (iou.shape, best_head(iou)) == ((6, 3), 1)
    assert best_head(torch.tensor([[0.5, 0.5], [NAN, NAN]])) == 0


@pytest.mark.parametrize(
    ("iou", "message"),
    [
        (torch.ones(3), r"\[N, H\].*\(3,\)"),
        (torch.tensor([[0.5, NAN]]), "NaN in a whole row"),
        (torch.tensor([[0.5, math.inf]]), "must be finite"),
        (torch.full((2, 3), NAN), r"no image with an object.*\(2, 3\)"),
        (torch.ones(0, 3), r"no image with an object.*\(0, 3\)"),
    ],
)
def test_best_head_refuses(iou, message, no_axis_check):
    with pytest.raises(ValueError, match=message):
        best_head(iou)


def test_masks_of_embedded_scenes_from_their_own_coverage():
    images = load_scenes("scenes_single", "test")
    mask = annotations(images, np.arange(8))["mask"]
    share = patch_coverage(mask, (12, 12))
    found = mask_iou(share > 0.5, share)
    assert (found.kept, float(found.mean)) == (8, 1)
    pixels = mask_iou(share > 0.5, mask > 0, (12, 12))
    assert 0.6 < pixels.mean < 1
