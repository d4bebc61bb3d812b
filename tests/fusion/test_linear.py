import pytest
import torch

from vitscope.fusion import BestLayer, ConcatLinear, LastLayer, LogitAverage, SelectionBudget
from vitscope.fusion.members import L2
from vitscope.probes import fit_probes
from vitscope.splits import stratified


def one_state(planted, states=4, images=240, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (images,), generator=generator)
    features = torch.randn(states, images, 6, generator=generator)
    features[planted] += 3.0 * torch.nn.functional.one_hot(labels, 6)
    return features, labels


@pytest.mark.parametrize("planted", [0, 1, 3])
def test_the_best_layer_is_the_planted_one(planted):
    features, labels = one_state(planted)
    test, truth = one_state(planted, seed=1)
    head = BestLayer().fit(features, None, labels)
    assert head.report["chosen"]["state"] == planted
    assert head.accuracy(test, None, truth)["accuracy"] > 0.9
    logits = torch.randn(4, 240, 3, generator=torch.Generator().manual_seed(0))
    logits[planted] = torch.nn.functional.one_hot(labels, 3).float()
    chosen = BestLayer().fit(features, logits, labels)
    assert chosen.report["chosen"] == {"state": planted}
    assert chosen.predict_logits(features, logits).equal(logits[planted])


def test_the_deepest_of_equal_layers_is_chosen():
    features, labels = one_state(0)
    logits = torch.nn.functional.one_hot(labels, 3).float().expand(4, -1, -1)
    assert BestLayer().fit(features, logits, labels).report["chosen"] == {"state": 3}


def test_the_best_layer_is_chosen_on_validation_images_only():
    """Logits that are right on training images alone must not win."""
    features, labels = one_state(0, states=2)
    right = torch.nn.functional.one_hot(labels, 3).float()
    head = BestLayer().fit(features, torch.stack([right, right]), labels)
    _, held = stratified(labels, 0.2, 0)
    overfit = right.clone()
    overfit[held] = -right[held]
    weak = torch.zeros_like(right)
    weak[held] = right[held]
    assert head.report["state_accuracy"] == [1.0, 1.0]
    assert BestLayer().fit(features, torch.stack([weak, overfit]), labels).report["chosen"] == {"state": 0}


def test_the_last_layer_is_the_probe_of_the_last_state():
    features, labels = one_state(3)
    head = LastLayer().fit(features, None, labels)
    expected = fit_probes(features[3:], labels, l2=L2).logits(features[3:])[0]
    torch.testing.assert_close(head.predict_logits(features), expected, atol=2e-3, rtol=1e-3)
    assert head.report["probe_parameters"] == 21
    logits = torch.randn(4, 240, 3)
    assert LastLayer().fit(features, logits, labels).predict_logits(features, logits).equal(logits[3])


def test_averages_are_those_of_their_definitions():
    features, labels = one_state(0)
    logits = 3 * torch.randn(4, 240, 3, generator=torch.Generator().manual_seed(0))
    mean = LogitAverage().fit(features, logits, labels).predict_logits(features, logits)
    torch.testing.assert_close(mean, logits.mean(0))
    mixed = LogitAverage("probabilities").fit(features, logits, labels).predict_logits(features, logits)
    expected = logits.double().softmax(2).mean(0)
    torch.testing.assert_close(mixed.exp().double(), expected, atol=1e-6, rtol=1e-5)
    with pytest.raises(ValueError, match="space must be 'logits' or 'probabilities', got 'votes'"):
        LogitAverage("votes")


def test_the_two_averages_part_where_one_state_is_sure_of_another_class():
    features, labels = one_state(0)
    logits = torch.tensor([[2.0, 0.0, 0.0]] * 3 + [[0.0, 9.0, 0.0]])[:, None].expand(4, 240, 3)
    votes = [
        LogitAverage(space).fit(features, logits, labels).predict_logits(features, logits)[0].argmax().item()
        for space in ("logits", "probabilities")
    ]
    assert votes == [1, 0]


def test_all_states_in_one_probe_hold_what_the_last_lacks(two_bits):
    features, labels = two_bits()
    test, truth = two_bits(seed=1)
    fused = ConcatLinear().fit(features, None, labels).accuracy(test, None, truth)["accuracy"]
    last = LastLayer().fit(features, None, labels).accuracy(test, None, truth)["accuracy"]
    best = BestLayer().fit(features, None, labels).accuracy(test, None, truth)["accuracy"]
    assert fused > 0.98
    assert abs(last - 0.5) < 0.1
    assert abs(best - 0.5) < 0.1


def test_concatenation_is_a_probe_on_one_wide_state(two_bits):
    features, labels = two_bits()
    head = ConcatLinear(budget=SelectionBudget(configurations=2)).fit(features, None, labels)
    wide = torch.cat(list(features), 1)[None]
    probes = fit_probes(wide, labels, l2=L2[:2])
    torch.testing.assert_close(head.predict_logits(features), probes.logits(wide)[0], atol=2e-3, rtol=1e-3)
    assert head.report["configurations"] == [{"l2": v} for v in probes.grid]
    assert head.report["validation_accuracy"] == probes.validation_accuracy[0].tolist()
    assert head.report["parameters"] == 24 * 4 + 4
