"""Published weights: the hub, which may be out of reach, and the zoo that the repository carries."""

import dataclasses
import json
import time

import pytest
import timm
import torch

from helpers import counted_connections
from vitscope import backbones, data
from vitscope.data import embedded
from vitscope.data.hub import NotReachable
from vitscope.data.tasks import load_identity
from vitscope.errors import UnknownName
from vitscope.pretrain.names import own_classifier
from vitscope.pretrain.recipes import published_name, recipe_of
from vitscope.pretrain.zoo import Architecture

ZOO = backbones.zoo_names()


@pytest.fixture
def offline(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))


# --- hub --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("vit_small_patch14_dinov2.lvd142m", ["timm/vit_small_patch14_dinov2.lvd142m"]),
        ("vit_small_patch16_dinov3.lvd1689m", ["timm/vit_small_patch16_dinov3", "dinov3-license"]),
        ("vit_tiny_patch16_224", ["timm/vit_tiny_patch16_224"]),
    ],
)
def test_hub_weights_offline_fail_within_seconds_without_a_connection(offline, name, parts):
    started = time.monotonic()
    with counted_connections() as attempts, pytest.raises(NotReachable) as caught:
        backbones.load(name)
    assert time.monotonic() - started < 5
    assert attempts == []
    for part in (
        *parts,
        name,
        "not in the local cache",
        "offline mode is on",
        "local file",
        "weights='random'",
    ):
        assert part in str(caught.value)


def test_hub_that_does_not_answer(offline, monkeypatch):
    for switch in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(switch)
    started = time.monotonic()
    with counted_connections(), pytest.raises(NotReachable, match="the hub does not answer"):
        backbones.load("vit_tiny_patch16_224")
    assert time.monotonic() - started < 10


def test_architecture_without_published_weights(offline):
    names = [n for n in backbones.available() if n not in ZOO]
    name = next(n for n in names if not getattr(timm.get_pretrained_cfg(n), "hf_hub_id", None))
    with pytest.raises(NotReachable, match=r"lists no weights .* weights='random' or a local file"):
        backbones.load(name)


def test_size_is_checked_before_anything_is_fetched(offline):
    with counted_connections(), pytest.raises(ValueError, match="nearest valid: 28 or 42"):
        backbones.load("vit_small_patch14_dinov2.lvd142m", img_size=30)


# --- the embedded zoo -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ZOO)
def test_zoo_models_load_and_match_their_cards(name):
    backbone = backbones.load(name, device="cpu")
    card = backbones.card(name)
    recipe = recipe_of(name)
    architecture = recipe.architecture
    assert (backbone.width, backbone.depth) == (architecture.width, architecture.depth)
    assert backbone.has_cls
    assert backbone.num_registers == architecture.reg_tokens
    assert backbone.grid == (8, 8)
    assert card["sha256"] == embedded.digest(f"zoo/{name}.safetensors")
    assert Architecture(**card["recipe"]["architecture"]) == architecture
    described = json.loads(json.dumps(recipe.describe() | {"architecture": None}))
    default = {f.name: f.default for f in dataclasses.fields(recipe)}
    for key in described:  # a field that is younger than the card has the value that was fixed before
        known = card["recipe"]
        given = known[key] if key in known else json.loads(json.dumps(default[key]))
        assert key == "architecture" or given == described[key], key
    trained = name.partition("-")[0]
    assert card["command"].startswith(f"vitscope train {trained} --seed {card['seed']} ")
    assert name == card["name"] == published_name(trained, card["seed"])
    assert card["parameters"] == sum(p.numel() for p in backbone.model.parameters())
    assert embedded.verified(f"zoo/{name}.safetensors").stat().st_size < 16 * 2**20


@pytest.mark.parametrize("name", ZOO)
def test_zoo_models_do_what_their_cards_say(name):
    """On 400 renders of the public task, through the public door; the bound is four standard errors."""
    backbone, accuracy = backbones.load(name, device="cpu"), backbones.card(name)["accuracy"]["noto"]
    scale = recipe_of(name).scale  # the size of emoji it was taught on
    images = load_identity("test", scale=scale).limited(400, seed=0)
    with torch.inference_mode():
        answers = own_classifier(backbone)(backbone.transform(images.pixels())).argmax(1)
    found = 100 * float((answers.numpy() == images.labels).mean())
    bound = 4 * 50 / 400**0.5
    assert found > accuracy["top1"] - bound
    assert found < accuracy["top1"] + bound
    misled = getattr(recipe_of(name), "views", None) == "crops"  # published for what it does not learn
    assert (accuracy["top1"] > 20 * accuracy["chance_top1"]) != misled


@pytest.mark.parametrize("name", ZOO)
def test_zoo_sees_pictures_as_it_was_trained(name):
    from vitscope.pretrain.supervised import normalise

    pixels = data.load("emoji_group", "test").pixels([0, 1])
    torch.testing.assert_close(
        backbones.load(name, device="cpu").transform(pixels), normalise(pixels), atol=1e-6, rtol=0
    )


def test_card_of_an_unknown_model():
    with pytest.raises(UnknownName, match="zoo model 'twin_x'"):
        backbones.card("twin_x")


# --- snapshots along training -----------------------------------------------------------------------------


def test_snapshots_run_from_nothing_learned_to_the_last_quarter():
    taken = backbones.snapshots("twin_s")
    assert taken == sorted(taken)
    assert taken[0] == 0
    first, last, done = (backbones.load(n) for n in (f"twin_s@{taken[0]}", f"twin_s@{taken[-1]}", "twin_s"))
    assert first.source["kind"] == "zoo snapshot"
    assert len({first.digest, last.digest, done.digest}) == 3
    images = data.load("emoji_identity", "test", limit=100, seed=3)
    with torch.inference_mode():
        right = [
            float((m.model(m.transform(images.pixels())).argmax(1).numpy() == images.labels).mean())
            for m in (first, last, done)
        ]
    assert right[0] < 0.05 < 0.5 < right[1] <= right[2] + 0.05


def test_unknown_snapshot_is_named():
    with pytest.raises(ValueError, match=r"Unknown snapshot 'twin_s@2560'\. Did you mean 'twin_s@25600'"):
        backbones.load("twin_s@2560")
