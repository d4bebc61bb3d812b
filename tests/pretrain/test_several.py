"""Several processes: the numbers of one, whatever is trained; more or fewer on the way; one that is lost."""

import dataclasses
import json
import pickle
import subprocess
import sys

import pytest
import torch
from timm.layers import DropPath
from torch import nn

from processes import end_of_two, environment, run_two
from vitscope.data import emoji
from vitscope.pretrain import checkpoint
from vitscope.pretrain.command import make_trainer
from vitscope.pretrain.contrastive import contrastive_loss, loss_of_rows
from vitscope.pretrain.dino_recipe import DinoRecipe
from vitscope.pretrain.drop_path import SharedDropPath, share_drop_path
from vitscope.pretrain.failures import TrainingError
from vitscope.pretrain.log import read_log
from vitscope.pretrain.ranks import Ranks
from vitscope.pretrain.zoo import VARIANTS, Architecture, ContrastiveRecipe, SupervisedRecipe

CLASSES = int((~emoji.identities()["held_out"]).sum())
SHAPE = Architecture(width=32, depth=3, heads=2)
STEPS = 3
SIZE = {"images": 4 * STEPS, "batch": 4, "precision": "fp32"}
DINO = DinoRecipe(
    SHAPE, local_crops=1, local_size=16, prototypes=16, hidden=16, bottleneck=8, global_size=32, **SIZE
)
SUPERVISED = SupervisedRecipe(dataclasses.replace(SHAPE, num_classes=CLASSES), **SIZE)
KINDS = {
    "supervised": SUPERVISED,
    "names": ContrastiveRecipe(SHAPE, embed=8, text_width=16, text_layers=1, text_heads=2, **SIZE),
    "depth dropped": dataclasses.replace(DINO, drop_path=0.5),
    **{
        name: dataclasses.replace(DINO, architecture=dataclasses.replace(SHAPE, **changes), centring=centring)
        for (name, changes), centring in zip(VARIANTS.items(), ("mean", "sinkhorn") * 2, strict=True)
    },
}
# Rounding alone tells the runs apart; Muon's iteration in bf16 blows it up, and these two use Muon.
BOUND = {"supervised": (1e-3, 5e-3), "names": (1e-3, 5e-3)}

START = """
import json, os, pickle, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from vitscope.pretrain import ranks, supervised
from vitscope.pretrain.command import make_trainer
from vitscope.pretrain.dino import DinoTrainer
from vitscope.pretrain.failures import TrainingError
DinoTrainer.monitor = lambda self: {}
folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
"""


def alone(recipe, folder, *, steps=STEPS):
    """Losses of one process, and its trainer."""
    one = make_trainer(recipe, folder, seed=0)
    return [one.train_step()[0] for _ in range(steps)], one


def apart(one, other):
    """The largest difference of two trainers' weights."""
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)


def test_two_processes_train_as_one_does(tmp_path):
    """Gradients, centres, prototypes, dropped paths and names are those of the whole batch."""
    (tmp_path / "recipes").write_bytes(pickle.dumps(KINDS))
    script = START + (
        "found = {}\n"
        "for name, recipe in pickle.loads((folder / 'recipes').read_bytes()).items():\n"
        "    one = make_trainer(recipe, folder / name, seed=0)\n"
        "    found[name] = [one.train_step()[0] for _ in range(2)]\n"
        "    if one.writes:\n"
        "        one.save()\n"
        "(folder / f'losses{rank}.json').write_text(json.dumps(found))\n"
    )
    run_two(script, tmp_path, tmp_path)
    ours, theirs = (json.loads((tmp_path / f"losses{rank}.json").read_text()) for rank in range(2))
    assert ours == theirs, "numbers are means over both processes"
    for name, recipe in KINDS.items():
        losses, one = alone(recipe, tmp_path / "one" / name, steps=2)
        assert ours[name][0] == pytest.approx(losses[0], rel=1e-5), name
        bound, weights = BOUND.get(name, (1e-5, 1e-4))
        assert ours[name] == pytest.approx(losses, abs=bound), name
        two = make_trainer(recipe, tmp_path / name, seed=0)
        assert two.step == 2
        assert apart(one, two) < weights, name


def test_one_process_then_two_then_one(tmp_path):
    """A time budget of nothing is one step; the first process's clock counts for both."""
    recipe = dataclasses.replace(KINDS["softmax"], optimizer="adamw")
    losses, whole = alone(recipe, tmp_path / "whole")
    one = make_trainer(recipe, tmp_path / "run", seed=0)
    assert not one.run(minutes=0, progress=False)
    (tmp_path / "recipe").write_bytes(pickle.dumps(recipe))
    script = START + (
        "recipe = pickle.loads((folder / 'recipe').read_bytes())\n"
        "one = make_trainer(recipe, folder / 'run', seed=0)\n"
        "assert one.step == 1\n"
        "assert not one.run(minutes=0 if rank == 0 else 1e9, progress=False)\n"
        "assert one.step == 2\n"
        "one.ranks.leave()\n"
    )
    run_two(script, tmp_path, tmp_path)
    last = make_trainer(recipe, tmp_path / "run", seed=0)
    assert last.step == 2
    found = last.train_step()[0]
    assert found == pytest.approx(losses[2], abs=1e-5)
    assert apart(last, whole) < 1e-4


@pytest.mark.parametrize(
    ("signal", "said"), [("SIGKILL", "the 2 processes ended"), ("SIGSTOP", "within 5 s")]
)
def test_a_lost_process_ends_the_other_and_costs_no_checkpoint(tmp_path, signal, said):
    (tmp_path / "recipe").write_bytes(pickle.dumps(SUPERVISED))
    script = START + (
        "from datetime import timedelta\n"
        "ranks.PATIENCE, supervised.CHECKPOINT_EVERY = timedelta(seconds=5), 0.0\n"
        "one = make_trainer(pickle.loads((folder / 'recipe').read_bytes()), folder / 'run', seed=0)\n"
        "real = one.train_step\n"
        "def step():\n"
        "    if rank == 1 and one.step == 2:\n"
        f"        os.kill(os.getpid(), signal.{signal})\n"
        "    return real()\n"
        "one.train_step = step\n"
        "try:\n"
        "    one.run(progress=False)\n"
        "except TrainingError as error:\n"
        "    sys.exit(str(error))\n"
    )
    codes, errors = end_of_two(script, tmp_path, tmp_path, timeout=120)
    assert codes[0] == 1, errors
    assert said in errors[0]
    assert "the last checkpoint is intact, and the same command continues from it" in errors[0]
    heir = make_trainer(SUPERVISED, tmp_path / "run", seed=0)
    assert heir.step == 2
    assert heir.run(progress=False)


def test_torchrun_restarts_the_command_where_it_was(tmp_path):
    """The command under the real launcher; one process is killed once, and the run ends as if it had not."""
    (tmp_path / "recipe").write_bytes(pickle.dumps(SUPERVISED))
    script = START + (
        "import typer\n"
        "from vitscope.pretrain import command\n"
        "command.RECIPES['toy'] = pickle.loads((folder / 'recipe').read_bytes())\n"
        "command.identity_accuracy = lambda model, style, scale: {}\n"
        "supervised.CHECKPOINT_EVERY = 0.0\n"
        "real = supervised.Trainer.train_step\n"
        "def step(self):\n"
        "    if rank == 1 and self.step == 2 and not (folder / 'killed').exists():\n"
        "        (folder / 'killed').touch()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return real(self)\n"
        "supervised.Trainer.train_step = step\n"
        "app = typer.Typer()\n"
        "app.command()(command.train)\n"
        "app(['toy', '--out', str(folder / 'out')])\n"
    )
    (tmp_path / "worker.py").write_text(script)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, "--max-restarts", "1", "--monitor-interval", "0.5", tmp_path / "worker.py", tmp_path],
        env=environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "killed").exists()
    assert done.stdout.count("weights and card in") == 1, "one process writes and speaks"
    card = json.loads((tmp_path / "out/toy-seed0/toy.json").read_text())
    assert card["command"].startswith("torchrun --nproc-per-node 2 -m vitscope train toy --seed 0")
    assert [entry["step"] for entry in read_log(tmp_path / "out/toy-seed0")] == [STEPS]


# --- what is refused before anything starts ---------------------------------------------------------------


def test_folders_that_not_all_see_are_refused_by_all(tmp_path):
    (tmp_path / "recipe").write_bytes(pickle.dumps(SUPERVISED))
    make_trainer(SUPERVISED, tmp_path / "run0", seed=0).run(minutes=0, progress=False)
    script = START + (
        "try:\n"
        "    recipe = pickle.loads((folder / 'recipe').read_bytes())\n"
        "    make_trainer(recipe, folder / f'run{rank}', seed=0)\n"
        "except TrainingError as error:\n"
        "    sys.exit(str(error))\n"
    )
    codes, errors = end_of_two(script, tmp_path, tmp_path)
    assert codes[0] == 1
    assert "the processes found different checkpoints, at steps (1, 0)" in errors[0]
    assert "a folder that all of them see" in errors[0]


def test_batches_that_cannot_be_dealt_are_refused_before_others_are_waited_for(tmp_path, monkeypatch):
    for name, value in {"WORLD_SIZE": 3, "RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    said = "a batch of 4 cannot be dealt to 3 processes evenly; start 2 of them, or choose a batch that is a"
    with pytest.raises(TrainingError, match=said):
        make_trainer(SUPERVISED, tmp_path / "run", seed=0)
    assert not (tmp_path / "run").exists()
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(TrainingError, match="WORLD_SIZE is 3, but MASTER_PORT is not set: start"):
        Ranks.read()


def test_every_process_needs_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Ranks(1, 3, 1).device("cuda") == torch.device("cuda", 1)
    with pytest.raises(TrainingError, match="process 2 of this machine needs a GPU of its own, and there"):
        Ranks(2, 3, 2).device("cuda")
    with pytest.raises(TrainingError, match="3 processes cannot share cuda:0: give cuda"):
        Ranks(0, 3, 0).device("cuda:0")
    assert Ranks().device("cuda:1") == torch.device("cuda", 1)


# --- the parts --------------------------------------------------------------------------------------------


def test_rows_of_a_loss_make_the_whole():
    """Of parts that each know all columns, the mean is the loss of the batch, also where names repeat."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([3, 1, 3, 2, 1, 1])
    pictures, names = (torch.randn(6, 5, generator=generator, requires_grad=True) for _ in range(2))
    whole, right = contrastive_loss(pictures @ names.T, labels)
    parts = [
        loss_of_rows(pictures[at] @ names.T, names[at] @ pictures.T, labels[at], labels)
        for at in (slice(0, 3), slice(3, 6))
    ]
    mean = (parts[0][0] + parts[1][0]) / 2
    torch.testing.assert_close(mean, whole)
    assert torch.equal(torch.cat([part[1] for part in parts]), right)
    for a, b in zip(*(torch.autograd.grad(x, [pictures, names]) for x in (mean, whole)), strict=True):
        torch.testing.assert_close(a, b)


def test_dropped_paths_are_those_of_the_whole_batch():
    x = torch.ones(3 * 4, 5, 2)  # three views of four samples
    torch.manual_seed(0)
    expected = DropPath(0.4).train()(x)

    def part(place, count):
        torch.manual_seed(0)
        rows = x.view(3, 4, 5, 2)[:, place : place + count].flatten(0, 1)
        drop = SharedDropPath(0.4, batch=4, place=place, count=count).train()
        return drop(rows).view(3, count, 5, 2)

    assert torch.equal(part(0, 4).flatten(0, 1), expected), "alone, the draws are timm's"
    assert torch.equal(torch.cat([part(0, 1), part(1, 3)], 1).flatten(0, 1), expected)
    assert expected.unique().tolist() == pytest.approx([0.0, 1 / 0.6])
    model = nn.Sequential(nn.Identity(), nn.Sequential(DropPath(0.1)))
    assert share_drop_path(model, batch=4, place=0, count=2) == 1
    assert torch.equal(model.eval()(x), x)


# --- a full disk ------------------------------------------------------------------------------------------


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    path = tmp_path / "c.pt"

    def full(state, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(TrainingError, match=r"No space left on device\); .* MiB are free, and there is no"):
        checkpoint.save(path, {"step": 1})
    monkeypatch.undo()
    checkpoint.save(path, {"step": 1})
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(TrainingError, match="checkpoint before is intact: make room, and the same command"):
        checkpoint.save(path, {"step": 2})
    assert checkpoint.load(path) == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["c.pt"], (
        "the half that was written is no use and in the way"
    )


def test_a_run_that_may_write_no_more_says_so_and_continues(tmp_path):
    """A real limit of the system on file sizes, in a process of its own."""
    (tmp_path / "recipe").write_bytes(pickle.dumps(SUPERVISED))
    one = make_trainer(SUPERVISED, tmp_path / "run", seed=0)
    assert not one.run(minutes=0, progress=False)
    before = (tmp_path / "run/checkpoint.pt").read_bytes()
    script = START + (
        "import resource\n"
        "one = make_trainer(pickle.loads((folder / 'recipe').read_bytes()), folder / 'run', seed=0)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "try:\n"
        "    one.run(minutes=0, progress=False)\n"
        "except TrainingError as error:\n"
        "    sys.exit(str(error))\n"
    )
    (tmp_path / "worker.py").write_text(script)
    done = subprocess.run(
        [sys.executable, tmp_path / "worker.py", tmp_path],
        env=environment(RANK=0), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "checkpoint.pt could not be written ([Errno 27] File too large)" in done.stderr
    assert (tmp_path / "run/checkpoint.pt").read_bytes() == before
    assert not list((tmp_path / "run").glob("*.partial"))
    heir = make_trainer(SUPERVISED, tmp_path / "run", seed=0)
    assert heir.step == 1
    assert heir.run(progress=False)


def test_a_log_line_that_was_cut_short_spoils_no_other(tmp_path, monkeypatch):
    one = make_trainer(SUPERVISED, tmp_path, seed=0)
    (tmp_path / "train.jsonl").write_text('{"step": 1, "loss": 7.0}\n{"step": 2, "lo')
    assert one.run(progress=False)
    assert [entry["step"] for entry in read_log(tmp_path)] == [1, STEPS]

    def full(*args):
        raise OSError(28, "No space left on device")

    one.step = STEPS - 1
    monkeypatch.setattr("vitscope.pretrain.log.append", full)
    with pytest.raises(TrainingError, match=f"No space left on device at step {STEPS}; the last"):
        one.run(progress=False)
