import numpy as np
import pytest
import torch

from vitscope.fusion import FUSIONS, ConcatLinear, LastLayer, SelectionBudget, VFusion, out_of_fold
from vitscope.splits import stratified

SMALL = {
    "VFusion": {"hidden": 16, "latent": 4},
    "LastLayerMLP": {"hidden": 16, "latent": 4},
    "HFusion": {"hidden": 16, "latent": 4},
    "NeuralLogitController": {"hidden": 16, "share": 0.5},
}
NETWORKS = ["VFusion", "LastLayerMLP", "AttentiveLayerFusion", "MixtureOfExperts", "NeuralLogitController"]


def make(name, budget):
    return FUSIONS[name](**SMALL.get(name, {}), budget=budget)


def given(name, features):
    return list(features) if FUSIONS[name].takes_list else features


def predict(name, head, features, logits, labels):
    if head.needs_labels:
        return head.predict_logits(features, logits, labels)
    return head.predict_logits(given(name, features), logits)


@pytest.mark.parametrize("name", FUSIONS)
def test_every_head_fits_predicts_and_reports(name, two_bits, short):
    features, labels = two_bits()
    test, truth = two_bits(seed=1)
    members = out_of_fold(features, labels)
    head = make(name, short).fit(given(name, features), members.logits, labels)
    later = members.probes.logits(test)
    scores = predict(name, head, test, later, truth)
    assert scores.shape == (len(truth), 4)
    assert not scores.requires_grad
    assert head.classes == (0, 1, 2, 3)
    report = head.report
    assert report["head"] == name
    assert report["options"]["budget"]["configurations"] == 4
    assert report["images"] == {"train": 256, "validation": 64}
    assert len(report["configurations"]) == len(report["validation_accuracy"]) <= 4
    if report["configurations"]:
        best = max(report["validation_accuracy"])
        first = report["validation_accuracy"].index(best)
        assert report["chosen"].items() >= report["configurations"][first].items()
    found = head.accuracy(given(name, test), later, truth)
    assert found["accuracy"] == pytest.approx((scores.argmax(1) == truth).double().mean().item())
    recalls = [(scores.argmax(1)[truth == c] == c).double().mean().item() for c in range(4)]
    assert found["balanced_accuracy"] == pytest.approx(np.mean(recalls))


@pytest.mark.parametrize("name", [n for n, kind in FUSIONS.items() if kind.uses_logits])
def test_without_logits_a_head_brings_its_own_members(name, two_bits, short):
    features, labels = two_bits()
    test, truth = two_bits(seed=1)
    head = make(name, short).fit(features, None, labels)
    scores = predict(name, head, test, None, truth)
    assert scores.shape == (320, 4)
    assert head.report["probe_parameters"] > 0
    # it never needs any, so others do not change what it says
    assert predict(name, head, test, torch.randn(3, 320, 4), truth).equal(scores)


@pytest.mark.parametrize("name", FUSIONS)
def test_the_same_call_gives_the_same_bits(name, two_bits, short):
    features, labels = two_bits(160)
    logits = torch.randn(3, 160, 4, generator=torch.Generator().manual_seed(1))
    scores = [
        predict(name, make(name, short).fit(given(name, features), logits, labels), features, logits, labels)
        for _ in range(2)
    ]
    assert scores[0].equal(scores[1])


def test_the_seed_decides_split_and_start(two_bits, short):
    features, labels = two_bits(160)
    scores = [
        make("VFusion", short).fit(features, None, labels, seed=s).predict_logits(features) for s in (0, 1)
    ]
    assert not scores[0].equal(scores[1])


def test_the_random_state_of_the_caller_is_left_alone(two_bits, short):
    features, labels = two_bits(100)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    make("VFusion", short).fit(features, None, labels)
    assert torch.rand(1).equal(expected)


# --- nothing leaks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUSIONS)
def test_prediction_learns_nothing_and_looks_at_one_image_at_a_time(name, two_bits, short):
    features, labels = two_bits(160)
    logits = torch.randn(3, 160, 4, generator=torch.Generator().manual_seed(1))
    head = make(name, short).fit(given(name, features), logits, labels)
    before = {k: v.clone() for k, v in head.fitted.tensors.items()}
    test, truth = two_bits(50, seed=1)
    later = torch.randn(3, 50, 4, generator=torch.Generator().manual_seed(2))
    scores = predict(name, head, test + 5, later, truth)
    alone = predict(name, head, test[:, 7:8] + 5, later[:, 7:8], truth[7:8])
    torch.testing.assert_close(alone, scores[7:8], atol=1e-4, rtol=1e-4)
    assert all(head.fitted.tensors[k].equal(v) for k, v in before.items())


@pytest.mark.parametrize("name", [*NETWORKS, "ConcatLinear", "LastLayer"])
def test_without_refit_validation_images_choose_and_do_nothing_else(name, two_bits):
    """Other validation images, one configuration to choose from: every tensor stays the same, bit for bit."""
    features, labels = two_bits(200)
    logits = torch.randn(3, 200, 4, generator=torch.Generator().manual_seed(1))
    if name == "LastLayer":
        logits = None
    budget = SelectionBudget(configurations=1, epochs=1, batch=64, steps=20, refit=False)
    head = make(name, budget).fit(features, logits, labels)
    _, held = stratified(labels, 0.2, 0)
    moved = features.clone()
    moved[:, held] += 9
    other = logits if logits is None else logits.index_add(1, held, torch.ones(3, len(held), 4))
    again = make(name, budget).fit(moved, other, labels)
    assert head.report["images"]["validation"] == len(held)
    for key, value in head.fitted.tensors.items():
        assert value.equal(again.fitted.tensors[key]), key


def test_refit_uses_all_images(two_bits, short):
    features, labels = two_bits(200)
    head = VFusion(penalty=0.0, hidden=8, latent=4, budget=short).fit(features, None, labels)
    normal = torch.nn.functional.layer_norm(features, (8,)).transpose(0, 1).flatten(1)
    torch.testing.assert_close(head.fitted.tensors["normal.mean"], normal.mean(0), atol=1e-5, rtol=1e-4)
    assert head.report["refit"]


def test_groups_are_kept_whole_where_a_head_chooses(two_bits, short):
    """Images of a group are copies: only a split that separates them makes a memorising head look right."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (60,), generator=generator).repeat_interleave(4)
    features = torch.randn(2, 60, 30, generator=generator).repeat_interleave(4, 1)
    groups = np.arange(60).repeat(4)
    loose = ConcatLinear(budget=short).fit(features, None, labels)
    whole = ConcatLinear(budget=short).fit(features, None, labels, groups=groups)
    assert max(loose.report["validation_accuracy"]) > 0.9
    assert max(whole.report["validation_accuracy"]) < 0.75


def test_a_smaller_budget_tries_the_first_configurations(two_bits):
    features, labels = two_bits(120)
    budget = SelectionBudget(configurations=2, epochs=1, steps=5)
    for name in (*NETWORKS, "ConcatLinear"):
        head = make(name, budget).fit(features, torch.zeros(3, 120, 4), labels)
        assert len(head.report["configurations"]) == 2


# --- labels and bad input -----------------------------------------------------------------------------


def test_names_and_numbers_with_gaps_are_kept(two_bits, short):
    features, labels = two_bits(160)
    numbers = make("VFusion", short).fit(features, None, torch.tensor([3, 7, 9, 1000])[labels])
    names = make("VFusion", short).fit(features, None, np.array(["ant", "bee", "cow", "dog"])[labels.numpy()])
    assert numbers.classes == (3, 7, 9, 1000)
    assert names.classes == ("ant", "bee", "cow", "dog")
    assert names.predict_logits(features).equal(numbers.predict_logits(features))


def test_half_precision_is_computed_in_float32(two_bits, short):
    features, labels = two_bits(160)
    for dtype in (torch.float16, torch.bfloat16):
        head = LastLayer(budget=short).fit(features.to(dtype), None, labels)
        assert head.predict_logits(features.to(dtype)).dtype == torch.float32


def test_bad_features_are_refused_with_their_state(two_bits):
    features, labels = two_bits(40)
    broken = features.clone()
    broken[1, 3, 0], broken[1, 5, 1], broken[2, 0, 0] = float("nan"), float("inf"), float("nan")
    with pytest.raises(
        ValueError, match=r"counting from state 0\): 2 images in state 1, 1 images in state 2"
    ):
        VFusion().fit(broken, None, labels)
    with pytest.raises(ValueError, match=r"features must be \[K, N, D\] .* got shape \(40, 8\)"):
        VFusion().fit(features[0], None, labels)
    with pytest.raises(ValueError, match=r"VFusion takes one tensor .* got list: only HFusion takes a list"):
        VFusion().fit(list(features), None, labels)


def test_lengths_and_classes_that_differ_are_refused(two_bits):
    features, labels = two_bits(40)
    with pytest.raises(ValueError, match="40 images in the features but 39 labels"):
        VFusion().fit(features, None, labels[:39])
    with pytest.raises(ValueError, match="logits are of 3 states and 39 images, features of 3 states and 40"):
        LastLayer().fit(features, torch.zeros(3, 39, 4), labels)
    with pytest.raises(ValueError, match="logits are of 2 states"):
        LastLayer().fit(features, torch.zeros(2, 40, 4), labels)
    with pytest.raises(ValueError, match=r"logits have 5 classes, labels have 4 \(0, 1, 2, 3\)"):
        LastLayer().fit(features, torch.zeros(3, 40, 5), labels)
    nan = torch.zeros(3, 40, 4)
    nan[2, 1] = torch.nan
    with pytest.raises(ValueError, match=r"logits hold NaN or inf .* 1 images in state 2"):
        LastLayer().fit(features, nan, labels)
    with pytest.raises(ValueError, match="one class only"):
        VFusion().fit(features, None, torch.zeros(40, dtype=torch.long))


def test_classes_that_training_lacked_are_named_at_the_test(two_bits, short):
    features, labels = two_bits(160)
    seen = labels < 3
    names = np.array(["ant", "bee", "cow", "dog"])[labels.numpy()]
    head = ConcatLinear(budget=short).fit(features[:, seen], None, names[seen.numpy()])
    with pytest.raises(ValueError, match="1 classes are not among the 3 seen in training: dog"):
        head.accuracy(features, None, names)
    with pytest.raises(ValueError, match="4 classes are not among the 3 seen in training: 0, 1, 2, 3"):
        head.accuracy(features, None, labels)


def test_a_head_refuses_what_it_was_not_fitted_on(two_bits, short):
    features, labels = two_bits(80)
    with pytest.raises(ValueError, match="this ConcatLinear is not fitted: call fit first"):
        ConcatLinear().predict_logits(features)
    head = ConcatLinear(budget=short).fit(features, None, labels)
    with pytest.raises(ValueError, match="fitted on 3 states of width 8, got 2 states of width 8"):
        head.predict_logits(features[1:])
    with pytest.raises(ValueError, match="80 images in the features but 79 labels"):
        head.accuracy(features, None, labels[:79])
    given_logits = LastLayer(budget=short).fit(features, torch.zeros(3, 80, 4), labels)
    with pytest.raises(ValueError, match="was fitted on given logits: pass those of the same probes"):
        given_logits.predict_logits(features)
