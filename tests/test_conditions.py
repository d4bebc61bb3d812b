"""The controls of a chapter: which there are, on what they run, and what each takes away."""

import numpy as np
import pytest
import timm
import torch

from helpers import tiny, toy_images
from vitscope.backbones import describe
from vitscope.capture import capture
from vitscope.conditions import TRAINED, conditions
from vitscope.controls import shuffled_patches, without_position
from vitscope.position import position_embedding
from vitscope.transforms import Transform

COUNT = 6
USUAL = [TRAINED, "random weights", "patches shuffled"]


@pytest.fixture(scope="module")
def found():
    return conditions(tiny("supervised"), tiny("supervised", seed=1), toy_images(COUNT), seed=4)


def test_a_model_with_a_learned_position_has_all_four(found):
    assert list(found) == [*USUAL, "no position embedding"]


def test_each_condition_changes_one_thing(found):
    trained, untrained, shuffled, blind = found.values()
    images = trained.pictures
    assert untrained.pictures is blind.pictures is images
    assert shuffled.backbone is trained.backbone
    assert untrained.backbone.digest != trained.backbone.digest
    assert torch.equal(position_embedding(blind.backbone), torch.zeros(16, 32))
    assert blind.backbone.digest == without_position(trained.backbone).digest
    assert position_embedding(trained.backbone).abs().max() > 0  # the model given keeps its own


def test_the_shuffled_pictures_are_those_of_the_seed_in_the_same_order(found):
    backbone, images = found[TRAINED]
    tensor, labels = found["patches shuffled"].pictures
    again, _ = shuffled_patches(backbone, images, seed=4)
    other = conditions(backbone, backbone, images, seed=5)["patches shuffled"].pictures[0]
    assert torch.equal(tensor, again)
    assert not torch.equal(tensor, other)
    np.testing.assert_array_equal(labels, images.labels)
    # before the position embedding, a picture and its shuffled one have the same patches
    means = [
        capture(backbone, pictures, norm="none", reductions=["patch_mean"]).patch_mean
        for pictures in (images, tensor)
    ]
    torch.testing.assert_close(means[0][0], means[1][0], rtol=1e-4, atol=1e-4)
    assert float((means[0][-1] - means[1][-1]).abs().max()) > 1e-2


@pytest.mark.parametrize("family", ["dinov3_rope", "eva02", "rope_per_block"])
def test_a_model_that_rotates_has_no_condition_without_position(family):
    """No table to take away, or rotations that would stay and still tell places."""
    backbone = tiny(family, size=64 if family != "eva02" else 56)
    assert list(conditions(backbone, backbone, toy_images(2), seed=0)) == USUAL


@pytest.mark.parametrize("table", [True, False])
def test_nor_has_one_whose_attention_may_hold_a_position_bias(table):
    model = timm.create_model(
        "beit_base_patch16_224", img_size=32, embed_dim=32, depth=1, num_heads=2, use_abs_pos_emb=table
    )
    beit = describe("beit", model, Transform(32, 32, (0.5,) * 3, (0.5,) * 3))
    found = conditions(beit, beit, toy_images(2), seed=0)
    assert list(found) == USUAL
    assert capture(*found["patches shuffled"], norm="none").patch_mean.shape == (3, 2, 32)


def test_a_bad_seed_is_not_taken_for_a_missing_condition():
    backbone = tiny("supervised")
    with pytest.raises(ValueError, match="seed must be a non-negative integer, got -1"):
        conditions(backbone, backbone, toy_images(2), seed=-1)
