"""A Vision Transformer in 80 lines: from pictures to class scores, written out.

Read it from top to bottom. The shape of what a line makes stands behind it:
N pictures of S × S pixels, P patches of p × p pixels, T = P + 1 tokens of
D numbers each, H heads, C classes. Tensors are named as in timm's
`VisionTransformer`, so that `load_state_dict` takes those of a zoo model.

Source: Dosovitskiy et al., "An Image is Worth 16x16 Words" (2010.11929), section 3.1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Inside(NamedTuple):
    """All that a forward pass makes: states −1, 0, 1 … L, and attention 1 … L."""

    logits: Tensor  # [N, C]
    states: list[Tensor]  # [N, P, D] at state −1, then [N, T, D] each
    attention: list[Tensor]  # [N, H, T, T] each; row i: where token i looks, sum 1


class PatchEmbed(nn.Module):
    """Cut pictures into patches; one linear map makes a token of each."""

    def __init__(self, size: int, patch: int, width: int) -> None:
        super().__init__()
        self.size = size
        self.proj = nn.Conv2d(3, width, kernel_size=patch, stride=patch)

    def forward(self, pictures: Tensor) -> Tensor:
        if pictures.shape[1:] != (3, self.size, self.size):
            raise ValueError(f"got {[*pictures.shape]}, need [N, 3, {self.size}, {self.size}]: resize them")
        grid = self.proj(pictures)  # [N, D, S/p, S/p]
        return grid.flatten(2).transpose(1, 2)  # [N, P, D]


class Attention(nn.Module):
    """Tokens ask (query), answer (key), and give of what they hold (value)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        (n, t, d), h = x.shape, self.heads
        qkv = self.qkv(x).reshape(n, t, 3, h, d // h)  # [N, T, 3, H, D/H]
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [N, H, T, D/H]
        scores = q @ k.transpose(-2, -1) / (d // h) ** 0.5  # [N, H, T, T]
        attention = scores.softmax(dim=-1)  # [N, H, T, T]
        mixed = attention @ v  # [N, H, T, D/H]
        return self.proj(mixed.transpose(1, 2).reshape(n, t, d)), attention  # [N, T, D]


class Mlp(nn.Module):
    """Each token by itself: to four times as many numbers, a bend, and back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(nn.functional.gelu(self.fc1(x)))  # [N, T, D]


class Block(nn.Module):
    """Tokens exchange (attention), then each works by itself (MLP); both add."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mixed, attention = self.attn(self.norm1(x))  # [N, T, D], [N, H, T, T]
        x = x + mixed  # [N, T, D]
        return x + self.mlp(self.norm2(x)), attention  # [N, T, D]


class ViT(nn.Module):
    """Patches, CLS and positions; the blocks; a classifier that reads CLS alone."""

    def __init__(self, size: int, patch: int, width: int, depth: int, heads: int, classes: int) -> None:
        super().__init__()
        if size % patch or width % heads:
            raise ValueError(f"patch {patch} must divide size {size}, and heads {heads} width {width}")
        self.patch_embed = PatchEmbed(size, patch, width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 1 + (size // patch) ** 2, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes) if classes else nn.Identity()

    def embed(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """States −1 and 0."""
        patches = self.patch_embed(pictures)  # [N, P, D]
        cls = self.cls_token.expand(len(patches), -1, -1)  # [N, 1, D]
        return patches, torch.cat([cls, patches], dim=1) + self.pos_embed  # [N, T, D]

    def answer(self, x: Tensor) -> Tensor:
        """Class scores from the tokens of the last state."""
        return self.head(self.norm(x)[:, 0])  # [N, C]

    def forward(
        self, pictures: Tensor, order: Sequence[int] | None = None, return_all: bool = False
    ) -> Tensor | Inside:
        """Class scores, or everything; `order` lists the blocks to run, from 1 to L."""
        order = range(1, len(self.blocks) + 1) if order is None else order
        if not set(order) <= set(range(1, len(self.blocks) + 1)):
            raise ValueError(f"order names blocks from 1 to {len(self.blocks)}, got {list(order)}")
        patches, x = self.embed(pictures)
        states, maps = [patches, x], list[Tensor]()
        for number in order:
            x, attention = self.blocks[number - 1](x)  # [N, T, D], [N, H, T, T]
            if return_all:
                states, maps = [*states, x], [*maps, attention]
        return Inside(self.answer(x), states, maps) if return_all else self.answer(x)
