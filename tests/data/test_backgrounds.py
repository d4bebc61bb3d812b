"""Backgrounds: the two parts share no source pixel, textures have the spectrum they claim."""

import numpy as np
import pytest
import torch
from PIL import Image

from vitscope.data import backgrounds


@pytest.fixture
def parts():
    return {part: backgrounds.tiles(part) for part in ("train", "test")}


def test_shapes_and_kinds(parts):
    expected = (len(backgrounds.KINDS), backgrounds.TILES_PER_KIND, 3, backgrounds.TILE, backgrounds.TILE)
    for bank in parts.values():
        assert bank.dtype == torch.uint8
        assert tuple(bank.shape) == expected
        assert (
            len(np.unique(bank.flatten(2).numpy().reshape(-1, bank[0, 0].numel()), axis=0)) == 2 * expected[1]
        )


def test_parts_have_no_tile_in_common(parts):
    rows = {p: {t.numpy().tobytes() for t in bank.flatten(0, 1)} for p, bank in parts.items()}
    assert not rows["train"] & rows["test"]


def test_photographs_are_cut_from_disjoint_sides(monkeypatch):
    """With black left of the cut and white right of it, a tile that reaches across would show both."""
    picture = np.zeros((427, 640, 3), dtype=np.uint8)
    picture[:, int(640 * 0.70) :] = 255
    monkeypatch.setattr(backgrounds, "_photographs", lambda: (Image.fromarray(picture),) * 2)
    make = backgrounds.tiles.__wrapped__  # past the cache
    assert int(make("train")[0].max()) == 0
    assert int(make("test")[0].min()) == 255


def test_photo_tiles_differ_in_size_and_place(parts):
    # crops of one photograph at one scale would make the task easier than it says
    energy = parts["train"][0].float().diff(dim=-1).abs().mean((1, 2, 3))
    assert energy.max() > 2 * energy.min()


def test_texture_spectrum_falls_as_a_power_of_frequency(parts):
    grey = parts["train"][1].double().mean(1)
    power = np.abs(np.fft.fft2((grey - grey.mean((1, 2), keepdim=True)).numpy())) ** 2
    vertical = power[:, 1:33, 0]  # the vertical axis is not stretched
    slopes = [np.polyfit(np.log(np.arange(1, 33)), np.log(p) / 2, 1)[0] for p in vertical]
    assert -1.9 < np.mean(slopes) < -0.5, "mean exponent should lie near the middle of [0.7, 1.7]"


def test_unknown_part_is_refused():
    with pytest.raises(ValueError, match="'train' or 'test', got 'validation'"):
        backgrounds.tiles("validation")
