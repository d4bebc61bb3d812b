"""Small models and pictures that several test files share."""

import io
import math
import socket
from contextlib import contextmanager

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from vitscope.backbones import Backbone, describe
from vitscope.data.images import Images
from vitscope.pretrain.zoo import Architecture
from vitscope.transforms import Transform

# architecture, pixels a side, CLS or none, registers; all are built with width 32 and 2 blocks
FAMILIES = {
    "supervised": ("vit_tiny_patch16_224", 64, True, 0),
    "dinov2_registers": ("vit_small_patch14_reg4_dinov2", 42, True, 4),
    "clip": ("vit_base_patch16_clip_224", 64, True, 0),
    "siglip": ("vit_base_patch16_siglip_224", 64, False, 0),
    "dinov3_rope": ("vit_small_patch16_dinov3", 48, True, 4),
    "registers_without_cls": ("vit_medium_patch16_reg4_gap_256", 48, False, 4),
}
# classes of attention and block that the six families above do not reach
MORE_FAMILIES = {
    "eva02": ("eva02_tiny_patch14_224", 42, True, 0),
    "rope_per_block": ("vit_small_patch16_rope_mixed_224", 48, True, 0),
    "rope_register_without_cls": ("vit_base_patch16_rope_reg1_gap_256", 48, False, 1),
    "perception_encoder": ("vit_pe_core_tiny_patch16_384", 48, True, 0),
    "layer_scale": ("deit3_small_patch16_224", 48, True, 0),
}


def enliven(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Replace every parameter so that nothing is zero, small or equal by initialisation: all paths matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2 and "pos_embed" not in name and "token" not in name:
                parameter.copy_(noise * 1.5 / math.sqrt(parameter[0].numel()))
            elif name.endswith("weight") or "gamma" in name:
                parameter.copy_(1 + 0.2 * noise)
            else:
                parameter.copy_(0.5 * noise)
    return model


def tiny(
    family: str, *, size: int | tuple[int, int] | None = None, depth: int = 2, seed: int = 0
) -> Backbone:
    """A member of a timm family, 32 wide, two heads, with lively random weights."""
    name, default, *_ = {**FAMILIES, **MORE_FAMILIES}[family]
    size = default if size is None else size
    model = timm.create_model(
        name, pretrained=False, embed_dim=32, depth=depth, num_heads=2, num_classes=0, img_size=size
    )
    height, width = size if isinstance(size, tuple) else (size, size)
    half = (0.5, 0.5, 0.5)
    return describe(
        family, enliven(model, seed), Transform(height, width, half, half), {"kind": "test"}, "cpu"
    )


def tiny_zoo_model(*, seed: int = 0, **changes):
    """A zoo-style twin, 32 wide and 2 deep, and its architecture."""
    architecture = Architecture(**{"width": 32, "depth": 2, "heads": 2, "num_classes": 5, **changes})
    return enliven(architecture.build().eval(), seed), architecture


def noise(count: int, height: int, width: int | None = None, *, seed: int = 0) -> torch.Tensor:
    """Normalised pictures, float [count, 3, height, width]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, height, width or height, generator=generator)


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """A smooth coloured RGB picture (so that resampling and JPEG leave it recognisable)."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def flat(level: int, size: tuple[int, int] = (6, 6)) -> Image.Image:
    """A picture one can recognise by its grey level."""
    return Image.new("RGB", size, (level, level, level))


def encoded(picture: Image.Image, kind: str, **options) -> bytes:
    """The bytes of a picture file."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def levels_of(images: Images) -> list[int]:
    """The grey levels of flat pictures, in order."""
    return [int(p[0, 0, 0]) for p in images.pixels()]


def toy_images(count: int) -> Images:
    """Random pictures of 64 px in two classes."""
    pixels = torch.randint(0, 256, (count, 3, 64, 64), generator=torch.Generator().manual_seed(1)).to(
        torch.uint8
    )
    return Images(
        name="toy", split="test", labels=np.arange(count) % 2, ids=np.array([f"i{k}" for k in range(count)]),
        classes=("a", "b"), digest="d", source={}, read=lambda indices: pixels[torch.from_numpy(indices)],
    )  # fmt: skip


@contextmanager
def counted_connections():
    """Every attempt to look up or reach a host: refused, and appended to the list that is yielded."""
    attempts: list[object] = []

    def refuse(*args, **kwargs):
        attempts.append(args)
        raise OSError("the tests allow no connection")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, refuse)
        for name in ("create_connection", "getaddrinfo", "gethostbyname"):
            patch.setattr(socket, name, refuse)
        yield attempts
