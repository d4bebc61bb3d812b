"""The position embedding read, measured and scaled, against timm's own arithmetic and a plain loop."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import FAMILIES, MORE_FAMILIES, noise, tiny, tiny_zoo_model, toy_images
from vitscope import backbones, data, weights
from vitscope.backbones import UnsupportedModel, describe
from vitscope.capture import NonFiniteActivations, capture
from vitscope.data.images import Images
from vitscope.metrics.similarity import token_similarity
from vitscope.position import pe_dominance, position_effect, position_embedding, scaled
from vitscope.transforms import Transform

ROTARY_ONLY = {"dinov3_rope", "rope_per_block", "rope_register_without_cls"}
LEARNED = [f for f in [*FAMILIES, *MORE_FAMILIES] if f not in ROTARY_ONLY]


def classifier(classes: int = 2, seed: int = 0):
    """A small twin with a head."""
    model, _ = tiny_zoo_model(seed=seed, num_classes=classes)
    return describe("small", model, Transform(64, 64, (0.5,) * 3, (0.5,) * 3))


def embedded(backbone, pictures):
    """Tokens before and after timm's own position embedding."""
    with torch.inference_mode():
        patches = backbone.model.patch_embed(pictures)
        after = backbone.model._pos_embed(patches)
    return patches.flatten(1, -2), after[0] if isinstance(after, tuple) else after


# --- reading ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", LEARNED)
def test_the_rows_are_what_timm_adds_to_the_patches(family):
    backbone = tiny(family)
    rows = position_embedding(backbone)
    assert rows.shape == (backbone.num_patches, 32)
    before, after = embedded(backbone, noise(2, backbone.transform.height))
    added = after[:, backbone.num_prefix_tokens :] - before
    torch.testing.assert_close(added, rows.expand(2, -1, -1), rtol=0, atol=1e-5)


def test_rows_are_a_copy_in_the_order_of_a_grid_that_is_not_square():
    backbone = tiny("supervised", size=(32, 64))
    rows = position_embedding(backbone)
    assert rows.shape == (8, 32)
    rows.zero_()
    assert position_embedding(backbone).abs().min() > 0


@pytest.mark.parametrize("family", sorted(ROTARY_ONLY))
def test_models_that_only_rotate_have_none_and_cannot_be_scaled(family):
    backbone = tiny(family)
    assert position_embedding(backbone) is None
    message = rf"{family} \(\w+\) has no learned absolute position embedding"
    with pytest.raises(UnsupportedModel, match=message):
        scaled(backbone, 0.5)
    with pytest.raises(UnsupportedModel, match=message):
        pe_dominance(backbone, 1.0)
    with pytest.raises(UnsupportedModel, match=message):
        position_effect(backbone, toy_images(2), [0.5])


@pytest.mark.parametrize("shape", [(1, 9, 32), (1, 18, 32), (2, 17, 32), (1, 4, 4, 32)])
def test_a_table_of_another_form_is_refused_with_its_shape(shape):
    backbone = tiny("supervised")  # 16 patches and a CLS token
    backbone.model.pos_embed = torch.nn.Parameter(torch.zeros(shape))
    with pytest.raises(
        UnsupportedModel, match=rf"position embedding \[{', '.join(map(str, shape))}\].*of 16 p"
    ):
        position_embedding(backbone)


# --- dominance --------------------------------------------------------------------------------------------


def test_dominance_of_planted_norms():
    backbone = tiny("supervised")
    with torch.no_grad():
        backbone.model.pos_embed.zero_()
        backbone.model.pos_embed[0, 0, 0] = 1e6  # the row of CLS is no position
        backbone.model.pos_embed[0, 1:, 0] = torch.tensor([3.0, 5.0]).repeat(8)
    found = pe_dominance(backbone, 2.0, 10.0)
    assert found.tokens == pytest.approx(4 / 2)
    assert found.frobenius == pytest.approx(math.sqrt(8 * 9 + 8 * 25) / 10)
    assert math.isnan(pe_dominance(backbone, 2.0).frobenius)
    assert pe_dominance(scaled(backbone, 0.5), 2.0, 10.0) == pytest.approx([1.0, found.frobenius / 2])


def test_dominance_from_a_capture_as_the_docstring_says():
    backbone, pictures = tiny("dinov2_registers"), noise(3, 42)
    reductions = {
        "norm": lambda t: {"patch_norm": t.patches.norm(dim=2).mean(1)},
        "image": lambda t: {"image_norm": t.patches.flatten(1).norm(dim=1)},
    }
    norms = capture(backbone, pictures, norm="none", reductions=reductions).per_image
    found = pe_dominance(backbone, norms["patch_norm"][0].mean(), norms["image_norm"][0].mean())
    before, after = (x.double().numpy() for x in embedded(backbone, pictures))
    added = (after[:, backbone.num_prefix_tokens :] - before)[0]
    by_token = np.mean([np.linalg.norm(p) for p in added])
    assert found.tokens == pytest.approx(
        by_token / np.mean([[np.linalg.norm(z) for z in image] for image in before]), rel=1e-5
    )
    assert found.frobenius == pytest.approx(
        np.linalg.norm(added) / np.mean([np.linalg.norm(image) for image in before]), rel=1e-5
    )


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_dominance_needs_positive_norms(bad):
    with pytest.raises(ValueError, match="patch_norm must be a positive mean norm"):
        pe_dominance(tiny("supervised"), bad)
    with pytest.raises(ValueError, match="image_norm must be a positive mean norm"):
        pe_dominance(tiny("supervised"), 1.0, bad)


# --- scaling ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.0, 0.5, -2.0])
@pytest.mark.parametrize("family", LEARNED)
def test_scaling_changes_what_is_added_to_patches_and_nothing_else(family, factor):
    backbone = tiny(family)
    pictures, digest = noise(2, backbone.transform.height), backbone.digest
    changed = scaled(backbone, factor)
    assert torch.equal(position_embedding(changed), factor * position_embedding(backbone))
    (before, after), (same, moved) = (embedded(b, pictures) for b in (backbone, changed))
    prefix = backbone.num_prefix_tokens
    assert torch.equal(before, same)
    assert torch.equal(after[:, :prefix], moved[:, :prefix])
    expected = before + factor * position_embedding(backbone)
    torch.testing.assert_close(moved[:, prefix:], expected, rtol=0, atol=1e-5)
    ours, theirs = (
        {k: v for k, v in b.model.state_dict().items() if k != "pos_embed"} for b in (backbone, changed)
    )
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)
    assert changed.name == f"{family}, PE × {factor:g}"
    assert changed.digest == weights.digest(changed.model) != digest
    assert changed.source["position_embedding_factor"] == factor
    assert weights.digest(backbone.model) == digest, "the model that was given is as it was"


def test_factor_one_is_the_same_model_and_factors_multiply():
    backbone = tiny("supervised")
    assert scaled(backbone, 1).digest == backbone.digest
    assert scaled(scaled(backbone, 0.5), 4).digest == scaled(backbone, 2).digest


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_factors_must_be_finite(factor):
    with pytest.raises(ValueError, match="must be finite, got"):
        scaled(tiny("supervised"), factor)
    with pytest.raises(ValueError, match="must be finite, got"):
        position_effect(classifier(), toy_images(2), [1.0, factor])


# --- effect -----------------------------------------------------------------------------------------------


def test_the_effect_equals_a_plain_loop_over_scaled_models():
    backbone, images, factors = classifier(seed=2), toy_images(11), [0.0, 2.0, 1.0, 8.0]
    digest = backbone.digest
    table = position_effect(backbone, images, factors, own_classes=True, batch_size=4)
    assert list(table) == ["factor", "top1", "agreement", "before", "after", "cliff"]
    assert table["factor"].tolist() == factors
    pictures = backbone.transform(images.pixels())
    usual = backbone.model(pictures).argmax(1).numpy()
    for factor, row in zip(factors, table.itertuples(), strict=True):
        changed = scaled(backbone, factor)
        found = changed.model(pictures).argmax(1).numpy()
        tokens = [x[:, -64:] for x in embedded(changed, pictures)]
        before, after = (float(token_similarity(x, centred=True).mean()) for x in tokens)
        assert row.top1 == pytest.approx(100 * np.mean(found == images.labels))
        assert row.agreement == pytest.approx(100 * np.mean(found == usual))
        assert [row.before, row.after] == pytest.approx([before, after], abs=1e-6)
        assert row.cliff == pytest.approx(before - after, abs=2e-6)
    assert table["cliff"][0] == pytest.approx(0, abs=1e-6), "nothing is added between the two states"
    assert table["agreement"].nunique() > 1, "the factors matter to this model"
    assert weights.digest(backbone.model) == digest
    hooks = [h for m in backbone.model.modules() for h in (m._forward_hooks, m._forward_pre_hooks)]
    assert not any(hooks)


def test_a_trained_twin_answers_otherwise_with_four_times_the_embedding():
    backbone = backbones.load("twin_s", device="cpu")
    images = data.load("emoji_identity", "test").select(range(32))
    table = position_effect(backbone, images, [4, 1], own_classes=True).set_index("factor")
    assert table.loc[1, "agreement"] == 100
    assert table.loc[1, "top1"] > 75
    assert table.loc[4, "agreement"] < 90
    assert table.loc[4, "top1"] < table.loc[1, "top1"]
    assert table.loc[4, "before"] == table.loc[1, "before"]
    assert table.loc[4, "cliff"] > table.loc[1, "cliff"] > 0
    captured = capture(backbone, images, norm="none", reductions=("similarity",))
    curve = captured.per_image["similarity_centred"].mean(1)
    assert table.loc[1, "before"] == pytest.approx(float(curve[0]), abs=1e-5)
    assert table.loc[1, "after"] == pytest.approx(float(curve[1]), abs=1e-5)


def test_accuracy_is_given_only_for_a_head_of_the_same_classes():
    images = toy_images(4)
    assert position_effect(classifier(2), images, [1.0])["top1"].isna().all()
    with pytest.raises(
        ValueError, match="head of small names the classes of toy, but it has 5 outputs for 2"
    ):
        position_effect(classifier(5), images, [1.0], own_classes=True)


def test_the_effect_does_not_depend_on_the_batch():
    backbone, images = classifier(), toy_images(9)
    one, many = (position_effect(backbone, images, [0.0, 1.0], batch_size=size) for size in (1, 256))
    np.testing.assert_allclose(one, many, atol=1e-5)


def test_the_effect_needs_a_head_factors_and_finite_answers():
    images = toy_images(2)
    with pytest.raises(ValueError, match="supervised has no head, so it names no class"):
        position_effect(tiny("supervised"), images, [1.0])
    with pytest.raises(ValueError, match=r"at least one factor .* got \[\] and 256"):
        position_effect(classifier(), images, [])
    with pytest.raises(ValueError, match=r"batch_size of at least 1 .* and 0"):
        position_effect(classifier(), images, [1.0], batch_size=0)
    with pytest.raises(
        NonFiniteActivations, match=r"small: .* × 1e\+38 the outputs are not finite for 2 of 2"
    ):
        position_effect(classifier(), images, [1e38])


def test_the_effect_reads_pictures_through_the_transform_of_the_model():
    """Other pixels, same pictures: a model of 32 px gets the pictures of 64 px made smaller."""
    model, _ = tiny_zoo_model(num_classes=2, img_size=32)
    small = describe("small", model, Transform(32, 32, (0.5,) * 3, (0.5,) * 3))
    images = toy_images(3)
    pixels = torch.round((small.transform(images.pixels()) + 1) * 127.5).to(torch.uint8)
    shrunk: Images = replace(images, read=lambda indices: pixels[torch.from_numpy(indices)])
    found, expected = (position_effect(small, x, [0.5]) for x in (images, shrunk))
    np.testing.assert_allclose(found, expected)
