"""Linear CKA: how alike two sets of features of the same images are, up to rotation, shift and scale.

CKA = HSIC(X, Y) / √(HSIC(X, X) HSIC(Y, Y)), 1 for equal geometry. The estimate of HSIC makes the difference:
the biased one is far above 0 for unrelated features that are wide compared with the number of images, the
unbiased one is not. Both are the field's. All is computed in float64, on the CPU.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

_LEAST_UNBIASED = 4  # HSIC_1 divides by n(n − 3)


def linear_cka(x: Float[Tensor, "N D1"], y: Float[Tensor, "N D2"]) -> float:
    """Biased linear CKA, ‖YᵀX‖²_F / (‖XᵀX‖_F ‖YᵀY‖_F) of column-centred features, in [0, 1].

    Rows are the same images in the same order. Near 1 for any features wider than N: use
    `linear_cka_unbiased` there. NaN where all images have the same features.

    Raises ValueError for different numbers of images, fewer than 2, or values that are not finite.
    Source: Kornblith et al. 2019 (1905.00414), section 3.

    >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]])
    >>> round(linear_cka(x, 3 * x.flip(1) + 1), 6)  # mirrored, scaled, shifted
    1.0
    """
    _need_pair(x, y, 2)
    x, y = _centred(x), _centred(y)
    return float(_inner(x, y) / (_inner(x, x) * _inner(y, y)).sqrt())


def linear_cka_unbiased(x: Float[Tensor, "N D1"], y: Float[Tensor, "N D2"]) -> float:
    """Linear CKA from the unbiased estimate HSIC_1, in [−1, 1]; about 0 for independent features.

    With Gram matrices K = XXᵀ, L = YYᵀ whose diagonals are set to zero,
    HSIC_1 = (tr KL + 1ᵀK1·1ᵀL1/((n−1)(n−2)) − 2/(n−2)·1ᵀKL1) / (n(n−3)). Unbiased is HSIC_1, the ratio
    nearly so. Memory N²: for many images or layers, `MinibatchCKA`. NaN where all images have the same
    features.

    Raises ValueError for different numbers of images, fewer than 4, or values that are not finite.
    Source: HSIC_1 of Song et al. 2012 (JMLR 13), in CKA by Nguyen et al. 2021 (2010.15327), equation 3.

    >>> x, y = torch.randn(2, 30, 100, generator=torch.Generator().manual_seed(0))  # unrelated and wide
    >>> round(linear_cka(x, y), 2), round(linear_cka_unbiased(x, y), 2)
    (0.78, 0.05)
    """
    _need_pair(x, y, _LEAST_UNBIASED)
    return float(_normalised(_hsic([x, y]))[0, 1])


class MinibatchCKA:
    """Unbiased linear CKA between many states at once, [S, S'], from a stream of images that is not kept.

    CKA = Σ_b n_b HSIC_1(X_b, Y_b) / √(Σ_b n_b HSIC_1(X_b, X_b) · Σ_b n_b HSIC_1(Y_b, Y_b)) over minibatches b
    of n_b images. Updates of any length are cut anew into minibatches of `minibatch` images, so the result
    depends on the order of the images but not on how they arrive; at most one minibatch of features is held.
    What remains at the end counts as a smaller one, from 4 images up. Values in [−1, 1]; NaN for states where
    all images have the same features (CLS before the first block).

    Source: Nguyen et al. 2021 (2010.15327), equation 2; the weights n_b, for unequal minibatches, are ours.

    >>> states = torch.randn(3, 20, 5, generator=torch.Generator().manual_seed(0))
    >>> whole, parts = MinibatchCKA(8), MinibatchCKA(8)
    >>> whole.update(states)
    >>> for part in states.split(3, dim=1):
    ...     parts.update(part)
    >>> whole.compute().shape, torch.equal(whole.compute(), parts.compute())
    (torch.Size([3, 3]), True)
    """

    def __init__(self, minibatch: int = 256) -> None:
        if minibatch < _LEAST_UNBIASED:
            raise ValueError(f"the unbiased HSIC needs minibatches of at least 4 images, got {minibatch}")
        self.minibatch = minibatch
        self.images = 0
        self._widths: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self._pending: list[Tensor] = []
        self._hsic: Tensor | float = 0.0

    def update(
        self,
        x: Float[Tensor, "S N D"] | Sequence[Float[Tensor, "N _"]],
        y: Float[Tensor, "S2 N D2"] | Sequence[Float[Tensor, "N _"]] | None = None,
    ) -> None:
        """Add images: states of `x`, and of `y` (of another model, say) or of `x` again without it.

        Raises ValueError, leaving all as it was, for values that are not finite, states with different
        numbers of images, and numbers or widths of states that differ from the first update's.
        """
        left, right = list(x), [] if y is None else list(y)
        states = [*left, *right]
        if not left or any(s.ndim != 2 or len(s) != len(left[0]) for s in states):
            shapes = ", ".join(str(tuple(s.shape)) for s in states)
            raise ValueError(f"states must be [N, D] with the same N, got {shapes or 'none'}")
        widths = tuple(s.shape[1] for s in left), tuple(s.shape[1] for s in right)
        if self._widths not in (None, widths):
            raise ValueError(f"widths of the states were {self._widths}, now {widths}")
        for name, side in (("x", left), ("y", right)):
            for number, state in enumerate(side):
                _need_finite(state, f"state {number} of {name}")
        self._widths = widths
        self.images += len(left[0])
        states = [state.detach().cpu() for state in states]
        if self._pending:
            states = [torch.cat(pair) for pair in zip(self._pending, states, strict=True)]
        whole = len(states[0]) // self.minibatch * self.minibatch
        for start in range(0, whole, self.minibatch):
            batch = [state[start : start + self.minibatch] for state in states]
            self._hsic = self._hsic + self.minibatch * _hsic(batch)
        self._pending = [state[whole:].clone() for state in states]  # a copy, not a view of the whole batch

    def compute(self) -> Float[Tensor, "S S2"]:
        """The matrix [S, S'] of the images so far, in float64. More may follow.

        Raises ValueError for fewer than 4 images.
        """
        if self._widths is None or self.images < _LEAST_UNBIASED:
            raise ValueError(f"the unbiased HSIC needs at least 4 images, got {self.images}")
        hsic, rest = self._hsic, len(self._pending[0])
        if rest >= _LEAST_UNBIASED:
            hsic = hsic + rest * _hsic(self._pending)
        matrix = _normalised(torch.as_tensor(hsic))
        left, right = map(len, self._widths)
        return matrix[:left, left:] if right else matrix


def _hsic(states: Sequence[Tensor]) -> Tensor:
    """HSIC_1 [S, S] between states of the same n images.

    Written with U-centred Gram matrices, K_ij − K_i·/(n−2) − K_·j/(n−2) + K_··/((n−1)(n−2)) off the diagonal
    and 0 on it: HSIC_1 = Σ_ij K_ij L_ij / (n(n−3)), the same number without the cancelling of large terms.
    """
    n = len(states[0])
    grams = []
    for state in states:
        x = _centred(state)  # changes nothing in the result but its rounding
        gram = (x @ x.T).fill_diagonal_(0)
        rows = gram.sum(1, keepdim=True) / (n - 2)
        gram = gram - rows - rows.T + rows.sum() / (n - 1)
        grams.append(gram.fill_diagonal_(0).flatten())
    stacked = torch.stack(grams)
    return stacked @ stacked.T / (n * (n - 3))


def _normalised(hsic: Tensor) -> Tensor:
    own = hsic.diagonal().sqrt()
    return (hsic / (own[:, None] * own)).clamp(-1, 1)  # Cauchy–Schwarz holds but for rounding


def _inner(x: Tensor, y: Tensor) -> Tensor:
    """‖YᵀX‖²_F, from whichever is the smaller: the product of features or the two Gram matrices."""
    if x.shape[1] * y.shape[1] <= len(x) ** 2:
        return (y.T @ x).square().sum()
    return ((x @ x.T) * (y @ y.T)).sum()


def _need_pair(x: Tensor, y: Tensor, least: int) -> None:
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
        raise ValueError(
            f"CKA compares [N, D1] with [N, D2] of the same images, got {tuple(x.shape)} and {tuple(y.shape)}"
        )
    if len(x) < least:
        raise ValueError(f"this CKA needs at least {least} images, got {len(x)}")
    _need_finite(x, "x")
    _need_finite(y, "y")


def _need_finite(x: Tensor, name: str) -> None:
    broken = x.numel() - int(x.isfinite().sum())
    if broken:
        raise ValueError(f"{name} holds {broken} values that are not finite")


def _centred(x: Tensor) -> Tensor:
    """Features minus their mean, in float64."""
    x = x.detach().to("cpu", torch.float64)
    x = x - x.mean(0)
    return x - x.mean(0)  # removes the rounding error of the first mean: equal features become exactly zero
