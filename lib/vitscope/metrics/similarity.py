"""How alike the tokens of an image are: mean pairwise cosine, without forming the pairs, and effective rank.

Raw cosines of deep states are high whatever the tokens do, because all share a large common component
(anisotropy). Centring removes it; on the centred form paper A defines its phases. The mean that is subtracted
is each image's own, or the dataset's: the paper does not say which.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def token_similarity(
    tokens: Float[Tensor, "N P D"], centred: bool = False, *, centre: Float[Tensor, " D"] | None = None
) -> Float[Tensor, " N"]:
    """Mean cosine over all ordered pairs of different tokens of each image, in [−1/(P−1), 1].

    With unit tokens u_i: mean_{i≠j} u_i·u_j = (‖Σ u_i‖² − Σ ‖u_i‖²) / (P(P − 1)), linear in P. `centred`
    subtracts the image's mean token first, `centre` a given one: the mean patch token of the dataset at this
    state, which leaves in the tokens what sets the image apart from others. Computed in float32 (float64 if
    given). A token of norm zero, or centred to nothing but rounding, has cosine 0 with every other. NaN stays
    NaN.

    Pass patch tokens only. Raises ValueError for fewer than two of them, and for `centred` with a `centre`.
    Source: Mechanisms of Non-Monotonic Scaling in Vision Transformers (2511.21635), which centres; per image
    and per dataset are our two readings.

    >>> corners = torch.tensor([[[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])
    >>> round(token_similarity(corners).item(), 4)  # (cos 90° + 2 cos 45°) / 3
    0.4714
    >>> round(token_similarity(corners + 100, centred=True).item(), 4)
    -0.4011
    >>> round(token_similarity(corners + 100, centre=torch.tensor([100.0, 100.0])).item(), 4)
    0.4714
    """
    if tokens.ndim != 3 or tokens.shape[1] < 2:
        raise ValueError(f"similarity needs tokens [N, P, D] with P >= 2 patches, got {tuple(tokens.shape)}")
    if centred and centre is not None:
        raise ValueError("centred subtracts each image's own mean, centre a given one: choose one of the two")
    x = _at_least_float32(tokens)
    if centre is not None:
        units = _unit(x - centre.to(x), _rounding(x))
    else:
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


def effective_rank(tokens: Float[Tensor, "N P D"], centred: bool = True) -> Float[Tensor, " N"]:
    """How many directions the tokens of each image spread over, in [1, min(P, D)], or 0 for no direction.

        erank = exp(−Σ_k p_k ln p_k),    p_k = σ_k / Σ_j σ_j

    with σ the singular values of the image's token matrix [P, D], themselves and not their squares, as in the
    source. `centred` subtracts the image's mean token first; the most is then min(P − 1, D). K orthogonal
    tokens of one length have rank K. Equal tokens, centred, have no direction left and rank 0, as tokens of
    norm zero have without centring. Singular values up to 8 ε of float32 times the longest token's norm count
    as 0: they are rounding. NaN stays NaN.

    Eigenvalues of the smaller Gram matrix, in float64; O(min(P, D)³) an image. Pass patch tokens only.
    Raises ValueError for tokens without patches.
    Source: Roy and Vetterli, The effective rank: a measure of effective dimensionality (EUSIPCO 2007), §2.

    >>> stretched = torch.tensor([[[3.0, 0.0], [0.0, 1.0]]])  # p = 3/4, 1/4
    >>> round(effective_rank(stretched, centred=False).item(), 4)
    1.7548
    >>> [round(effective_rank(torch.eye(4)[None], centred=c).item(), 4) for c in (False, True)]
    [4.0, 3.0]
    """
    if tokens.ndim != 3 or tokens.shape[1] < 1:
        raise ValueError(
            f"effective rank needs tokens [N, P, D] with P >= 1 patches, got {tuple(tokens.shape)}"
        )
    x = tokens.double()
    rounding = 8 * torch.finfo(torch.float32).eps * x.norm(dim=2).amax(1, keepdim=True)
    x = _centre(x) if centred else x
    gram = x @ x.mT if x.shape[1] <= x.shape[2] else x.mT @ x
    finite = gram.isfinite().all(2).all(1)
    gram = torch.where(finite[:, None, None], gram, 0.0)  # eigvalsh raises for NaN in any image of the batch
    sigma = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    sigma = torch.where(sigma > rounding, sigma, 0.0)
    total = sigma.sum(1, keepdim=True)
    share = sigma / torch.where(total > 0, total, 1.0)
    rank = torch.where(total[:, 0] > 0, torch.special.entr(share).sum(1).exp(), 0.0)
    rank = torch.where(finite, rank, torch.nan)
    return rank if tokens.dtype == torch.float64 else rank.float()


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
