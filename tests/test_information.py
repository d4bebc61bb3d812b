"""The scrambling index on running models: tokens state by state, and attention read block by block."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

from helpers import FAMILIES, MORE_FAMILIES, noise, tiny, toy_images
from vitscope import attention_maps, backbones, data, information
from vitscope.attention_maps import UnknownAttention
from vitscope.capture import NonFiniteActivations, capture
from vitscope.errors import UnknownName
from vitscope.information import attention_index, scrambling, tokens_by_state
from vitscope.metrics.scrambling import isi_reconstruction

COUNT = 5
WITH_ATTENTION = [*FAMILIES, *MORE_FAMILIES]


def kept_tokens(backbone, pictures, norm: str) -> torch.Tensor:
    """Patch tokens [S, N, P, D] of every state, from one capture that keeps them all."""
    count = len(pictures)
    kept = capture(backbone, pictures, norm=norm, keep_tokens=count, batch_size=count).tokens
    return kept[:, :, backbone.num_prefix_tokens :]


def hooks_of(model: torch.nn.Module) -> list:
    return [
        (name, len(m._forward_hooks), len(m._forward_pre_hooks))
        for name, m in model.named_modules()
        if m._forward_hooks or m._forward_pre_hooks
    ]


def counted_passes(backbone) -> list:
    """One entry for every batch that goes through the model from now on."""
    passes: list[int] = []
    backbone.model.patch_embed.register_forward_hook(lambda *args: passes.append(len(args[1][0])))
    return passes


def budget_for(backbone, states: int) -> int:
    """Bytes that hold the tokens of COUNT pictures at so many states."""
    return states * 4 * COUNT * backbone.num_patches * backbone.width


# --- tokens, state by state -------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["none", "final", "layer"])
@pytest.mark.parametrize(
    "family", ["supervised", "dinov2_registers", "siglip", "registers_without_cls", "dinov3_rope"]
)
def test_every_state_equals_the_tokens_that_a_capture_keeps(family, norm):
    backbone = tiny(family)
    pictures = noise(COUNT, backbone.transform.height)
    found = list(tokens_by_state(backbone, pictures, norm=norm, batch_size=COUNT))
    assert [x.shape for x in found] == [(COUNT, backbone.num_patches, 32)] * 4
    assert {x.dtype for x in found} == {torch.float32}
    assert torch.equal(torch.stack(found), kept_tokens(backbone, pictures, norm))


@pytest.mark.parametrize("family", ["supervised", "siglip", "registers_without_cls"])
def test_block_outputs_equal_timms_own_intermediates(family):
    backbone = tiny(family)
    pictures = noise(COUNT, backbone.transform.height)
    with torch.inference_mode():
        expected = backbone.model.forward_intermediates(
            pictures, norm=False, output_fmt="NLC", intermediates_only=True
        )
        embedded = backbone.model.patch_embed(pictures).flatten(1, -2)
    found = list(tokens_by_state(backbone, pictures, norm="none", batch_size=2))
    torch.testing.assert_close(found[0], embedded, rtol=1e-5, atol=1e-6)
    for tokens, block in zip(found[2:], expected, strict=True):
        torch.testing.assert_close(tokens, block, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("together", "runs"), [(0.3, 4), (1, 4), (2, 2), (2.9, 2), (3, 2), (4, 1), (99, 1)])
def test_the_model_runs_once_for_as_many_states_as_the_budget_holds(together, runs):
    backbone, pictures = tiny("dinov2_registers"), noise(COUNT, 42)
    expected = kept_tokens(backbone, pictures, "none")
    passes = counted_passes(backbone)
    budget = int(budget_for(backbone, 1) * together)
    found = list(tokens_by_state(backbone, pictures, norm="none", batch_size=COUNT, budget=budget))
    assert passes == [COUNT] * runs
    assert torch.equal(torch.stack(found), expected)


def test_states_come_as_they_are_asked_for_and_not_before():
    backbone, pictures = tiny("supervised"), noise(COUNT, 64)
    passes = counted_passes(backbone)
    stream = tokens_by_state(
        backbone, pictures, norm="none", batch_size=COUNT, budget=budget_for(backbone, 2)
    )
    assert passes == []
    next(stream), next(stream)
    assert len(passes) == 1
    next(stream)
    assert len(passes) == 2


@pytest.mark.parametrize("batch_size", [1, 2, 3, 64])
def test_batches_do_not_matter_for_tokens(batch_size):
    backbone, pictures = tiny("supervised"), noise(COUNT, 64)
    found = tokens_by_state(
        backbone, pictures, norm="final", batch_size=batch_size, budget=budget_for(backbone, 3)
    )
    expected = kept_tokens(backbone, pictures, "final")
    torch.testing.assert_close(torch.stack(list(found)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("states", [[2], [2, -1], [1, 0, 2]])
def test_chosen_states_come_in_the_order_asked(states):
    backbone, pictures = tiny("supervised"), noise(COUNT, 64)
    expected = kept_tokens(backbone, pictures, "none")
    for fitting in (1, 2, 9):
        budget = budget_for(backbone, fitting)
        found = tokens_by_state(
            backbone, pictures, norm="none", states=states, batch_size=COUNT, budget=budget
        )
        assert torch.equal(torch.stack(list(found)), expected[[s + 1 for s in states]])


def test_an_image_set_a_tensor_and_a_labelled_pair_give_the_same_tokens():
    backbone, images = tiny("supervised"), toy_images(COUNT)
    tensor = backbone.transform(images.pixels())
    sources = [images, tensor, (tensor, images.labels)]
    first, *others = (
        torch.stack(list(tokens_by_state(backbone, s, norm="none", batch_size=2))) for s in sources
    )
    assert all(torch.equal(first, other) for other in others)


def test_tokens_held_at_once_stay_within_the_budget_and_the_state_in_use():
    backbone, pictures = tiny("supervised", depth=6), noise(COUNT, 64)
    refs, alive = [], []
    for tokens in tokens_by_state(
        backbone, pictures, norm="none", batch_size=COUNT, budget=budget_for(backbone, 2)
    ):
        refs.append(StorageWeakRef(tokens.untyped_storage()))
        del tokens
        alive.append(sum(not ref.expired() for ref in refs))
    assert len(refs) == 8
    assert max(alive) <= 1


@pytest.mark.parametrize(("states", "named"), [([3], "3"), ([-1, 7, -2], "7, -2")])
def test_states_that_the_model_does_not_have_are_refused_before_it_runs(states, named):
    backbone, pictures = tiny("supervised"), noise(COUNT, 64)
    passes = counted_passes(backbone)
    with pytest.raises(ValueError, match=rf"supervised has the states -1 to 2, not {named}"):
        list(tokens_by_state(backbone, pictures, norm="none", states=states))
    assert passes == []


def test_a_state_asked_for_twice_is_refused():
    with pytest.raises(ValueError, match=r"each state once, got \[0, 1, 1\]"):
        list(tokens_by_state(tiny("supervised"), noise(COUNT, 64), norm="none", states=[0, 1, 1]))


def test_an_unknown_norm_and_unfit_pictures_are_refused():
    backbone = tiny("supervised")
    with pytest.raises(UnknownName, match=r"Unknown norm 'nome'. Did you mean 'none'"):
        next(tokens_by_state(backbone, noise(COUNT, 64), norm="nome"))
    with pytest.raises(ValueError, match=r"expected transformed pictures float \[N, 3, 64, 64\]"):
        next(tokens_by_state(backbone, noise(COUNT, 32), norm="none"))
    with pytest.raises(ValueError, match="batch_size must be 'auto' or at least 1, got 0"):
        next(tokens_by_state(backbone, noise(COUNT, 64), norm="none", batch_size=0))


@pytest.mark.parametrize("state", [1, 2])
def test_weights_that_are_not_finite_name_the_state_and_leave_no_hook(state):
    backbone, pictures = tiny("supervised"), noise(40, 64)
    backbone.model.blocks[state - 1].mlp.fc2.bias.data[3] = float("nan")
    message = rf"supervised: \w+ is not finite at state {state} for 40 of 40 images"
    with pytest.raises(NonFiniteActivations, match=message):
        next(tokens_by_state(backbone, pictures, norm="none"))
    with pytest.raises(NonFiniteActivations, match=message):
        scrambling(backbone, pictures, norm="none")
    assert hooks_of(backbone.model) == []


def test_no_hook_stays_when_the_stream_is_left_half_way():
    backbone = tiny("supervised")
    stream = tokens_by_state(backbone, noise(COUNT, 64), norm="none", budget=1)
    next(stream)
    assert hooks_of(backbone.model) == []
    stream.close()
    assert hooks_of(backbone.model) == []


# --- the reconstruction index -----------------------------------------------------------------------------


def numbers(found) -> dict[str, np.ndarray]:
    fields = {f.name: getattr(found, f.name) for f in dataclasses.fields(found)}
    return {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}


def assert_same(found, expected) -> None:
    assert found.states == expected.states
    assert found.images == expected.images
    for name, value in numbers(expected).items():
        np.testing.assert_array_equal(numbers(found)[name], value, err_msg=name)
    for name, interval in expected.intervals.items():
        np.testing.assert_array_equal(found.intervals[name], interval, err_msg=name)


OPTIONS = {"pca": 4, "maps": 2, "draws": 20}


@pytest.mark.parametrize("norm", ["none", "final"])
def test_scrambling_is_the_reconstruction_of_kept_tokens_from_unnormed_embeddings(norm):
    backbone, pictures = tiny("dinov2_registers"), noise(60, 42)
    tokens, plain = (kept_tokens(backbone, pictures, n) for n in (norm, "none"))
    expected = isi_reconstruction(tokens, plain[0], states=[-1, 0, 1, 2], seed=3, **OPTIONS)
    found = scrambling(backbone, pictures, norm=norm, seed=3, batch_size=60, **OPTIONS)
    assert_same(found, expected)


def test_targets_are_not_normed():
    """With normed targets the same call would give other numbers, so that the test above can tell."""
    backbone, pictures = tiny("supervised"), noise(60, 64)
    normed = kept_tokens(backbone, pictures, "final")
    other = isi_reconstruction(normed, normed[0], states=backbone.states, **OPTIONS)
    found = scrambling(backbone, pictures, norm="final", batch_size=60, **OPTIONS)
    assert np.abs(found.r2_self - other.r2_self).max() > 1e-3


def test_the_budget_changes_nothing_but_the_number_of_runs():
    backbone, pictures = tiny("supervised"), noise(60, 64)
    whole = scrambling(backbone, pictures, norm="final", **OPTIONS)
    passes = counted_passes(backbone)
    parts = scrambling(backbone, pictures, norm="final", budget=1, **OPTIONS)
    assert_same(parts, whole)
    assert passes == [60] * (1 + 4)  # the targets, then state by state


def test_ids_keep_pictures_together_as_they_do_in_the_metric():
    backbone, pictures = tiny("supervised"), noise(60, 64)
    ids = np.repeat(np.arange(20), 3)
    tokens = kept_tokens(backbone, pictures, "none")
    expected = isi_reconstruction(tokens, tokens[0], states=backbone.states, ids=ids, **OPTIONS)
    found = scrambling(backbone, pictures, norm="none", ids=ids, batch_size=60, **OPTIONS)
    assert_same(found, expected)
    alone = scrambling(backbone, pictures, norm="none", batch_size=60, **OPTIONS)
    assert np.abs(found.r2_self - alone.r2_self).max() > 1e-6
    with pytest.raises(ValueError, match=r"one id per image is needed: \(3,\) for 60 images"):
        scrambling(backbone, pictures, norm="none", ids=[1, 2, 3], **OPTIONS)


def test_an_embedded_model_on_embedded_pictures():
    images = data.load("emoji_identity", "test").select(range(0, 560, 40))
    backbone = backbones.load("twin_s", device="cpu")
    small = {"pca": 2, "maps": 1, "draws": 20}
    found = scrambling(backbone, images, norm="none", **small)
    tokens = kept_tokens(backbone, backbone.transform(images.pixels()), "none")
    assert_same(found, isi_reconstruction(tokens, tokens[0], states=backbone.states, **small))
    # the patch embedding itself is what is to be reconstructed, and state 0 only adds a constant to it
    np.testing.assert_allclose(found.r2_self[:2], found.r2_self[0], atol=0.01)
    assert found.r2_self[0] > 0.9
    assert found.r2_self[-1] < found.r2_self[0]
    assert found.isi[1] == pytest.approx(0, abs=1e-9)


def test_too_few_pictures_are_refused_with_the_number_needed():
    with pytest.raises(ValueError, match=r"ISI needs at least .* images .*; got 5"):
        scrambling(tiny("supervised"), noise(COUNT, 64), norm="none")


# --- the attention index ----------------------------------------------------------------------------------


def rotated(x: torch.Tensor, rope: torch.Tensor, half: bool) -> torch.Tensor:
    """Rotary embedding by its definition: pairs of features turned by an angle, x cos + x⊥ sin."""
    sin, cos = rope.chunk(2, -1)
    if half:
        first, second = x.chunk(2, -1)
        turned = torch.cat([-second, first], -1)
    else:
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * cos + turned * sin


def explicit_attention(attn, x: torch.Tensor, rope: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [N, T, D] and map [N, H, T, T] of an attention module, from its weights alone."""
    n, t, _ = x.shape
    bias = attn.qkv.bias
    if getattr(attn, "q_bias", None) is not None:
        bias = torch.cat([attn.q_bias, torch.zeros_like(attn.q_bias), attn.v_bias])
    q, k, v = F.linear(x, attn.qkv.weight, bias).view(n, t, 3, attn.num_heads, -1).permute(2, 0, 3, 1, 4)
    q, k = attn.q_norm(q), attn.k_norm(k)
    if rope is not None:
        first, half = attn.num_prefix_tokens, getattr(attn, "rotate_half", False)
        q, k = (torch.cat([z[:, :, :first], rotated(z[:, :, first:], rope, half)], dim=2) for z in (q, k))
    maps = F.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
    mixed = (maps @ v).transpose(1, 2).reshape(n, t, -1)
    return F.linear(attn.norm(mixed), attn.proj.weight, attn.proj.bias), maps


def slow_index(backbone, pictures: torch.Tensor) -> torch.Tensor:
    """[L, N] in float64, one block after the other: mean cosine of tokens over mean entropy of rows."""
    model = copy.deepcopy(backbone.model).double()
    rows = []
    with torch.inference_mode():
        x = model._pos_embed(model.patch_embed(pictures.double()))
        x, rope = x if isinstance(x, tuple) else (x, None)
        x = model.norm_pre(x) if hasattr(model, "norm_pre") else x
        for number, block in enumerate(model.blocks):
            own = rope[number] if rope is not None and rope.ndim > 3 else rope  # mixed: one for each block
            output, maps = explicit_attention(block.attn, block.norm1(x), own)
            gamma = block.ls1.gamma if hasattr(getattr(block, "ls1", None), "gamma") else None
            gamma = getattr(block, "gamma_1", None) if gamma is None else gamma
            after = x + (output if gamma is None else gamma * output)
            values = []
            for a, b, m in zip(x, after, maps, strict=True):
                cosines = [float(u @ v / (u.norm() * v.norm())) for u, v in zip(a, b, strict=True)]
                entropy = -(m * m.clamp_min(1e-300).log()).sum(-1)
                values.append(np.mean(cosines) / float(entropy.mean()))
            rows.append(torch.tensor(values, dtype=torch.float64))
            x = block(x) if rope is None else block(x, rope=own)
    return torch.stack(rows)


@pytest.mark.parametrize("family", WITH_ATTENTION)
def test_attention_index_equals_an_explicit_forward_in_float64(family):
    backbone = tiny(family)
    pictures = noise(COUNT, backbone.transform.height)
    expected = slow_index(backbone, pictures)
    found = attention_index(backbone, pictures)
    assert found.shape == (2, COUNT)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    # blocks and pictures differ, so that a mix-up of axes would show
    assert float(expected.std(1).min()) > 1e-3
    assert float((expected[0] - expected[1]).abs().min()) > 1e-3


def test_attention_index_of_an_embedded_model():
    images = data.load("emoji_identity", "test").select(range(3))
    backbone = backbones.load("twin_s", device="cpu")
    expected = slow_index(backbone, backbone.transform(images.pixels()))
    torch.testing.assert_close(attention_index(backbone, images).double(), expected, rtol=1e-3, atol=1e-4)


def test_layer_scale_is_part_of_what_attention_adds():
    backbone, pictures = tiny("layer_scale"), noise(COUNT, 48)
    before = attention_index(backbone, pictures)
    with torch.no_grad():
        backbone.model.blocks[0].ls1.gamma.zero_()
    entropy = capture(backbone, pictures, norm="none", attention=True).attention["entropy"][0].mean(1)
    after = attention_index(backbone, pictures)
    torch.testing.assert_close(after[0], 1 / entropy, rtol=1e-5, atol=1e-6)  # nothing added: cosine 1
    assert float((before[0] - after[0]).abs().min()) > 1e-3


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_batches_do_not_matter_for_the_attention_index(batch_size):
    backbone, pictures = tiny("dinov3_rope"), noise(COUNT, 48)
    whole = attention_index(backbone, pictures, batch_size=COUNT)
    found = attention_index(backbone, pictures, batch_size=batch_size)
    torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-6)


def test_pictures_go_through_the_models_own_transform():
    backbone, images = tiny("supervised"), toy_images(COUNT)
    tensor = backbone.transform(images.pixels())
    assert torch.equal(attention_index(backbone, images), attention_index(backbone, tensor))


def test_tokens_of_earlier_blocks_are_not_kept():
    """When a block has given its value, hardly any input of an earlier block is still alive."""
    backbone, pictures, seen, alive = tiny("supervised", depth=8), noise(6, 64), [], []

    def census(block, args):
        alive.append(sum(not ref.expired() for ref in seen))
        seen.append(StorageWeakRef(args[0].untyped_storage()))

    handles = [block.register_forward_pre_hook(census) for block in backbone.model.blocks]
    attention_index(backbone, pictures, batch_size=3)
    for handle in handles:
        handle.remove()
    assert len(alive) == 2 * 8
    assert max(alive) <= 2


def test_the_attention_index_leaves_the_model_as_it_was():
    backbone, pictures = tiny("eva02"), noise(COUNT, 42)
    output, flags = backbone.model(pictures), [b.attn.fused_attn for b in backbone.model.blocks]
    attention_index(backbone, pictures)
    assert hooks_of(backbone.model) == []
    assert [b.attn.fused_attn for b in backbone.model.blocks] == flags
    assert torch.equal(backbone.model(pictures), output)
    assert not torch.is_inference_mode_enabled()


def explode(*args, **kwargs):
    raise KeyError("from the middle of the pass")


@pytest.mark.parametrize("where", ["block", "attention", "index", "half-way through the hooks"])
def test_no_hook_stays_after_an_exception(where, monkeypatch):
    backbone, pictures = tiny("supervised"), noise(COUNT, 64)
    if where == "block":
        monkeypatch.setattr(backbone.model.blocks[1].mlp, "forward", explode)
    elif where == "attention":
        monkeypatch.setattr(attention_maps, "statistics", explode)
    elif where == "index":
        monkeypatch.setattr(information, "isi_attention", explode)
    else:
        monkeypatch.setattr(backbone.model.blocks[1].drop_path1, "register_forward_hook", explode)
    with pytest.raises(KeyError, match="from the middle"):
        attention_index(backbone, pictures)
    assert hooks_of(backbone.model) == []


def test_attention_that_is_not_read_is_refused_by_name_before_any_hook():
    backbone = tiny("supervised")

    class Mine(type(backbone.model.blocks[1].attn)):
        pass

    backbone.model.blocks[1].attn.__class__ = Mine
    with pytest.raises(UnknownAttention, match=r"supervised, block 2 \(Block\): .*Mine"):
        attention_index(backbone, noise(COUNT, 64))
    assert hooks_of(backbone.model) == []


def test_a_model_in_training_mode_is_refused():
    """Drop path would make the index differ from call to call."""
    backbone = tiny("supervised")
    backbone.model.blocks[0].train()
    with pytest.raises(ValueError, match=r"supervised is in training mode; call model.eval\(\) first"):
        attention_index(backbone, noise(COUNT, 64))


def test_values_that_are_not_finite_name_the_block():
    backbone = tiny("supervised", depth=3)
    backbone.model.blocks[1].attn.proj.bias.data[3] = float("nan")
    message = r"supervised: the attention index is not finite at state 2 for 5 of 5 images"
    with pytest.raises(NonFiniteActivations, match=message):
        attention_index(backbone, noise(COUNT, 64))
    assert hooks_of(backbone.model) == []
