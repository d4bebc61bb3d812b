"""The report on scrambling: planted indices, their tables, figures and sentences."""

import warnings

import numpy as np
import pytest
import torch

from planted import planted_scrambling
from vitscope import scrambling_report as report

RISING = [0.0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]  # states −1, 0, 1 … 6
PATTERN = [0.0, 0.2, 0.3, 0.3, 0.31, 0.3, 0.3, 0.33, 0.36]


def index(values, images=4):
    """An attention-based index [L, N], the same for all pictures."""
    return torch.tensor(values, dtype=torch.float32)[:, None].expand(-1, images)


def test_measure_table_names_what_is_asked_for():
    found = {"a": planted_scrambling(RISING, isi_control=[-0.1] * 8), "b": planted_scrambling([0, 0, 0.7])}
    table = report.measure_table(found, {"isi": "ISI", "isi_control": "control"})
    assert list(table) == ["backbone", "measure", "state", "mean", "low", "high"]
    assert len(table) == 2 * (8 + 3)
    row = table[(table["backbone"] == "b") & (table["measure"] == "ISI") & (table["state"] == 1)].iloc[0]
    assert row[["mean", "low", "high"]].tolist() == pytest.approx([0.7, 0.69, 0.71])
    control = table[(table["backbone"] == "a") & (table["measure"] == "control")]
    assert control["mean"].tolist() == [-0.1] * 8
    assert control["state"].tolist() == list(range(-1, 7))


def test_figures_say_ends_and_peaks():
    a = planted_scrambling([0.0, 0.0, 0.4, 0.1], r2_self=[0.9, 0.88, 0.5, 0.25])
    information = report.information_figure({"a": a})
    assert information.name == "information"
    assert information.alt.endswith("by state: a 0.90 → 0.25.")
    isi = report.isi_figure({"a": a}, "isi_depth")
    assert isi.name == "isi_depth"
    assert isi.alt.endswith("a highest 0.400 at state 1, last 0.100.")
    assert isi.data["mean"].tolist() == [0.0, 0.0, 0.4, 0.1]


def test_control_figure_has_the_index_and_both_controls():
    a = planted_scrambling(RISING, isi_shuffled=[0.25] * 8, isi_control=[-0.03] * 8)
    figure = report.control_figure(a, "a")
    assert set(figure.data["measure"]) == set(report.CONTROLS.values())
    for said in ("ISI up to 0.600", "permuted up to 0.250", "another image up to -0.030"):
        assert said in figure.alt


def test_conditions_figure_names_conditions():
    conditions = {
        "as it is": planted_scrambling(RISING),
        "random weights": planted_scrambling([0, 0, 0.05, 0.02]),
    }
    figure = report.conditions_figure(conditions, "a")
    assert set(figure.data["condition"]) == set(conditions)
    assert figure.alt == (
        "ISI of a by state under 2 conditions: as it is up to 0.600, random weights up to 0.050."
    )


def test_regimes_are_measured_by_the_reference_model():
    found = {
        "base": planted_scrambling([0.9, 0.0, *np.arange(1, 11) / 100]),
        "other": planted_scrambling([0.0, 0.0, -0.1, 0.0, 0.05, 0.0911, 0.2]),
    }
    table = report.regime_table(found, "base").set_index("backbone")
    assert table["band ends at"].tolist() == pytest.approx([0.091, 0.091])  # nine tenths of the way, by hand
    assert table.loc["base", ["collapse", "consensus", "diffusion"]].tolist() == [0, 9, 1]
    assert table.loc["other", ["collapse", "consensus", "diffusion"]].tolist() == [2, 1, 2]
    assert table.loc["other", ["highest ISI", "at state", "last ISI"]].tolist() == [0.2, 5, 0.2]


def test_the_highest_index_of_blocks_is_placed_among_blocks():
    table = report.regime_table({"a": planted_scrambling([0.0, 0.0, -0.3, -0.1, -0.2])}, "a")
    assert table.loc[0, ["highest ISI", "at state"]].tolist() == [-0.1, 2]


def test_index_figure_counts_blocks():
    figure = report.index_figure({"a": index([0.2, 0.3, 0.25])}, None)
    assert figure.data["block"].tolist() == [1, 2, 3]
    assert figure.data["low"].tolist() == pytest.approx([0.2, 0.3, 0.25])
    assert figure.alt.endswith("first to last: a 0.200 → 0.250.")


def test_agreement_of_the_two_indices():
    found = {name: planted_scrambling(RISING) for name in ("same", "reversed", "flat")}
    both = {
        "same": index([1, 2, 4, 8, 16, 32]), "reversed": index([6, 5, 4, 3, 2, 1]), "flat": index([1.0] * 6),
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = report.agreement_table(found, both).set_index("backbone")
    assert table.loc["same", "Spearman"] == pytest.approx(1.0)
    assert table.loc["reversed", "Spearman"] == pytest.approx(-1.0)
    assert np.isnan(table.loc["flat", "Spearman"])
    assert table["blocks"].tolist() == [6, 6, 6]


@pytest.mark.parametrize(
    ("curve", "is_so"),
    [
        (PATTERN, True),
        (np.add(PATTERN, 7.0), True),
        (np.linspace(0, 1, 9), False),  # no rest
        ([0.3] * 9, False),  # no jump
        ([*PATTERN[:7], 0.3, 0.3], False),  # no rise
        ([*PATTERN[:7], 0.5, 0.7], False),  # the rise is no milder than the jump
        (PATTERN[::-1], False),
        ([0.0, 0.3, 0.3, 0.3, 0.36], False),  # too few blocks for three thirds
    ],
)
def test_jump_rest_and_mild_rise(curve, is_so):
    assert report.jump_flat_rise(np.asarray(curve)) is is_so


def test_numbers_have_their_planted_values():
    values = report.numbers({"a": planted_scrambling(RISING)}, {"a": index([0, 0.1, 0.2, 0.3, 0.4, 0.5])})
    assert list(values) == ["isi_last", "isi_upper", "isi_band_low", "isi_band_high", "isi_half"]
    last, upper = values["isi_last"]["a"], values["isi_upper"]["a"]
    assert last["value"] == pytest.approx(0.6)
    assert last["spread"] == pytest.approx((0.59, 0.61))
    assert last["text"] == "0.6000 (0.5900 to 0.6100)"
    assert last["n"] == 20
    assert upper["value"] == pytest.approx(0.55)  # blocks 5 and 6 of 6
    assert upper["spread"] == pytest.approx((0.54, 0.56))
    assert values["isi_band_low"]["a"]["value"] == pytest.approx(0.225)
    assert values["isi_band_high"]["a"]["value"] == pytest.approx(0.475)
    assert values["isi_band_high"]["a"]["spread"] is None
    half = values["isi_half"]["a"]
    assert half["value"] == pytest.approx(3.5)
    assert half["text"] == "3.5"


@pytest.mark.parametrize(
    ("curve", "reason"),
    [([0.2, 0.4, 0.2], "the curve ends where it began"), ([0.2], "one block is no way to cover")],
)
def test_a_way_that_is_not_there_is_none_with_its_reason(curve, reason):
    scrambled = planted_scrambling([0.0, 0.0, *curve])
    half = report.numbers({"a": scrambled}, {"a": index(curve)})["isi_half"]["a"]
    assert half["value"] is None
    assert half["text"].startswith(f"not detected, because {reason}")


def test_sentences_count_and_place():
    pattern = report.pattern_text({"a": index(PATTERN), "b": index(np.linspace(0, 1, 9))})
    assert pattern == {"value": 1, "text": "1 of 2 backbones (a)", "n": 2}
    found = {"a": planted_scrambling([0.0, 0.0, 0.4, 0.1]), "b": planted_scrambling([0.0, 0.2, 0.1])}
    peak = report.peak_text(found)
    assert peak["text"] == "0.400 at state 1 in a, 0.200 at state 0 in b"
    assert peak["value"] == pytest.approx(0.3)


def test_what_is_lost_is_the_rest_of_what_is_held():
    found = {
        "a": planted_scrambling([0, 0, 0], normalised_self=[1, 1, 0.3]),
        "b": planted_scrambling([0, 0, 0], normalised_self=[1, 1, 0.9]),
    }
    said = report.lost_text(found)
    assert said["text"] == "70 % in a, 10 % in b"
    assert said["value"] == pytest.approx(40.0)
    assert (said["n"], said["unit"]) == (2, "%")
