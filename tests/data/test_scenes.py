"""Scenes: picture, mask, boxes and depth agree with each other and with an independent composition."""

import math

import numpy as np
import pytest
import torch

from vitscope import data
from vitscope.data import emoji, scenes

COUNT = 60


@pytest.fixture(scope="module", params=["scenes", "scenes_single"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def made(name):
    """The first test scenes with everything known about them, and their public `Images`."""
    images = data.load(name, "test").select(range(COUNT))
    layout = scenes._layout(name, "test", images.extras["scene"], 0)
    return images, images.pixels(), scenes.annotations(images), layout


def owners(layout, size: int = scenes.SIZE) -> np.ndarray:
    """Which object shows at each pixel (−1 none): the sprite's alpha looked up in float64, far to near.

    Pixels whose coverage is within rounding of one half are marked −2: they may go either way.
    """
    count, objects = layout["extent"].shape
    axis = (np.arange(size) + 0.5) / size - 0.5
    shown = np.full((count, size, size), -1)
    for n in range(count):
        for k in range(objects):
            extent = layout["extent"][n, k]
            if extent == 0:
                continue
            alpha = np.pad(emoji.sprites("noto")[layout["identity"][n, k], 3].numpy() / 255.0, 1)
            dx, dy = axis[None, :] - layout["cx"][n, k], axis[:, None] - layout["cy"][n, k]
            cos, sin = math.cos(layout["angle"][n, k]), math.sin(layout["angle"][n, k])
            x = (layout["mirror"][n, k] * (cos * dx + sin * dy) / extent + 0.5) * 64 + 0.5
            y = ((cos * dy - sin * dx) / extent + 0.5) * 64 + 0.5
            inside = (x > 0) & (x < 65) & (y > 0) & (y < 65)
            i, j = np.clip(np.floor(y).astype(int), 0, 64), np.clip(np.floor(x).astype(int), 0, 64)
            b, a = y - i, x - j
            value = (1 - b) * ((1 - a) * alpha[i, j] + a * alpha[i, j + 1])
            value += b * ((1 - a) * alpha[i + 1, j] + a * alpha[i + 1, j + 1])
            value = np.where(inside, value, 0.0)
            shown[n][value > 0.5] = k
            shown[n][np.abs(value - 0.5) < 1e-4] = -2
    return shown


def test_shapes(made):
    images, pictures, known, _ = made
    assert pictures.dtype == torch.uint8
    assert tuple(pictures.shape) == (COUNT, 3, 96, 96)
    assert tuple(known["mask"].shape) == tuple(known["depth"].shape) == (COUNT, 96, 96)
    assert tuple(known["boxes"].shape) == (COUNT, 3, 4)
    assert len(images.classes) == 8
    assert int(known["mask"].max()) <= 8


def test_mask_boxes_and_depth_follow_the_objects(made):
    """Everything from one independent picture of who shows where."""
    images, _, known, layout = made
    shown = owners(layout)
    groups = emoji.identities()["group"].to_numpy()
    far = np.linspace(4, 2, scenes.SIZE)[:, None]
    for n in range(COUNT):
        certain = shown[n] != -2
        mask, depth = np.zeros((96, 96), dtype=int), np.broadcast_to(far, (96, 96)).copy()
        for k in range(3):
            mine = shown[n] == k
            mask[mine] = 1 + images.classes.index(groups[layout["identity"][n, k]])
            if mine.any():
                depth[mine] = 0.4 / layout["extent"][n, k]
        assert (known["mask"][n].numpy() == mask)[certain].all()
        np.testing.assert_allclose(known["depth"][n].numpy()[certain], depth[certain], rtol=1e-5)
        if not certain.all():
            continue  # a doubtful pixel may lie on a box edge
        for k in range(3):
            rows, columns = np.nonzero(shown[n] == k)
            box = known["boxes"][n, k].numpy()
            if len(rows) == 0:
                assert np.isnan(box).all()
            else:
                hull = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) / 96
                np.testing.assert_allclose(box, hull, rtol=1e-6)


def test_mask_and_depth_show_the_same_objects(made):
    _, _, known, _ = made
    background = known["mask"] == 0
    plane = torch.linspace(4, 2, 96).view(1, -1, 1).expand_as(known["depth"])
    assert torch.equal(known["depth"][background], plane[background])
    assert (known["depth"][~background] < 2).all(), "every object is nearer than the background"


def test_label_is_the_nearest_object_and_it_is_fully_visible(made):
    images, _, known, layout = made
    groups = emoji.identities()["group"].to_numpy()
    for n in range(COUNT):
        nearest = int(np.argmax(layout["extent"][n]))
        assert images.classes[images.labels[n]] == groups[layout["identity"][n, nearest]]
        front = known["depth"][n] == known["depth"][n].min()
        assert (known["mask"][n][front] == images.labels[n] + 1).all()


def test_count_of_objects(made, name):
    *_, layout = made
    counts = (layout["extent"] > 0).sum(1)
    assert set(counts) == ({1} if name == "scenes_single" else {1, 2, 3})


def test_single_boxes_cover_less_than_a_quarter():
    images = data.load("scenes_single", "test").select(range(300))
    boxes = scenes.annotations(images)["boxes"]
    seen = ~boxes[..., 0].isnan()
    assert (seen.sum(1) == 1).all()
    x0, y0, x1, y1 = boxes[seen].unbind(1)
    area = (x1 - x0) * (y1 - y0)
    assert (boxes[seen] >= 0).all()
    assert (boxes[seen] <= 1).all()
    assert float(area.max()) < 0.25
    assert float(area.min()) > 0


def test_objects_are_where_the_mask_says(made):
    """Against the same scene without objects, pixels change inside the mask and nowhere far outside it."""
    images, pictures, known, _ = made
    u = scenes.uniforms(scenes.SCENE_SEED + 1, images.extras["scene"], 13)
    recipe = emoji.Recipe(size=scenes.SIZE)
    empty = (emoji.background_canvas(u[:, :7], recipe) * emoji.lighting(u[:, 7:13], recipe) * 255).clamp(
        0, 255
    )
    changed = (pictures.float() - empty).abs().amax(1) > 1
    solid = (known["mask"] > 0).float().unsqueeze(1)
    near = torch.nn.functional.max_pool2d(solid, 9, stride=1, padding=4)[:, 0] > 0
    # faint shadows and outlines, below half coverage, reach a few pixels beyond the mask
    assert float(changed[~near].float().mean()) < 0.02
    assert float(changed[known["mask"] > 0].float().mean()) > 0.9


@pytest.mark.parametrize("name", scenes.NAMES)
def test_train_shows_seen_identities_and_test_held_out_ones(name):
    held_out = emoji.identities()["held_out"].to_numpy()
    for split, expected in (("train", False), ("test", True)):
        images = data.load(name, split)
        shown = scenes._layout(name, split, images.extras["scene"], 0)["identity"]
        assert (held_out[shown] == expected).all()
        assert len(set(images.ids)) == len(images) == scenes.COUNTS[split]


def test_equal_in_any_batch_order_and_thread_count(made, name):
    images, pictures, known, _ = made
    order = np.random.default_rng(0).permutation(12)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        again = images.select(order)
        assert torch.equal(again.pixels(), pictures[order])
        for key, value in scenes.annotations(again).items():
            assert torch.equal(value.nan_to_num(-1), known[key][order].nan_to_num(-1))
    finally:
        torch.set_num_threads(before)
    single = scenes.annotations(images, np.array([3]))
    assert torch.equal(single["depth"][0], known["depth"][3])


def test_seed_gives_other_scenes(name):
    a, b = data.load(name, "test"), data.load(name, "test", seed=1)
    assert a.digest != b.digest
    assert not torch.equal(a.pixels([0]), b.pixels([0]))
    assert not torch.equal(*(scenes.annotations(x, np.array([0]))["mask"] for x in (a, b)))


def test_errors():
    with pytest.raises(ValueError, match="has the splits train, test, not 'val'"):
        data.load("scenes", "val")
    with pytest.raises(ValueError, match="digits is no set of scenes; use one of scenes, scenes_single"):
        scenes.annotations(data.load("digits", "test"))
