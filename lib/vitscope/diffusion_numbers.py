"""Semantic diffusion: numbers and remarks of its chapter, for its sentences and for the ledger of claims."""

from __future__ import annotations

from collections.abc import Mapping

from vitscope.dense_layers import BOTH, NO_CLS, PATCH, Layers
from vitscope.diffusion_attention import FoundMasks
from vitscope.diffusion_curves import Curve
from vitscope.diffusion_measures import Leaks, Norms
from vitscope.estimates import Estimate
from vitscope.reported import Reported
from vitscope.shift_numbers import reported

Rows = dict[str, dict[str, Reported]]


def layers(found: Mapping[str, Layers]) -> Rows:
    """By key and backbone what the dense measures say of shallow and deep layers, and of CLS.

    - `pib_shallow`, `pib_deep`, `miou_shallow`, `miou_deep`: means over the first and the last third, in %
    - `pib_shallow_minus_deep`, `miou_deep_minus_shallow`: their difference, in points, paired by picture
    - `cls_gain`: mIoU at the last state with CLS less without, in points; `cls_gain_depth`: the same of the
      RMSE of depth, where negative is better
    """
    rows: Rows = {}
    for name, one in found.items():
        missing: Reported = {"value": None, "text": NO_CLS.format(name)}
        for key, row in {
            **_boxes(one, missing),
            **_scores(one),
            "cls_gain": _gain(one.segmentation.curves, missing, reported, "points"),
            "cls_gain_depth": _gain_depth(one, missing),
        }.items():
            rows.setdefault(key, {})[name] = row
    return rows


def _boxes(one: Layers, missing: Reported) -> dict[str, Reported]:
    if one.point_in_box is None:
        return dict.fromkeys(("pib_shallow", "pib_deep", "pib_shallow_minus_deep"), missing)
    curve = one.point_in_box.curve
    ends, count = curve.thirds(), {"n": curve.count}
    return {
        "pib_shallow": reported(ends.shallow, "%") | count,
        "pib_deep": reported(ends.deep, "%") | count,
        "pib_shallow_minus_deep": reported(ends.shallow_minus_deep, "points") | count,
    }


def _scores(one: Layers) -> dict[str, Reported]:
    curve = one.segmentation.curves[PATCH]
    ends, count = curve.thirds(), {"n": curve.count}
    return {
        "miou_shallow": reported(ends.shallow, "%") | count,
        "miou_deep": reported(ends.deep, "%") | count,
        "miou_deep_minus_shallow": reported(ends.deep_minus_shallow, "points") | count,
        "miou_last": reported(curve.at(curve.states[-1]), "%") | count,
    }


def _gain(curves: Mapping[str, Curve], missing: Reported, form, unit: str) -> Reported:
    if BOTH not in curves:
        return missing
    last = curves[PATCH].states[-1:]
    gained = curves[BOTH].only(last).minus(curves[PATCH].only(last))
    return form(gained.at(*last), unit) | {"n": gained.count}


def _gain_depth(one: Layers, missing: Reported) -> Reported:
    if one.depth is None:
        return {"value": None, "text": "not measured, because no set here has depth"}
    return _gain(one.depth.curves, missing, _signed, "RMSE")


def _signed(found: Estimate, unit: str) -> Reported:
    return plain(found, unit, "+.3f")


def plain(found: Estimate, unit: str | None = None, style: str = ".2f") -> Reported:
    """An estimate as `Run.report` takes it, in a number format of one's own."""
    if found.value is None:
        return {"value": None, "text": found.reason}
    known = found.low is not None and found.high is not None
    between = f" ({found.low:{style}} to {found.high:{style}})" if known else ""
    return {
        "value": found.value,
        "spread": (found.low, found.high) if known else None,
        "unit": unit,
        "text": f"{found.value:{style}}{between}",
    }


NO_LEAKAGE = "not measured, because objects tell no more than luck"
NO_ATTENTION = "not measured, because {} has no CLS token, or an attention that cannot be read"
NO_OBJECTS = "not measured, because no set here has one labelled object a picture, with its mask"


def leakage(found: Mapping[str, Leaks | None]) -> Rows:
    """`leakage_last` and `leakage_peak` (largest over blocks) by backbone; None where no set allows it."""
    rows: Rows = {"leakage_last": {}, "leakage_peak": {}}
    for name, one in found.items():
        if one is None:
            for row in rows.values():
                row[name] = {"value": None, "text": NO_OBJECTS}
            continue
        curve = one.curve
        last = plain(curve.at(curve.states[-1], reason=NO_LEAKAGE))
        rows["leakage_last"][name] = last | {"n": curve.count}
        rows["leakage_peak"][name] = _peak(curve, plain, NO_LEAKAGE)
    return rows


def norms(found: Mapping[str, Norms]) -> Rows:
    """`high_norm_share` by backbone: the largest share of patches over the blocks, in percent."""
    return {
        "high_norm_share": {
            name: _peak(one.share, lambda e: reported(e, "%"), "not measured, because there is no block")
            for name, one in found.items()
        }
    }


def _peak(curve: Curve, form, reason: str) -> Reported:
    try:
        state, found = curve.peak()
    except ValueError:
        return {"value": None, "text": reason}
    row = form(found)
    return row | {"text": f"{row['text']} at state {state}", "n": curve.count}


def masks(found: Mapping[str, FoundMasks]) -> Rows:
    """`mask_iou_attention` at the last block and `mask_iou_pca` at the last state, by backbone, in %."""
    rows: Rows = {"mask_iou_attention": {}, "mask_iou_pca": {}}
    for name, one in found.items():
        for key, curve in (("mask_iou_attention", one.attention), ("mask_iou_pca", one.pca)):
            if curve is None:
                rows[key][name] = {"value": None, "text": NO_ATTENTION.format(name)}
            else:
                rows[key][name] = reported(curve.at(curve.states[-1]), "%") | {"n": curve.count}
    return rows


def baselines(first: Layers) -> dict[str, Reported]:
    """What answers that look at no picture get: `pib_chance`, `miou_baseline` (%), `rmse_baseline`."""
    pointed, depth = first.point_in_box, first.depth
    segmentation = first.segmentation.baseline
    return {
        "pib_chance": {"value": None, "text": NO_CLS.format(first.backbone.name)}
        if pointed is None
        else _percent(100 * pointed.by_rule["center"].chance),
        "miou_baseline": _percent(segmentation),
        "rmse_baseline": {"value": None, "text": "not measured, because no set here has depth"}
        if depth is None
        else {"value": depth.baseline, "text": f"{depth.baseline:.2f}"},
    }


def _percent(value: float) -> Reported:
    return {"value": value, "text": f"{value:.1f} %", "unit": "%"}


def control(random: Layers, leaked: Leaks | None) -> dict[str, Reported]:
    """What random weights get: keys as of `layers` with `_random`, and `leakage_peak_random`."""
    name = random.backbone.name
    wanted = ("pib_shallow_minus_deep", "miou_deep_minus_shallow", "miou_last", "cls_gain")
    rows = layers({name: random}) | leakage({name: leaked})
    return {f"{key}_random": rows[key][name] for key in (*wanted, "leakage_peak")}


def remarks(found: Mapping[str, Layers]) -> list[tuple[str, str]]:
    """What a reader must know of the fits and of the pictures left out: what it is about, and a sentence."""
    said = []
    for name, one in found.items():
        for what, probed in (("segmentation", one.segmentation), ("depth", one.depth)):
            said += [(f"{what} of {name}", text) for text in (() if probed is None else probed.warnings)]
        if one.point_in_box is not None:
            left = {k: n for k, n in one.point_in_box.by_rule["center"].excluded.items() if n}
            if left:
                counted = ", ".join(f"{n} ({reason})" for reason, n in left.items())
                said.append((f"point-in-box of {name}", f"Left out by the rule of centres: {counted}."))
    return said


def leak_remarks(leaked: Mapping[str, Leaks | None]) -> list[tuple[str, str]]:
    """The same of the probes for leakage."""
    said = []
    for name, one in leaked.items():
        if one is not None and one.left_out:
            text = "test pictures lack patches of an object or of background and are left out."
            said.append((f"leakage of {name}", f"{one.left_out} {text}"))
        said += [(f"leakage of {name}", text) for text in (() if one is None else one.warnings)]
    return said
