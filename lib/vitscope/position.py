"""The learned position embedding: its size beside the patches, and what a model does with more or less.

Paper A lays the cliff, the fall of token similarity from state −1 to state 0, to the position embedding, and
scales it by hand to show that a model depends on it. Only the patch rows of the table are scaled here: a row
for the CLS token is no position.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from vitscope import weights
from vitscope.backbones import Backbone, TimmViT, UnsupportedModel
from vitscope.capture import NonFiniteActivations
from vitscope.data.images import Images
from vitscope.metrics.similarity import token_similarity


class PEDominance(NamedTuple):
    """Size of the position embedding over that of the patch embedding, in two readings (`pe_dominance`)."""

    tokens: float
    frobenius: float


def position_embedding(backbone: Backbone) -> Float[Tensor, "P D"] | None:
    """A copy of the learned absolute position embedding, one row a patch, row by row of the grid.

    Rows for CLS and registers, where the table has them, come first and are left out; how many there are is
    read from its shape. None for models without such a table: rotary, relative, or no embedding. A model may
    have a table and rotate as well (EVA-02).

    Raises `UnsupportedModel` for a table of another form, with its shape.
    """
    rows = _patch_rows(backbone, backbone.model)
    return None if rows is None else rows.clone()


def pe_dominance(backbone: Backbone, patch_norm: float, image_norm: float | None = None) -> PEDominance:
    """PE dominance, ‖PE‖ / E‖z₀‖, with z₀ the patch embedding before the position embedding (state −1).

        tokens = mean_i ‖p_i‖ / patch_norm,    frobenius = ‖PE‖_F / image_norm

    p_i are the rows of the position embedding of the patches. `patch_norm`: mean norm of a patch token at
    state −1, over patches and images; `image_norm`: mean over images of the Frobenius norm of an image's
    patch tokens [P, D] at state −1 (`frobenius` is NaN without it). Both from a capture with norm="none":
    `per_image["patch_norm"][0].mean()` is the first, a reduction
    `lambda t: {"image_norm": t.patches.flatten(1).norm(dim=1)}` gives the second. The two readings are equal
    where all norms are. Above 1 the position embedding outweighs the patch.

    Errors: `UnsupportedModel` for models without a learned position embedding; `ValueError` for norms that
    are not positive.
    Source: Mechanisms of Non-Monotonic Scaling in Vision Transformers (2511.21635), PE-Dom = ‖PE‖₂ / E‖z₀‖₂;
    it does not say in what we could read over what the norm runs, hence the two.
    """
    rows = _required_rows(backbone, backbone.model)
    for name, value in (("patch_norm", patch_norm), ("image_norm", image_norm)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ValueError(
                f"{name} must be a positive mean norm of the patch embedding at state −1, got {value}"
            )
    rows = rows.float()
    return PEDominance(
        tokens=float(rows.norm(dim=1).mean()) / float(patch_norm),
        frobenius=math.nan if image_norm is None else float(rows.norm()) / float(image_norm),
    )


def scaled(backbone: Backbone, factor: float) -> Backbone:
    """A copy of a backbone whose position embedding of the patches is multiplied by `factor`.

    Factor 0 takes it away, 1 leaves the weights as they are. A row for the CLS token, and rotary embeddings
    where the model has them too, stay. The copy has a name ("twin_s, PE × 0.5") and a digest of its own; the
    model given is not touched.

    Errors: `UnsupportedModel` for models without a learned position embedding; `ValueError` for a factor that
    is not finite.
    """
    _required_rows(backbone, backbone.model)
    _check_factor(factor)
    model = copy.deepcopy(backbone.model)
    _required_rows(backbone, model).mul_(factor)
    return replace(
        backbone,
        name=f"{backbone.name}, PE × {factor:g}",
        model=model,
        digest=weights.digest(model),
        source={**backbone.source, "position_embedding_factor": float(factor)},
    )


def position_effect(
    backbone: Backbone,
    images: Images,
    factors: Sequence[float],
    *,
    own_classes: bool = False,
    batch_size: int = 256,
) -> pd.DataFrame:
    """What a model with a head answers, and how alike its patches are, with the position embedding scaled.

    One row a factor, in the order given:

    - `factor`;
    - `top1`: percent of images whose class the model's own head names, NaN unless `own_classes`, by which the
      caller says that the head's outputs are `images.classes` in that order;
    - `agreement`: percent of images that are named as with factor 1;
    - `before`, `after`: mean centred token similarity at states −1 and 0 (`metrics.similarity`, no norm);
    - `cliff` = before − after.

    `before` does not depend on the factor. Pictures go through the model's own transform, `batch_size` at a
    time. Memory: one copy of the model.

    Errors: `UnsupportedModel` for models without a learned position embedding; `ValueError` for models
    without a head, no or non-finite factors, `own_classes` with another number of outputs than classes;
    `NonFiniteActivations` naming the factor.
    Source: paper A, on scaling the strength of the position embedding (top-1 changes, so the cliff matters).
    """
    _required_rows(backbone, backbone.model)
    _check_effect(backbone, images, factors, own_classes, batch_size)
    trial = _Trial(backbone)
    batches: dict[float, list[_Answers]] = {factor: [] for factor in (1.0, *factors)}
    kind = next(backbone.model.parameters()).dtype
    with torch.inference_mode():
        for start in range(0, len(images), batch_size):
            pixels = images.pixels(slice(start, start + batch_size))
            batch = backbone.transform(pixels).to(backbone.device, kind)
            for factor, answers in batches.items():
                answers.append(trial.run(batch, factor))
    found = {
        factor: [torch.cat(parts).numpy() for parts in zip(*answers, strict=True)]
        for factor, answers in batches.items()
    }
    usual, rows = found[1.0][0], []
    for factor in factors:
        named, *similarities = found[factor]
        before, after = (float(s.mean()) for s in similarities)
        top1 = 100 * float(np.mean(named == images.labels)) if own_classes else math.nan
        agreement = 100 * float(np.mean(named == usual))
        rows.append((float(factor), top1, agreement, before, after, before - after))
    return pd.DataFrame(rows, columns=["factor", "top1", "agreement", "before", "after", "cliff"])


class _Answers(NamedTuple):
    """Of each picture [n]: the class named, and the centred similarity at states −1 and 0."""

    named: Tensor
    before: Tensor
    after: Tensor


class _Trial:
    """A copy of the model to set factors on; hooks note the similarity on both sides of the embedding."""

    def __init__(self, backbone: Backbone) -> None:
        self.name, self.prefix = backbone.name, backbone.num_prefix_tokens
        self.model = copy.deepcopy(backbone.model)
        self.rows = _required_rows(backbone, self.model)
        self.original = self.rows.clone()
        self.similarity: dict[int, Tensor] = {}
        # the copy is dropped with its hooks; the caller's model never has any
        self.model.patch_embed.register_forward_hook(self._at_patch_embedding)
        self.model.blocks[0].register_forward_pre_hook(self._at_first_block)

    def run(self, batch: Tensor, factor: float) -> _Answers:
        self.rows.copy_(self.original * factor)
        logits = self.model(batch)
        bad = ~logits.isfinite().all(1)
        if bad.any():
            raise NonFiniteActivations(
                f"{self.name}: with the position embedding × {factor:g} the outputs are not finite for "
                f"{int(bad.sum())} of {len(bad)} images of a batch"
            )
        return _Answers(logits.argmax(1).cpu(), self.similarity[-1], self.similarity[0])

    def _at_patch_embedding(self, module, args, output: Tensor) -> None:
        self.similarity[-1] = token_similarity(output.flatten(1, -2), centred=True).cpu()

    def _at_first_block(self, module, args) -> None:
        self.similarity[0] = token_similarity(args[0][:, self.prefix :], centred=True).cpu()


def _check_factor(factor: float) -> None:
    if not math.isfinite(factor):
        raise ValueError(f"the factor of the position embedding must be finite, got {factor}")


def _check_effect(
    backbone: Backbone, images: Images, factors: Sequence[float], own_classes: bool, batch_size: int
) -> None:
    outputs = getattr(backbone.model, "num_classes", 0)
    if outputs < 1:
        raise ValueError(
            f"{backbone.name} has no head, so it names no class; position_effect needs a model with "
            "num_classes > 0, such as a zoo twin or a model with its classifier"
        )
    if own_classes and outputs != len(images.classes):
        raise ValueError(
            f"own_classes says that the head of {backbone.name} names the classes of {images.name}, but it "
            f"has {outputs} outputs for {len(images.classes)} classes; leave it False for top1 = NaN"
        )
    if not len(factors) or batch_size < 1:
        raise ValueError(
            f"at least one factor and a batch_size of at least 1 are needed, got {list(factors)} "
            f"and {batch_size}"
        )
    for factor in factors:
        _check_factor(factor)


def _required_rows(backbone: Backbone, model: TimmViT) -> Tensor:
    rows = _patch_rows(backbone, model)
    if rows is None:
        raise UnsupportedModel(
            f"{backbone.name} ({type(model).__name__}) has no learned absolute position embedding; rotary "
            "and relative ones are no table of rows. position_embedding(backbone) is None for such models"
        )
    return rows


def _patch_rows(backbone: Backbone, model: TimmViT) -> Tensor | None:
    """The patch rows [P, D] as a view of the model's parameter, outside autograd."""
    table = getattr(model, "pos_embed", None)
    if table is None:
        return None
    shape = list(table.shape) if isinstance(table, Tensor) else type(table).__name__
    fits = isinstance(table, Tensor) and table.ndim == 3 and len(table) == 1
    # with or without rows for the prefix: models that add the embedding before CLS have none
    prefix = table.shape[1] - backbone.num_patches if fits else -1
    if not 0 <= prefix <= backbone.num_prefix_tokens:
        raise UnsupportedModel(
            f"{backbone.name} ({type(model).__name__}): position embedding {shape}, expected [1, T, D] with "
            f"a row for each of {backbone.num_patches} patches after at most {backbone.num_prefix_tokens} "
            "rows for other tokens"
        )
    return table.detach()[0, prefix:]
