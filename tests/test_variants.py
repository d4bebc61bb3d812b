"""Families of variants, and what is measured of a real but tiny one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import enliven
from vitscope import variants, variants_measure
from vitscope import variants_controls as controls
from vitscope import variants_numbers as numbers
from vitscope import variants_pictures as pictures
from vitscope.attention import swap_attention
from vitscope.errors import UnknownName
from vitscope.pretrain.zoo import VARIANTS, Architecture, write_weights

SETS = {"probe_images": 60, "images": 20, "test_images": 16, "seed": 0}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Weight files of all variants, by name; "…-1" have other weights."""
    folder, found = tmp_path_factory.mktemp("variants"), {}
    for end in ("", "-1"):
        for name, changes in VARIANTS.items():
            shape = Architecture(width=16, depth=3, heads=2, num_classes=5, **changes)
            torch.manual_seed(len(end))
            path = folder / f"tiny_{name}{end}.safetensors"
            write_weights(path, enliven(shape.build().eval(), len(end)), shape)
            found[name + end] = str(path)
    return found


@pytest.fixture(scope="module")
def family(files):
    return variants.families([files["softmax"], files["entmax15"]], img_size=96)[0]


@pytest.fixture(scope="module")
def tests():
    return variants_measure.load("emoji_group", ["scenes_single"], ["scenes", "scenes_single"], **SETS)


@pytest.fixture(scope="module")
def seen(family, tests):
    return tests.prepared(family)


@pytest.fixture(scope="module")
def measured(family, tests, seen):
    return numbers.measure(family, tests, seen, norm="final", seed=0)


def test_families_have_trainings_and_their_facts(files):
    rows = [[files[name + end] for name in VARIANTS] for end in ("", "-1")]
    (one,) = variants.families(*rows, img_size=96)
    assert one.names == [f"tiny_{name}" for name in VARIANTS]
    assert (one.baseline, one.sparse, one.label) == ("tiny_softmax", "tiny_entmax15", "given")
    assert [v.name for v in one.of("tiny_register4")] == ["tiny_register4", "tiny_register4-1"]
    assert [v.native.grid for v in one.of("tiny_softmax")] == [(8, 8)] * 2
    assert [v.dense.grid for v in one.of("tiny_softmax")] == [(12, 12)] * 2
    added = [v.parameters - one.trainings[0][0].parameters for v in one.trainings[0]]
    assert added[:3] == [0, 0, 2 * 4 * 16]  # registers, and a position embedding for each
    assert added[3] > 0
    with pytest.raises(ValueError, match="'tiny' is no variant"):
        one.of("tiny")


def test_a_second_family_is_self_supervised(files):
    found = variants.families([files["softmax"]], [], [files["softmax-1"], files["entmax15-1"]])
    assert [f.label for f in found] == ["given", "self-supervised"]
    assert [f.sparse for f in found] == [None, "tiny_entmax15-1"]
    assert variants.families(["depth_06"])[0].label == "supervised"


def test_families_that_cannot_be_compared_are_refused(files):
    one, other = files["softmax"], files["entmax15"]
    with pytest.raises(
        ValueError, match=r"training 2 has tiny_entmax15-1 .* where the first has tiny_softmax"
    ):
        variants.families([one, other], [files["entmax15-1"], files["softmax-1"]])
    with pytest.raises(ValueError, match="2 variants once; repeats has 1 names"):
        variants.families([one, other], [files["softmax-1"]])
    with pytest.raises(ValueError, match="several models are named tiny_softmax"):
        variants.families([one], [], [one])
    with pytest.raises(ValueError, match=r"depth_06 has a grid of \(8, 8\), tiny_softmax of \(12, 12\)"):
        variants.family([[variants.load(one, img_size=96), variants.load("depth_06", img_size=None)]])


def test_depth_after_the_first_set_is_zero_shot_but_for_kitti(tests):
    moved = replace(tests, depth=("nyuv2:a", "sunrgbd:b", "kitti:c", "scenes"))
    assert [moved.fitted_on(name) for name in moved.depth] == ["nyuv2:a", "nyuv2:a", "kitti:c", "nyuv2:a"]
    assert tests.boxes == "scenes_single"
    assert tests.keys("knn", "pib") == [("knn", "emoji_group"), ("pib", "scenes_single")]
    with pytest.raises(UnknownName, match="Did you mean 'miou'"):
        tests.keys("mIoU")


def test_a_set_without_the_annotation_is_refused(monkeypatch):
    whole = variants_measure.examples.load
    monkeypatch.setattr(
        variants_measure.examples, "load", lambda *a, **k: replace(whole(*a, **k), kinds=("segmentation",))
    )
    with pytest.raises(ValueError, match="scenes has no annotation for depth, only segmentation"):
        variants_measure.load("emoji_group", ["scenes"], ["scenes"], **SETS)


def test_everything_is_measured_of_every_variant(measured, tests):
    keys = set(tests.keys("top1", "knn", "miou", "miou_cls", "rmse", "pib"))
    for found in measured.found[0]:
        assert set(found.scores) == keys
        assert all(np.isfinite(curve.value).all() for curve in found.scores.values())
        assert found.chance[("pib", "scenes_single")] > 0
        for key in tests.keys("miou", "miou_cls"):  # resamples that lack a class do not move the interval
            assert found.scores[key].drawn.mean() == pytest.approx(found.scores[key].value[0])
    dense, sparse = (f.looked for f in measured.found[0])
    assert dense.support.value.tolist() == [100.0] * 3
    assert (sparse.support.value < 100).all()


def test_zero_shot_depth_is_worse_than_a_probe_of_ones_own(family, tests, seen, measured):
    name = "scenes_single"
    own = replace(tests, segmentation=(name,), depth=(name,))
    found = variants_measure.measure(family.trainings[0][0], own, seen, norm="final", seed=0)
    moved = measured.found[0][0].scores["rmse", name]
    assert found.scores["rmse", name].value[0] < moved.value[0]


def test_short_measurement_is_the_same_as_the_long_one(family, tests, seen, measured):
    found = variants_measure.measure(family.trainings[0][1], tests, seen, norm="final", seed=0, short=True)
    assert set(found.scores) == set(tests.keys("top1", "knn", "miou"))
    for key, curve in found.scores.items():
        assert np.array_equal(curve.drawn, measured.found[0][1].scores[key].drawn)
    assert found.looked is None


def test_conditions_change_copies_and_leave_the_models_alone(family):
    before = [v.dense.digest for v in family.trainings[0]]
    found = controls.conditions(family, weights=None, img_size=96, device="cpu")
    kinds = [(c.kind, c.model, c.variant.dense.attention) for c in found]
    assert ("evaluated with entmax15", "tiny_softmax", "entmax15") in kinds
    assert ("evaluated with softmax", "tiny_entmax15", "softmax") in kinds
    assert ("softmax at temperature 0.5", "tiny_softmax", "softmax at temperature 0.5") in kinds
    assert len(found) == 8
    assert [v.dense.digest for v in family.trainings[0]] == before
    assert [v.dense.attention for v in family.trainings[0]] == ["softmax", "entmax15"]
    swapped = next(c.variant for c in found if c.kind == "evaluated with entmax15")
    weights = (v.dense.model.state_dict() for v in (swapped, family.trainings[0][0]))
    assert all(torch.equal(a, b) for a, b in zip(*(w.values() for w in weights), strict=True))


def test_galleries_say_what_they_show(family, measured, seen, tests):
    part = seen[tests.segmentation[0]].test
    maps = pictures.attention(measured, part, count=2, name="maps")
    table = maps.data.set_index("variant")
    assert table.loc["tiny_softmax", "exact zeros (%)"] == 0
    assert table.loc["tiny_entmax15", "exact zeros (%)"] > 0
    assert "on objects" in maps.alt
    assert "agreement 1.00" in pictures.pca(family, part, norm="final", count=2, name="pca").alt


def test_recipe_adds_nothing_and_has_zeros(family):
    model = Architecture(width=16, depth=2, heads=2, num_classes=5).build()
    before = sum(p.numel() for p in model.parameters())
    swap_attention(enliven(model), "entmax15")
    table = controls.recipe_table(model, before, seed=0)
    assert table["parameters"].tolist() == [before, before]
    assert table["attention"].tolist() == ["softmax", "entmax15"]
    assert table["exact zeros (%)"].iloc[0] == 0
    assert table["exact zeros (%)"].iloc[1] > 5
