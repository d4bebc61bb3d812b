"""Costs by layer: formulas by hand, other families, and times that only have to be times."""

import numpy as np
import pytest
import timm
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from helpers import FAMILIES, tiny, tiny_zoo_model
from vitscope import backbones
from vitscope.cost import layer_costs, layer_milliseconds
from vitscope.transforms import Transform


def by_hand(width, depth, patches, tokens, patch=8):
    """Operations [L + 1] and parameters [L + 1] of a plain ViT with MLP ratio 4, state 0 first."""
    hidden = 4 * width
    qkv = 2 * tokens * width * 3 * width
    scores = values = 2 * tokens * tokens * width
    projection = 2 * tokens * width * width
    mlp = 2 * 2 * tokens * width * hidden
    embedding = 2 * patches * (3 * patch**2) * width
    weights, biases = 4 * width**2 + 2 * width * hidden, 4 * width + hidden + width
    block_params = weights + biases + 2 * 2 * width  # and two LayerNorms
    embedding_params = 3 * patch**2 * width + width + width + tokens * width  # CLS and positions
    operations = [embedding, *[qkv + scores + values + projection + mlp] * depth]
    return np.array(operations), [embedding_params, *[block_params] * depth]


@pytest.mark.parametrize(("name", "width", "depth"), [("twin_s", 96, 12), ("twin_b", 128, 12)])
def test_a_twin_costs_what_the_formula_says(name, width, depth):
    costs = layer_costs(backbones.load(name, device="cpu"))
    operations, params = by_hand(width, depth, patches=64, tokens=65)
    assert costs["state"].tolist() == list(range(depth + 1))
    np.testing.assert_array_equal((costs["gflops"] * 1e9).round(), operations)
    np.testing.assert_allclose(costs["gflops_total"], np.cumsum(operations) / 1e9, rtol=1e-12)
    np.testing.assert_allclose(costs["share"], operations / operations.sum(), rtol=1e-12)
    assert costs["share"].sum() == pytest.approx(1)
    assert costs["params"].tolist() == params
    assert costs["params_total"].tolist() == np.cumsum(params).tolist()


def test_vit_small_costs_what_is_published():
    with torch.device("meta"):
        model = timm.create_model("vit_small_patch16_224", num_classes=0)
    backbone = backbones.describe(
        "s", model.to_empty(device="cpu"), Transform(224, 224, (0.5,) * 3, (0.5,) * 3), device="cpu"
    )
    costs = layer_costs(backbone)
    operations, _ = by_hand(384, 12, patches=196, tokens=197, patch=16)
    np.testing.assert_array_equal((costs["gflops"] * 1e9).round(), operations)
    assert costs["gflops_total"].iloc[-1] / 2 == pytest.approx(4.6, abs=0.05)  # G multiply–adds, as of timm


@pytest.mark.parametrize("family", FAMILIES)
def test_states_add_up_to_the_whole_model(family):
    backbone = tiny(family, depth=3)
    costs = layer_costs(backbone)
    counter = FlopCounterMode(display=False)
    t = backbone.transform
    with counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        backbone.model.forward_features(torch.zeros(1, 3, t.height, t.width))
    assert costs["gflops_total"].iloc[-1] * 1e9 == pytest.approx(counter.get_total_flops())
    after = [backbone.model.norm, getattr(backbone.model, "fc_norm", None),
             getattr(backbone.model, "attn_pool", None), getattr(backbone.model, "head", None)]  # fmt: skip
    rest = sum(p.numel() for module in after if module is not None for p in module.parameters())
    total = sum(p.numel() for p in backbone.model.parameters())
    assert costs["params_total"].iloc[-1] == total - rest
    assert costs["gflops"].iloc[1:].nunique() == 1
    assert (costs["gflops"] > 0).all()


def test_weights_and_the_fused_kernel_do_not_matter():
    reference = layer_costs(tiny("supervised"))
    assert layer_costs(tiny("supervised", seed=7)).equals(reference)
    plain = tiny("supervised")
    for block in plain.model.blocks:
        block.attn.fused_attn = False
    assert layer_costs(plain).equals(reference)


def test_a_larger_picture_costs_more_and_its_scores_grow_faster():
    small, large = layer_costs(tiny("supervised", size=64)), layer_costs(tiny("supervised", size=128))
    assert large["gflops"][0] == pytest.approx(4 * small["gflops"][0])
    assert 4 * small["gflops"][1] * 0.9 < large["gflops"][1]
    assert large["params"][1] == small["params"][1]


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_times_are_positive_and_leave_no_hook():
    backbone = tiny("supervised", depth=3)
    times = layer_milliseconds(backbone, batch=2, rounds=3)
    assert times["state"].tolist() == [0, 1, 2, 3]
    assert (times["milliseconds"] > 0).all()
    np.testing.assert_allclose(times["milliseconds_total"], times["milliseconds"].cumsum())
    assert hooks(backbone.model) == 0


def test_times_follow_the_work(monkeypatch):
    """With a clock that counts operations, milliseconds are the costs."""
    model, architecture = tiny_zoo_model()
    size = architecture.img_size
    backbone = backbones.describe("t", model, Transform(size, size, (0.5,) * 3, (0.5,) * 3), device="cpu")
    counter = FlopCounterMode(display=False)
    monkeypatch.setattr("vitscope.cost.time.perf_counter", lambda: counter.get_total_flops() / 1e3)
    with counter, sdpa_kernel(SDPBackend.MATH):
        times = layer_milliseconds(backbone, batch=4, rounds=2)
    np.testing.assert_allclose(times["milliseconds"], layer_costs(backbone)["gflops"] * 1e9, rtol=1e-9)


def test_hooks_go_also_when_the_model_fails(monkeypatch):
    backbone = tiny("supervised")
    monkeypatch.setattr(backbone.model.blocks[1].mlp, "forward", lambda x: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        layer_costs(backbone)
    assert hooks(backbone.model) == 0


@pytest.mark.parametrize("bad", [{"batch": 0}, {"rounds": 0}])
def test_no_batch_and_no_round_are_refused(bad):
    with pytest.raises(ValueError, match="must be at least 1, got batch="):
        layer_milliseconds(tiny("supervised"), **bad)
