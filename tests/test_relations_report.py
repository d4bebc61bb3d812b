"""The report on what goes with recovery: planted measures, relations, and orders of datasets."""

import numpy as np
import pandas as pd
import pytest

from test_recovery_report import RIGHT, SURE, A, B, recovery
from vitscope import relations_report as report


def planted(datasets: int = 6) -> pd.DataFrame:
    """Measures of two backbones: recovery rises with the entropy and falls with the disagreement."""
    rows = [
        {
            "backbone": backbone, "dataset": f"set {k}", "recovery_rate": 20.0 + 5 * k + shift,
            "accuracy": 50.0 + (k * 7) % 5, **dict.fromkeys(report.NAMES, 0.5),
            "correction_entropy": 0.1 * k + shift / 10, "geometric_disagreement": 1 - 0.1 * k - shift / 10,
        }
        for backbone, shift in (("a", 0), ("b", 1))
        for k in range(datasets)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_measures_are_means_over_pairs_of_states():
    table = report.measures({A: recovery(), B: recovery(SURE)}).set_index("backbone")
    right = np.array([[n in row for n in range(10)] for row in RIGHT])
    pairs = [(0, 1), (0, 2), (1, 2)]
    assert table.loc["a", "disagreement"] == pytest.approx(
        100 * np.mean([(right[i] != right[j]).mean() for i, j in pairs])
    )
    assert table.loc["a", "double_fault"] == pytest.approx(
        100 * np.mean([(~right[i] & ~right[j]).mean() for i, j in pairs])
    )
    assert table.loc["a", ["recovery_rate", "accuracy"]].tolist() == [50, 60]
    shares = np.array([2, 1]) / 3
    assert table.loc["a", "correction_entropy"] == pytest.approx(-(shares * np.log2(shares)).sum())
    assert np.isnan(table.loc["a", "feature_disagreement"])  # no features were given
    assert table.loc["b", ["recovery_rate", "correction_entropy", "q_statistic"]].isna().all()


def test_shown_columns_have_readable_names():
    table = report.shown(report.measures({A: recovery()}), report.DIVERSITY)
    assert list(table.columns) == [
        "backbone", "dataset", "recovery (%)", "last state (%)", "pairwise disagreement (%)",
        "double fault (%)", "Q statistic",
    ]  # fmt: skip


def test_diversity_figure_says_how_often_states_disagree():
    figure = report.diversity_figure(recovery(), A)
    assert len(figure.data) == 9
    cell = figure.data[(figure.data["state"] == 1) & (figure.data["other state"] == 3)]
    assert cell["disagreement (%)"].item() == pytest.approx(60)
    assert "disagree on 20 to 60 % of the pictures, on average 40 %" in figure.alt


def test_relations_have_their_planted_signs():
    related = report.find(planted(), draws=100)
    said = report.numbers(related)
    assert set(said) == {key + end for key in report.CLAIMED for end in ("", "_partial")}
    for key, sign in (("entropy_relation", 1), ("disagreement_relation", -1)):
        assert said[key]["value"] == pytest.approx(sign, abs=0.1)
        assert said[key]["n"] == 12
        assert sign * said[f"{key}_partial"]["value"] > 0.8
    low, high = said["entropy_relation"]["spread"]
    assert said["entropy_relation"]["text"].endswith(f"({low:+.2f} to {high:+.2f})")
    table = report.relation_table(related).set_index("measure")
    assert table.loc["correction entropy", "rows"] == 12
    assert table.loc["geometric disagreement", "Spearman"] < -0.9
    assert table.loc["Q statistic", "remark"] == "not measured, because q_statistic does not vary"


def test_too_few_datasets_give_reasons_and_no_numbers():
    said = report.numbers(report.find(planted(datasets=3)))
    for reported in said.values():
        assert reported["value"] is None
        assert reported["text"] == "not measured, because 4 different values of dataset are needed, got 3"


def test_datasets_stand_in_the_order_of_the_measure():
    figure = report.order_figure(planted(3), "geometric_disagreement")
    assert figure.name == "recovery_by_geometric_disagreement"
    ticks = [label.get_text() for label in figure.fig.axes[0].get_xticklabels()]
    assert ticks == ["set 2", "set 1", "set 0"]
    assert figure.alt.endswith("set 2 0.75 with 30 %, set 1 0.85 with 26 %, set 0 0.95 with 20 %.")
    assert report.order_figure(planted(1), "correction_entropy") is None
    assert report.order_figure(report.measures({A: recovery(SURE)}), "correction_entropy") is None
