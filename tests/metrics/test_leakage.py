"""Leakage: planted, counted by hand, at luck where nothing leaks, refusals."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from vitscope.data.scenes import compose
from vitscope.metrics.diffusion import patch_distance_to_foreground
from vitscope.metrics.leakage import PARTS, leakage, leakage_ratio
from vitscope.probes import fit_probes, fit_ridge

GRID, CLASSES, WIDTH = (6, 6), 4, 8


def normal(*shape, seed=0, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def coverage_of(images: int, seed: int) -> torch.Tensor:
    """One covered patch, mixed ones on its left and right where the grid has them."""
    at = torch.randint(36, (images,), generator=torch.Generator().manual_seed(seed))
    board = torch.zeros(images, 6, 6)
    for image, (row, column) in enumerate(zip(at // 6, at % 6, strict=True)):
        board[image, row, max(0, column - 1) : column + 2] = 0.3
        board[image, row, column] = 0.9
    return board.flatten(1)


def planted(images: int, seed: int, reach=(0, 1, 99)) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """States whose class signal reaches 0, 1 and all steps beyond the object."""
    labels = torch.arange(images) % CLASSES
    coverage = coverage_of(images, seed)
    away = patch_distance_to_foreground(coverage, GRID)
    signal = 6.0 * torch.nn.functional.one_hot(labels, WIDTH)[:, None]
    noise = normal(len(reach), images, 36, WIDTH, seed=seed)
    states = [n + signal * (away <= r)[..., None] for n, r in zip(noise, reach, strict=True)]
    return torch.stack(states), labels, coverage


@pytest.fixture(scope="module")
def fitted():
    return {
        on: leakage(*planted(200, 1), *planted(100, 2), grid=GRID, on=on)
        for on in ("all", "background", "foreground")
    }


def test_planted_leakage_is_found_where_it_was_planted(fitted):
    accuracy = fitted["foreground"].table()["accuracy"]
    chance = pytest.approx(1 / CLASSES, abs=0.12)
    assert (accuracy[:, 0] > 0.98).all()
    assert accuracy[0, 1:].tolist() == [chance] * 5
    assert accuracy[1, 2] > 0.98
    assert accuracy[1, 3:].tolist() == [chance] * 3
    assert (accuracy[2] > 0.98).all()
    none, near, full = fitted["foreground"].ratio().tolist()
    assert none == pytest.approx(0, abs=0.1)
    assert none < near < full
    assert full == pytest.approx(1, abs=0.02)


def test_background_without_signal_is_at_luck_whatever_the_probe_was_fitted_on(fitted):
    for found in fitted.values():
        excess = (found.right - found.luck)[0, :, 1]
        assert abs(excess.mean()) < 3 * excess.std() / math.sqrt(len(excess))
        if found.on != "background":  # a probe of that background cannot read the foreground either
            interval = found.intervals()[0]
            assert interval.low < 0.05
            assert interval.high > -0.05


def test_a_probe_reads_elsewhere_only_what_it_could_learn_where_it_was_fitted(fitted):
    found = {on: leak.table()["accuracy"] for on, leak in fitted.items()}
    assert found["foreground"][0, 0] > 0.98
    assert found["background"][0, 0] < 0.8  # nothing to learn from there
    assert all(accuracy[2, :2].min() > 0.98 for accuracy in found.values())


def test_shares_and_luck_are_those_of_a_count_image_by_image(fitted):
    (train, labels, coverage), (tokens, own, tested) = planted(200, 1), planted(100, 2)
    found = leakage(train, labels, coverage, tokens, own, tested, grid=GRID, per_image=36)
    usable = (coverage > 0.5) | (coverage == 0)
    image, patch = usable.nonzero().unbind(1)
    probe = fit_ridge(train[:, image, patch], labels[image], groups=image.numpy())
    away = patch_distance_to_foreground(tested, GRID)
    for state, logits in enumerate(probe.logits(tokens.flatten(1, 2))):
        named = logits.argmax(1).view(100, 36)
        background = tested == 0
        rings = [background & (away == d) for d in (1, 2, 3)]
        for column, kind in enumerate([tested > 0.5, background, *rings, background & (away > 3)]):
            for i in range(0, 100, 9):
                others = [j for j in range(100) if j != i and kind[j].any()]
                answers = named[i, kind[i]]
                if len(answers):
                    share = (answers == own[i]).double().mean().item()
                    luck = np.mean([(answers == own[j]).double().mean().item() for j in others])
                    assert found.right[state, i, column].item() == pytest.approx(share)
                    assert found.luck[state, i, column].item() == pytest.approx(luck)
                else:
                    assert found.right[state, i, column].isnan()
    assert found.fitted == len(image)
    assert found.mixed == int(((tested > 0) & (tested <= 0.5)).sum())


def test_luck_is_fair_where_the_most_frequent_class_is_a_bad_guess():
    """Two classes as frequent in training, not in test: constant answers beat or miss the "majority"."""
    labels = torch.tensor([0] * 99 + [1] * 101)
    own = torch.tensor([0] * 30 + [1] * 10)
    found = leakage(
        normal(1, 200, 3, 2), labels, torch.tensor([[1.0, 0.0, 0.0]]).expand(200, 3),
        normal(1, 40, 3, 2, seed=1), own, torch.tensor([[1.0, 0.0, 0.0]]).expand(40, 3), grid=(1, 3),
    )  # fmt: skip
    table = found.table()
    assert table["majority"][0] == 0.25
    excess = (found.right - found.luck)[0, :, 1]
    assert abs(excess.mean()) < 2 * excess.std() / math.sqrt(40)
    assert table["luck"][0, 1] - table["majority"][1] > 0.1


def test_images_without_a_kind_and_mixed_patches_are_left_out_and_counted():
    tokens, labels, coverage = planted(60, 3)
    tested = coverage.clone()
    tested[5], tested[7], tested[9] = 0.0, 1.0, 0.4
    found = leakage(tokens, labels, coverage, tokens, labels, tested, grid=GRID)
    assert found.images_left_out == 3
    assert found.images.tolist() == [i for i in range(60) if i not in (5, 7, 9)]
    assert found.right.shape == found.luck.shape == (3, 57, len(PARTS))
    other = tokens.clone()
    other[:, (tested > 0) & (tested <= 0.5)] = 1e6
    other[:, [5, 7, 9]] = -1e6
    again = leakage(tokens, labels, coverage, other, labels, tested, grid=GRID)
    torch.testing.assert_close(again.right, found.right, equal_nan=True)


def test_the_same_seed_draws_the_same_patches_and_no_more_than_asked():
    task = (*planted(80, 4), *planted(40, 5))
    one, same, other = (leakage(*task, grid=GRID, per_image=5, seed=s) for s in (0, 0, 1))
    assert one.fitted == 80 * 5
    assert torch.equal(one.right.nan_to_num(-1), same.right.nan_to_num(-1))
    assert not torch.equal(one.right.nan_to_num(-1), other.right.nan_to_num(-1))
    alone = leakage(task[0][1:2], *task[1:3], task[3][1:2], *task[4:], grid=GRID, per_image=5)
    torch.testing.assert_close(alone.right[0], one.right[1], equal_nan=True)


def test_logistic_probes_and_names_of_classes_do_as_well():
    tokens, labels, coverage = planted(60, 6)
    named = [f"class {c}" for c in labels.tolist()]
    options = {"grid": GRID, "per_image": 3, "on": "foreground", "l2": (0.1, 0.01)}
    ridge = leakage(tokens, named, coverage, tokens, named, coverage, **options)
    logistic = leakage(tokens, named, coverage, tokens, named, coverage, fit=fit_probes, **options)
    assert (logistic.table()["accuracy"][:, 0] > 0.98).all()
    assert (ridge.table()["accuracy"][:, 0] > 0.98).all()


def test_the_interval_of_the_ratio_encloses_it_and_is_of_images(fitted, no_axis_check):
    found = fitted["foreground"]
    for value, interval in zip(found.ratio().tolist(), found.intervals(), strict=True):
        assert interval.value == pytest.approx(value)
        assert interval.low <= value <= interval.high
    assert found.intervals()[1].high - found.intervals()[1].low > 0.01
    pairs = np.arange(len(found.images)) // 2
    assert found.intervals(clusters=pairs)[1] != found.intervals()[1]
    with pytest.raises(ValueError, match='against must be "luck" or "majority", got \'chance\''):
        found.ratio("chance")
    assert leakage_ratio(torch.tensor([0.0, -0.1, 1e-15]), torch.tensor([0.5, 0.5, 0.5])).isnan().all()


def test_background_pixels_of_scenes_know_nothing_of_the_label():
    """By construction: what is drawn behind the objects does not depend on them."""
    parts = []
    for split, first, count in (("train", 0, 160), ("test", 10**8, 80)):
        made = compose("scenes_single", split, np.arange(first, first + count), 0)
        pixels = made["image"].float().view(count, 3, 6, 16, 6, 16).permute(0, 2, 4, 1, 3, 5)
        mask = (made["mask"] > 0).float()
        label = made["mask"].flatten(1).amax(1).long()
        parts += [pixels.reshape(1, count, 36, -1)[..., ::8], label]
        parts.append(mask.view(count, 6, 16, 6, 16).mean((2, 4)).flatten(1))
    found = leakage(*parts, grid=GRID, on="background", per_image=12)
    excess = (found.right - found.luck)[0, :, 1]
    assert abs(excess.mean()) < 3 * excess.std() / math.sqrt(len(excess))


def test_leakage_refuses_what_does_not_fit(no_axis_check):
    tokens, labels, coverage = planted(20, 7)
    call = partial(leakage, grid=GRID)
    good = (tokens, labels, coverage)
    for bad, options, message in [
        ((*good, *good), {"on": "objects"}, "on must be .* got 'objects'"),
        ((*good, *good), {"per_image": 0}, "per_image >= 1, got 'all', 0"),
        ((*good, *good), {"groups": range(30)}, r"\(30,\) for 20 images"),
        ((tokens[:, :0], labels, coverage, *good), {}, "there are 0 training images but 20 labels"),
        ((*good, *good), {"grid": (5, 6)}, "36 patches do not fill a grid of 5 x 6"),
        ((*good, tokens[:2], labels, coverage), {}, r"got \(3, 20, 36, 8\) and \(2, 20, 36, 8\)"),
        ((tokens[0], labels, coverage, *good), {}, r"must be \[S, N, P, D\]"),
        ((tokens, labels[:9], coverage, *good), {}, "there are 20 training images but 9 labels"),
        ((*good, tokens, labels[:9], coverage), {}, "there are 20 test images but 9 labels"),
        ((tokens, labels, coverage[:9], *good), {}, r"got \(3, 20, 36, 8\) and \(9, 36\)"),
        ((*good, tokens, labels, 2 * coverage), {}, r"each in \[0, 1\].*values 0 to 1.8"),
        ((*good, tokens.log(), labels, coverage), {}, "test tokens hold .* values that are not finite"),
        ((*good, tokens, labels, 0 * coverage), {}, "0 of 20 test images of classes seen"),
        ((tokens, labels, 0 * coverage + 0.2, *good), {}, "there are 0 training patches to fit on"),
    ]:
        with pytest.raises(ValueError, match=message):
            call(*bad, **options)


def test_images_of_a_class_that_was_not_taught_are_left_out_and_counted():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(1, 12, 4, 3, generator=generator)
    coverage = torch.tensor([1.0, 1.0, 0.0, 0.0]).expand(12, 4)
    taught = np.array([0, 1] * 6)
    asked = np.array([0, 1, 2] * 4)
    found = leakage(tokens, taught, coverage, tokens, asked, coverage, grid=(2, 2))
    assert found.images.tolist() == [i for i in range(12) if i % 3 < 2]
    assert found.images_left_out == 4
    some = torch.tensor(found.images.tolist())
    alone = leakage(
        tokens, taught, coverage, tokens[:, some], asked[some.numpy()], coverage[some], grid=(2, 2)
    )
    torch.testing.assert_close(found.right, alone.right, rtol=0, atol=0, equal_nan=True)
    with pytest.raises(ValueError, match="0 of 12 test images of classes seen in training"):
        leakage(tokens, taught, coverage, tokens, np.full(12, 7), coverage, grid=(2, 2))
