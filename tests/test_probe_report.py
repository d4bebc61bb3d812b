"""The report on probes: tables, figures, sentences and numbers, on planted answers."""

import itertools

import numpy as np
import pytest

from planted import first_right, planted_probes
from vitscope import probe_report


def probes(cls=None, patch=None, of=20, majority=25.0):
    """Probes whose first pictures are right: counts by state, CLS from state 0, patches from −1."""
    given = {"cls": (cls, 0), "patch_mean": (patch, -1)}
    correct = {
        kind: {state: first_right(count, of) for state, count in enumerate(counts, start=first)}
        for kind, (counts, first) in given.items()
        if counts is not None
    }
    return planted_probes(correct, majority)


BOTH = {"a": probes(cls=[5, 12, 16], patch=[6, 8, 18, 14])}
NO_CLS = {"b": probes(patch=[4, 10, 12])}


def test_state_table_has_every_probe_once():
    table = probe_report.state_table(BOTH | NO_CLS)
    assert list(table) == ["backbone", "token", "state", "accuracy", "low", "high", "balanced", "l2"]
    assert len(table) == 3 + 4 + 3
    one = table[(table["backbone"] == "a") & (table["token"] == "mean patch token")]
    assert one["state"].tolist() == [-1, 0, 1, 2]
    assert one["accuracy"].tolist() == [30, 40, 90, 70]
    assert (one["low"] < one["accuracy"]).all()
    assert (one["high"] > one["accuracy"]).all()


def test_probe_figure_leaves_out_who_lacks_the_token():
    figure = probe_report.probe_figure(BOTH | NO_CLS, "cls")
    assert set(figure.data["backbone"]) == {"a"}
    assert figure.name == "probes_cls"
    assert "majority baseline of 25.0 %" in figure.alt
    assert figure.alt.endswith("At the last layer: a 80.0 % (best 80.0 %).")
    patches = probe_report.probe_figure(BOTH | NO_CLS, "patch_mean", name="other")
    assert patches.name == "other"
    assert patches.alt.endswith("a 70.0 % (best 90.0 %), b 60.0 % (best 60.0 %).")
    assert any(line.get_ydata()[0] == pytest.approx(25.0) for line in patches.fig.axes[0].lines)


def test_whether_there_is_a_cls_token():
    assert probe_report.has_cls(BOTH | NO_CLS)
    assert not probe_report.has_cls(NO_CLS)


def test_probe_table_has_best_and_last():
    table = probe_report.probe_table(BOTH | NO_CLS).set_index(["backbone", "token"])
    assert list(table.index) == [("a", "CLS token"), ("a", "mean patch token"), ("b", "mean patch token")]
    row = table.loc[("a", "mean patch token")]
    assert row[["best state", "best", "last", "last, balanced", "majority"]].tolist() == [1, 90, 70, 69, 25]
    assert row["last, low"] < 70 < row["last, high"]


def test_last_sentence_has_a_clause_for_each_that_has_the_token():
    said = probe_report.last_text(BOTH | NO_CLS, "patch_mean")
    assert said["value"] == pytest.approx(65.0)
    assert (said["n"], said["unit"]) == (2, "%")
    first, second = said["text"].split(" and ")
    assert first.startswith("70.0 % (")
    assert first.endswith(") in a")
    assert second.startswith("60.0 % (")
    only = probe_report.last_text(BOTH | NO_CLS, "cls")
    assert (only["value"], only["n"]) == (80.0, 1)


def test_no_cls_is_said():
    assert probe_report.last_text(NO_CLS, "cls") == {
        "value": None, "text": "nothing (no backbone here has a CLS token)",
    }  # fmt: skip
    numbers = probe_report.numbers(NO_CLS, None)
    for key in ("patch_minus_cls", "cls_fall"):
        assert numbers[key]["b"] == {"value": None, "text": "nothing (b has no CLS token)"}
    assert numbers["task_accuracy"]["b"]["value"] == 60


def test_largest_lead_of_an_earlier_state():
    said = probe_report.best_text(BOTH | NO_CLS)
    assert said["value"] == pytest.approx(20.0)
    assert (said["n"], said["unit"]) == (3, "points")
    assert said["text"].endswith("over the last is 20.0 points (a, mean patch token, state 1)")


def test_no_lead_names_no_state():
    assert probe_report.best_text(NO_CLS)["value"] == 0
    assert probe_report.best_text(NO_CLS)["text"] == "no earlier state leads over the last"


def test_numbers_have_their_planted_values():
    numbers = probe_report.numbers(BOTH, None)
    values = {key: row["a"]["value"] for key, row in numbers.items()}
    assert values == pytest.approx(
        {"patch_minus_cls": -10, "patch_late_fall": 20, "cls_fall": 0, "task_accuracy": 80, "best_probe": 90}
    )
    assert {row["a"]["n"] for row in numbers.values()} == {20}
    units = {key: row["a"]["unit"] for key, row in numbers.items()}
    assert units["patch_minus_cls"] == units["cls_fall"] == "points"
    assert units["task_accuracy"] == units["best_probe"] == "%"
    assert numbers["cls_fall"]["a"]["text"] == "0.0 points (0.0 to 0.0)"


def test_leads_are_paired_over_pictures():
    # the same pictures are right but for two: unpaired, the interval of 10 points would hold 0
    numbers = probe_report.numbers({"a": probes(cls=[5, 20], patch=[5, 5, 24], of=40)}, None)
    low, high = numbers["patch_minus_cls"]["a"]["spread"]
    assert numbers["patch_minus_cls"]["a"]["value"] == pytest.approx(10.0)
    assert 0 < low < 10 < high


def test_clusters_widen_the_interval():
    given = {"a": probes(cls=[5, 10], patch=[5, 5, 12])}
    alone = probe_report.numbers(given, None)["task_accuracy"]["a"]
    grouped = probe_report.numbers(given, np.repeat(np.arange(5), 4))["task_accuracy"]["a"]
    assert grouped["value"] == alone["value"]
    assert np.ptp(grouped["spread"]) > np.ptp(alone["spread"])


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_fall_is_that_of_all_pairs(seed):
    counts = np.random.default_rng(seed).integers(0, 21, 7).tolist()
    number = probe_report.numbers({"a": probes(cls=counts, patch=[1, 2])}, None)["cls_fall"]["a"]
    largest = max(before - after for before, after in itertools.combinations_with_replacement(counts, 2))
    assert number["value"] == pytest.approx(100 * largest / 20)
