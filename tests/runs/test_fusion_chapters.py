"""The chapters on fusion, run in this process: features are computed once; what does not apply is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chapters import run_chapter as run_cells
from helpers import enliven
from vitscope import features
from vitscope.pretrain.zoo import Architecture, write_weights
from vitscope.runs.record import Record

SMALL = {"datasets": ["digits"], "images": 60, "test_images": 40, "device": "cpu"}
HEADS = {"configurations": 1, "steps": 5, "hidden": 8, "latent": 4}


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> str:
    """A file of a lively twin with two blocks."""
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    architecture = Architecture(width=32, depth=2, heads=2, num_classes=3)
    torch.manual_seed(0)
    write_weights(path, enliven(architecture.build().eval()), architecture)
    return str(path)


def run_chapter(name: str, folder: Path, cache: Path, **parameters) -> Record:
    """Run a chapter on few pictures and small heads."""
    return run_cells(name, folder, cache, **{**SMALL, **HEADS, **parameters})


def test_other_heads_need_no_new_features(small, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    given = {"backbones": [small], "latents": [4]}
    first = run_chapter("05_vfusion_ablations", tmp_path / "first", cache, **given)
    assert len(list(cache.glob("capture-*.safetensors"))) == 2  # both parts of one backbone

    def refuse(*args, **kwargs):
        raise AssertionError("features were computed again")

    monkeypatch.setattr(features, "capture", refuse)
    other = {"latent": 6, "hidden": 5, "steps": 6, "latents": [3]}
    second = run_chapter("05_vfusion_ablations", tmp_path / "second", cache, **(given | other))
    assert set(first.numbers) == set(second.numbers)
    with pytest.raises(AssertionError, match="computed again"):  # the guard is one
        run_chapter("05_vfusion_ablations", tmp_path / "third", cache, **given, seed=1)


def test_one_backbone_and_one_dataset_say_what_they_cannot(small, tmp_path):
    given = {"backbones": [small]}
    record = run_chapter("04_vfusion", tmp_path / "run", tmp_path / "cache", **given)
    missing = {remark.about for remark in record.remarks if "There is one" in remark.text}
    assert missing == {"over_best", "over_super_learner", "rank_table", "friedman", "ranks"}
    numbers = record.numbers
    assert numbers["tasks"].value == 1
    assert numbers["gap_closed"].spread is None
    assert isinstance(numbers["gain_over_best"].spread, tuple)  # over test images
    assert {f"accuracy_mean.{m}" for m in ("vfusion", "oracle", "lastlayermlp")} <= set(numbers)


def test_one_backbone_has_no_other_to_be_fused_with(small, tmp_path):
    given = {"backbones": [small], "latents": [4]}
    record = run_chapter("05_vfusion_ablations", tmp_path / "run", tmp_path / "cache", **given)
    for key in ("hfusion_minus_vfusion", "both_minus_vfusion"):
        assert record.numbers[key].value is None
        assert record.numbers[key].text.startswith("nothing (")
    assert {"horizontal", "horizontal_table"} <= {remark.about for remark in record.remarks}


def test_random_weights_need_no_control_of_random_weights(tmp_path):
    given = {"backbones": ["test_vit2"], "weights": "random", "tokens": "patch_mean"}
    record = run_chapter("04_vfusion", tmp_path / "run", tmp_path / "cache", **given)
    assert record.numbers["gain_random"].value is None
    assert "random" in {remark.about for remark in record.remarks}
