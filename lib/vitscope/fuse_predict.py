"""From a saved head and pictures to classes: the backbone of the head's card is loaded and checked first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vitscope import backbones, frozen, fusion
from vitscope.backbones import Backbone
from vitscope.data.files import load_unlabelled
from vitscope.data.images import Images
from vitscope.weights import ENDINGS, WeightFileError, is_random


class FuseError(ValueError):
    """What was asked of `vitscope fuse` or its head cannot be done; the message says why and what to do."""


def predict(
    head_file: Path | str,
    images: Path | str | Images,
    *,
    backbone: Backbone | None = None,
    device: str = "auto",
) -> pd.DataFrame:
    """The likeliest class of every picture, by a head that `vitscope fuse` saved.

    `images`: a folder, all pictures below it, or an image set. The backbone that the card names is loaded;
    pass it where it came from a file of your own. Returns columns id, class and probability (of that class);
    pictures of a folder that do not decode have neither.

    Errors: as `fusion.load`; `WeightFileError` for a file without such a card; `FuseError` for a backbone
    with other weights or another transform than the head was fitted on, and for folders without pictures.
    """
    predictor = fusion.load(head_file)
    card = predictor.card
    if not {"backbone", "tokens", "norm", "transform"} <= card.keys():
        raise WeightFileError(
            f"{Path(head_file).name} has no card that names its backbone: save it with fuse"
        )
    with for_people():
        model = _card_backbone(card["backbone"], device) if backbone is None else backbone
        _check_backbone(model, card)
        shown = images if isinstance(images, Images) else load_unlabelled(Path(images).expanduser())
    states = frozen.block_states(model, shown, tokens=card["tokens"], norm=card["norm"])
    chances = predictor.predict_proba(states)
    best = chances.argmax(1)
    found = pd.DataFrame(
        {
            "id": shown.ids,
            "class": predictor.classes_[best],
            "probability": chances[np.arange(len(best)), best],
        }
    )
    if isinstance(images, Images) or not shown.skipped:
        return found
    unread = pd.DataFrame({"id": [path for path, _ in shown.skipped]})
    return pd.concat([found, unread], ignore_index=True)


def _card_backbone(card: dict[str, Any], device: str) -> Backbone:
    from_file = card["weights"] != "auto" and not is_random(card["weights"])
    if from_file or Path(card["name"]).suffix in ENDINGS:
        file = card["weights"] if from_file else card["name"]
        raise FuseError(
            f"the head was fitted on weights of your own, {file}: load them and pass the backbone, as "
            "predict(…, backbone=backbones.load(…))"
        )
    return backbones.load(card["name"], weights=card["weights"], img_size=card["img_size"], device=device)


def _check_backbone(model: Backbone, card: dict[str, Any]) -> None:
    if model.digest != card["backbone"]["digest"]:
        raise FuseError(
            f"the head was fitted on {card['backbone']['name']} with weights "
            f"{card['backbone']['digest'][:12]}, not on {model.name} with {model.digest[:12]}: its answers "
            "would mean nothing"
        )
    transform = json.loads(json.dumps(model.transform.describe()))
    if transform != card["transform"]:
        raise FuseError(
            f"the head was fitted on pictures prepared as {card['transform']}, this backbone prepares "
            f"{transform}"
        )


@contextmanager
def for_people() -> Iterator[None]:
    """What a person gave wrongly is told as such; errors of this library say so already."""
    try:
        yield
    except (ValueError, OSError) as error:
        if type(error).__module__.startswith("vitscope"):
            raise
        raise FuseError(str(error)) from error
