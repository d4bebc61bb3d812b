import re
import types

import pytest
import torch
from timm.layers.attention import Attention, AttentionRope
from timm.models.eva import EvaAttention
from torch import nn

from helpers import FAMILIES, MORE_FAMILIES, enliven, noise, tiny
from vitscope.attention import swap_attention
from vitscope.projections import (
    KNOWN,
    UnknownAttention,
    original_class,
    project,
    queries_and_keys,
    require_known,
    values,
)


def calls(model, images):
    """(module, input, keyword arguments, output) of every attention module in one forward pass."""
    seen = []
    handles = [
        block.attn.register_forward_hook(
            lambda module, args, kwargs, output: seen.append((module, args[0], kwargs, output)),
            with_kwargs=True,
        )
        for block in model.blocks
    ]
    with torch.inference_mode():
        model.forward_features(images)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("family", [*FAMILIES, *MORE_FAMILIES])
def test_attention_put_together_from_the_projections_is_timms_own(family):
    backbone = tiny(family)
    seen = calls(backbone.model, noise(2, backbone.transform.height))
    assert len(seen) == backbone.depth
    for module, x, kwargs, output in seen:
        q, k = queries_and_keys(module, x, kwargs.get("rope"))
        v = values(module, x)
        assert q.shape == k.shape == v.shape == (2, module.num_heads, x.shape[1], module.head_dim)
        mixed = ((q @ k.mT).double().softmax(-1).float() @ v).transpose(1, 2).flatten(2)
        torch.testing.assert_close(module.proj(module.norm(mixed)), output, rtol=1e-4, atol=1e-5)


def test_the_projection_is_not_computed_again_where_it_is_given():
    module = enliven(Attention(32, num_heads=2, qkv_bias=True)).eval()
    x = torch.randn(2, 7, 32)
    given, other = project(module, x), project(module, x + 1)
    module.qkv.register_forward_hook(lambda *_: pytest.fail("projected again"))
    with torch.inference_mode():
        q, _ = queries_and_keys(module, x, None, given)
        moved, _ = queries_and_keys(module, x, None, other)
        v = values(module, x, given)
    assert not torch.allclose(q, moved)
    n, t, heads, d = 2, 7, 2, 16
    expected = given.view(n, t, 3, heads, d)
    torch.testing.assert_close(q, expected[:, :, 0].transpose(1, 2) / 4)
    torch.testing.assert_close(v, expected[:, :, 2].transpose(1, 2))


@pytest.mark.parametrize("separate", [False, True])
def test_biases_that_eva_keeps_outside_the_layer_are_added(separate):
    module = enliven(EvaAttention(32, num_heads=2, qkv_bias_separate=separate, scale_norm=False))
    x = torch.randn(2, 7, 32)
    bias = torch.cat([module.q_bias, torch.zeros(32), module.v_bias])
    torch.testing.assert_close(project(module, x), module.qkv(x) + bias, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(project(module, x), module.qkv(x))


def test_shared_keys_and_values_are_repeated_for_each_of_their_heads():
    module = enliven(AttentionRope(32, num_heads=4, num_kv_heads=2, qkv_fused=False))
    x = torch.randn(2, 7, 32)
    _, k = queries_and_keys(module, x, None)
    v = values(module, x)
    for found, layer in ((k, module.k_proj), (v, module.v_proj)):
        own = layer(x).view(2, 7, 2, 8)
        for head, source in enumerate([0, 0, 1, 1]):
            torch.testing.assert_close(found[:, head], own[:, :, source])


# --- what is not known ------------------------------------------------------------------------------------


class Mine(Attention):
    pass


def blocks_of(*kinds):
    return [types.SimpleNamespace(attn=kind) for kind in kinds]


def test_known_classes_pass_and_subclasses_do_not():
    attention = Attention(8, num_heads=2)
    require_known("model", blocks_of(attention, AttentionRope(8, num_heads=2)))
    assert set(KNOWN) == {Attention, AttentionRope, EvaAttention}
    message = re.escape(
        f"model, block 2 (SimpleNamespace): attention class {Mine.__module__}.Mine has no known softmax "
        "form; known: Attention, AttentionRope, EvaAttention. Try another"
    )
    with pytest.raises(UnknownAttention, match=message):
        require_known("model", blocks_of(attention, Mine(8, num_heads=2)), ". Try another")


def test_the_number_in_the_message_counts_from_the_given_first():
    with pytest.raises(UnknownAttention, match=r"model, block 7 "):
        require_known("model", blocks_of(Mine(8, num_heads=2)), first=7)


def test_a_block_without_attention_is_named():
    with pytest.raises(UnknownAttention, match=r"block 1 \(Linear\): attention class builtins\.NoneType"):
        require_known("model", [nn.Linear(2, 2)])


def test_a_swapped_module_stands_for_its_original_class():
    model = tiny("eva02").model
    with swap_attention(model, "entmax15"):
        assert type(model.blocks[0].attn) is not EvaAttention
        assert original_class(model.blocks[0].attn) is EvaAttention
        require_known("model", model.blocks)
    assert original_class(model.blocks[0].attn) is type(model.blocks[0].attn) is EvaAttention
