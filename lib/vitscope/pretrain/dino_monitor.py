"""How much a backbone without head knows: each picture is named after the nearest render of another."""

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from vitscope.data import emoji
from vitscope.pretrain.evaluate import EVALUATION_SEED
from vitscope.pretrain.supervised import normalise


class NearestRenders(nn.Module):
    """Scores of C classes: the largest cosine between a picture's feature and the renders of that class.

    `bank` are features of M known pictures, `labels` their classes 0 … C−1, each of which must occur.
    """

    bank: Tensor
    labels: Tensor

    def __init__(
        self, backbone: nn.Module, bank: Float[Tensor, "M D"], labels: Int64[Tensor, " M"], classes: int
    ) -> None:
        super().__init__()
        if len(bank) != len(labels) or len(labels.unique()) != classes:
            raise ValueError(
                f"one label per known picture and a picture of each of {classes} classes are needed, "
                f"got {len(bank)} pictures, {len(labels)} labels of {len(labels.unique())} classes"
            )
        self.backbone, self.classes = backbone, classes
        self.register_buffer("bank", F.normalize(bank, dim=1))
        self.register_buffer("labels", labels)

    def forward(self, pictures: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N C"]:
        cosines = F.normalize(self.backbone(pictures), dim=1) @ self.bank.T
        scores = cosines.new_full((len(pictures), self.classes), -torch.inf)
        return scores.scatter_reduce(1, self.labels.expand_as(cosines), cosines, "amax")


@lru_cache(maxsize=4)
def monitor_pictures(
    style: str, scale: tuple[float, float], identities: int, renders: int
) -> tuple[UInt8[Tensor, "R I 3 64 64"], Int64[np.ndarray, " I"]]:
    """`renders` pictures of each of the first `identities` seen emoji of a fixed shuffle, and their numbers.

    Backgrounds come from the part of the photographs that training never shows.
    """
    seen = np.flatnonzero(~emoji.identities()["held_out"].to_numpy())
    if not 1 < identities <= len(seen) or renders < 2:
        raise ValueError(
            f"2 to {len(seen)} identities and 2 or more renders are needed, got {identities} and {renders}"
        )
    chosen = np.random.default_rng(0).permutation(seen)[:identities]
    pictures = emoji.render(
        np.tile(chosen, renders),
        np.arange(renders * identities),
        style=style,
        seed=EVALUATION_SEED,
        recipe=emoji.Recipe(background_part="test", scale=scale),
    )
    return pictures.view(renders, identities, *pictures.shape[1:]), chosen


@torch.inference_mode()
def knn_identity(
    model: nn.Module,
    *,
    style: str = "noto",
    scale: tuple[float, float] = (0.55, 1.0),
    identities: int = 300,
    renders: int = 5,
    batch: int = 256,
) -> dict[str, float]:
    """Percent of emoji whose fresh render lies nearest (cosine) to a render of itself, and of its group.

    All but the last of `renders` renders of each identity are known, the last is asked. `scale` is the
    share of the canvas an emoji takes. Returns `identity` and `group` in percent, with `chance_identity` and
    `majority_group` beside them.
    """
    pictures, chosen = monitor_pictures(style, scale, identities, renders)
    device = next(model.parameters()).device
    flat = normalise(pictures.flatten(0, 1))
    pad = -len(flat) % batch  # equal batches: one compiled graph serves all
    flat = torch.cat([flat, flat[:1].expand(pad, -1, -1, -1)])
    features = torch.cat([model(part.to(device)).float().cpu() for part in flat.split(batch)])
    features = F.normalize(features[: renders * identities], dim=1)
    if not torch.isfinite(features).all():
        raise ValueError("the model gives features that are not finite; there is nothing to compare")
    known, asked = features[:-identities], features[-identities:]
    found = (asked @ known.T).argmax(1).numpy() % identities
    groups = emoji.identities()["group"].astype("category").cat.codes.to_numpy()[chosen]
    return {
        "identity": round(100 * float((found == np.arange(identities)).mean()), 2),
        "group": round(100 * float((groups[found] == groups).mean()), 2),
        "chance_identity": round(100 / identities, 3),
        "majority_group": round(100 * float(np.bincount(groups).max() / identities), 2),
    }


@torch.inference_mode()
def nearest_renders(
    backbone: nn.Module,
    *,
    style: str,
    scale: tuple[float, float] = (0.55, 1.0),
    renders: int = 4,
    batch: int = 256,
) -> NearestRenders:
    """A classifier of all seen identities from a backbone and `renders` known renders of each.

    The renders are other ones than those of `evaluate.identity_accuracy`.
    """
    seen = np.flatnonzero(~emoji.identities()["held_out"].to_numpy())
    labels = np.tile(np.arange(len(seen)), renders)
    device = next(backbone.parameters()).device
    features = []
    for start in range(0, len(labels), batch):
        part = labels[start : start + batch]
        pictures = emoji.render(
            seen[part],
            np.arange(start, start + len(part)),
            style=style,
            seed=EVALUATION_SEED + 1,
            recipe=emoji.Recipe(background_part="test", scale=scale),
        )
        features.append(backbone(normalise(pictures.to(device))).float())
    return NearestRenders(
        backbone, torch.cat(features), torch.from_numpy(labels).to(device), len(seen)
    ).eval()
