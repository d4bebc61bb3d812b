"""Training: cut anywhere and continued it ends bit-equal; it stops where it must."""

import dataclasses
import json
import math
import warnings

import pytest
import torch
from torch.nn import functional as F

from helpers import tiny_zoo_model
from processes import run_two
from vitscope import weights
from vitscope.data import emoji
from vitscope.pretrain import checkpoint, supervised
from vitscope.pretrain.failures import TrainingError
from vitscope.pretrain.log import read_log
from vitscope.pretrain.supervised import Trainer, normalise
from vitscope.pretrain.zoo import Architecture, SupervisedRecipe, read_weights

CLASSES = int((~emoji.identities()["held_out"]).sum())
STEPS = 6
RECIPE = SupervisedRecipe(
    Architecture(width=32, depth=2, heads=2, num_classes=CLASSES), images=4 * STEPS, batch=4, precision="fp32"
)


@pytest.fixture(autouse=True)
def cached_renders(monkeypatch):
    """Every trainer here sees the same few renders; draw each batch once."""
    from vitscope.pretrain.stream import IdentityStream

    real, drawn = IdentityStream.batch, {}

    def batch(self, start, count):
        key = (self.seed, self.style, start, count)
        if key not in drawn:
            drawn[key] = real(self, start, count)
        return tuple(x.clone() for x in drawn[key])

    monkeypatch.setattr(IdentityStream, "batch", batch)


def trainer(folder, recipe=RECIPE, seed=0) -> Trainer:
    return Trainer(recipe, folder, seed=seed)


def finished(folder, recipe=RECIPE, seed=0) -> str:
    one = trainer(folder, recipe, seed)
    assert one.run(progress=False)
    return weights.digest(one.model)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The weights of one uninterrupted run."""
    return finished(tmp_path_factory.mktemp("whole"))


# --- determinism and resumption ---------------------------------------------------------------------------


def test_two_runs_of_one_seed_are_bit_equal(tmp_path, whole):
    assert finished(tmp_path) == whole != finished(tmp_path / "other", seed=1)


def test_the_callers_random_state_does_not_matter(tmp_path, whole):
    torch.manual_seed(1234)
    assert finished(tmp_path) == whole


class Killed(BaseException):
    """Stands for a signal: nothing in the trainer may catch it and tidy up."""


@pytest.mark.parametrize("checkpoint_every", [0.0, 1e9], ids=["saved each step", "never saved"])
@pytest.mark.parametrize("step", range(STEPS))
def test_killed_at_any_step_and_continued_is_bit_equal(tmp_path, monkeypatch, whole, step, checkpoint_every):
    monkeypatch.setattr(supervised, "CHECKPOINT_EVERY", checkpoint_every)
    victim, real = trainer(tmp_path), Trainer.train_step

    def dying(self):
        result = real(self)
        if self.step == step + 1:
            raise Killed
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", dying)
        with pytest.raises(Killed):
            victim.run(progress=False)
    heir = trainer(tmp_path)
    assert heir.step == (step if checkpoint_every == 0 else 0), "what the last whole checkpoint holds"
    assert heir.run(progress=False)
    assert weights.digest(heir.model) == whole


def test_killed_while_saving(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(supervised, "CHECKPOINT_EVERY", 0.0)
    calls, real = [], checkpoint.save

    def dying(path, state):
        calls.append(1)
        if len(calls) == 3:
            path.with_suffix(".partial").write_bytes(b"half")
            raise Killed
        real(path, state)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", dying)
        with pytest.raises(Killed):
            trainer(tmp_path).run(progress=False)
    heir = trainer(tmp_path)
    assert heir.step == 2
    assert heir.run(progress=False)
    assert weights.digest(heir.model) == whole


@pytest.mark.parametrize(("native", "precision", "warned"), [(0, "bf16", 1), (1, "bf16", 0), (0, "fp32", 0)])
def test_a_cpu_without_bf16_is_warned_of(tmp_path, monkeypatch, native, precision, warned):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": bool(native)})
    recipe = dataclasses.replace(RECIPE, precision=precision)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Trainer(recipe, tmp_path, seed=0)
    said = [str(w.message) for w in caught if "no bf16 instructions" in str(w.message)]
    assert len(said) == warned


def test_bf16_resumes_bit_equal_too(tmp_path):
    recipe = dataclasses.replace(RECIPE, precision="bf16", images=12)
    reference = finished(tmp_path / "a", recipe)
    while not trainer(tmp_path / "b", recipe).run(minutes=0.0, progress=False):
        pass
    assert weights.digest(trainer(tmp_path / "b", recipe).model) == reference


def test_time_budget_stops_and_continues(tmp_path, whole):
    for step in range(1, STEPS + 1):
        one = trainer(tmp_path)
        assert one.step == step - 1
        done = one.run(minutes=0.0, progress=False)
        assert one.step == step
        assert done == one.finished == (step == STEPS)
    assert weights.digest(one.model) == whole
    assert one.seconds > 0
    again = trainer(tmp_path)  # a finished run stays finished and changes nothing
    assert again.run(progress=False)
    assert again.step == STEPS
    assert weights.digest(again.model) == whole


def test_seconds_add_up_over_pieces(tmp_path, monkeypatch):
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(supervised.time, "monotonic", lambda: float(next(clock)))
    first = trainer(tmp_path)
    first.run(minutes=0.0, progress=False)
    second = trainer(tmp_path)
    second.run(minutes=0.0, progress=False)
    assert second.seconds == 2 * first.seconds > 0


@pytest.mark.parametrize(
    "changes",
    [{"lr_muon": 1e-3}, {"batch": 2}, {"images": 28}, {"style": "twemoji"}, {"label_smoothing": 0.0}],
    ids=lambda c: next(iter(c)),
)
def test_checkpoint_of_another_recipe_is_refused(tmp_path, changes):
    trainer(tmp_path).save()
    with pytest.raises(TrainingError, match="belongs to another recipe or seed; choose another folder"):
        trainer(tmp_path, dataclasses.replace(RECIPE, **changes))
    with pytest.raises(TrainingError, match="another recipe or seed"):
        trainer(tmp_path, seed=1)


def test_recipe_for_other_data_is_refused(tmp_path):
    recipe = dataclasses.replace(RECIPE, architecture=tiny_zoo_model()[1])
    with pytest.raises(TrainingError, match=f"the recipe has 5 classes, the data {CLASSES}"):
        trainer(tmp_path, recipe)


# --- the step itself --------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(tmp_path):
    one = trainer(tmp_path)
    one.run(minutes=0.0, progress=False)
    saved = (tmp_path / "checkpoint.pt").read_bytes()
    one.model.head.bias.data[5] = float("nan")
    with pytest.raises(TrainingError, match="loss is nan at step 1; the last checkpoint is intact"):
        one.run(progress=False)
    assert (tmp_path / "checkpoint.pt").read_bytes() == saved
    assert trainer(tmp_path).step == 1


def test_loss_is_smoothed_cross_entropy_of_the_stream(tmp_path):
    one = trainer(tmp_path)
    pictures, labels = one.stream.batch(0, RECIPE.batch)
    with torch.no_grad():
        log_p = F.log_softmax(one.model.train()(normalise(pictures)).double(), dim=1)
    target = 0.1 / CLASSES + 0.9 * F.one_hot(labels, CLASSES)
    loss, accuracy = one.train_step()
    assert loss == pytest.approx(float(-(target * log_p).sum(1).mean()), rel=1e-5)
    assert accuracy == float((log_p.argmax(1) == labels).double().mean())


def test_rate_rises_and_falls_by_position_alone(tmp_path):
    recipe = dataclasses.replace(RECIPE, images=400, batch=4, warmup=0.1)
    one = trainer(tmp_path, recipe)
    rates = [one._rate(s) for s in range(recipe.steps)]
    expected = [(s + 1) / 10 if s < 10 else 0.5 * (1 + math.cos(math.pi * (s - 10) / 90)) for s in range(100)]
    assert rates == pytest.approx(expected)
    assert max(rates) == 1
    assert 0 < rates[-1] < 1e-3
    one.step = 4
    one.train_step()
    used = [group["lr"] for o in one.optimizers for group in o.param_groups]
    assert used == pytest.approx([rate * 0.5 for rate in one.base_rates])


def test_every_parameter_is_in_one_group_and_moves(tmp_path):
    one = trainer(tmp_path)
    grouped = [p for o in one.optimizers for group in o.param_groups for p in group["params"]]
    assert len({id(p) for p in grouped}) == len(grouped) == len(list(one.model.parameters()))
    before = {n: p.detach().clone() for n, p in one.model.named_parameters()}
    for _ in range(2):
        one.train_step()
    assert [n for n, p in one.model.named_parameters() if torch.equal(p, before[n])] == []
    decay = {id(p): g["weight_decay"] for o in one.optimizers for g in o.param_groups for p in g["params"]}
    assert {decay[id(p)] for p in one.model.parameters() if p.ndim < 2} == {0.0}


def test_it_learns_a_handful_of_renders(tmp_path, monkeypatch):
    """The same eight pictures again and again: the loss must fall far below chance."""
    recipe = dataclasses.replace(RECIPE, images=8 * 50, batch=8, label_smoothing=0.0, lr_adamw=1e-2)
    one = trainer(tmp_path, recipe)
    fixed = one.stream.batch(0, 8)
    monkeypatch.setattr(one.stream, "batch", lambda start, count: fixed)
    losses = [one.train_step()[0] for _ in range(recipe.steps)]
    assert losses[0] == pytest.approx(math.log(CLASSES), rel=0.1)
    assert losses[-1] < 1


# --- log and snapshots ------------------------------------------------------------------------------------


def test_log_of_an_interrupted_run_has_the_entries_of_a_whole_one(tmp_path, monkeypatch):
    """The card's curve is picked from the log by step: where a run was cut must not decide what is there."""
    recipe = dataclasses.replace(RECIPE, images=2 * 220, batch=2)
    monkeypatch.setattr(Trainer, "train_step", _counting)
    trainer(tmp_path / "a", recipe).run(progress=False)
    one = trainer(tmp_path / "b", recipe)
    budget = iter([False] * 36 + [True] + [False] * 1000)
    clock = [0.0]

    def tick():
        clock[0] += 61.0 if next(budget) else 0.0
        return clock[0]

    monkeypatch.setattr(supervised.time, "monotonic", tick)
    assert not one.run(minutes=1.0, progress=False)
    assert trainer(tmp_path / "b", recipe).run(progress=False)
    steps = {name: [e["step"] for e in read_log(tmp_path / name)] for name in "ab"}
    assert steps["a"] == [50, 100, 150, 200, 220]
    assert set(steps["a"]) <= set(steps["b"])


def _counting(self):
    self.step += 1
    return 1.0, 0.0


def test_log_keeps_the_last_entry_of_a_step(tmp_path):
    entries = [{"step": 50, "loss": 3.0}, {"step": 100, "loss": 2.0}, {"step": 50, "loss": 1.0}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(e) + "\n" for e in entries))
    assert list(read_log(tmp_path)) == [entries[2], entries[1]]


def test_log_entries_say_what_happened(tmp_path):
    one = trainer(tmp_path)
    one.run(progress=False)
    (entry,) = read_log(tmp_path)
    assert entry["step"] == STEPS
    assert entry["images"] == 4 * STEPS
    assert 0 <= entry["train_top1"] <= 1
    assert entry["loss"] == pytest.approx(math.log(CLASSES), rel=0.2)
    assert entry["rate"] == pytest.approx(one._rate(5), abs=1e-6)


def test_snapshots_are_taken_where_asked_and_only_once(tmp_path):
    recipe = dataclasses.replace(RECIPE, snapshots=(0, 8, 9))
    one = trainer(tmp_path, recipe)
    start = weights.digest(one.model.half().float())
    one = trainer(tmp_path, recipe)
    one.run(progress=False)
    files = sorted(p.name for p in (tmp_path / "snapshots").iterdir())
    assert files == ["0000000.safetensors", "0000008.safetensors"], "9 is no multiple of the batch"
    first, _ = read_weights(tmp_path / "snapshots" / files[0])
    assert weights.digest(first) == start


# --- several processes ------------------------------------------------------------------------------------

WORKER = """
import json, sys
from pathlib import Path
from vitscope.pretrain.supervised import Trainer
from vitscope.pretrain.zoo import Architecture, SupervisedRecipe
fields = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(sys.argv[2]).items()}
recipe = SupervisedRecipe(**{**fields, "architecture": Architecture(**fields["architecture"])})
one = Trainer(recipe, Path(sys.argv[1]), seed=0)
losses = [one.train_step() for _ in range(recipe.steps - 1)]
assert one.run(progress=True)  # the last step; only the first process shows its progress
Path(sys.argv[1], f"losses{one.ranks.rank}.json").write_text(json.dumps(losses))
"""


def test_two_processes_train_as_one_does(tmp_path):
    run_two(WORKER, tmp_path, tmp_path / "run", json.dumps(dataclasses.asdict(RECIPE)))
    ours, theirs = (json.loads((tmp_path / f"run/losses{rank}.json").read_text()) for rank in range(2))
    assert ours == theirs, "numbers are means over both processes"
    one = trainer(tmp_path / "one")
    alone = [list(one.train_step()) for _ in range(STEPS - 1)]
    assert ours[0] == pytest.approx(alone[0], rel=1e-5)
    # Muon's bf16 iteration blows rounding up
    assert [loss for loss, _ in ours] == pytest.approx([loss for loss, _ in alone], abs=1e-3)
    assert [entry["step"] for entry in read_log(tmp_path / "run")] == [STEPS], "only the first process writes"
    assert trainer(tmp_path / "run").finished, "its checkpoint serves one process as well"
