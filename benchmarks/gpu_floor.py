"""The least time a piece of work can take on this machine: arithmetic and memory traffic, written out.

floor = max(operations / peak operations a second, bytes / peak bytes a second), with peaks as measured here,
by a large matrix product in each number type and a large copy, so that no data sheet is believed.

A multiply–add is two operations; only matrix products count. Bytes are those that must pass through memory
when every matrix product is one kernel with all that is element-wise fused into it: inputs and output once.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

SIZE = {torch.float64: 8, torch.float32: 4, torch.bfloat16: 2, torch.float16: 2}


@dataclass(frozen=True)
class Shape:
    """A plain ViT: patches of `patch` pixels, `extra` tokens (CLS, registers), MLP of `hidden` units."""

    width: int
    depth: int
    heads: int
    patches: int
    patch: int
    extra: int = 1
    mlp: float = 4.0

    @property
    def tokens(self) -> int:
        return self.patches + self.extra

    @property
    def hidden(self) -> int:
        return round(self.mlp * self.width)


def of_model(model) -> Shape:
    """The shape of a timm ViT."""
    block = model.blocks[0]
    return Shape(
        width=model.embed_dim, depth=len(model.blocks), heads=block.attn.num_heads,
        patches=model.patch_embed.num_patches, patch=model.patch_embed.patch_size[0],
        extra=model.num_prefix_tokens, mlp=block.mlp.fc1.out_features / model.embed_dim,
    )  # fmt: skip


def forward_operations(s: Shape) -> float:
    """One picture: patch embedding, then in every block q, k, v; scores and values; projection; MLP.

    2·P·3p²·D + L·(2·T·D·3D + 2·2·T²·D + 2·T·D·D + 2·2·T·D·M)
    """
    t, d = s.tokens, s.width
    block = 2 * t * d * 3 * d + 4 * t * t * d + 2 * t * d * d + 4 * t * d * s.hidden
    return 2 * s.patches * 3 * s.patch**2 * d + s.depth * block


def parameters(s: Shape) -> float:
    """Weights of all matrix products: patch embedding, and 4·D² + 2·D·M a block."""
    return 3 * s.patch**2 * s.width + s.depth * (4 * s.width**2 + 2 * s.width * s.hidden)


def forward_bytes(s: Shape, images: int, size: int) -> float:
    """Pictures and weights once, and in every block, written and read:

    the stream by attention and by MLP (4·D), q, k, v (6·D), the attention's output (2·D), hidden units (2·M).
    """
    block = s.tokens * (4 * s.width + 6 * s.width + 2 * s.width + 2 * s.hidden)
    pictures = 3 * s.patches * s.patch**2
    return size * (parameters(s) + images * (pictures + s.depth * block))


def map_operations(s: Shape) -> float:
    """Attention statistics of one picture, in fp32: q·k, map·k, and distance and mass a head."""
    return s.depth * (4 * s.tokens**2 * s.width + 4 * s.tokens**2 * s.heads)


@dataclass
class Peaks:
    """Measured peaks: operations a second by number type, bytes a second."""

    operations: dict[torch.dtype, float] = field(default_factory=dict)
    bandwidth: float = 0.0

    def floor(self, work: dict[torch.dtype, float], moved: float) -> float:
        """Seconds: operations of each type at its peak, one after the other, or the traffic, if longer."""
        return max(sum(n / self.operations[t] for t, n in work.items()), moved / self.bandwidth)


def measure(device: str, side: int, copied: int, rounds: int = 5) -> Peaks:
    """Peaks from products of square matrices of `side` and a copy of `copied` bytes."""
    found = Peaks()
    for dtype in SIZE:
        n = side if dtype != torch.float64 else side // 2
        a = torch.randn(n, n, device=device).to(dtype)
        found.operations[dtype] = 2 * n**3 / _best(lambda a=a: a @ a, device, rounds)
    source = torch.ones(copied // 4, device=device)
    target = torch.empty_like(source)
    found.bandwidth = 2 * copied / _best(lambda: target.copy_(source), device, rounds)
    return found


def _best(run: Callable[[], object], device: str, rounds: int) -> float:
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    run()
    seconds = []
    for _ in range(rounds):
        wait()
        start = time.perf_counter()
        run()
        wait()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
