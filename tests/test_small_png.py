"""Palettes: exact where colours are few, near where one cannot see it, none where one could."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from vitscope.small_png import FURTHEST, SPREAD, small_png


def png(pixels: np.ndarray, **options) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, format="png", **options)
    return buffer.getvalue()


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


@pytest.mark.parametrize("colours", [1, 2, 17, 256])
def test_few_colours_are_kept_exactly(colours):
    random = np.random.default_rng(0)
    palette = random.permutation(256**3)[:colours]
    codes = palette[np.arange(64 * 64).reshape(64, 64) % colours]
    image = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=2)
    small = small_png(png(image))
    assert (pixels(small) == image).all()
    assert small == small_png(png(image))
    assert colours > 17 or len(small) < len(png(image))


def test_smooth_edges_are_kept_to_the_eye():
    x, y = np.meshgrid(np.arange(300), np.arange(300))
    shade = np.clip((np.hypot(x - 150, y - 150) - 100) * 2, 0, 255)
    image = np.stack([255 - shade, np.full_like(shade, 255), 255 - shade / 3], axis=2).round()
    small = small_png(png(image))
    moved = np.abs(pixels(small) - image)
    assert moved.max() <= FURTHEST
    assert np.sqrt(np.mean(moved**2)) <= SPREAD
    assert len(small) <= len(png(image))


def test_a_photograph_is_not_touched():
    from sklearn.datasets import load_sample_image

    data = png(load_sample_image("china.jpg")[:200, :200])
    assert small_png(data) == data


def test_what_is_not_opaque_is_not_touched():
    data = png(np.full((9, 9, 4), 200))
    assert small_png(data) == data


def test_resolution_is_kept():
    image = np.random.default_rng(0).integers(0, 2, (64, 64, 1)) * np.array([200, 100, 50])
    small = small_png(png(image, dpi=(150, 150)))
    assert Image.open(io.BytesIO(small)).mode == "P"
    assert Image.open(io.BytesIO(small)).info["dpi"] == pytest.approx((150, 150), abs=0.1)
