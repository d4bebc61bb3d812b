"""Renders: an independent slow renderer, bit-equality in every arrangement, held-out identities."""

import hashlib
import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from vitscope import data
from vitscope.data import backgrounds, emoji
from vitscope.data.seeding import uniforms

NUMBERS = np.array([3, 250, 3, 901, 1400, 17, 640])
IDS = np.array([0, 1, 2, 3, 10**8 + 4, 77, 12_345])


def drawn(order=slice(None), **options) -> torch.Tensor:
    options = {"style": "noto", "seed": 5, **options}
    return emoji.render(NUMBERS[order], IDS[order], **options)


def sha(pictures: torch.Tensor) -> str:
    return hashlib.sha256(pictures.numpy().tobytes()).hexdigest()


# --- identities -------------------------------------------------------------------------------------------


def test_identities_are_distinct_and_a_fifth_is_held_out():
    table = emoji.identities()
    assert len(table) > 1500
    assert table["group"].nunique() == 8
    assert table["code"].is_unique
    # the source gives these two the same name; their pictures differ
    named_alike = set(table["code"][table["name"].duplicated(keep=False)])
    assert named_alike <= {"1F935", "1F935-200D-2642-FE0F"}
    assert 0.18 < table["held_out"].mean() < 0.22
    shares = table.groupby("group")["held_out"].mean()
    assert shares.between(0.15, 0.25).all(), shares.to_dict()


@pytest.mark.parametrize("style", emoji.STYLES)
def test_no_picture_of_a_held_out_identity_is_also_a_seen_one(style):
    pictures = emoji.sprites(style)
    assert pictures.dtype == torch.uint8
    assert tuple(pictures.shape) == (len(emoji.identities()), 4, 64, 64)
    visible = pictures.clone()
    visible[:, :3] *= (pictures[:, 3:] > 0).to(torch.uint8)  # colour below full transparency cannot be seen
    content = [p.numpy().tobytes() for p in visible]
    assert len(set(content)) == len(content)


def test_styles_draw_the_same_identities_differently():
    a, b = (emoji.sprites(style).float() for style in emoji.STYLES)
    same = (a == b).flatten(1).all(1)
    assert not same.any()


# --- bit-equality -----------------------------------------------------------------------------------------


def test_shape_and_type():
    pictures = drawn()
    assert pictures.dtype == torch.uint8
    assert tuple(pictures.shape) == (7, 3, 64, 64)


@pytest.mark.parametrize("batch", [1, 2, 3, 5])
def test_equal_in_any_batch(batch):
    parts = [drawn(slice(i, i + batch)) for i in range(0, len(IDS), batch)]
    assert torch.equal(torch.cat(parts), drawn())


def test_equal_in_any_order():
    order = np.random.default_rng(0).permutation(len(IDS))
    assert torch.equal(drawn(order), drawn()[torch.from_numpy(order)])


def test_equal_at_one_and_two_threads():
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(drawn())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_independent_of_the_global_random_state():
    first = drawn()
    torch.manual_seed(99), np.random.seed(99)
    assert torch.equal(first, drawn())


def test_equal_in_a_child_process_with_other_threads():
    """Single renders, a task and scenes, in one child (starting it is the slow part)."""
    program = f"""
import hashlib, numpy as np
from vitscope import data
from vitscope.data import emoji
single = emoji.render(np.array({NUMBERS.tolist()}), np.array({IDS.tolist()}), style="noto", seed=5)
for pictures in (single, *(data.load(n, "test").pixels([0, 5]) for n in ("emoji_group", "scenes"))):
    print(hashlib.sha256(pictures.numpy().tobytes()).hexdigest())
"""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "2",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    here = (drawn(), *(data.load(n, "test").pixels([0, 5]) for n in ("emoji_group", "scenes")))
    assert done.stdout.split() == [sha(pictures) for pictures in here], done.stderr


@pytest.mark.parametrize("change", ["seed", "id", "style", "identity"])
def test_what_should_change_the_pixels_does(change):
    one = {"numbers": NUMBERS[:1], "ids": IDS[:1], "style": "noto", "seed": 5}
    other = {
        **one,
        **{
            "seed": {"seed": 6},
            "id": {"ids": IDS[:1] + 1},
            "style": {"style": "twemoji"},
            "identity": {"numbers": NUMBERS[:1] + 1},
        }[change],
    }
    a, b = emoji.render(**one).float(), emoji.render(**other).float()
    assert (a - b).abs().mean() > 2


# --- an independent renderer ------------------------------------------------------------------------------


def slow_render(number: int, sample: int, seed: int, recipe: emoji.Recipe) -> np.ndarray:
    """One picture in float64, pixel by pixel: inverse mapping, bilinear lookup with zeros outside, 'over'."""
    u = uniforms(seed, np.array([sample]), 18)[0]
    size = recipe.size
    # background
    bank = backgrounds.tiles(recipe.background_part).numpy()
    room = backgrounds.TILE - size + 1
    x0, y0 = int(u[2] * room), int(u[3] * room)
    crop = (
        bank[int(u[0] * 2), int(u[1] * backgrounds.TILES_PER_KIND), :, y0 : y0 + size, x0 : x0 + size] / 255.0
    )
    if u[4] < 0.5:
        crop = crop[:, :, ::-1]
    gain = 0.6 + 0.6 * u[5] + 0.15 * (2 * u[6] - 1) * np.array([1.0, 0.0, -1.0])
    canvas = crop * gain[:, None, None]
    # pose
    scale = recipe.scale[0] + u[7] * (recipe.scale[1] - recipe.scale[0])
    reach = (1 - scale) / 2 + recipe.overhang
    cx, cy = (2 * u[8] - 1) * reach, (2 * u[9] - 1) * reach
    angle = math.radians(recipe.rotation) * (2 * u[10] - 1)
    mirror = -1.0 if u[11] < recipe.flip else 1.0
    sprite = emoji.sprites("noto")[number].numpy() / 255.0
    colour, alpha = sprite[:3] * sprite[3], sprite[3]
    # light
    level = recipe.gain[0] + u[12] * (recipe.gain[1] - recipe.gain[0])
    tint = level * (1 + recipe.tint * (2 * u[13:16] - 1))
    direction, strength = 2 * math.pi * u[16], recipe.shading * u[17]

    def lookup(plane, x, y):
        total = 0.0
        for i in (math.floor(y), math.floor(y) + 1):
            for j in (math.floor(x), math.floor(x) + 1):
                if 0 <= i < 64 and 0 <= j < 64:
                    total += plane[i, j] * (1 - abs(y - i)) * (1 - abs(x - j))
        return total

    picture = np.empty((3, size, size))
    for row in range(size):
        for column in range(size):
            px, py = (column + 0.5) / size - 0.5, (row + 0.5) / size - 0.5
            dx, dy = px - cx, py - cy
            # turn back, mirror, scale to the sprite's own pixels
            sx = mirror * (math.cos(angle) * dx + math.sin(angle) * dy) / scale
            sy = (math.cos(angle) * dy - math.sin(angle) * dx) / scale
            x, y = (sx + 0.5) * 64 - 0.5, (sy + 0.5) * 64 - 0.5
            a = lookup(alpha, x, y)
            shade = 1 + 2 * strength * (math.cos(direction) * px + math.sin(direction) * py)
            for c in range(3):
                picture[c, row, column] = (
                    (canvas[c, row, column] * (1 - a) + lookup(colour[c], x, y)) * shade * tint[c]
                )
    return np.clip(picture * 255, 0, 255)


@pytest.mark.parametrize(("number", "sample"), [(3, 0), (250, 1)])
def test_equals_a_slow_float64_renderer(number, sample):
    recipe = emoji.Recipe()
    fast = emoji.render(np.array([number]), np.array([sample]), style="noto", seed=5, recipe=recipe)[0]
    slow = slow_render(number, sample, 5, recipe)
    assert np.abs(fast.numpy() - slow).max() < 0.51, "more than rounding apart"


def test_pose_without_change_returns_the_sprite():
    sprite = emoji.sprites("noto")[NUMBERS[:1]]
    one, zero = np.ones(1), np.zeros(1)
    colour, alpha = emoji.paste(sprite, one, zero, zero, zero, one, 64)
    torch.testing.assert_close(alpha, sprite[:, 3:] / 255, atol=2e-5, rtol=0)
    torch.testing.assert_close(colour, sprite[:, :3] / 255 * alpha, atol=4e-5, rtol=0)
    flipped, _ = emoji.paste(sprite, one, zero, zero, zero, -one, 64)
    torch.testing.assert_close(flipped, colour.flip(-1), atol=4e-5, rtol=0)


def test_background_kind_is_followed():
    u = uniforms(0, np.arange(40), 7)
    photo, texture = (
        emoji.background_canvas(u, replace(emoji.Recipe(), background_kind=kind))
        for kind in ("photo", "texture")
    )
    both = emoji.background_canvas(u, emoji.Recipe())
    is_photo = torch.from_numpy(u[:, 0] < 0.5).view(-1, 1, 1, 1)
    assert torch.equal(both, torch.where(is_photo, photo, texture))


# --- errors -----------------------------------------------------------------------------------------------


def test_unknown_style_background_and_lengths_are_refused():
    with pytest.raises(ValueError, match="noto, twemoji"):
        drawn(style="apple")
    with pytest.raises(ValueError, match="background_kind must be both, photo or texture"):
        drawn(recipe=replace(emoji.Recipe(), background_kind="white"))
    with pytest.raises(ValueError, match="train"):
        drawn(recipe=replace(emoji.Recipe(), background_part="both"))
    with pytest.raises(ValueError, match="one id per identity"):
        emoji.render(NUMBERS, IDS[:2], style="noto", seed=0)
