"""What two pictures have in common for a model: the emoji, or the background?

A training that takes both views of a pair from one render can tell which views belong together by their
background alone. Whether it did is asked here with pictures that no training has seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from vitscope import plotting
from vitscope.backbones import Backbone
from vitscope.capture import capture
from vitscope.data import emoji
from vitscope.intervals import bootstrap_mean

_SEED = 9_000_000  # of renders that neither training, evaluation nor a task draws


class Triplets(NamedTuple):
    """Pictures [N, 3, 64, 64]: one asked about, its emoji elsewhere, another emoji on its background."""

    asked: UInt8[Tensor, "N 3 h w"]
    same_emoji: UInt8[Tensor, "N 3 h w"]
    same_background: UInt8[Tensor, "N 3 h w"]


def triplets(count: int, *, seed: int, scale: tuple[float, float] = emoji.Recipe.scale) -> Triplets:
    """`count` different emoji seen in training, each with a partner of another group.

    Pose and light of all three pictures differ; backgrounds come from the part kept for evaluation. Raises
    ValueError for fewer than 2 and for more emoji than were seen.
    """
    table = emoji.identities()
    seen = np.flatnonzero(~table["held_out"].to_numpy())
    if not 2 <= count <= len(seen):
        raise ValueError(f"count must be between 2 and the {len(seen)} emoji seen, got {count}")
    random = np.random.default_rng(seed)
    asked = random.permutation(seen)[:count]
    groups = table["group"].to_numpy()
    others = np.array([random.choice(seen[groups[seen] != groups[number]]) for number in asked])
    ids = np.arange(count)
    draw = partial(emoji.render, style="noto", seed=_SEED + seed, recipe=emoji.Recipe(scale=scale))
    return Triplets(
        draw(asked, ids), draw(asked, ids + count), draw(others, ids + 2 * count, backgrounds=ids)
    )


def prefers_emoji(
    asked: Float[Tensor, "N D"], same_emoji: Float[Tensor, "N D"], same_background: Float[Tensor, "N D"]
) -> np.ndarray:
    """Whether cos(asked, same emoji) > cos(asked, same background), bool [N].

    >>> one = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> prefers_emoji(one, torch.tensor([[1.0, 0.1], [0.0, 1.0]]), torch.tensor([[1.0, 1.0], [1.0, 1.0]]))
    array([ True, False])
    """
    likeness = [F.cosine_similarity(asked, other, dim=1) for other in (same_emoji, same_background)]
    return (likeness[0] > likeness[1]).numpy()


def preference(models: Mapping[str, Backbone], pictures: Triplets) -> pd.DataFrame:
    """Share (%) of pictures that a model finds nearer to their emoji than to their background.

    Features are CLS (without CLS the mean patch) of the last state after the last norm. One row a model,
    with a bootstrap interval over emoji.
    """
    rows = []
    for name, model in models.items():
        asked, emojis, backgrounds = (_features(model, part) for part in pictures)
        found = bootstrap_mean(100.0 * prefers_emoji(asked, emojis, backgrounds))
        rows.append({"model": name, "emoji": found.mean, "low": found.low, "high": found.high})
    return pd.DataFrame(rows).astype(dict.fromkeys(("emoji", "low", "high"), float))


def numbers(found: pd.DataFrame, count: int) -> dict[str, dict[str, Any]]:
    """What `Run.report_each` takes: the share of each model with its interval over `count` emoji."""
    return {
        row.model: {"value": row.emoji, "spread": (row.low, row.high), "n": count, "unit": "%"}
        for row in found.itertuples()
    }


def words(found: pd.DataFrame) -> str:
    """The shares in a sentence, "MODEL 12.3 % (10.0 to 15.0), …"."""
    return ", ".join(f"{r.model} {r.emoji:.1f} % ({r.low:.1f} to {r.high:.1f})" for r in found.itertuples())


def preference_figure(found: pd.DataFrame) -> plotting.Figure:
    """The shares of `preference` as bars; at 50 % emoji and background weigh alike."""
    return plotting.category_bars(
        found,
        x="model",
        y="emoji",
        band=("low", "high"),
        reference=(50.0, "emoji and background weigh alike"),
        title="Nearer to the same emoji than to the same background",
        ylabel="share of pictures (%)",
        name="shortcut",
        alt=f"Share of pictures that lie nearer to their emoji than to their background: {words(found)}.",
    )


def _features(model: Backbone, pictures: Tensor) -> Tensor:
    with torch.inference_mode():
        seen = capture(model, model.transform(pictures), norm="final")
    states = seen.patch_mean if seen.cls is None else seen.cls
    assert states is not None  # a model has CLS or patches, and both are kept
    return states[-1].float()
