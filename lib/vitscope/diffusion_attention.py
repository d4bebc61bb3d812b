"""Where patches look, block by block, and masks of objects without labels: from attention and from PCA.

The formulas are in `metrics.support` and `dense.masks`. A map lives only while its block runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from vitscope import attention_maps
from vitscope import diffusion_curves as curves
from vitscope.attention import Normalization
from vitscope.backbones import Backbone
from vitscope.dense import masks
from vitscope.dense_parts import Part, by_states
from vitscope.diffusion_curves import Curve
from vitscope.diffusion_measures import coverage
from vitscope.metrics import support

_AT_ONCE = 32  # pictures whose maps of one block are held


@dataclass(frozen=True)
class Attention:
    """Where patches look, by block 1…L; `clusters` are those of the N pictures.

    `support`: keys of weight above 0, in percent of all; `entropy`: normalised, in percent; `mass`: what
    foreground gives to background, relative to equal weights (None where no foreground is known). All are
    means over heads. `cls` [L, N, H, P]: what CLS gives to patches; None without CLS or with unlike heads.
    """

    support: Curve
    entropy: Curve
    mass: Curve | None
    cls: Float[Tensor, "L N H P"] | None


@dataclass(frozen=True)
class FoundMasks:
    """IoU (%) of masks without labels with the objects: from CLS attention by block, from PCA by state.

    `heads`: number from 1 of each block's head, chosen on training pictures. `everything`: the IoU of calling
    every patch object. `attention` is None without CLS, or where attention is not known.
    """

    attention: Curve | None
    heads: tuple[int, ...]
    pca: Curve
    everything: float


def attention(backbone: Backbone, part: Part, *, known: bool = True) -> Attention:
    """Support, entropy and mass of the attention of every block. `known`: the set has masks.

    Errors: `UnknownAttention` for attention whose arithmetic is not known; as `coverage`.
    """
    attention_maps.require_known(backbone.name, backbone.model.blocks)
    covered, prefix = coverage(part, backbone) if known else None, backbone.num_prefix_tokens
    kept: list[dict[str, list[Tensor]]] = [{} for _ in backbone.model.blocks]
    inputs = part.seen.inputs
    for start in range(0, len(inputs), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        shares = None if covered is None else covered[rows]
        for block, maps in zip(kept, _maps(backbone, inputs[rows], shares, prefix), strict=True):
            for name, value in maps.items():
                block.setdefault(name, []).append(value)
    found = {name: [torch.cat(block[name]) for block in kept] for name in kept[0]}
    blocks = range(1, len(kept) + 1)

    def curve(name: str, scale: float) -> Curve:
        values = torch.stack([v if v.ndim == 1 else v.mean(1) for v in found[name]])
        return curves.of_images(blocks, values, clusters=part.clusters, scale=scale)

    return Attention(
        curve("support", 100.0),
        curve("entropy", 100.0),
        curve("mass", 1.0) if "mass" in found else None,
        torch.stack(found["cls"]) if "cls" in found else None,
    )


def attentions(
    backbones: Sequence[Backbone], parts: Mapping[str, Part]
) -> tuple[dict[str, Attention], dict[str, str]]:
    """`attention` of every backbone on its part, by name; and why there is none of the others."""
    found, unknown = {}, {}
    for backbone in backbones:
        try:
            found[backbone.name] = attention(backbone, parts[backbone.name])
        except attention_maps.UnknownAttention as error:
            unknown[backbone.name] = f"Not measured, because {error}"
    return found, unknown


def _maps(backbone: Backbone, inputs: Tensor, covered: Tensor | None, prefix: int) -> list[dict[str, Tensor]]:
    """What is taken of the map of every block for a few pictures."""
    found: list[dict[str, Tensor]] = []

    def receive(q: Tensor, k: Tensor, normalization: Normalization) -> None:
        maps = normalization(q.float() @ k.float().transpose(-2, -1)).cpu()
        taken = {
            "support": support.attention_support(maps, prefix=prefix) / maps.shape[-1],
            "entropy": support.normalised_entropy(maps, prefix=prefix),
        }
        if covered is not None:
            taken["mass"] = support.mass_to_background(maps, covered, prefix=prefix).ratio
        if backbone.has_cls:
            taken["cls"] = maps[:, :, 0, prefix:].clone()
        found.append(taken)

    with ExitStack() as stack, torch.inference_mode():
        for block in backbone.model.blocks:
            for handle in attention_maps.tap(block.attn, receive):
                stack.callback(handle.remove)
        backbone.model.forward_features(inputs.to(backbone.device))
    return found


def found_masks(
    backbone: Backbone, train: Part, test: Part, looked: tuple[Attention, Attention] | None, *, norm: str
) -> FoundMasks:
    """Fit of masks that no label has made. `looked`: attention on train and test pictures, if it is known.

    DINO's masks hold 60 % of a head's CLS attention; of every block the head is taken that fits best on the
    training pictures. PCA masks are cut by Otsu's rule, the object being the side with less of the rim.
    """
    target = [coverage(part, backbone) for part in (train, test)]
    by_block, heads = [], []
    rows_of_cls = [one.cls for one in looked or () if one.cls is not None]
    for a, b in zip(*(rows_of_cls or ((), ())), strict=True):
        fits = [
            masks.mask_iou(masks.attention_masks(rows).transpose(0, 1), goal).iou.T
            for rows, goal in zip((a, b), target, strict=True)
        ]
        best = masks.best_head(fits[0])
        heads.append(best + 1)
        by_block.append(fits[1][:, best])
    by_state = [
        masks.mask_iou(masks.pca_masks(tokens.patches, backbone.grid).masks, target[1]).iou
        for tokens in by_states(backbone, [test], norm, backbone.states, single=True)
    ]
    every = masks.mask_iou(torch.ones_like(target[1], dtype=torch.bool), target[1])
    curve = partial(curves.of_images, clusters=test.clusters, scale=100.0)
    return FoundMasks(
        curve(range(1, len(heads) + 1), torch.stack(by_block)) if heads else None,
        tuple(heads),
        curve(backbone.states, torch.cat(by_state)),
        100 * float(every.mean),
    )
