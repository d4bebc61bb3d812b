"""Tables and figures of the appendices, on embedded data, and where those data come from."""

import json

import numpy as np
import pandas as pd
import pytest

from vitscope import backbones, data, pictures, samples, zoo_report
from vitscope.data import embedded, provenance

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
    tests = zoo_report.fresh_renders(cards, 300, seed=5)
    scales = {n: tests[n].source["render"]["scale"] for n in ("twin_s", "sup_softmax", "dino_softmax")}
    assert scales == {"twin_s": (0.55, 1.0), "sup_softmax": (0.35, 1.0), "dino_softmax": (0.35, 1.0)}
    checked = zoo_report.recheck({n: backbones.load(n) for n in names}, cards, tests)
    assert checked["digest agrees"].all()
    assert (checked["low"] - 3 <= checked["on the card"]).all()
    assert (checked["on the card"] <= checked["high"] + 3).all()
    taught, alone = zoo_report.training_curves(cards), zoo_report.self_supervised_curves(cards)
    assert set(taught.data["model"]) == {n for n in names if not n.startswith("dino_")}
    assert set(alone.data["model"]) == {n for n in names if n.startswith("dino_")}
    assert zoo_report.self_supervised_curves({"twin_s": cards["twin_s"]}) is None


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
