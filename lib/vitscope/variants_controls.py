"""Controls of the comparison of variants, and the variants along their training.

Random weights tell what a probe reads without any training. A model evaluated with the other's
normalization tells whether the change acts in training or in the forward pass. Softmax at a lower
temperature is as sharp as one likes and has no zeros: computed with the scores written down, as entmax-1.5
is, it tells sharpness from sparsity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd
import torch

from vitscope import backbones as zoo
from vitscope.attention import swap_attention
from vitscope.backbones import Backbone, TimmViT, describe
from vitscope.capture import capture
from vitscope.dense_layers import Pair
from vitscope.features import Cache
from vitscope.metrics.support import zero_share
from vitscope.reported import Reported
from vitscope.transforms import Transform
from vitscope.variants import SPARSE, Family, Variant, load
from vitscope.variants_measure import Found, Sets, look, measure
from vitscope.variants_numbers import NO_SPARSE, Measured, Rows, slug, worded
from vitscope.variants_scores import Score, gain, level, of_curves

TEMPERATURES = (0.5, 0.7)
MOMENTS = ("miou", "knn", "top1")


@dataclass(frozen=True)
class Condition:
    """A model of the first training, or what became of it; `kind` groups conditions of one question."""

    kind: str
    model: str
    variant: Variant


def conditions(family: Family, *, weights: str | None, img_size: int | None, device: str) -> list[Condition]:
    """The baseline and the entmax-1.5 variant of the first training as they are, and under the controls.

    Without such a variant the baseline alone. Errors: as `backbones.load` and `attention.swap_attention`.
    """
    first = dict(zip(family.names, family.trainings[0], strict=True))
    kept = [name for name in (family.baseline, family.sparse) if name is not None]
    make = partial(_changed, img_size=img_size, device=device)
    found = [Condition("as trained", name, first[name]) for name in kept]
    for name in kept:
        changed = make(first[name], "random weights", weights="random")
        found.append(Condition("random weights", name, changed))
    for name in kept:
        other = "softmax" if first[name].dense.attention == SPARSE else SPARSE
        changed = make(first[name], f"evaluated with {other}", weights=weights or "auto", attention=other)
        found.append(Condition(f"evaluated with {other}", name, changed))
    if first[family.baseline].dense.attention == "softmax":
        for t in TEMPERATURES:
            label = f"softmax at temperature {t:g}"
            changed = make(first[family.baseline], label, weights=weights or "auto", temperature=t)
            found.append(Condition(label, family.baseline, changed))
    return found


def _changed(
    one: Variant,
    label: str,
    *,
    weights: str,
    img_size: int | None,
    device: str,
    attention: str = "auto",
    temperature: float | None = None,
) -> Variant:
    """The same model, loaded again and changed; the original is not touched."""

    def again(size: int | None) -> Backbone:
        found = zoo.load(one.given, weights=weights, img_size=size, device=device, attention=attention)
        if temperature is not None:
            swap = swap_attention(found.model, "softmax", temperature=temperature)
            found = replace(found, attention=swap.normalization.name)
        return replace(found, name=f"{one.name}, {label}")

    return Variant(one.given, again(img_size), again(None), None)


def under_control(
    found: Sequence[Condition],
    done: Measured,
    tests: Sets,
    seen: Mapping[str, Pair],
    *,
    norm: str,
    seed: int,
    cache: Cache = None,
) -> dict[tuple[str, str], Found]:
    """By kind and model: recognition, patches of the first set with masks, and attention there.

    What was measured already is taken from `done`. Errors: as `variants_measure.measure`.
    """
    options: dict[str, Any] = {"norm": norm, "seed": seed, "cache": cache}
    result = {}
    for one in found:
        if one.kind == "as trained":
            result[one.kind, one.model] = done.of(one.model)[0]
            continue
        short = measure(one.variant, tests, seen, short=True, **options)
        looked = look(one.variant.dense, seen[tests.segmentation[0]])
        result[one.kind, one.model] = replace(short, looked=looked)
    return result


def condition_numbers(found: Mapping[tuple[str, str], Found], tests: Sets) -> Rows:
    """mIoU (%) of the first set under the controls, by key and model; of temperatures by their value.

    `swap_eval.miou.SET`, `random.miou.SET` and `temperature.miou.SET`.
    """
    rows: Rows = {}
    for (kind, model), one in found.items():
        score = _miou(one, tests)
        key, name = "swap_eval", model
        if kind == "as trained":
            continue
        if kind == "random weights":
            key = "random"
        elif kind.startswith("softmax at"):
            key, name = "temperature", kind.rpartition(" ")[2]
        row = worded(level(score), "%", score)
        rows.setdefault(f"{key}.miou.{slug(tests.segmentation[0])}", {})[name] = row
    return rows


def condition_gains(found: Mapping[tuple[str, str], Found], tests: Sets) -> dict[str, Reported]:
    """What the controls' sentences say, in points of mIoU on the first set, paired by picture.

    - `random_miou_gain`: entmax-1.5 less softmax, both with random weights
    - `swap_miou_gain`: the baseline evaluated with entmax-1.5, less itself
    - `sharp_miou_gain`: the baseline at each lower temperature, less itself; the value is that of the lowest
    """
    models = list(dict.fromkeys(model for _, model in found))
    scores = {key: _miou(one, tests) for key, one in found.items()}
    own = scores["as trained", models[0]]
    named: dict[str, Reported] = {}
    if len(models) < 2:
        named["random_miou_gain"] = {"value": None, "text": NO_SPARSE}
    else:
        pair = [scores["random weights", model] for model in models]
        named["random_miou_gain"] = worded(gain(pair[1], pair[0]), "points", own)
    swapped = next((s for (kind, m), s in scores.items() if kind.startswith("eval") and m == models[0]), None)
    named["swap_miou_gain"] = (
        {"value": None, "text": "not measured, because its attention cannot be swapped"}
        if swapped is None
        else worded(gain(swapped, own), "points", own)
    )
    sharp = {kind: s for (kind, _), s in scores.items() if kind.startswith("softmax at")}
    rows = {kind.removeprefix("softmax "): worded(gain(s, own), "points", own) for kind, s in sharp.items()}
    if rows:
        lowest = next(iter(rows.values()))
        text = ", ".join(f"{row['text']} {kind}" for kind, row in rows.items())
        named["sharp_miou_gain"] = {**lowest, "text": text}
    else:
        text = "not measured, because the baseline has no softmax"
        named["sharp_miou_gain"] = {"value": None, "text": text}
    return named


def _miou(one: Found, tests: Sets) -> Score:
    return of_curves([one.scores[tests.keys("miou")[0]]])


def control_table(found: Mapping[tuple[str, str], Found], tests: Sets) -> pd.DataFrame:
    """A row a condition: linear probe and mIoU with their intervals, and the share of keys above zero (%)."""
    keys = {"top-1": tests.keys("top1")[0], "mIoU": tests.keys("miou")[0]}
    rows = []
    for (kind, model), one in found.items():
        row: dict[str, Any] = {"condition": kind, "model": model}
        for name, key in keys.items():
            e = level(of_curves([one.scores[key]]))
            row |= {name: e.value, f"{name} low": e.low, f"{name} high": e.high}
        if one.looked is not None:
            row["keys above zero"] = float(one.looked.support.value.mean())
        rows.append(row)
    return pd.DataFrame(rows)


def moments(names: Sequence[str], *, img_size: int | None, device: str) -> dict[str, dict[int, Variant]]:
    """By name: images seen -> the model then, without the finished one. Models without snapshots are left
    out.

    Errors: as `backbones.load`.
    """
    found = {}
    for name in names:
        counts = zoo.snapshots(name)
        if counts:
            found[name] = {n: load(f"{name}@{n}", img_size=img_size, device=device) for n in counts}
    return found


def follow(
    models: Mapping[str, Mapping[int, Variant]],
    done: Mapping[str, Found],
    tests: Sets,
    seen: Mapping[str, Pair],
    *,
    norm: str,
    seed: int,
) -> pd.DataFrame:
    """mIoU of patches on the first set and recognition, by model and images seen; intervals over pictures.

    `done` holds finished models by name, which end a curve where they are there. Columns: model, images,
    measure, value, low, high.
    """
    keys = {measure: tests.keys(measure)[0] for measure in MOMENTS}
    rows = []
    for name, by_count in models.items():
        found = {n: measure(v, tests, seen, norm=norm, seed=seed, short=True) for n, v in by_count.items()}
        if name in done:
            found[int(zoo.card(name)["recipe"]["images"])] = done[name]
        for count, one in found.items():
            for measured, key in keys.items():
                e = level(of_curves([one.scores[key]]))
                rows.append((name, count, measured, e.value, e.low, e.high))
    return pd.DataFrame(rows, columns=["model", "images", "measure", "value", "low", "high"])


def no_moments(names: Sequence[str]) -> str:
    """Why there is nothing to follow."""
    if not names:
        return "No model is followed along its training in this profile."
    return f"No snapshots along training are there of {', '.join(names)}."


def recipe_table(model: TimmViT, before: int, *, seed: int, pictures: int = 4) -> pd.DataFrame:
    """Parameters before and after a swap to entmax-1.5, and exact zeros (%) of the last block after it.

    The pictures are noise.
    """
    size = model.patch_embed.img_size
    noise = torch.randn(pictures, 3, *size, generator=torch.Generator().manual_seed(seed))
    half = (0.5, 0.5, 0.5)  # never applied: the pictures are transformed
    backbone = describe("recipe", model, Transform(size[0], size[1], half, half))
    prefix = backbone.num_prefix_tokens
    zeros = {"zeros": partial(zero_share, prefix=prefix)}
    found = capture(backbone, noise, norm="none", reductions=("cls",), attention=zeros, progress=False)
    after = sum(p.numel() for p in model.parameters())
    share = 100 * float(found.attention["zeros"].mean())
    return pd.DataFrame(
        {
            "attention": ["softmax", backbone.attention],
            "parameters": [before, after],
            "exact zeros (%)": [0.0, share],
        }
    )
