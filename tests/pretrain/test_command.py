"""`vitscope train`: from a name to a weight file and a card that agree with each other."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch
import typer
from typer.testing import CliRunner

from helpers import photo, tiny_zoo_model
from vitscope import backbones
from vitscope.data import embedded, emoji
from vitscope.pretrain import command
from vitscope.pretrain.dino_recipe import DinoRecipe
from vitscope.pretrain.ranks import Ranks
from vitscope.pretrain.recipes import RECIPES
from vitscope.pretrain.supervised import Trainer
from vitscope.pretrain.zoo import VARIANTS, Architecture, SupervisedRecipe, read_weights, write_weights

CLASSES = int((~emoji.identities()["held_out"]).sum())
RECIPE = SupervisedRecipe(
    Architecture(width=32, depth=2, heads=2, num_classes=CLASSES), images=12, batch=4, precision="fp32"
)


@pytest.fixture
def invoke(monkeypatch, tmp_path):
    """Run the command on a registry that holds one tiny model; accuracies are those of an untrained look."""
    monkeypatch.setattr(command, "RECIPES", {"toy": RECIPE})
    monkeypatch.setattr(
        command, "identity_accuracy", lambda model, style, scale: {"style": style, "top1": 1.5}
    )
    app = typer.Typer()
    app.command()(command.train)
    threads = torch.get_num_threads()

    def run(*arguments):
        return CliRunner().invoke(app, [*arguments, "--out", str(tmp_path), "--threads", str(threads)])

    return run


def test_weights_and_card_agree(invoke, tmp_path):
    done = invoke("toy", "--seed", "3")
    assert done.exit_code == 0, done.output
    folder = tmp_path / "toy-seed3"
    card, file = json.loads((folder / "toy-3.json").read_text()), folder / "toy-3.safetensors"
    assert card["name"] == "toy-3", "another seed is another model"
    assert card["sha256"] == embedded.sha256(file)
    assert card["recipe"] == json.loads(json.dumps(RECIPE.describe()))
    assert card["seed"] == 3
    assert card["command"] == f"vitscope train toy --seed 3 --threads {torch.get_num_threads()}"
    assert card["data"]["emoji"] == embedded.digest("emoji/noto.parquet")
    assert card["data"]["render"]["background_part"] == "train"
    assert set(card["accuracy"]) == set(emoji.STYLES)
    assert card["licence"]
    model, architecture = read_weights(file)
    assert architecture == RECIPE.architecture
    assert card["parameters"] == sum(p.numel() for p in model.parameters())
    assert [entry["images"] for entry in card["curve"]] == [12]
    assert backbones.load(str(file), device="cpu").width == 32


def test_the_command_on_the_card_remakes_the_file(invoke, tmp_path):
    invoke("toy")
    first = embedded.sha256(tmp_path / "toy-seed0/toy.safetensors")
    (tmp_path / "toy-seed0").rename(tmp_path / "aside")
    card = json.loads((tmp_path / "aside/toy.json").read_text())
    _, _, *arguments = card["command"].split()
    invoke(*arguments[:-2])  # the thread count is given by the fixture
    assert embedded.sha256(tmp_path / "toy-seed0/toy.safetensors") == first


def test_budget_ends_early_and_the_same_command_continues(invoke, tmp_path):
    messages = [invoke("toy", "--minutes", "0").output for _ in range(3)]
    assert "1 of 3 steps done; the same command continues" in messages[0]
    assert "2 of 3" in messages[1]
    assert "weights and card in" in messages[2]
    whole = embedded.sha256(tmp_path / "toy-seed0/toy.safetensors")
    (tmp_path / "toy-seed0").rename(tmp_path / "aside")
    invoke("toy")
    assert embedded.sha256(tmp_path / "toy-seed0/toy.safetensors") == whole


def test_card_of_a_gpu_run_names_the_device(monkeypatch, tmp_path):
    """Without it the command on the card would train elsewhere and give other bits."""
    monkeypatch.setattr(command, "RECIPES", {"toy": RECIPE})
    monkeypatch.setattr(command, "identity_accuracy", lambda model, style, scale: {})
    model, architecture = tiny_zoo_model()
    write_weights(tmp_path / "toy.safetensors", model, architecture)
    (tmp_path / "train.jsonl").write_text("")
    trainer = SimpleNamespace(
        seed=0, seconds=1, folder=tmp_path, compiled=True, classifier=lambda path: model, ranks=Ranks()
    )
    card = command.make_card("toy", tmp_path / "toy.safetensors", trainer, device="cuda")
    assert card["command"].endswith("--compile --device cuda")
    assert card["device"].startswith("cuda")


def test_failures_leave_a_message_and_a_status(invoke, tmp_path, monkeypatch):
    assert invoke("twin_x").exit_code == 2
    assert "unknown model 'twin_x'; there are toy" in " ".join(
        invoke("twin_x").output.replace("│", " ").split()
    )

    def broken(self):
        self.model.head.bias.data[0] = float("nan")
        return real(self)

    real = Trainer.train_step
    monkeypatch.setattr(Trainer, "train_step", broken)
    failed = invoke("toy")
    assert failed.exit_code == 1
    assert "training toy stopped: loss is nan at step 0" in failed.output
    assert not (tmp_path / "toy-seed0/toy.safetensors").exists()


# --- models that learn without labels ---------------------------------------------------------------------

DINO = DinoRecipe(
    Architecture(width=32, depth=2, heads=2),
    images=16,
    batch=8,
    local_crops=1,
    local_size=16,
    prototypes=16,
    hidden=16,
    bottleneck=8,
    precision="fp32",
    snapshots=(8,),
)


def test_dino_goes_through_the_same_door(invoke, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "RECIPES", {"toy": DINO})
    done = invoke("toy")
    assert done.exit_code == 0, done.output
    folder = tmp_path / "toy-seed0"
    card = json.loads((folder / "toy.json").read_text())
    assert card["recipe"]["objective"] == "DINO self-distillation"
    assert card["curve"][-1]["images"] == 16
    assert {"teacher_entropy", "knn_identity"} <= set(card["curve"][-1])
    model, architecture = read_weights(folder / "toy.safetensors")
    assert architecture == DINO.architecture
    assert card["parameters"] == sum(p.numel() for p in model.parameters())
    assert (folder / "snapshots" / "0000008.safetensors").is_file()


def test_dino_of_ones_own_pictures(invoke, tmp_path, monkeypatch):
    """The command of the paper's scale, on eight pictures and a small model, with sparse attention."""
    architecture = dataclasses.replace(DINO.architecture, attention="entmax15")
    recipe = dataclasses.replace(DINO, architecture=architecture, source="folder", views="crops")
    monkeypatch.setattr(command, "RECIPES", {"toy": recipe})
    for number in range(8):
        place = tmp_path / "pictures" / "train" / f"class{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        photo(40 + number, 50, seed=number).save(place / f"{number}.jpg")
    done = invoke("toy", "--images", str(tmp_path / "pictures"))
    assert done.exit_code == 0, done.output
    card = json.loads((tmp_path / "toy-seed0" / "toy.json").read_text())
    assert (card["data"]["pictures"], card["accuracy"]) == (8, {})
    assert card["command"].endswith(" --images FOLDER")
    assert backbones.load(str(tmp_path / "toy-seed0" / "toy.safetensors")).attention == "entmax15"


def test_a_folder_is_asked_for_where_it_is_needed_and_only_there(invoke, tmp_path, monkeypatch):
    from_folder = dataclasses.replace(DINO, source="folder", views="crops")
    monkeypatch.setattr(command, "RECIPES", {"own": from_folder, "toy": RECIPE})
    for arguments, said in (
        (("own",), "this recipe needs a folder of pictures: give --images FOLDER"),
        (("toy", "--images", str(tmp_path)), "this recipe renders its own pictures: leave out --images"),
        (("own", "--images", str(tmp_path / "gone")), "no such folder of pictures"),
    ):
        done = invoke(*arguments)
        assert done.exit_code == 1
        assert said in done.output


def test_every_variant_is_there_for_every_kind_of_training():
    names = {f"{kind}_{variant}" for kind in ("dino", "dino_vits16") for variant in VARIANTS}
    assert names <= set(RECIPES)
    for name in names:
        reference = RECIPES[name.rpartition("_")[0] + "_softmax"]
        recipe = RECIPES[name]
        plain = dataclasses.replace(recipe, architecture=reference.architecture)
        assert plain == reference, "variants differ in their architecture alone"
