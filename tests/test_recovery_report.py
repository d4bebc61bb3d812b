"""The report on recovery: planted answers, their tables, figures, sentences and reported numbers."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from vitscope import chance, recoverability
from vitscope import recovery_report as report
from vitscope.recovery import PERMUTED, REAL, RESEEDED, Recovery

# which of ten pictures each state gets right; the last one errs on 6 … 9
RIGHT = [[0, 1, 6, 7], [0, 1, 2, 6], [0, 1, 2, 3, 4, 5]]
SURE = [range(10)] * 3
A, B = ("a", "x"), ("b", "y")


def recovery(right=RIGHT, **changes) -> Recovery:
    """Pictures of class 0; a state that is wrong says 1 for even pictures and 2 for odd ones."""
    answers = torch.tensor([[0 if n in row else 1 + n % 2 for n in range(10)] for row in right])
    logits, labels = torch.eye(3)[answers], [0] * 10
    found = recoverability.analyse(logits, labels, draws=50)
    luck = chance.permuted(logits, labels, draws=50)
    true = chance.permuted(logits, labels, within="true", draws=50)
    kept = {"mlp": found, "linear": found, "permuted": luck, "permuted_true": true, "reseeded": true}
    return Recovery(**kept, majority=40.0, classes=3, dropped=0, warnings={}, **changes)


def test_rates_are_those_of_the_planted_answers():
    row = report.rate_table({A: recovery()}).iloc[0]
    assert row[["backbone", "dataset", "errors", "classes", "majority"]].tolist() == ["a", "x", 4, 3, 40.0]
    # of the errors 6 … 9, the first state corrects 6 and 7, the second 6
    assert row[["last state", "oracle", "recovery"]].tolist() == [60, 80, 50]
    assert row["low"] <= 50 <= row["high"]
    assert row["oracle"] == row["last state"] + (100 - row["last state"]) * row["recovery"] / 100


def test_rate_figure_leaves_out_rows_without_errors_and_says_its_range():
    figure = report.rate_figure({A: recovery(), ("a", "y"): recovery([[], [], range(9)]), B: recovery(SURE)})
    assert figure.name == "recovery"
    assert figure.data["dataset"].tolist() == ["x", "y"]
    assert figure.alt.endswith("on 2 datasets, MLP probes, any earlier state: a 0 to 50 %.")
    assert report.rate_figure({A: recovery(SURE)}) is None


def test_chance_stands_beside_the_rate():
    found = {A: recovery(), B: recovery()}
    table = report.chance_table(found)
    assert len(table) == 2 * 3
    assert (table["real"] == 50).all()
    np.testing.assert_allclose(table["excess"], table["real"] - table["by luck"])
    # within the class: 1 − (1 − 4/10)(1 − 4/10)
    assert table[table["control"] == "permuted within a class"]["by luck"].tolist() == pytest.approx([64] * 2)
    figure = report.chance_figure(found, "b")
    assert figure.data["dataset"].unique().tolist() == ["y"]
    assert figure.data["probes"].tolist() == list(report.RATES)
    assert "MLP, earlier states 50 %" in figure.alt
    assert "MLP, permuted within a class 64 %" in figure.alt
    assert report.chance_figure({A: recovery(SURE)}, "a") is None


def test_count_figure_says_first_and_last_rate():
    rows = [(k, who, k * r) for who, r in ((REAL, 10), (RESEEDED, 4), (PERMUTED, 6)) for k in (1, 2, 5)]
    table = pd.DataFrame(rows, columns=["members", "who", "rate"])
    table = table.assign(low=table["rate"] - 1, high=table["rate"] + 1)
    figure = report.count_figure(table, A)
    assert f"{RESEEDED} 4 % with 1, 20 % with 5" in figure.alt
    assert "a on x" in figure.fig.axes[0].get_title(loc="left")
    assert report.count_figure(table.assign(rate=np.nan), A) is None


def test_state_figure_has_both_shares_and_the_any_layer_rate():
    figure = report.state_figure(recovery(), A)
    shares = figure.data.pivot(index="state", columns="share", values="mean")
    assert shares["recovered, of its errors"].tolist() == [50, 25]
    assert shares["spoiled, of its right answers"].tolist() == pytest.approx([400 / 6, 50])
    assert "recovered, of its errors 25 to 50 %, at the last but one 25 %" in figure.alt
    assert "Any of them is right on 50 % of its errors." in figure.alt
    assert report.state_figure(recovery(SURE), A) is None
    assert report.state_figure(recovery([[0], [1], []]), A) is None  # no right answer to spoil


def test_states_are_columns_in_their_order_whatever_the_depth():
    deep = recovery([[0]] * 10 + [RIGHT[2]])
    table = report.by_state({A: recovery(), B: deep}, "per_layer")
    assert list(table.columns) == ["backbone", "dataset", *map(str, range(1, 11))]
    assert table.loc[0, ["1", "2"]].tolist() == [50, 25]
    assert table.loc[0, "3":].isna().all()
    assert report.by_state({A: recovery()}, "harm").loc[0, "2"] == 50


def test_the_state_that_recovers_most_gains_what_recovery_and_harm_make():
    table = report.best_table({A: recovery(), B: recovery(SURE)})
    row = table.iloc[0]
    assert row[["state", "recovers", "accuracy", "last state", "gain"]].tolist() == [1, 50, 40, 60, -20]
    assert row["gain"] == pytest.approx(((100 - 60) * row["recovers"] - 60 * row["spoils"]) / 100)
    assert table.loc[1, ["state", "recovers", "gain"]].isna().all()
    better = recovery([range(8), [], range(5)])
    assert report.gain_text({A: recovery(), B: better}) == {"value": 1, "n": 2, "text": "1 of 2 pairs"}


def test_control_table_has_a_row_per_case():
    table = report.control_table({"as it is": recovery(), "random": recovery([[], [], [0]])})
    assert table["weights"].tolist() == ["as it is", "random"]
    assert table["recovery"].tolist() == [50, 0]
    assert table["last state"].tolist() == pytest.approx([60, 10])
    assert table.loc[0, "over reseeded"] == pytest.approx(-14)


def test_numbers_have_their_planted_values():
    values = report.numbers({A: recovery()})
    assert list(values) == [
        "recovery", "recovery_linear", "excess_permuted", "excess_permuted_true", "excess_reseeded",
        "best_layer_recovery", "best_layer_harm",
    ]  # fmt: skip
    rate = values["recovery"]["a.x"]
    assert (rate["value"], rate["n"], rate["unit"]) == (50, 4, "%")
    assert rate["text"] == f"50.0 % ({rate['spread'][0]:.1f} to {rate['spread'][1]:.1f})"
    excess = values["excess_reseeded"]["a.x"]
    assert excess["value"] == pytest.approx(-14)
    assert excess["text"].startswith("-14.0 points (")
    best, harm = values["best_layer_recovery"]["a.x"], values["best_layer_harm"]["a.x"]
    assert (best["value"], best["n"]) == (50, 4)
    assert (harm["value"], harm["n"]) == (pytest.approx(400 / 6), 6)


def test_numbers_that_are_not_there_say_why():
    sure = report.numbers({A: recovery(SURE)})
    for key in ("recovery", "excess_permuted", "best_layer_recovery", "best_layer_harm"):
        assert sure[key]["a.x"]["value"] is None
        assert "the last state makes no error on these 10 images" in sure[key]["a.x"]["text"]
    hopeless = report.numbers({A: recovery([[0], [1], []])})
    assert hopeless["best_layer_recovery"]["a.x"]["value"] == 10
    assert hopeless["best_layer_harm"]["a.x"] == {
        "value": None, "text": "not measured, because the last state has no right answer to spoil",
    }  # fmt: skip


def test_extremes_name_their_rows():
    low = recovery([[6], [], RIGHT[2]])
    said = report.extremes({A: recovery(), B: low, ("c", "z"): recovery(SURE)})
    assert said["recovery_least"]["text"] == "25.0 % (b on y)"
    assert said["recovery_most"]["text"] == "50.0 % (a on x)"
    assert said["recovery_most"]["spread"] == report.numbers({A: recovery()})["recovery"]["a.x"]["spread"]
    nothing = report.extremes({A: recovery(SURE)})
    assert nothing["recovery_least"]["value"] is None


def test_rows_clearly_above_and_below_luck_are_counted():
    planted = recovery()

    def luck(low, high):
        excess = replace(planted.permuted.excess, value=(low + high) / 2, low=low, high=high)
        return replace(planted, permuted=replace(planted.permuted, excess=excess))

    found = {A: luck(1, 2), B: luck(-1, 2), ("c", "z"): luck(-3, -1), ("d", "z"): luck(5, 9)}
    found["e", "z"] = recovery(SURE)
    said = report.above_text(found, "excess_permuted")
    assert said == {"value": 2, "n": 4, "text": "2 of 4 pairs (below in 1)"}


def test_warnings_are_gathered_by_backbone():
    warned = replace(recovery(), warnings={"linear probes": ("the grid is short",)}, dropped=3)
    said = report.warnings({A: warned, ("a", "y"): warned, B: recovery()})
    assert list(said) == ["a"]
    assert said["a"].startswith("x, linear probes: the grid is short; x, 3 test pictures of classes")
    assert said["a"].count("the grid is short") == 2
