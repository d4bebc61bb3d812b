"""The emoji pictures: identities, art styles, the held-out fifth, and their rendering as photographs.

An *identity* is one emoji (code, Unicode name, group, subgroup). Every style draws every identity once, at
64 px with an alpha channel. A fifth of the identities is held out: no pretraining ever sees them.
"""

import io
import math
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch.nn import functional as F

from vitscope.data import backgrounds, embedded
from vitscope.data.seeding import uniforms

STYLES = ("noto", "twemoji")
SPRITE = 64
RENDER_VERSION = 1  # part of every digest: raise it when a change below moves a pixel


@lru_cache(maxsize=1)
def identities() -> pd.DataFrame:
    """One row per identity: code, name, group, subgroup, held_out; row number = identity number."""
    path = embedded.verified(f"emoji/{STYLES[0]}.parquet")
    return pd.read_parquet(path, columns=["code", "name", "group", "subgroup", "held_out"])


@lru_cache(maxsize=len(STYLES))
def sprites(style: str) -> torch.Tensor:
    """The pictures of one style, uint8 RGBA [identities, 4, 64, 64], in the order of `identities()`."""
    if style not in STYLES:
        raise ValueError(f"unknown emoji style {style!r}; there are {', '.join(STYLES)}")
    table = pd.read_parquet(embedded.verified(f"emoji/{style}.parquet"), columns=["code", "image"])
    if list(table["code"]) != list(identities()["code"]):
        raise embedded.DataIntegrityError(f"style {style} does not list the identities of {STYLES[0]}")
    pictures = [np.asarray(Image.open(io.BytesIO(x["bytes"])).convert("RGBA")) for x in table["image"]]
    return torch.from_numpy(np.stack(pictures).transpose(0, 3, 1, 2).copy())


@dataclass(frozen=True)
class Recipe:
    """How an identity becomes a picture. Lengths are fractions of the canvas, angles are degrees.

    `background_kind` is "both", "photo" or "texture"; `background_part` keeps training and evaluation apart.
    """

    size: int = 64
    scale: tuple[float, float] = (0.55, 1.0)
    rotation: float = 25.0
    flip: float = 0.5
    overhang: float = 0.08
    gain: tuple[float, float] = (0.65, 1.25)
    tint: float = 0.12
    shading: float = 0.30
    background_part: str = "test"
    background_kind: str = "both"

    def describe(self) -> dict:
        return {**asdict(self), "render_version": RENDER_VERSION}


def render(
    numbers: np.ndarray,
    ids: np.ndarray,
    *,
    style: str,
    seed: int,
    recipe: Recipe = Recipe(),
    backgrounds: np.ndarray | None = None,
) -> torch.Tensor:
    """Pictures of the identities `numbers`, uint8 [N, 3, size, size].

    `backgrounds` are sample ids whose background is taken in place of the picture's own.

    Each picture depends on its identity, its sample id and `seed` alone, so it is bit-equal in any batch,
    order, worker or thread count on one machine: the parameters come from a counter-based generator and
    scalar functions, and tensor work is limited to element-wise products and sums and `grid_sample`,
    which treats each sample by itself.
    """
    numbers, ids = np.asarray(numbers), np.asarray(ids)
    if numbers.shape != ids.shape or numbers.ndim != 1:
        raise ValueError(f"one id per identity number is needed, got {numbers.shape} and {ids.shape}")
    behind = ids if backgrounds is None else np.asarray(backgrounds)
    if behind.shape != ids.shape:
        raise ValueError(f"one background per picture is needed, got {behind.shape} for {ids.shape}")
    u = uniforms(seed, ids, 18)
    canvas = background_canvas(uniforms(seed, behind, 18)[:, :7], recipe)
    foreground, alpha = place(sprites(style)[torch.from_numpy(numbers)], u[:, 7:12], recipe)
    light = lighting(u[:, 12:18], recipe)
    picture = (canvas * (1 - alpha) + foreground) * light
    return picture.mul(255).round().clamp(0, 255).to(torch.uint8)


def _column(values: list[float] | np.ndarray) -> torch.Tensor:
    return torch.tensor(np.asarray(values, dtype=np.float32)).view(-1, 1, 1)


def place(pictures: torch.Tensor, u: np.ndarray, recipe: Recipe) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale, turn, flip and position RGBA pictures on the canvas: premultiplied colour, alpha in [0, 1]."""
    low, high = recipe.scale
    scale = low + u[:, 0] * (high - low)
    reach = (1 - scale) / 2 + recipe.overhang  # the centre moves so far from the middle, at most
    cx, cy = (2 * u[:, 1] - 1) * reach, (2 * u[:, 2] - 1) * reach
    angle = np.radians(recipe.rotation * (2 * u[:, 3] - 1))
    mirror = np.where(u[:, 4] < recipe.flip, -1.0, 1.0)
    return paste(pictures, scale, cx, cy, angle, mirror, recipe.size)


def paste(pictures, scale, cx, cy, angle, mirror, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Resample RGBA pictures [N, 4, h, w] at given poses. Centres run from −½ to ½, angles are radians."""
    # scalar cos and sin: a vectorized one may differ in the last bit between a batch and its tail
    cos = np.array([math.cos(a) for a in angle])
    sin = np.array([math.sin(a) for a in angle])
    axis = (torch.arange(size, dtype=torch.float32) + 0.5) / size - 0.5
    dx = axis.view(1, 1, -1) - _column(cx)
    dy = axis.view(1, -1, 1) - _column(cy)
    gx = dx * _column(2 * mirror * cos / scale) + dy * _column(2 * mirror * sin / scale)
    gy = dy * _column(2 * cos / scale) - dx * _column(2 * sin / scale)
    rgba = pictures.to(torch.float32) / 255
    rgba = torch.cat([rgba[:, :3] * rgba[:, 3:], rgba[:, 3:]], dim=1)
    warped = F.grid_sample(rgba, torch.stack([gx, gy], dim=-1), align_corners=False)
    return warped[:, :3], warped[:, 3:]


def background_canvas(u: np.ndarray, recipe: Recipe) -> torch.Tensor:
    """Tile, position, mirror and colour gain of a background per sample, float [N, 3, size, size]."""
    bank, size = backgrounds.tiles(recipe.background_part), recipe.size
    if recipe.background_kind == "both":
        kind = (u[:, 0] * len(backgrounds.KINDS)).astype(int)
    elif recipe.background_kind in backgrounds.KINDS:
        kind = np.full(len(u), backgrounds.KINDS.index(recipe.background_kind))
    else:
        raise ValueError(f"background_kind must be both, photo or texture, got {recipe.background_kind!r}")
    tile = (u[:, 1] * backgrounds.TILES_PER_KIND).astype(int)
    room = backgrounds.TILE - size + 1
    x, y = (u[:, 2] * room).astype(int), (u[:, 3] * room).astype(int)
    crops = torch.stack(
        [bank[k, t, :, j : j + size, i : i + size] for k, t, i, j in zip(kind, tile, x, y, strict=True)]
    )
    mirrored = torch.from_numpy(u[:, 4] < 0.5).view(-1, 1, 1, 1)
    crops = torch.where(mirrored, crops.flip(-1), crops).to(torch.float32) / 255
    gain = 0.6 + 0.6 * u[:, 5:6] + 0.15 * (2 * u[:, 6:7] - 1) * np.array([[1.0, 0.0, -1.0]])
    return crops * torch.tensor(gain.astype(np.float32)).view(-1, 3, 1, 1)


def lighting(u: np.ndarray, recipe: Recipe) -> torch.Tensor:
    """Gain, colour cast and a linear shading across the picture, float [N, 3, size, size]."""
    low, high = recipe.gain
    gain = low + u[:, 0:1] * (high - low)
    colour = gain * (1 + recipe.tint * (2 * u[:, 1:4] - 1))
    angle = [2 * math.pi * v for v in u[:, 4]]
    strength = recipe.shading * u[:, 5]
    axis = (torch.arange(recipe.size, dtype=torch.float32) + 0.5) / recipe.size - 0.5
    slope_x = _column([2 * s * math.cos(a) for s, a in zip(strength, angle, strict=True)])
    slope_y = _column([2 * s * math.sin(a) for s, a in zip(strength, angle, strict=True)])
    shade = 1 + (axis.view(1, 1, -1) * slope_x + axis.view(1, -1, 1) * slope_y)
    return shade.unsqueeze(1) * torch.tensor(colour.astype(np.float32)).view(-1, 3, 1, 1)
