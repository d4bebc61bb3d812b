"""Shuffled patches and models without position: each alone, and both together."""

from dataclasses import replace

import numpy as np
import pytest
import timm
import torch

from helpers import MORE_FAMILIES, noise, tiny, toy_images
from vitscope import backbones, data
from vitscope.attention_maps import UnknownAttention
from vitscope.backbones import UnsupportedModel, describe
from vitscope.capture import capture
from vitscope.controls import shuffled_patches, without_position
from vitscope.data.images import Images
from vitscope.position import position_embedding
from vitscope.transforms import Transform


def squares(pictures: torch.Tensor, rows: int, columns: int) -> list[list[bytes]]:
    """The patches of each picture, row by row, cut out one by one."""
    height, width = pictures.shape[2] // rows, pictures.shape[3] // columns
    return [
        [
            p[:, r * height : (r + 1) * height, c * width : (c + 1) * width].numpy().tobytes()
            for r in range(rows)
            for c in range(columns)
        ]
        for p in pictures
    ]


@pytest.mark.parametrize("size", [64, (32, 64), (64, 16)])
def test_every_picture_keeps_its_patches_in_an_order_of_its_own(size):
    backbone, images = tiny("supervised", size=size), toy_images(6)
    found, labels = shuffled_patches(backbone, images, seed=3)
    plain = backbone.transform(images.pixels())
    assert found.shape == plain.shape
    assert labels.tolist() == images.labels.tolist()
    before, after = squares(plain, *backbone.grid), squares(found, *backbone.grid)
    orders = []
    for old, new in zip(before, after, strict=True):
        assert len(set(old)) == backbone.num_patches, "random pictures have no two equal patches"
        assert sorted(old) == sorted(new)
        orders.append(tuple(old.index(patch) for patch in new))
    assert len(set(orders)) == 6


def test_the_order_depends_on_seed_and_place_alone(monkeypatch):
    backbone, images = tiny("supervised"), toy_images(7)
    found, _ = shuffled_patches(backbone, images, seed=0)
    fewer, _ = shuffled_patches(backbone, images.select(range(4)), seed=0)
    assert torch.equal(found[:4], fewer)
    monkeypatch.setattr("vitscope.controls._AT_ONCE", 3)
    assert torch.equal(shuffled_patches(backbone, images, seed=0)[0], found)
    others = [shuffled_patches(backbone, images, seed=seed)[0] for seed in (1, 2)]
    assert not any(torch.equal(found[i], other[j]) for other in others for i in range(7) for j in range(7))


def test_all_orders_come_up_about_equally_often():
    """Four patches of four grey levels, 2,400 times: 24 orders, 100 times each."""
    count = 2400
    levels = torch.arange(4, dtype=torch.uint8).view(2, 2) * 60
    picture = levels.repeat_interleave(16, 0).repeat_interleave(16, 1).expand(3, 32, 32)
    images = Images(
        name="levels", split="test", labels=np.zeros(count, dtype=int), ids=np.arange(count), classes=("a",),
        digest="d", source={}, read=lambda indices: picture.expand(len(indices), 3, 32, 32),
    )  # fmt: skip
    found, _ = shuffled_patches(tiny("supervised", size=32), images, seed=0)
    corners = found[:, 0, ::16, ::16].flatten(1)
    seen = torch.unique(corners, dim=0, return_counts=True)[1]
    assert len(seen) == 24
    squared = float(((seen - count / 24).square() / (count / 24)).sum())
    assert squared < 49.7, "χ² with 23 degrees of freedom at 0.1 %"


def test_shuffling_needs_a_seed_and_a_grid_that_fits():
    backbone, images = tiny("supervised"), toy_images(2)
    with pytest.raises(ValueError, match="seed must be a non-negative integer, got -1"):
        shuffled_patches(backbone, images, seed=-1)
    with pytest.raises(UnsupportedModel, match=r"grid of 3 × 4 patches does not divide pictures of 64 × 64"):
        shuffled_patches(replace(backbone, grid=(3, 4)), images, seed=0)


def test_a_model_without_position_cannot_tell_shuffled_pictures_from_whole_ones():
    """At every state of a trained model; with its position embedding it can tell them."""
    images = data.load("emoji_identity", "test").select(range(8))
    twin = backbones.load("twin_s", device="cpu")
    blind = without_position(twin)
    assert torch.equal(position_embedding(blind), torch.zeros(64, 96))
    names = ["cls", "patch_mean", "similarity", "effective_rank"]
    pairs = {}
    for backbone in (twin, blind):
        shuffled = shuffled_patches(backbone, images, seed=5)
        pairs[backbone.name] = [
            capture(backbone, x, norm="final", reductions=names) for x in (images, shuffled)
        ]
    whole, moved = pairs[blind.name]
    close = {"rtol": 1e-3, "atol": 1e-4, "equal_nan": True}
    torch.testing.assert_close(whole.patch_mean, moved.patch_mean, **close)
    torch.testing.assert_close(whole.cls, moved.cls, **close)
    for name, values in whole.per_image.items():
        torch.testing.assert_close(values, moved.per_image[name], **close)
    whole, moved = pairs["twin_s"]
    torch.testing.assert_close(whole.patch_mean[0], moved.patch_mean[0], **close)  # no position yet
    gaps = (whole.patch_mean - moved.patch_mean).abs().amax((1, 2))
    assert gaps[-1] > 0.1


@pytest.mark.parametrize("family", ["supervised", "dinov2_registers", "clip", "siglip", "layer_scale"])
def test_tokens_of_a_model_without_position_move_with_their_patches(family):
    backbone = without_position(tiny(family))
    side = backbone.transform.height
    pictures = noise(2, side)
    step = side // backbone.grid[0]
    rolled = pictures.roll((step, 2 * step), dims=(2, 3))
    kept = [
        capture(backbone, x, norm="none", keep_tokens=2).tokens[:, :, backbone.num_prefix_tokens :]
        for x in (pictures, rolled)
    ]
    expected = kept[0].unflatten(2, backbone.grid).roll((1, 2), dims=(2, 3)).flatten(2, 3)
    torch.testing.assert_close(kept[1], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["eva02", "perception_encoder"])
def test_a_model_that_also_rotates_is_refused(family):
    assert family in MORE_FAMILIES
    with pytest.raises(UnsupportedModel, match=rf"{family} .* has a rotary position embedding, which stays"):
        without_position(tiny(family))


def test_attention_that_may_hold_a_position_bias_is_refused():
    model = timm.create_model(
        "beit_base_patch16_224", img_size=32, embed_dim=32, depth=1, num_heads=2, use_abs_pos_emb=True
    )
    beit = describe("beit", model, Transform(32, 32, (0.5,) * 3, (0.5,) * 3))
    with pytest.raises(UnknownAttention, match="beit, block 1"):
        without_position(beit)
