"""Tables, figures and sentences of the chapters, on embedded data and planted curves."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from vitscope import backbones, data, phase_report, pictures, samples, zoo_report
from vitscope.data import embedded, provenance
from vitscope.metrics.similarity import similarity_floor
from vitscope.phases import detect_phases

PHASED = [0.05, 0.0, 0.001, 0.0, 0.001, 0.0, 0.001, 0.0, 0.04, 0.09, 0.15]
FLAT = [0.02] * 11


def found(**curves):
    return {name: detect_phases(curve, states=range(-1, len(curve) - 1)) for name, curve in curves.items()}


# --- chapter 01 -------------------------------------------------------------------------------------------


def test_sentences_say_what_was_detected():
    phases = found(a=PHASED, b=FLAT)
    assert phase_report.count_detected(phases) == {"value": 1, "text": "1 of 2 backbones (a)", "n": 2}
    cliff = phase_report.cliff_text(phases)
    assert cliff["text"] == "-0.050 in a (0.050 → 0.000) and +0.000 in b (0.020 → 0.020)"
    assert cliff["value"] == pytest.approx(-0.025)
    shape = phase_report.shape_text(phases)
    assert shape["text"].startswith("0.050 → 0.000 at state 0 → 0.150 in a and ")
    assert shape["value"] == pytest.approx(0.075)


def test_phase_table_has_a_phase_or_a_reason_in_every_cell():
    table = phase_report.phase_table(found(a=PHASED, b=FLAT)).set_index("backbone")
    assert table.loc["a", "all three"] == "yes"
    assert table.loc["a", "cliff"] == "0.050 (33% of the range)"
    assert table.loc["a", "plateau"].startswith("states 0 to 6, 7 in all")
    assert table.loc["a", "climb"].startswith("from state 7")
    assert table.loc["b", "all three"] == "no"
    assert "not detected, because" in table.loc["b", "cliff"]


def test_position_embedding_against_a_known_one():
    import timm

    from vitscope.capture import capture
    from vitscope.transforms import Transform

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, num_classes=0
    )
    with torch.no_grad():
        model.pos_embed.zero_()
        model.pos_embed[0, 1:, 0] = 3.0  # the CLS entry stays 0 and must not count
        model.patch_embed.proj.weight.zero_()
        model.patch_embed.proj.bias.zero_()
        model.patch_embed.proj.bias[1] = 2.0
    backbone = backbones.describe("known", model, Transform(32, 32, (0.5,) * 3, (0.5,) * 3))
    captured = capture(backbone, torch.zeros(2, 3, 32, 32), norm="none")
    row = phase_report.pe_table([backbone], {"known": captured}).iloc[0]
    assert row["mean norm of position embedding"] == pytest.approx(3.0)
    assert row["mean norm of patch embedding"] == pytest.approx(2.0)
    assert row["ratio"] == pytest.approx(1.5)


def test_floor_is_drawn_when_all_backbones_have_one_number_of_patches():
    rows = [
        {"backbone": "twin_s", "statistic": "centred", "state": s, "mean": 0.01 * s, "low": 0.0, "high": 0.1}
        for s in (-1, 0, 1)
    ]
    model = backbones.load("twin_s")
    figure = phase_report.similarity_figure(pd.DataFrame(rows), "centred", [model])
    heights = [line.get_ydata()[0] for line in figure.fig.axes[0].lines]
    assert any(h == pytest.approx(similarity_floor(64)) for h in heights)
    assert "-0.010 before the position embedding, 0.000 after it, 0.010 at the last layer" in figure.alt


# --- appendices -------------------------------------------------------------------------------------------


def test_overview_counts_what_is_there():
    sets = {("digits", split): data.load("digits", split) for split in ("train", "test")}
    table = samples.overview(sets).set_index("part")
    assert table["pictures"].sum() == 1797
    assert (table["classes"] == 10).all()
    assert table.loc["train", "pixels"] == "32 × 32"


def test_held_out_table_covers_every_emoji():
    table = samples.held_out_table()
    assert len(table) == 8
    assert table["seen"].sum() == 1291
    assert table["held out"].sum() == 319


def test_sheets_show_what_their_data_list():
    sets = {("digits", split): data.load("digits", split) for split in ("train", "test")}
    sheet = samples.sheet(sets, 8, seed=0)
    assert len(sheet.data) == 8
    assert set(sheet.data["part"]) == {"train", "test"}
    assert "8 pictures" in sheet.alt
    scenes = samples.scene_sheet(seed=0, count=3)
    assert len(scenes.data) == 3
    assert scenes.data["covered share"].between(0, 1).all()
    styles = samples.style_sheet(seed=0, count=5)
    assert len(styles.data) == 5
    assert styles.alt.startswith("5 emoji, each drawn by 2 art styles")


def test_labels_of_picture_rows_lie_inside_the_figure():
    strip = np.zeros((64, 200, 3), dtype=np.uint8)
    figure = pictures.picture_rows(
        [strip, strip], labels=["a rather long label", "b"], name="rows", data=pd.DataFrame({"a": [1]}),
        alt="Two black strips of 200 pixels each.",
    ).fig  # fmt: skip
    figure.canvas.draw()
    for axis in figure.axes:
        box = axis.texts[0].get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= axis.get_window_extent().x0


def test_strips_and_labels_must_agree():
    with pytest.raises(ValueError, match="1 strips need as many labels, got 2"):
        pictures.picture_rows(
            [np.zeros((4, 4, 3))], labels=["a", "b"], name="x", data=pd.DataFrame(), alt="x" * 20
        )


def test_zoo_cards_agree_with_their_files_and_with_a_fresh_measurement():
    names = backbones.zoo_names()
    cards = {name: backbones.card(name) for name in names}
    table = zoo_report.card_table(cards).set_index("model")
    assert list(table.index) == names
    test = data.load("emoji_identity", "test", limit=300, seed=5)
    checked = zoo_report.recheck({n: backbones.load(n) for n in names}, cards, test)
    assert checked["digest agrees"].all()
    assert (checked["low"] - 3 <= checked["on the card"]).all()
    assert (checked["on the card"] <= checked["high"] + 3).all()
    curves = zoo_report.training_curves(cards)
    assert set(curves.data["model"]) == set(names)


def test_an_unknown_card_is_refused():
    with pytest.raises(ValueError, match=r"Unknown zoo model 'twin_z'.*Did you mean"):
        backbones.card("twin_z")


# --- provenance -------------------------------------------------------------------------------------------


def test_manifest_lists_every_embedded_file_as_it_is(tmp_path):
    root = embedded.root()
    (tmp_path / "emoji").mkdir()
    (tmp_path / "emoji" / "noto.parquet").write_bytes((root / "emoji/noto.parquet").read_bytes())
    assert provenance.write_manifest(tmp_path) == ["emoji/noto.parquet"]
    written = json.loads((tmp_path / "manifest.json").read_text())["files"]["emoji/noto.parquet"]
    assert written == embedded.manifest()["emoji/noto.parquet"]


def test_a_file_of_unknown_origin_never_enters_the_manifest(tmp_path):
    (tmp_path / "emoji").mkdir()
    (tmp_path / "emoji" / "other.parquet").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"emoji/other\.parquet has no known licence and source"):
        provenance.write_manifest(tmp_path)
    assert not (tmp_path / "manifest.json").exists()
