"""What capture keeps of the tokens of one state: small per-image results, taken inside the forward pass.

A reduction takes `Tokens` and returns per-image tensors by name. Token means and cosine sums are matrix
products, so a reduction reads the tokens about twice and allocates one array of their size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """Tokens of one state of a batch, split by kind. `cls` is None at state −1 and in models without CLS."""

    cls: Float[Tensor, "N D"] | None
    registers: Float[Tensor, "N R D"]
    patches: Float[Tensor, "N P D"]


Reduction = Callable[[Tokens], dict[str, Tensor]]


def cls(tokens: Tokens) -> dict[str, Tensor]:
    """The CLS token [N, D] and its norm [N]."""
    if tokens.cls is None:
        return {}
    value = tokens.cls.to(torch.float32)
    return {"cls": value, "cls_norm": torch.linalg.vector_norm(value, dim=-1)}


def patch_mean(tokens: Tokens) -> dict[str, Tensor]:
    """The mean patch token [N, D]."""
    return {"patch_mean": tokens.patches.to(torch.float32).mean(1)}


def similarity(tokens: Tokens) -> dict[str, Tensor]:
    """Mean pairwise cosine of patch tokens, raw and centred per image, and the mean patch norm, all [N].

    With unit tokens u_i: mean_{i≠j} cos = (‖Σ u_i‖² − P) / (P (P − 1)); centred tokens are x_i − mean_k x_k.
    Source: paper A, section on token similarity (centred form); reference: `metrics.similarity`.
    """
    x = tokens.patches.to(torch.float32)
    count = x.shape[1]
    if count < 2:
        raise ValueError("similarity needs at least 2 patches; a grid of one patch has no pairs")
    norms = torch.linalg.vector_norm(x, dim=-1)
    centred = x - x.mean(1, keepdim=True)
    rounding = 1e-5 * norms.amax(1, keepdim=True)  # what is left of equal tokens is no direction
    return {
        "patch_norm": norms.mean(1),
        "similarity": _mean_cosine(x, norms, 1e-12),
        "similarity_centred": _mean_cosine(centred, torch.linalg.vector_norm(centred, dim=-1), rounding),
    }


def _mean_cosine(x: Tensor, norms: Tensor, empty: Tensor | float) -> Tensor:
    count = x.shape[1]
    # tokens of (nearly) zero length have no direction: they count as unit tokens orthogonal to all others
    inverse = torch.where(norms > empty, 1 / norms.clamp_min(1e-12), 0.0)
    total = torch.bmm(inverse.unsqueeze(1), x).squeeze(1)
    directed = (inverse > 0).sum(1)
    return (total.square().sum(-1) - directed) / (count * (count - 1))


def cls_patch_cosine(tokens: Tokens) -> dict[str, Tensor]:
    """Mean cosine between the CLS token and the patch tokens [N]."""
    if tokens.cls is None:
        return {}
    cosine = torch.cosine_similarity(
        tokens.cls.to(torch.float32).unsqueeze(1), tokens.patches.to(torch.float32), dim=-1
    )
    return {"cls_patch_cosine": cosine.mean(1)}


REDUCTIONS: dict[str, Reduction] = {
    "cls": cls,
    "patch_mean": patch_mean,
    "similarity": similarity,
    "cls_patch_cosine": cls_patch_cosine,
}
DEFAULT = ("cls", "patch_mean", "similarity")
