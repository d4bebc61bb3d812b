"""Ridge regression onto class indicators, every strength of the penalty from one eigendecomposition.

For each state it minimises (1/2N) ‖XW + b − Y‖² + (λ/2) ‖W‖² with one-hot Y; with centred X = UΛ^½Vᵀ·√N
the solution for any λ is W = V (Λ + λ)⁻¹ Vᵀ XᵀY/N, so a further λ costs one small product.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitscope.logistic import Fits, spectrum


def solve_ridge(
    features: Float[Tensor, "S N D"], codes: Int[Tensor, " N"], classes: int, l2: Float[Tensor, "S G"]
) -> Fits:
    """Fit all states at all strengths `l2`. Features: standardised float32. Labels: 0…classes−1.

    The objective is that of scikit-learn's `Ridge` on one-hot targets, with alpha = λN.
    """
    basis = spectrum(features)
    onehot = torch.nn.functional.one_hot(codes, classes).to(features.dtype)
    share = onehot.mean(0)
    moments = basis.vectors.mT @ (features.mT @ (onehot - share)) / len(codes)
    shrunk = moments[:, None] / (basis.values[:, None, :, None] + l2[:, :, None, None])
    weight = (basis.vectors[:, None] @ shrunk).mT
    done = torch.ones_like(l2, dtype=torch.bool)
    return Fits(weight, share.expand(*l2.shape, -1), done, done.long())
