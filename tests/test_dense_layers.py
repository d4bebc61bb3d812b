"""Dense measures of every state: planted objects, a small budget, models without CLS, missing annotations."""

from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
import torch

from helpers import tiny
from planted_dense import pair, part
from vitscope import dense_layers, dense_parts
from vitscope.capture import capture
from vitscope.dense.boxes import cls_scores, point_in_box
from vitscope.dense_layers import BOTH, PATCH

MODEL = tiny("dinov2_registers", size=56)  # a grid of 4 x 4, CLS and four registers
SETS = pair(size=56)


@pytest.fixture(scope="module")
def measured():
    return dense_layers.measure(MODEL, {"scenes": SETS, "boxes": SETS}, norm="final")


def test_the_colour_of_an_object_is_read_from_its_patch_embedding(measured):
    found = measured.segmentation
    assert found.curves[PATCH].states == (-1, 0, 1, 2)
    assert found.curves[PATCH].at(-1).value > 95
    assert found.baseline == pytest.approx(25, abs=1)  # three quarters of the pixels, one of three classes
    assert measured.depth is None


def test_cls_stands_beside_patches_from_the_state_it_exists(measured):
    assert measured.segmentation.curves[BOTH].states == (0, 1, 2)
    without = dense_layers.segmentation(tiny("siglip"), pair(size=64), norm="none", states=[2])
    assert set(without.curves) == {PATCH}


def test_points_are_those_of_the_tokens_with_registers_left_out(measured):
    inputs, boxes = SETS.test.seen.inputs, SETS.test.seen.boxes
    tokens = capture(MODEL, inputs, norm="final", keep_tokens=len(inputs)).tokens[1:]
    expected = point_in_box(cls_scores(tokens[:, :, 0], tokens[:, :, 5:]), boxes, MODEL.grid)
    found = measured.point_in_box
    assert np.array_equal(found.by_rule["center"].hits, expected.hits)
    np.testing.assert_allclose(found.curve.value, 100 * expected.rate)
    assert found.by_rule["center"].chance == 0.25
    with pytest.raises(ValueError, match="not measured, because siglip has no CLS token"):
        dense_layers.boxes(tiny("siglip"), SETS.test, norm="none")


def test_a_budget_of_one_state_at_a_time_changes_no_point(measured, monkeypatch):
    monkeypatch.setattr("vitscope.dense_parts._BYTES", 1)
    found = dense_layers.boxes(MODEL, SETS.test, norm="final")
    assert np.array_equal(found.by_rule["center"].hits, measured.point_in_box.by_rule["center"].hits)
    assert found.states == measured.point_in_box.states
    parts = list(dense_parts.by_states(MODEL, [SETS.test], "none", [0, 2], single=True))
    assert [one.states for one in parts] == [[0], [2]]


def test_depth_of_near_squares_is_read_and_better_than_the_mean():
    found = dense_layers.depth(MODEL, SETS, norm="final", states=[-1])
    assert found.curves[PATCH].at(-1).value < 0.7 * found.baseline
    assert set(found.curves) == {PATCH}  # state -1 has no CLS
    assert dense_layers.depth_bounds("nyuv2:somewhere") == (0.001, 10.0)


def test_some_pictures_are_evenly_spaced_and_keep_what_belongs_to_them():
    whole = part(10)
    few = whole.some(4)
    at = [0, 3, 6, 9]
    assert few.data.clusters.tolist() == at
    assert torch.equal(few.seen.mask, whole.seen.mask[at])
    assert few.data.images.labels.tolist() == [n % 2 for n in at]
    assert whole.some(10) is whole


def test_what_a_set_lacks_is_named():
    bare = replace(SETS.test, seen=replace(SETS.test.seen, mask=None, boxes=None))
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(ValueError, match="scenes has no boxes"):
            dense_layers.boxes(MODEL, bare, norm="none")
        with pytest.raises(ValueError, match="scenes has no mask; its annotations are: segmentation"):
            dense_layers.segmentation(MODEL, replace(SETS, test=bare), norm="none")
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def test_sets_that_are_the_same_are_loaded_and_prepared_once():
    sizes = {"images": 20, "test_images": 20, "seed": 0}
    sets = dense_parts.load("scenes", "scenes_single", "scenes", **sizes)
    assert sets["depth"] is sets["scenes"]
    assert sets["objects"] is sets["boxes"]
    few = {use: tuple(replace(one, images=one.images.select([0, 1]), clusters=one.clusters[:2]) for one in of)
           for use, of in sets.items()}  # fmt: skip
    models = [tiny("supervised", size=32), replace(tiny("clip", size=32), name="other")]
    seen = dense_parts.prepared(models, few)
    assert seen["supervised"]["objects"].test is seen["other"]["boxes"].test
    assert seen["supervised"]["scenes"].test.seen.mask.shape == (2, 32, 32)
