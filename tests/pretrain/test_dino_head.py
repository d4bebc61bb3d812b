"""DINO's loss, head and teacher against slow arithmetic, and the alarms."""

import dataclasses
import math

import pytest
import torch
from torch.nn import functional as F

from vitscope.pretrain.dino_alarm import Alarm, Step
from vitscope.pretrain.dino_head import Dino, Head, dino_loss, sinkhorn
from vitscope.pretrain.dino_optimizers import make_optimizers
from vitscope.pretrain.dino_recipe import DINO_VITS16, DinoRecipe
from vitscope.pretrain.failures import TrainingError
from vitscope.pretrain.zoo import VARIANTS, Architecture

TINY = Architecture(width=32, depth=2, heads=2)
RECIPE = DinoRecipe(TINY, images=400, batch=4, prototypes=16, hidden=24, bottleneck=8)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def slow_loss(student, teacher):
    total, pairs = 0.0, 0
    for g in range(len(teacher)):
        for v in range(len(student)):
            if g == v:
                continue
            pairs += 1
            for n in range(student.shape[1]):
                scores = student[v, n].tolist()
                norm = math.log(sum(math.exp(s) for s in scores))
                total += sum(-q * (s - norm) for q, s in zip(teacher[g, n].tolist(), scores, strict=True))
    return total / pairs / student.shape[1]


@pytest.mark.parametrize(("views", "globals_"), [(6, 2), (2, 2), (3, 1)])
def test_loss_against_a_loop_over_pairs(views, globals_):
    student, teacher = 3 * normal(views, 3, 5), normal(globals_, 3, 5, seed=1).softmax(-1)
    assert dino_loss(student, teacher).item() == pytest.approx(slow_loss(student, teacher), rel=1e-12)


def test_loss_is_the_teachers_entropy_where_student_and_teacher_agree():
    q = normal(1, 4, 7).softmax(-1)
    entropy = -(q * q.log()).sum(-1).mean()
    student = q.log().expand(5, 4, 7) + 3.0  # a constant added to scores changes nothing
    torch.testing.assert_close(dino_loss(student, q.expand(2, 4, 7)), entropy)


def test_a_view_never_learns_from_its_own_crop():
    student, teacher = normal(2, 3, 5).requires_grad_(), normal(2, 3, 5, seed=1).softmax(-1)
    other = teacher.clone()
    other[0] = normal(3, 5, seed=2).softmax(-1)
    grads = [torch.autograd.grad(dino_loss(student, t), student)[0] for t in (teacher, other)]
    torch.testing.assert_close(grads[0][0], grads[1][0], atol=1e-15, rtol=0)
    assert not torch.allclose(grads[0][1], grads[1][1])


def test_gradient_of_the_loss():
    teacher = normal(2, 2, 4, seed=1).softmax(-1)
    assert torch.autograd.gradcheck(lambda s: dino_loss(s, teacher), normal(4, 2, 4).requires_grad_())


def test_loss_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"got \[2, 3, 5\] and \[2, 3, 4\]"):
        dino_loss(normal(2, 3, 5), normal(2, 3, 4))
    with pytest.raises(ValueError, match="G ≤ V"):
        dino_loss(normal(1, 3, 5), normal(2, 3, 5))
    with pytest.raises(ValueError, match="no pair of different views"):
        dino_loss(normal(1, 3, 5), normal(1, 3, 5))


def test_head_scores_are_cosines_of_the_bottleneck():
    head = Head(32, prototypes=6, hidden=24, bottleneck=8).double()
    x = normal(5, 32)
    points, rows = head.mlp(x), head.last
    slow = torch.stack([F.cosine_similarity(points, row[None], dim=1) for row in rows], dim=1)
    torch.testing.assert_close(head(x), slow)
    with torch.no_grad():
        head.last.mul_(7.0)
    torch.testing.assert_close(head(x), slow)


def test_learned_lengths_start_at_one_and_scale_the_scores():
    torch.manual_seed(0)
    head = Head(32, prototypes=6, hidden=24, bottleneck=8, learn_norm=True)
    x = normal(5, 32, dtype=torch.float32)
    before = head(x)
    assert bool((before.abs() <= 1 + 1e-5).all())
    with torch.no_grad():
        head.length[2] = 3.0
    torch.testing.assert_close(head(x)[:, 2], 3 * before[:, 2])


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_both_networks_hold_the_plain_architectures_tensors_and_start_equal(variant):
    architecture = dataclasses.replace(TINY, **VARIANTS[variant])
    torch.manual_seed(0)
    model = Dino(dataclasses.replace(RECIPE, architecture=architecture))
    plain = architecture.build()
    for network in (model.student, model.teacher):
        plain.load_state_dict(network.state_dict(), strict=True)
        x = normal(2, 3, 64, 64, dtype=torch.float32)
        torch.testing.assert_close(network.eval()(x), plain.eval()(x))
        assert network(x[..., :32, :32]).shape == (2, 32)  # another grid: position embedding resampled


def test_teacher_is_the_moving_average_and_learns_nothing_itself():
    torch.manual_seed(0)
    model = Dino(RECIPE).train()
    assert not model.teacher.training
    assert model.student.training
    assert not any(p.requires_grad for p in [*model.teacher.parameters(), *model.teacher_head.parameters()])
    with torch.no_grad():
        for p in model.learning():
            p.add_(1.0)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.follow(0.75)
    after = model.state_dict()
    for key in after:
        if key.startswith("teacher"):
            wanted = 0.75 * before[key] + 0.25 * before[key.replace("teacher", "student", 1)]
            torch.testing.assert_close(after[key], wanted)
        else:
            assert torch.equal(after[key], before[key])


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_student_parameter_has_one_update_and_vectors_are_not_decayed(optimizer):
    recipe = dataclasses.replace(RECIPE, optimizer=optimizer)
    model = Dino(recipe)
    optimizers = make_optimizers(model, recipe)
    assert len(optimizers) == (2 if optimizer == "muon" else 1)
    groups = [g for o in optimizers for g in o.param_groups]
    moved = [id(p) for g in groups for p in g["params"]]
    assert sorted(moved) == sorted(id(p) for p in model.learning())
    assert all(g["decayed"] == (p.ndim >= 2) for g in groups for p in g["params"])


# --- alarms -----------------------------------------------------------------------------------------------


LN_K = math.log(16)
HEALTHY = Step(3.0, 2.0, 1.0, 0.5, 0.8, 0.3, 1.0)


@pytest.mark.parametrize(
    ("sick", "message"),
    [
        ({"teacher_entropy": LN_K}, "answers are uniform.*lower teacher_temperature"),
        ({"kl_uniform": LN_K}, "one prototype.*raise teacher_temperature"),
        ({"feature_std": 0.0}, "features are one point.*lower the learning rate"),
    ],
)
def test_each_collapse_is_named_after_enough_steps_in_a_row(sick, message):
    alarm = Alarm(dataclasses.replace(RECIPE, alarm_after=0.1, alarm_steps=3))
    bad = HEALTHY._replace(**sick)
    for step in range(1, 11):  # the first tenth of 100 steps is not looked at
        alarm.look(step, bad)
    for step in (11, 12):
        alarm.look(step, bad)
    alarm.look(13, HEALTHY)  # one good step starts the count again
    for step in (14, 15):
        alarm.look(step, bad)
    with pytest.raises(TrainingError, match=f"collapse at step 16: .*{message}"):
        alarm.look(16, bad)


def test_health_raises_no_alarm():
    alarm = Alarm(dataclasses.replace(RECIPE, alarm_after=0.0, alarm_steps=1))
    for step in range(1, 50):
        alarm.look(step, HEALTHY)
    assert set(alarm.counts.values()) == {0}


# --- prototypes shared evenly -----------------------------------------------------------------------------


def slow_sinkhorn(scores, temperature, iterations):
    """The matrix scaling of SwAV's appendix, on plain numbers; all samples count the same from the start."""
    q = (scores.flatten(0, 1) / temperature).exp().T  # prototypes × samples
    q /= q.sum(0, keepdim=True) * q.shape[1]
    for _ in range(iterations):
        q /= q.sum(1, keepdim=True) * len(q)
        q /= q.sum(0, keepdim=True) * q.shape[1]
    return (q * q.shape[1]).T.view(scores.shape)


def test_sinkhorn_against_the_plain_scaling():
    scores = normal(2, 6, 5).tanh()
    torch.testing.assert_close(sinkhorn(scores, 0.1), slow_sinkhorn(scores, 0.1, 3))
    torch.testing.assert_close(sinkhorn(scores, 0.1, iterations=9), slow_sinkhorn(scores, 0.1, 9))


def test_sinkhorn_shares_the_prototypes_and_forgets_what_they_have_in_common():
    scores = normal(2, 20, 8, seed=3).tanh()
    answers = sinkhorn(scores, 0.1, iterations=200)
    torch.testing.assert_close(answers.sum(-1), torch.ones(2, 20, dtype=torch.float64))
    torch.testing.assert_close(answers.sum((0, 1)), torch.full((8,), 40 / 8, dtype=torch.float64))
    moved = sinkhorn(scores + normal(8, seed=4), 0.1, iterations=200)  # a centre of any kind drops out
    torch.testing.assert_close(moved, answers)


def test_sinkhorn_stays_finite_where_single_precision_would_not():
    scores = torch.tensor([[[1.0, -1.0, 0.0], [1.0, -1.0, 0.0], [0.9, -1.0, 0.1]]])
    assert (scores / 0.005).exp().isinf().any()
    answers = sinkhorn(scores, 0.005, iterations=50)
    assert answers.dtype == torch.float32
    assert answers.isfinite().all()
    torch.testing.assert_close(answers.sum(-1), torch.ones(1, 3))
    assert (answers.sum((0, 1)) > 0.1).all(), "a prototype 200 nats away is used"


def test_sinkhorn_of_halves_is_that_of_the_whole():
    """What several processes do: each scales its part, columns by the mean over all parts."""
    scores = normal(2, 6, 5, seed=5).tanh()
    halves = [scores[:, :3], scores[:, 3:]]
    logs = [(h / 0.1).log_softmax(-1) for h in halves]
    means = []
    for _ in range(3):
        means.append(torch.stack([log.flatten(0, 1).exp().sum(0) for log in logs]).mean(0))
        logs = [(log - means[-1].log()).log_softmax(-1) for log in logs]
    whole = sinkhorn(scores, 0.1)
    for n, half in enumerate(halves):
        given = iter(means)
        found = sinkhorn(half, 0.1, mean=lambda _, given=given: next(given))
        torch.testing.assert_close(found, whole[:, 3 * n : 3 * n + 3])


@pytest.mark.parametrize(("temperature", "iterations"), [(0.0, 3), (0.1, 0)])
def test_sinkhorn_refuses_settings_without_meaning(temperature, iterations):
    with pytest.raises(ValueError, match="need temperature > 0 and iterations ≥ 1"):
        sinkhorn(torch.zeros(1, 2, 3), temperature, iterations=iterations)


# --- recipe -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"views": "pairs"}, "views must be one of renders, crops, got 'pairs'"),
        ({"optimizer": "sgd"}, "optimizer must be one of"),
        ({"centring": "none"}, "centring must be one of mean, sinkhorn, got 'none'"),
        ({"architecture": dataclasses.replace(TINY, num_classes=3)}, "num_classes must be 0"),
        ({"local_size": 20}, "local_size must be a positive multiple of the patch size 8, got 20"),
        ({"global_size": 0}, "global_size must be"),
        ({"local_scale": (0.0, 0.5)}, "local_scale needs 0 < low"),
        ({"teacher_temperature": (0.0, 0.04)}, "temperatures must be positive"),
        ({"ema": 1.5}, "0 ≤ ema ≤ 1"),
        ({"batch": 500}, "batch 500 and images 400"),
    ],
)
def test_recipes_that_cannot_be_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(RECIPE, **change)


def test_the_papers_recipe():
    assert DINO_VITS16.steps == 200 * 1_281_167 // 1024
    assert DINO_VITS16.describe()["objective"] == "DINO self-distillation"
    assert DINO_VITS16.lr_adamw == pytest.approx(2e-3)
