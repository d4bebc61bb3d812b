"""The registry of models, and files that say how to build what they hold."""

import dataclasses
import json

import pytest
import torch
from safetensors import safe_open

from helpers import tiny_zoo_model
from vitscope.data import emoji
from vitscope.pretrain.zoo import (
    FORMAT,
    RECIPES,
    Architecture,
    ContrastiveRecipe,
    read_weights,
    write_weights,
)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_fit_the_data_and_each_other(name):
    recipe = RECIPES[name]
    seen = int((~emoji.identities()["held_out"]).sum())
    assert recipe.architecture.num_classes == (0 if isinstance(recipe, ContrastiveRecipe) else seen)
    assert recipe.images % recipe.batch == 0
    assert all(s % recipe.batch == 0 for s in recipe.snapshots)
    assert all(s < recipe.images for s in recipe.snapshots)
    assert recipe.architecture.width % recipe.architecture.heads == 0
    one_recipe = {k: v for k, v in recipe.describe().items() if k != "architecture"}
    family = next(n for n in RECIPES if n.partition("_")[0] == name.partition("_")[0])
    other = {k: v for k, v in RECIPES[family].describe().items() if k != "architecture"}
    assert one_recipe == other, "models of one family differ in their architecture alone"
    assert json.loads(json.dumps(recipe.describe()))["architecture"]["width"] == recipe.architecture.width


@pytest.mark.parametrize(
    "changes", [{}, {"reg_tokens": 4}, {"num_classes": 0}, {"depth": 3}, {"img_size": 32}]
)
def test_files_rebuild_their_model(tmp_path, changes):
    model, architecture = tiny_zoo_model(**changes)
    write_weights(tmp_path / "m.safetensors", model, architecture)
    with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        assert file.metadata()["format"] == FORMAT
        assert Architecture(**json.loads(file.metadata()["architecture"])) == architecture
        assert {file.get_tensor(k).dtype for k in file.keys()} == {torch.float16}  # noqa: SIM118
    read, _ = read_weights(tmp_path / "m.safetensors")
    x = torch.randn(2, 3, architecture.img_size, architecture.img_size)
    half = model.half().float()
    assert torch.equal(read(x), half(x))


def test_the_same_model_gives_the_same_bytes(tmp_path):
    """The digest on a card is that of the file: nothing in it may come in an order of its own."""
    model, architecture = tiny_zoo_model()
    written = set()
    for number in range(12):
        write_weights(tmp_path / f"{number}.safetensors", model, architecture)
        written.add((tmp_path / f"{number}.safetensors").read_bytes())
    assert len(written) == 1


def test_architecture_is_a_plain_vit():
    model = Architecture(width=32, depth=3, heads=2, num_classes=7, reg_tokens=2).build()
    assert len(model.blocks) == 3
    assert model.num_prefix_tokens == 3
    assert model.patch_embed.num_patches == 64
    assert model.head.out_features == 7
    assert model.blocks[0].mlp.fc1.out_features == 128
    with pytest.raises(dataclasses.FrozenInstanceError):
        Architecture(width=1, depth=1, heads=1).width = 2
