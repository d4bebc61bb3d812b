"""Sparse attention against its rivals: numbers for the sentences of its chapter and the ledger of claims."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitscope import variants_measure
from vitscope.dense_layers import Pair
from vitscope.estimates import Estimate
from vitscope.features import Cache
from vitscope.reported import Reported
from vitscope.shift_numbers import reported
from vitscope.variants import Family
from vitscope.variants_measure import Found, Key, Sets
from vitscope.variants_scores import Score, gain, level, of_curves, relative_fall, relative_gain

NO_SPARSE = "not measured: no variant of this family has entmax-1.5"
NO_ALONE = "not measured, as none are named"
ONE = "one training"
LENGTH, CHANGE = "length", "change"

Compare = Callable[[Score, Score], Estimate]
Rows = dict[str, dict[str, Reported]]
"""By key and name of the variant, what `Run.report_each` takes."""


@dataclass(frozen=True)
class Measured:
    """A family and what was found of each model of it, by training and then by variant, in its order."""

    family: Family
    found: Sequence[Sequence[Found]]

    def of(self, name: str) -> list[Found]:
        """A variant in every training."""
        at = self.family.names.index(name)
        return [training[at] for training in self.found]

    def score(self, name: str, key: Key) -> Score | None:
        """None where a training lacks it: the model has no CLS, say."""
        curves = [one.scores.get(key) for one in self.of(name)]
        having = [c for c in curves if c is not None]
        return of_curves(having) if len(having) == len(curves) else None

    def support(self, name: str) -> Score | None:
        """Keys of weight above 0, in percent of all, the mean over blocks."""
        looked = [one.looked for one in self.of(name)]
        having = [a.support for a in looked if a is not None]
        return of_curves(having) if len(having) == len(looked) else None

    def rivals(self) -> list[str]:
        """All variants but the sparse one."""
        return [name for name in self.family.names if name != self.family.sparse]


SAID = (
    "top1_gain",
    "knn_gain",
    "added",
    "zeros",
    "miou_gain",
    "miou_cls_gain",
    "rmse_change",
    "order",
    "leads",
)


def measure(
    family: Family,
    tests: Sets,
    seen: Mapping[str, Pair],
    *,
    norm: str,
    seed: int,
    cache: Cache = None,
) -> Measured:
    """Measure all models of a family, one after the other. Errors: as `variants_measure.measure`."""
    options: dict[str, Any] = {"norm": norm, "seed": seed, "cache": cache}
    return Measured(
        family,
        [[variants_measure.measure(v, tests, seen, **options) for v in row] for row in family.trainings],
    )


def slug(name: str) -> str:
    """A set's name as a key may hold it, without the folder.

    >>> slug("voc:data/VOC2012")
    'voc'
    """
    return re.sub(r"[^a-z0-9_.-]", "-", name.partition(":")[0].lower())


def numbers(measured: Sequence[Measured], tests: Sets) -> Rows:
    """What claims about sparse attention rest on, by key and variant; families report under the same keys.

    - `added_parameters`, `registers`, `images_seen` (None without a card)
    - `top1`, `top1_gain`, `knn_gain`, `top1_lead`
    - by set: `miou.SET`, `miou_gain.SET`, `miou_gain_relative.SET`, `miou_cls_gain.SET`, `miou_lead.SET`,
      `rmse.SET`, `rmse_change.SET`, `rmse_fall_relative.SET` (positive is better)
    - `support`, `zero_share`: keys of weight above 0, and exactly 0, in percent, over all blocks

    A gain is over the baseline of the same training, a lead that of the entmax-1.5 variant over another one.
    """
    rows: Rows = {}
    for one in measured:
        for key, of_variant in _of_family(one, tests).items():
            rows.setdefault(key, {}).update(of_variant)
    return rows


def _of_family(one: Measured, tests: Sets) -> Rows:
    first = dict(zip(one.family.names, one.family.trainings[0], strict=True))
    below = first[one.family.baseline].parameters
    rows: Rows = {
        "added_parameters": {n: {"value": v.parameters - below} for n, v in first.items()},
        "registers": {n: {"value": v.dense.num_registers} for n, v in first.items()},
        "images_seen": {n: _from_card(n, v.images_seen) for n, v in first.items()},
    }
    linear, nearest = tests.keys("top1", "knn")
    rows |= _measure(one, linear, "top1", "")
    rows["knn_gain"] = _gains(one, nearest, gain, "points")
    for s in tests.segmentation:
        rows |= _measure(one, ("miou", s), "miou", f".{slug(s)}", relative=True)
        rows[f"miou_cls_gain.{slug(s)}"] = _gains(one, ("miou_cls", s), gain, "points")
    for s in tests.depth:
        key, at = ("rmse", s), slug(s)
        rows[f"rmse.{at}"] = _levels(one, key, LENGTH)
        rows[f"rmse_change.{at}"] = _gains(one, key, gain, CHANGE)
        rows[f"rmse_fall_relative.{at}"] = _gains(one, key, relative_fall, "%")
    rows |= {"support": {}, "zero_share": {}}
    for n in one.family.names:
        support = one.support(n)
        if support is None:
            continue
        zeros = Score(100 - support.each, 100 - support.drawn, support.count)
        rows["support"][n] = worded(level(support), "%", support)
        rows["zero_share"][n] = worded(level(zeros), "%", zeros)
    return rows


def _measure(one: Measured, key: Key, name: str, at: str, *, relative: bool = False) -> Rows:
    """Levels, gains over the baseline and leads of the sparse variant of a measure in percent."""
    rows = {f"{name}{at}": _levels(one, key, "%"), f"{name}_gain{at}": _gains(one, key, gain, "points")}
    if relative:
        rows[f"{name}_gain_relative{at}"] = _gains(one, key, relative_gain, "%")
    return rows | {f"{name}_lead{at}": leads(one, key)}


def _levels(one: Measured, key: Key, unit: str) -> dict[str, Reported]:
    rows = {}
    for n in one.family.names:
        score = one.score(n, key)
        rows[n] = _missing(n) if score is None else worded(level(score), unit, score)
    return rows


def _gains(one: Measured, key: Key, how: Compare, unit: str) -> dict[str, Reported]:
    base = one.score(one.family.baseline, key)
    rows = {}
    for n in one.family.others:
        score = one.score(n, key)
        if score is None or base is None:
            rows[n] = _missing(n if score is None else one.family.baseline)
        else:
            rows[n] = worded(how(score, base), unit, score)
    return rows


def leads(one: Measured, key: Key) -> dict[str, Reported]:
    """The entmax-1.5 variant less every other one, in points."""
    sparse = one.family.sparse
    if sparse is None:
        return {n: {"value": None, "text": NO_SPARSE} for n in one.family.names}
    best = one.score(sparse, key)
    rows = {}
    for n in one.rivals():
        other = one.score(n, key)
        if best is None or other is None:
            rows[n] = _missing(sparse if best is None else n)
        else:
            rows[n] = worded(gain(best, other), "points", best)
    return rows


def _from_card(name: str, count: int | None) -> Reported:
    if count is None:
        return {"value": None, "text": f"not known, because {name} has no card"}
    return {"value": count, "text": f"{count:,}"}


def _missing(name: str) -> Reported:
    return {"value": None, "text": f"not measured, because {name} has no CLS token"}


def worded(found: Estimate, unit: str, score: Score) -> Reported:
    """An estimate as `Run.report` takes it; says so where the interval knows one training only.

    Depth has no unit: three decimals for `LENGTH`, and a sign for `CHANGE`.
    """
    if found.value is None:
        return {"value": None, "text": found.reason}
    if unit in (LENGTH, CHANGE):
        row = _length(found, "+.3f" if unit == CHANGE else ".3f")
    else:
        row = reported(found, unit)
    text = str(row["text"])
    if score.trainings == 1 and text.endswith(")"):
        text = f"{text[:-1]}; {ONE})"
    return {**row, "text": text, "n": score.count}


def _length(found: Estimate, style: str) -> Reported:
    if found.low is None or found.high is None:
        return {"value": found.value, "text": f"{found.value:{style}}"}
    ends = (found.low, found.high)
    text = f"{found.value:{style}} ({ends[0]:{style}} to {ends[1]:{style}})"
    return {"value": found.value, "spread": ends, "text": text}


def first_screen(measured: Sequence[Measured], tests: Sets) -> dict[str, Reported]:
    """`said` of the main family, and of the self-supervised one with "self_" before each key.

    Without such a family its texts say so.
    """
    main = said(measured[0], tests)
    if len(measured) == 1:
        alone: dict[str, Reported] = {key: {"value": None, "text": NO_ALONE} for key in main}
        alone["trainings"] = {"value": 0, "text": "no training"}
    else:
        alone = said(measured[1], tests)
    return main | {f"self_{key}": row for key, row in alone.items()}


def said(one: Measured, tests: Sets) -> dict[str, Reported]:
    """What the first screen says of a family's entmax-1.5 variant; every text names the sets it speaks of.

    - `trainings`, `variants`: their number
    - `entmax_top1_gain`, `entmax_knn_gain`, `entmax_added`, `entmax_zeros`
    - `entmax_miou_gain`, `entmax_miou_cls_gain`, `entmax_rmse_change`: the mean over sets, in words each set
    - `entmax_order`: sets from the largest gain in mIoU to the smallest; the value is the number of sets
    - `entmax_leads`: on how many sets its mIoU is the highest of all variants
    """
    family, sparse = one.family, one.family.sparse
    found: dict[str, Reported] = {
        "trainings": {"value": len(family.trainings), "text": _count(len(family.trainings), "training")},
        "variants": {"value": len(family.names), "text": ", ".join(family.names)},
    }
    if sparse is None:
        return found | {f"entmax_{key}": {"value": None, "text": NO_SPARSE} for key in SAID}
    rows = _of_family(one, tests)
    found["entmax_top1_gain"] = rows["top1_gain"][sparse]
    found["entmax_knn_gain"] = rows["knn_gain"][sparse]
    found["entmax_added"] = rows["added_parameters"][sparse]
    found["entmax_zeros"] = rows["zero_share"].get(sparse, _missing(sparse))
    masks = tests.segmentation
    for key, sets in {"miou_gain": masks, "miou_cls_gain": masks, "rmse_change": tests.depth}.items():
        found[f"entmax_{key}"] = _listed({s: rows[f"{key}.{slug(s)}"][sparse] for s in sets})
    gains = {s: rows[f"miou_gain.{slug(s)}"][sparse]["value"] for s in masks}
    ordered = sorted(gains, key=lambda s: -gains[s])
    found["entmax_order"] = {"value": len(ordered), "text": ", ".join(ordered)}
    ahead = [[r["value"] for r in rows[f"miou_lead.{slug(s)}"].values()] for s in masks]
    tops = sum(all(lead > 0 for lead in over) for over in ahead)
    found["entmax_leads"] = {"value": tops, "text": f"{tops} of {_count(len(masks), 'set')}"}
    return found


def _listed(rows: Mapping[str, Reported]) -> Reported:
    values = [row["value"] for row in rows.values()]
    texts = ", ".join(f"{row['text']} on {name}" for name, row in rows.items())
    if any(v is None for v in values):
        return {"value": None, "text": texts}
    return {"value": float(np.mean(values)), "n": len(values), "text": texts}


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
