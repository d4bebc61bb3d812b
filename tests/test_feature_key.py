"""Whatever can change a number of a capture changes its key, and what cannot be named is not kept."""

from __future__ import annotations

import ast
import copy
import dataclasses
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import vitscope
from vitscope import backbones, data, feature_key, features
from vitscope.attention import swap_attention
from vitscope.capture import capture
from vitscope.entry_file import Header
from vitscope.features import FeatureCache, captured
from vitscope.position import scaled
from vitscope.reductions import REDUCTIONS, similarity_by_dataset

PACKAGE = Path(vitscope.__file__).parent
WANTED = {"norm": "none", "reductions": ("cls", "patch_mean"), "keep_tokens": 1, "attention": True}


@pytest.fixture(scope="module")
def twin():
    return backbones.load("depth_06", device="cpu")


@pytest.fixture(scope="module")
def images():
    return data.load("digits", "test", limit=6)


def key(backbone, pictures, **changes):
    parts = feature_key.parts_of(backbone, pictures, **WANTED | changes)
    return None if parts is None else Header("capture", parts).key


def leaves(value, path=()):
    if isinstance(value, dict):
        return [leaf for k, v in value.items() for leaf in leaves(v, (*path, k))]
    if isinstance(value, list | tuple) and value:
        return [leaf for i, v in enumerate(value) for leaf in leaves(v, (*path, i))]
    return [path]


def test_every_part_changes_the_key_and_their_order_does_not(twin, images):
    parts = json.loads(json.dumps(feature_key.parts_of(twin, images, **WANTED)))
    keys, paths = {Header("capture", parts).key}, leaves(parts)
    assert len(paths) > 30
    for path in paths:
        changed = copy.deepcopy(parts)
        place = changed
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = "something else"
        keys.add(Header("capture", changed).key)
    assert len(keys) == 1 + len(paths)

    def turned(value):
        return {k: turned(value[k]) for k in reversed(value)} if isinstance(value, dict) else value

    assert Header("capture", turned(parts)).key == Header("capture", parts).key


def weaker_position(twin):
    return scaled(twin, 0.5)


def altered(change):
    """A copy of the backbone whose model `change` has changed behind its description's back."""

    def make(twin):
        other = dataclasses.replace(twin, model=copy.deepcopy(twin.model))
        change(other.model)
        return other

    return make


def more_heads(model):
    model.blocks[2].attn.num_heads = 6
    model.blocks[2].attn.head_dim //= 2


MODELS = {
    "weights": weaker_position,
    "a weight changed in place": altered(lambda m: m.blocks[1].mlp.fc1.weight.data.mul_(1.001)),
    "a buffer or bias": altered(lambda m: m.norm.bias.data.add_(1e-3)),
    "heads": altered(more_heads),
    "epsilon": altered(lambda m: setattr(m.blocks[0].norm1, "eps", 1e-3)),
    "activation": altered(lambda m: setattr(m.blocks[0].mlp, "act", nn.ReLU())),
    "fused or not": altered(lambda m: setattr(m.blocks[0].attn, "fused_attn", False)),
    "attention": altered(lambda m: swap_attention(m, "entmax15")),
    "temperature": altered(lambda m: swap_attention(m, "softmax", temperature=0.5)),
    "attention of one block": altered(lambda m: swap_attention(m, "entmax15", blocks=[3])),
    "number type": altered(lambda m: m.double()),
    "transform": lambda twin: dataclasses.replace(
        twin, transform=dataclasses.replace(twin.transform, interpolation="bilinear")
    ),
}


@pytest.mark.parametrize("model", MODELS)
def test_another_model_is_another_key(twin, images, model):
    before = key(twin, images)
    assert before is not None
    assert key(MODELS[model](twin), images) not in (before, None)
    assert key(twin, images) == before


def test_size_is_part_of_the_key(twin, images):
    assert key(backbones.load("depth_06", device="cpu", img_size=32), images) != key(twin, images)


def test_names_and_a_second_loading_are_no_part(twin, images):
    again = dataclasses.replace(backbones.load("depth_06", device="cpu"), name="other")
    assert key(again, images) == key(twin, images)


PICTURES = {
    "fewer": lambda images: images.limited(5),
    "another order": lambda images: images.select([1, 0, 2, 3, 4, 5]),
    "another part": lambda images: data.load("digits", "train", limit=6),
    "other ids": lambda images: dataclasses.replace(images, ids=np.asarray([f"{n}" for n in range(6)])),
    "a tensor": lambda images: torch.zeros(6, 3, 64, 64),
}


@pytest.mark.parametrize("pictures", PICTURES)
def test_other_pictures_are_another_key(twin, images, pictures):
    assert key(twin, PICTURES[pictures](images)) not in (key(twin, images), None)


def test_tensors_are_known_by_their_content(twin):
    pictures = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    other = pictures.clone()
    other[3, 2, 63, 63] += 1e-6
    assert key(twin, pictures) == key(twin, pictures.clone()) == key(twin, (pictures, np.arange(4)))
    assert len({key(twin, p) for p in (pictures, other, pictures.double())}) == 3


ASKED = [
    {"norm": "final"},
    {"reductions": ("cls",)},
    {"reductions": ("cls", "patch_mean", "similarity")},
    {"keep_tokens": 2},
    {"attention": False},
    {"batch_size": 4},
]


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: next(iter(asked)))
def test_asking_for_something_else_is_another_key(twin, images, asked):
    assert key(twin, images, **asked) not in (key(twin, images), None)


def test_the_same_asked_for_in_two_ways_is_one_key(twin, images):
    mapping = {name: REDUCTIONS[name] for name in WANTED["reductions"]}
    assert key(twin, images, reductions=mapping) == key(twin, images)


@pytest.mark.parametrize(
    ("owner", "name", "other"),
    [
        (torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT"),
        (feature_key, "installed", lambda name: "0.0"),
        (torch, "are_deterministic_algorithms_enabled", lambda: True),
    ],
)
def test_instructions_versions_and_settings_are_part_of_the_key(
    monkeypatch, twin, images, owner, name, other
):
    before = key(twin, images)
    monkeypatch.setattr(owner, name, other)
    assert key(twin, images) not in (before, None)


def test_precision_and_autocast_are_part_of_the_key(twin, images):
    before, precision = key(twin, images), torch.get_float32_matmul_precision()
    with torch.autocast("cpu", torch.bfloat16):
        assert key(twin, images) not in (before, None)
    torch.set_float32_matmul_precision("medium")
    try:
        assert key(twin, images) not in (before, None)
    finally:
        torch.set_float32_matmul_precision(precision)
    assert key(twin, images) == before


def test_on_a_gpu_its_model_and_its_kernels_are_part_of_the_key(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "one")
    one = feature_key.arithmetic(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "two")
    two = feature_key.arithmetic(torch.device("cuda", 0))
    assert one | {"name": "two"} == two
    monkeypatch.setattr(torch.backends.cuda, "flash_sdp_enabled", lambda: False)
    assert feature_key.arithmetic(torch.device("cuda")) != two


def test_other_code_is_another_key_and_edited_code_keeps_nothing(monkeypatch, twin, images):
    before = key(twin, images)
    monkeypatch.setattr(feature_key, "sources_digest", lambda: "edited")
    assert key(twin, images) is None  # this process may still run what was there before
    monkeypatch.setattr(feature_key, "_AT_START", "edited")
    assert key(twin, images) not in (before, None)


# What the sources import and the key need not hold, and why.
COVERED = {
    "backbones.py": "a model is known by its weights, classes and attributes, whoever built it",
    "weights.py": "the same; its digest is a part",
    "pretrain/zoo.py": "the same",
    "data/embedded.py": "opens files and compares checksums, which are in the digest of the pictures",
    "intervals.py": "shares of an answer, no picture",
    "errors.py": "messages",
}


def imported(name: str) -> set[str]:
    """Modules of this library that a module imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    paths = {
        name.removeprefix("vitscope.").replace(".", "/") for name in found if name.startswith("vitscope.")
    }
    names = {f"{path}.py" for path in paths} | {f"{path}/__init__.py" for path in paths}
    return {name for name in names if (PACKAGE / name).is_file()}


def test_the_sources_are_all_that_make_a_number():
    makers = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted((PACKAGE / "data").glob("*.py"))
        if "Images(" in path.read_text(encoding="utf-8")
    ]
    to_see, seen = ["capture.py", "data/__init__.py", "data/dense_sets.py", *makers], set()
    while to_see:
        name = to_see.pop()
        if name not in seen:
            seen.add(name)
            to_see += imported(name) - set(COVERED)
    assert seen == set(feature_key.SOURCES)


def hooked(model):
    model.blocks[0].register_forward_hook(lambda module, args, output: output * 2)


class Mine(nn.Identity):
    """A module whose code no key can name."""


UNNAMED = {
    "hook": altered(hooked),
    "forward": altered(lambda m: setattr(m.blocks[0].mlp, "forward", lambda x: x)),
    "module of one's own": altered(lambda m: setattr(m.blocks[0], "ls1", Mine().eval())),
}


@pytest.mark.parametrize("model", UNNAMED)
def test_a_model_that_cannot_be_named_is_not_kept(tmp_path, twin, images, model):
    cache, other = FeatureCache(tmp_path), UNNAMED[model](twin)
    for _ in range(2):
        found = captured(other, images, norm="none", folder=cache)
    assert torch.equal(found.patch_mean, capture(other, images, norm="none").patch_mean)
    assert (cache.computed, cache.found) == (12, 0)
    assert list(tmp_path.iterdir()) == []


def brightest(tokens):
    return {"brightest": tokens.patches.flatten(1).amax(1)}


def most(maps):
    return maps.flatten(2).amax(2)


@pytest.mark.parametrize(
    "asked",
    [
        {"reductions": {"brightest": brightest}},
        {"reductions": {"cls": REDUCTIONS["cls"], "brightest": lambda tokens: brightest(tokens)}},
        {"reductions": {"brightest": partial(brightest)}},
        {"attention": {"most": most}},
    ],
)
def test_functions_of_ones_own_are_not_kept_without_a_key(tmp_path, twin, images, asked):
    cache = FeatureCache(tmp_path)
    for _ in range(2):
        found = captured(twin, images, norm="none", folder=cache, **asked)
    assert {"brightest", "most"} & {*found.per_image, *found.attention}
    assert (cache.computed, cache.found) == (12, 0)
    assert list(tmp_path.iterdir()) == []


def test_functions_of_ones_own_with_a_key_are_kept(tmp_path, twin, images):
    def keyed(function, text):
        other = partial(function)
        other.cache_key = text
        return other

    cache = FeatureCache(tmp_path)

    def again(text, norm="none"):
        return captured(
            twin, images, norm=norm, folder=cache,
            reductions={"brightest": keyed(brightest, text)}, attention={"most": keyed(most, text)},
        )  # fmt: skip

    first, second = again("1"), again("1")
    assert (cache.computed, cache.found) == (6, 6)
    assert torch.equal(first.per_image["brightest"], second.per_image["brightest"])
    assert torch.equal(first.attention["most"], second.attention["most"])
    again("2")
    assert (cache.computed, cache.found) == (12, 6)


def test_similarity_by_dataset_brings_its_means_as_a_key(twin, images):
    means = {state: torch.full((twin.width,), float(state)) for state in twin.states}
    other = means | {3: means[3] + 1e-6}
    keys = [
        key(twin, images, reductions={"x": similarity_by_dataset(m)}) for m in (means, dict(means), other)
    ]
    assert keys[0] == keys[1]
    assert len({*keys, None}) == 3


CAPTURES = {
    "default": {},
    "everything": {"reductions": tuple(REDUCTIONS), "attention": True, "keep_tokens": 3},
    "another norm": {"norm": "final", "reductions": ("similarity",), "batch_size": 4},
    "attention alone": {"reductions": (), "attention": True, "keep_tokens": 1},
}


@pytest.mark.parametrize("asked", CAPTURES)
@pytest.mark.parametrize("name", ["depth_06", "test_vit2"])
def test_a_found_capture_is_the_computed_one(tmp_path, images, monkeypatch, asked, name):
    model = backbones.load(name, weights="auto" if name == "depth_06" else "random", device="cpu")
    given = {"norm": "none"} | CAPTURES[asked]
    plain = capture(model, images, **given)
    computed = captured(model, images, folder=tmp_path, **given)
    monkeypatch.setattr(features, "capture", None)  # whoever computes now, fails
    found = captured(model, images, folder=tmp_path, **given)
    for one in (computed, found):
        for field in dataclasses.fields(plain):
            expected, value = getattr(plain, field.name), getattr(one, field.name)
            if isinstance(expected, dict):
                assert list(value) == list(expected)
            pairs = expected.items() if isinstance(expected, dict) else [(None, expected)]
            for part, wanted in pairs:
                got = value if part is None else value[part]
                if isinstance(wanted, torch.Tensor):
                    assert got.dtype == wanted.dtype
                    assert torch.equal(got.nan_to_num(7e7), wanted.nan_to_num(7e7))
                elif field.name != "seconds":
                    np.testing.assert_array_equal(got, wanted)
        assert one.stats.equals(plain.stats)
    assert found.seconds == 0


def test_labels_are_those_of_the_call(tmp_path, twin):
    pictures = torch.rand(4, 3, 64, 64)
    captured(twin, (pictures, np.array([1, 2, 3, 4])), norm="none", folder=tmp_path)
    cache = FeatureCache(tmp_path)
    found = captured(twin, (pictures, np.array([9, 8, 7, 6])), norm="none", folder=cache)
    assert cache.found == 4
    assert found.labels.tolist() == [9, 8, 7, 6]


def test_an_entry_of_wrong_shapes_is_computed_again(tmp_path, twin, images):
    """Right key, whole file, impossible content: as a fault of an earlier version could leave it."""
    cache = FeatureCache(tmp_path)
    parts = feature_key.parts_of(twin, images, norm="none", reductions=features.KEPT)
    for wrong in (
        {"cls": torch.zeros(8, 6, 95), "patch_mean": torch.zeros(8, 6, 96), "batch_size": torch.tensor(1)},
        {"patch_mean": torch.zeros(8, 6, 96), "batch_size": torch.tensor(1)},
        {"cls": torch.zeros(8, 6, 96), "patch_mean": torch.zeros(8, 6, 96)},
    ):
        cache.store.prune(everything=True)
        cache.store.fetch(features.KIND, parts, lambda kept=wrong: kept)
        found = features.features(twin, images, norm="none", folder=cache)
        assert found.cls.shape == (8, 6, 96)
    assert (cache.computed, cache.found, cache.store.rebuilt) == (18, 0, 3)


@pytest.mark.parametrize("wrong", [{"norm": "nonee"}, {"reductions": ("clss",)}, {"keep_tokens": 99}])
def test_mistakes_are_the_same_with_a_cache(tmp_path, twin, images, wrong):
    for folder in (tmp_path, None):
        with pytest.raises(ValueError, match=r"Did you mean|keep_tokens=99"):
            captured(twin, images, folder=folder, **{"norm": "none"} | wrong)
    assert list(tmp_path.iterdir()) == []
