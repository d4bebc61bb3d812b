"""What a trained twin can do on renders it has never seen: identity and group accuracy, both art styles."""

import numpy as np
import torch

from vitscope.data import emoji
from vitscope.pretrain.stream import IdentityStream
from vitscope.pretrain.supervised import normalise

EVALUATION_SEED = 1_000_003  # another stream than any training seed


@torch.inference_mode()
def identity_accuracy(
    model: torch.nn.Module,
    *,
    style: str,
    scale: tuple[float, float] = (0.55, 1.0),
    renders: int = 4,
    batch: int = 256,
) -> dict:
    """Top-1, top-5 and group accuracy (percent) over `renders` fresh renders of every seen identity.

    `scale`: share of the canvas an emoji takes. Backgrounds come from the part of the photographs that
    training never shows. Group accuracy counts a prediction as right when the predicted identity lies in the
    true group.
    """
    recipe = emoji.Recipe(background_part="test", scale=scale)
    stream = IdentityStream(style=style, seed=EVALUATION_SEED, recipe=recipe)
    groups = emoji.identities()["group"].astype("category").cat.codes.to_numpy()[stream.identities]
    total = renders * stream.num_classes
    hits = {"top1": 0, "top5": 0, "group": 0}
    device = next(model.parameters()).device
    for start in range(0, total, batch):
        pictures, labels = stream.batch(start, min(batch, total - start))
        best = model(normalise(pictures.to(device))).topk(5, dim=1).indices.cpu()
        found = best == labels[:, None]
        hits["top1"] += int(found[:, 0].sum())
        hits["top5"] += int(found.any(1).sum())
        hits["group"] += int((groups[best[:, 0].numpy()] == groups[labels.numpy()]).sum())
    share = np.bincount(groups).max() / len(groups)
    return {
        "style": style,
        "renders": total,
        **{key: round(100 * value / total, 2) for key, value in hits.items()},
        "chance_top1": round(100 / stream.num_classes, 3),
        "majority_group": round(100 * float(share), 2),
    }
