"""Scores of a segmentation, from counts of pixels."""

import numpy as np
import torch
from jaxtyping import Float, Int, Integer, Num
from torch import Tensor

from vitscope.dense.heads import axes, largest_class, resized
from vitscope.estimates import divided, resampled_sums


def segmentation_scores(confusion: Int[Tensor, "*S C C"]) -> dict[str, Tensor]:
    """Scores of pixel counts, true classes in rows, in percent: "miou", "pixel_accuracy" [*S], "iou" [*S, C].

    IoU = n_cc / (Σ_k n_ck + Σ_k n_kc − n_cc). It is NaN, and left out of the mean, for a class of which there
    is no true pixel. Raises ValueError for counts that are not square, negative, or all 0.

    >>> found = segmentation_scores(torch.tensor([[3, 1, 0], [0, 4, 0], [0, 0, 0]]))
    >>> found["iou"].tolist(), found["miou"].item(), found["pixel_accuracy"].item()
    ([75.0, 80.0, nan], 77.5, 87.5)
    """
    if confusion.ndim < 2 or confusion.shape[-1] != confusion.shape[-2] or confusion.is_floating_point():
        raise ValueError(
            f"confusion must be whole pixel counts [..., C, C], got {confusion.dtype} of shape "
            f"{tuple(confusion.shape)}"
        )
    if bool((confusion < 0).any()) or bool((confusion.sum((-2, -1)) == 0).any()):
        raise ValueError("confusion must hold counts of at least one pixel, none of them negative")
    both = confusion.diagonal(dim1=-2, dim2=-1).double()
    target, predicted = confusion.sum(-1).double(), confusion.sum(-2).double()
    iou = torch.where(target > 0, 100 * both / (target + predicted - both), torch.nan)
    return {
        "miou": iou.nanmean(-1),
        "iou": iou,
        "pixel_accuracy": 100 * both.sum(-1) / target.sum(-1),
    }


def resampled_miou(
    both: Num[np.ndarray, "S N C"],
    predicted: Num[np.ndarray, "S N C"],
    target: Num[np.ndarray, "N C"],
    *,
    clusters: np.ndarray | None,
    draws: int,
    seed: int,
) -> tuple[Float[np.ndarray, " S"], Float[np.ndarray, "draws S"]]:
    """mIoU in percent from pixel counts per image, and of bootstrap resamples of images.

    In a resample the mean is over the classes that occur in it. It lacks some rare ones, mostly those of low
    IoU, so that its mIoU leans high: resamples are moved to have the value as their mean. Raises ValueError
    as `estimates.resampled_sums`.
    """
    columns = {"both": np.moveaxis(both, 0, 1), "predicted": np.moveaxis(predicted, 0, 1), "target": target}
    total, drawn = resampled_sums(columns, clusters=clusters, draws=draws, seed=seed)

    def score(sums: dict[str, np.ndarray]) -> np.ndarray:
        pixels = sums["target"][..., None, :]
        iou = divided(sums["both"], pixels + sums["predicted"] - sums["both"])
        return 100 * np.nanmean(np.where(pixels > 0, iou, np.nan), -1)

    value, spread = score(total), score(drawn)
    return value, spread - spread.mean(0) + value


class Counts:
    """Pixel counts of images, a chunk at a time."""

    def __init__(self, classes: int, ignore: int | None) -> None:
        self.classes, self.ignore = classes, ignore
        self.confusion = torch.zeros(0, classes, classes, dtype=torch.long)
        self.per_image: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, z: Float[Tensor, "S N C rows cols"], masks: Integer[Tensor, "N h w"]) -> None:
        c, images = self.classes, z.shape[1]
        by = axes((masks.shape[1], masks.shape[2]), (z.shape[3], z.shape[4]), z)
        truth = masks.long().flatten(1).to(z.device)
        seen = torch.ones_like(truth, dtype=torch.bool) if self.ignore is None else truth != self.ignore
        cell = (torch.arange(images, device=z.device)[:, None] * c + truth) * c
        cell = torch.where(seen, cell, images * c * c)
        counts = []
        for state in z:
            named = largest_class(resized(state, by)).flatten(1)
            found = torch.where(seen, cell + named, cell).flatten().bincount(minlength=images * c * c + 1)
            counts.append(found[:-1].view(images, c, c).cpu())
        table = torch.stack(counts)
        self.confusion = table.sum(1) + (self.confusion if len(self.confusion) else 0)
        self.per_image.append((table.diagonal(dim1=2, dim2=3), table.sum(2), table[0].sum(2)))

    def miou(self) -> Tensor:
        """NaN where every pixel is ignored."""
        if not self.confusion.any():
            return torch.tensor(torch.nan, dtype=torch.float64)
        return segmentation_scores(self.confusion)["miou"]
