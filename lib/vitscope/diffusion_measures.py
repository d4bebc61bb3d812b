"""Semantic diffusion in the tokens of one backbone: leakage, likeness of tokens, high norms, by state.

The formulas are in `metrics.leakage` and `metrics.diffusion`; here a model runs, and what comes out is put
together with resamples over pictures. Attention: `diffusion_attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from vitscope import diffusion_curves as curves
from vitscope.backbones import Backbone
from vitscope.capture import capture
from vitscope.dense.masks import patch_coverage
from vitscope.dense_parts import Pair, Part, by_states
from vitscope.diffusion_curves import Curve
from vitscope.estimates import divided
from vitscope.metrics import diffusion
from vitscope.metrics.diffusion import HighNorm, patch_kinds
from vitscope.metrics.leakage import PARTS, Leakage, On, leakage
from vitscope.reductions import Tokens

BACKGROUND = "background"
PER_IMAGE = 8  # patches of a kind that a picture gives to a probe; small objects have no more
_NOTHING = 1e-12  # an accuracy above chance by no more is not above it


@dataclass(frozen=True)
class Leaks:
    """Leakage by state, and what single patches tell: state, part, accuracy, luck (%), images.

    `images` were scored; `left_out` lack foreground or background patches, or are of a class not taught.
    """

    curve: Curve
    table: pd.DataFrame
    images: int
    left_out: int
    warnings: tuple[str, ...]

    @property
    def defined(self) -> bool:
        """Whether objects tell more than luck at any state, so that there is a ratio."""
        return not np.isnan(self.curve.value).all()


@dataclass(frozen=True)
class Likeness:
    """Cosine gap between foreground and background, and correlation of likeness with distance, by state.

    `by_distance`: state, distance in patches, mean cosine over pictures.
    """

    gap: Curve
    correlation: Curve
    by_distance: pd.DataFrame


@dataclass(frozen=True)
class Norms:
    """Patches of high norm by state, without any norm applied; `share` in percent, with resamples."""

    states: tuple[int, ...]
    found: HighNorm
    share: Curve


def coverage(part: Part, backbone: Backbone) -> Float[torch.Tensor, "N P"]:
    """Share of every patch that objects cover; pixels without a class count as object, never as background.

    Raises ValueError for a set without masks, or without a class for the background.
    """
    mask, classes = part.seen.mask, part.data.classes
    if mask is None or not classes[0].startswith(BACKGROUND):
        raise ValueError(
            f"{part.data.name} has no {'masks' if mask is None else 'background class'}, so there is no "
            "foreground to tell from background: take a set such as 'scenes'"
        )
    return patch_coverage(mask, backbone.grid).float()


def leaks(
    backbone: Backbone, of: Pair, *, norm: str, seed: int, states: Sequence[int] | None = None
) -> Leaks:
    """The picture's label from single patches of every state (or some), read in each kind at its best.

    Two probes a state: one fitted on patches of objects and tested on such patches, one of background alike,
    both on at most `PER_IMAGE` patches a picture. A single probe of all patches would be one of background,
    of which there is more. leakage = (a_background − luck)/(a_object − luck). Ours; errors as `coverage` and
    `metrics.leakage.leakage`.
    """
    chosen = backbone.states if states is None else list(states)
    parts = [of.train, of.test]
    known = [(part.data.images.labels, coverage(part, backbone)) for part in parts]
    # classes that both probes are taught, in few pictures not all
    taught = known[0][0][torch.stack(patch_kinds(known[0][1])).any(2).all(0).numpy()]
    rows = torch.from_numpy(np.isin(known[1][0], taught))
    asked = known[1][0][rows.numpy()], known[1][1][rows]
    clusters = of.test.clusters[rows.numpy()]
    options: dict[str, Any] = {
        "grid": backbone.grid, "groups": of.train.clusters, "seed": seed, "per_image": PER_IMAGE,
    }  # fmt: skip
    found: dict[On, list[Leakage]] = {"foreground": [], "background": []}
    for train, test in by_states(backbone, parts, norm, chosen):
        for on, fitted in found.items():
            fitted.append(leakage(train.patches, *known[0], test.patches[:, rows], *asked, on=on, **options))
    front, back = found.values()
    read = [back if part != "foreground" else front for part in PARTS]
    cells = {
        name: np.stack([torch.cat([one.table()[name] for one in of])[:, q] for q, of in enumerate(read)], 1)
        for name in ("accuracy", "luck")
    }
    count = front[0].table()["images"].tolist()
    cells_of = [
        (state, part, 100 * cells["accuracy"][s, q], 100 * cells["luck"][s, q], count[q])
        for s, state in enumerate(chosen)
        for q, part in enumerate(PARTS)
    ]
    table = pd.DataFrame(cells_of, columns=["state", "part", "accuracy", "luck", "images"])
    return Leaks(
        _ratio(front, back, chosen, clusters),
        table.dropna(subset="accuracy").reset_index(drop=True),
        len(front[0].images),
        len(rows) - len(front[0].images),
        _said((*front, *back), 2 * len(chosen)),
    )


def _said(found: Sequence[Leakage], probes: int) -> tuple[str, ...]:
    """One sentence for the remarks of all probes, which name states by their place among those fitted."""
    count = sum(len(one.warnings) for one in found)
    if not count:
        return ()
    example = next(text for one in found for text in one.warnings).partition(" for states")[0]
    return (f"{count} remarks on {probes} probes, such as: {example}.",)


def _ratio(
    front: Sequence[Leakage], back: Sequence[Leakage], states: Sequence[int], clusters: np.ndarray
) -> Curve:
    """Background over foreground, both above luck, in all resamples."""
    own = clusters[front[0].images.numpy()]
    above = [
        torch.cat([one.right[..., column] - one.luck[..., column] for one in fitted])
        for column, fitted in enumerate((front, back))
    ]
    object_, background = (curves.of_images(states, values, clusters=own) for values in above)

    def ratio(below: np.ndarray, above: np.ndarray) -> np.ndarray:
        return divided(above, np.where(below > _NOTHING, below, 0.0))

    value = ratio(object_.value, background.value)
    return Curve(tuple(states), value, ratio(object_.drawn, background.drawn), object_.count)


def likeness(backbone: Backbone, part: Part, *, norm: str) -> Likeness:
    """Cosines of the tokens of a picture, less the mean token of all pictures at that state.

    Errors: as `coverage` and the measures of `metrics.diffusion`.
    """
    covered, states = coverage(part, backbone), backbone.states
    gaps, correlations, rows = [], [], []
    for tokens in by_states(backbone, [part], norm, states, single=True):
        for state, patches in zip(tokens.states, tokens.patches, strict=True):
            centre = patches.mean((0, 1))
            gaps.append(diffusion.foreground_background_gap(patches, covered, centre=centre).gap)
            curve = diffusion.similarity_against_distance(patches, backbone.grid, centre=centre)
            correlations.append(curve.correlation)
            means = curve.cosine.mean(0).tolist()
            rows += [(state, step, value) for step, value in zip(curve.steps.tolist(), means, strict=True)]
    return Likeness(
        curves.of_images(states, torch.stack(gaps), clusters=part.clusters),
        curves.of_images(states, torch.stack(correlations), clusters=part.clusters),
        pd.DataFrame(rows, columns=["state", "distance", "cosine"]),
    )


def norms(backbone: Backbone, part: Part) -> Norms:
    """Patches of high norm (median + 6 MAD of a state), of tokens as they are: a norm would hide them."""
    lengths = capture(
        backbone, part.seen.inputs, norm="none", reductions={"norms": _lengths}, progress=False
    ).extra["norms"]
    mask = part.seen.mask
    known = mask is not None and part.data.classes[0].startswith(BACKGROUND)
    found = diffusion.high_norm(lengths, coverage(part, backbone) if known else None)
    share = curves.of_images(
        backbone.states, found.high.double().mean(-1), clusters=part.clusters, scale=100.0
    )
    return Norms(tuple(backbone.states), found, share)


def _lengths(tokens: Tokens) -> dict[str, torch.Tensor]:
    return {"norms": torch.linalg.vector_norm(tokens.patches.float(), dim=-1)}
