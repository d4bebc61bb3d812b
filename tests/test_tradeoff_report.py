"""The report on the trade-off, costs and advice: planted crossings and answers."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from helpers import tiny
from planted import first_right, planted_probes, planted_scrambling
from vitscope import tradeoff_report as report
from vitscope.cost import layer_costs
from vitscope.tradeoff import TradeOff

CROSSING = TradeOff((-1, 0, 1, 2), (1.1, 1.0, 0.5, 0.2), (-0.1, 0.0, 0.75, 1.0), 0.8, "", (0.7, 0.9), 1.0)
LATER = TradeOff((0, 1, 2), (1.0, 0.9, 0.4), (0.0, 0.1, 1.0), 1.4, "")
NEVER = TradeOff((0, 1), (1.0, 0.9), (0.0, 0.5), None, "not detected, because the task never overtakes")


def probes(counts, of=20, majority=25.0, first=-1):
    states = {s: first_right(n, of) for s, n in enumerate(counts, start=first)}
    return planted_probes({"patch_mean": states}, majority)


# --- onset ------------------------------------------------------------------------------------------------


def test_onset_is_where_the_planted_curves_cross():
    scrambled = {"a": planted_scrambling([0] * 5, r2_self=[0.8, 0.8, 0.6, 0.4, 0.2])}
    task = planted_probes(
        {"patch_mean": {s: first_right(n, 20) for s, n in zip(range(-1, 4), [5, 5, 8, 14, 17], strict=True)}}
    )
    found = report.find(scrambled, {"a": task}, None)["a"]
    assert found.states == (-1, 0, 1, 2, 3)
    np.testing.assert_allclose(found.information, [1, 1, 0.75, 0.5, 0.25])
    np.testing.assert_allclose(found.task, [0, 0, 0.25, 0.75, 1])
    # they meet where 0.75 − 0.25 t = 0.25 + 0.5 t
    assert found.onset == pytest.approx(1 + 2 / 3)
    low, high = found.interval
    assert low < found.onset < high


def test_the_floor_is_the_majority_and_clusters_are_drawn_whole():
    scrambled = {"a": planted_scrambling([0] * 4, r2_self=[1, 1, 0.5, 0.1])}
    # one picture of every pair is right at state 1, both at state 2: pairs are alike
    states = {-1: [False] * 20, 0: [False] * 20, 1: [True, False] * 10, 2: [True] * 20}
    for majority, expected in ((0.0, 0.5), (50.0, 0.0)):
        task = planted_probes({"patch_mean": states}, majority)
        found = report.find(scrambled, {"a": task}, np.repeat(np.arange(10), 2))["a"]
        assert found.task[2] == pytest.approx(expected)
        assert found.interval[0] == pytest.approx(found.interval[1])


def test_of_the_cls_token_only_states_that_have_it_count():
    scrambled = {"a": planted_scrambling([0] * 4, r2_self=[1, 1, 0.5, 0.1])}
    states = {0: first_right(5, 20), 1: first_right(12, 20), 2: first_right(19, 20)}
    both = planted_probes({"cls": states, "patch_mean": {-1: first_right(20, 20), **states}})
    assert report.find(scrambled, {"a": both}, None, kind="cls")["a"].states == (0, 1, 2)


def test_figure_says_both_ends_and_the_onset():
    figure = report.trade_off_figure(CROSSING, "My Nét/2")
    assert figure.name == "tradeoff_my-n-t-2"
    assert "over 4 states: information falls to 0.20 of its first value" in figure.alt
    assert "accuracy reaches 1.00 of its best. Trade-off:" in figure.alt
    assert "at state 0.8 [0.7 to 0.9]" in figure.alt
    assert set(figure.data["curve"]) == {"information in the own token", "accuracy of the probe"}
    assert "never overtakes" in report.trade_off_figure(NEVER, "b").alt


@pytest.mark.parametrize(
    ("name", "expected"), [("twin_s", "twin_s"), ("vit.augreg_In1k", "vit-augreg_in1k"), ("Ö@6400", "--6400")]
)
def test_file_names_hold_what_a_figures_name_may(name, expected):
    assert report.file_name(name) == expected
    report.trade_off_figure(CROSSING, name)


def test_table_has_an_onset_or_what_was_said():
    models = [SimpleNamespace(name="a", depth=4), SimpleNamespace(name="b", depth=2)]
    table = report.trade_off_table({"a": CROSSING, "b": NEVER}, models).set_index("backbone")
    row = table.loc["a"]
    assert row[["blocks", "onset", "low", "high", "share of depth"]].tolist() == pytest.approx(
        [4, 0.8, 0.7, 0.9, 0.2]
    )
    assert table.loc["b", ["onset", "low", "high", "share of depth"]].isna().all()
    assert table.loc["b", "said"] == "Trade-off not detected, because the task never overtakes."


def test_onsets_are_numbers_or_none_with_the_reason():
    found = report.onsets({"a": CROSSING, "b": LATER, "c": NEVER})
    assert found["a"] == {"value": 0.8, "spread": (0.7, 0.9), "text": "0.8 (0.7 to 0.9)"}
    assert found["b"] == {"value": 1.4, "spread": None, "text": "1.4"}
    assert found["c"] == {"value": None, "text": NEVER.reason}


def test_onset_sentence_compares_first_and_last():
    said = report.onset_text({"a": CROSSING, "b": NEVER, "c": LATER})
    assert said["text"] == "state 0.8 in a, none in b, state 1.4 in c"
    assert said["value"] == pytest.approx(0.6)
    assert report.onset_text({"a": CROSSING})["value"] is None


@pytest.mark.parametrize("found", [{"a": NEVER, "b": CROSSING, "c": LATER}, {"a": CROSSING, "b": NEVER}])
def test_a_lead_over_what_is_missing_is_none(found):
    assert report.onset_text(found)["value"] is None


def test_no_backbone_is_said():
    assert report.onset_text({}) == {"value": None, "text": "nothing (no such backbones were asked for)"}


# --- costs and advice -------------------------------------------------------------------------------------


def test_costs_are_those_of_each_backbone():
    a, b = replace(tiny("supervised"), name="a"), replace(tiny("siglip", depth=1), name="b")
    table = report.costs([a, b])
    assert table["backbone"].tolist() == ["a"] * 3 + ["b"] * 2
    pd.testing.assert_frame_equal(
        table[table["backbone"] == "b"].drop(columns="backbone").reset_index(drop=True), layer_costs(b)
    )


@pytest.fixture(scope="module")
def advices():
    """Models of 7 blocks: one peaks early, one climbs to the end, one is the same at all states."""
    states = range(8)
    cost = pd.concat(
        pd.DataFrame({"backbone": name, "state": states, "gflops_total": np.arange(1, 9) / 2})
        for name in "abc"
    )
    given = {
        "a": probes([10, 10, 30, 30, 30, 20, 20, 20, 20], of=40),
        "b": probes([4, 4, 4, 4, 4, 4, 14, 24, 36], of=40),
        "c": probes([10] * 9, of=40),
    }
    return report.advices(given, cost, None)


def test_advice_follows_the_planted_accuracy(advices):
    assert {name: (a.truncate, a.best, a.depth) for name, a in advices.items()} == {
        "a": (1, 1, 7), "b": (7, 7, 7), "c": (0, 0, 7),
    }  # fmt: skip
    assert advices["b"].fine_tune == (5, 6, 7)


def test_advice_table_says_what_to_do_or_why_not(advices):
    table = report.advice_table(advices).set_index("backbone")
    assert table["stop at state"].to_dict() == {"a": 1, "b": 7, "c": 0}
    assert table["operations saved"].to_dict() == {"a": "75 %", "b": "0 %", "c": "88 %"}
    assert table.loc["b", ["freeze", "fine-tune"]].tolist() == ["blocks 1 to 4", "blocks 5 to 7"]
    assert table.loc["a", "freeze"] == ""
    assert "a climb takes 5 states or more" in table.loc["a", "fine-tune"]


def test_depths_are_in_blocks(advices):
    depths = report.depths(advices)
    assert depths["useful_depth"]["a"] == {"value": 1, "text": "1 of 7 blocks"}
    assert depths["unused_depth"]["a"] == {"value": 6, "text": "6 of 7 blocks"}
    assert depths["unused_depth"]["b"]["value"] == 0
