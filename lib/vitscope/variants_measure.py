"""What a model knows at its last state: class of an image, of a pixel, depth; and where its patches look.

Every result is a `Curve` of one state with its bootstrap resamples over test pictures. Resamples draw the
same pictures for all models, so differences between models are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vitscope import data, frozen
from vitscope import diffusion_curves as curves
from vitscope.backbones import Backbone
from vitscope.data.images import Images
from vitscope.dense import examples
from vitscope.dense.boxes import cls_scores, point_in_box
from vitscope.dense.depth import depth_probe
from vitscope.dense.examples import Annotated, DenseTokens
from vitscope.dense.neighbours import knn_classify
from vitscope.dense.segmentation import linear_segmentation
from vitscope.dense_layers import Pair, Part, depth_bounds, prepared
from vitscope.diffusion_attention import Attention, attention
from vitscope.diffusion_curves import Curve
from vitscope.errors import unknown
from vitscope.features import Cache
from vitscope.probes import fit_probes
from vitscope.variants import Family, Variant

NEIGHBOURS = 20  # as in DINO's weighted k-NN
ATTENTION_PICTURES = 60  # test pictures whose attention maps are read
# of the segmentation head, fitted at one cell a patch: eight models are to be measured within minutes
STEPS, L2 = 300, (1e-2, 1e-3, 1e-4)
TRANSFERRED = "sunrgbd"  # the layout whose depth is read by a probe fitted on the first depth set

Key = tuple[str, str]
"""A measure ("top1", "knn", "miou", "miou_cls", "rmse", "pib") and the set it was taken on."""


@dataclass(frozen=True)
class Sets:
    """What every variant is tested on; `sets` by name, training and test part."""

    recognition: tuple[Images, Images]
    sets: Mapping[str, tuple[Annotated, Annotated]]
    segmentation: tuple[str, ...]
    depth: tuple[str, ...]

    @property
    def boxes(self) -> str | None:
        """The last set with masks that has boxes as well."""
        return next((s for s in reversed(self.segmentation) if "boxes" in self.sets[s][1].kinds), None)

    def keys(self, *measures: str) -> list[Key]:
        """The keys of some measures on all sets they are taken on. Raises `UnknownName` for another name."""
        images = (self.recognition[0].name,)
        where: dict[str, tuple[str, ...]] = {
            "top1": images,
            "knn": images,
            "miou": self.segmentation,
            "miou_cls": self.segmentation,
            "rmse": self.depth,
            "pib": () if self.boxes is None else (self.boxes,),
        }
        for measure in measures:
            if measure not in where:
                raise unknown("measure", measure, where)
        return [(measure, name) for measure in measures for name in where[measure]]

    def fitted_on(self, name: str) -> str:
        """The depth set whose training part the probe of a depth set is fitted on.

        Every embedded set after the first, and SUN RGB-D, are zero-shot: the probe of the first is tested.
        """
        first = self.depth[0]
        moved = name in examples.EMBEDDED or name.startswith(f"{TRANSFERRED}:")
        return first if name != first and moved else name

    def prepared(self, family: Family) -> dict[str, Pair]:
        """The sets as the variants of a family see them. Errors: as `dense.examples.prepare`."""
        one = family.trainings[0][0].dense
        return prepared([one], self.sets)[one.name]


@dataclass(frozen=True)
class Found:
    """What was measured of one model. `chance` holds what answers reach that do not look at the picture."""

    name: str
    scores: Mapping[Key, Curve]
    chance: Mapping[Key, float]
    looked: Attention | None
    warnings: tuple[str, ...]


def load(
    dataset: str,
    datasets: Sequence[str],
    depth: Sequence[str],
    *,
    probe_images: int,
    images: int,
    test_images: int,
    seed: int,
) -> Sets:
    """Read all sets. Half as many of `probe_images` test recognition.

    Errors: as `data.load` and `dense.examples.load`; `ValueError` for a set without the annotation it is
    named for.
    """
    sets = {}
    for kind, names in (("segmentation", datasets), ("depth", depth)):
        for name in names:
            if name not in sets:
                sets[name] = (
                    examples.load(name, "train", limit=images, seed=seed),
                    examples.load(name, "test", limit=test_images, seed=seed),
                )
            if kind not in sets[name][0].kinds:
                raise ValueError(
                    f"{name} has no annotation for {kind}, only {', '.join(sets[name][0].kinds)}: "
                    "name it under another parameter"
                )
    recognition = (
        data.load(dataset, "train", limit=probe_images, seed=seed),
        data.load(dataset, "test", limit=max(1, probe_images // 2), seed=seed),
    )
    return Sets(recognition, sets, tuple(datasets), tuple(depth))


def measure(
    variant: Variant,
    tests: Sets,
    seen: Mapping[str, Pair],
    *,
    norm: str,
    seed: int,
    cache: Cache = None,
    short: bool = False,
) -> Found:
    """Everything of one model; `short`: recognition, and the patches of the first set with masks alone.

    `seen` is what `Sets.prepared` gives. Errors: as `frozen.make`, `capture` and the probes.
    """
    scores, chance, said = recognise(variant.native, *tests.recognition, norm=norm, seed=seed, cache=cache)
    first = tests.segmentation[0]
    backbone = variant.dense
    names = [first] if short else list(dict.fromkeys([*tests.depth, *tests.segmentation]))
    source: tuple[DenseTokens, torch.Tensor] | None = None  # tokens and depth of the first depth set
    kept: dict[str, DenseTokens] = {}  # sets of the same pictures share their tokens
    for at, name in enumerate(names):
        pair, told = seen[name], f"{name}: "
        own = name in tests.segmentation or tests.fitted_on(name) == name
        kept = {key: kept[key] for key in kept if key in _digests(seen, names[at:])}
        parts = [
            _kept(kept, backbone, part, norm) for part in ((pair.test, pair.train) if own else (pair.test,))
        ]
        test, train = parts[0], parts[1] if own else None
        if name in tests.segmentation and train is not None:
            found, base, warned = segment(backbone, pair, train, test, cls=not short, seed=seed)
            scores |= {(measure, name): curve for measure, curve in found.items()}
            chance[("miou", name)] = base
            said += [told + text for text in warned]
        if name in tests.depth and not short:
            if tests.fitted_on(name) == name and train is not None and pair.train.seen.depth is not None:
                fitted = (train, pair.train.seen.depth)
                source = source or fitted
            elif source is not None:
                fitted = source
            else:
                raise ValueError(f"{name}: there is no depth to fit a probe to")
            bounds = depth_bounds(tests.fitted_on(name))
            found_depth = depth(backbone, pair, fitted, test, bounds=bounds, seed=seed)
            scores[("rmse", name)], chance[("rmse", name)], warned = found_depth
            said += [told + text for text in warned]
        if name == tests.boxes and not short and test.cls is not None and pair.test.seen.boxes is not None:
            scores[("pib", name)], chance[("pib", name)] = pointed(backbone, pair, test)
    looked = None if short else look(backbone, seen[first])
    return Found(variant.name, scores, chance, looked, tuple(dict.fromkeys(said)))


def recognise(
    backbone: Backbone, train: Images, test: Images, *, norm: str, seed: int, cache: Cache
) -> tuple[dict[Key, Curve], dict[Key, float], list[str]]:
    """Accuracy (%) of a linear probe and of weighted k-NN on CLS of the last state (or the mean patch)."""
    task = frozen.make(backbone, train, test, norm=norm, cache=cache)
    x, y, labels = task.train.features[-1:], task.test.features[-1:], task.train.labels
    probes = fit_probes(x, labels, groups=task.groups, seed=seed, names=[f"the last of {backbone.name}"])
    classes = np.asarray(probes.classes)
    linear = classes[probes.logits(y).argmax(-1).numpy()]
    votes = knn_classify(x, labels, y, k=min(NEIGHBOURS, len(labels)))
    nearest = np.asarray(votes.classes)[votes.scores.argmax(-1).numpy()]
    scores = {
        (key, train.name): curves.of_images(
            [backbone.depth], named == task.test.labels, clusters=task.test.groups, scale=100.0
        )
        for key, named in (("top1", linear), ("knn", nearest))
    }
    majority = 100 * float((task.test.labels == probes.majority).mean())
    return scores, dict.fromkeys(scores, majority), list(probes.warnings)


def segment(
    backbone: Backbone, pair: Pair, train: DenseTokens, test: DenseTokens, *, cls: bool, seed: int
) -> tuple[dict[str, Curve], float, tuple[str, ...]]:
    """mIoU (%) of linear segmentation from patches, and with `cls` from patches and CLS if there is one."""
    masks = pair.train.seen.mask, pair.test.seen.mask
    assert masks[0] is not None  # `load` has seen to it
    assert masks[1] is not None
    classes = pair.test.data.classes
    options: dict[str, Any] = {
        "grid": backbone.grid,
        "num_classes": len(classes),
        "background": 0 if classes[0].startswith("background") else None,
        "train_groups": pair.train.clusters,
        "train_size": backbone.grid,
        "steps": STEPS,
        "l2": L2,
        "seed": seed,
    }
    tokens: dict[str, dict[str, Any]] = {"miou": {}}
    if cls and train.cls is not None:
        tokens["miou_cls"] = {"train_cls": train.cls, "test_cls": test.cls}
    scores: dict[str, Curve] = {}
    said: list[str] = []
    base = 0.0
    for key, given in tokens.items():
        found = linear_segmentation(train.patches, masks[0], test.patches, masks[1], **options, **given)
        counts = (found.intersection.numpy(), found.predicted.numpy(), found.target.numpy())
        scores[key] = curves.miou([backbone.depth], *counts, clusters=pair.test.clusters)
        said += found.warnings
        base = found.majority_miou
    return scores, float(base), tuple(said)


def depth(
    backbone: Backbone,
    pair: Pair,
    fitted: tuple[DenseTokens, torch.Tensor],
    test: DenseTokens,
    *,
    bounds: tuple[float, float],
    seed: int,
) -> tuple[Curve, float, tuple[str, ...]]:
    """RMSE, in the unit of the set, of dinov2's depth probe on patches with CLS (without CLS, patches)."""
    train, known = fitted
    assert pair.test.seen.depth is not None  # `load` has seen to it
    cls = {} if train.cls is None else {"train_cls": train.cls, "test_cls": test.cls}
    options: dict[str, Any] = {"grid": backbone.grid, "bounds": bounds, "seed": seed, **cls}
    found = depth_probe(train.patches, known, test.patches, pair.test.seen.depth, **options)
    curve = curves.rmse(
        [backbone.depth], found.squared_error.numpy(), found.pixels.numpy(), clusters=pair.test.clusters
    )
    return curve, float(found.baseline_rmse), tuple(found.warnings)


def pointed(backbone: Backbone, pair: Pair, test: DenseTokens) -> tuple[Curve, float]:
    """Point-in-box (%) by the rule "center", and what a random patch gets."""
    assert test.cls is not None  # `measure` has looked
    assert pair.test.seen.boxes is not None
    found = point_in_box(cls_scores(test.cls, test.patches), pair.test.seen.boxes, backbone.grid)
    clusters = pair.test.clusters[found.kept_index]
    curve = curves.of_images([backbone.depth], found.hits, clusters=clusters, scale=100.0)
    return curve, 100 * found.chance


def look(backbone: Backbone, pair: Pair) -> Attention:
    """Attention of every block on some test pictures. Errors: as `diffusion_attention.attention`."""
    known = pair.test.data.classes[0].startswith("background")
    return attention(backbone, pair.test.some(ATTENTION_PICTURES), known=known)


def _digests(seen: Mapping[str, Pair], names: Sequence[str]) -> set[str]:
    return {part.data.images.digest for name in names for part in (seen[name].train, seen[name].test)}


def _kept(kept: dict[str, DenseTokens], backbone: Backbone, part: Part, norm: str) -> DenseTokens:
    """Tokens of the last state, computed once for pictures of one digest."""
    digest = part.data.images.digest
    if digest not in kept:
        kept[digest] = examples.tokens(backbone, part.seen.inputs, norm=norm, states=[backbone.depth])
    return kept[digest]
