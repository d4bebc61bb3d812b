import pytest
import torch

from vitscope.fusion import (
    LogitAverage,
    MixtureOfExperts,
    NeuralLogitController,
    SelectionBudget,
    SuperLearner,
)
from vitscope.fusion.ensembles import Controller, Gate
from vitscope.fusion.simplex import logit_weights, probability_weights
from vitscope.splits import stratified


def members(count=2, images=200, classes=3, seed=0, skill=(0.4, 0.6)):
    """Noisy logits; each member leans to the truth by its skill."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (images,), generator=generator)
    logits = 1.5 * torch.randn(count, images, classes, generator=generator)
    truth = torch.nn.functional.one_hot(labels, classes)
    return logits + 2 * torch.tensor(skill)[:, None, None] * truth, labels


def risk(space, logits, labels, w):
    z, w = logits.double(), torch.tensor(w, dtype=torch.float64)[:, None, None]
    scores = (w * z).sum(0).log_softmax(1) if space == "logits" else (w * z.softmax(2)).sum(0).log()
    return -scores[torch.arange(len(labels)), labels].mean().item()


# --- Super Learner ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "solve"), [("probabilities", probability_weights), ("logits", logit_weights)]
)
@pytest.mark.parametrize("skill", [(0.4, 0.6), (1.0, 1.0), (-1.0, 2.0), (0.0, 0.3)])
def test_two_weights_are_those_of_a_grid(space, solve, skill):
    logits, labels = members(skill=skill)
    w = solve(logits, labels).double().tolist()
    grid = [i / 1000 for i in range(1001)]
    risks = [risk(space, logits, labels, (g, 1 - g)) for g in grid]
    best = grid[risks.index(min(risks))]
    assert w[0] == pytest.approx(best, abs=2e-3)
    assert risk(space, logits, labels, w) <= min(risks) + 1e-7


@pytest.mark.parametrize("solve", [probability_weights, logit_weights])
@pytest.mark.parametrize("count", [3, 13])
def test_weights_lie_on_the_simplex_and_no_direction_in_it_is_better(solve, count):
    space = "probabilities" if solve is probability_weights else "logits"
    logits, labels = members(count, skill=tuple(0.1 * i for i in range(count)))
    w = solve(logits, labels).double()
    assert w.min() >= 0
    assert w.sum().item() == pytest.approx(1, abs=1e-6)
    at = risk(space, logits, labels, w.tolist())
    for corner in torch.eye(count, dtype=torch.float64):
        for step in (1e-2, 1e-3):
            assert risk(space, logits, labels, ((1 - step) * w + step * corner).tolist()) >= at - 1e-8


def test_logits_in_blocks_give_the_same_weights(monkeypatch):
    logits, labels = members()
    whole = logit_weights(logits, labels)
    monkeypatch.setattr("vitscope.fusion.simplex._BLOCK", 100)
    torch.testing.assert_close(logit_weights(logits, labels), whole, atol=1e-5, rtol=1e-4)


def test_a_member_that_is_certain_and_wrong_does_not_break_the_weights():
    logits, labels = members()
    logits[0] = -1e4 * torch.nn.functional.one_hot(labels, 3)
    assert probability_weights(logits, labels).tolist() == pytest.approx([0, 1], abs=1e-6)


def test_the_super_learner_predicts_its_weighted_combination():
    logits, labels = members(images=400)
    features = torch.randn(2, 400, 4)
    for place, space in enumerate(("probabilities", "logits")):
        head = SuperLearner(budget=SelectionBudget(configurations=2))
        head.CANDIDATES = (SuperLearner.CANDIDATES[place],)
        head.fit(features, logits, labels)
        w = head.report["weights"]
        assert sum(w) == pytest.approx(1, abs=1e-6)
        solve = probability_weights if space == "probabilities" else logit_weights
        torch.testing.assert_close(torch.tensor(w), solve(logits, labels), atol=1e-6, rtol=1e-5)
        z, weight = logits.double(), torch.tensor(w).double()[:, None, None]
        expected = (weight * z.softmax(2)).sum(0).log() if space == "probabilities" else (weight * z).sum(0)
        torch.testing.assert_close(
            head.predict_logits(features, logits).double(), expected, atol=1e-5, rtol=1e-5
        )


def test_its_own_members_find_the_states_that_know(two_bits):
    features, labels = two_bits()
    test, truth = two_bits(seed=1)
    head = SuperLearner().fit(features, None, labels)
    assert min(head.report["weights"][0], head.report["weights"][2]) > 0.3
    assert head.report["weights"][1] < 0.25
    assert head.accuracy(test, None, truth)["accuracy"] > 0.95


def test_weights_are_chosen_without_the_validation_images():
    logits, labels = members(images=300)
    features = torch.randn(2, 300, 4)
    budget = SelectionBudget(configurations=1, refit=False)
    head = SuperLearner(budget=budget).fit(features, logits, labels)
    train, held = stratified(labels, 0.2, 0)
    other = logits.clone()
    other[:, held] *= -3
    again = SuperLearner(budget=budget).fit(features, other, labels)
    assert head.report["weights"] == again.report["weights"]
    torch.testing.assert_close(
        torch.tensor(head.report["weights"]), probability_weights(logits[:, train], labels[train])
    )


# --- image by image -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MixtureOfExperts, NeuralLogitController])
def test_votes_are_weighed_image_by_image(kind, halves):
    """One weight per member cannot do better than one half right and the other by luck (2/3)."""
    features, logits, labels = halves()
    test, later, truth = halves(seed=1)
    options = {"share": 1.0, "hidden": 16} if kind is NeuralLogitController else {}
    head = kind(**options, budget=SelectionBudget(epochs=1, batch=128, steps=200)).fit(
        features, logits, labels
    )
    assert head.accuracy(test, later, truth)["accuracy"] > 0.97
    constant = SuperLearner().fit(features, logits, labels)
    assert constant.accuracy(test, later, truth)["accuracy"] < 0.8


def test_the_controller_is_softplus_times_logits():
    generator = torch.Generator().manual_seed(0)
    network = Controller(3, 5, 4)
    p = {k: torch.randn(2, *v.shape, generator=generator) for k, v in network.initial(generator).items()}
    x, votes = torch.randn(7, 5, generator=generator), torch.randn(7, 3, 6, generator=generator)
    scores, latent = network.forward(p, x, votes)
    assert latent is None
    for g in range(2):
        for i in range(7):
            hidden = (p["first.weight"][g].double() @ x[i].double() + p["first.bias"][g]).clamp_min(0)
            t = p["second.weight"][g].double() @ hidden + p["second.bias"][g]
            expected = sum((1 + t[m].exp()).log() * votes[i, m].double() for m in range(3))
            torch.testing.assert_close(scores[g, i].double(), expected, atol=1e-5, rtol=1e-4)


def test_the_gate_is_a_softmax_over_probabilities():
    generator = torch.Generator().manual_seed(0)
    network = Gate(3, 5)
    p = {k: torch.randn(2, *v.shape, generator=generator) for k, v in network.initial(generator).items()}
    x, votes = torch.randn(7, 5, generator=generator), torch.randn(7, 3, 6, generator=generator)
    scores, _ = network.forward(p, x, votes)
    for g in range(2):
        gate = (x.double() @ p["gate.weight"][g].double().T + p["gate.bias"][g]).softmax(1)
        expected = torch.einsum("bk,bkc->bc", gate, votes.double().softmax(2))
        torch.testing.assert_close(scores[g].double().exp(), expected, atol=1e-6, rtol=1e-4)


def test_both_start_as_the_average():
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.randn(3, 40, 4), torch.arange(40) % 2
    logits = torch.randn(3, 40, 2, generator=generator)
    for network, space in ((Controller(3, 12, 4), "logits"), (Gate(3, 12), "probabilities")):
        p = {k: v[None] for k, v in network.initial(generator).items()}
        scores = network.forward(p, torch.randn(40, 12), logits.transpose(0, 1))[0][0]
        average = LogitAverage(space).fit(features, logits, labels).predict_logits(features, logits)
        torch.testing.assert_close(scores, average, atol=1e-6, rtol=1e-5)


def test_the_controller_learns_from_its_share(halves):
    """Votes outside the share are worthless: spoiling them changes nothing that is learned."""
    features, logits, labels = halves(300)
    budget = SelectionBudget(configurations=1, epochs=1, steps=10, refit=False)
    head = NeuralLogitController(hidden=4, budget=budget).fit(features, logits, labels)
    train, _ = stratified(labels, 0.2, 0)
    lesson = train[stratified(labels[train], 0.1, 0)[1]]
    assert 20 <= len(lesson) <= 28
    spoiled = torch.zeros_like(logits)
    spoiled[:, lesson] = logits[:, lesson]
    again = NeuralLogitController(hidden=4, budget=budget).fit(features, spoiled, labels)
    assert all(again.fitted.tensors[k].equal(v) for k, v in head.fitted.tensors.items())


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match=r"share must lie in \(0, 1\], got 0"):
        NeuralLogitController(share=0.0)
    with pytest.raises(ValueError, match="hidden must be at least 1 unit, got 0"):
        NeuralLogitController(hidden=0)
