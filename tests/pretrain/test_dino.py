"""DINO training from outside: bit-equal continuation, alarms, what is written, and several processes."""

import dataclasses
import json
import math
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from processes import run_two
from vitscope import weights
from vitscope.data import emoji
from vitscope.pretrain import supervised
from vitscope.pretrain.dino import DinoTrainer
from vitscope.pretrain.dino_folder import FolderViews
from vitscope.pretrain.dino_head import dino_loss, sinkhorn
from vitscope.pretrain.dino_monitor import NearestRenders, knn_identity, monitor_pictures
from vitscope.pretrain.dino_recipe import DinoRecipe
from vitscope.pretrain.failures import TrainingError
from vitscope.pretrain.log import read_log
from vitscope.pretrain.multicrop import RenderViews
from vitscope.pretrain.zoo import Architecture, read_weights

STEPS = 4
RECIPE = DinoRecipe(
    Architecture(width=32, depth=2, heads=2), images=4 * STEPS, batch=4, precision="fp32", local_crops=2,
    prototypes=16, hidden=24, bottleneck=8, optimizer="muon", freeze_last=0.25, monitor_every=10**9,
    snapshots=(0, 8),
)  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Draw each batch once, and do not ask the monitor."""
    real, drawn = RenderViews.batch, {}

    def batch(self, start, count):
        key = (self.seed, self.recipe.views, start, count)
        if key not in drawn:
            drawn[key] = real(self, start, count)
        return [x.clone() for x in drawn[key]]

    monkeypatch.setattr(RenderViews, "batch", batch)
    monkeypatch.setattr(DinoTrainer, "monitor", lambda self: {})


def trainer(folder, seed=0, **changes) -> DinoTrainer:
    return DinoTrainer(dataclasses.replace(RECIPE, **changes), folder, seed=seed)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    one = trainer(folder)
    assert one.run(progress=False)
    return one


# --- determinism and resumption ---------------------------------------------------------------------------


def test_two_runs_of_one_seed_are_bit_equal(tmp_path, whole):
    torch.manual_seed(1234)  # the caller's random state does not matter
    again = trainer(tmp_path)
    again.run(progress=False)
    assert weights.digest(again.model) == weights.digest(whole.model)
    other = trainer(tmp_path / "other", seed=1)
    other.run(progress=False)
    assert weights.digest(other.model) != weights.digest(whole.model)


@pytest.mark.parametrize(
    "changes",
    [{}, {"drop_path": 0.5, "optimizer": "adamw"}, {"centring": "sinkhorn"}],
    ids=["muon", "drop path", "sinkhorn"],
)
def test_cut_into_pieces_it_ends_bit_equal(tmp_path, changes):
    one = trainer(tmp_path / "whole", **changes)
    one.run(progress=False)
    for _ in range(STEPS):
        part = trainer(tmp_path / "part", **changes)
        part.run(minutes=0, progress=False)
    assert part.finished
    assert weights.digest(part.model) == weights.digest(one.model)


def test_drop_path_leaves_the_callers_random_numbers_alone(tmp_path):
    one = trainer(tmp_path, drop_path=0.5)
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    one.train_step()
    assert torch.equal(torch.rand(3), wanted)


def test_killed_after_a_step_it_continues_from_the_last_checkpoint(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(supervised, "CHECKPOINT_EVERY", 0.0)

    class Killed(BaseException):
        pass

    real = DinoTrainer.train_step

    def dying(self):
        if self.step == 2:
            raise Killed
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(DinoTrainer, "train_step", dying)
        with pytest.raises(Killed):
            trainer(tmp_path).run(progress=False)
    heir = trainer(tmp_path)
    assert heir.step == 2
    heir.run(progress=False)
    assert weights.digest(heir.model) == weights.digest(whole.model)


def test_other_recipe_seed_or_pictures_do_not_continue_a_folder(tmp_path):
    trainer(tmp_path).run(minutes=0, progress=False)
    with pytest.raises(TrainingError, match="another recipe or seed"):
        trainer(tmp_path, ema=0.9)
    with pytest.raises(TrainingError, match="another recipe or seed"):
        trainer(tmp_path, seed=1)
    with pytest.raises(TrainingError, match="begun with other pictures"):
        trainer(tmp_path, style="twemoji")


# --- a step -----------------------------------------------------------------------------------------------


def test_schedules_and_frozen_prototypes(tmp_path):
    one = trainer(tmp_path, teacher_temperature=(0.04, 0.08), teacher_warmup=0.5, learn_norm=False)
    first = one.model.student_head.last.detach().clone()
    seen = []
    for _ in range(STEPS):
        seen.append((one._temperature(), one._between(0.9, 1.0), one._between(0.04, 0.4)))
        one.train_step()
        moved = not torch.equal(one.model.student_head.last, first)
        assert moved == (one.step > 1)  # frozen for a quarter of the four steps
    temperatures, momenta, decays = zip(*seen, strict=True)
    assert temperatures == pytest.approx((0.04, 0.06, 0.08, 0.08))
    half = [0.5 * (1 - math.cos(math.pi * s / 3)) for s in range(4)]
    assert momenta == pytest.approx([0.9 + 0.1 * h for h in half])
    assert decays == pytest.approx([0.04 + 0.36 * h for h in half])
    groups = [g for o in one.optimizers for g in o.param_groups]
    assert {(g["decayed"], round(g["weight_decay"], 9)) for g in groups} == {(True, 0.4), (False, 0.0)}


def test_numbers_of_a_step_against_slow_ones(tmp_path):
    one = trainer(tmp_path)
    centre = one.model.centre.normal_(generator=torch.Generator().manual_seed(0)).mul_(0.01).clone()
    crops = one.views.batch(0, 4)
    model = one.model.eval()
    with torch.inference_mode():
        features = [model.teacher(c) for c in crops[:2]]
        teacher = torch.stack([model.teacher_head(f) for f in features]).double()
        student = torch.stack([model.student_head(model.student(c)) for c in crops]).double()
    q = ((teacher - centre) / 0.04).softmax(-1)
    loss = sum(
        -(q[g] * (student[v] / 0.1).log_softmax(-1)).sum(-1).mean()
        for g in range(2) for v in range(4) if v != g
    ) / 6  # fmt: skip
    found = one.train_step()
    assert found.loss == pytest.approx(float(loss), rel=1e-4)
    assert found.teacher_entropy == pytest.approx(float(-(q * q.log()).sum(-1).mean()), rel=1e-4)
    p = (student[:2] / 0.1).softmax(-1)
    assert found.student_entropy == pytest.approx(float(-(p * p.log()).sum(-1).mean()), rel=1e-4)
    mean = q.mean((0, 1))
    assert found.kl_uniform == pytest.approx(float((mean * (mean * 16).log()).sum()), rel=1e-3)
    unit = torch.nn.functional.normalize(torch.cat(features), dim=1)
    spread = unit.std(0, correction=0).mean() * math.sqrt(32)
    assert found.feature_std == pytest.approx(float(spread), rel=1e-3)
    assert found.agreement == (q[0].argmax(-1) == q[1].argmax(-1)).double().mean().item()
    torch.testing.assert_close(one.model.centre, 0.9 * centre + 0.1 * teacher.mean((0, 1)).float())


def test_teacher_answers_share_the_prototypes_with_sinkhorn(tmp_path):
    one = trainer(tmp_path, centring="sinkhorn")
    one.model.teacher_head.last.data[0] += 10  # one prototype that everything is nearest to
    crops = one.views.batch(0, 4)
    with torch.inference_mode():
        teacher = torch.stack([one.model.teacher_head(one.model.teacher(c)) for c in crops[:2]])
        student = torch.stack([one.model.student_head(one.model.student(c)) for c in crops])
    q = sinkhorn(teacher, 0.04)
    found = one.train_step()
    assert found.loss == pytest.approx(float(dino_loss(student / 0.1, q)), rel=1e-4)
    assert found.kl_uniform < 0.3, "of ln 16 = 2.77, which one prototype for all would be"


def test_nan_stops_and_leaves_the_checkpoint(tmp_path):
    one = trainer(tmp_path)
    one.run(minutes=0, progress=False)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    with torch.no_grad():
        one.model.student.norm.weight.fill_(math.nan)
    with pytest.raises(TrainingError, match="loss is nan at step 1"):
        one.run(progress=False)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher_temperature": (50.0, 50.0)}, "answers are uniform"),
        ({"alarm_feature_std": 2.0}, "features are one point"),
    ],
)
def test_a_collapsed_training_stops(tmp_path, changes, message):
    one = trainer(tmp_path, alarm_after=0.0, alarm_steps=2, **changes)
    with pytest.raises(TrainingError, match=f"collapse at step 2: .*{message}"):
        one.run(progress=False)


def test_views_that_give_too_little_are_refused(tmp_path):
    one = trainer(tmp_path)
    one.views = type("Few", (), {"batch": lambda self, start, count: [torch.zeros(count, 3, 64, 64)]})()
    with pytest.raises(TrainingError, match=r"4 crops of 4 samples are needed, the views gave \[\[4, 3, 64"):
        one.train_step()
    with pytest.raises(TrainingError, match="give views=FolderViews"):
        trainer(tmp_path / "other", source="folder")


# --- what is written --------------------------------------------------------------------------------------


def test_log_snapshots_and_published_teacher(whole, tmp_path):
    (entry,) = list(read_log(whole.folder))
    assert entry["step"] == STEPS
    assert entry["images"] == RECIPE.images
    for key in ("loss", "teacher_entropy", "student_entropy", "kl_uniform", "feature_std", "rate"):
        assert math.isfinite(entry[key])
    assert sorted(p.name for p in (whole.folder / "snapshots").iterdir()) == [
        "0000000.safetensors", "0000008.safetensors",
    ]  # fmt: skip
    path = whole.publish(tmp_path, "dino_tiny")
    model, architecture = read_weights(path)
    assert architecture == RECIPE.architecture
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(model(x), whole.model.teacher(x), atol=0.02, rtol=0.01)  # fp16 file
        assert not torch.allclose(model(x), whole.model.student.eval()(x), atol=0.02, rtol=0.01)


def test_the_monitor_is_asked_at_its_images_and_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(DinoTrainer, "monitor", lambda self: {"knn_identity": float(self.step)})
    one = trainer(tmp_path, monitor_every=8)
    one.step = 3
    for step, asked in [(1, False), (2, True), (3, False), (4, True)]:
        one.step = step
        one._log([(0.0,) * 7])
        last = json.loads((tmp_path / "train.jsonl").read_text().splitlines()[-1])
        assert ("knn_identity" in last) == asked


# --- monitor ----------------------------------------------------------------------------------------------


class Pixels(torch.nn.Module):
    """A backbone that looks at a coarse picture."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return torch.nn.functional.avg_pool2d(x, 16).flatten(1) * self.weight


def test_knn_against_a_loop():
    pictures, chosen = monitor_pictures("noto", (0.55, 1.0), 12, 3)
    assert pictures.shape == (3, 12, 3, 64, 64)
    features = [[Pixels()(supervised.normalise(p[None]))[0].detach() for p in row] for row in pictures]
    groups = emoji.identities()["group"].to_numpy()[chosen]
    right = same = 0
    for i in range(12):
        cosines = {
            (r, j): torch.cosine_similarity(features[2][i], features[r][j], dim=0).item()
            for r in range(2) for j in range(12)
        }  # fmt: skip
        best = max(cosines, key=cosines.get)[1]
        right += best == i
        same += groups[best] == groups[i]
    found = knn_identity(Pixels(), identities=12, renders=3, batch=5)
    assert found["identity"] == round(100 * right / 12, 2)
    assert found["group"] == round(100 * same / 12, 2)
    assert found["chance_identity"] == 8.333


def test_a_backbone_that_knows_nothing_is_near_chance_and_nan_is_refused():
    class Blind(Pixels):
        def forward(self, x):
            return torch.ones(len(x), 4) * self.weight

    assert knn_identity(Blind(), identities=12, renders=3)["identity"] <= 100 / 12 + 1e-2
    broken = Pixels()
    torch.nn.init.constant_(broken.weight, math.nan)
    with pytest.raises(ValueError, match="not finite"):
        knn_identity(broken, identities=12, renders=3)
    with pytest.raises(ValueError, match="2 or more renders are needed"):
        knn_identity(Pixels(), identities=12, renders=1)


def test_nearest_renders_score_classes_by_their_best_render():
    bank = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    model = NearestRenders(torch.nn.Identity(), bank, torch.tensor([0, 1, 1]), 2)
    found = model(torch.tensor([[2.0, 0.0], [1.0, 2.0]]))
    r = math.sqrt(0.5)
    torch.testing.assert_close(found, torch.tensor([[1.0, r], [1 / math.sqrt(5), 3 * r / math.sqrt(5)]]))
    with pytest.raises(ValueError, match="a picture of each of 3 classes"):
        NearestRenders(torch.nn.Identity(), bank, torch.tensor([0, 1, 1]), 3)


# --- a folder, end to end ---------------------------------------------------------------------------------


def test_training_on_a_folder_of_pictures(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(8):
        path = tmp_path / "pictures" / f"class{i % 2}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (48, 60 + i, 3), dtype=np.uint8)).save(path)
    shape = Architecture(32, 2, 2, img_size=48, patch_size=16)
    recipe = dataclasses.replace(RECIPE, source="folder", views="crops", architecture=shape)

    def build():
        views = FolderViews(tmp_path / "pictures", recipe, 0)
        return DinoTrainer(recipe, tmp_path / "run", seed=0, views=views)

    build().run(minutes=0, progress=False)
    one = build()
    assert one.step == 1
    assert one.run(progress=False)
    model, _ = read_weights(one.publish(tmp_path, "folder"))
    assert model(torch.zeros(1, 3, 48, 48)).shape == (1, 32)
    (tmp_path / "pictures" / "class0" / "0.jpg").unlink()
    with pytest.raises(TrainingError, match="begun with other pictures"):
        build()


# --- several processes ------------------------------------------------------------------------------------

WORKER = """
import dataclasses, json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from vitscope.pretrain.dino import DinoTrainer
from vitscope.pretrain.dino_recipe import DinoRecipe
from vitscope.pretrain.zoo import Architecture
DinoTrainer.monitor = lambda self: {}
fields = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(sys.argv[2]).items()}
recipe = DinoRecipe(**{**fields, "architecture": Architecture(**fields["architecture"])})
one = DinoTrainer(recipe, Path(sys.argv[1]), seed=0)
losses = []
real = one.train_step
def step():
    found = real()
    losses.append(list(found))
    return found
one.train_step = step
assert one.run(progress=False)
Path(sys.argv[1], f"losses{one.ranks.rank}.json").write_text(json.dumps(losses))
if one.ranks.first:
    one.publish(Path(sys.argv[1]), "two")
"""


@pytest.mark.parametrize("centring", ["mean", "sinkhorn"])
def test_two_processes_train_as_one_does(tmp_path, centring):
    # AdamW: Muon's bf16 iteration blows rounding up
    one = trainer(tmp_path / "one", optimizer="adamw", centring=centring)
    fields = dataclasses.asdict(one.recipe)
    run_two(WORKER, tmp_path, tmp_path / "run", json.dumps(fields))
    ours, theirs = (json.loads((tmp_path / f"run/losses{rank}.json").read_text()) for rank in range(2))
    assert ours == theirs, "numbers are means over both processes"
    alone = [list(one.train_step()) for _ in range(STEPS)]
    assert ours[0] == pytest.approx(alone[0], rel=1e-4, abs=1e-5)
    assert [step[0] for step in ours] == pytest.approx([step[0] for step in alone], abs=1e-4)
    assert len(list(read_log(tmp_path / "run"))) == 1, "only the first process writes"
    two, _ = read_weights(tmp_path / "run/two.safetensors")
    for (name, a), b in zip(two.named_parameters(), one.model.teacher.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3, msg=lambda m, name=name: f"{name}: {m}")


def test_no_deprecated_call(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(tmp_path).train_step()
