import copy

import pytest
import timm
import torch
from torch import nn

from helpers import enliven, noise, tiny, tiny_zoo_model
from vitscope import backbones
from vitscope.capture import capture
from vitscope.pretrain.zoo import read_weights, write_weights
from vitscope.projections import UnknownAttention
from vitscope.specialization import SplitLinear, SplitNorm, specialize


def specialized(family="supervised", qkv_blocks=1, depth=3):
    """A lively backbone before and after it is specialized."""
    before = tiny(family, depth=depth)
    model = copy.deepcopy(before.model)
    added = specialize(model, qkv_blocks=qkv_blocks)
    return before, backbones.describe("specialized", model, before.transform), added


# --- what it does -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("qkv_blocks", [0, 1, 3])
@pytest.mark.parametrize("family", ["supervised", "clip", "layer_scale"])
def test_the_output_is_the_same_until_it_is_trained(family, qkv_blocks):
    before, after, _ = specialized(family, qkv_blocks)
    images = noise(2, 64 if family != "layer_scale" else 48)
    with torch.inference_mode():
        torch.testing.assert_close(
            after.model.forward_features(images), before.model.forward_features(images), rtol=1e-5, atol=1e-5
        )
        torch.testing.assert_close(after.model(images), before.model(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("qkv_blocks", [0, 1, 3])
def test_the_parameters_added_are_two_per_norm_and_one_projection_per_early_block(qkv_blocks):
    before, after, added = specialized(qkv_blocks=qkv_blocks)
    width, depth = 32, 3
    assert added == 2 * width * (2 * depth + 1) + qkv_blocks * (3 * width * width + 3 * width)

    def count(backbone):
        return sum(p.numel() for p in backbone.model.parameters())

    assert count(after) - count(before) == added


def test_only_early_projections_and_no_mlp_are_split():
    _, after, _ = specialized(qkv_blocks=2)
    assert [isinstance(b.attn.qkv, SplitLinear) for b in after.model.blocks] == [True, True, False]
    assert isinstance(after.model.norm, SplitNorm)
    assert all(isinstance(n, SplitNorm) for b in after.model.blocks for n in (b.norm1, b.norm2))
    assert not any(
        isinstance(m, SplitNorm | SplitLinear) for b in after.model.blocks for m in b.mlp.modules()
    )


def test_split_layers_are_two_layers_side_by_side():
    torch.manual_seed(0)
    x = torch.randn(2, 6, 8)
    norm, linear = SplitNorm(nn.LayerNorm(8), 1), SplitLinear(nn.Linear(8, 5), 1)
    for split in (norm, linear):
        enliven(split)
        assert not torch.equal(split.cls.weight, split.patches.weight)
        expected = torch.stack(
            [torch.stack([(split.patches if t else split.cls)(x[n, t]) for t in range(6)]) for n in range(2)]
        )
        torch.testing.assert_close(split(x), expected)


def test_a_norm_reads_two_axes_as_cls_alone():
    norm = enliven(SplitNorm(nn.LayerNorm(8), 1))
    x = torch.randn(4, 8)
    torch.testing.assert_close(norm(x), norm.cls(x))
    assert not torch.allclose(norm(x), norm.patches(x))


def test_capture_gives_patches_without_cls_the_norm_of_patches():
    _, after, _ = specialized()
    enliven(after.model, seed=5)
    images = noise(2, 64)
    tokens = capture(after, images, norm="final", keep_tokens=2).tokens
    raw = capture(after, images, norm="none", keep_tokens=2).tokens
    norm = after.model.norm
    with torch.inference_mode():
        for state, (found, plain) in enumerate(zip(tokens, raw, strict=True), start=-1):
            torch.testing.assert_close(found[:, 1:], norm.patches(plain[:, 1:]), rtol=1e-4, atol=1e-5)
            if state >= 0:
                torch.testing.assert_close(found[:, 0], norm.cls(plain[:, 0]), rtol=1e-4, atol=1e-5)
        assert bool(tokens[0, :, 0].isnan().all())
        torch.testing.assert_close(tokens[-1], after.model.forward_features(images), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(norm.cls(raw[0, :, 1:]), norm.patches(raw[0, :, 1:]))


def test_a_step_of_training_moves_both_parts_apart():
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, depth=3, embed_dim=32, num_heads=2, num_classes=4
    )
    specialize(enliven(model), qkv_blocks=1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # patches reach the loss, too: without them the patches of the last block and norm have no part in it
    tokens = model.forward_features(noise(4, 32))
    (model.forward_head(tokens).square().mean() + tokens[:, 1:].pow(3).mean()).backward()
    optimizer.step()
    split = [name for name in before if ".cls." in name or ".patches." in name]
    assert len(split) == 2 * (2 * 7 + 2)
    for name, parameter in model.named_parameters():
        if name in split:
            assert not torch.equal(parameter, before[name]), name
    for name in (n for n in split if ".cls." in n):
        assert not torch.equal(
            model.get_parameter(name), model.get_parameter(name.replace(".cls.", ".patches."))
        )


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("siglip", "needs a CLS token and no registers; this model has 0 prefix tokens"),
        ("dinov2_registers", "needs a CLS token and no registers; this model has 5 prefix tokens"),
        ("rope_register_without_cls", "needs a CLS token and no registers; this model has 1 prefix tokens"),
    ],
)
def test_other_prefixes_than_one_cls_are_refused(family, message):
    with pytest.raises(ValueError, match=message):
        specialize(tiny(family).model, qkv_blocks=0)


def test_a_second_time_and_blocks_that_are_not_there_are_refused():
    model = tiny("supervised").model
    for wrong in (-1, 3):
        with pytest.raises(ValueError, match=f"qkv_blocks must be 0 to 2, got {wrong}"):
            specialize(model, qkv_blocks=wrong)
    specialize(model, qkv_blocks=1)
    with pytest.raises(ValueError, match="specialized already"):
        specialize(model, qkv_blocks=1)


def test_layers_that_cannot_be_split_are_named_and_nothing_is_changed():
    strange = {
        "found RmsNorm": {"norm_layer": "rmsnorm"},
        "found Identity": {"global_pool": "avg"},  # its last norm comes after the pooling
    }
    for message, options in strange.items():
        model = timm.create_model(
            "vit_tiny_patch16_224", img_size=32, embed_dim=32, depth=2, num_heads=2, **options
        )
        with pytest.raises(ValueError, match=f"splits LayerNorm and fused qkv projections; {message}"):
            specialize(model, qkv_blocks=1)
        assert not any(isinstance(m, SplitNorm | SplitLinear) for m in model.modules())
    model = tiny("supervised").model
    model.blocks[1].attn = nn.Identity()
    with pytest.raises(UnknownAttention, match=r"VisionTransformer, block 2 \(Block\): .*Identity"):
        specialize(model, qkv_blocks=1)


def test_projections_with_biases_outside_the_layer_are_refused_before_they_break():
    options = {"img_size": 42, "embed_dim": 32, "depth": 2, "num_heads": 2, "global_pool": "token"}
    model = timm.create_model("eva02_tiny_patch14_224", num_classes=0, **options).eval()
    assert model.blocks[0].attn.q_bias is not None
    with pytest.raises(ValueError, match="found another projection"):
        specialize(model, qkv_blocks=1)
    expected = model(noise(1, 42))
    specialize(model, qkv_blocks=0)
    torch.testing.assert_close(model(noise(1, 42)), expected, rtol=1e-5, atol=1e-5)


# --- the zoo ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["softmax", "entmax15"])
def test_a_specialized_model_survives_its_file(tmp_path, attention):
    model, architecture = tiny_zoo_model(depth=6, specialized=True, attention=attention)
    assert [isinstance(b.attn.qkv, SplitLinear) for b in model.blocks] == [True] * 2 + [False] * 4
    path = tmp_path / "own.safetensors"
    write_weights(path, model, architecture)
    again, found = read_weights(path)
    assert found == architecture
    assert isinstance(again.norm, SplitNorm)
    with torch.inference_mode():
        exact = model.half().float()(noise(2, 64))
        torch.testing.assert_close(again(noise(2, 64)), exact, rtol=0, atol=0)
    assert backbones.load(str(path), device="cpu").attention == attention
