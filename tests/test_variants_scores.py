"""Scores over trainings: means, gains and their two-level intervals, against slow references."""

import numpy as np
import pytest

from vitscope import diffusion_curves as curves
from vitscope.variants_scores import Score, gain, level, of_curves, relative_gain

GENERATOR = np.random.default_rng(3)
DRAWN = GENERATOR.normal(size=(3, 1000))
BASE = Score(np.array([10.0, 20.0, 30.0]), np.array([[10.0], [20.0], [30.0]]) + DRAWN, 50)


def test_level_draws_trainings_with_replacement():
    found = level(Score(np.array([0.0, 2.0]), np.array([[0.0] * 4000, [2.0] * 4000]), 5))
    assert found.value == 1.0
    # two trainings are drawn as (0, 0), (0, 2) or (2, 2): the ends are the trainings themselves
    assert (found.low, found.high) == (0.0, 2.0)


def test_one_training_leaves_the_resamples_of_pictures():
    drawn = GENERATOR.normal(5, 1, size=(1, 1000))
    found = level(Score(np.array([5.0]), drawn, 9))
    assert found.value == 5.0
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn[0], [0.025, 0.975])))


def test_gain_is_paired_by_training_and_picture():
    better = Score(BASE.each + 2, BASE.drawn + 2, 50)
    found = gain(better, BASE)
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_gain_of_uneven_trainings_has_their_spread_in_its_interval():
    each = np.array([1.0, 5.0, 9.0])
    found = gain(Score(BASE.each + each, BASE.drawn + each[:, None], 50), BASE)
    assert found.value == pytest.approx(5.0)
    rng = np.random.default_rng(0)
    means = [rng.choice(each, 3).mean() for _ in range(20_000)]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.4)


def test_relative_gain_is_a_ratio_of_means():
    found = relative_gain(Score(BASE.each * 1.1, BASE.drawn * 1.1, 50), BASE)
    assert (found.value, found.low, found.high) == pytest.approx((10.0, 10.0, 10.0))
    nothing = Score(np.zeros(1), np.zeros((1, 10)), 50)
    assert relative_gain(nothing, nothing).reason == "not measured, because there is nothing to divide by"


def test_of_curves_means_over_states_and_keeps_trainings():
    values = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    found = of_curves([curves.of_images([1, 2], values), curves.of_images([1, 2], 1 - values)])
    assert found.each.tolist() == pytest.approx([1 / 3, 2 / 3])
    assert np.allclose(found.drawn.sum(0), 1.0)  # the same pictures are drawn for both
    assert found.count == 3


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match=r"\(3, 1000\) of 50 pictures and \(3, 1000\) of 49"):
        gain(BASE, Score(BASE.each, BASE.drawn, 49))
    with pytest.raises(ValueError, match=r"got \(2,\) and \(3, 1000\)"):
        Score(np.zeros(2), BASE.drawn, 50)
    one, other = (curves.of_images([1], np.zeros((1, n))) for n in (3, 4))
    with pytest.raises(ValueError, match="of 3 pictures and"):
        of_curves([one, other])
