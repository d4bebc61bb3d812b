"""Attention with another normalization: entmax-1.5, or softmax at a temperature, in any timm ViT we know.

A swapped module keeps its parameters, hooks and names: only its class changes, to one whose forward writes
the scores down and hands them to the normalization of one's choice. No parameter is added, and every query
can still reach every key.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from timm.layers import maybe_add_mask, resolve_self_attn_mask
from timm.layers.attention import Attention, AttentionRope
from timm.models.eva import EvaAttention
from torch import Tensor, nn

from vitscope.entmax import entmax15
from vitscope.errors import unknown
from vitscope.projections import original_class, project, queries_and_keys, require_known, values

__all__ = ["KINDS", "Normalization", "Swap", "entmax15", "normalization_of", "swap_attention"]


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last axis."""
    return x.softmax(-1)


KINDS: dict[str, Callable[[Tensor], Tensor]] = {"softmax": softmax, "entmax15": entmax15}


@dataclass(frozen=True)
class Normalization:
    """How scores become attention: `kind` of scores / `temperature`. Rows of −inf give 0 under entmax15.

    >>> import torch
    >>> Normalization("entmax15")(torch.tensor([2.0, 0.0, -2.0]))
    tensor([1., 0., 0.])
    >>> Normalization("softmax", temperature=0.5).name
    'softmax at temperature 0.5'
    """

    kind: str = "softmax"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("attention", self.kind, KINDS)
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature must be a positive number, got {self.temperature}")

    def __call__(self, scores: Tensor) -> Tensor:
        """Attention [..., T] from scores [..., T]."""
        return KINDS[self.kind](scores if self.temperature == 1 else scores / self.temperature)

    @property
    def name(self) -> str:
        """The kind, with the temperature where it is not 1."""
        return self.kind if self.temperature == 1 else f"{self.kind} at temperature {self.temperature:g}"


SOFTMAX = Normalization()


def normalization_of(module: Any) -> Normalization:
    """The normalization of one attention module: softmax unless it was swapped."""
    return getattr(module, "normalization", SOFTMAX)


class _Swapped:
    """The forward of a swapped attention module; `normalization` and `swapped_from` are set on the module."""

    def forward(
        self: Any,
        x: Tensor,
        rope: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        gate = self.gate(x).sigmoid() if self.gate is not None else None
        projected = None if self.qkv is None else project(self, x)
        v = values(self, x, projected)
        q, k = (z.to(v.dtype) for z in queries_and_keys(self, x, rope, projected))
        scores = q @ k.transpose(-2, -1)
        scores = maybe_add_mask(scores, resolve_self_attn_mask(x.shape[1], scores, attn_mask, is_causal))
        weights = self.attn_drop(self.normalization(scores).to(v.dtype))
        out = (weights @ v).transpose(1, 2).flatten(2)
        out = self.norm(out)
        if gate is not None:
            out = out * gate
        return self.proj_drop(self.proj(out))


class _SwappedAttention(_Swapped, Attention):
    # the arguments of timm's Attention, which takes no rotation
    def forward(  # type: ignore[override]
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        return _Swapped.forward(self, x, None, attn_mask, is_causal)


class _SwappedAttentionRope(_Swapped, AttentionRope): ...


class _SwappedEvaAttention(_Swapped, EvaAttention): ...


_SWAPPED: dict[type, type] = {
    Attention: _SwappedAttention,
    AttentionRope: _SwappedAttentionRope,
    EvaAttention: _SwappedEvaAttention,
}


class Swap:
    """What `swap_attention` changed. `restore()` undoes it; as a context manager it is undone at the end."""

    def __init__(self, modules: list[Any], normalization: Normalization) -> None:
        self.normalization = normalization
        self._before = [(m, type(m), vars(m).get("normalization")) for m in modules]
        for module in modules:
            original = original_class(module)
            module.swapped_from, module.normalization = original, normalization
            module.__class__ = _SWAPPED[original]

    @property
    def count(self) -> int:
        """Number of attention modules that were swapped."""
        return len(self._before)

    def restore(self) -> None:
        """Give every module the class and normalization it had before; a second call does nothing.

        Errors: `RuntimeError`, with nothing changed, while a later swap of one of the modules is in place.
        """
        if any(normalization_of(module) is not self.normalization for module, *_ in self._before):
            raise RuntimeError(
                f"the attention was swapped again after this swap to {self.normalization.name}; "
                "restore the later swap first"
            )
        for module, kind, normalization in self._before:
            module.__class__ = kind
            del module.normalization, module.swapped_from
            if normalization is not None:
                module.normalization, module.swapped_from = normalization, original_class_of(kind)
        self._before = []

    def __enter__(self) -> "Swap":
        return self

    def __exit__(self, *exc: object) -> None:
        self.restore()


def original_class_of(kind: type) -> type:
    """The timm class a swapped class stands for."""
    return next(original for original, swapped in _SWAPPED.items() if swapped is kind)


def swap_attention(
    model: Any,
    kind: str = "entmax15",
    *,
    temperature: float = 1.0,
    blocks: Iterable[int] | None = None,
) -> Swap:
    """Replace the softmax of a timm ViT's attention by `kind`, in place; the result can undo it.

    A_ij = normalization((q_i·k_j/√d + mask) / temperature). Works with fused attention, masks, q/k norms,
    rotations and gates, for training and for evaluation alike. `kind`: "entmax15" or "softmax" (the same
    explicit arithmetic, so that with a temperature it is a control of equal cost). `blocks`: numbers 1…L of
    the blocks to change, all by default. Weights, names and hooks stay as they are; nothing is added.

    Errors: `UnknownName` for another kind; `UnknownAttention` naming the block and class that is not known;
    `ValueError` for a block or temperature that cannot be. Nothing is changed when one is raised.
    Source: paper C, method (entmax-1.5 in place of softmax, α = 1.5).

    >>> import timm
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32)
    >>> with swap_attention(model, "entmax15") as swap:
    ...     swap.count, swap.normalization.name
    (12, 'entmax15')
    """
    normalization = Normalization(kind, temperature)
    stack = getattr(model, "blocks", None)
    if not isinstance(stack, nn.ModuleList | nn.Sequential) or not len(stack):
        raise ValueError(f"{type(model).__name__} has no blocks; expected a timm ViT with `model.blocks`")
    numbers = list(range(1, len(stack) + 1)) if blocks is None else sorted(set(blocks))
    outside = [n for n in numbers if not 1 <= n <= len(stack)]
    if outside or not numbers:
        raise ValueError(f"blocks must be numbers from 1 to {len(stack)}, got {outside or 'none'}")
    for n in numbers:
        require_known(type(model).__name__, [stack[n - 1]], first=n)
    return Swap([stack[n - 1].attn for n in numbers], normalization)
