"""Capture: equal to the plain forward on every family, and leaving no trace on the model."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from helpers import FAMILIES, MORE_FAMILIES, noise, tiny, tiny_zoo_model, toy_images
from vitscope import backbones, data, reductions
from vitscope.capture import capture

ALL = [*FAMILIES, *MORE_FAMILIES]
COUNT = 5


def plain_states(backbone, images: torch.Tensor) -> list[torch.Tensor]:
    """Tokens of every state by timm's own means: patch embedding, position embedding, intermediates."""
    model = backbone.model
    with torch.inference_mode():
        patches = model.patch_embed(images)
        embedded = model._pos_embed(patches)
        embedded = embedded[0] if isinstance(embedded, tuple) else embedded  # rotary models return both
        if hasattr(model, "norm_pre"):
            embedded = model.norm_pre(embedded)
        blocks = model.forward_intermediates(
            images, norm=False, output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
        )
    joined = [
        torch.cat([prefix, x], dim=1) if backbone.num_prefix_tokens else x for x, prefix in _pairs(blocks)
    ]
    return [patches.flatten(1, -2), embedded, *joined]


def _pairs(blocks):
    return [block if isinstance(block, tuple) else (block, None) for block in blocks]


def norm_of(backbone, norm: str):
    return {
        "none": lambda x: x,
        "final": backbone.model.norm,
        "layer": lambda x: (
            (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        ),
    }[norm]


# --- parity -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["none", "final", "layer"])
@pytest.mark.parametrize("family", ALL)
def test_every_state_equals_the_plain_forward(family, norm):
    backbone = tiny(family)
    images = noise(COUNT, backbone.transform.height)
    result = capture(backbone, images, norm=norm, keep_tokens=COUNT, attention=True, batch_size=COUNT)
    apply = norm_of(backbone, norm)
    with torch.inference_mode():
        expected = [apply(x) for x in plain_states(backbone, images)]
    prefix = backbone.num_prefix_tokens
    assert result.states == [-1, 0, 1, 2]
    assert result.norm == norm
    for row, tokens in enumerate(expected):
        missing = prefix if row == 0 else 0
        kept = result.tokens[row]
        assert kept.shape == (COUNT, prefix + backbone.num_patches, 32)
        assert torch.isnan(kept[:, :missing]).all()
        torch.testing.assert_close(kept[:, missing:], tokens, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            result.patch_mean[row], tokens[:, prefix - missing :].mean(1), rtol=1e-5, atol=1e-5
        )
    if backbone.has_cls:
        assert torch.isnan(result.cls[0]).all()
        torch.testing.assert_close(
            result.cls[1:], torch.stack([x[:, 0] for x in expected[1:]]), rtol=1e-5, atol=1e-5
        )
    else:
        assert result.cls is None
        assert "cls_norm" not in result.per_image


@pytest.mark.parametrize("family", ALL)
def test_last_state_is_forward_features_exactly(family):
    backbone = tiny(family)
    images = noise(COUNT, backbone.transform.height)
    result = capture(backbone, images, norm="final", keep_tokens=COUNT, batch_size=COUNT)
    with torch.inference_mode():
        assert torch.equal(result.tokens[-1], backbone.model.forward_features(images))


def test_attention_does_not_change_the_tokens():
    backbone, images = tiny("dinov3_rope"), noise(3, 48)
    plain, watched = (capture(backbone, images, norm="none", attention=a) for a in (False, True))
    assert torch.equal(plain.patch_mean, watched.patch_mean)
    assert plain.attention == {}
    assert {v.shape for v in watched.attention.values()} == {(2, 3, 2)}


def test_a_real_architecture_by_name():
    """Not shrunk: twelve blocks, from the name to the features."""
    backbone = backbones.load("vit_tiny_patch16_224", weights="random", img_size=32, device="cpu")
    images = noise(2, 32)
    result = capture(backbone, images, norm="final")
    assert result.states == list(range(-1, 13))
    assert result.backbone == "vit_tiny_patch16_224"
    torch.testing.assert_close(
        result.cls[-1], backbone.model.forward_features(images)[:, 0], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", backbones.zoo_names())
def test_zoo_models_are_captured_as_they_classify(name):
    backbone = backbones.load(name, device="cpu")
    images = data.load("emoji_identity", "test").select(range(4))
    result = capture(backbone, images, norm="final")
    with torch.inference_mode():
        expected = backbone.model.forward_features(backbone.transform(images.pixels()))[:, 0]
    torch.testing.assert_close(result.cls[-1], expected, rtol=1e-4, atol=1e-5)


# --- tokens and grids -------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["dinov2_registers", "dinov3_rope", "registers_without_cls"])
def test_registers_are_never_counted_as_patches(family):
    """Set the registers to 10⁶ behind the last block: nothing but the kept tokens may notice."""
    backbone = tiny(family)
    images = noise(3, backbone.transform.height)
    first, prefix = int(backbone.has_cls), backbone.num_prefix_tokens

    def shout(module, args, output):
        output = output.clone()
        output[:, first:prefix] = 1e6
        return output

    quiet = capture(backbone, images, norm="none", reductions=list(reductions.REDUCTIONS))
    handle = backbone.model.blocks[-1].register_forward_hook(shout)
    loud = capture(backbone, images, norm="none", reductions=list(reductions.REDUCTIONS), keep_tokens=3)
    handle.remove()
    assert torch.equal(quiet.patch_mean, loud.patch_mean)
    for name, value in quiet.per_image.items():
        torch.testing.assert_close(value, loud.per_image[name], rtol=0, atol=0, equal_nan=True)
    assert (loud.tokens[-1][:, first:prefix] == 1e6).all(), "the registers were overwritten, where they are"
    if backbone.has_cls:
        torch.testing.assert_close(quiet.cls, loud.cls, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("family", ["supervised", "dinov3_rope", "siglip"])
@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (2, 2)])
def test_a_bright_corner_lands_in_that_corner(family, shape):
    """Rows first: on a grid that is not square a swap of the axes would show."""
    size = (16 * shape[0], 16 * shape[1])
    backbone = tiny(family, size=size)
    assert backbone.grid == shape
    images = torch.zeros(1, 3, *size)
    images[:, :, :16, 16:32] = 5.0  # first row, second column
    tokens = capture(backbone, images, norm="none", keep_tokens=1).tokens[0, 0, backbone.num_prefix_tokens :]
    unlike = (tokens - tokens.median(0).values).norm(dim=-1).view(backbone.grid)
    assert np.unravel_index(int(unlike.argmax()), backbone.grid) == (0, 1)
    assert int((unlike > 1e-4).sum()) == 1


def test_top_left_patch_is_the_first():
    backbone = tiny("dinov2_registers", size=(28, 42))
    images = torch.zeros(1, 3, 28, 42)
    images[:, :, :14, :14] = 5.0
    tokens = capture(backbone, images, norm="none", keep_tokens=1).tokens[0, 0, backbone.num_prefix_tokens :]
    assert int((tokens - tokens[-1]).norm(dim=-1).argmax()) == 0


# --- batches, sources, results ----------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 100])
def test_batch_size_does_not_matter(batch_size):
    backbone, images = tiny("clip"), noise(7, 64)
    whole = capture(backbone, images, norm="none", keep_tokens=4, attention=True, batch_size=7)
    parts = capture(backbone, images, norm="none", keep_tokens=4, attention=True, batch_size=batch_size)
    assert parts.batch_size == batch_size
    assert parts.num_images == 7
    for a, b in [
        (whole.cls, parts.cls), (whole.patch_mean, parts.patch_mean), (whole.tokens, parts.tokens),
        *((whole.per_image[k], parts.per_image[k]) for k in whole.per_image),
        *((whole.attention[k], parts.attention[k]) for k in whole.attention),
    ]:  # fmt: skip
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-5, equal_nan=True)


def test_images_tensors_and_pairs_give_the_same():
    backbone, images = tiny("supervised"), toy_images(5)
    tensor = backbone.transform(images.pixels())
    by_set = capture(backbone, images, norm="none", batch_size=2)
    by_tensor = capture(backbone, tensor, norm="none", batch_size=2)
    by_pair = capture(backbone, (tensor, images.labels), norm="none", batch_size=2)
    assert torch.equal(by_set.patch_mean, by_tensor.patch_mean)
    assert torch.equal(by_set.patch_mean, by_pair.patch_mean)
    assert by_set.labels.tolist() == by_pair.labels.tolist() == [0, 1, 0, 1, 0]
    assert by_set.ids.tolist() == ["i0", "i1", "i2", "i3", "i4"]
    assert by_tensor.labels is None
    assert by_tensor.ids is None


def test_per_image_statistics_equal_the_double_loop_over_tokens():
    backbone, images = tiny("dinov2_registers"), noise(3, 42)
    result = capture(backbone, images, norm="none", reductions=list(reductions.REDUCTIONS))
    for row, tokens in enumerate(plain_states(backbone, images)):
        patches = tokens[:, 0 if row == 0 else backbone.num_prefix_tokens :].double()
        count = patches.shape[1]
        for image in range(3):
            for name, x in (
                ("similarity", patches[image]),
                ("similarity_centred", patches[image] - patches[image].mean(0)),
            ):
                pairs = [
                    F.cosine_similarity(x[i], x[j], dim=0)
                    for i in range(count)
                    for j in range(count)
                    if i != j
                ]
                expected = float(torch.stack(pairs).mean())
                assert float(result.per_image[name][row, image]) == pytest.approx(expected, abs=2e-5)


def test_table_of_statistics():
    backbone, images = tiny("supervised"), noise(6, 64)
    result = capture(backbone, images, norm="layer", attention=True)
    table = result.stats
    assert list(table.columns) == ["state", "statistic", "head", "mean", "std", "n"]
    similarity = table[table.statistic == "similarity"]
    assert similarity["state"].tolist() == [-1, 0, 1, 2]
    assert (similarity["head"] == -1).all()
    torch.testing.assert_close(
        torch.tensor(similarity["mean"].to_numpy()).float(), result.per_image["similarity"].mean(1)
    )
    torch.testing.assert_close(
        torch.tensor(similarity["std"].to_numpy()).float(),
        result.per_image["similarity"].std(1, correction=0),
    )
    entropy = table[table.statistic == "entropy"]
    assert list(zip(entropy["state"], entropy["head"], strict=True)) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert (table["n"] == 6).all()
    assert not table.duplicated(["state", "statistic", "head"]).any()


def test_reductions_by_name_and_of_ones_own():
    backbone, images = tiny("supervised"), noise(3, 64)
    only = capture(backbone, images, norm="none", reductions=["patch_mean"])
    assert only.cls is None
    assert only.per_image == {}
    assert only.patch_mean.shape == (4, 3, 32)
    own = capture(
        backbone, images, norm="none",
        reductions={"largest": lambda t: {"largest": t.patches.amax((1, 2)), "first": t.patches[:, 0]}},
    )  # fmt: skip
    expected = torch.stack(
        [x[:, 0 if i == 0 else 1 :].amax((1, 2)) for i, x in enumerate(plain_states(backbone, images))]
    )
    torch.testing.assert_close(own.per_image["largest"], expected, rtol=1e-5, atol=1e-6)
    assert own.extra["first"].shape == (4, 3, 32)
    assert own.num_images == 3


def test_other_pictures_sizes_go_through_the_backbones_own_transform():
    backbone = tiny("supervised")
    images = data.load("digits", "test").select(range(3))  # 32 px
    result = capture(backbone, images, norm="none")
    expected = capture(backbone, backbone.transform(images.pixels()), norm="none")
    assert torch.equal(result.patch_mean, expected.patch_mean)


def test_a_zoo_style_model_with_registers():
    model, _ = tiny_zoo_model(reg_tokens=4, img_size=32)
    backbone = backbones.describe("zoo4", model, tiny("supervised", size=32).transform)
    result = capture(backbone, noise(2, 32), norm="final", attention=True)
    assert backbone.num_registers == 4
    assert result.attention["cls_to_patches"].max() < 1
    torch.testing.assert_close(
        result.cls[-1], model.forward_features(noise(2, 32))[:, 0], rtol=1e-5, atol=1e-5
    )


# --- statistics of one's own ------------------------------------------------------------------------------


def test_own_map_statistics_see_every_map_once():
    from functools import partial

    from vitscope.metrics import attention_graph

    backbone = tiny("supervised")
    images = noise(5, backbone.transform.height)
    own = {
        "centrality": partial(attention_graph.cls_centrality, prefix=1),
        "entropy_again": attention_graph.attention_entropy,
        "row_sums": lambda maps: maps.sum(-1).mean((1, 2)),
    }
    found = capture(backbone, images, norm="none", attention=own, batch_size=2)
    assert found.attention["centrality"].shape == (backbone.depth, 5)
    torch.testing.assert_close(
        found.attention["entropy_again"], found.attention["entropy"], rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(found.attention["row_sums"], torch.ones(backbone.depth, 5))
    rows = found.stats.query("statistic == 'centrality'")
    assert rows["head"].eq(-1).all()
    assert rows["state"].tolist() == list(range(1, backbone.depth + 1))


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"entropy": lambda maps: maps.sum((1, 2, 3))}, "'entropy' is one of the usual statistics"),
        (
            {"wrong": lambda maps: maps},
            r"'wrong' gave shape \[2, 2, 17, 17\]; expected \[2\] or \[2, heads\]",
        ),
    ],
)
def test_bad_map_statistics_are_named(own, message):
    backbone = tiny("supervised")
    with pytest.raises(ValueError, match=message):
        capture(backbone, noise(2, backbone.transform.height), norm="none", attention=own)
    assert not backbone.model.blocks[0].attn._forward_hooks
