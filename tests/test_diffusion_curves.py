"""Curves with resamples: known means, paired differences, thirds, scores from counts, refusals."""

import numpy as np
import pytest
import torch

from vitscope import diffusion_curves as curves
from vitscope.dense.segmentation import segmentation_scores
from vitscope.diffusion_curves import Curve
from vitscope.intervals import bootstrap_mean

RNG = np.random.default_rng(0)
VALUES = RNG.normal(size=(5, 60)) + np.arange(5)[:, None]
STATES = (0, 1, 2, 3, 4)


def test_means_are_those_of_numpy_and_intervals_about_those_of_the_usual_bootstrap():
    table = curves.of_images(STATES, VALUES, scale=2.0).table()
    usual = bootstrap_mean(2 * VALUES)
    assert table["state"].tolist() == list(STATES)
    np.testing.assert_allclose(table["value"], 2 * VALUES.mean(1))
    np.testing.assert_allclose(table["low"], usual.low, atol=0.06)
    np.testing.assert_allclose(table["high"], usual.high, atol=0.06)


def test_images_without_a_value_do_not_count():
    holed = VALUES.copy()
    holed[1, :20], holed[2], holed[:, 59] = np.nan, np.nan, np.nan
    curve = curves.of_images(STATES, holed)
    assert curve.count == 59
    assert curve.value[1] == pytest.approx(VALUES[1, 20:59].mean())
    assert curve.at(2).value is None
    assert curve.at(2).reason.startswith("not measured, because")
    assert curve.table()["state"].tolist() == [0, 1, 3, 4]


def test_clusters_are_drawn_whole():
    same = np.repeat(VALUES[:, :6], 10, axis=1)
    single = curves.of_images(STATES, same)
    whole = curves.of_images(STATES, same, clusters=np.repeat(np.arange(6), 10))
    assert (whole.drawn.std(0) > 2 * single.drawn.std(0)).all()


def test_a_difference_is_paired_image_by_image():
    noise = RNG.normal(size=(5, 60))
    a, b = curves.of_images(STATES, 5 * noise), curves.of_images(STATES, 5 * noise - 1)
    gained = a.minus(b).at(3)
    assert [gained.value, gained.low, gained.high] == pytest.approx([1.0] * 3)
    with pytest.raises(ValueError, match="same states, resamples and images"):
        a.minus(b.only([0, 1]))
    with pytest.raises(ValueError, match=r"of 60 images and .* of 30"):
        a.minus(curves.of_images(STATES, noise[:, :30]))


def test_thirds_are_of_blocks_and_turn_round():
    assert curves.thirds([1, 2, 3, 4, 5, 6, 7, 8]) == ([1, 2], [7, 8])
    assert curves.thirds([1, 2]) == ([1], [2])
    with pytest.raises(ValueError, match="two blocks or more, got 1"):
        curves.thirds([1])
    curve = curves.of_images((-1, 0, 1, 2, 3), VALUES)
    ends = curve.thirds()
    assert ends.shallow.value == pytest.approx(VALUES[2].mean())
    assert ends.deep.value == pytest.approx(VALUES[4].mean())
    d, back = ends.shallow_minus_deep, ends.deep_minus_shallow
    assert d.value == pytest.approx(VALUES[2].mean() - VALUES[4].mean())
    assert (back.value, back.low, back.high) == (-d.value, -d.high, -d.low)
    assert d.low <= d.value <= d.high


def test_the_peak_is_of_blocks_that_have_a_value():
    value = np.array([9.0, 1.0, np.nan, 3.0])
    curve = Curve((0, 1, 2, 3), value, np.tile(value, (10, 1)), 5)
    assert curve.peak()[0] == 3
    with pytest.raises(ValueError, match="no block has a value"):
        curve.only([0, 2]).peak()


def test_scores_from_counts_are_those_of_all_pixels():
    confusion = RNG.integers(1, 50, size=(20, 4, 4))
    confusion[:, 3] = 0  # a class without true pixels: no IoU of its own
    both, predicted, target = confusion.diagonal(axis1=1, axis2=2), confusion.sum(1), confusion.sum(2)
    curve = curves.miou((1, 2), np.stack([both, both]), np.stack([predicted, predicted]), target)
    expected = segmentation_scores(torch.from_numpy(confusion.sum(0)))["miou"].item()
    assert curve.value.tolist() == pytest.approx([expected] * 2)
    assert (np.quantile(curve.drawn, 0.02, axis=0) < expected).all()
    squares, pixels = RNG.random((2, 20)), np.arange(1, 21)
    error = curves.rmse((1, 2), squares * pixels, pixels)
    np.testing.assert_allclose(error.value, np.sqrt((squares * pixels).sum(1) / pixels.sum()))


def test_bad_curves_are_refused():
    with pytest.raises(ValueError, match=r"curve of 2 states .* got \(3,\)"):
        Curve((1, 2), np.zeros(3), np.zeros((4, 3)), 1)
    with pytest.raises(ValueError, match=r"values must be \[2, N\], finite or NaN, got \(5, 60\)"):
        curves.of_images((1, 2), VALUES)
    with pytest.raises(ValueError, match="finite or NaN"):
        curves.of_images(STATES, np.full((5, 60), np.inf))
    with pytest.raises(ValueError, match=r"states \[7\] were asked for"):
        curves.of_images(STATES, VALUES).at(7)
    with pytest.raises(ValueError, match="at least two independent"):
        curves.of_images(STATES, VALUES[:, :1])
