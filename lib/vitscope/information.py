"""The Information Scrambling Index of a backbone on pictures, in both of its forms.

`metrics.scrambling` has the formulas. Here the model runs: its patch tokens are taken a few states at a time,
so that memory stays bounded, or its attention is read block by block while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitscope import attention_maps
from vitscope.attention import Normalization
from vitscope.backbones import Backbone
from vitscope.capture import NonFiniteActivations, capture
from vitscope.metrics.scrambling import Scrambling, isi_attention, isi_reconstruction
from vitscope.reductions import Tokens
from vitscope.source import Pictures, Source

BUDGET = 1 << 30
"""Bytes of tokens that are held at once."""


def scrambling(
    backbone: Backbone,
    pictures: Pictures,
    *,
    norm: str,
    ids: Sequence[str] | np.ndarray | None = None,
    seed: int = 0,
    batch_size: int = 64,
    budget: int = BUDGET,
    **options: Any,
) -> Scrambling:
    """`isi_reconstruction` of every state of a backbone; targets are its patch embeddings without a norm.

    `norm` is applied to the tokens as in `capture`. `ids` keep pictures that belong together in one part of
    the split; left out, each picture stands for itself. `options` go to `isi_reconstruction`. The model runs
    once for every `budget` bytes of tokens.
    """
    (targets,) = tokens_by_state(backbone, pictures, norm="none", states=[-1], batch_size=batch_size)
    return isi_reconstruction(
        tokens_by_state(backbone, pictures, norm=norm, batch_size=batch_size, budget=budget),
        targets,
        states=backbone.states,
        ids=ids,
        seed=seed,
        **options,
    )


def tokens_by_state(
    backbone: Backbone,
    pictures: Pictures,
    *,
    norm: str,
    states: Sequence[int] | None = None,
    batch_size: int = 64,
    budget: int = BUDGET,
) -> Iterator[Tensor]:
    """Patch tokens [N, P, D], one state after the other, in float32 on the CPU.

    As many states as fit into `budget` bytes, at least one, come from one run of the model.
    Errors: `ValueError` for a state that the model does not have, or one named twice; else as `capture`.
    """
    wanted = list(backbone.states if states is None else states)
    _check_states(backbone, wanted)
    count = len(Source(pictures, backbone))
    together = max(1, budget // (4 * count * backbone.num_patches * backbone.width))
    for start in range(0, len(wanted), together):
        part = wanted[start : start + together]
        kept = {state: torch.empty(count, backbone.num_patches, backbone.width) for state in part}
        done = dict.fromkeys(part, 0)

        def keep(tokens: Tokens, kept=kept, done=done) -> dict[str, Tensor]:
            if tokens.state in kept:
                first = done[tokens.state]
                done[tokens.state] = last = first + len(tokens.patches)
                kept[tokens.state][first:last] = tokens.patches
            return {"mean": tokens.patches.float().mean((1, 2))}  # what capture checks for NaN

        # a fixed batch: with "auto" a batch may be run twice, and its tokens would be kept twice
        capture(backbone, pictures, norm=norm, reductions={"keep": keep}, batch_size=batch_size)
        for state in part:
            yield kept.pop(state)


def _check_states(backbone: Backbone, wanted: list[int]) -> None:
    missing = [state for state in wanted if state not in backbone.states]
    if missing:
        raise ValueError(
            f"{backbone.name} has the states -1 to {backbone.depth}, not {', '.join(map(str, missing))}"
        )
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"name each state once, got {wanted}")


@torch.inference_mode()
def attention_index(backbone: Backbone, pictures: Pictures, *, batch_size: int = 64) -> Tensor:
    """`isi_attention` of every block and picture [L, N].

    Before: the tokens that a block reads, CLS and registers included. After: the same with the output of the
    block's attention added, as the residual stream has it. Entropy: of all queries, mean over heads.
    Errors: `UnknownAttention` for attention that is not read here; `ValueError` for a model in training mode
    or attention to one token alone; `NonFiniteActivations` with the state.
    """
    blocks = backbone.model.blocks
    attention_maps.require_known(backbone.name, blocks)
    if any(module.training for module in backbone.model.modules()):
        raise ValueError(f"{backbone.name} is in training mode; call model.eval() first")
    source = Source(pictures, backbone)
    geometry = attention_maps.Geometry(
        backbone.grid, backbone.num_prefix_tokens, backbone.has_cls, backbone.device
    )
    reader, batches = _Reader(geometry), []
    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(block.register_forward_pre_hook(reader.at_input))
            # what drop path lets through is what is added to the tokens, with the block's own factor if any
            stack.enter_context(block.drop_path1.register_forward_hook(reader.at_addition))
            for handle in attention_maps.tap(block.attn, reader.at_attention):
                stack.enter_context(handle)
        for batch in source.batches(batch_size):
            reader.values = []
            backbone.model.forward_features(batch)
            batches.append(torch.stack(reader.values).cpu())
            _check_finite(backbone, batches[-1])
    return torch.cat(batches, dim=1)


def _check_finite(backbone: Backbone, values: Tensor) -> None:
    for state, bad in enumerate(~values.isfinite(), start=1):
        if bad.any():
            raise NonFiniteActivations(
                f"{backbone.name}: the attention index is not finite at state {state} "
                f"for {int(bad.sum())} of {len(bad)} images of a batch"
            )


class _Reader:
    """What attention did to the tokens of the current batch, block after block; one block's are held."""

    def __init__(self, geometry: attention_maps.Geometry) -> None:
        self.geometry = geometry
        self.values: list[Tensor] = []
        self.before = self.entropy = torch.empty(0)

    def at_input(self, block: Any, args: tuple) -> None:
        self.before = args[0]

    def at_attention(self, q: Tensor, k: Tensor, normalization: Normalization) -> None:
        found = attention_maps.statistics(q, k, self.geometry, normalization=normalization)
        self.entropy = found["entropy"]

    def at_addition(self, drop_path: Any, args: tuple, output: Tensor) -> None:
        self.values.append(isi_attention(self.before, self.before + output, self.entropy))
