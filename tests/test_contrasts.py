"""Differences between methods: planted answers, what is paired with what, and what is drawn."""

import numpy as np
import pytest

from planted_tasks import outcome, outcomes
from vitscope.comparison import across
from vitscope.contrasts import Paired, best_by_mean, gap_over_tasks, over_images, paired

BEST = [[1, 0, 0, 0], [1, 1, 0, 0]]
FUSED = [[1, 1, 1, 0], [1, 0, 0, 0]]


def test_differences_are_paired_image_by_image():
    parts = paired(outcomes({"BestLayer": BEST, "VFusion": FUSED}), "VFusion", "BestLayer")
    assert parts["set 0"].points.tolist() == [0, 100, 100, 0]
    assert parts["set 1"].points.tolist() == [0, -100, 0, 0]
    assert over_images(parts).value == pytest.approx((50 - 25) / 2)


def test_backbones_are_averaged_before_anything_is_drawn():
    one = outcomes({"BestLayer": BEST, "VFusion": FUSED})
    three = outcomes({"BestLayer": BEST, "VFusion": FUSED}, ("a", "b", "c"))
    assert over_images(paired(three, "VFusion", "BestLayer")) == over_images(
        paired(one, "VFusion", "BestLayer")
    )


def test_backbones_on_different_images_cannot_be_paired():
    right = {"BestLayer": [1, 0], "Oracle": [1, 1]}
    longer = {"BestLayer": [1, 0, 1], "Oracle": [1, 1, 1]}
    with pytest.raises(ValueError, match="different test images of x"):
        paired(
            {("a", "x"): outcome("a", "x", right), ("b", "x"): outcome("b", "x", longer)},
            "Oracle",
            "BestLayer",
        )


def test_the_interval_over_images_is_that_of_a_mean_of_independent_means():
    rng = np.random.default_rng(0)
    values = {name: Paired(rng.normal(m, 10, 400), None) for name, m in (("a", 5), ("b", -1))}
    found = over_images(values, draws=4000)
    error = np.sqrt(sum(part.points.var() / 400 for part in values.values())) / 2
    assert found.value == pytest.approx(np.mean([part.points.mean() for part in values.values()]))
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.06)


def test_whole_clusters_are_drawn():
    points = np.repeat([0.0, 100.0], 50)
    alone = over_images({"a": Paired(points, None)})
    together = over_images({"a": Paired(points, np.repeat([1, 2], 50))})
    assert alone.high - alone.low < 25
    assert (together.low, together.high) == (0.0, 100.0)


def test_ratio_of_means_and_mean_of_ratios_by_hand():
    # gaps 75 and 50 points, gains 50 and −25
    table = across(outcomes({"BestLayer": BEST, "VFusion": FUSED}, ("a", "b")))
    of_means, of_ratios = gap_over_tasks(table, "VFusion")
    assert of_means.value == pytest.approx(100 * 25 / 125)
    assert of_ratios.value == pytest.approx((100 * 50 / 75 - 50) / 2)
    assert (of_means.low, of_means.high) == pytest.approx((-50, 100 * 50 / 75))


def test_a_task_without_a_gap_has_no_ratio_but_its_gain_counts():
    methods = {"BestLayer": [[1, 0, 0, 0], [1, 1, 1, 1]], "VFusion": [[1, 1, 1, 0], [1, 1, 1, 0]]}
    of_means, of_ratios = gap_over_tasks(across(outcomes(methods)), "VFusion")
    assert of_means.value == pytest.approx(100 * 25 / 75)
    assert of_ratios.value == pytest.approx(100 * 50 / 75)


def test_one_dataset_has_no_interval_and_no_gap_says_so():
    table = across(outcomes({"BestLayer": BEST[:1], "VFusion": FUSED[:1]}))
    assert gap_over_tasks(table, "VFusion")[0].low is None
    nothing = across(outcomes({"BestLayer": [[1, 1]], "VFusion": [[1, 0]]}))
    assert "no more often than the best state" in gap_over_tasks(nothing, "VFusion")[0].reason


def test_the_best_by_mean_is_the_first_of_equals():
    table = across(outcomes({"BestLayer": BEST, "VFusion": FUSED, "LastLayer": FUSED}))
    assert best_by_mean(table, ["BestLayer", "VFusion", "LastLayer"]) == "VFusion"
