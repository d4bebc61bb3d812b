"""Background tiles: crops of two photographs and procedural 1/f textures, in disjoint parts.

Tiles of the part `"train"` are cut from the left 70 % of scikit-learn's two sample photographs, those of
`"test"` from the right 30 %, and their textures come from different seeds: no background that a
pretraining sees is ever used in an evaluation.
"""

from functools import lru_cache

import numpy as np
import torch
from PIL import Image

from vitscope.data.seeding import uniforms

TILE = 128
TILES_PER_KIND = 192
KINDS = ("photo", "texture")
_SPLIT = 0.70


@lru_cache(maxsize=2)
def tiles(part: str) -> torch.Tensor:
    """All tiles of one part, uint8 [2, TILES_PER_KIND, 3, TILE, TILE]; first axis as in `KINDS`."""
    if part not in ("train", "test"):
        raise ValueError(f"background part must be 'train' or 'test', got {part!r}")
    offset = 0 if part == "train" else 10**6
    ids = np.arange(TILES_PER_KIND) + offset
    photos = [_photo_tile(u, part) for u in uniforms(101, ids, 4)]
    textures = [_texture_tile(int(i)) for i in ids]
    stacked = np.stack([np.stack(photos), np.stack(textures)])
    return torch.from_numpy(np.ascontiguousarray(stacked.transpose(0, 1, 4, 2, 3)))


@lru_cache(maxsize=1)
def _photographs() -> tuple[Image.Image, ...]:
    from sklearn.datasets import load_sample_images  # slow import; only rendering needs it

    return tuple(Image.fromarray(np.asarray(x)) for x in load_sample_images().images)


def _photo_tile(u: np.ndarray, part: str) -> np.ndarray:
    photo = _photographs()[int(u[0] * 2)]
    cut = int(photo.width * _SPLIT)
    left, right = (0, cut) if part == "train" else (cut, photo.width)
    largest = min(right - left, photo.height)
    side = int(64 + u[1] * (largest - 64))
    x = left + int(u[2] * (right - left - side))
    y = int(u[3] * (photo.height - side))
    crop = photo.crop((x, y, x + side, y + side))
    return np.asarray(crop.resize((TILE, TILE), Image.Resampling.BICUBIC))


def _texture_tile(number: int) -> np.ndarray:
    """Noise with amplitude spectrum 1/f^a, a in [0.7, 1.7]; the channels share most of their structure."""
    rng = np.random.Generator(np.random.Philox(key=[202, number]))
    slope = rng.uniform(0.7, 1.7)
    fy, fx = np.fft.fftfreq(TILE)[:, None], np.fft.fftfreq(TILE)[None, :]
    radius = np.hypot(fx * rng.uniform(0.5, 2.0), fy)
    radius[0, 0] = np.inf
    noise = rng.standard_normal((4, TILE, TILE))
    fields = np.fft.ifft2(np.fft.fft2(noise) * radius**-slope).real
    fields /= fields.std(axis=(1, 2), keepdims=True)
    mixed = 0.8 * fields[:1] + 0.6 * fields[1:]
    base, contrast = rng.uniform(60, 195, size=3), rng.uniform(15, 55)
    image = base[:, None, None] + contrast * mixed
    return np.clip(np.rint(image), 0, 255).astype(np.uint8).transpose(1, 2, 0)
