"""What all probes do before they fit: check, hold images out, standardise on what is left.

No test image is ever seen here; mean and deviation are those of the training part alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitscope.holdout import Groups, holdout
from vitscope.splits import Labels, encode

Validation = float | tuple[Tensor, Labels]


def split(
    features: Tensor,
    labels: Labels,
    classes: Sequence,
    validation: Validation,
    groups: Groups | None,
    seed: int,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Features and class numbers for training, and those for validation.

    `validation`: the share of each class to hold out, or a pair (features, labels); with `groups` [N] of
    images that belong together, the share of each class's groups. Raises ValueError for what does not fit.
    """
    check_finite(features)
    codes = encode_for(features, labels, classes)
    if isinstance(validation, tuple):
        if groups is not None:
            raise ValueError("groups say how to hold images out: leave them out with a validation set")
        held_x, held_labels = validation
        check_finite(held_x, "validation features")
        if (held_x.shape[0], held_x.shape[2]) != (features.shape[0], features.shape[2]):
            raise ValueError(
                f"validation features have shape {tuple(held_x.shape)}, training features "
                f"{tuple(features.shape)}: states and width must agree"
            )
        return (features, codes), (held_x, encode_for(held_x, held_labels, classes))
    train, held = holdout(codes, validation, seed, groups)
    return (features[:, train], codes[train]), (features[:, held], codes[held])


class Moments(NamedTuple):
    """Mean and deviation of every feature; 1 stands for the deviation of a constant one."""

    mean: Float[Tensor, "*K F"]
    scale: Float[Tensor, "*K F"]

    def standardise(self, x: Float[Tensor, "*K N F"]) -> Float[Tensor, "*K N F"]:
        """(x − mean)/scale of every image, in float32."""
        return (x.float() - self.mean.unsqueeze(-2)) / self.scale.unsqueeze(-2)


def moments(x: Float[Tensor, "*K N F"]) -> Moments:
    """Moments over the images.

    >>> [m.tolist() for m in moments(torch.tensor([[0.0, 5.0], [2.0, 5.0]]))]
    [[1.0, 5.0], [1.0, 1.0]]
    """
    wide = x.double()
    mean, scale = wide.mean(-2), wide.std(-2, correction=0)
    # A float32 constant of size |mean| can differ from itself by a few eps after summing: no signal.
    constant = scale <= 8 * torch.finfo(torch.float32).eps * mean.abs()
    return Moments(mean.float(), torch.where(constant, 1.0, scale).float())


def encode_for(features: Tensor, labels: Labels, classes: Sequence) -> Int[Tensor, " N"]:
    """Class numbers on the features' device, one for each image; ValueError for another count."""
    codes = encode(labels, classes).to(features.device)
    if len(codes) != features.shape[1]:
        raise ValueError(f"there are {features.shape[1]} images in the features but {len(codes)} labels")
    return codes


def check_finite(features: Tensor, what: str = "features") -> None:
    """Raise ValueError for features that are not [S, N, D], or naming the states with NaN or inf."""
    if features.ndim != 3:
        raise ValueError(
            f"{what} must be [S, N, D] (states, images, width), got shape {tuple(features.shape)}"
        )
    bad = (~features.isfinite()).any(2).sum(1).tolist()
    if any(bad):
        where = ", ".join(f"{n} images in state {s}" for s, n in enumerate(bad) if n)
        raise ValueError(f"{what} hold NaN or inf (counting from state 0): {where}")


def standardise_as_fitted(features: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """`standardise` for features of later images. Raises ValueError for other shapes, NaN and inf."""
    check_finite(features)
    states, width = mean.shape
    if (features.shape[0], features.shape[2]) != (states, width):
        raise ValueError(
            f"these probes were fitted on {states} states of width {width}, "
            f"got features of shape {tuple(features.shape)}"
        )
    return Moments(mean, scale).standardise(features)


def shares_right(logits: Tensor, codes: Tensor, majority: int) -> dict[str, Tensor]:
    """Accuracy [S], balanced accuracy [S] over the classes that occur, and that of always naming `majority`.

    >>> found = shares_right(torch.tensor([[[2.0, 0.0], [3.0, 1.0], [0.0, 1.0]]]), torch.tensor([0, 0, 0]), 0)
    >>> round(found["accuracy"].item(), 3), found["majority"].item()
    (0.667, 1.0)
    """
    right = (logits.argmax(2) == codes).double()
    recalls = torch.stack([right[:, codes == c].mean(1) for c in codes.unique()], 1)
    return {
        "accuracy": right.mean(1),
        "balanced_accuracy": recalls.mean(1),
        "majority": (codes == majority).double().mean(),
    }
