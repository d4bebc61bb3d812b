"""Point-in-box, linear segmentation and depth read from every state of a backbone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitscope import diffusion_curves as curves
from vitscope.backbones import Backbone
from vitscope.dense.boxes import PointInBox, Rule, cls_scores, point_in_box
from vitscope.dense.depth import Depth, depth_probe
from vitscope.dense.examples import DenseTokens
from vitscope.dense.segmentation import Segmentation, linear_segmentation
from vitscope.dense_parts import Pair, Part, by_states, load, needed, prepared
from vitscope.diffusion_curves import Curve

__all__ = [
    "BOTH",
    "PATCH",
    "Layers",
    "Pair",
    "Part",
    "Pointed",
    "Probed",
    "boxes",
    "depth",
    "depth_bounds",
    "load",
    "measure",
    "prepared",
    "segmentation",
]

PATCH, BOTH = "patch", "patch + CLS"
NO_CLS = "not measured, because {} has no CLS token"
BOUNDS = {
    "scenes": (0.1, 5.0), "scenes_fine": (0.1, 5.0), "scenes_single": (0.1, 5.0),
    "nyuv2": (0.001, 10.0), "sunrgbd": (0.001, 10.0), "kitti": (0.001, 80.0),
}  # fmt: skip


@dataclass(frozen=True)
class Probed:
    """What a dense probe reads at every state: `curves` by what it sees, `PATCH` or `BOTH`.

    `baseline` is the score of answers that do not look at the picture. Models without CLS have no `BOTH`.
    """

    curves: dict[str, Curve]
    baseline: float
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Pointed:
    """Point-in-box at states 0…L by both rules, and the curve of the rule "center" in percent."""

    states: tuple[int, ...]
    by_rule: dict[Rule, PointInBox]
    curve: Curve


@dataclass(frozen=True)
class Layers:
    """All three of one backbone; `point_in_box` is None for a model without CLS."""

    backbone: Backbone
    point_in_box: Pointed | None
    segmentation: Probed
    depth: Probed | None


def measure(backbone: Backbone, seen: Mapping[str, Pair], *, norm: str, seed: int = 0) -> Layers:
    """Point-in-box on `seen["boxes"]`, segmentation on "scenes", depth on "depth".

    Errors: `ValueError` for a set that lacks the annotation, and those of the probes.
    """
    return Layers(
        backbone,
        boxes(backbone, seen["boxes"].test, norm=norm) if backbone.has_cls else None,
        segmentation(backbone, seen["scenes"], norm=norm, seed=seed),
        depth(backbone, seen["depth"], norm=norm, seed=seed) if "depth" in seen else None,
    )


def boxes(backbone: Backbone, part: Part, *, norm: str, states: Sequence[int] | None = None) -> Pointed:
    """Point-in-box by layer: the patch most like CLS at the same state (0…L), under the same norm.

    Raises ValueError for a backbone without CLS and a set without boxes.
    """
    if not backbone.has_cls:
        raise ValueError(f"point-in-box was {NO_CLS.format(backbone.name)}")
    where = needed(part, "boxes")
    chosen = [s for s in backbone.states if s >= 0] if states is None else list(states)
    scores = torch.cat(
        [cls_scores(_cls(t), t.patches) for t in by_states(backbone, [part], norm, chosen, single=True)]
    )
    rules: tuple[Rule, ...] = ("center", "last_vit")
    found = {rule: point_in_box(scores, where, backbone.grid, rule=rule) for rule in rules}
    kept = found["center"]
    drawn = curves.of_images(chosen, kept.hits, clusters=part.clusters[kept.kept_index], scale=100.0)
    return Pointed(tuple(chosen), found, drawn)


def segmentation(
    backbone: Backbone,
    of: Pair,
    *,
    norm: str,
    states: Sequence[int] | None = None,
    seed: int = 0,
    cls: bool = True,
) -> Probed:
    """Linear segmentation of every state (mIoU in percent): patch tokens alone, and with `cls` beside CLS."""
    masks = [needed(part, "mask") for part in (of.train, of.test)]
    options: dict[str, Any] = {
        "grid": backbone.grid,
        "num_classes": len(of.test.data.classes),
        "train_groups": of.train.clusters,
        "seed": seed,
        "steps": _steps(len(of.train.data), 8, 500),
        "batch": 8,
    }
    if not of.test.data.classes[0].startswith("background"):
        options["background"] = None

    def fit(train: DenseTokens, test: DenseTokens, cls: dict[str, Any]) -> Segmentation:
        return linear_segmentation(train.patches, masks[0], test.patches, masks[1], **options, **cls)

    fitted = _fitted(backbone, of, norm, states, fit, cls)
    return Probed(
        {kind: _miou(parts, of.test.clusters) for kind, parts in fitted.items()},
        fitted[PATCH][0][1].majority_miou,
        _said(fitted),
    )


def depth(
    backbone: Backbone, of: Pair, *, norm: str, states: Sequence[int] | None = None, seed: int = 0
) -> Probed:
    """Depth of every state, patch tokens alone and with CLS; RMSE in the unit of the set."""
    maps = [needed(part, "depth") for part in (of.train, of.test)]
    options: dict[str, Any] = {
        "grid": backbone.grid, "bounds": depth_bounds(of.name), "seed": seed,
        "steps": _steps(len(of.train.data), 32, 200), "batch": 32,
    }  # fmt: skip

    def fit(train: DenseTokens, test: DenseTokens, cls: dict[str, Any]) -> Depth:
        return depth_probe(train.patches, maps[0], test.patches, maps[1], **options, **cls)

    fitted = _fitted(backbone, of, norm, states, fit)
    return Probed(
        {kind: _rmse(parts, of.test.clusters) for kind, parts in fitted.items()},
        float(fitted[PATCH][0][1].baseline_rmse),
        _said(fitted),
    )


def _steps(pictures: int, batch: int, least: int) -> int:
    """Ten passes over the training pictures, and no fewer than `least` steps."""
    return max(least, -(-10 * pictures // batch))


def depth_bounds(name: str) -> tuple[float, float]:
    """Nearest and farthest depth that bins cover, in the unit of the set: dinov2's for published layouts.

    >>> depth_bounds("scenes"), depth_bounds("kitti:data/kitti")
    ((0.1, 5.0), (0.001, 80.0))
    """
    return BOUNDS.get(name.partition(":")[0], BOUNDS["nyuv2"])


def _fitted(backbone: Backbone, of: Pair, norm: str, states, fit, cls: bool = True) -> dict[str, list]:
    """(states, probe) of every run of the model, by what the probe sees."""
    chosen = backbone.states if states is None else list(states)
    found: dict[str, list] = {PATCH: []}
    parts = by_states(backbone, [of.train, of.test], norm, chosen)
    for train, test in parts:
        found[PATCH].append((train.states, fit(train, test, {})))
        later = [s for s in train.states if s >= 0]  # there is no CLS before
        if not cls or not backbone.has_cls or not later:
            continue
        with_cls = [train.at(*later), test.at(*later)]
        given = dict(zip(("train_cls", "test_cls"), map(_cls, with_cls), strict=True))
        found.setdefault(BOTH, []).append((later, fit(*with_cls, given)))
    return found


def _cls(tokens: DenseTokens) -> Tensor:
    assert tokens.cls is not None  # models without CLS are told apart before
    return tokens.cls


def _miou(parts: Sequence[tuple[Sequence[int], Segmentation]], clusters: np.ndarray) -> Curve:
    states = [s for some, _ in parts for s in some]
    both, predicted = (
        np.concatenate([getattr(probe, name).numpy() for _, probe in parts])
        for name in ("intersection", "predicted")
    )
    return curves.miou(states, both, predicted, parts[0][1].target.numpy(), clusters=clusters)


def _rmse(parts: Sequence[tuple[Sequence[int], Depth]], clusters: np.ndarray) -> Curve:
    states = [s for some, _ in parts for s in some]
    squares = np.concatenate([probe.squared_error.numpy() for _, probe in parts])
    first = parts[0][1]
    return curves.rmse(states, squares, first.pixels.numpy(), clusters=clusters)


def _said(fitted: Mapping[str, Sequence[tuple[Sequence[int], Segmentation | Depth]]]) -> tuple[str, ...]:
    return tuple(
        f"{kind} (states counted from 0, which is state {some[0]}): {text}"
        for kind, parts in fitted.items()
        for some, probe in parts
        for text in probe.warnings
    )
