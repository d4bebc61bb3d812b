"""The report on the position embedding: known embeddings, planted answers, models without one."""

import numpy as np
import pandas as pd
import pytest
import timm
import torch

from helpers import tiny, tiny_zoo_model, toy_images
from planted import planted_capture
from vitscope import backbones, position_report
from vitscope.capture import capture
from vitscope.transforms import Transform


def effects(**answers):
    """What models answered with the embedding scaled: top-1 by factor, or agreement where top-1 is None."""
    rows = [
        {"backbone": name, "factor": factor, "top1": np.nan if top1 is None else top1, "agreement": agreement}
        for name, by_factor in answers.items()
        for factor, (top1, agreement) in by_factor.items()
    ]
    return pd.DataFrame(rows, columns=["backbone", "factor", "top1", "agreement"])


KNOWN = {0.0: (50.0, 60.0), 0.5: (88.0, 90.0), 1.0: (85.0, 100.0), 4.0: (20.0, 30.0)}
UNKNOWN = {0.0: (None, 70.0), 0.5: (None, 80.0), 1.0: (None, 100.0), 4.0: (None, 5.0)}


@pytest.fixture(scope="module")
def known():
    """A model whose patch embeddings are 2 long and whose position embeddings are 3 long."""
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, num_classes=0
    )
    with torch.no_grad():
        model.pos_embed.zero_()
        model.pos_embed[0, 1:, 0] = 3.0  # the CLS entry stays 0 and must not count
        model.patch_embed.proj.weight.zero_()
        model.patch_embed.proj.bias.zero_()
        model.patch_embed.proj.bias[1] = 2.0
    return backbones.describe("known", model, Transform(32, 32, (0.5,) * 3, (0.5,) * 3))


def with_head(classes):
    """A tiny twin with that many outputs, at the size of `toy_images`."""
    model, _ = tiny_zoo_model(num_classes=classes)
    return backbones.describe(f"head{classes}", model, Transform(64, 64, (0.5,) * 3, (0.5,) * 3))


def test_dominance_of_a_known_embedding(known):
    captured = capture(known, torch.zeros(2, 3, 32, 32), norm="none")
    row = position_report.pe_table([known], {"known": captured}).iloc[0]
    assert row["mean norm of position embedding"] == pytest.approx(3.0)
    assert row["mean norm of patch embedding"] == pytest.approx(2.0)
    assert row["ratio"] == pytest.approx(1.5)


def test_no_dominance_over_what_a_norm_has_stretched(known):
    captured = capture(known, torch.zeros(2, 3, 32, 32), norm="layer")
    row = position_report.pe_table([known], {"known": captured}).iloc[0]
    assert row["mean norm of position embedding"] == pytest.approx(3.0)
    assert np.isnan(row["mean norm of patch embedding"])
    assert np.isnan(row["ratio"])


def test_a_model_without_a_table_of_positions_has_no_ratio():
    rotary = tiny("dinov3_rope")
    captured = planted_capture([-1, 0], per_image={"patch_norm": [[4.0, 6.0], [1.0, 1.0]]})
    row = position_report.pe_table([rotary], {rotary.name: captured}).iloc[0]
    assert row["mean norm of patch embedding"] == pytest.approx(5.0)
    assert row[["mean norm of position embedding", "ratio"]].isna().all()


def test_effect_is_measured_where_there_is_a_head_and_an_embedding():
    own, other, headless, rotary = with_head(2), with_head(3), tiny("supervised"), tiny("dinov3_rope")
    table = position_report.effect_table([own, other, headless, rotary], toy_images(6))
    assert list(dict.fromkeys(table["backbone"])) == ["head2", "head3"]
    assert len(table) == 2 * len(position_report.FACTORS)
    own_rows = table[table["backbone"] == "head2"].set_index("factor")
    assert own_rows["top1"].between(0, 100).all()
    assert own_rows.loc[1.0, "agreement"] == 100
    assert table.loc[table["backbone"] == "head3", "top1"].isna().all()
    alone = position_report.effect_table([own], toy_images(6), (1.0,))
    assert alone["factor"].tolist() == [1.0]
    assert alone.loc[0, "top1"] == own_rows.loc[1.0, "top1"]


def test_nothing_to_measure_is_an_empty_table_that_says_so():
    table = position_report.effect_table([tiny("supervised")], toy_images(6))
    assert table.empty
    assert {"backbone", "factor", "top1", "agreement"} <= set(table)
    assert position_report.effect_text(table) == {
        "value": None, "text": "nothing that was measured (no head for a named task)",
    }  # fmt: skip
    assert position_report.own_accuracy(table) == {}


def test_effect_figure_shows_top1():
    figure = position_report.effect_figure(effects(a=KNOWN))
    assert figure.data["top1"].tolist() == [50, 88, 85, 20]
    assert figure.alt.endswith("a: 50.0 % at factor 0, 88.0 % at best, 20.0 % at 4.")
    assert "own top-1 against the factor" in figure.alt


def test_effect_figure_shows_agreement_where_a_top1_is_unknown():
    figure = position_report.effect_figure(effects(a=KNOWN, b=UNKNOWN))
    assert figure.data["agreement"].tolist() == [60, 90, 100, 30, 70, 80, 100, 5]
    assert "agreement with factor 1" in figure.alt
    assert "b: 70.0 % at factor 0, 100.0 % at best, 5.0 % at 4." in figure.alt


def test_the_loss_is_that_between_factor_1_and_0():
    said = position_report.effect_text(effects(a=KNOWN))
    assert said == {"value": 35.0, "text": "35.0 points in a", "n": 1, "unit": "points"}
    both = position_report.effect_text(effects(a=KNOWN, b=UNKNOWN))
    assert both["value"] == pytest.approx(35.0)
    assert both["text"] == "40.0 points in a and 30.0 points in b"


def test_own_accuracy_is_unscaled_and_may_be_unknown():
    found = position_report.own_accuracy(effects(a=KNOWN, b=UNKNOWN))
    assert found["a"] == {"value": 85.0, "unit": "%", "text": "85.0 %"}
    assert found["b"]["value"] is None
    assert found["b"]["text"] == "not measured: its head names other classes"
