"""How alike the tokens of an image are: mean pairwise cosine, without forming the pairs.

Raw cosines of deep states are high whatever the tokens do, because all share a large common component
(anisotropy). Centring, subtracting each image's mean token first, removes it; on the centred form paper A
defines its phases.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def token_similarity(tokens: Float[Tensor, "N P D"], centred: bool = False) -> Float[Tensor, " N"]:
    """Mean cosine over all ordered pairs of different tokens of each image, in [−1/(P−1), 1].

    With unit tokens u_i: mean_{i≠j} u_i·u_j = (‖Σ u_i‖² − Σ ‖u_i‖²) / (P(P − 1)), linear in P. `centred`
    subtracts the image's mean token first. Computed in float32 (float64 if given). A token of norm zero,
    or centred to nothing but rounding, has cosine 0 with every other. NaN stays NaN.

    Pass patch tokens only. Raises ValueError for fewer than two of them.
    Source: Mechanisms of Non-Monotonic Scaling in Vision Transformers (2511.21635); per-image centring
    is our reading.

    >>> corners = torch.tensor([[[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])
    >>> round(token_similarity(corners).item(), 4)  # (cos 90° + 2 cos 45°) / 3
    0.4714
    >>> round(token_similarity(corners + 100, centred=True).item(), 4)
    -0.4011
    """
    if tokens.ndim != 3 or tokens.shape[1] < 2:
        raise ValueError(f"similarity needs tokens [N, P, D] with P >= 2 patches, got {tuple(tokens.shape)}")
    x = _at_least_float32(tokens)
    units = _unit(_centre(x), _rounding(x)) if centred else _unit(x)
    count = tokens.shape[1]
    together = units.sum(1).square().sum(1)
    alone = units.square().sum((1, 2))
    return (together - alone) / (count * (count - 1))


def similarity_floor(patches: int) -> float:
    """The least mean similarity that `patches` tokens can have, −1/(P − 1), reached when they sum to zero.

    Centred tokens of equal norm sit exactly there, whatever their directions: a value at the floor says
    that norms are alike, not that tokens repel one another.

    >>> round(similarity_floor(196), 4)
    -0.0051
    """
    if patches < 2:
        raise ValueError(f"similarity needs at least 2 patches, got {patches}")
    return -1.0 / (patches - 1)


def cls_patch_cosine(cls: Float[Tensor, "N D"], patches: Float[Tensor, "N P D"]) -> Float[Tensor, " N"]:
    """Mean cosine between the [CLS] token and each patch token of its image, in [−1, 1].

    Tokens of norm zero count as cosine 0. Raises ValueError where there is no patch.

    >>> cls, patches = torch.tensor([[1.0, 0.0]]), torch.tensor([[[3.0, 0.0], [1.0, 1.0]]])
    >>> round(cls_patch_cosine(cls, patches).item(), 4)  # (cos 0° + cos 45°) / 2
    0.8536
    """
    if patches.ndim != 3 or patches.shape[1] < 1:
        raise ValueError(f"patches must be [N, P, D] with P >= 1, got {tuple(patches.shape)}")
    direction = _unit(_at_least_float32(cls))[:, None]
    return (_unit(_at_least_float32(patches)) * direction).sum(2).mean(1)


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _centre(x: Tensor) -> Tensor:
    x = x - x.mean(1, keepdim=True)
    return x - x.mean(1, keepdim=True)  # the second pass removes the rounding error of the first mean


def _rounding(x: Tensor) -> Tensor:
    """The norm that equal tokens may be left with after centring: some units in the last place."""
    return 8 * torch.finfo(x.dtype).eps * x.norm(dim=2, keepdim=True).amax(1, keepdim=True)


def _unit(x: Tensor, empty: Tensor | float = 0.0) -> Tensor:
    """Vectors of length 1; those of a norm up to `empty` become zero."""
    norms = x.norm(dim=-1, keepdim=True)
    # `norms <= empty` is False for NaN, which therefore stays visible in the result.
    return torch.where(norms <= empty, torch.zeros_like(x), x / norms)
