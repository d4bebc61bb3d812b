"""The chapter on sparse attention: tables, figures, sentences and reported numbers from planted scores."""

from dataclasses import replace

import pytest

from planted_variants import (
    SPARSE,
    planted_family,
    planted_found,
    planted_measured,
    planted_tests,
    planted_variant,
)
from vitscope import variants_controls as controls
from vitscope import variants_numbers as numbers
from vitscope import variants_report as report
from vitscope.variants import Family

TESTS = planted_tests()
ONE, TWO = planted_measured(43.0), planted_measured(43.0, 42.0)


def test_gains_are_over_the_baseline_of_the_same_training():
    rows = numbers.numbers([TWO], TESTS)
    assert rows["miou.scenes"]["sup_softmax"]["value"] == 40.5
    gains = rows["miou_gain.scenes"]
    assert gains[SPARSE]["value"] == 2.0
    assert gains[SPARSE]["spread"] == (1.0, 3.0)
    assert gains["sup_register4"]["text"] == "+1.0 points (+1.0 to +1.0)"
    assert set(gains) == {SPARSE, "sup_register4"}
    assert rows["miou_gain_relative.scenes"][SPARSE]["value"] == pytest.approx(100 * 2 / 40.5)
    assert rows["miou_lead.voc"]["sup_register4"]["value"] == 1.0
    assert rows["top1_lead"] == {
        "sup_softmax": rows["top1_gain"][SPARSE],
        "sup_register4": rows["top1_lead"]["sup_register4"],
    }
    assert rows["top1_lead"]["sup_register4"]["value"] == -1.0
    assert rows["knn_gain"][SPARSE]["value"] == 0.0
    assert rows["miou_cls_gain.scenes"][SPARSE]["value"] == 1.0


def test_depth_errors_have_three_decimals_and_changes_a_sign():
    rows = numbers.numbers([TWO], TESTS)
    assert rows["rmse.scenes"]["sup_softmax"]["text"] == "0.500 (0.500 to 0.500)"
    assert rows["rmse_change.scenes"][SPARSE]["text"] == "-0.010 (-0.010 to -0.010)"
    assert rows["rmse_fall_relative.scenes"][SPARSE]["value"] == pytest.approx(2.0)
    assert "rmse.voc" not in rows


def test_facts_and_support_of_a_variant():
    rows = numbers.numbers([ONE], TESTS)
    assert {n: r["value"] for n, r in rows["added_parameters"].items()} == {
        "sup_softmax": 0, SPARSE: 0, "sup_register4": 48,
    }  # fmt: skip
    assert rows["registers"]["sup_register4"] == {"value": 4}
    assert rows["images_seen"][SPARSE]["text"] == f"not known, because {SPARSE} has no card"
    assert rows["support"][SPARSE]["value"] == pytest.approx(20.0)
    assert rows["zero_share"][SPARSE]["value"] == pytest.approx(80.0)


def test_an_interval_of_one_training_says_so():
    assert numbers.numbers([ONE], TESTS)["miou_gain.scenes"][SPARSE]["text"].endswith("; one training)")
    assert "one training" not in numbers.numbers([TWO], TESTS)["miou_gain.scenes"][SPARSE]["text"]


def test_said_names_sets_and_counts_where_entmax_leads():
    found = numbers.said(TWO, TESTS)
    assert found["trainings"]["text"] == "2 trainings"
    assert found["entmax_miou_gain"]["value"] == 2.0
    assert found["entmax_miou_gain"]["text"].endswith("on scenes, +2.0 points (+1.0 to +3.0) on voc:data/VOC")
    assert found["entmax_leads"] == {"value": 2, "text": "2 of 2 sets"}
    assert numbers.said(planted_measured(40.5), TESTS)["entmax_leads"]["value"] == 0
    assert {f"entmax_{key}" for key in numbers.SAID} < set(found)


def test_what_a_family_lacks_is_none_with_the_reason():
    plain = Family("given", ((planted_variant("a"), planted_variant("b")),))
    scores = {"top1": 1.0, "knn": 1.0, "miou": 1.0, "rmse": 1.0}
    one = numbers.Measured(plain, [[planted_found(n, **scores) for n in ("a", "b")]])
    rows = numbers.numbers([one], TESTS)
    assert rows["miou_lead.scenes"]["a"] == {"value": None, "text": numbers.NO_SPARSE}
    assert rows["miou_cls_gain.scenes"]["b"]["text"] == "not measured, because b has no CLS token"
    assert all(
        row["value"] is None for key, row in numbers.said(one, TESTS).items() if key.startswith("entmax")
    )
    assert report.lead_table([one], TESTS)["lead"].isna().all()


def second_family() -> numbers.Measured:
    other = planted_measured(44.0)
    names = [
        [planted_variant(f"dino_{v.name}", attention=v.dense.attention) for v in other.family.trainings[0]]
    ]
    found = [[planted_found(f"dino_{f.name}", top1=1.0, knn=1.0, miou=2.0, rmse=1.0) for f in other.found[0]]]
    return numbers.Measured(Family("self-supervised", (tuple(names[0]),)), found)


def test_two_families_report_under_the_same_keys():
    second = second_family()
    rows = numbers.numbers([ONE, second], TESTS)
    assert set(rows["miou.scenes"]) == {*ONE.family.names, *second.family.names}
    assert rows["miou_gain.scenes"]["dino_sup_entmax15"]["value"] == 0.0


def test_the_first_screen_speaks_of_both_families():
    found = numbers.first_screen([TWO, second_family()], TESTS)
    assert (found["trainings"]["value"], found["self_trainings"]["value"]) == (2, 1)
    assert (found["entmax_miou_gain"]["value"], found["self_entmax_miou_gain"]["value"]) == (2.0, 0.0)
    alone = numbers.first_screen([TWO], TESTS)
    assert set(alone) == set(found)
    assert alone["self_entmax_miou_gain"] == {"value": None, "text": numbers.NO_ALONE}
    assert alone["self_trainings"] == {"value": 0, "text": "no training"}


def test_variant_table_reads_the_card():
    card = {"recipe": {"images": 102_400, "objective": "supervised"}, "accuracy": {"noto": {"top1": 55.5}}}
    family = Family("supervised", ((planted_variant("a", card=card), planted_variant("b", parameters=130)),))
    table = report.variant_table([family]).set_index("model")
    assert table.loc["a", ["images seen", "own top-1 (%)", "added"]].tolist() == [102_400, 55.5, 0]
    assert table.loc["b", "added"] == 30


def test_score_figures_show_every_training():
    keys = TESTS.keys("miou")
    figure = report.score_figure(TWO, keys, "segmentation")
    assert figure.name == "segmentation"
    assert "2 trainings: scenes sup_softmax 40.50, scenes sup_entmax15 42.50" in figure.alt
    dots = [line for line in figure.fig.axes[0].lines if line.get_marker() == "o"]
    assert sorted(dots[1].get_ydata()) == [42.0, 43.0]
    assert figure.data["trainings"].tolist()[:2] == ["40; 41", "43; 42"]
    both = report.score_figure(TWO, TESTS.keys("top1", "knn"), "recognition")
    assert "linear sup_softmax 70.00" in both.alt
    assert "k-NN sup_softmax 60.00" in both.alt


def test_gain_figure_keeps_the_baseline_at_zero_or_is_none():
    figure = report.gain_figure(TWO, TESTS.keys("miou"), "segmentation_gains")
    assert "scenes sup_softmax +0.00, scenes sup_entmax15 +2.00" in figure.alt
    alone = numbers.Measured(Family("given", (TWO.family.trainings[0][:1],)), [TWO.found[0][:1]])
    assert report.gain_figure(alone, TESTS.keys("miou"), "segmentation_gains") is None


def test_attention_by_block_and_remarks():
    alike = numbers.Measured(ONE.family, [[replace(f, warnings=("alike",)) for f in ONE.found[0][:2]]])
    table = report.attention_table([TWO])
    assert set(table["measure"]) == {"support", "entropy", "mass"}
    row = table[(table["variant"] == SPARSE) & (table["measure"] == "support") & (table["block"] == 2)].iloc[
        0
    ]
    assert row["value"] == pytest.approx(20.0)
    assert report.attention_figure(table, "mass").name == "attention_mass"
    assert ("sup_softmax-1", "sup_softmax-1 is planted") in report.remarks([TWO])
    assert ("sup_softmax, sup_entmax15", "alike") in report.remarks([alike])


def test_row_figure_counts_exact_zeros():
    assert "softmax 0, softmax at temperature 0.5 0, entmax-1.5 7" in report.row_figure().alt


def test_control_sentences_are_paired_with_the_trained_model():
    found = {("as trained", "a"): planted_found("a", miou=40.0, top1=70.0)}
    for kind, model, miou in (
        ("as trained", "b", 44.0), ("random weights", "a", 10.0), ("random weights", "b", 10.5),
        ("evaluated with entmax15", "a", 30.0), ("evaluated with softmax", "b", 31.0),
        ("softmax at temperature 0.5", "a", 37.0), ("softmax at temperature 0.7", "a", 39.0),
    ):  # fmt: skip
        found[kind, model] = planted_found(model, miou=miou, top1=50.0)
    said = controls.condition_gains(found, TESTS)
    assert said["random_miou_gain"]["value"] == 0.5
    assert said["swap_miou_gain"]["value"] == -10.0
    assert said["sharp_miou_gain"]["value"] == -3.0
    assert "at temperature 0.7" in said["sharp_miou_gain"]["text"]
    rows = controls.condition_numbers(found, TESTS)
    assert rows["swap_eval.miou.scenes"]["b"]["value"] == 31.0
    assert rows["temperature.miou.scenes"]["0.5"]["value"] == 37.0
    table = controls.control_table(found, TESTS)
    assert table["keys above zero"].tolist() == [100.0] * 8
    assert table["mIoU"].tolist()[:2] == [40.0, 44.0]


def test_moments_that_are_not_there_have_a_reason():
    assert controls.moments(["depth_06"], img_size=None, device="cpu") == {}
    assert "depth_06" in controls.no_moments(["depth_06"])
    assert "No model is followed" in controls.no_moments([])


def test_planted_family_knows_its_sparse_variant():
    assert planted_family().sparse == SPARSE
