"""Planted problems whose answers are known, and a budget that fits a test."""

from collections.abc import Callable

import pytest
import torch

from vitscope.fusion import SelectionBudget

Make = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture
def short() -> SelectionBudget:
    """Enough updates to change something."""
    return SelectionBudget(epochs=1, batch=64, steps=6)


@pytest.fixture
def enough() -> SelectionBudget:
    """Enough updates to learn a planted problem."""
    return SelectionBudget(epochs=1, batch=64, steps=100)


@pytest.fixture
def two_bits() -> Make:
    """Four classes of two bits: the first state holds one bit, the last the other, the middle none."""

    def make(images: int = 320, *, seed: int = 0, width: int = 8, strength: float = 4.0):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(0, 4, (images,), generator=generator)
        features = torch.randn(3, images, width, generator=generator)
        features[0, :, 0] += strength * (labels // 2 * 2 - 1)
        features[2, :, 1] += strength * (labels % 2 * 2 - 1)
        return features, labels

    return make


@pytest.fixture
def exclusive_or() -> Make:
    """Two classes, whether a bit of the first state and one of the last differ: no linear probe can tell."""

    def make(images: int = 400, *, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        bits = torch.randint(0, 2, (2, images), generator=generator)
        features = torch.randn(3, images, 6, generator=generator)
        features[0, :, 0] += 4.0 * (2 * bits[0] - 1)
        features[2, :, 1] += 4.0 * (2 * bits[1] - 1)
        return features, bits[0] ^ bits[1]

    return make


@pytest.fixture
def halves() -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Two members, each sure and right on its half of the images and sure at random on the other.

    A feature of the first state tells the half. Returns features, logits, labels.
    """

    def make(images: int = 600, *, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(0, 3, (images,), generator=generator)
        half = torch.arange(images) % 2
        features = torch.randn(2, images, 4, generator=generator)
        features[0, :, 2] += 5.0 * (2 * half - 1)
        guess = torch.randint(0, 3, (2, images), generator=generator)
        named = torch.stack([torch.where(half == m, labels, guess[m]) for m in (0, 1)])
        return features, 4.0 * torch.nn.functional.one_hot(named, 3).float(), labels

    return make
