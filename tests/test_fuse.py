"""`vitscope fuse`: from a folder of pictures to a saved head that predicts, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from helpers import tiny
from vitscope import backbones, cli, frozen, fuse, fuse_predict, fusion, own_pictures
from vitscope.capture import NonFiniteActivations
from vitscope.fuse import FuseError
from vitscope.own_pictures import FEWEST, PicturesRefused
from vitscope.weights import WeightFileError

COLOURS = {"blue": (50, 60, 210), "green": (40, 180, 60), "red": (200, 40, 40)}
SMALL = {"configurations": 1, "steps": 30, "hidden": 16, "latent": 8}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(fuse, "SIZES", SMALL)


def paint(folder, colour, count, *, start=0):
    """Noisy pictures of one colour, 40 × 48 pixels, named by their number."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(start, start + count):
        noise = np.random.default_rng([i, *colour]).normal(0, 40, (40, 48, 3))
        pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02d}.png")


def invoke(*arguments):
    return CliRunner().invoke(cli.app, ["fuse", *map(str, arguments)])


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Three colours, 15 pictures each; a class of one picture; a file that is no picture."""
    root = tmp_path_factory.mktemp("own") / "colours"
    for name, colour in COLOURS.items():
        paint(root / name, colour, 15)
    paint(root / "lonely", (0, 0, 0), 1)
    (root / "red" / "torn.jpg").write_bytes(b"no picture")
    return root


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("features")


@pytest.fixture(scope="module")
def saved(pictures, cache, tmp_path_factory):
    """What the command printed, and the folder that it wrote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuse, "SIZES", SMALL)
        out = tmp_path_factory.mktemp("out") / "head"
        result = invoke("--backbone", "depth_06", "--data", pictures, "--out", out, "--cache", cache)
    assert result.exit_code == 0, result.output
    return result, out


# --- the way from pictures to predictions -----------------------------------------------------------------


def test_the_table_has_every_method_and_says_what_was_left_out(saved):
    lines = saved[0].output.splitlines()
    assert lines[0] == (
        "depth_06 on colours · 3 classes · 36 pictures to learn from, 9 to test on (9 of 46 pictures held "
        "out, a fifth of each class, seed 0)"
    )
    assert [line.split()[0] for line in lines[2:7]] == list(fuse.SHOWN)
    assert "! left out, for not being readable: 1 picture (red/torn.jpg) of colours" in lines
    assert "! left out, for having one picture to learn from: 1 class (lonely)" in lines
    assert lines[-1].endswith("head.safetensors")
    assert "\r" not in saved[0].output  # progress is for terminals


def test_help_says_how_to_predict():
    assert "fuse.predict(" in invoke("--help").output


def test_the_folder_holds_head_card_and_table_and_nothing_else(saved, pictures):
    out = saved[1]
    assert sorted(f.name for f in out.iterdir()) == ["card.json", "head.safetensors", "table.csv"]
    assert [f.name for f in out.parent.iterdir()] == ["head"]
    card = json.loads((out / "card.json").read_text())
    predictor = fusion.load(out / "head.safetensors")
    assert predictor.card == card
    assert predictor.classes_.tolist() == card["classes"] == sorted(COLOURS)
    assert card["backbone"]["digest"] == backbones.load("depth_06").digest
    assert card["states"] == [1, 2, 3, 4, 5, 6]
    assert card["dataset"]["train"]["digest"] == own_pictures.load(str(pictures)).train.digest
    assert str(pictures.parent) not in (out / "card.json").read_text()


def test_the_saved_head_is_as_accurate_as_the_table_says(saved, pictures):
    test = own_pictures.load(str(pictures)).test
    found = fuse.predict(saved[1] / "head.safetensors", test)
    truth = np.asarray(test.classes)[test.labels]
    card = json.loads((saved[1] / "card.json").read_text())
    assert found["id"].tolist() == test.ids.tolist()
    assert 100 * (found["class"] == truth).mean() == card["test"]["accuracy"]
    assert card["test"]["accuracy"] > 85
    assert found["probability"].between(1 / 3, 1).all()


def test_any_folder_of_pictures_is_predicted_and_unreadable_ones_stay_in_the_table(saved, tmp_path):
    paint(tmp_path / "deep" / "er", COLOURS["green"], 3, start=50)
    (tmp_path / "torn.jpg").write_bytes(b"")
    found = fuse.predict(saved[1] / "head.safetensors", tmp_path).set_index("id")
    assert found["class"].iloc[:3].tolist() == ["green"] * 3
    assert found.loc["torn.jpg"].isna().all()
    (tmp_path / "deep" / "er" / "empty").mkdir()
    with pytest.raises(FuseError, match=r"no readable picture below .*empty \(0 unreadable\); endings read"):
        fuse.predict(saved[1] / "head.safetensors", tmp_path / "deep" / "er" / "empty")


@pytest.mark.parametrize("head", ["SuperLearner", "BestLayer", "LastLayerMLP"])
def test_other_heads_are_saved_too(head, pictures, cache, tmp_path):
    fused = fuse.fuse("depth_06", str(pictures), head=head, cache=cache)
    file = fused.save(tmp_path / "out")
    test = fused.comparison.task.test
    assert 100 * fusion.load(file).score(test.features, test.labels) == fused.comparison.accuracy(head)
    assert fused.card["method"] == head
    assert fused.table["method"].iloc[-1] == "Oracle"


def test_all_ten_are_compared_when_asked(pictures, cache, tmp_path):
    result = invoke(
        "--backbone", "depth_06", "--data", pictures, "--out", tmp_path / "x", "--all", "--cache", cache
    )
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.output.splitlines()[2:12]] == list(fuse.rivals.METHODS)


def test_train_and_test_folders_and_another_test_folder(tmp_path):
    for name in ("red", "blue"):
        paint(tmp_path / "own/train" / name, COLOURS[name], 8)
        paint(tmp_path / "own/test" / name, COLOURS[name], 2, start=20)
        paint(tmp_path / "other" / name, COLOURS[name], 3, start=30)
    paint(tmp_path / "other" / "green", COLOURS["green"], 2)
    found = own_pictures.load(str(tmp_path / "own"))
    assert (len(found.train), len(found.test), found.rule) == (16, 4, "its own test part")
    assert found.remarks == ()
    found = own_pictures.load(str(tmp_path / "own"), str(tmp_path / "other"))
    assert (len(found.test), found.rule) == (6, "pictures of other")
    assert found.remarks == (
        "left out, 2 test pictures, for not being of the classes learned: 1 class (green)",
    )


def test_a_class_of_two_pictures_is_learned_and_not_tested(tmp_path):
    for name, count in (("red", 10), ("blue", 10), ("green", 2)):
        paint(tmp_path / name, COLOURS[name], count)
    found = own_pictures.load(str(tmp_path))
    assert found.train.counts.tolist() == [8, 2, 8]
    assert found.remarks == ("learned, but without a test picture: 1 class (green)",)


# --- what is refused, before any features are computed ----------------------------------------------------


@pytest.fixture
def no_features(monkeypatch):
    monkeypatch.setattr(frozen, "features", lambda *_, **__: pytest.fail("features were computed"))


@pytest.mark.usefixtures("no_features")
@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({}, "has no class folders; expected FOLDER/CLASS"),
        ({"red": 20}, "1 of 1 classes have two or more pictures to learn from"),
        ({"red": 20, "blue": 1}, "1 of 2 classes have two or more pictures to learn from"),
        ({"red": 2, "blue": 2}, "no class of"),
        ({"red": 4, "blue": 4}, f"6 pictures to learn from are too few for 5 folds; at least {FEWEST}"),
        ({"train/red": 9, "train/blue": 9, "test/green": 3}, "has no test picture of the 2 classes learned"),
        ({"train/red": 9, "train/blue": 9, "test/blue": 1}, "1 picture to test on gives no interval"),
        ({"test/red": 9, "test/blue": 9}, "has no split 'train'; it has test"),
    ],
)
def test_folders_that_cannot_be_used(layout, said, tmp_path):
    root = tmp_path / "FOLDER"
    root.mkdir()
    for name, count in layout.items():
        paint(root / name, COLOURS[name.rpartition("/")[2]], count)
    result = invoke("--backbone", "depth_06", "--data", root, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_features")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--backbone", "depth_60"], "Did you mean 'depth_06'"),
        (["--backbone", "depth_06", "--head", "VFussion"], "Did you mean 'VFusion'"),
        (["--backbone", "depth_06", "--head", "Oracle"], "the Oracle needs the answer to answer"),
        (["--backbone", "depth_06", "--tokens", "patch"], "Did you mean 'patch_mean'"),
        (["--backbone", "depth_06", "--weights", "nowhere.pth"], "no weight file nowhere.pth"),
        (["--backbone", "depth_06", "--img-size", "60"], "no multiple of its 8-pixel patch"),
        (["--backbone", "depth_06", "--data", "no/such/folder"], "no such folder or Parquet file"),
        (["--backbone", "depth_06", "--data", "fashion_mist"], "Did you mean 'fashion_mnist'"),
    ],
)
def test_mistakes_end_at_once(arguments, said, pictures, tmp_path):
    result = invoke("--data", pictures, "--out", tmp_path / "out", *arguments)
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_features")
def test_the_same_pictures_to_learn_and_to_test(pictures, tmp_path):
    (tmp_path / "copy").symlink_to(pictures)
    with pytest.raises(PicturesRefused, match="holds the very pictures that are learned"):
        own_pictures.load(str(pictures), str(tmp_path / "copy"))


@pytest.mark.usefixtures("no_features")
def test_more_than_one_picture_in_twenty_unreadable_stops_it(tmp_path):
    for name in ("red", "blue"):
        paint(tmp_path / "pictures" / name, COLOURS[name], 8)
    (tmp_path / "pictures/red/torn.jpg").write_bytes(b"")
    result = invoke("--backbone", "depth_06", "--data", tmp_path / "pictures", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "1 of 17 files below" in result.output
    assert "red/torn.jpg" in result.output


def test_a_folder_that_exists_is_overwritten_only_by_force(pictures, cache, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr(frozen, "features", lambda *_, **__: pytest.fail("features were computed"))
        result = invoke("--backbone", "depth_06", "--data", pictures, "--out", out)
    assert result.exit_code == 2
    assert "exists already: choose another --out, or overwrite its head with --force" in result.output
    fuse.fuse("depth_06", str(pictures), head="LastLayer", cache=cache).save(out, force=True)
    assert fusion.load(out / "head.safetensors").card["method"] == "LastLayer"
    assert (out / "notes.txt").read_text() == "mine"
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(FuseError, match="is a file"):
        fuse.check_out(file, force=True)
    with pytest.raises(FuseError, match="nothing can be written below"):
        fuse.check_out(file / "below")


def test_nothing_half_written_is_left(pictures, cache, tmp_path, monkeypatch):
    fused = fuse.fuse("depth_06", str(pictures), head="LastLayer", cache=cache)
    monkeypatch.setattr(fusion.Predictor, "predict", lambda self, features: np.array(["red"] * 9))
    with pytest.raises(RuntimeError, match="answers otherwise after saving"):
        fused.save(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_activations_that_are_not_finite_stop_it(pictures, tmp_path, monkeypatch):
    model = tiny("supervised")
    with torch.no_grad():
        model.model.blocks[1].mlp.fc2.bias[0] = float("nan")
    monkeypatch.setattr(backbones, "load", lambda *_, **__: model)
    result = invoke("--backbone", "any", "--data", pictures, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "error: " in result.output
    assert "state 2" in result.output
    assert not list(tmp_path.iterdir())
    with pytest.raises(NonFiniteActivations):
        fuse.fuse("any", str(pictures))


# --- the head's own backbone ------------------------------------------------------------------------------


def test_another_backbone_is_refused(saved, pictures):
    head = saved[1] / "head.safetensors"
    other = backbones.load("depth_06", weights="random")
    with pytest.raises(FuseError, match=r"fitted on depth_06 with weights .* its answers would mean nothing"):
        fuse.predict(head, pictures, backbone=other)
    right = backbones.load("depth_06")
    resized = replace(right, transform=replace(right.transform, crop_pct=0.9))
    with pytest.raises(FuseError, match="pictures prepared as"):
        fuse.predict(head, pictures, backbone=resized)


def test_weights_from_a_file_must_be_passed_and_random_ones_are_made_again(pictures, tmp_path):
    torch.save(backbones.load("depth_06").model.state_dict(), tmp_path / "mine.pth")
    asked = {"name": "depth_06", "weights": "mine.pth", "img_size": None}
    with pytest.raises(FuseError, match=r"weights of your own, mine\.pth: load them and pass"):
        fuse_predict._card_backbone(asked, "cpu")
    with pytest.raises(FuseError, match=r"weights of your own, mine\.safetensors"):
        fuse_predict._card_backbone({**asked, "name": "mine.safetensors", "weights": "auto"}, "cpu")
    again = fuse_predict._card_backbone({**asked, "weights": "random:3"}, "cpu")
    assert again.digest == backbones.load("depth_06", weights="random:3").digest


def test_a_head_without_such_a_card_is_refused(tmp_path, pictures):
    features, labels = torch.randn(2, 40, 4), np.arange(40) % 2
    fusion.save(fusion.LastLayer().fit(features, None, labels), tmp_path / "h.safetensors", {"by": "hand"})
    with pytest.raises(WeightFileError, match="has no card that names its backbone"):
        fuse.predict(tmp_path / "h.safetensors", pictures)


def test_a_backbone_without_cls_says_what_stands_for_a_state(pictures, monkeypatch):
    monkeypatch.setattr(backbones, "load", lambda *_, **__: tiny("siglip"))
    fused = fuse.fuse("siglip", str(pictures), head="LastLayer")
    assert fused.card["tokens"] == "patch_mean"
    assert any("no CLS token: the mean patch token" in remark for remark in fused.remarks)
