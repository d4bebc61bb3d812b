"""Linear segmentation: against a float64 full-batch reference, planted masks, known scores, refusals."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from vitscope.dense.segmentation import linear_segmentation, segmentation_scores
from vitscope.dense.segmentation_fit import class_shares

ROWS, COLS, SIDE, C = 4, 4, 16, 4
GRID = (ROWS, COLS)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def blocks(images, seed=0, classes=C, shares=(0.55, 0.2, 0.15, 0.1)):
    """Masks of whole patches, the class of each patch drawn alone."""
    draw = torch.Generator().manual_seed(seed)
    cells = torch.multinomial(torch.tensor(shares), images * ROWS * COLS, replacement=True, generator=draw)
    cells = cells.view(images, ROWS, COLS)
    masks = cells.repeat_interleave(SIDE // ROWS, 1).repeat_interleave(SIDE // COLS, 2)
    return masks, F.one_hot(cells.flatten(1), classes).float()


def halves(images, seed=0):
    """Whole pictures of one class, which bilinear resizing can draw without an error."""
    codes = torch.arange(images) % C
    return codes[:, None, None].expand(-1, SIDE, SIDE).contiguous(), codes


def planted(images, seed=0, noise=(0.3, 1.0, 3.0), width=6):
    masks, one = blocks(images, seed)
    signal = one @ normal(C, width, seed=99)
    states = [signal + n * normal(*signal.shape, seed=seed + 7 + s) for s, n in enumerate(noise)]
    return torch.stack(states), masks


@pytest.mark.parametrize("size", [(4, 4), (16, 8), (5, 3)], ids=["blocks", "unequal", "overlapping"])
@pytest.mark.parametrize("ignore", [None, 255])
def test_shares_of_classes_in_cells_are_averages_of_indicators(size, ignore):
    masks = torch.randint(0, C, (7, SIDE, SIDE), generator=torch.Generator().manual_seed(1))
    if ignore is not None:
        masks[:, :3] = ignore
    wanted = torch.stack(
        [F.adaptive_avg_pool2d((masks == c).double()[:, None], size)[:, 0] for c in range(C)], dim=1
    )
    torch.testing.assert_close(class_shares(masks, size, C, ignore).double(), wanted, atol=1e-6, rtol=0)


def fitted(train, masks, test, truth, **more):
    return linear_segmentation(train, masks, test, truth, grid=GRID, num_classes=C, **{"steps": 200, **more})


@pytest.fixture(scope="module")
def world():
    train, masks = planted(60)
    test, truth = planted(40, seed=1000)
    return train, masks, test, truth


# --- the solution -------------------------------------------------------------------------------------


class Reference:
    """One state: mean cross-entropy at full size in float64, by torch's L-BFGS to convergence."""

    def __init__(self, train, masks, l2):
        self.moments = train.double().mean((0, 1)), train.double().std((0, 1), correction=0)
        self.x, self.masks, self.l2 = self.standard(train), masks, l2
        self.weight = torch.zeros(C, train.shape[2], dtype=torch.float64, requires_grad=True)
        self.bias = torch.zeros(C, dtype=torch.float64, requires_grad=True)
        solver = torch.optim.LBFGS([self.weight, self.bias], max_iter=200, line_search_fn="strong_wolfe")

        def closure():
            solver.zero_grad()
            loss = self.objective(self.weight, self.bias)
            loss.backward()
            return loss

        solver.step(closure)

    def standard(self, x):
        return (x.double() - self.moments[0]) / self.moments[1]

    def maps(self, x, weight, bias):
        logits = (x @ weight.T + bias).mT.unflatten(2, GRID)
        return F.interpolate(logits, (SIDE, SIDE), mode="bilinear", align_corners=False)

    def objective(self, weight, bias):
        loss = F.cross_entropy(self.maps(self.x, weight, bias), self.masks, ignore_index=255)
        return loss + self.l2 / 2 * weight.square().sum()

    def named(self, test):
        return self.maps(self.standard(test), self.weight, self.bias).argmax(1)


def slow_miou(named, truth):
    found = []
    for c in range(C):
        if (truth == c).any():
            both = ((named == c) & (truth == c)).sum().item()
            found.append(100 * both / ((named == c) | (truth == c)).sum().item())
    return np.mean(found)


@pytest.mark.parametrize("l2", [1e-1, 1e-3])
def test_every_state_is_within_half_a_point_of_a_converged_float64_fit_of_it_alone(world, l2):
    train, masks, test, truth = world
    masks = masks.clone()
    masks[:, :3, :5] = 255
    found = fitted(train, masks, test, truth, l2=[l2], train_size=(SIDE, SIDE), steps=600)
    for s in range(len(train)):
        exact = Reference(train[s], masks, l2)
        assert found.miou[s].item() == pytest.approx(slow_miou(exact.named(test[s]), truth), abs=0.5)
        ours = exact.objective(found.head.weight[s].double(), found.head.bias[s].double()).item()
        least = exact.objective(exact.weight, exact.bias).item()
        assert least <= ours < 1.01 * least


def test_patch_and_cls_is_the_fit_on_cls_concatenated_to_every_patch(world):
    train, masks, test, truth = world
    cls, cls_test = normal(3, 60, 5, seed=3) * 2 + 1, normal(3, 40, 5, seed=4) * 2 + 1
    found = fitted(train, masks, test, truth, l2=[1e-2], train_cls=cls, test_cls=cls_test, steps=600)
    wide, wide_test = (
        torch.cat([t, c[:, :, None].expand(-1, -1, t.shape[2], -1)], 3)
        for t, c in ((train, cls), (test, cls_test))
    )
    same = fitted(wide, masks, wide_test, truth, l2=[1e-2], steps=600)
    ours = torch.cat([found.head.weight, found.head.cls_weight], 2)
    assert (ours - same.head.weight).abs().max() < 0.05 * ours.abs().max()
    assert (found.miou - same.miou).abs().max() < 1.0


def test_the_scores_are_those_of_the_predicted_maps(world):
    train, masks, test, truth = world
    truth = truth.clone()
    truth[:, -2:] = 255
    found = fitted(train, masks, test, truth, l2=[1e-3])
    named = found.predict(test, (SIDE, SIDE))
    counted = truth != 255
    for s in range(len(test)):
        table = torch.zeros(C, C, dtype=torch.long)
        for a, b in zip(truth[counted].tolist(), named[s][counted].tolist(), strict=True):
            table[a, b] += 1
        assert torch.equal(found.confusion[s], table)
        assert found.miou[s].item() == pytest.approx(slow_miou(named[s][counted], truth[counted]))
        assert found.pixel_accuracy[s].item() == pytest.approx(
            100 * (named[s] == truth)[counted].double().mean().item()
        )
    assert torch.equal(found.intersection.sum(1), found.confusion.diagonal(dim1=1, dim2=2))
    assert torch.equal(found.predicted.sum(1), found.confusion.sum(1))
    assert torch.equal(found.target.sum(0), found.confusion[0].sum(1))


# --- known answers ------------------------------------------------------------------------------------


def test_tokens_that_hold_the_mask_give_all_of_it():
    masks, codes = halves(40)
    tokens = F.one_hot(codes, C).float()[None, :, None].expand(2, -1, ROWS * COLS, -1)
    found = fitted(tokens[:, :20], masks[:20], tokens[:, 20:], masks[20:])
    assert found.miou.tolist() == [100.0, 100.0]
    assert found.absent == ()


def test_a_class_in_cls_alone_is_read_with_cls_and_not_without():
    masks, codes = halves(80)
    tokens, cls = normal(1, 80, ROWS * COLS, 5, seed=2), F.one_hot(codes, C).float()[None]
    split = (tokens[:, :40], masks[:40], tokens[:, 40:], masks[40:])
    assert fitted(*split).miou.item() < 40
    assert fitted(*split, train_cls=cls[:, :40], test_cls=cls[:, 40:]).miou.item() > 99


def test_random_tokens_give_the_majority():
    masks, _ = blocks(120)
    truth, _ = blocks(60, seed=5)
    found = fitted(normal(2, 120, 16, 6, seed=8), masks, normal(2, 60, 16, 6, seed=9), truth)
    assert found.majority_class == 0
    assert found.majority == pytest.approx(100 * (truth == 0).double().mean().item())
    assert found.majority_miou == pytest.approx(found.majority / C)
    np.testing.assert_allclose(found.pixel_accuracy, found.majority, atol=0.7)
    np.testing.assert_allclose(found.miou, found.majority_miou, atol=0.7)


def test_scores_of_a_confusion_by_hand():
    found = segmentation_scores(
        torch.tensor([[[5, 1, 2], [0, 2, 0], [0, 0, 0]], [[8, 0, 0], [2, 0, 0], [0, 0, 0]]])
    )
    np.testing.assert_allclose(found["iou"], [[62.5, 200 / 3, np.nan], [80, 0, np.nan]])
    np.testing.assert_allclose(found["miou"], [(62.5 + 200 / 3) / 2, 40])
    np.testing.assert_allclose(found["pixel_accuracy"], [70, 80])


def test_a_class_without_test_pixels_counts_in_the_unions_of_others_alone(world):
    train, masks, test, truth = world
    truth = truth.masked_fill(truth == 3, 0)
    found = fitted(train, masks, test, truth, l2=[1e-3])
    assert found.absent == (3,)
    assert found.iou[:, 3].isnan().all()
    assert found.predicted[0, :, 3].sum() > 0
    np.testing.assert_allclose(found.miou, found.iou[:, :3].mean(1))
    np.testing.assert_allclose(found.foreground_miou, found.iou[:, 1:3].mean(1))


# --- choice of the settings ---------------------------------------------------------------------------


def test_the_setting_that_is_best_on_held_out_images_is_chosen_and_is_a_strong_one_for_wide_noise():
    _, codes = halves(40)
    masks = codes[:, None, None].expand(-1, SIDE, SIDE).contiguous()
    cls = normal(2, 40, 60, seed=1)
    cls[1, :, :C] += 3 * F.one_hot(codes, C)
    tokens = normal(2, 40, 16, 3, seed=2)
    found = fitted(
        tokens[:, :32], masks[:32], tokens[:, 32:], masks[32:], train_cls=cls[:, :32], test_cls=cls[:, 32:],
        l2=[1e-6, 1e-1],
    )  # fmt: skip
    best = found.validation_miou.argmax(1)
    assert found.settings == ((0.05, 1e-1), (0.05, 1e-6))
    np.testing.assert_allclose(found.chosen[:, 1], [found.settings[i][1] for i in best])
    assert found.chosen[1, 1] == 1e-1


def test_no_test_label_or_held_out_group_reaches_the_fit(world):
    train, masks, test, truth = world
    first = fitted(train, masks, test, truth, train_groups=np.arange(60) // 6)
    other = fitted(train, masks, test.flip(1) * 2, truth.flip(0) * 0, train_groups=np.arange(60) // 6)
    assert torch.equal(first.head.weight, other.head.weight)
    assert torch.equal(first.chosen, other.chosen)


# --- invariances --------------------------------------------------------------------------------------


def test_states_fitted_together_are_states_fitted_alone(world):
    train, masks, test, truth = world
    whole = fitted(train, masks, test, truth)
    for s in range(len(train)):
        alone = fitted(train[s : s + 1], masks, test[s : s + 1], truth)
        assert alone.miou.item() == pytest.approx(whole.miou[s].item(), abs=0.05)
        assert torch.equal(alone.chosen[0], whole.chosen[s])


def test_states_in_blocks_are_states_at_once(world, monkeypatch):
    train, masks, test, truth = world
    whole = fitted(train, masks, test, truth, l2=[1e-3])
    monkeypatch.setattr("vitscope.dense.segmentation._BLOCK_BYTES", 1)
    parts = fitted(train, masks, test, truth, l2=[1e-3])
    np.testing.assert_allclose(parts.miou, whole.miou, atol=0.05)


def test_scale_offset_and_rotation_of_features_do_not_matter(world):
    train, masks, test, truth = world
    plain = fitted(train, masks, test, truth, l2=[1e-5])
    turn = torch.linalg.qr(normal(6, 6, seed=5))[0]
    moved = fitted(50 * train @ turn + 300, masks, 50 * test @ turn + 300, truth, l2=[1e-5])
    np.testing.assert_allclose(moved.miou, plain.miou, atol=0.5)


def test_the_interval_is_a_bootstrap_of_the_scores_over_images(world):
    train, masks, test, truth = world
    found = fitted(train, masks, test, truth, l2=[1e-3])
    interval = found.interval(draws=300)
    np.testing.assert_allclose(interval.mean, found.miou)
    assert (interval.low < interval.mean).all()
    assert (interval.mean < interval.high).all()
    np.testing.assert_allclose(found.interval([2]).mean, found.miou[2:])
    rng = np.random.default_rng(0)
    drawn = []
    named = found.predict(test, (SIDE, SIDE))[1]
    for _ in range(300):
        pick = rng.integers(40, size=40)
        drawn.append(slow_miou(named[pick], truth[pick]))
    centred = np.array(drawn) - np.mean(drawn) + interval.mean[1]  # resamples lack rare classes and lean high
    np.testing.assert_allclose(
        [interval.low[1], interval.high[1]], np.quantile(centred, [0.025, 0.975]), atol=1e-6
    )
    pairs = found.interval(groups=np.arange(40) // 20)
    assert (pairs.low <= pairs.mean).all()


def test_masks_of_another_size_or_dtype_are_the_same_masks(world):
    train, masks, test, truth = world
    plain = fitted(train, masks, test, truth, l2=[1e-3])
    small = masks[:, ::2, ::2].to(torch.uint8)
    found = fitted(train, list(small), test, truth, l2=[1e-3])
    np.testing.assert_allclose(found.miou, plain.miou, atol=0.01)


def test_a_class_that_training_lacks_is_warned_of(world):
    train, masks, test, truth = world
    found = fitted(train, masks.masked_fill(masks == 3, 255), test, truth, l2=[1e-3])
    assert "classes 3 occur in the test masks and in no training mask" in found.warnings
    assert "48 of 60 training images were used" in " ".join(
        fitted(train, masks, test, truth, l2=[1e-3], steps=3).warnings
    )


# --- refusals -----------------------------------------------------------------------------------------


def spoiled(world, **more):
    train, masks, test, truth = world
    given = {"train_tokens": train, "train_masks": masks, "test_tokens": test, "test_masks": truth}
    return linear_segmentation(**{**given, "grid": GRID, "num_classes": C, **more})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": (3, 5)}, r"a grid of 3 x 5 has 15 patches, but the train tokens of shape \(3, 60, 16, 6\)"),
        (
            {"train_tokens": torch.zeros(60, 16, 6)},
            r"train tokens must be floats \[S, N, P, D\].*\(60, 16, 6\)",
        ),
        (
            {"test_tokens": torch.zeros(2, 40, 16, 6)},
            r"agree in states.*\(3, 60, 16, 6\) and \(2, 40, 16, 6\)",
        ),
        ({"test_masks": torch.zeros(9, 16, 16).long()}, r"test masks must be \[N, h, w\] for the 40 images"),
        (
            {"train_masks": torch.zeros(60, 16, 20).long()},
            "train masks of 16 x 20 pixels do not have the aspect",
        ),
        ({"train_masks": torch.full((60, 16, 16), 255)}, "every pixel of the train masks is ignored"),
        ({"test_masks": torch.full((40, 16, 16), 7)}, "test masks hold 7: classes are 0 to 3"),
        ({"train_masks": torch.zeros(60, 16, 16)}, "train masks must hold whole numbers.*float32"),
        ({"train_cls": torch.zeros(3, 60, 6)}, "cls is given for train alone"),
        (
            {"train_cls": torch.zeros(3, 6, 6), "test_cls": torch.zeros(3, 40, 6)},
            r"train cls must be.*\(3, 6, 6\)",
        ),
        ({"l2": [0.0]}, "lr and l2 must be one or more positive numbers"),
        ({"l2": []}, "lr and l2 must be one or more positive numbers"),
        ({"validation": 1.0}, "the held-out share must lie between 0 and 1, got 1.0"),
        ({"train_groups": ["a"] * 60}, "at least two of them in different groups"),
        ({"train_groups": ["a"] * 6}, r"one group per image is needed: \(6,\) for 60 images"),
        ({"train_size": (32, 32)}, r"train_size \(32, 32\) must lie within the masks' 16 x 16"),
        ({"background": 4}, "background must be a class below 4 or None, got 4"),
        ({"steps": 0}, "steps and batch must be at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(world, change, message, no_axis_check):
    with pytest.raises(ValueError, match=message):
        spoiled(world, **change)


def test_masks_of_several_sizes_are_refused_with_the_sizes(world):
    with pytest.raises(ValueError, match=r"train masks must have one size, got \(16, 16\), \(16, 20\)"):
        spoiled(world, train_masks=[torch.zeros(16, 16).long()] * 59 + [torch.zeros(16, 20).long()])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_value_that_is_not_finite_names_the_state(world, value):
    broken = world[0].clone()
    broken[1, 5, 3, 2] = value
    with pytest.raises(ValueError, match="train tokens hold NaN or inf in state 1"):
        spoiled(world, train_tokens=broken)


def test_a_head_refuses_tokens_it_was_not_fitted_on(world):
    found = spoiled(world, l2=[1e-2], steps=5)
    with pytest.raises(
        ValueError, match=r"fitted on 3 states of width 6, got tokens of shape \(2, 40, 16, 6\)"
    ):
        found.predict(world[2][:2], GRID)
    with pytest.raises(ValueError, match="fitted without CLS"):
        found.predict(world[2], GRID, torch.zeros(3, 40, 6))


@pytest.mark.parametrize("counts", [torch.zeros(2, 2).long(), torch.tensor([[1, -1], [0, 1]])])
def test_counts_that_are_none_are_refused(counts, no_axis_check):
    with pytest.raises(ValueError, match="counts of at least one pixel"):
        segmentation_scores(counts)
    with pytest.raises(ValueError, match=r"whole pixel counts \[..., C, C\]"):
        segmentation_scores(torch.zeros(2, 3))
