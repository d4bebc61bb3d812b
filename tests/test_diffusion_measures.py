"""Leakage, likeness, norms, attention and masks of a model: against metrics of its own tokens and maps."""

from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
import torch

from helpers import tiny
from planted_dense import pair
from vitscope import diffusion_attention, diffusion_measures
from vitscope.attention_maps import full_map
from vitscope.capture import capture
from vitscope.dense.masks import attention_masks, best_head, mask_iou
from vitscope.diffusion_attention import attention, found_masks
from vitscope.diffusion_measures import coverage, leaks, likeness, norms
from vitscope.metrics import diffusion, support
from vitscope.metrics.leakage import leakage

MODEL = tiny("dinov2_registers", size=56)
SETS = pair(60, 30, size=56)
TEST = SETS.test


def tokens_of(part, norm):
    return capture(MODEL, part.seen.inputs, norm=norm, keep_tokens=len(part.data)).tokens[:, :, 5:]


def test_coverage_is_the_share_of_object_and_pixels_without_class_are_no_background():
    covered = coverage(TEST, MODEL)
    assert covered.sum(1).tolist() == [4.0] * 30
    unknown = TEST.seen.mask.clone()
    unknown[0, :14, :14] = 255
    other = coverage(replace(TEST, seen=replace(TEST.seen, mask=unknown)), MODEL)
    assert other[0, 0] == 1
    named = replace(TEST, data=replace(TEST.data, classes=("road", "car", "person")))
    with pytest.raises(ValueError, match="scenes has no background class"):
        coverage(named, MODEL)


def test_planted_labels_are_told_by_objects_and_not_by_background_before_attention():
    found = leaks(MODEL, SETS, norm="none", seed=0)
    first = found.table[found.table["state"] == -1].set_index("part")
    assert first.loc["foreground", "accuracy"] > 95
    assert first.loc["background", "accuracy"] == pytest.approx(first.loc["background", "luck"], abs=12)
    assert found.curve.states == (-1, 0, 1, 2)
    assert abs(found.curve.at(-1).value) < 0.25
    assert found.images == 30
    assert len(found.warnings) <= 1


def test_remarks_of_many_probes_are_one_sentence():
    labels, covered = np.arange(20) % 2, coverage(TEST, MODEL)[:20]
    tokens = torch.randn(1, 20, 16, 2, generator=torch.Generator().manual_seed(0))
    one = leakage(tokens, labels, covered, tokens, labels, covered, grid=MODEL.grid)
    said = replace(one, warnings=("l2 = 10, the strongest, was chosen for states 0: add stronger values",))
    assert diffusion_measures._said([said, said, replace(one, warnings=())], 6) == (
        "2 remarks on 6 probes, such as: l2 = 10, the strongest, was chosen.",
    )
    assert diffusion_measures._said([replace(one, warnings=())], 2) == ()


def test_the_ratio_and_its_states_are_those_of_the_metric(monkeypatch):
    found = leaks(MODEL, SETS, norm="final", seed=0)
    labels = [p.data.images.labels for p in (SETS.train, TEST)]
    covered = [coverage(p, MODEL) for p in (SETS.train, TEST)]
    train, test = tokens_of(SETS.train, "final"), tokens_of(TEST, "final")
    options = {"grid": MODEL.grid, "groups": SETS.train.clusters, "per_image": 8}
    above = {}
    for on, column in (("foreground", 0), ("background", 1)):
        one = leakage(train, labels[0], covered[0], test, labels[1], covered[1], on=on, **options)
        above[on] = (one.right - one.luck)[..., column].mean(1)
    expected = above["background"] / above["foreground"]
    np.testing.assert_allclose(found.curve.value, expected.numpy(), rtol=1e-6)
    monkeypatch.setattr("vitscope.dense_parts._BYTES", 1)
    np.testing.assert_allclose(leaks(MODEL, SETS, norm="final", seed=0).curve.value, found.curve.value)


def test_likeness_is_centred_by_state():
    found, tokens = likeness(MODEL, TEST, norm="final"), tokens_of(TEST, "final")
    centre = tokens.mean((1, 2))
    gap = diffusion.foreground_background_gap(tokens, coverage(TEST, MODEL), centre=centre).gap
    np.testing.assert_allclose(found.gap.value, gap.mean(1), atol=1e-6)
    curve = diffusion.similarity_against_distance(tokens[2], MODEL.grid, centre=centre[2])
    np.testing.assert_allclose(found.correlation.value[2], curve.correlation.mean(), atol=1e-6)
    rows = found.by_distance[found.by_distance["state"] == 1]
    np.testing.assert_allclose(rows["cosine"], curve.cosine.mean(0), atol=1e-6)


def test_norms_are_of_tokens_as_they_are():
    found = norms(MODEL, TEST)
    lengths = tokens_of(TEST, "none").norm(dim=-1)
    expected = diffusion.high_norm(lengths, coverage(TEST, MODEL))
    torch.testing.assert_close(found.found.share, expected.share)
    np.testing.assert_allclose(found.share.value, 100 * expected.share.numpy())


def maps_of(model, inputs):
    """The map of every block, from the inputs its attention was called with."""
    seen = []

    def keep(module, args):
        seen.append((module, args[0]))

    handles = [block.attn.register_forward_pre_hook(keep) for block in model.model.blocks]
    model.model.forward_features(inputs)
    for handle in handles:
        handle.remove()
    return [full_map(module, x) for module, x in seen]


def test_attention_is_that_of_the_full_maps_in_batches_of_any_size(monkeypatch):
    monkeypatch.setattr(diffusion_attention, "_AT_ONCE", 7)
    found = attention(MODEL, TEST)
    maps = maps_of(MODEL, TEST.seen.inputs)
    covered = coverage(TEST, MODEL)
    for i, one in enumerate(maps):
        entropy = 100 * support.normalised_entropy(one, prefix=5).mean()
        mass = support.mass_to_background(one, covered, prefix=5).ratio.mean()
        assert found.entropy.value[i] == pytest.approx(entropy.item(), rel=1e-5)
        assert found.mass.value[i] == pytest.approx(mass.item(), rel=1e-5)
        torch.testing.assert_close(found.cls[i], one[:, :, 0, 5:], atol=1e-6, rtol=1e-5)
    assert found.support.value.tolist() == [100.0, 100.0]
    assert attention(MODEL, TEST, known=False).mass is None
    assert not any(b.attn._forward_hooks for b in MODEL.model.blocks)


def test_the_head_is_chosen_on_training_pictures_and_scored_on_others():
    looked = tuple(attention(MODEL, part) for part in (SETS.train, TEST))
    found = found_masks(MODEL, SETS.train, TEST, looked, norm="final")
    for block in (0, 1):
        fits = [
            mask_iou(attention_masks(a.cls[block]).transpose(0, 1), coverage(p, MODEL)).iou
            for a, p in zip(looked, (SETS.train, TEST), strict=True)
        ]
        head = best_head(fits[0].T)
        assert found.heads[block] == head + 1
        assert found.attention.value[block] == pytest.approx(100 * fits[1][head].mean().item())
    assert found.everything == pytest.approx(25.0)
    assert found.pca.states == (-1, 0, 1, 2)
    assert found.pca.at(-1).value > 40  # a colour is the first component of noise and squares


def test_without_cls_only_cls_measures_are_missing():
    model, sets = tiny("registers_without_cls"), pair(20, 12, size=48)
    assert attention(model, sets.test).cls is None
    found = found_masks(model, sets.train, sets.test, None, norm="none")
    assert found.attention is None
    assert found.heads == ()
    assert leaks(model, sets, norm="none", seed=0, states=[2]).curve.states == (2,)


def test_a_set_without_masks_has_no_foreground():
    bare = replace(TEST, seen=replace(TEST.seen, mask=None))
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(ValueError, match="scenes has no masks"):
            likeness(MODEL, bare, norm="none")
        assert np.isnan(diffusion_measures.norms(MODEL, bare).found.background)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
