"""What chapter 00 measures in the ViT of 80 lines: its answers, and its tokens and attention on the way."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitscope.backbones import Backbone, UnsupportedModel
from vitscope.controls import shuffled_patches, without_position
from vitscope.data import emoji
from vitscope.data.images import Images
from vitscope.data.seeding import uniforms
from vitscope.data.tasks import TASK_SEED
from vitscope.metrics.similarity import token_similarity
from vitscope.vit80 import ViT

BATCH = 50  # pictures whose states and attention maps are held at a time
TASK = "emoji_identity"


def shape_of(backbone: Backbone, classes: int) -> dict[str, int]:
    """The arguments of `vit80.ViT` that fit a backbone: `ViT(**shape_of(backbone, classes))`.

    Errors: `UnsupportedModel` with every reason why the 80 lines are not this model: tokens other than one
    CLS and patches, another attention, tensors that a plain ViT lacks, pictures that are not square, a head
    that does not name `classes` classes.
    """
    model, reasons = backbone.model, []
    if not backbone.has_cls:
        reasons.append("it has no CLS token")
    if backbone.num_registers:
        reasons.append(f"it has {backbone.num_registers} register tokens")
    if backbone.attention != "softmax":
        reasons.append(f"its attention is {backbone.attention}, not softmax")
    (height, width), patch = model.patch_embed.img_size, model.patch_embed.patch_size[0]
    if height != width:
        reasons.append(f"its pictures are {height} × {width} pixels, not square")
    outputs = int(getattr(model, "num_classes", 0))
    if backbone.depth < 2:
        reasons.append("it has a single block, and the chapter compares blocks")
    if outputs != classes:
        reasons.append(f"its head has {outputs} outputs for {classes} classes")
    shape = {"size": int(height), "patch": int(patch), "width": backbone.width, "depth": backbone.depth}
    shape |= {"heads": int(getattr(model.blocks[0].attn, "num_heads", 1)), "classes": outputs}
    if not reasons:
        with torch.device("meta"):
            wanted = {name: tensor.shape for name, tensor in ViT(**shape).state_dict().items()}
        found = {name: tensor.shape for name, tensor in model.state_dict().items()}
        odd = sorted({name for name, _ in wanted.items() ^ found.items()})
        reasons += [f"its tensors differ from a plain ViT's, as {odd[0]} does"] if odd else []
    if reasons:
        raise UnsupportedModel(
            f"{backbone.name} is not the plain ViT of this chapter: {'; '.join(reasons)}. Use a model of the "
            "zoo that was trained to name emoji, such as twin_s, twin_b, depth_06 or sup_softmax"
        )
    return shape


def rebuilt(backbone: Backbone, classes: int) -> ViT:
    """The ViT of 80 lines with a backbone's weights, for evaluation, on its device. Errors: `shape_of`."""
    model = ViT(**shape_of(backbone, classes)).to(backbone.device)
    model.load_state_dict(backbone.model.state_dict(), strict=True)
    return model.eval().requires_grad_(False)


def emoji_share(images: Images, grid: tuple[int, int]) -> Float[Tensor, "N P"]:
    """The share of each patch that the emoji of a render covers, 0 to 1, patches row by row.

    For sets of emoji renders as `data.load("emoji_identity", …)` gives them. Raises ValueError for others.
    """
    if images.source.get("kind") != "embedded" or images.name.partition("@")[0] != TASK:
        raise ValueError(f"{images.name} is no set of renders whose emoji can be placed again; use {TASK}")
    ids = np.array([int(name.rpartition("-")[2]) for name in images.ids])
    drawn = {k: v for k, v in images.source["render"].items() if k != "render_version"}
    u = uniforms(TASK_SEED + images.source["seed"], ids, 18)
    sprites = emoji.sprites(images.source["style"])[torch.from_numpy(images.extras["identity"])]
    alpha = emoji.place(sprites, u[:, 7:12], emoji.Recipe(**drawn))[1]
    return F.adaptive_avg_pool2d(alpha, grid).flatten(1)


def on_emoji(attention: Float[Tensor, "L N P"], share: Float[Tensor, "N P"]) -> Float[Tensor, "L N"]:
    """Percent of the attention to patches that falls on the emoji; equal weights give the emoji's area."""
    return 100 * (attention * share).sum(-1) / attention.sum(-1)


class Seen(NamedTuple):
    """What a model made of N pictures. `cosine` is of states 0 … L, `similarity` of −1, 0 … L."""

    logits: Float[Tensor, "N C"]
    similarity: Float[Tensor, "S N"]  # mean cosine of two patches of a picture
    cosine: Float[Tensor, "K N P"]  # of each patch with CLS
    attention: Float[Tensor, "L N P"]  # of CLS to each patch, the mean over heads

    @property
    def named(self) -> Int[Tensor, " N"]:
        """The class with the highest score."""
        return self.logits.argmax(1)


@torch.inference_mode()
def look(model: ViT, inputs: Float[Tensor, "N 3 s s"]) -> Seen:
    """Run a model once over transformed pictures, and reduce its states and attention maps batch by batch."""
    parts = []
    for batch in inputs.split(BATCH):
        seen = model(batch.to(model.pos_embed.device), return_all=True)
        patches = [seen.states[0], *(x[:, 1:] for x in seen.states[1:])]
        similarity = torch.stack([token_similarity(x) for x in patches])
        cosine = torch.stack([F.cosine_similarity(x[:, :1], x[:, 1:], dim=-1) for x in seen.states[1:]])
        attention = torch.stack([a.mean(1)[:, 0, 1:] for a in seen.attention])
        parts.append((seen.logits.cpu(), similarity.cpu(), cosine.cpu(), attention.cpu()))
    logits, *others = zip(*parts, strict=True)
    return Seen(torch.cat(logits), *(torch.cat(part, dim=1) for part in others))


@torch.inference_mode()
def logits_of(model: torch.nn.Module, inputs: Float[Tensor, "N 3 s s"]) -> Float[Tensor, "N C"]:
    """Class scores of any model, batch by batch, on the CPU."""
    device = next(model.parameters()).device
    return torch.cat([model(batch.to(device)).cpu() for batch in inputs.split(BATCH)])


class Rearranged(NamedTuple):
    """Classes named by a model whose blocks were rearranged, one row a change."""

    without: Int[Tensor, "L N"]  # block b left out
    swapped: Int[Tensor, "M N"]  # blocks b and b + 1 in the other order; M = L − 1


@torch.inference_mode()
def rearranged(model: ViT, inputs: Float[Tensor, "N 3 s s"]) -> Rearranged:
    """What a model answers without each of its blocks, and with each two neighbours swapped.

    Equal to `model(inputs, order=…)` for every such order. A change at block b starts from the state before
    it, which all of them share, so that all changes together cost about as much as L whole passes.
    """
    blocks, parts = model.blocks, []
    for batch in inputs.split(BATCH):
        states = model(batch.to(model.pos_embed.device), return_all=True).states[1:]
        without, swapped = [], []
        for at in range(len(blocks)):
            x = states[at]  # what block at + 1 reads
            if at + 1 < len(blocks):
                x = blocks[at + 1](x)[0]
                swapped.append(_finish(model, blocks[at](x)[0], at + 2))
            without.append(_finish(model, x, at + 2))
        parts.append((torch.stack(without), torch.stack(swapped) if swapped else None))
    count = len(inputs)
    return Rearranged(
        torch.cat([a for a, _ in parts], dim=1),
        torch.cat([b if b is not None else torch.empty(0, count, dtype=torch.long) for _, b in parts], dim=1),
    )


def _finish(model: ViT, x: Tensor, start: int) -> Int[Tensor, " N"]:
    for block in model.blocks[start:]:
        x = block(x)[0]
    return model.answer(x).argmax(1).cpu()


class Placed(NamedTuple):
    """Class scores with patches in place and in a random order of each picture's own."""

    in_place: Float[Tensor, "N C"]
    shuffled: Float[Tensor, "N C"]


def placed(
    backbone: Backbone,
    images: Images,
    inputs: Float[Tensor, "N 3 s s"],
    logits: Float[Tensor, "N C"],
    *,
    seed: int,
) -> dict[str, Placed]:
    """Scores "with" and "without" the position embedding of the patches, in place and shuffled.

    `inputs` are `images` transformed, `logits` the scores for them, which are not computed again. Without the
    embedding both orders must agree but for rounding: attention and MLP treat tokens alike wherever they are.
    Errors: `shape_of`, `controls.shuffled_patches`, `controls.without_position`.
    """
    moved, _ = shuffled_patches(backbone, images, seed=seed)
    placeless = rebuilt(without_position(backbone), len(images.classes))
    return {
        "with": Placed(logits, logits_of(rebuilt(backbone, len(images.classes)), moved)),
        "without": Placed(logits_of(placeless, inputs), logits_of(placeless, moved)),
    }


def right(named: Int[Tensor, "*S N"], labels: np.ndarray) -> Bool[np.ndarray, "*S N"]:
    """Which answers are the label."""
    return named.numpy() == labels
