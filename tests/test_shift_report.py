"""The chapter on shift: its tables, figures, sentences and reported numbers, from planted answers."""

import pytest

from planted_shift import planted_tested
from vitscope import shift_numbers as numbers
from vitscope import shift_report as report
from vitscope import shifted
from vitscope.runs.parameters import ParameterError
from vitscope.runs.schema import resolve

CORRUPTED = planted_tested(
    "s-c",
    [{"BestLayer": [1, 0, 0, 0], "VFusion": [1, 1, 0, 0], "Oracle": [1, 1, 1, 0], "LastLayer": [0, 0, 0, 0]},
     {"BestLayer": [0, 0, 0, 0], "VFusion": [1, 0, 0, 0], "Oracle": [1, 1, 0, 0], "LastLayer": [0, 0, 0, 0]}],
    clean={
        "BestLayer": [1, 1, 1, 0], "VFusion": [1, 1, 1, 1], "Oracle": [1, 1, 1, 1], "LastLayer": [1, 1, 0, 0],
    },
    severities=[1, 5],
)  # fmt: skip
PLACES = planted_tested(
    "places",
    [{"BestLayer": [1, 1, 1, 0, 0, 1, 1, 1], "VFusion": [1, 1, 1, 1, 1, 0, 1, 1], "Oracle": [1] * 8,
      "LastLayer": [1, 1, 1, 1, 0, 0, 0, 0]}],
    group=[0, 0, 1, 1, 2, 2, 3, 3],
)  # fmt: skip
FOUND = {"s-c": [CORRUPTED], "places": [PLACES]}


def test_sets_table_says_what_kind_of_shift_it_is():
    table = report.sets_table([CORRUPTED.chosen, PLACES.chosen]).set_index("set")
    assert table["shift"].tolist() == ["corrupted, severity 1, 5", "groups in other shares"]
    assert table["clean twin"].tolist() == ["yes", "no"]
    assert table["test pictures"].tolist() == [4, 8]


def test_accuracy_table_has_every_part_and_remarks_name_the_fit():
    table = report.accuracy_table(FOUND)
    assert table["part"].unique().tolist() == ["clean", "severity 1", "severity 5", "shifted"]
    row = table[(table["part"] == "severity 1") & (table["method"] == "VFusion")].iloc[0]
    assert (row["accuracy"], row["gap closed"]) == (50.0, 50.0)
    assert table["method"].tolist() == 4 * list(shifted.METHODS)
    assert ("VFusion on s-c of m", "too small") in report.remarks(FOUND)


def test_severity_figure_has_a_panel_per_corrupted_set():
    table = report.severity_table(FOUND)
    assert set(table["set"]) == {"s-c"}
    curve = table[table["method"] == "VFusion"]
    assert curve["severity"].tolist() == [0, 1, 5]
    assert curve["accuracy"].tolist() == [100.0, 50.0, 25.0]
    figure = report.severity_figure(table)
    assert figure.name == "severity"
    assert "s-c: BestLayer 75.0 → 0.0, SuperLearner 75.0 → 0.0, VFusion 100.0 → 25.0" in figure.alt
    assert len(figure.fig.axes) == 1
    assert report.severity_table({"places": [PLACES]}).empty


def test_change_is_what_is_lost():
    table = report.change_table(FOUND).set_index("method")
    assert set(table["set"]) == {"s-c"}
    assert table.loc["VFusion", ["clean", "shifted", "lost"]].tolist() == [100.0, 37.5, 62.5]
    assert table.loc["BestLayer", "lost"] == 62.5
    assert "s-c VFusion 62.5" in report.change_figure(report.change_table(FOUND)).alt


def test_groups_are_drawn_with_average_and_worst():
    figure = report.group_figure(shifted.by_group([PLACES]), "places")
    assert figure.name == "groups"
    assert "VFusion worst 50.0" in figure.alt
    assert "BestLayer a, water 50.0" in figure.alt
    assert set(report.groups_table({"places": shifted.by_group([PLACES])})["set"]) == {"places"}


def test_gains_and_recovery_by_part():
    table = report.gain_table(FOUND)
    assert list(zip(table["set"], table["part"], strict=True)) == [
        ("s-c", "clean"), ("s-c", "shifted"), ("places", "shifted"),
    ]  # fmt: skip
    assert table["gain"].tolist() == [25.0, 25.0, 12.5]
    assert table["gap closed"].tolist() == pytest.approx([100.0, 50.0, 50.0])
    assert "s-c shifted 25.0" in report.gain_figure(table).alt
    assert "s-c clean 100.0, s-c shifted 62.5" in report.recovery_figure(table).alt


def test_numbers_by_set():
    found = numbers.numbers(FOUND)
    assert found["gain_over_best"]["places"]["value"] == 12.5
    assert found["gain_over_best"]["places"]["text"].startswith("+12.5 points (")
    assert found["gap_closed"]["s-c"]["value"] == pytest.approx(50.0)
    assert found["best"]["s-c"]["value"] == 12.5
    assert found["oracle"]["s-c"]["n"] == 4
    assert set(found["recovery_clean"]) == {"s-c"}
    assert set(found["recovery_shifted"]) == {"s-c", "places"}


def test_numbers_over_sets():
    found = numbers.overall(FOUND)
    assert found["shifted_sets"]["value"] == 2
    assert found["gain_over_best"]["value"] == pytest.approx(18.75)
    assert found["gain_over_best"]["spread"] == (12.5, 25.0)
    assert found["gain_most"]["text"].endswith("on s-c")
    assert found["gap_closed"]["value"] == pytest.approx(50.0)  # (25 + 12.5) of (50 + 25)
    assert found["recovery_clean"]["n"] == 1
    assert numbers.means_over_sets(FOUND)["BestLayer"]["value"] == pytest.approx((12.5 + 75) / 2)
    alone = numbers.overall({"places": [PLACES]})
    assert alone["gain_over_best"]["value"] == 12.5
    assert alone["recovery_clean"] == {
        "value": None, "text": "not measured, because no set here allows it", "n": 0,
    }  # fmt: skip


def test_worst_group_of_each_method():
    groups = numbers.group_numbers([shifted.by_group([PLACES])])
    assert groups["worst_group"]["VFusion"]["value"] == 50.0
    assert groups["average_group"]["VFusion"]["value"] == 87.5
    assert numbers.worst_group_gain(groups)["text"] == "+0.0 points"
    assert numbers.worst_group_gain(groups, "LastLayer")["value"] == 50.0
    none = numbers.group_numbers([])
    assert none == {"worst_group": {}, "average_group": {}}
    assert "no set here has groups" in numbers.worst_group_gain(none)["text"]


def test_control_stands_beside():
    table = report.control_table(PLACES, PLACES).set_index(["weights", "method"])["accuracy"]
    assert table["learned", "VFusion"] == table["random", "VFusion"] == 87.5


@pytest.mark.parametrize("severities", [[0], [6], [3, 1], [2, 2]])
def test_severities_ascend_from_1_to_5(severities):
    with pytest.raises(ParameterError, match="severities must"):
        resolve("06_shift", overrides={"severities": severities})
