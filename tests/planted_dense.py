"""Pictures whose objects are squares of one colour a class, with mask, boxes and depth; for small grids."""

import numpy as np
import torch

from vitscope.data.images import Images
from vitscope.dense.examples import Annotated, Prepared
from vitscope.dense_parts import Pair, Part

CLASSES = ("background", "red", "green")
COLOURS = torch.tensor([[3.0, -3.0, 0.0], [-3.0, 3.0, 0.0]])


def part(count: int, *, size: int = 32, seed: int = 0, split: str = "train", noise: float = 0.3) -> Part:
    """Objects of a quarter of the picture, in one of its four corners, on noise; near where they are."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    corner = torch.randint(2, (count, 2), generator=draw) * (size // 2)
    inputs = noise * torch.randn(count, 3, size, size, generator=draw)
    mask, depth = torch.zeros(count, size, size, dtype=torch.int64), torch.full((count, size, size), 3.0)
    for n, (y, x) in enumerate(corner.tolist()):
        rows, columns = slice(y, y + size // 2), slice(x, x + size // 2)
        inputs[n, :, rows, columns] += COLOURS[labels[n]][:, None, None]
        mask[n, rows, columns] = 1 + labels[n]
        depth[n, rows, columns] = 1.0
    low = corner.flip(1).float() / size
    images = Images(
        name="planted", split=split, labels=labels.numpy(), ids=np.arange(count).astype(str),
        classes=CLASSES[1:], digest=f"{split} {seed} {count}", source={},
        read=lambda indices: torch.zeros(len(indices), 3, size, size, dtype=torch.uint8),
    )  # fmt: skip
    data = Annotated("scenes", images, ("segmentation", "depth", "boxes"), CLASSES, np.arange(count))
    return Part(data, Prepared(inputs, mask, depth, torch.cat([low, low + 0.5], 1)[:, None]))


def pair(train: int = 40, test: int = 24, **options) -> Pair:
    """A training and a test part."""
    return Pair(part(train, seed=1, **options), part(test, seed=2, split="test", **options))
