"""Capture within bounds: memory, no trace on the model, and refusals that name what is wrong."""

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from helpers import FAMILIES, noise, tiny, toy_images
from vitscope import reductions
from vitscope.capture import NonFiniteActivations, capture
from vitscope.data.images import Images
from vitscope.errors import UnknownName


def settings_of(model: torch.nn.Module) -> dict:
    """Everything capture could leave behind: hooks, fused flags, modes, gradients, values."""
    return {
        "hooks": [
            (name, len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
            for name, m in model.named_modules()
        ],
        "flags": [
            (n, m.fused_attn, m.training) for n, m in model.named_modules() if hasattr(m, "fused_attn")
        ],
        "values": [
            (n, v.requires_grad, float(v.detach().double().sum())) for n, v in model.named_parameters()
        ],
        "grad": torch.is_grad_enabled(),
    }


# --- memory -----------------------------------------------------------------------------------------------


def test_memory_does_not_grow_with_images_or_depth():
    """When a state is reduced, hardly any storage of an earlier state or batch is still alive."""
    backbone, seen, alive = tiny("supervised", depth=6), [], []

    def census(tokens):
        alive.append(sum(not ref.expired() for ref in seen))
        seen.append(StorageWeakRef(tokens.patches.untyped_storage()))
        return {"census": tokens.patches.mean((1, 2))}

    capture(backbone, noise(12, 64), norm="none", reductions={"census": census}, batch_size=3)
    assert len(alive) == 4 * 8  # batches × states
    assert max(alive) <= 2


def hungry(limit: int):
    def reduction(tokens):
        if len(tokens.patches) > limit:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"
            )
        return reductions.patch_mean(tokens)

    return {"patch_mean": reduction}


def test_automatic_batch_size_halves_when_memory_runs_out():
    backbone, images = tiny("supervised"), noise(70, 64)
    result = capture(backbone, images, norm="none", reductions=hungry(20))
    assert result.batch_size == 16
    expected = capture(backbone, images, norm="none", reductions=["patch_mean"], batch_size=70)
    torch.testing.assert_close(result.patch_mean, expected.patch_mean, rtol=1e-5, atol=1e-6)


def test_a_batch_size_that_was_asked_for_is_not_changed():
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        capture(tiny("supervised"), noise(8, 64), norm="none", reductions=hungry(2), batch_size=8)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        capture(tiny("supervised"), noise(8, 64), norm="none", reductions=hungry(0))


# --- no trace ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_is_left_as_it_was(family):
    backbone = tiny(family)
    images = noise(2, backbone.transform.height)
    before, output = settings_of(backbone.model), backbone.model(images)
    capture(backbone, images, norm="final", attention=True, keep_tokens=2)
    assert settings_of(backbone.model) == before
    assert torch.equal(backbone.model(images), output)


def test_the_callers_random_stream_is_not_touched():
    backbone, images = tiny("supervised"), noise(2, 64)
    before = torch.random.get_rng_state()
    capture(backbone, images, norm="none", attention=True)
    assert torch.equal(torch.random.get_rng_state(), before)


def explode(tokens):
    raise KeyError("from the middle of the pass")


@pytest.mark.parametrize("where", ["reduction", "block", "source", "attention"])
def test_the_model_is_left_as_it_was_after_an_exception(where, monkeypatch):
    backbone, images = tiny("dinov3_rope"), noise(2, 48)
    before = settings_of(backbone.model)
    options: dict = {"norm": "none", "attention": True}
    if where == "reduction":
        options["reductions"] = {"explode": explode}
    elif where == "block":
        monkeypatch.setattr(backbone.model.blocks[1].mlp, "forward", explode)
    elif where == "attention":
        monkeypatch.setattr("vitscope.attention_maps.statistics", lambda q, k, *rest: explode(q))
    else:
        broken = toy_images(2).read
        images = Images(
            name="broken", split="test", labels=np.zeros(2, dtype=np.int64), ids=np.array(["a", "b"]),
            classes=("x",),
            digest="d", source={}, read=lambda indices: explode(broken),
        )  # fmt: skip
    with pytest.raises(KeyError, match="from the middle"):
        capture(backbone, images, **options)
    assert settings_of(backbone.model) == before


def test_hooks_of_others_stay():
    backbone, images, calls = tiny("supervised"), noise(1, 64), []
    handle = backbone.model.blocks[0].register_forward_hook(lambda *a: calls.append(1))
    capture(backbone, images, norm="none")
    backbone.model(images)
    assert len(calls) == 2
    handle.remove()


# --- refusals ---------------------------------------------------------------------------------------------


def test_training_mode_is_refused():
    backbone = tiny("supervised")
    backbone.model.train()
    with pytest.raises(ValueError, match=r"supervised is in training mode; call model.eval\(\) first"):
        capture(backbone, noise(1, 64), norm="none")


def test_one_module_in_training_mode_is_refused_too():
    """Dropout deep inside would make features differ from call to call."""
    backbone = tiny("supervised")
    backbone.model.blocks[1].train()
    with pytest.raises(ValueError, match="training mode"):
        capture(backbone, noise(1, 64), norm="none")


@pytest.mark.parametrize("state", [-1, 0, 1, 2])
def test_activations_that_are_not_finite_name_the_state(state):
    backbone, images = tiny("supervised"), noise(4, 64)
    model = backbone.model
    module = {-1: model.patch_embed, 0: model.norm_pre}.get(state) or model.blocks[state - 1]

    def poison(module, args, output):
        output = output.clone()
        output[1:3, 2] = float("nan") if state % 2 else float("inf")
        return output

    handle = module.register_forward_hook(poison)
    with pytest.raises(
        NonFiniteActivations, match=rf"supervised: \w+ is not finite at state {state} for 2 of 4 images"
    ):
        capture(backbone, images, norm="none")
    handle.remove()


def test_kept_tokens_alone_are_checked_too():
    backbone = tiny("supervised")
    backbone.model.blocks[1].mlp.fc2.bias.data[3] = float("nan")
    with pytest.raises(NonFiniteActivations, match="state 2"):
        capture(backbone, noise(2, 64), norm="none", reductions={}, keep_tokens=2)


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"norm": "nome"}, UnknownName, "Unknown norm 'nome'. Did you mean 'none'"),
        ({"norm": "none", "reductions": ["simularity"]}, UnknownName, "Did you mean 'similarity'"),
        ({"norm": "none", "batch_size": 0}, ValueError, "at least 1, got 0"),
        ({"norm": "none", "keep_tokens": 9}, ValueError, "keep_tokens=9, but there are 2 images"),
        ({"norm": "none", "keep_tokens": -1}, ValueError, "keep_tokens=-1"),
        ({}, TypeError, "norm"),
    ],
)
def test_options_that_cannot_be_are_refused(options, error, reason):
    with pytest.raises(error, match=reason):
        capture(tiny("supervised"), noise(2, 64), **options)


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        (
            torch.zeros(2, 3, 32, 32),
            r"expected transformed pictures float \[N, 3, 64, 64\] .* \[2, 3, 32, 32\]",
        ),
        (torch.zeros(2, 3, 64, 64, dtype=torch.uint8), "use backbone.transform first"),
        (torch.zeros(0, 3, 64, 64), "no pictures"),
        ((torch.zeros(2, 3, 64, 64), np.array([1])), "1 labels for 2 pictures"),
    ],
    ids=["size", "uint8", "none", "labels"],
)
def test_inputs_that_cannot_be_are_refused(images, reason):
    with pytest.raises(ValueError, match=reason):
        capture(tiny("supervised"), images, norm="none")
