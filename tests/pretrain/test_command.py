"""`vitscope train`: from a name to a weight file and a card that agree with each other."""

import json
from types import SimpleNamespace

import pytest
import torch
import typer
from typer.testing import CliRunner

from helpers import tiny_zoo_model
from vitscope import backbones
from vitscope.data import embedded, emoji
from vitscope.pretrain import command
from vitscope.pretrain.supervised import Trainer
from vitscope.pretrain.zoo import Architecture, SupervisedRecipe, read_weights, write_weights

CLASSES = int((~emoji.identities()["held_out"]).sum())
RECIPE = SupervisedRecipe(
    Architecture(width=32, depth=2, heads=2, num_classes=CLASSES), images=12, batch=4, precision="fp32"
)


@pytest.fixture
def invoke(monkeypatch, tmp_path):
    """Run the command on a registry that holds one tiny model; accuracies are those of an untrained look."""
    monkeypatch.setattr(command, "RECIPES", {"toy": RECIPE})
    monkeypatch.setattr(command, "identity_accuracy", lambda model, style, scale: {"style": style, "top1": 1.5})
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
    card, file = json.loads((folder / "toy.json").read_text()), folder / "toy.safetensors"
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
        seed=0, seconds=1, folder=tmp_path, compiled=True, classifier=lambda path: model
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
