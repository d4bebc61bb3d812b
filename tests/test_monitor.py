"""The monitor tells what a direct measurement tells, and training does not notice it."""

import copy
from contextlib import nullcontext

import pytest
import torch
from timm.models import VisionTransformer
from torch.nn import functional as F

from helpers import enliven, noise
from vitscope import monitor as monitor_module
from vitscope.backbones import UnsupportedModel, describe
from vitscope.capture import NonFiniteActivations, capture
from vitscope.metrics.scrambling import isi_reconstruction
from vitscope.monitor import ScramblingMonitor
from vitscope.transforms import Transform

HALF = (0.5, 0.5, 0.5)


def vit(**changes) -> VisionTransformer:
    torch.manual_seed(0)
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
    return VisionTransformer(**{**options, **changes})


def state_of(model: torch.nn.Module) -> list:
    """All that a measurement could leave behind: hooks, modes, gradients, values, random state."""
    modules = [
        (name, m.training, len(m._forward_hooks), len(m._forward_pre_hooks))
        for name, m in model.named_modules()
    ]
    parameters = [
        (name, p.requires_grad, p.detach().tolist(), None if p.grad is None else p.grad.tolist())
        for name, p in model.named_parameters()
    ]
    return [modules, parameters, torch.is_grad_enabled(), torch.get_rng_state().tolist()]


def trained(monitor: ScramblingMonitor | None, *, half: bool) -> tuple[dict, list[dict]]:
    """Weights after three steps with every kind of dropout; the monitor is called in the step's context."""
    model = vit(
        drop_rate=0.1, attn_drop_rate=0.1, proj_drop_rate=0.1, drop_path_rate=0.2, patch_drop_rate=0.2
    )
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y, found = noise(8, 32), torch.arange(8) % 5, []
    for step in range(3):
        with torch.autocast("cpu", torch.bfloat16) if half else nullcontext():
            if monitor:
                found.append(monitor(model, step))
            loss = F.cross_entropy(model(x), y)
            if monitor:
                found.append(monitor(model, step))
            sgd.zero_grad()
            loss.backward()
        sgd.step()
    return model.state_dict(), found


@pytest.mark.parametrize("half", [False, True])
def test_training_gives_the_same_weights_with_and_without(half):
    monitor = ScramblingMonitor(noise(40, 32), maps=1)
    with_it, found = trained(monitor, half=half)
    without, _ = trained(None, half=half)
    for name, weight in without.items():
        assert torch.equal(weight, with_it[name]), name
    assert not torch.equal(
        without["blocks.0.attn.qkv.weight"], vit().state_dict()["blocks.0.attn.qkv.weight"]
    )
    assert found[0] == found[1] != found[2]  # before and after a forward pass; after a step


def test_autocast_does_not_change_the_values():
    model, monitor = vit(), ScramblingMonitor(noise(40, 32), maps=1)
    plain = monitor(model, 0)
    with torch.autocast("cpu", torch.bfloat16):
        assert monitor(model, 1) == plain


@pytest.mark.parametrize("options", [{}, {"class_token": False, "global_pool": "avg"}, {"reg_tokens": 3}])
def test_values_are_those_of_a_direct_measurement(options):
    model = enliven(vit(drop_rate=0.3, **options)).train()
    images = noise(60, 32, seed=3)
    values = ScramblingMonitor(images, pca=8, maps=2, seed=4)(model, 0)

    backbone = describe("copy", copy.deepcopy(model), Transform(32, 32, HALF, HALF))
    tokens = capture(backbone, images, norm="none", keep_tokens=60).tokens[:, :, backbone.num_prefix_tokens :]
    found = isi_reconstruction(tokens, tokens[0], states=backbone.states, pca=8, maps=2, seed=4)
    expected = {
        "isi/state_01": found.isi[2],
        "isi/state_02": found.isi[3],
        "isi/last": found.isi[3],
        "isi/mean": found.isi[2:].mean(),
        "r2_self/last": found.r2_self[3],
        "r2_all/last": found.r2_all[3],
    }
    assert values == pytest.approx(expected, abs=1e-6)
    assert list(values) == list(expected)
    assert all(type(value) is float for value in values.values())


def test_cadence_and_history():
    model, monitor = vit(depth=3), ScramblingMonitor(noise(40, 32), every=5, states=[3, 0, 2], maps=1)
    assert list(monitor.history) == ["step", "state", "isi", "r2_self", "r2_all"]
    assert len(monitor.history) == 0
    calls = {step: monitor(model, step) for step in range(11)}
    assert [step for step, values in calls.items() if values] == [0, 5, 10]
    assert list(calls[5])[:3] == ["isi/state_00", "isi/state_02", "isi/state_03"]
    history = monitor.history
    assert history.step.tolist() == [0] * 3 + [5] * 3 + [10] * 3
    assert history.state.tolist() == [0, 2, 3] * 3
    last = history[(history.step == 10) & (history.state == 3)].iloc[0]
    assert (last.isi, last.r2_self, last.r2_all) == (
        calls[10]["isi/last"],
        calls[10]["r2_self/last"],
        calls[10]["r2_all/last"],
    )
    assert calls[0]["isi/state_00"] == pytest.approx(0)


def partly_frozen() -> VisionTransformer:
    """A model whose parts differ in mode and need of gradients, with gradients of a step on it."""
    model = vit(drop_rate=0.1)
    model(noise(4, 32)).sum().backward()
    model.blocks[0].eval()
    model.patch_embed.requires_grad_(False)
    return model


def test_the_model_is_left_as_it_was():
    model = partly_frozen()
    before = state_of(model)
    ScramblingMonitor(noise(40, 32), maps=1)(model, 0)
    assert state_of(model) == before


@pytest.mark.parametrize("at", ["capture", "isi_reconstruction"])
def test_the_model_is_left_as_it_was_after_an_exception(at, monkeypatch):
    def fail(*args, **kwargs):
        torch.rand(3)
        raise KeyboardInterrupt

    monkeypatch.setattr(monitor_module, at, fail)
    model, monitor = partly_frozen(), ScramblingMonitor(noise(40, 32), maps=1)
    before = state_of(model)
    with pytest.raises(KeyboardInterrupt):
        monitor(model, 0)
    assert state_of(model) == before
    assert len(monitor.history) == 0


def test_divergence_names_the_state_and_leaves_the_model_as_it_was():
    model, monitor = vit(depth=3), ScramblingMonitor(noise(40, 32), maps=1)
    with torch.no_grad():
        model.blocks[1].mlp.fc2.bias[0] = torch.nan
    before = [(m, m.training) for m in model.modules()]
    with pytest.raises(NonFiniteActivations, match=r"VisionTransformer in .* at state 2 for 40 of 40"):
        monitor(model, 0)
    assert before == [(m, m.training) for m in model.modules()]
    assert all(p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())


def test_a_transform_is_applied_once():
    pixels = torch.randint(256, (40, 3, 32, 32), dtype=torch.uint8)
    transform = Transform(32, 32, HALF, HALF)
    model = vit()
    found = ScramblingMonitor(pixels, transform=transform, maps=1)(model, 0)
    assert found == ScramblingMonitor(transform(pixels), maps=1)(model, 0)


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"float \[N, 3, H, W\], got torch.uint8 .*; pass a transform"):
        ScramblingMonitor(torch.zeros(4, 3, 32, 32, dtype=torch.uint8))
    with pytest.raises(ValueError, match="every must be at least 1 step, got 0"):
        ScramblingMonitor(noise(4, 32), every=0)
    with pytest.raises(ValueError, match=r"states must be different and at least one, got \[1, 1\]"):
        ScramblingMonitor(noise(4, 32), states=[1, 1])
    with pytest.raises(ValueError, match=r"has states -1 to 2, no \[7\]; change the monitor's states"):
        ScramblingMonitor(noise(40, 32), states=[1, 7])(vit(), 0)
    with pytest.raises(ValueError, match=r"ISI needs at least 20 images .* got 12"):
        ScramblingMonitor(noise(12, 32))(vit(), 0)
    with pytest.raises(UnsupportedModel, match="no plain ViT: it has no patch_embed"):
        ScramblingMonitor(noise(40, 32))(torch.nn.Linear(2, 2), 0)
