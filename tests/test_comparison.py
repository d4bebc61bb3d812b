"""Heads compared on one task: planted answers, honest choices, and what a head looks at."""

import numpy as np
import pytest
import torch

from planted_tasks import two_bits
from vitscope.comparison import (
    BEST_ON_TEST,
    across,
    compare,
    gap_closed,
    importance,
    separable,
    used_members,
)
from vitscope.frozen import Part, Task
from vitscope.fusion import ConcatLinear, LogitAverage, SelectionBudget, VFusion

SHORT = SelectionBudget(configurations=2, steps=150)


@pytest.fixture(scope="module")
def compared():
    heads = {"ConcatLinear": ConcatLinear(budget=SHORT), "LogitAverage": LogitAverage()}
    heads |= {"VFusion": VFusion(hidden=16, latent=8, budget=SHORT)}
    return compare(two_bits(), heads, seed=0)


def test_fusion_finds_what_no_single_state_has(compared):
    assert compared.accuracy("ConcatLinear") > 95
    assert compared.accuracy("VFusion") > 85
    assert 40 < compared.accuracy("BestLayer") < 60
    assert set(compared.right) == {
        "LastLayer", "BestLayer", "Oracle", "ConcatLinear", "LogitAverage", "VFusion", BEST_ON_TEST,
    }  # fmt: skip


def test_the_gap_is_0_for_the_best_layer_and_100_for_the_oracle(compared):
    table = compared.table.set_index("method")
    assert table.loc["BestLayer", "gap closed"] == 0
    assert table.loc["Oracle", "gap closed"] == 100
    for method in ("VFusion", "LogitAverage"):
        best, oracle = table.loc["BestLayer", "accuracy"], table.loc["Oracle", "accuracy"]
        expected = 100 * (table.loc[method, "accuracy"] - best) / (oracle - best)
        assert table.loc[method, "gap closed"] == pytest.approx(expected)
        assert table.loc[method, "gap low"] <= expected <= table.loc[method, "gap high"]


def test_accuracy_and_balanced_accuracy_are_shares_of_right_answers(compared):
    row = compared.table.set_index("method").loc["VFusion"]
    right, labels = compared.right["VFusion"], compared.task.test.labels
    assert row["accuracy"] == pytest.approx(100 * right.mean())
    assert row["balanced"] == pytest.approx(100 * np.mean([right[labels == c].mean() for c in set(labels)]))


def test_test_images_take_no_part_in_any_choice(compared):
    task = two_bits()
    flipped = Task(
        task.backbone, task.dataset, "cls", "none", task.classes, task.train,
        Part(-task.test.features, task.test.labels, None, {}, 0),
    )  # fmt: skip
    again = compare(flipped, {"VFusion": VFusion(hidden=16, latent=8, budget=SHORT)}, seed=0)
    ours, theirs = compared.heads["VFusion"].fitted.tensors, again.heads["VFusion"].fitted.tensors
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_a_second_test_part_is_only_predicted(compared):
    other = two_bits(seed=9)
    task = Task("planted", "elsewhere", "cls", "none", compared.task.classes, compared.task.train, other.test)
    moved = compared.tested_on(task)
    assert moved.heads is compared.heads
    assert moved.task.dataset == "elsewhere"
    assert moved.accuracy("ConcatLinear") == pytest.approx(
        100
        * compared.heads["ConcatLinear"].accuracy(other.test.features, None, other.test.labels)["accuracy"]
    )


def test_importance_finds_the_planted_states(compared):
    for method in ("VFusion", "ConcatLinear"):
        loss = importance(compared, method).set_index("state")["loss"]
        assert loss[1] > 30
        assert loss[3] > 30
        assert abs(loss[2]) < 5


def test_importance_is_of_heads_that_predict(compared):
    with pytest.raises(ValueError, match="Oracle answers with the labels in hand"):
        importance(compared, "Oracle")


def test_gap_closed_without_a_gap_says_so():
    right = np.array([True, False, True])
    found = gap_closed(right, right, right)
    assert found.value is None
    assert "right no more often" in found.reason


def test_errors_name_the_method_and_the_task():
    task = two_bits()
    broken = Part(task.train.features.clone(), task.train.labels, None, {}, 0)
    broken.features[1, 3] = float("nan")
    bad = Task("planted", "bits", "cls", "none", task.classes, broken, task.test)
    with pytest.raises(ValueError, match="1 images in state 1"):
        compare(bad, {}, seed=0)


def test_tables_of_several_tasks_are_one(compared):
    table = across({("a", "x"): compared, ("b", "x"): compared})
    assert list(table.columns[:3]) == ["backbone", "dataset", "method"]
    assert len(table) == 2 * len(compared.table)


def grouped(labels, groups):
    """A task of which only labels and groups matter."""
    part = Part(two_bits().train.features[:, : len(labels)], np.asarray(labels), np.asarray(groups), {}, 0)
    return Task("planted", "groups", "cls", "none", tuple(sorted(set(labels))), part, part)


def test_pictures_of_a_class_that_is_one_group_may_be_separated():
    names = separable(grouped(["a", "a", "a", "b", "b", "b"], [1, 1, 2, 3, 3, 3]))
    assert names[0] == names[1] != names[2]
    assert len(set(names.tolist())) == 5
    assert separable(grouped(["a", "a", "b", "b"], [1, 1, 2, 2])) is None


def test_a_class_of_one_group_can_be_compared():
    task = two_bits()
    groups = np.arange(len(task.train))
    groups[task.train.labels == "class 00"] = 0
    train = Part(task.train.features, task.train.labels, groups, {}, 0)
    moved = Task("planted", "bits", "cls", "none", task.classes, train, task.test)
    assert compare(moved, {"ConcatLinear": ConcatLinear(budget=SHORT)}, seed=0).accuracy("ConcatLinear") > 95


def test_heads_say_how_many_probes_they_need(compared):
    needed = {name: used_members(head) for name, head in compared.heads.items()}
    assert needed == {
        "LastLayer": 1, "BestLayer": 1, "Oracle": 3, "ConcatLinear": 0, "LogitAverage": 3, "VFusion": 0,
    }  # fmt: skip


def test_prediction_is_timed_for_every_head_with_the_probes_it_needs(compared):
    times = compared.milliseconds(repeats=1)
    assert list(times) == list(compared.heads)
    assert min(times.values()) > 0
