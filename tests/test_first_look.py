"""What chapter 00 measures and shows: known answers, models that are refused, emoji whose place is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from helpers import enliven, noise, tiny, toy_images
from vitscope import data
from vitscope import first_look as look
from vitscope import first_look_measures as measures
from vitscope.backbones import Backbone, UnsupportedModel, describe
from vitscope.data import emoji, tasks
from vitscope.pretrain.zoo import Architecture
from vitscope.transforms import Transform
from vitscope.vit80 import ViT

HALF = (0.5, 0.5, 0.5)


def twin(**changes) -> Backbone:
    """A small lively twin of 64 pixels with two classes."""
    shape = {"width": 32, "depth": 3, "heads": 2, "num_classes": 2}
    model = Architecture(**{**shape, **changes}).build().eval()
    return describe("small", enliven(model), Transform(64, 64, HALF, HALF))


@pytest.fixture(scope="module")
def renders():
    return data.load("emoji_identity", "test").select([0, 300, 700, 1100])


# --- which models these lines are -------------------------------------------------------------------------


def test_shape_of_a_twin_builds_it():
    backbone = twin()
    shape = measures.shape_of(backbone, 2)
    assert shape == {"size": 64, "patch": 8, "width": 32, "depth": 3, "heads": 2, "classes": 2}
    pictures = noise(3, 64)
    model = measures.rebuilt(backbone, 2)
    torch.testing.assert_close(model(pictures), backbone.model(pictures), rtol=1e-4, atol=1e-4)
    assert not any(t.requires_grad for t in model.parameters())
    assert not model.training


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"reg_tokens": 4}, "4 register tokens"),
        ({"attention": "entmax15"}, "its attention is entmax15, not softmax"),
        ({"specialized": True}, "its tensors differ from a plain ViT's, as blocks"),
        ({"num_classes": 7}, "its head has 7 outputs for 2 classes"),
        ({"depth": 1}, "it has a single block"),
        ({"reg_tokens": 1, "num_classes": 7}, "1 register tokens; its head has 7 outputs"),
    ],
)
def test_other_models_are_refused_with_every_reason(changes, reason):
    with pytest.raises(UnsupportedModel, match=f"small is not the plain ViT.*{reason}.*such as twin_s"):
        measures.shape_of(twin(**changes), 2)


@pytest.mark.parametrize(
    ("family", "reason"), [("siglip", "no CLS"), ("layer_scale", "differ.*gamma|pos_emb")]
)
def test_other_families_are_refused(family, reason):
    with pytest.raises(UnsupportedModel, match=reason):
        measures.shape_of(tiny(family), 0)


# --- what the model does ----------------------------------------------------------------------------------


def test_look_reduces_what_the_model_returns(monkeypatch):
    model, pictures = measures.rebuilt(twin(), 2), noise(5, 64)
    monkeypatch.setattr(measures, "BATCH", 2)
    seen = measures.look(model, pictures)
    inside = model(pictures, return_all=True)
    torch.testing.assert_close(seen.logits, inside.logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(seen.named, inside.logits.argmax(1))
    assert [tuple(t.shape) for t in seen[1:]] == [(5, 5), (4, 5, 64), (3, 5, 64)]
    x = inside.states[2]  # after block 1
    units = x / x.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(
        seen.cosine[1], (units[:, 1:] @ units[:, 0, :, None])[..., 0], rtol=1e-4, atol=1e-5
    )
    pairs = units[:, 1:] @ units[:, 1:].transpose(1, 2)
    mean = (pairs.sum((1, 2)) - 64) / (64 * 63)
    torch.testing.assert_close(seen.similarity[2], mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(seen.attention[2], inside.attention[2].mean(1)[:, 0, 1:], rtol=1e-4, atol=1e-6)


def test_rearranged_equals_every_order(monkeypatch):
    model, pictures = measures.rebuilt(twin(num_classes=9, depth=4), 9), noise(7, 64)
    monkeypatch.setattr(measures, "BATCH", 3)
    found = measures.rearranged(model, pictures)
    for row, order in enumerate(([2, 3, 4], [1, 3, 4], [1, 2, 4], [1, 2, 3])):
        assert torch.equal(found.without[row], model(pictures, order=order).argmax(1)), order
    for row, order in enumerate(([2, 1, 3, 4], [1, 3, 2, 4], [1, 2, 4, 3])):
        assert torch.equal(found.swapped[row], model(pictures, order=order).argmax(1)), order
    assert len({tuple(row) for row in (*found.without.tolist(), *found.swapped.tolist())}) > 3


def test_order_of_patches_counts_only_with_positions():
    backbone, images = twin(), toy_images(6)
    inputs = backbone.transform(images.pixels())
    logits = measures.logits_of(backbone.model, inputs)
    found = measures.placed(backbone, images, inputs, logits, seed=1)
    assert found["with"].in_place is logits
    torch.testing.assert_close(*found["without"], rtol=1e-3, atol=1e-3)
    assert (found["with"].shuffled - logits).abs().max() > 0.05
    assert (found["without"].in_place - logits).abs().max() > 0.05


# --- where the emoji is -----------------------------------------------------------------------------------


def test_only_patches_of_the_emoji_change_with_it(renders):
    """The same renders with other emoji: background and light are the same, pixel for pixel."""
    numbers = renders.extras["identity"]
    others = replace(renders, extras={"identity": numbers[::-1].copy()})
    ids = np.array([int(name.rpartition("-")[2]) for name in renders.ids])
    pixels = emoji.render(numbers[::-1].copy(), ids, style="noto", seed=tasks.TASK_SEED)
    one, other = measures.emoji_share(renders, (8, 8)), measures.emoji_share(others, (8, 8))
    assert one.shape == (4, 64)
    assert 0.05 < float(one.mean()) < 0.9
    differs = (
        (renders.pixels() != pixels).any(1).unflatten(1, (8, 8)).unflatten(3, (8, 8)).any(4).any(2).flatten(1)
    )
    free = (one == 0) & (other == 0)
    assert free.any()
    assert not differs[free].any()
    assert differs[(one > 0.9) & (other == 0)].all()


def test_other_sets_have_no_known_emoji():
    with pytest.raises(ValueError, match=r"toy is no set of renders .*use emoji_identity"):
        measures.emoji_share(toy_images(2), (8, 8))


def test_attention_on_the_emoji():
    share = torch.tensor([[1.0, 0.5, 0.0, 0.0]])
    even, on, off = (
        torch.full((1, 1, 4), 0.2),
        torch.tensor([[[0.5, 0, 0, 0]]]),
        torch.tensor([[[0, 0, 0, 0.5]]]),
    )
    found = [float(measures.on_emoji(a, share)) for a in (even, on, off)]
    assert found == pytest.approx([37.5, 100, 0])
    inside, outside = look.both_sides(torch.tensor([[4.0, 2.0, 1.0, 0.0]]), share)
    assert float(inside[0]) == pytest.approx((4 + 1) / 1.5)
    assert float(outside[0]) == pytest.approx((1 + 1 + 0) / 2.5)


# --- tables and figures -----------------------------------------------------------------------------------


def test_shapes_are_those_of_the_model():
    table = look.shapes_table(ViT(32, 8, 24, 3, 2, 5).eval(), noise(1, 32)).set_index("step")["shape"]
    assert table.tolist() == [
        "3 × 32 × 32", "16 × 192", "16 × 24", "17 × 24", "2 × 17 × 12", "2 × 17 × 17", "17 × 24", "17 × 24",
        "24", "5",
    ]  # fmt: skip
    assert "tokens after block 3 (state 3)" in table.index


def test_weights_are_counted_once():
    model = ViT(32, 8, 24, 2, 2, 5)
    table = look.weights_table(model).set_index("part")
    assert table["weights"].sum() == sum(t.numel() for t in model.parameters())
    assert table.loc["classifier", "weights"] == 24 * 5 + 5
    assert table.loc["norms", "weights"] == (2 * 2 + 1) * 2 * 24
    assert table["share (%)"].sum() == pytest.approx(100)


def test_listing_is_coloured_and_complete():
    from bs4 import BeautifulSoup

    from vitscope import vit80

    page = BeautifulSoup(look.listing(vit80), "html.parser")
    source = page.select_one("div.highlight pre").get_text()
    assert "class ViT(nn.Module):" in source
    assert "self.mlp(self.norm2(x))" in source
    assert len(page.select("span.k")) > 10


def test_losses_are_taken_picture_by_picture():
    whole = np.array([True] * 30 + [False] * 10)
    answers = {"same": whole, "none": np.zeros(40, bool), "others": whole[::-1].copy()}
    table = look.accuracy_table(answers, whole, np.arange(40)).set_index("change")
    assert table["accuracy"].tolist() == [75, 0, 75]
    assert table["loss"].tolist() == [0, 75, 0]
    assert table["clear"].tolist() == [False, True, False]
    assert table.loc["same", ["loss low", "loss high"]].tolist() == [0, 0]
    assert table.loc["others", "loss low"] < 0 < table.loc["others", "loss high"]
    row = look.accuracy_row(table.reset_index(), 1)
    assert row == {"value": 0, "spread": (0, 0), "text": "0.0 % (0.0 to 0.0)"}
    found = look.costs(table.reset_index())
    assert found["costliest"]["text"] == "none (0.0 % right)"
    assert found["free"] == {"value": 2, "n": 3, "text": "2 of 3"}
    figure = look.accuracy_figure(table.reset_index(), 75.0, xlabel="block left out", title="t", name="n")
    assert "same 75, none 0" in figure.alt
    assert figure.alt.endswith("With nothing changed it is 75.0.")


def test_places_are_compared_with_the_whole():
    right, wrong = torch.eye(2)[[0, 1] * 5], torch.eye(2)[[1, 0] * 5]
    found = {"with": measures.Placed(right, wrong), "without": measures.Placed(wrong, right)}
    table = look.place_table(found, np.array([0, 1] * 5), np.arange(10))
    assert table["accuracy"].tolist() == [100, 0, 0, 100]
    assert table["loss"].tolist() == [0, 100, 100, 0]
    assert table["patches"].tolist() == ["in place", "shuffled"] * 2


def test_curves_hold_means_by_name():
    values = {"a": np.array([[1.0, 3.0], [5.0, 5.0]]), "b": torch.zeros(2, 2)}
    table = look.curves(values, np.arange(2), y="value", hue="kind", x="block", first=1)
    assert table["block"].tolist() == [1, 2, 1, 2]
    assert table["value"].tolist() == [2, 5, 0, 0]
    assert (table["low"] <= table["value"]).all()
    assert table["kind"].tolist() == ["a", "a", "b", "b"]


def test_figures_say_what_they_show():
    picture = np.zeros((32, 32, 3), np.uint8)
    picture[8:16, 24:32] = 200  # patch 8 of 4 × 4
    cut = look.patches_figure(picture, 8)
    assert "4 × 4 = 16 patches of 8 × 8 pixels; brightest is patch 8 (mean 200" in cut.alt
    assert cut.data.loc[7, ["row", "column", "red"]].tolist() == [2, 4, 200]

    logits = torch.tensor([[5.0, 1.0, 0.0, 0.0], [0.0, 0.0, 4.0, 1.0]])
    shown = look.answers_figure(np.stack([picture] * 2), logits, np.array([0, 3]), ["a", "b", "c", "d"])
    assert shown.data["right"].tolist() == [True, False, False, False, True, False]
    assert "picture 2, d: c 9" in shown.alt

    share = torch.eye(16)[[7, 7]]
    maps = {"state 1": 3 * share + 1, "state 2": torch.zeros(2, 16)}
    found = look.maps_figure(np.stack([picture] * 2), maps, share, (4, 4), what="a test", name="maps")
    assert isinstance(found.data, pd.DataFrame)
    assert found.data["on the emoji"].tolist() == pytest.approx([4, 4, 0, 0])
    assert found.data["background"].tolist() == pytest.approx([1, 1, 0, 0])
    assert "state 1 4 and 1; state 2 0 and 0." in found.alt
