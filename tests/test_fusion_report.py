"""The report on VFusion and its rivals: planted outcomes, their tables, figures and sentences."""

import pytest

from planted_tasks import outcomes
from vitscope import fusion_report as report
from vitscope.comparison import across
from vitscope.estimates import Estimate

# on two sets of four images: best layer 25 and 50 %, VFusion 75 and 25 %, Super Learner 50 and 50 %
METHODS = {
    "BestLayer": [[1, 0, 0, 0], [1, 1, 0, 0]],
    "SuperLearner": [[1, 1, 0, 0], [1, 1, 0, 0]],
    "VFusion": [[1, 1, 1, 0], [1, 0, 0, 0]],
    "LastLayerMLP": [[0, 0, 0, 0], [1, 0, 0, 0]],
}


@pytest.fixture(scope="module")
def compared():
    return outcomes(METHODS, ("a", "b"))


@pytest.fixture(scope="module")
def table(compared):
    return across(compared)


def test_accuracy_table_has_a_row_per_task_and_the_methods_in_order(table):
    found = report.accuracy_table(table)
    assert list(found.columns) == [
        "backbone", "dataset", "LastLayer", "BestLayer", "SuperLearner", "VFusion", "LastLayerMLP", "Oracle",
    ]  # fmt: skip
    assert found["VFusion"].tolist() == [75, 25, 75, 25]
    assert found["dataset"].tolist() == ["set 0", "set 1"] * 2


def test_mean_accuracies_are_over_datasets(table):
    found = report.mean_accuracies(table)
    assert found["VFusion"]["value"] == 50
    assert found["VFusion"]["spread"] == (25, 75)
    assert found["VFusion"]["n"] == 2
    assert "best layer by test" not in found


def test_gains_say_value_interval_and_number_of_datasets(compared):
    said = report.gain(compared, "VFusion", "BestLayer")
    assert said["value"] == pytest.approx(12.5)
    assert said["spread"] == pytest.approx((-25, 50))
    assert (said["n"], said["unit"]) == (2, "points")
    assert said["text"] == "+12.5 points (-25.0 to +50.0)"
    alone = {key: value for key, value in compared.items() if key[1] == "set 0"}
    assert report.gain(alone, "VFusion", "BestLayer")["value"] == 50  # of one dataset, over its images
    assert report.gain(alone, "VFusion", "BestLayer")["n"] == 1
    assert set(report.gains_by_backbone(compared, "VFusion", "BestLayer")) == {"a", "b"}


def test_the_best_rival_is_neither_vfusion_nor_control_nor_oracle(table):
    name, said = report.best_rival(table)
    assert name == "SuperLearner"
    assert said["value"] == 50
    assert said["text"] == "SuperLearner (50.0 %)"


def test_ranks_leave_out_oracle_and_control_and_are_those_of_hand(table):
    # BestLayer and LastLayer, the same, SuperLearner, VFusion: 3½, 3½, 2, 1 on set 0 and 2, 2, 2, 4 on set 1
    found = report.ranks(table)
    assert {name: row["value"] for name, row in found.items()} == {
        "SuperLearner": 2, "VFusion": 2.5, "BestLayer": 2.75, "LastLayer": 2.75,
    }  # fmt: skip
    assert found["VFusion"]["n"] == 4
    assert report.rank_table(table)["rank, a"].tolist() == report.rank_table(table)["rank"].tolist()


def test_rank_figure_names_the_critical_difference(table):
    figure = report.rank_figure(table)
    assert "SuperLearner 2.0" in figure.alt
    assert "critical difference is" in figure.alt


def test_differences_have_datasets_as_units(table):
    found = report.difference_table(table, "BestLayer").set_index("method")
    assert found.loc["VFusion", ["difference", "wins", "losses"]].tolist() == [12.5, 1, 1]
    assert "LastLayerMLP" in found.index
    assert "Oracle" not in found.index


def test_lead_figure_and_task_figure_say_what_is_seen(compared, table):
    leads = report.lead_figure(table)
    assert "VFusion +12.5" in leads.alt
    assert set(leads.data["method"]) == {"LastLayer", "SuperLearner", "VFusion", "LastLayerMLP"}
    tasks = report.task_figure(compared)
    assert "from -25.0 to +50.0 points" in tasks.alt
    assert tasks.data["points"].tolist() == [50, -25, 50, -25]


def test_gaps_are_both_kinds_and_the_table_has_the_layer_no_one_could_know(table):
    of_means, of_ratios = report.gaps(table)
    assert of_means["value"] == pytest.approx(100 * 25 / 125)
    assert of_ratios["value"] == pytest.approx((100 * 50 / 75 - 50) / 2)
    assert of_means["text"].startswith("20 % (-50 to 67)")
    columns = ["last layer", "best layer", "best by test", "VFusion", "oracle", "gap closed"]
    assert set(columns) <= set(report.gap_table(table).columns)


def test_the_control_table_has_differences_with_intervals(compared):
    found = report.control_table(compared["a", "set 0"]).set_index("method")
    assert found.loc["VFusion", ["accuracy", "points"]].tolist() == [75, 50]
    assert found.loc["BestLayer", "accuracy"] == 25


def test_nothing_is_said_without_a_sign():
    assert report.points(Estimate(-0.2, -0.4, 0.3), unit="%")["text"] == "0 % (0 to 0)"
    assert report.points(Estimate(-0.04, -1.0, 2.0))["text"] == "+0.0 points (-1.0 to +2.0)"


def test_what_cannot_be_measured_is_none_with_its_reason():
    nothing = across(outcomes({"BestLayer": [[1, 1]], "VFusion": [[1, 0]]}))
    said = report.gaps(nothing)[0]
    assert said["value"] is None
    assert said["text"].startswith("not measured, because")
