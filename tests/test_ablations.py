"""Ablations of VFusion: what changes and what stays, nested parts, backbones whose answers are known."""

from dataclasses import replace

import numpy as np
import pytest

from planted_tasks import two_bits
from vitscope import ablation_report as report
from vitscope import ablations, heads_report
from vitscope.comparison import compare
from vitscope.frozen import Part, Task
from vitscope.fusion import ConcatLinear, SelectionBudget, VFusion

BUDGET = SelectionBudget(configurations=2, steps=80)
BASE = VFusion(hidden=16, latent=8, budget=BUDGET)


@pytest.fixture(scope="module")
def compared():
    """Three states: one bit in the first, one in the last, so that dropping the first costs half."""
    heads = ablations.variants(BASE, 3, latents=[4], penalties=[0.0, 0.1])
    one = ablations.with_best_penalty(compare(two_bits(backbone="a"), heads, seed=0))
    twin = replace(one, task=replace(one.task, backbone="b"))  # a second backbone that answers alike
    return {("a", "bits"): one, ("b", "bits"): twin}


def test_one_thing_is_changed_and_the_budget_stays():
    made = ablations.variants(BASE, 12, latents=[4, 8], penalties=[0.0, 1.0])
    assert list(made) == [
        "VFusion", "SuperLearner", "last half", "every second", "last states: 1", "last states: 2",
        "last states: 4", "linear encoder", "latent 4", "λ = 0", "λ = 1",
    ]  # fmt: skip
    assert all(head.budget == BUDGET and head.fitted is None for head in made.values())
    for name, field in {"last half": "states", "linear encoder": "encoder", "latent 4": "latent"}.items():
        assert replace(made[name], **{field: getattr(BASE, field)}) == BASE
    assert made["VFusion"] is not BASE


def test_the_last_states_are_those_at_the_end():
    head = ablations.LastStates(last=2, hidden=16, latent=8)
    assert head._kept([[5, 6], [1, 6]]) == [[3, 4], [0]]
    with pytest.raises(ValueError, match="at least one state is needed, got last=0"):
        ablations.LastStates(last=0)


def test_dropping_a_state_that_has_a_bit_costs_that_bit(compared):
    assert report.difference(compared, "last states: 1", "VFusion")["value"] < -30
    assert abs(report.difference(compared, "every second", "VFusion")["value"]) < 10  # states 1 and 3
    assert report.difference(compared, "VFusion", "VFusion")["spread"] == (0, 0)


def test_the_penalised_head_is_chosen_on_validation(compared):
    for each in compared.values():
        assert np.array_equal(each.right["λ > 0"], each.right["λ = 0.1"])
    assert report.penalty_gain(compared)["value"] is not None
    table = report.penalty_table(compared)
    assert table["penalty"].tolist() == ["λ = 0", "λ = 0.1"]
    assert table["preferred on tasks"].sum() == len(compared)


def test_without_a_control_the_penalty_has_no_gain():
    bare = ablations.with_best_penalty(compare(two_bits(), {"VFusion": replace(BASE)}, seed=0))
    assert "λ > 0" not in bare.right
    assert report.penalty_gain({("a", "bits"): bare})["value"] is None


# --- parts of the training images -------------------------------------------------------------------------


def test_parts_are_nested_and_keep_every_class():
    task = two_bits()
    parts = [ablations.portion(task, share, seed=3).train for share in (0.01, 0.25, 0.5, 1.0)]
    seen = [{tuple(x) for x in part.features[0].tolist()} for part in parts]
    assert seen[0] < seen[1] < seen[2] < seen[3]
    assert len(parts[3]) == len(task.train)
    assert all(set(part.labels) == set(task.classes) for part in parts)
    assert len(parts[0]) == 2 * len(task.classes)
    counts = [(task.train.labels == name).sum() for name in task.classes]
    assert len(parts[2]) == sum(int(np.ceil(0.5 * n)) for n in counts)


def test_groups_stay_whole_and_labels_stay_with_their_features():
    plain = two_bits()
    groups = np.array([f"{label} {k % 5}" for k, label in enumerate(plain.train.labels)])
    train = Part(plain.train.features, plain.train.labels, groups, {"identity": groups}, 0)
    task = Task("planted", "bits", "cls", "none", plain.classes, train, plain.test)
    part = ablations.portion(task, 0.4, seed=0).train
    for name in set(part.groups):
        assert (part.groups == name).sum() == (groups == name).sum()
    assert part.extras["identity"].tolist() == part.groups.tolist()
    rows = {
        tuple(x): label for x, label in zip(plain.train.features[0].tolist(), plain.train.labels, strict=True)
    }
    assert [rows[tuple(x)] for x in part.features[0].tolist()] == part.labels.tolist()
    with pytest.raises(ValueError, match=r"lies in \(0, 1\], got 1.5"):
        ablations.portion(task, 1.5, seed=0)


# --- backbones --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fused():
    """Two backbones whose last states have one bit each; neither has the other's at any depth."""
    one = two_bits(backbone="one", informative=(2,), width=6)
    other = two_bits(backbone="other", informative=(), width=7)
    bits = {"train": one.train, "test": one.test}
    for side, part in (("train", other.train), ("test", other.test)):
        second = np.array([float(label[-1]) for label in bits[side].labels])
        part.features[2, :, 1] += 8.0 * part.features.new_tensor(second)
    return {task.backbone: compare(task, ablations.with_rival(BASE), seed=0) for task in (one, other)}


def test_fusing_backbones_finds_what_none_of_them_has(fused):
    found = ablations.horizontal(fused, BASE, seed=0)
    assert found.accuracy(ablations.VERTICAL) < 65
    assert found.accuracy(ablations.HORIZONTAL) > 80
    assert found.accuracy(ablations.BOTH) > found.accuracy(ablations.VERTICAL) + 5
    assert found.accuracy(ablations.VOTES) > 70  # votes of halves add up to the whole
    assert found.backbones == 2
    across = {"bits": found}
    assert report.across_difference(across, ablations.HORIZONTAL)["value"] > 25
    table = report.horizontal_table(across).set_index("method")
    assert table.loc[ablations.VERTICAL, "backbones"] == 1
    assert table.loc[ablations.BOTH, "backbones"] == 2
    assert "4 values of method" in report.horizontal_figure(across).alt


def test_backbones_must_be_several_and_have_seen_the_same_images(fused):
    with pytest.raises(ValueError, match="needs two of them, got 1"):
        ablations.horizontal({"one": fused["one"]}, BASE, seed=0)
    elsewhere = compare(two_bits(seed=5, backbone="elsewhere"), {"VFusion": replace(BASE)}, seed=0)
    with pytest.raises(ValueError, match="elsewhere and one saw different images of bits"):
        ablations.horizontal({"one": fused["one"], "elsewhere": elsewhere}, BASE, seed=0)
    assert report.across_difference({}, ablations.BOTH)["value"] is None


# --- figures and tables -----------------------------------------------------------------------------------


def test_figures_show_every_change_with_its_number(compared):
    changes = report.change_figure(compared)
    assert changes.data["method"].tolist() == report.changed(compared)
    assert "SuperLearner" not in report.changed(compared)
    assert "last states: 1 -" in changes.alt
    last = report.last_states_figure(compared).data
    assert sorted(set(last["states"])) == [1, 2, 3]
    cost = report.cost_figure(compared).data
    assert set(cost["what"]) == {
        "last half", "every second", "linear encoder", "last states", "latent", "all states",
    }  # fmt: skip
    assert report.gain_figure(compared).data["backbone"].tolist() == ["a", "b"]


def test_images_are_counted_at_each_share(compared):
    few = {key: compare(ablations.portion(c.task, 0.5, seed=0), ablations.with_rival(BASE), seed=0)
           for key, c in compared.items()}  # fmt: skip
    by_share = {0.5: few, 1.0: compared}
    table = report.images_table(by_share)
    assert table["images"].tolist()[1] == 120
    assert table["images"].tolist()[0] < 65
    assert set(report.images_figure(by_share).data["method"]) == {"VFusion", "BestLayer", "SuperLearner"}


def test_the_heads_report_says_what_was_tried_chosen_and_looked_at(compared):
    first = compared["a", "bits"]
    budget = heads_report.budget_table(first).set_index("method")
    assert budget.loc["VFusion", "tried"] == 2
    assert budget.loc["BestLayer", "chosen"] in {"state 1", "state 3"}
    assert budget.loc["LastLayer", "of probes"] == 7 * 4
    assert budget.loc["SuperLearner", "of probes"] == 3 * 7 * 4
    importance = heads_report.importance_figure(compared, "bits", seed=0)
    loss = importance.data.set_index(["backbone", "state"])["loss"]
    assert loss["a", 1] > 20
    assert abs(loss["a", 2]) < 8
    weights = heads_report.weight_figure(compared, "bits")
    assert weights.data.groupby("backbone")["weight"].sum().tolist() == pytest.approx([1, 1])
    layers = heads_report.chosen_layer_table(compared)
    assert (layers["its lead"] >= 0).all()
    times = heads_report.time_table(compared)
    assert list(times.columns) == ["seconds", "ms per 1000 images"]
    assert heads_report.task_table({k: c.task for k, c in compared.items()})["states"].tolist() == [3, 3]


def test_warnings_are_said_once_with_their_tasks():
    heads = {"ConcatLinear": ConcatLinear(budget=SelectionBudget(configurations=1))}
    found = {(name, "bits"): compare(two_bits(backbone=name), dict(heads), seed=0) for name in ("a",)}
    for text in heads_report.warnings(found).values():
        assert text.endswith("(bits of a)")
