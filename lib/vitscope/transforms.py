"""A backbone's own preprocessing, from its own config, for pictures of any size."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from PIL import Image

Pixels = torch.Tensor | Sequence[torch.Tensor]


@dataclass(frozen=True)
class Transform:
    """Resize, centre crop and normalise as the model's config says.

    Pictures that already have the model's size are only normalised. Others go through timm's evaluation
    transform: the shorter side becomes `size / crop_pct`, then a centre crop.
    """

    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"
    crop_pct: float = 1.0
    crop_mode: str = "center"

    def describe(self) -> dict:
        return asdict(self)

    def __call__(self, pixels: Pixels) -> torch.Tensor:
        """uint8 [N, 3, h, w], or a list of uint8 [3, h, w], to float [N, 3, height, width]."""
        if not isinstance(pixels, torch.Tensor):
            sizes = {tuple(p.shape) for p in pixels}
            if len(sizes) != 1:
                return torch.cat([self(p.unsqueeze(0)) for p in pixels])
            pixels = torch.stack(list(pixels))
        if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[1] != 3:
            raise ValueError(
                f"expected uint8 pictures [N, 3, h, w], got {pixels.dtype} {list(pixels.shape)}; "
                "pass tensors that are already transformed directly to capture"
            )
        if pixels.shape[2:] != (self.height, self.width):
            resize = self._resize()
            pixels = torch.stack([resize(_pil(p)) for p in pixels])
        # one true division and one subtraction: x/255 in two roundings would differ between batch and tail
        scaled = pixels.to(torch.float32).div(255)
        mean = torch.tensor(self.mean).view(1, 3, 1, 1)
        std = torch.tensor(self.std).view(1, 3, 1, 1)
        return scaled.sub(mean).div(std)

    def _resize(self):
        from timm.data import create_transform
        from torchvision.transforms import Compose

        steps = create_transform(
            (3, self.height, self.width),
            interpolation=self.interpolation,
            crop_pct=self.crop_pct,
            crop_mode=self.crop_mode,
            mean=self.mean,
        ).transforms
        kept = ("Resize", "ResizeKeepRatio", "CenterCrop", "CenterCropOrPad")
        geometric = Compose([s for s in steps if type(s).__name__ in kept])
        return lambda picture: torch.from_numpy(np.asarray(geometric(picture)).copy()).permute(2, 0, 1)


def _pil(picture: torch.Tensor) -> Image.Image:
    return Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy())
