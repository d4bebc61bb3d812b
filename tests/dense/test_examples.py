"""Annotated sets: what a backbone sees of them, and that annotations stay where the pictures are."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import tiny
from vitscope import backbones
from vitscope.data import emoji
from vitscope.dense import examples
from vitscope.errors import UnknownName


@pytest.fixture(scope="module")
def backbone():
    return backbones.load("depth_06", img_size=96)


@pytest.mark.parametrize("name", examples.EMBEDDED)
def test_embedded_sets_come_as_they_are_at_their_own_size(backbone, name):
    one = examples.load(name, "test", limit=12, seed=3)
    found = examples.prepare(backbone, one)
    assert (len(one), one.key, len(one.clusters)) == (12, name, 12)
    assert found.inputs.shape == (12, 3, 96, 96)
    assert torch.equal(found.inputs, backbone.transform(one.images.pixels(np.arange(12))))
    assert found.mask.shape == found.depth.shape == (12, 96, 96)
    assert found.mask[found.mask != 255].max() < len(one.classes)
    # what is no background is nearer than it, and lies in one of the boxes
    assert found.depth[found.mask == 0].min() >= 2 > found.depth[found.mask > 0].max()
    rows, columns = (found.mask[0] > 0).nonzero().T
    x0, y0 = found.boxes[0, :, :2].nan_to_num(9).amin(0) * 96
    assert (x0, y0) == (columns.min(), rows.min())


def test_masks_by_subgroup_refine_those_by_group(backbone):
    coarse, fine = (
        examples.prepare(backbone, examples.load(name, "train", limit=20)).mask
        for name in ("scenes", "scenes_fine")
    )
    assert torch.equal(coarse == 0, fine == 0)
    table = emoji.identities()
    names = ["background", *sorted(set(table["subgroup"]))]
    groups = sorted(set(table["group"]))
    group_of = dict(zip(table["subgroup"], table["group"], strict=True))
    for number in fine[fine > 0].unique().tolist():
        assert set(coarse[fine == number].tolist()) == {groups.index(group_of[names[number]]) + 1}


def test_subgroups_that_training_never_shows_do_not_count(backbone):
    one = examples.load("scenes_fine", "test", limit=300)
    mask = examples.prepare(backbone, one).mask
    table = emoji.identities()
    taught = {one.classes.index(name) for name in table["subgroup"][~table["held_out"]]}
    assert set(mask.unique().tolist()) <= taught | {0, 255}


def test_annotations_follow_resize_and_crop(tmp_path):
    """A picture of two halves, wider than high: the mask must be cut and resized like the picture."""
    picture = np.zeros((40, 80, 3), np.uint8)
    picture[:, 40:] = 255
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (tmp_path / folder).mkdir(parents=True)
    Image.fromarray(picture).save(tmp_path / "JPEGImages/a.jpg", quality=100)
    palette = Image.fromarray((picture[..., 0] > 0).astype(np.uint8) * 5, mode="P")
    palette.putpalette([0, 0, 0] * 256)
    palette.save(tmp_path / "SegmentationClass/a.png")
    for split in ("train", "val"):
        (tmp_path / f"ImageSets/Segmentation/{split}.txt").write_text("a\n")
    backbone = tiny("supervised")
    one = examples.load(f"voc:{tmp_path}", "test")
    found = examples.prepare(backbone, one)
    assert (one.key, one.kinds, one.images.source["split"]) == ("voc", ("segmentation",), "val")
    side = backbone.transform.height
    assert found.depth is None
    assert found.boxes is None
    assert found.mask.shape == (1, side, side)
    bright = found.inputs[0].mean(0) > 0
    assert (bright == (found.mask[0] == 5)).float().mean() > 0.95
    assert found.mask[0, 0, 0] == 0
    assert found.mask[0, 0, -1] == 5


def test_boxes_follow_resize_and_crop():
    pictures = [torch.zeros(3, 40, 80, dtype=torch.uint8)]
    placed = examples._placed(torch.tensor([[[0.25, 0.0, 0.75, 1.0]]]), pictures, 32, 1.0)
    assert torch.allclose(placed.float(), torch.tensor([[[0.0, 0.0, 1.0, 1.0]]]))
    untouched = torch.rand(1, 2, 4)
    assert examples._placed(untouched, [torch.zeros(3, 32, 32)], 32, 0.9) is untouched


def test_tokens_of_some_states_are_those_of_all_whatever_the_part(backbone, monkeypatch):
    inputs = examples.prepare(backbone, examples.load("scenes", "test", limit=5)).inputs
    everything = examples.tokens(backbone, inputs, norm="final")
    assert everything.states == backbone.states
    assert everything.patches.shape == (len(backbone.states), 5, 144, backbone.width)
    assert everything.cls[0].isnan().all()
    assert everything.cls[1:].isfinite().all()
    last = backbone.model.forward_features(inputs)
    assert torch.allclose(everything.patches[-1], last[:, 1:], atol=1e-5)
    assert torch.allclose(everything.cls[-1], last[:, 0], atol=1e-5)
    monkeypatch.setattr(examples, "_PICTURES_AT_ONCE", 2)
    some = examples.tokens(backbone, inputs, norm="final", states=[6, 0])
    assert some.states == [6, 0]
    assert torch.allclose(some.patches, everything.at(6, 0).patches, atol=1e-5)


def test_a_backbone_without_cls_gives_patches_alone():
    backbone = tiny("siglip")
    side = backbone.transform.height
    found = examples.tokens(backbone, torch.zeros(2, 3, side, side), norm="none", states=[1])
    assert found.cls is None
    assert found.patches.shape[2] == backbone.num_patches


def test_what_cannot_be_opened_is_named(backbone, tmp_path):
    with pytest.raises(UnknownName, match=r"Unknown annotated set 'scene'\. Did you mean 'scenes'"):
        examples.load("scene", "train")
    with pytest.raises(UnknownName, match=r"Unknown layout 'vocc'\. Did you mean 'voc'"):
        examples.load("vocc:somewhere", "train")
    with pytest.raises(FileNotFoundError, match="no such folder: nowhere; layout voc expects JPEGImages"):
        examples.require("voc:nowhere", Path(tmp_path))
    inputs = torch.zeros(1, 3, 96, 96)
    with pytest.raises(ValueError, match=r"depth_06 has states \[-1, 0, .* not \[9\]"):
        examples.tokens(backbone, inputs, norm="none", states=[9])
    with pytest.raises(ValueError, match=r"states \[3\] were not kept; there are \[1\]"):
        examples.tokens(backbone, inputs, norm="none", states=[1]).at(3)
    with pytest.raises(ValueError, match="takes pictures of 64 × 96; annotations are cut to squares"):
        examples.prepare(
            backbones.load("depth_06", img_size=(64, 96)), examples.load("scenes", "test", limit=2)
        )
