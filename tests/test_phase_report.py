"""The report on phases: tables, figures, sentences and numbers, on planted curves."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from helpers import tiny
from planted import first_right, planted_capture, planted_probes
from vitscope import backbones, phase_report
from vitscope.metrics.similarity import similarity_floor
from vitscope.phases import detect_phases

PHASED = [0.05, 0.0, 0.001, 0.0, 0.001, 0.0, 0.001, 0.0, 0.04, 0.09, 0.15]
FLAT = [0.02] * 11
STATES = range(-1, 10)


def found(**curves):
    return {name: detect_phases(curve, states=range(-1, len(curve) - 1)) for name, curve in curves.items()}


def seen(curve, images=12, spread=0.0):
    """A capture whose pictures have this curve of centred similarity, each `spread` higher than the last."""
    values = np.asarray(curve)[:, None] + spread * np.arange(images)
    return planted_capture(range(-1, len(curve) - 1), per_image={"similarity_centred": values})


def curves(values, backbone="a", statistic="centred", first=-1, **columns):
    """Rows of a table of statistics."""
    rows = {"backbone": backbone, "statistic": statistic, "mean": values, **columns}
    table = pd.DataFrame(rows | {"state": range(first, len(values) + first)})
    return table.assign(low=table["mean"] - 0.01, high=table["mean"] + 0.01)


def model(name, **changes):
    return replace(tiny("supervised"), name=name, **changes)


# --- tables -----------------------------------------------------------------------------------------------


def test_model_table_says_what_each_model_is():
    models = [tiny("dinov2_registers"), tiny("registers_without_cls", size=(32, 48))]
    table = phase_report.model_table(models).set_index("backbone")
    assert table.loc["dinov2_registers", ["blocks", "width", "registers"]].tolist() == [2, 32, 4]
    assert table.loc["dinov2_registers", ["patches", "CLS", "input"]].tolist() == ["3 × 3", "yes", "42 × 42"]
    row = table.loc["registers_without_cls"]
    assert row[["patches", "CLS", "input"]].tolist() == ["2 × 3", "no", "32 × 48"]
    assert row["mean / std"] == "0.5 / 0.5"
    assert row["weights"] == "test"
    assert row["digest"] == models[1].digest[:12]


def test_phase_table_has_a_phase_or_a_reason_in_every_cell():
    table = phase_report.phase_table(found(a=PHASED, b=FLAT)).set_index("backbone")
    assert table.loc["a", "all three"] == "yes"
    assert table.loc["a", "cliff"] == "0.050 (33% of the range)"
    assert table.loc["a", "plateau"].startswith("states 0 to 6, 7 in all")
    assert table.loc["a", "climb"].startswith("from state 7")
    assert table.loc["b", "all three"] == "no"
    assert "not detected, because" in table.loc["b", "cliff"]


def test_phase_table_of_a_curve_too_short_names_the_length_needed():
    short = phase_report.detect({"short": seen([0.1, 0.0, 0.0, 0.2])})
    row = phase_report.phase_table(short).iloc[0]
    reason = "not detected, because phases need a curve of 5 states or more, got 4"
    assert row[["cliff", "plateau", "climb"]].tolist() == [reason] * 3
    assert row[["all three", "pieces by BIC"]].tolist() == ["no", "too short"]


def test_ranges_stand_behind_whole_numbers():
    table = phase_report.phase_table(phase_report.detect({"a": seen(PHASED, spread=0.001)}))
    assert table["plateau"][0] == "states 0 to 6, 7 in all [7 to 7]"
    assert table["climb"][0] == "from state 7 [7 to 7], by 0.150"


# --- figures ----------------------------------------------------------------------------------------------


def test_floor_is_drawn_when_all_backbones_have_one_number_of_patches():
    twin = backbones.load("twin_s", device="cpu")
    figure = phase_report.similarity_figure(curves([-0.01, 0, 0.01], "twin_s"), "centred", [twin])
    heights = [line.get_ydata()[0] for line in figure.fig.axes[0].lines]
    assert any(h == pytest.approx(similarity_floor(64)) for h in heights)
    assert "-0.010 before the position embedding, 0.000 after it, 0.010 at the last layer" in figure.alt
    assert figure.name == "similarity_centred"


@pytest.mark.parametrize(
    ("statistic", "grids"),
    [("raw", [(2, 2)]), ("centred by dataset", [(2, 2)]), ("centred", [(2, 2), (3, 3)])],
)
def test_no_floor_where_there_is_none_or_several(statistic, grids):
    names = "ab"[: len(grids)]
    models = [model(name, grid=grid) for name, grid in zip(names, grids, strict=True)]
    table = pd.concat([curves([0.3, 0.1, 0.2], name, statistic) for name in names])
    figure = phase_report.similarity_figure(table, statistic, models)
    assert len(figure.fig.axes[0].lines) == len(models)
    assert figure.name == "similarity_" + statistic.replace(" ", "_")
    assert f"Token similarity ({statistic})" in figure.alt
    assert "a: 0.300 before" in figure.alt


def test_statistic_figure_leaves_out_who_lacks_it():
    table = curves([1.0, 4.0], "with", "CLS", first=0)
    models = [model("without"), model("with")]
    figure = phase_report.statistic_figure(table, models, title="t", ylabel="norm", name="some")
    assert set(figure.data["backbone"]) == {"with"}
    assert "with goes from 1 to 4" in figure.alt
    assert figure.name == "some"


def test_aligned_figure_divides_states_by_depth():
    table = pd.concat([curves([9.0, 0.5, 0.1, 0.3], "a"), curves([9.0, 0.5, 0.4, 0.3, 0.2, 0.6], "b")])
    figure = phase_report.aligned_figure(table, [model("a", depth=2), model("b", depth=4)], "aligned")
    assert figure.data.loc[figure.data["backbone"] == "b", "relative"].tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert "a (2 blocks): lowest 0.100 at 0.50" in figure.alt
    assert "b (4 blocks): lowest 0.200 at 0.75" in figure.alt
    assert figure.data["mean"].max() < 9  # state −1 has no relative depth


def test_control_figure_gives_the_range_of_each_condition():
    conditions = {
        "as it is": pd.concat([curves([0.1, 0.4]), curves([5.0, 9.0], statistic="raw")]),
        "random weights": pd.concat([curves([0.2, 0.15]), curves([5.0, 9.0], "other")]),
    }
    figure = phase_report.control_figure(conditions, "a")
    assert figure.alt.endswith("range over layers: as it is 0.300, random weights 0.050.")
    assert "under 2 conditions" in figure.alt
    assert figure.data["mean"].max() < 5


def test_training_figure_tells_first_and_last_moment():
    raw = curves([7.0, 8.0], statistic="raw", images=0)
    table = pd.concat([curves([0.3, 0.1], images=6400), curves([0.0, 0.5], images=0), raw])
    figure = phase_report.training_figure(table, "twin")
    assert "after 2 amounts of training" in figure.alt
    assert "After 0 images it goes from 0.000 to 0.500; After 6,400 images it goes from 0.300" in figure.alt
    assert figure.data["mean"].max() < 1


# --- detection --------------------------------------------------------------------------------------------


def test_detection_reads_the_mean_over_pictures():
    phases = phase_report.detect({"a": seen(PHASED, images=3, spread=0.001)})["a"]
    np.testing.assert_allclose(phases.values, np.add(PHASED, 0.001), atol=1e-6)
    assert phases.detected
    assert phases.states == tuple(STATES)


def test_clusters_are_what_is_drawn():
    # within a cluster the pictures differ, between clusters nothing does: the onset cannot vary
    shift = np.tile([0.0, 0.3], 6)
    values = np.asarray(PHASED)[:, None] + shift * np.linspace(0, 1, 11)[:, None]
    captured = planted_capture(STATES, per_image={"similarity_centred": values})
    alone = phase_report.detect({"a": captured})["a"]
    together = phase_report.detect({"a": captured}, np.repeat(np.arange(6), 2))["a"]
    np.testing.assert_allclose(together.values, alone.values, atol=1e-6)
    for low, high in together.interval.values():
        assert low == pytest.approx(high, abs=1e-6)
    assert any(high - low > 1e-3 for low, high in alone.interval.values())


def test_conditions_are_named_with_their_backbone():
    controls = {"a": {"as it is": seen(PHASED), "random weights": seen(FLAT)}}
    every = phase_report.detect_conditions(controls)
    assert list(every) == ["a, as it is", "a, random weights"]
    assert every["a, as it is"].detected
    assert list(phase_report.without_trained(every)) == ["a, random weights"]


def test_accuracy_is_read_where_there_is_a_cls_token():
    states = {s: first_right(n, 20) for s, n in enumerate([2, 2, 2, 2, 2, 10, 18])}
    probes = {
        "with": planted_probes({"cls": states, "patch_mean": {-1: first_right(9, 20), **states}}),
        "without": planted_probes({"patch_mean": states}),
        "short": planted_probes({"cls": {0: first_right(1, 20), 1: first_right(9, 20)}}),
    }
    phases = phase_report.detect_accuracy(probes)
    assert list(phases) == ["with", "short"]
    np.testing.assert_allclose(phases["with"].values, [0.1] * 5 + [0.5, 0.9])
    assert phases["with"].plateau.length == 5
    assert "starts at states 0 and 1, not at -1 and 0" in phases["with"].reasons["cliff"]
    assert "5 states or more, got 2" in phases["short"].reasons["climb"]


# --- numbers and sentences --------------------------------------------------------------------------------


def test_numbers_are_paired_over_pictures():
    captured = seen(PHASED, images=8, spread=0.01)  # pictures differ, their differences over layers do not
    numbers = phase_report.numbers({"a": captured}, phase_report.detect({"a": captured}), None)
    assert list(numbers) == ["cliff", "after_pe", "plateau_length", "climb_onset", "climb_rise"]
    cliff, rise = numbers["cliff"]["a"], numbers["climb_rise"]["a"]
    assert cliff["value"] == pytest.approx(0.05, abs=1e-6)
    assert cliff["spread"] == pytest.approx((0.05, 0.05), abs=1e-6)
    assert cliff["text"] == "0.0500 (0.0500 to 0.0500)"
    assert cliff["n"] == 8
    assert rise["spread"] == pytest.approx((0.15, 0.15), abs=1e-6)
    after = numbers["after_pe"]["a"]
    assert after["value"] == pytest.approx(0.035, abs=1e-6)
    assert after["spread"][0] < 0.03 < 0.04 < after["spread"][1]
    assert numbers["plateau_length"]["a"] == {"value": 7, "spread": (7, 7), "n": 8, "text": "7 [7 to 7]"}
    assert numbers["climb_onset"]["a"]["value"] == 7


def test_numbers_of_clusters_are_less_certain():
    values = seen(PHASED, images=12, spread=0.01)
    phases = phase_report.detect({"a": values})
    alone = phase_report.numbers({"a": values}, phases, None)["after_pe"]["a"]
    grouped = phase_report.numbers({"a": values}, phases, np.repeat([0, 1, 2], 4))["after_pe"]["a"]
    assert grouped["value"] == alone["value"]
    assert np.ptp(grouped["spread"]) > 1.3 * np.ptp(alone["spread"])


def test_what_was_not_detected_is_none_with_its_reason():
    captured = {"flat": seen(FLAT), "short": seen([0.2, 0.1, 0.0, 0.3])}
    numbers = phase_report.numbers(captured, phase_report.detect(captured), None)
    assert numbers["climb_onset"]["flat"] == {
        "value": None, "text": "not detected, because the plateau lasts to the last state",
    }  # fmt: skip
    assert numbers["plateau_length"]["short"]["value"] is None
    assert "5 states or more, got 4" in numbers["plateau_length"]["short"]["text"]
    assert numbers["cliff"]["short"]["value"] == pytest.approx(0.1)
    assert numbers["climb_rise"]["short"]["value"] == pytest.approx(0.3)


def test_sentences_say_what_was_detected():
    phases = found(a=PHASED, b=FLAT)
    assert phase_report.count_detected(phases) == {"value": 1, "text": "1 of 2 backbones (a)", "n": 2}
    assert phase_report.count_detected(found(b=FLAT))["text"] == "0 of 1 backbones"
    cliff = phase_report.cliff_text(phases)
    assert cliff["text"] == "-0.050 in a (0.050 → 0.000) and +0.000 in b (0.020 → 0.020)"
    assert cliff["value"] == pytest.approx(-0.025)
    shape = phase_report.shape_text(phases)
    assert shape["text"].startswith("0.050 → 0.000 at state 0 → 0.150 in a and ")
    assert shape["value"] == pytest.approx(0.075)


def test_no_curve_is_not_no_detection():
    assert phase_report.count_detected({}) == {
        "value": None, "text": "nothing (no backbone here has such a curve)",
    }  # fmt: skip
