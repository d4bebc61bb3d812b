"""Weight files from outside: wrapped, prefixed, incomplete, dangerous, or no weights at all."""

import argparse
import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from helpers import tiny_zoo_model
from vitscope import weights
from vitscope.pretrain.zoo import read_weights, write_weights
from vitscope.weights import WeightFileError, load_into


@pytest.fixture
def trained():
    return tiny_zoo_model(seed=1)[0]


@pytest.fixture
def fresh():
    return tiny_zoo_model(seed=2)[0]


def backbone_of(model) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items() if not k.startswith("head.")}


def saved(path, content) -> object:
    if path.suffix == ".safetensors":
        save_file(content, path)
    else:
        torch.save(content, path)
    return path


def assert_backbone_equal(a, b):
    for key, value in backbone_of(a).items():
        assert torch.equal(value, b.state_dict()[key]), key


# --- what must load ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", weights.ENDINGS)
def test_plain_tensors(tmp_path, trained, fresh, ending):
    report = load_into(fresh, saved(tmp_path / f"w{ending}", dict(trained.state_dict())))
    assert report == {"matched": len(trained.state_dict()), "missing": 0, "unexpected": 0}
    assert weights.digest(fresh) == weights.digest(trained)


@pytest.mark.parametrize(
    "prefix",
    ["module.", "backbone.", "_orig_mod.", "encoder.", "module.backbone.", "teacher.backbone.",
     "_orig_mod.module.", "student.module.backbone.", "visual."],
)  # fmt: skip
def test_prefixes_are_stripped(tmp_path, trained, fresh, prefix):
    state = {prefix + k: v for k, v in trained.state_dict().items()}
    report = load_into(fresh, saved(tmp_path / "w.pth", state))
    assert report["missing"] == 0 == report["unexpected"]
    assert_backbone_equal(trained, fresh)


@pytest.mark.parametrize("wrapper", ["teacher", "model", "state_dict", "model_ema"])
def test_wrappers_are_opened(tmp_path, trained, fresh, wrapper):
    content = {wrapper: dict(trained.state_dict()), "epoch": 3, "optimizer": {"lr": 0.1}}
    load_into(fresh, saved(tmp_path / "w.pth", content))
    assert_backbone_equal(trained, fresh)


def test_teacher_is_preferred_and_projection_heads_are_counted(tmp_path, trained, fresh):
    """The layout of self-distillation checkpoints: student and teacher, prefixes, a head of their own."""
    other = tiny_zoo_model(seed=3)[0]
    content = {
        "student": {f"module.backbone.{k}": v for k, v in backbone_of(other).items()},
        "teacher": {
            **{f"backbone.{k}": v for k, v in backbone_of(trained).items()},
            "dino_head.mlp.weight": torch.zeros(3, 3),
        },
    }
    report = load_into(fresh, saved(tmp_path / "w.pth", content))
    assert_backbone_equal(trained, fresh)
    assert report == {"matched": len(backbone_of(trained)), "missing": 2, "unexpected": 1}


def test_head_of_another_size_is_left_alone(tmp_path, trained):
    other = tiny_zoo_model(num_classes=9)[0]
    before = other.head.weight.clone()
    report = load_into(other, saved(tmp_path / "w.safetensors", dict(trained.state_dict())))
    assert report["missing"] == 2
    assert torch.equal(other.head.weight, before)
    assert_backbone_equal(trained, other)


def test_half_precision_is_widened(tmp_path, trained, fresh):
    load_into(
        fresh, saved(tmp_path / "w.safetensors", {k: v.half() for k, v in trained.state_dict().items()})
    )
    assert fresh.norm.weight.dtype == torch.float32
    assert torch.equal(fresh.norm.weight, trained.norm.weight.half().float())


@pytest.mark.parametrize("first_bytes", [b"\x20\x3c", b"\x0c\x3c", b"\x20\x20"])
def test_a_safetensors_header_that_looks_like_text_is_no_web_page(tmp_path, trained, fresh, first_bytes):
    """The file begins with its header's length: some lengths read as blanks and a `<`."""
    path = saved(tmp_path / "w.safetensors", dict(trained.state_dict()))
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    wanted = int.from_bytes(first_bytes, "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = {"note": ""}
    header["__metadata__"]["note"] = "x" * (wanted - len(json.dumps(header).encode()))
    text = json.dumps(header).encode()
    assert len(text) == wanted
    path.write_bytes(struct.pack("<Q", wanted) + text + content[8 + length :])
    assert path.read_bytes()[:2] == first_bytes
    load_into(fresh, path)
    assert_backbone_equal(trained, fresh)


# --- what must be refused ---------------------------------------------------------------------------------


def assert_untouched(model, before):
    assert weights.digest(model) == before, "a refused file must not have changed the model"


@pytest.mark.parametrize("drop", ["norm.bias", "blocks.1.attn.qkv.weight", "cls_token"])
def test_one_missing_tensor_is_an_error_with_counts(tmp_path, trained, fresh, drop):
    before, state = weights.digest(fresh), dict(trained.state_dict())
    del state[drop]
    with pytest.raises(
        WeightFileError, match=f"fills {len(state)} of {len(state) + 1} tensors; 1 of .*{drop}"
    ):
        load_into(fresh, saved(tmp_path / "w.pth", state))
    assert_untouched(fresh, before)


def test_one_wrong_shape_names_both_shapes(tmp_path, trained, fresh):
    before, state = weights.digest(fresh), dict(trained.state_dict())
    state["blocks.0.mlp.fc1.weight"] = torch.zeros(128, 33)
    with pytest.raises(
        WeightFileError, match=r"w.pth: 1 tensors .* blocks.0.mlp.fc1.weight: \[128, 33\] .* \[128, 32\]"
    ):
        load_into(fresh, saved(tmp_path / "w.pth", state))
    assert_untouched(fresh, before)


def test_position_embedding_of_another_size_hints_at_the_image_size(tmp_path, trained):
    with pytest.raises(WeightFileError, match=r"pos_embed: \[1, 65, 32\] .* \[1, 17, 32\] .* image size"):
        load_into(tiny_zoo_model(img_size=32)[0], saved(tmp_path / "w.pth", dict(trained.state_dict())))


@pytest.mark.parametrize(
    "content",
    [
        {"head.weight": torch.zeros(5, 32), "head.bias": torch.zeros(5)},
        {"something": torch.zeros(2), "else": torch.ones(1)},
        {"epoch": 3},
        {},
    ],
    ids=["only a head", "another model", "no tensors", "nothing"],
)
def test_files_without_the_backbone(tmp_path, fresh, content):
    with pytest.raises(
        WeightFileError, match=r"w.pth fills \d+ of \d+ tensors; .* are missing, first cls_token"
    ):
        load_into(fresh, saved(tmp_path / "w.pth", content))


@pytest.mark.parametrize(
    "content", [torch.zeros(3), [torch.zeros(3)], 7, None], ids=["tensor", "list", "int", "None"]
)
def test_files_that_hold_no_dictionary(tmp_path, fresh, content):
    with pytest.raises(WeightFileError, match=r"w\.pth"):
        load_into(fresh, saved(tmp_path / "w.pth", content))


class Marker:
    """An object whose unpickling would leave a trace."""

    ran = False

    def __reduce__(self):
        return (exec, ("import test_weights_trace",))


@pytest.mark.parametrize(
    "extra",
    [argparse.Namespace(lr=0.1), Marker(), torch.nn.Linear(1, 1)],
    ids=["Namespace", "code", "module"],
)
def test_pickled_objects_are_refused_and_never_run(tmp_path, trained, fresh, extra):
    import sys

    path = saved(tmp_path / "w.pth", {"teacher": dict(trained.state_dict()), "args": extra})
    with pytest.raises(
        WeightFileError, match=r"w.pth cannot be opened safely .* save plain tensors as .safetensors"
    ):
        load_into(fresh, path)
    assert "test_weights_trace" not in sys.modules


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 88000000\n"
PAGE = b"\n<!DOCTYPE html><html><head><title>Sign in</title></head></html>"


@pytest.mark.parametrize("ending", [".safetensors", ".pth"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (LFS, "is a Git LFS pointer"),
        (PAGE, "is a web page"),
        (b"", "is empty"),
        (b"not weights at all " * 50, "cannot be opened safely"),
        (b"\x00" * 64, "cannot be opened safely"),
    ],
    ids=["LFS pointer", "web page", "empty", "text", "zeros"],
)
def test_what_only_looks_like_a_weight_file(tmp_path, fresh, ending, content, reason):
    path = tmp_path / f"w{ending}"
    path.write_bytes(content)
    with pytest.raises(WeightFileError, match=f"w{ending} {reason}"):
        load_into(fresh, path)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
@pytest.mark.parametrize("ending", [".safetensors", ".pth"])
def test_truncated_download(tmp_path, trained, fresh, ending, share):
    path = saved(tmp_path / f"w{ending}", dict(trained.state_dict()))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(WeightFileError, match=f"w{ending} cannot be opened"):
        load_into(fresh, path)


# --- zoo files and digests --------------------------------------------------------------------------------


def test_zoo_file_round_trip(tmp_path, trained):
    _, architecture = tiny_zoo_model()
    write_weights(tmp_path / "a" / "t.safetensors", trained, architecture)
    model, read = read_weights(tmp_path / "a" / "t.safetensors")
    assert read == architecture
    assert not model.training
    for key, value in trained.state_dict().items():
        assert torch.equal(model.state_dict()[key], value.half().float())
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["t.safetensors"]


def test_zoo_file_never_holds_what_fp16_cannot(tmp_path, trained):
    _, architecture = tiny_zoo_model()
    trained.norm.weight.data[3] = 1e6
    with pytest.raises(WeightFileError, match=r"1 tensors leave the range of fp16, first norm.weight"):
        write_weights(tmp_path / "t.safetensors", trained, architecture)
    assert list(tmp_path.iterdir()) == []


def test_digest_sees_every_value_name_and_shape(trained):
    digests = {weights.digest(trained), weights.digest(tiny_zoo_model(seed=2)[0])}
    trained.blocks[1].mlp.fc2.bias.data[7] += 1e-6
    digests.add(weights.digest(trained))
    assert len(digests) == 3
    assert weights.digest(tiny_zoo_model(seed=1)[0]) == weights.digest(tiny_zoo_model(seed=1)[0])
    assert weights.digest(tiny_zoo_model(seed=1)[0].half()) != weights.digest(tiny_zoo_model(seed=1)[0])
