"""Global and local views of pictures: seeded crops and colour changes, many pictures at once.

Everything about view v of sample i is a function of (seed, i, v): numbers come from `seeding.uniforms`, and
tensor work is element-wise or treats each picture by itself, so batches, ranks and interruptions change
nothing.
"""

import math
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from vitscope.data import emoji
from vitscope.data.seeding import uniforms
from vitscope.pretrain.dino_recipe import DinoRecipe
from vitscope.pretrain.stream import IdentityStream

CHANNELS = 20  # random numbers of one view
_SALT = 1 << 40  # keeps the views' numbers apart from those of the renders
_LUMA = np.array([0.299, 0.587, 0.114])
_YIQ = np.array([_LUMA, [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
_BACK = np.linalg.inv(_YIQ)
_GREY = np.outer(_BACK[:, 0], _YIQ[0])  # what saturation 0 leaves
_COLOUR = np.outer(_BACK[:, 1], _YIQ[1]) + np.outer(_BACK[:, 2], _YIQ[2])
_TURNED = np.outer(_BACK[:, 2], _YIQ[1]) - np.outer(_BACK[:, 1], _YIQ[2])


class Views(Protocol):
    """Where crops come from, as a function of the position in the stream."""

    def batch(self, start: int, count: int) -> list[Tensor]:
        """Two global crops first, then the local ones, each [count, 3, size, size] in [−1, 1]."""
        ...

    def describe(self) -> dict:
        """What tells these pictures from others."""
        ...


class Ahead:
    """Views that prepare, in a thread, the batch `stride` positions on while the caller works."""

    def __init__(self, views: Views, *, stride: int) -> None:
        self.views, self.stride = views, stride
        self._pool = ThreadPoolExecutor(1)
        self._next: tuple[tuple[int, int], Future] | None = None

    def batch(self, start: int, count: int) -> list[Tensor]:
        if self._next and self._next[0] == (start, count):
            crops = self._next[1].result()
        else:
            crops = self.views.batch(start, count)
        following = (start + self.stride, count)
        self._next = (following, self._pool.submit(self.views.batch, *following))
        return crops

    def describe(self) -> dict:
        return self.views.describe()


class RenderViews:
    """Views of rendered emoji: position in the stream -> list of crops, float in [−1, 1].

    `batch(start, count)` gives two global crops [N, 3, G, G] and `local_crops` local ones [N, 3, L, L]. Local
    crops are cut from either render, by chance.
    """

    def __init__(self, recipe: DinoRecipe, seed: int, device: torch.device | str = "cpu") -> None:
        self.recipe, self.seed, self.device = recipe, seed, device
        look = emoji.Recipe(size=recipe.architecture.img_size, background_part="train", scale=recipe.scale)
        self.stream = IdentityStream(style=recipe.style, seed=seed, recipe=look)

    def describe(self) -> dict:
        return {"emoji": self.recipe.style, "render": self.stream.recipe.describe()}

    def sources(self, start: int, count: int) -> UInt8[Tensor, "R N 3 S S"]:
        """The renders that views are cut from: two of each identity, or one."""
        numbers = self.stream.identities[self.stream.labels(start, count)]
        per = 2 if self.recipe.views == "renders" else 1
        ids = np.arange(start, start + count)[None] * 2 + np.arange(per)[:, None]
        flat = emoji.render(
            np.tile(numbers, per),
            ids.ravel(),
            style=self.recipe.style,
            seed=self.seed,
            recipe=self.stream.recipe,
        )
        return flat.view(per, count, *flat.shape[1:])

    def batch(self, start: int, count: int) -> list[Float[Tensor, "N 3 _ _"]]:
        recipe = self.recipe
        renders = self.sources(start, count).to(self.device).float().div_(255)
        u = view_numbers(recipe, self.seed, np.arange(start, start + count))
        per, first = len(renders), recipe.global_crops
        wide = crop(
            renders.expand(first, *renders.shape[1:]).flatten(0, 1),
            u[:first].reshape(-1, CHANNELS),
            recipe.global_scale,
            recipe.global_pixels,
            recipe.flip,
        )
        views = [*recolour(wide, u[:first], recipe, local=False)]
        if recipe.local_crops:
            chance = u[first:].reshape(-1, CHANNELS)
            which = torch.from_numpy((chance[:, 6] * per).astype(np.int64))
            row = torch.arange(count).repeat(recipe.local_crops)
            chosen = renders.flatten(0, 1)[(which * count + row).to(renders.device)]
            narrow = crop(chosen, chance, recipe.local_scale, recipe.local_size, recipe.flip)
            views += [*recolour(narrow, u[first:], recipe, local=True)]
        return views


def view_numbers(
    recipe: DinoRecipe, seed: int, positions: Int64[np.ndarray, " N"]
) -> Float64[np.ndarray, "V N C"]:
    """Uniform numbers of every view of these positions."""
    views = recipe.global_crops + recipe.local_crops
    ids = positions[None] * views + np.arange(views)[:, None]
    return uniforms(seed + _SALT, ids.ravel(), CHANNELS).reshape(views, len(positions), CHANNELS)


def boxes(
    u: Float64[np.ndarray, "N _"], scale: tuple[float, float], aspect: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Left, top, width and height of random crops, as fractions of the picture.

    The area is uniform in `scale`, the aspect in pixels log-uniform in 3/4 … 4/3, as in torchvision's
    `RandomResizedCrop`; a side that would leave the picture is cut to 1. `aspect` is the picture's own
    width/height.
    """
    area = scale[0] + u[:, 0] * (scale[1] - scale[0])
    # scalar exp: a vectorised one may differ in the last bit between a batch and its tail
    ratio = np.array([math.exp((2 * v - 1) * math.log(4 / 3)) / aspect for v in u[:, 1]])
    width, height = np.minimum(np.sqrt(area * ratio), 1), np.minimum(np.sqrt(area / ratio), 1)
    return u[:, 2] * (1 - width), u[:, 3] * (1 - height), width, height


def crop(
    pictures: Float[Tensor, "N 3 H W"],
    u: Float64[np.ndarray, "N _"],
    scale: tuple[float, float],
    size: int,
    flip: float,
) -> Float[Tensor, "N 3 S S"]:
    """Random crops, resampled bilinearly to `size` pixels and mirrored with probability `flip`."""
    if scale[0] == 1 and pictures.shape[-2:] == (size, size):
        mirrored = torch.from_numpy(u[:, 4] < flip).to(pictures.device).view(-1, 1, 1, 1)
        return torch.where(mirrored, pictures.flip(-1), pictures)
    left, top, width, height = boxes(u, scale)
    sign = np.where(u[:, 4] < flip, -1.0, 1.0)
    axis = (torch.arange(size, dtype=torch.float32, device=pictures.device) * 2 + 1) / size - 1
    x = axis.view(1, 1, -1) * _column(width * sign, pictures) + _column(2 * left + width - 1, pictures)
    y = axis.view(1, -1, 1) * _column(height, pictures) + _column(2 * top + height - 1, pictures)
    grid = torch.stack([x.expand(-1, size, -1), y.expand(-1, -1, size)], dim=-1)
    return F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)


def recolour(
    crops: Float[Tensor, "VN 3 S S"], u: Float64[np.ndarray, "V N C"], recipe: DinoRecipe, *, local: bool
) -> Float[Tensor, "V N 3 S S"]:
    """Colour jitter, grey, blur and solarise on pictures in [0, 1]; returns them in [−1, 1]."""
    views, count, _ = u.shape
    flat = u.reshape(-1, CHANNELS)
    crops = jitter(crops, flat, recipe)
    chances = np.repeat([recipe.blur[2]] * views if local else recipe.blur[:2], count)
    if chances.any():
        low, high = recipe.blur_sigma
        crops = blur(crops, np.where(flat[:, 13] < chances, low + flat[:, 14] * (high - low), 0.0))
    if recipe.solarise and not local:
        second = np.repeat([0.0, recipe.solarise], count)
        chosen = torch.from_numpy(np.flatnonzero(flat[:, 15] < second)).to(crops.device)
        part = crops[chosen]
        crops[chosen] = torch.where(part >= 0.5, 1 - part, part)
    return crops.mul_(2).sub_(1).view(views, count, *crops.shape[1:])


def jitter(
    crops: Float[Tensor, "N 3 S S"], u: Float64[np.ndarray, "N C"], recipe: DinoRecipe
) -> Float[Tensor, "N 3 S S"]:
    """Brightness b, contrast c, saturation s and hue θ, or grey (s = 0), as one affine map of the colours.

    x → c·b·(G + s·(cos θ·C + sin θ·T))·x + (1 − c)·b·ȳ, where G leaves the luma, C the colour part, T turns
    it by 90° in the IQ plane, and ȳ is the picture's mean luma; clamped to [0, 1].
    """
    strength = np.array(recipe.jitter)
    on = u[:, 7] < recipe.jitter_share
    change = (2 * u[:, 8:12] - 1) * strength * on[:, None]
    b, c, s = 1 + change[:, 0], 1 + change[:, 1], 1 + change[:, 2]
    s = np.where(u[:, 12] < recipe.grey, 0.0, s)
    angle = [2 * math.pi * v for v in change[:, 3]]
    cos = np.array([math.cos(a) for a in angle])
    sin = np.array([math.sin(a) for a in angle])
    matrix = _GREY + s[:, None, None] * (cos[:, None, None] * _COLOUR + sin[:, None, None] * _TURNED)
    m = torch.from_numpy((matrix * (b * c)[:, None, None]).astype(np.float32)).to(crops.device)
    r, g, bl = crops.unbind(1)
    # whole numbers add up exactly, in any order
    luma = (r * _LUMA[0] + g * _LUMA[1] + bl * _LUMA[2]).mul_(255).round_().to(torch.int32)
    mean = luma.flatten(1).sum(1).double() / (255 * luma[0].numel())
    offset = (torch.from_numpy((1 - c) * b).to(crops.device) * mean).float().view(-1, 1, 1)
    out = torch.empty_like(crops)
    for k in range(3):
        row = m[:, k].view(-1, 3, 1, 1)
        torch.mul(r, row[:, 0], out=out[:, k])
        out[:, k].addcmul_(g, row[:, 1]).addcmul_(bl, row[:, 2]).add_(offset)
    return out.clamp_(0, 1)


def blur(crops: Float[Tensor, "N 3 S S"], sigma: Float64[np.ndarray, " N"]) -> Float[Tensor, "N 3 S S"]:
    """Gaussian blur with a width of its own for every picture; σ = 0 leaves a picture as it is."""
    chosen = np.flatnonzero(sigma > 0)
    if not len(chosen):
        return crops
    where = torch.from_numpy(chosen).to(crops.device)
    reach = max(1, math.ceil(3 * float(sigma.max())))
    taps = np.array([[math.exp(-0.5 * (d / s) ** 2) for d in range(reach + 1)] for s in sigma[chosen]])
    weights = torch.from_numpy(
        (taps / (taps[:, :1] + 2 * taps[:, 1:].sum(1, keepdims=True))).astype(np.float32)
    )
    weights = weights.to(crops.device).view(len(chosen), reach + 1, 1, 1, 1)
    part = crops[where]
    for dim in (-1, -2):
        size = part.shape[dim]
        edge = F.pad(part, (reach, reach, 0, 0) if dim == -1 else (0, 0, reach, reach), mode="replicate")
        total = part * weights[:, 0]
        for d in range(1, reach + 1):
            both = edge.narrow(dim, reach - d, size) + edge.narrow(dim, reach + d, size)
            total.addcmul_(both, weights[:, d])
        part = total
    crops = crops.clone()
    crops[where] = part
    return crops


def _column(values: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(like.device).view(-1, 1, 1)
