"""What capture keeps of the tokens of one state: small per-image results, taken inside the forward pass.

A reduction takes `Tokens` and returns per-image tensors by name. Token means and cosine sums are matrix
products, so a reduction reads the tokens about twice and allocates one array of their size. `effective_rank`
alone costs more: it works in float64 and solves for eigenvalues.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitscope.data.images import fingerprint
from vitscope.metrics.similarity import effective_rank as token_rank


@dataclass(frozen=True)
class Tokens:
    """Tokens of one state of a batch, split by kind. `cls` is None at state −1 and in models without CLS.

    `state` is the state's name: −1 patch embedding, 0 what the first block reads, 1…L block outputs.
    """

    state: int
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
    x, norms = _patches(tokens)
    return {
        "patch_norm": norms.mean(1),
        "similarity": _mean_cosine(x, norms, 1e-12),
        "similarity_centred": _centred_cosine(x - x.mean(1, keepdim=True), norms),
    }


def similarity_by_dataset(means: Mapping[int, Float[Tensor, " D"]]) -> Reduction:
    """A reduction to the mean pairwise cosine of patch tokens less the dataset's mean token, [N].

    `means`: the mean patch token [D] of every state by the state's name, over all images and patches, under
    the same `norm` as the capture that uses it; from an earlier capture c of the same images they are
    `dict(zip(c.states, c.patch_mean.mean(1)))`. The result is named "similarity_dataset"; the numerics are
    those of `similarity`. The reduction has a `cache_key`, so `features.captured` can keep what it gives.

    The reduction raises `ValueError` naming the state where `means` has none, or one of another width.
    Source: paper A, section on token similarity (which mean it subtracts is open); reference:
    `metrics.similarity.token_similarity` with a `centre`.

    >>> patches = torch.tensor([[[2.0, 1.0], [1.0, 2.0], [2.0, 2.0]]])
    >>> tokens = Tokens(state=0, cls=None, registers=patches[:, :0], patches=patches)
    >>> similarity_by_dataset({0: torch.ones(2)})(tokens)  # (cos 90° + 2 cos 45°) / 3
    {'similarity_dataset': tensor([0.4714])}
    """
    known = dict(means)

    def similarity_dataset(tokens: Tokens) -> dict[str, Tensor]:
        mean, width = known.get(tokens.state), tokens.patches.shape[2]
        if mean is None:
            raise ValueError(
                f"similarity_by_dataset has no mean token of state {tokens.state}, only of "
                f"{sorted(known)}; pass one for every state of the capture"
            )
        if mean.shape != (width,):
            raise ValueError(
                f"the mean token of state {tokens.state} must be [{width}], got {list(mean.shape)}"
            )
        x, norms = _patches(tokens)
        return {"similarity_dataset": _centred_cosine(x - mean.to(x), norms)}

    digest = fingerprint(sorted(known), *(known[state].float().cpu().numpy() for state in sorted(known)))
    similarity_dataset.__dict__["cache_key"] = f"similarity_by_dataset {digest}"
    return similarity_dataset


def _patches(tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Patch tokens in float32 and their norms."""
    if tokens.patches.shape[1] < 2:
        raise ValueError("similarity needs at least 2 patches; a grid of one patch has no pairs")
    x = tokens.patches.to(torch.float32)
    return x, torch.linalg.vector_norm(x, dim=-1)


def _centred_cosine(centred: Tensor, norms: Tensor) -> Tensor:
    rounding = 1e-5 * norms.amax(1, keepdim=True)  # what is left of equal tokens is no direction
    return _mean_cosine(centred, torch.linalg.vector_norm(centred, dim=-1), rounding)


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


def effective_rank(tokens: Tokens) -> dict[str, Tensor]:
    """Effective rank of the centred patch tokens [N]: `metrics.similarity.effective_rank`."""
    return {"effective_rank": token_rank(tokens.patches)}


REDUCTIONS: dict[str, Reduction] = {
    "cls": cls,
    "patch_mean": patch_mean,
    "similarity": similarity,
    "cls_patch_cosine": cls_patch_cosine,
    "effective_rank": effective_rank,
}
DEFAULT = ("cls", "patch_mean", "similarity")
