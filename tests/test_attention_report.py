"""The report on attention as a graph: planted maps and statistics, models without CLS or with one head."""

import numpy as np
import pandas as pd
import pytest
import torch

from helpers import noise, tiny, tiny_zoo_model
from planted import planted_capture
from vitscope import attention_report, backbones
from vitscope.capture import capture
from vitscope.metrics.attention_graph import attention_consensus, cls_centrality, head_consensus
from vitscope.transforms import Transform


def planted(**attention):
    return planted_capture([-1, 0, 1], attention=attention)


def by_block(values, images=4, heads=2):
    """A statistic [L, N, H] that is the same for all pictures and heads of a block."""
    return np.broadcast_to(np.reshape(values, (-1, 1, 1)), (len(values), images, heads))


def reported(value):
    return {"value": value, "text": str(value)}


# --- what is taken of the maps ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "has_cls"), [("supervised", True), ("siglip", False), ("registers_without_cls", False)]
)
def test_only_a_cls_token_can_be_central(family, has_cls):
    statistics = attention_report.map_statistics(tiny(family))
    assert ("cls_centrality" in statistics) is has_cls
    assert {"consensus", "head_consensus"} <= set(statistics)


def test_map_statistics_are_those_of_the_metrics_with_the_models_own_prefix():
    model = tiny("dinov2_registers")
    prefix, tokens = 5, 5 + 9
    maps = torch.rand(3, 2, tokens, tokens, generator=torch.Generator().manual_seed(0)).softmax(-1)
    statistics = attention_report.map_statistics(model)
    assert torch.equal(statistics["consensus"](maps), attention_consensus(maps, prefix=prefix))
    assert torch.equal(statistics["head_consensus"](maps), head_consensus(maps, prefix=prefix))
    exact = cls_centrality(maps, prefix=prefix)
    torch.testing.assert_close(statistics["cls_centrality"](maps), exact, atol=2e-3, rtol=0)


def test_one_head_has_no_other_to_agree_with():
    model, architecture = tiny_zoo_model(heads=1, img_size=32)
    side = (architecture.img_size,) * 2
    backbone = backbones.describe("one head", model, Transform(*side, (0.5,) * 3, (0.5,) * 3))
    statistics = attention_report.map_statistics(backbone)
    assert set(statistics) == {"consensus", "cls_centrality"}
    seen = capture(backbone, noise(2, 32), norm="none", attention=statistics)
    assert seen.attention["consensus"].shape == (2, 2)


# --- tables and figures -----------------------------------------------------------------------------------


def test_statistic_table_averages_heads_and_numbers_blocks():
    heads = np.array([[[1.0, 3.0]] * 4, [[2.0, 6.0]] * 4])  # [L, N, H]
    captures = {
        "heads": planted(entropy=heads),
        "none": planted(distance=heads),
        "one": planted(entropy=heads[..., 0]),
    }
    table = attention_report.statistic_table(captures, "entropy", None)
    assert list(table) == ["backbone", "block", "mean", "low", "high"]
    assert table["backbone"].tolist() == ["heads"] * 2 + ["one"] * 2
    assert table["block"].tolist() == [1, 2, 1, 2]
    assert table["mean"].tolist() == table["low"].tolist() == table["high"].tolist() == [2, 4, 1, 2]


def test_intervals_draw_clusters():
    values = np.tile([0.0, 1.0], 8).reshape(1, 16, 1)  # every pair of neighbours has the same mean
    captures = {"a": planted(entropy=values)}
    alone = attention_report.statistic_table(captures, "entropy", None).iloc[0]
    grouped = attention_report.statistic_table(captures, "entropy", np.repeat(np.arange(8), 2)).iloc[0]
    assert grouped["low"] == grouped["high"] == pytest.approx(0.5)
    assert alone["low"] < 0.4 < 0.6 < alone["high"]


def test_a_statistic_that_nobody_has_is_an_empty_table():
    table = attention_report.statistic_table({"a": planted(entropy=by_block([1.0]))}, "cls_centrality", None)
    assert table.empty
    assert list(table) == ["backbone", "block", "mean", "low", "high"]


@pytest.mark.parametrize("statistic", sorted(attention_report.STATISTICS))
def test_statistic_figure_knows_every_statistic(statistic):
    captures = {"a": planted(**{statistic: by_block([0.5, 1.5])})}
    table = attention_report.statistic_table(captures, statistic, None)
    figure = attention_report.statistic_figure(table, statistic)
    assert figure.name == f"attention_{statistic}"
    assert "a goes from 0.5 to 1.5" in figure.alt
    dashed = [line.get_ydata()[0] for line in figure.fig.axes[0].lines if line.get_linestyle() == "--"]
    assert dashed == ([1.0] if statistic == "cls_centrality" else [])


def test_head_figure_has_a_cell_for_each_head():
    values = np.array([[[1.0, 5.0], [3.0, 5.0]], [[7.0, 0.5], [7.0, 0.5]]])  # [L, N, H]
    figure = attention_report.head_figure(planted(distance=values), "distance")
    assert figure.name == "heads_distance"
    assert figure.data["distance"].tolist() == [2, 5, 7, 0.5]
    assert "2 × 2 pairs of block and head" in figure.alt
    assert "lowest 0.5 at block 2, head 2; highest 7 at block 2, head 1" in figure.alt


# --- CLS centrality ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "upper"), [([9, 9, 9, 9, 2, 4], 3.0), ([9, 5], 5.0), ([9, 9, 9, 9, 9, 2, 4], 3.0)]
)
def test_centrality_is_that_of_the_last_third(blocks, upper):
    found = attention_report.centrality({"a": planted(cls_centrality=by_block(blocks)[..., 0])}, None)["a"]
    assert found["value"] == pytest.approx(upper)
    assert found["spread"] == pytest.approx((upper, upper))
    assert found["n"] == 4
    assert found["text"] == f"{upper:.2f} ({upper:.2f} to {upper:.2f})"


def test_no_cls_token_is_said():
    found = attention_report.centrality({"b": planted(entropy=by_block([1.0]))}, None)
    assert found == {"b": {"value": None, "text": "nothing (b has no CLS token)"}}


def test_rank_correlation_and_its_range_without_each_model():
    central = {name: reported(value) for name, value in zip("abcde", [1, 2, 3, 4, 5], strict=True)}
    accuracy = dict(zip("abcde", [50.0, 40.0, 30.0, 20.0, 90.0], strict=True))
    table, found = attention_report.against_accuracy(central, accuracy)
    assert table["model"].tolist() == list("abcde")
    # ranks 4 3 2 1 5: Σd² = 9 + 1 + 1 + 9 + 0 = 20, ρ = 1 − 6·20 / (5·24)
    assert found["value"] == pytest.approx(0.0)
    assert found["spread"] == pytest.approx((-1.0, 0.2))  # without e; without a: 1 − 6·8 / (4·15)
    assert found["n"] == 5
    assert found["text"] == "+0.00 (-1.00 to +0.20 with one model left out)"


def test_models_without_centrality_or_accuracy_do_not_count():
    central = {"a": reported(1.0), "b": {"value": None, "text": "no CLS"}, "c": reported(2.0)}
    table, found = attention_report.against_accuracy(central, {"a": 5.0, "b": 6.0})
    assert table.to_dict("records") == [{"model": "a", "CLS centrality": 1.0, "accuracy": 5.0}]
    assert found["value"] is None
    assert found["text"] == "nothing (1 models with a CLS token and a known accuracy are too few)"


def test_models_that_are_all_alike_have_no_ranks():
    central = {name: reported(float(i)) for i, name in enumerate("abcd")}
    _, found = attention_report.against_accuracy(central, dict.fromkeys("abcd", 100.0))
    assert found["value"] is None
    assert "no ranks to compare" in found["text"]
    # alike but for one: leaving that one out leaves nothing to rank, the other three ranges stand
    _, found = attention_report.against_accuracy(central, dict.fromkeys("abc", 100.0) | {"d": 50.0})
    assert found["value"] < 0
    assert np.isfinite(found["spread"]).all()


def test_nothing_at_all_is_an_empty_table_with_columns():
    table, found = attention_report.against_accuracy({}, {})
    assert isinstance(table, pd.DataFrame)
    assert table.empty
    assert list(table) == ["model", "CLS centrality", "accuracy"]
    assert found["value"] is None
