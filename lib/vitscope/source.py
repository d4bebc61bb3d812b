"""What a model is fed: batches of an image set or of a tensor, transformed, on the model's device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from vitscope.backbones import Backbone
from vitscope.data.images import Images

Pictures = Images | Tensor | tuple[Tensor, np.ndarray]
"""An image set, or a float tensor [N, 3, H, W] that is already transformed, alone or with labels [N]."""


class Source:
    """Transformed batches of an `Images` set or of a tensor."""

    def __init__(self, images: Pictures, backbone: Backbone) -> None:
        self.backbone = backbone
        tensor, labels = images if isinstance(images, tuple) else (images, None)
        self.images = tensor
        self.labels = images.labels if isinstance(images, Images) else labels
        self.ids = images.ids if isinstance(images, Images) else None
        t = backbone.transform
        if isinstance(tensor, Tensor) and (
            not tensor.is_floating_point() or tensor.shape[1:] != (3, t.height, t.width)
        ):
            raise ValueError(
                f"expected transformed pictures float [N, 3, {t.height}, {t.width}] for {backbone.name}, "
                f"got {tensor.dtype} {list(tensor.shape)}; use backbone.transform first"
            )
        if labels is not None and len(labels) != len(tensor):
            raise ValueError(f"{len(labels)} labels for {len(tensor)} pictures")
        if not len(tensor):
            raise ValueError("there are no pictures to capture")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def on_device(self) -> bool:
        """Whether the pictures are a tensor on the model's device already."""
        return isinstance(self.images, Tensor) and self.images.device == self.backbone.device

    def transformed(self, start: int, size: int) -> Tensor:
        """A batch in the model's number type, wherever its pictures are."""
        if isinstance(self.images, Images):
            batch = self.backbone.transform(self.images.pixels(slice(start, start + size)))
        else:
            batch = self.images[start : start + size]
        return batch.to(next(self.backbone.model.parameters()).dtype)

    def batch(self, start: int, size: int) -> Tensor:
        return self.transformed(start, size).to(self.backbone.device)

    def batches(self, size: int) -> Iterator[Tensor]:
        """All pictures in order."""
        for start in range(0, len(self), size):
            yield self.batch(start, size)
