"""The corruption families of ImageNet-C for small pictures: twelve kinds, five severities, batched.

A corrupted picture is a function of the picture, its number, the corruption and `seed` alone, as a render is:
equal in any batch, order and thread count. The draw does not depend on the severity, so the severities of one
picture differ in strength only and can be compared in pairs.

Source of the families: Hendrycks and Dietterich, "Benchmarking neural network robustness to common
corruptions and perturbations" (ICLR 2019). **The strengths are ours**, for pictures of 28 to 96 px: lengths
are fractions of the shorter side, noise is weaker than in ImageNet-C (224 px), where a resize averages it
away. Accuracies on these sets compare with each other, not with published ones.

Why not a library: `imagecorruptions` (released last in 2020) and its forks take one picture of at least 32 px
at a time, draw from NumPy's global state and bring OpenCV and scikit-image along; torchvision's transforms
have no severities and draw from torch's global state.
"""

import io
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from PIL import Image
from scipy.special import ndtri, pdtr
from torch import Tensor
from torch.nn import functional as F

from vitscope.data.seeding import uniforms
from vitscope.errors import unknown

SEVERITIES = (1, 2, 3, 4, 5)
CORRUPTION_VERSION = 1  # part of every digest: raise it when a change below moves a pixel
_CHUNK = 32  # pictures at a time: bounds the memory of the draws and keeps them in the cache
_STEPS = 2**12  # resolution of the quantile tables
_ZOOMS = 9
_ELASTIC_NODES = 5  # 2 · displacement < node distance, so no part of a picture folds over another
_FOG_OCTAVES = (2, 4, 8, 16)

Draw = Callable[[int], np.ndarray]  # how many numbers a picture -> uniform numbers [N, how many]


@dataclass(frozen=True)
class Corruption:
    """`apply(x, strength, draw)` takes and gives grey levels, float32 [N, 3, h, w].

    `strengths` are those of severity 1 to 5; towards `neutral` the picture stays as it is.
    """

    family: str
    apply: Callable[[Tensor, float, Draw], Tensor]
    strengths: tuple[float, float, float, float, float]
    neutral: float


def corrupt(pixels: Tensor, name: str, severity: int, *, ids: np.ndarray, seed: int = 0) -> Tensor:
    """Corrupted pictures, uint8 [N, 3, h, w], rounded and clipped to 0…255.

    `pixels` uint8 [N, 3, h, w]; `name` one of `CORRUPTIONS`; `severity` 1 to 5; `ids` integers [N] that
    number the pictures; `seed` another draw of all that is random.

    Errors: `UnknownName`; `ValueError` for a severity outside 1…5, for other types and shapes of `pixels`,
    for one id too few or many, and for a seed outside 0…2³¹−1.

    >>> grey = torch.full((1, 3, 4, 4), 100, dtype=torch.uint8)
    >>> corrupt(grey, "brightness", 1, ids=np.array([0]))[0, 0, 0].tolist()
    [115, 115, 115, 115]
    """
    chosen = find(name)
    check_severity(severity)
    if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[1] != 3:
        raise ValueError(f"expected uint8 pictures [N, 3, h, w], got {pixels.dtype} {list(pixels.shape)}")
    ids = np.asarray(ids)
    if ids.shape != (len(pixels),):
        raise ValueError(f"one id per picture is needed, got {list(ids.shape)} for {len(pixels)} pictures")
    strength = chosen.strengths[severity - 1]
    out = torch.empty_like(pixels)
    for start in range(0, len(pixels), _CHUNK):
        part = slice(start, start + _CHUNK)
        draw = partial(uniforms, stream(name, seed), ids[part])
        changed = chosen.apply(pixels[part].to(torch.float32), strength, draw)
        out[part] = changed.round().clamp(0, 255).to(torch.uint8)
    return out


def stream(what: str, seed: int) -> int:
    """The seed of `uniforms` for one use of `seed`, so that two corruptions share no draw."""
    if not 0 <= seed < 2**31:
        raise ValueError(f"seed must lie in 0…2³¹−1, got {seed}")
    return seed * 2**32 + zlib.crc32(what.encode())


def find(name: str) -> Corruption:
    """The corruption of that name; `UnknownName` with near matches otherwise."""
    if name not in CORRUPTIONS:
        raise unknown("corruption", name, CORRUPTIONS)
    return CORRUPTIONS[name]


def check_severity(severity: int) -> None:
    """Raise `ValueError` unless `severity` is one of the integers 1 to 5."""
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise ValueError(
            f"severity must be 1, 2, 3, 4 or 5, got {severity!r}; for clean pictures use the set itself"
        )


# --- noise ------------------------------------------------------------------------------------------------


def gaussian_noise(x: Tensor, strength: float, draw: Draw) -> Tensor:
    """x + 255·σ·n with n standard normal for every value; σ = 0.03, 0.06, 0.10, 0.15, 0.22."""
    # quantiles from a table: a vectorized logarithm may differ in the last bit between a batch and its tail
    normal = torch.from_numpy(_normal_quantiles()[_step(_per_value(x, draw))])
    return x + normal * (255 * strength)


def shot_noise(x: Tensor, strength: float, draw: Draw) -> Tensor:
    """255·K/c with K ~ Poisson(c·x/255) for every value; c = 250, 100, 45, 20, 9 photons at white."""
    counts = _photon_quantiles(strength)[x.to(torch.int64).numpy(), _step(_per_value(x, draw))]
    return torch.from_numpy(counts) * (255 / strength)


def impulse_noise(x: Tensor, strength: float, draw: Draw) -> Tensor:
    """A share p of the values becomes 0 or 255, half of them each; p = 0.01, 0.02, 0.04, 0.07, 0.12."""
    u = torch.from_numpy(_per_value(x, draw))
    salted = x.masked_fill(u < strength / 2, 0.0)
    return salted.masked_fill(u >= 1 - strength / 2, 255.0)


# --- blur -------------------------------------------------------------------------------------------------


def defocus_blur(x: Tensor, strength: float, draw: Draw) -> Tensor:
    """Mean over a disc, weights clip(r + ½ − distance, 0, 1); r = 0.02, 0.028, 0.038, 0.05, 0.065 sides."""
    height, width = x.shape[2:]
    radius = strength * min(height, width)
    reach = int(radius + 0.5)
    offsets = [(dy, dx) for dy in range(-reach, reach + 1) for dx in range(-reach, reach + 1)]
    weights = [min(1.0, max(0.0, radius + 0.5 - math.hypot(*o))) for o in offsets]
    padded = F.pad(x, [reach] * 4, mode="replicate")
    total = torch.zeros_like(x)
    for (dy, dx), weight in zip(offsets, weights, strict=True):
        if weight > 0:
            # shifted sums and no convolution, whose order of summation depends on the batch
            moved = padded[..., reach + dy : reach + dy + height, reach + dx : reach + dx + width]
            total = total + moved * (weight / math.fsum(weights))
    return total


def motion_blur(x: Tensor, strength: float, draw: Draw) -> Tensor:
    """Mean along a line of length s at an angle drawn by picture; s = 0.05, 0.08, 0.11, 0.16, 0.22 sides."""
    length = strength * min(x.shape[2:])
    angles = [math.pi * u for u in draw(1)[:, 0]]
    cos, sin = _column([math.cos(a) for a in angles]), _column([math.sin(a) for a in angles])
    steps = np.linspace(-0.5, 0.5, 2 * math.ceil(length / 2) + 1) * length
    total = torch.zeros_like(x)
    for step in steps.tolist():
        total = total + _displaced(x, cos * step, sin * step)
    return total / len(steps)


def zoom_blur(x: Tensor, strength: float, draw: Draw) -> Tensor:
    """Mean of the picture enlarged by 1 to 1 + z, nine steps; z = 0.08, 0.16, 0.26, 0.38, 0.54."""
    height, width = x.shape[2:]
    from_centre_x = (torch.arange(width) - (width - 1) / 2).view(1, 1, -1)
    from_centre_y = (torch.arange(height) - (height - 1) / 2).view(1, -1, 1)
    total = torch.zeros_like(x)
    for zoom in np.linspace(1, 1 + strength, _ZOOMS).tolist():
        total = total + _displaced(x, from_centre_x * (1 / zoom - 1), from_centre_y * (1 / zoom - 1))
    return total / _ZOOMS


# --- weather ----------------------------------------------------------------------------------------------


def fog(x: Tensor, strength: float, draw: Draw) -> Tensor:
    """(x + 255·a·f)·m/(m + 255·a), m the largest value of the picture; a = 0.15, 0.3, 0.5, 0.75, 1.1.

    f is smooth noise in [0, 1]: grids of 3, 5, 9 and 17 uniform numbers a side, interpolated, added with
    weights 1, ½, ¼, ⅛ and stretched to the whole range.
    """
    u, used = draw(sum((g + 1) ** 2 for g in _FOG_OCTAVES)), 0
    field = torch.zeros(len(x), 1, *x.shape[2:])
    for g in _FOG_OCTAVES:
        nodes = u[:, used : used + (g + 1) ** 2].reshape(-1, 1, g + 1, g + 1)
        field, used = field + _interpolated(nodes, x) * (_FOG_OCTAVES[0] / g), used + (g + 1) ** 2
    low, high = field.amin((2, 3), keepdim=True), field.amax((2, 3), keepdim=True)
    haze = (field - low) / (high - low).clamp(min=1e-6) * (255 * strength)
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + haze) * brightest / (brightest + max(255 * strength, 1e-6))


def brightness(x: Tensor, strength: float, draw: Draw) -> Tensor:
    """Raise V of HSV: x·v′/v with v′ = min(v + 255·b, 255); b = 0.06, 0.13, 0.21, 0.30, 0.40.

    v is the largest channel of the pixel. A black pixel becomes the grey v′.
    """
    value = x.amax(1, keepdim=True)
    raised = (value + 255 * strength).clamp(max=255)
    return torch.where(value > 0, x * (raised / value.clamp(min=1)), raised)


# --- digital ----------------------------------------------------------------------------------------------


def contrast(x: Tensor, strength: float, draw: Draw) -> Tensor:
    """μ + c·(x − μ), μ the mean of each channel of the picture; c = 0.80, 0.66, 0.53, 0.42, 0.32."""
    # whole numbers below 2⁵³ add up exactly, in any order
    mean = x.to(torch.float64).sum((2, 3), keepdim=True) / x[0, 0].numel()
    return ((x - mean) * strength + mean).to(torch.float32)


def elastic_transform(x: Tensor, strength: float, draw: Draw) -> Tensor:
    """Read at displaced positions, up to d sides along each axis; d = 0.02, 0.04, 0.06, 0.085, 0.115.

    The displacements are uniform numbers in [−d, d] at 5 × 5 nodes, interpolated between them.
    """
    nodes = 2 * draw(2 * _ELASTIC_NODES**2).reshape(-1, 2, _ELASTIC_NODES, _ELASTIC_NODES) - 1
    moved = _interpolated(nodes, x) * (strength * min(x.shape[2:]))
    return _displaced(x, moved[:, 0], moved[:, 1])


def pixelate(x: Tensor, strength: float, draw: Draw) -> Tensor:
    """The mean of each square cell of side q; q = 0.045, 0.06, 0.08, 0.11, 0.15 sides, at least a pixel."""
    cell = max(1.0, strength * min(x.shape[2:]))
    for axis in (2, 3):
        owner = ((torch.arange(x.shape[axis]) + 0.5) / cell).to(torch.int64)
        cells = int(owner[-1]) + 1
        shape = [*x.shape[:axis], cells, *x.shape[axis + 1 :]]
        size = [-1 if a == axis else 1 for a in range(4)]
        means = x.new_zeros(shape).index_add_(axis, owner, x) / owner.bincount(minlength=cells).view(size)
        x = means.index_select(axis, owner)
    return x


def jpeg_compression(x: Tensor, strength: float, draw: Draw) -> Tensor:
    """Encode and decode as JPEG, chroma at half resolution; quality 40, 25, 15, 10, 6."""
    decoded = []
    for picture in x.to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy():
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, "JPEG", quality=int(strength), subsampling="4:2:0")
        decoded.append(np.asarray(Image.open(buffer).convert("RGB")))
    return torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2).to(torch.float32)


CORRUPTIONS = {
    "gaussian_noise": Corruption("noise", gaussian_noise, (0.03, 0.06, 0.10, 0.15, 0.22), 0.0),
    "shot_noise": Corruption("noise", shot_noise, (250, 100, 45, 20, 9), math.inf),
    "impulse_noise": Corruption("noise", impulse_noise, (0.01, 0.02, 0.04, 0.07, 0.12), 0.0),
    "defocus_blur": Corruption("blur", defocus_blur, (0.02, 0.028, 0.038, 0.05, 0.065), 0.0),
    "motion_blur": Corruption("blur", motion_blur, (0.05, 0.08, 0.11, 0.16, 0.22), 0.0),
    "zoom_blur": Corruption("blur", zoom_blur, (0.08, 0.16, 0.26, 0.38, 0.54), 0.0),
    "fog": Corruption("weather", fog, (0.15, 0.3, 0.5, 0.75, 1.1), 0.0),
    "brightness": Corruption("weather", brightness, (0.06, 0.13, 0.21, 0.30, 0.40), 0.0),
    "contrast": Corruption("digital", contrast, (0.80, 0.66, 0.53, 0.42, 0.32), 1.0),
    "elastic_transform": Corruption("digital", elastic_transform, (0.02, 0.04, 0.06, 0.085, 0.115), 0.0),
    "pixelate": Corruption("digital", pixelate, (0.045, 0.06, 0.08, 0.11, 0.15), 0.0),
    "jpeg_compression": Corruption("digital", jpeg_compression, (40, 25, 15, 10, 6), 100),
}


# --- what they share --------------------------------------------------------------------------------------


def _step(u: np.ndarray) -> np.ndarray:
    return (u * _STEPS).astype(np.int64)


@lru_cache(maxsize=1)
def _normal_quantiles() -> np.ndarray:
    """Quantiles of the standard normal at the middle of `_STEPS` equal shares; the outermost are ±3.67."""
    return ndtri((np.arange(_STEPS) + 0.5) / _STEPS).astype(np.float32)


@lru_cache(maxsize=len(SEVERITIES))
def _photon_quantiles(white: float) -> np.ndarray:
    """Quantiles of Poisson(white·level/255) for every grey level, [256, `_STEPS`]."""
    most = np.arange(int(white + 10 * math.sqrt(white) + 10))
    middles = (np.arange(_STEPS) + 0.5) / _STEPS
    rows = [np.searchsorted(pdtr(most, white * level / 255), middles) for level in range(256)]
    return np.stack(rows).astype(np.float32)


def _per_value(x: Tensor, draw: Draw) -> np.ndarray:
    return draw(x[0].numel()).reshape(x.shape)


def _column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)


def _interpolated(nodes: np.ndarray, x: Tensor) -> Tensor:
    """Nodes [N, c, g, g], the outermost on the picture's edges, bilinear at its pixels: [N, c, h, w]."""
    axes = [torch.linspace(-1, 1, side) for side in x.shape[2:]]
    grid = torch.stack(torch.meshgrid(axes[1], axes[0], indexing="xy"), dim=-1)
    field = torch.from_numpy(nodes.astype(np.float32))
    return F.grid_sample(field, grid.expand(len(x), -1, -1, -1), align_corners=True)


def _displaced(x: Tensor, dx: Tensor, dy: Tensor) -> Tensor:
    """x read dx to the right and dy below, in pixels [N or 1, h or 1, w or 1]; edges are continued."""
    height, width = x.shape[2:]
    gx = ((torch.arange(width).view(1, 1, -1) + 0.5) + dx) * (2 / width) - 1
    gy = ((torch.arange(height).view(1, -1, 1) + 0.5) + dy) * (2 / height) - 1
    grid = torch.stack(torch.broadcast_tensors(gx, gy), dim=-1).expand(len(x), height, width, 2)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)
