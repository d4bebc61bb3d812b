"""One door to every ViT: what a model is comes from the model, and nothing else is loaded in its place."""

import dataclasses
import json

import pytest
import timm
import torch
from safetensors.torch import save_file

from helpers import FAMILIES, MORE_FAMILIES, counted_connections, noise, tiny, tiny_zoo_model
from vitscope import backbones
from vitscope.errors import UnknownName
from vitscope.pretrain.zoo import write_weights
from vitscope.weights import WeightFileError

ZOO = backbones.zoo_names()


@pytest.fixture
def small_timm(monkeypatch):
    """timm architectures, 32 wide and 2 deep, wherever `backbones.load` asks for one."""
    real = timm.create_model
    monkeypatch.setattr(
        timm,
        "create_model",
        lambda name, **o: real(name, **{"embed_dim": 32, "depth": 2, "num_heads": 2, **o}),
    )


@pytest.fixture
def zoo_file(tmp_path):
    model, architecture = tiny_zoo_model(seed=4)
    path = tmp_path / "toy.safetensors"
    write_weights(path, model, architecture)
    return path


# --- what a model is --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [*FAMILIES, *MORE_FAMILIES])
def test_tokens_are_read_from_the_model(family):
    _, size, has_cls, registers = {**FAMILIES, **MORE_FAMILIES}[family]
    backbone = tiny(family)
    assert backbone.has_cls is has_cls
    assert backbone.num_registers == registers
    assert backbone.num_prefix_tokens == registers + has_cls
    assert (backbone.depth, backbone.width, backbone.states) == (2, 32, [-1, 0, 1, 2])
    tokens = backbone.model.forward_features(noise(1, size))
    assert tokens.shape[1:] == (backbone.num_prefix_tokens + backbone.num_patches, 32)
    assert not backbone.model.training
    assert not any(p.requires_grad for p in backbone.model.parameters())


def test_load_reads_a_timm_name_at_another_size(small_timm):
    backbone = backbones.load(
        "vit_small_patch14_reg4_dinov2.lvd142m", weights="random", img_size=42, device="cpu"
    )
    assert backbone.grid == (3, 3)
    assert backbone.num_registers == 4
    assert backbone.source == {"kind": "random", "seed": 0}
    assert backbone.transform.height == backbone.transform.width == 42
    assert backbone.device == torch.device("cpu")


@pytest.mark.parametrize("name", ["convnext_atto", "resnet18"])
def test_models_that_are_no_plain_vit_are_named(name):
    with pytest.raises(
        backbones.UnsupportedModel, match=rf"{name} \(\w+\) is no plain ViT: it has no .*blocks"
    ):
        backbones.load(name, weights="random")


def test_describe_takes_a_model_of_ones_own():
    model, _ = tiny_zoo_model()
    model.train()
    transform = tiny("supervised").transform
    backbone = backbones.describe("mine", model, transform, {"kind": "mine"})
    assert not backbone.model.training
    assert backbone.grid == (8, 8)
    assert backbone.source == {"kind": "mine"}
    with pytest.raises(backbones.UnsupportedModel, match=r"mine \(Linear\)"):
        backbones.describe("mine", torch.nn.Linear(2, 2), transform, {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        backbone.depth = 3


# --- image sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "grid"), [(28, (2, 2)), ((28, 42), (2, 3)), ((42, 28), (3, 2)), (14, (1, 1))]
)
@pytest.mark.parametrize("name", ["vit_small_patch14_dinov2", "eva02_tiny_patch14_224"])
def test_sizes_that_fit(small_timm, name, size, grid):
    backbone = backbones.load(name, weights="random", img_size=size, device="cpu")
    assert backbone.grid == grid
    height, width = size if isinstance(size, tuple) else (size, size)
    assert (backbone.transform.height, backbone.transform.width) == (height, width)
    assert backbone.model.forward_features(noise(1, height, width)).shape[1] == 1 + grid[0] * grid[1]


@pytest.mark.parametrize(
    ("name", "size", "side", "near"),
    [
        ("vit_small_patch14_dinov2", 30, 30, "28 or 42"),
        ("vit_small_patch14_dinov2", (28, 30), 30, "28 or 42"),
        ("vit_small_patch14_dinov2", 5, 5, "14"),
        ("vit_tiny_patch16_224", 33, 33, "32 or 48"),
        ("vit_small_patch16_dinov3", (33, 32), 33, "32 or 48"),
        ("vit_small_patch16_rope_224", 40, 40, "32 or 48"),
    ],
)
def test_sizes_that_do_not_fit_name_the_nearest(small_timm, name, size, side, near):
    with pytest.raises(ValueError, match=rf"image side {side} is no multiple of .* nearest valid: {near}$"):
        backbones.load(name, weights="random", img_size=size)


def test_zoo_file_at_another_size_resamples_its_position_embedding(zoo_file):
    backbone = backbones.load(str(zoo_file), img_size=(32, 96), device="cpu")
    assert backbone.grid == (4, 12)
    assert "64" in backbone.source["pos_embed"]
    same = backbones.load(str(zoo_file), device="cpu")
    assert same.grid == (8, 8)
    assert "pos_embed" not in same.source
    assert same.digest != backbone.digest
    with pytest.raises(
        ValueError, match="image side 60 is no multiple of its 8-pixel patch; nearest valid: 56 or 64"
    ):
        backbones.load(str(zoo_file), img_size=60)


# --- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("vit_smal_patch16_224", "Did you mean .*'vit_small_patch16_224'"),
        ("vit_small_patch14_dinov2.lvd142", "Did you mean .*'vit_small_patch14_dinov2.lvd142m'"),
        ("deit_tiny_patch16_244", "'deit_tiny_patch16_224'"),
    ],
)
def test_misspelt_names_are_met_before_anything_is_fetched(name, hint):
    with counted_connections() as attempts, pytest.raises(UnknownName, match=hint):
        backbones.load(name)
    assert attempts == []


def test_available_starts_with_the_zoo_and_has_no_doubles():
    names = backbones.available()
    assert names[: len(ZOO)] == ZOO
    assert len(set(names)) == len(names)
    assert "vit_small_patch14_dinov2" in names


def test_unknown_attention_is_refused_with_those_there_are():
    with pytest.raises(UnknownName, match=r"attention 'linear'\. Available: auto, softmax, entmax15"):
        backbones.load("vit_tiny_patch16_224", weights="random", attention="linear")


def test_attention_swapped_for_evaluation_is_named_and_changes_the_digest():
    own = backbones.load("depth_06")
    swapped = backbones.load("depth_06", attention="entmax15")
    assert (own.attention, swapped.attention) == ("softmax", "entmax15")
    assert swapped.source["attention"] == "swapped for evaluation"
    assert own.digest != swapped.digest
    again = backbones.load("depth_06", attention="softmax")
    assert (again.digest, again.source) == (own.digest, own.source)
    pictures = torch.linspace(-1, 1, 3 * 64 * 64).view(1, 3, 64, 64).sin()
    assert not torch.allclose(own.model(pictures), swapped.model(pictures))


def test_device_that_is_not_there():
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA device is there; use 'cpu' or 'auto'"):
            backbones.load("vit_tiny_patch16_224", weights="random", device="cuda")
    assert backbones.resolve_device("auto").type in ("cpu", "cuda")


# --- random weights ---------------------------------------------------------------------------------------


def test_random_weights_are_seeded_and_leave_the_callers_stream_alone(small_timm):
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    load = {
        w: backbones.load("vit_tiny_patch16_224", weights=w, img_size=32)
        for w in ("random", "random:0", "random:1")
    }
    assert torch.equal(before, torch.random.get_rng_state())
    assert load["random"].digest == load["random:0"].digest != load["random:1"].digest
    assert load["random:1"].source == {"kind": "random", "seed": 1}


def test_random_twin_of_a_zoo_file(zoo_file):
    backbone = backbones.load(str(zoo_file), weights="random:3", device="cpu")
    assert backbone.source == {"kind": "random", "seed": 3}
    assert backbone.digest != backbones.load(str(zoo_file), device="cpu").digest


@pytest.mark.parametrize("weights", ["random:x", "random:-1", "random:1.5"])
def test_seed_must_be_a_whole_number(small_timm, weights):
    with pytest.raises(ValueError, match="expected 'random' or 'random:SEED' with a whole number"):
        backbones.load("vit_tiny_patch16_224", weights=weights, img_size=32)


@pytest.mark.parametrize("name", ["random_init.safetensors", "randomised.pth", "random-walk.pt"])
def test_a_file_whose_name_begins_with_random_is_a_file(small_timm, tmp_path, monkeypatch, name):
    """Random weights must never stand in for a file that was asked for."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=name):
        backbones.load("vit_tiny_patch16_224", weights=name, img_size=32)


# --- files ------------------------------------------------------------------------------------------------


def test_zoo_file_by_path(zoo_file):
    backbone = backbones.load(str(zoo_file), device="cpu")
    assert (backbone.name, backbone.width, backbone.depth, backbone.grid) == ("toy", 32, 2, (8, 8))
    assert backbone.source["kind"] == "zoo file"
    assert backbone.transform.mean == (0.5, 0.5, 0.5)


def test_local_weights_of_a_timm_architecture(small_timm, tmp_path):
    origin = backbones.load("vit_tiny_patch16_224", weights="random:5", img_size=32)
    path = tmp_path / "w.safetensors"
    save_file({f"module.{k}": v for k, v in origin.model.state_dict().items()}, path)
    loaded = backbones.load("vit_tiny_patch16_224", weights=str(path), img_size=32)
    assert loaded.digest == origin.digest
    assert loaded.source == {
        "kind": "local file", "file": "w.safetensors", "matched": len(origin.model.state_dict()),
        "missing": 0, "unexpected": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "load", [lambda p: backbones.load(p), lambda p: backbones.load("deit_tiny_patch16_224", weights=p)]
)
def test_missing_file(load):
    with pytest.raises(FileNotFoundError, match=r"no weight file .*nowhere\.safetensors"):
        load("nowhere.safetensors")


def test_plain_safetensors_is_no_zoo_file(tmp_path):
    path = tmp_path / "plain.safetensors"
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(
        WeightFileError, match=r"carries no vitscope architecture .* pass the file as weights"
    ):
        backbones.load(str(path))


@pytest.mark.parametrize("ending", [".safetensors", ".pth"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>404</html>",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n",
        b"abc" * 99,
    ],
    ids=["empty", "web page", "LFS pointer", "text"],
)
def test_zoo_path_that_is_no_weight_file(tmp_path, content, ending):
    path = tmp_path / f"broken{ending}"
    path.write_bytes(content)
    with pytest.raises(WeightFileError, match="broken"):
        backbones.load(str(path))


def test_zoo_file_with_a_missing_tensor(tmp_path):
    model, architecture = tiny_zoo_model()
    state = {k: v for k, v in model.state_dict().items() if k != "norm.bias"}
    header = {"format": "vitscope-zoo-1", "architecture": json.dumps(dataclasses.asdict(architecture))}
    save_file(state, tmp_path / "hole.safetensors", metadata=header)
    with pytest.raises(WeightFileError, match=r"norm\.bias"):
        backbones.load(str(tmp_path / "hole.safetensors"))


def test_weights_of_another_architecture_never_take_a_zoo_name(tmp_path, zoo_file):
    """A result labelled with one model must not come from another one's file."""
    model, architecture = tiny_zoo_model(width=48)
    other = tmp_path / "wider.safetensors"
    write_weights(other, model, architecture)
    with pytest.raises(WeightFileError, match=r"wider\.safetensors.*48"):
        backbones.load(str(zoo_file), weights=str(other))
