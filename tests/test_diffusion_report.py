"""Tables, figures, numbers and training of semantic diffusion, from planted curves."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from helpers import tiny
from planted_dense import pair
from vitscope import dense_layers, diffusion_gallery, diffusion_numbers, diffusion_report, diffusion_training
from vitscope.dense.boxes import PointInBox
from vitscope.dense_layers import BOTH, PATCH, Layers, Pointed, Probed
from vitscope.diffusion_attention import FoundMasks, attention
from vitscope.diffusion_curves import Curve, of_images
from vitscope.diffusion_measures import Leaks, leaks, norms

CLS, BARE = tiny("dinov2_registers", size=56), tiny("registers_without_cls")
STATES = (-1, 0, 1, 2)
SETS = pair(30, 16, size=56)


def curve(values, states=STATES) -> Curve:
    noise = np.random.default_rng(0).normal(size=(100, 1))
    return Curve(states, np.array(values, dtype=float), np.array(values) + noise, 20)


def layers(backbone=CLS) -> Layers:
    scores = {PATCH: curve([10, 20, 30, 45])}
    errors = {PATCH: curve([3.0, 2.0, 1.5, 1.25])}
    if not backbone.has_cls:
        return Layers(backbone, None, Probed(scores, 9.0, ("patch: said",)), Probed(errors, 4.0, ()))
    scores[BOTH], errors[BOTH] = curve([25, 35, 47.5], STATES[1:]), curve([2.0, 1.4, 1.0], STATES[1:])
    hits = np.tile(np.arange(20) < 5, (3, 1))
    box = PointInBox(np.full(3, 0.25), hits, hits * 1, 0.1, 20, 22, np.arange(20), {"no object": 2}, "center")
    points = Pointed(STATES[1:], {"center": box, "last_vit": box}, curve([60, 50, 30], STATES[1:]))
    return Layers(backbone, points, Probed(scores, 9.0, ()), Probed(errors, 4.0, ()))


FOUND = {"with": layers(), "without": layers(BARE)}


def test_numbers_compare_thirds_and_pair_cls_with_patches():
    rows = diffusion_numbers.layers(FOUND)
    value = {key: row["with"]["value"] for key, row in rows.items()}
    assert value["pib_shallow"] == 50
    assert value["pib_deep"] == 30
    assert value["pib_shallow_minus_deep"] == pytest.approx(20)
    assert value["miou_deep_minus_shallow"] == pytest.approx(15)
    assert value["cls_gain"] == pytest.approx(2.5)
    assert value["cls_gain_depth"] == pytest.approx(-0.25)
    assert rows["cls_gain"]["with"]["text"] == "+2.5 points (+2.5 to +2.5)"
    assert rows["cls_gain_depth"]["with"]["text"] == "-0.250 (-0.250 to -0.250)"
    assert rows["pib_shallow"]["with"]["n"] == 20


def test_a_backbone_without_cls_says_why_and_keeps_the_rest():
    rows = diffusion_numbers.layers(FOUND)
    for key in ("pib_shallow", "pib_deep", "pib_shallow_minus_deep", "cls_gain", "cls_gain_depth"):
        assert rows[key]["without"]["value"] is None
        assert rows[key]["without"]["text"] == "not measured, because without has no CLS token"
    assert rows["miou_deep"]["without"]["value"] == 45
    assert diffusion_numbers.baselines(FOUND["without"])["pib_chance"]["value"] is None
    base = diffusion_numbers.baselines(FOUND["with"])
    assert [one["text"] for one in base.values()] == ["10.0 %", "9.0 %", "4.00"]


def test_leakage_names_its_peak_or_why_there_is_none():
    nothing = Curve(STATES, np.full(4, np.nan), np.full((100, 4), np.nan), 9)
    found = {"a": leaking(curve([0.9, 0.2, 0.5, 0.25])), "b": leaking(nothing), "c": None}
    rows = diffusion_numbers.leakage(found)
    assert rows["leakage_peak"]["a"]["text"].endswith("at state 1")
    assert rows["leakage_peak"]["a"]["value"] == 0.5
    assert rows["leakage_last"]["a"]["value"] == 0.25
    assert rows["leakage_last"]["b"]["text"] == diffusion_numbers.NO_LEAKAGE
    assert rows["leakage_peak"]["b"]["text"] == diffusion_numbers.NO_LEAKAGE
    assert rows["leakage_last"]["c"]["text"] == diffusion_numbers.NO_OBJECTS


def leaking(one: Curve) -> Leaks:
    cells = [(s, part, 50.0, 20.0, 9) for s in STATES for part in ("foreground", "background", "1", ">=4")]
    table = pd.DataFrame(cells, columns=["state", "part", "accuracy", "luck", "images"])
    return Leaks(one, table, 9, 0, ())


def test_figures_show_their_curves_and_say_so():
    boxes = diffusion_report.boxes_figure(FOUND)
    assert "with goes from 60 to 30" in boxes.alt
    assert set(boxes.data["backbone"]) == {"with"}
    segmentation = diffusion_report.probe_figure(FOUND, "segmentation")
    assert set(segmentation.data["backbone, tokens"]) == {
        "with, patch",
        "without, patch",
        "with, patch + CLS",
    }
    assert diffusion_report.probe_figure(FOUND, "depth").name == "depth"
    assert "mIoU of patches (%) goes from 20 to 45" in diffusion_report.parted_figure(FOUND["with"]).alt
    away = diffusion_report.distance_figure(leaking(curve([0, 0, 0, 0])), "with")
    assert set(away.data["patch"]) == {"object", "1 away", "4 or more away"}
    assert set(away.data["accuracy above luck (points)"]) == {30.0}
    masks = FoundMasks(None, (), curve([1, 2, 3, 4]), 20.0)
    assert set(diffusion_report.masks_figure({"a": masks}).data["backbone, mask"]) == {"a, PCA"}
    assert diffusion_numbers.masks({"a": masks})["mask_iou_attention"]["a"]["value"] is None


def test_tables_and_remarks_name_what_was_left_out():
    table = diffusion_report.boxes_table(FOUND)
    assert table["center"].tolist() == [25.0] * 3
    assert table["last_vit by chance"].tolist() == [10.0] * 3
    gains = diffusion_report.gain_table(FOUND, "segmentation")
    assert gains["value"].tolist() == [5.0, 5.0, 2.5]
    assert diffusion_report.gain_table({"without": FOUND["without"]}, "depth").empty
    leaked = replace(leaking(curve([0, 0, 0, 0])), left_out=3, warnings=("edge",))
    assert diffusion_numbers.remarks(FOUND) == [
        ("point-in-box of with", "Left out by the rule of centres: 2 (no object)."),
        ("segmentation of without", "patch: said"),
    ]
    assert diffusion_numbers.leak_remarks({"a": leaked, "b": None}) == [
        ("leakage of a", "3 test pictures lack patches of an object or of background and are left out."),
        ("leakage of a", "edge"),
    ]
    parts = diffusion_report.sets_table({"scenes": SETS})
    assert parts.loc[0, "objects cover (%)"] == pytest.approx(25.0)


def test_the_control_stands_beside_what_was_learned():
    leaked = leaking(curve([0, 0, 0.5, 0.25]))
    learned = diffusion_report.measures(FOUND["with"], leaked)
    table = diffusion_report.control_table(learned, diffusion_report.measures(FOUND["with"], leaked))
    assert table["measure"].unique().tolist() == [
        "point-in-box (%)", "mIoU of patch (%)", "mIoU of patch + CLS (%)", "leakage (%)",
    ]  # fmt: skip
    assert table[table["measure"] == "leakage (%)"]["first less last"].tolist() == [25.0, 25.0]
    rows = diffusion_numbers.control(FOUND["without"], None)
    assert rows["pib_shallow_minus_deep_random"]["value"] is None
    assert rows["miou_deep_minus_shallow_random"]["value"] == pytest.approx(15)
    assert rows["leakage_peak_random"]["text"] == diffusion_numbers.NO_OBJECTS


def test_shares_of_high_norm_may_be_none():
    found = diffusion_numbers.norms({"a": norms(CLS, SETS.test)})["high_norm_share"]["a"]
    assert found["text"].endswith(("at state 1", "at state 2"))
    table = diffusion_report.norms_table({"a": norms(CLS, SETS.test)})
    assert table["by luck (%)"].tolist() == [75.0] * 4


def test_galleries_show_the_models_own_maps():
    looked = attention(CLS, SETS.test)
    table = diffusion_report.attention_table({"a": looked})
    assert table["keys above zero (%)"].tolist() == [100.0, 100.0]
    scores = diffusion_gallery.scores(CLS, SETS.test, norm="final", count=2)
    assert len(scores.data) == 4
    states = diffusion_gallery.pca_layers(CLS, SETS.test, norm="final", count=2)
    assert states.data["entry"].tolist() == ["state 0", "state 1", "state 2"]
    assert states.data["agreement with the basis"].iloc[-1] == 1.0
    both = diffusion_gallery.pca_models([CLS, replace(CLS, name="b")], [SETS.test] * 2, norm="none", count=2)
    assert both.data["agreement with the basis"].tolist() == pytest.approx([1.0, 1.0])
    heads = diffusion_gallery.heads(CLS, SETS.test, looked, count=3)
    assert "(which cover 25 %)" in heads.alt
    bare = replace(looked, cls=None)
    with pytest.raises(ValueError, match="has no CLS token, so there is no attention of it to show"):
        diffusion_gallery.heads(CLS, SETS.test, bare, count=3)


def test_models_without_snapshots_are_not_followed():
    assert diffusion_training.moments(None) == {}
    assert diffusion_training.moments("depth_06") == {}
    assert "depth_06 has no snapshots" in diffusion_training.reason("depth_06")
    assert list(diffusion_training.moments("twin_s", img_size=32))[-1] > 100_000


def test_the_last_state_is_followed_as_it_is_measured_by_itself():
    moments = {
        10: replace(CLS, name="m@10"),
        20: replace(tiny("dinov2_registers", size=56, seed=1), name="m"),
    }
    sets = {"scenes": SETS, "boxes": SETS, "objects": SETS}
    seen = {model.name: sets for model in moments.values()}
    table = diffusion_training.follow(moments, seen, norm="final", seed=0)
    at = table.set_index(["images", "measure"])["value"]
    box = dense_layers.boxes(CLS, SETS.test, norm="final").curve.at(2).value
    assert at[10, "point-in-box (%)"] == pytest.approx(box)
    leaked = leaks(CLS, SETS, norm="final", seed=0, states=[2]).curve.at(2).value
    assert at[10, "leakage (%)"] == pytest.approx(100 * leaked)
    assert diffusion_training.figure(table, "m").name == "training"
    bare = {BARE.name: {"scenes": pair(20, 12, size=48)}}
    only = diffusion_training.follow({5: BARE}, bare, norm="none", seed=0)
    assert only["measure"].tolist() == ["mIoU of patches (%)"]


def test_a_curve_of_nothing_is_no_number():
    empty = of_images((1, 2), np.full((2, 4), np.nan))
    assert diffusion_numbers.plain(empty.at(2)) == {"value": None, "text": empty.at(2).reason}
