import pytest
import torch
from torch import nn

from vitscope.fusion import ConcatLinear, LastLayer, LastLayerMLP, SelectionBudget, VFusion
from vitscope.fusion.training import RATES, evaluate
from vitscope.fusion.vfusion import FusionEncoder, subset


@pytest.mark.parametrize(
    ("count", "half", "strided"),
    [
        (1, [0], [0]),
        (2, [1], [1]),
        (12, [6, 7, 8, 9, 10, 11], [1, 3, 5, 7, 9, 11]),
        (13, [7, 8, 9, 10, 11, 12], [0, 2, 4, 6, 8, 10, 12]),
    ],
)
def test_subsets_of_states(count, half, strided):
    assert subset(count, "holistic") == list(range(count))
    assert subset(count, "last_half") == half
    assert subset(count, "strided") == strided


def test_it_finds_in_early_states_what_the_last_lacks(two_bits, enough):
    features, labels = two_bits()
    test, truth = two_bits(seed=1)
    fused = VFusion(hidden=32, latent=8, penalty=0.0, budget=enough).fit(features, None, labels)
    alone = LastLayerMLP(hidden=32, latent=8, penalty=0.0, budget=enough).fit(features, None, labels)
    last = LastLayer().fit(features, None, labels)
    assert fused.accuracy(test, None, truth)["accuracy"] > 0.95
    assert alone.accuracy(test, None, truth)["accuracy"] < 0.65
    assert last.accuracy(test, None, truth)["accuracy"] < 0.65


def test_the_encoder_computes_what_no_linear_head_can(exclusive_or):
    features, labels = exclusive_or()
    test, truth = exclusive_or(seed=1)
    budget = SelectionBudget(configurations=3, epochs=1, batch=100, steps=120)
    options = {"hidden": 32, "latent": 8, "penalty": 0.0, "budget": budget}
    mlp = VFusion(**options).fit(features, None, labels)
    assert mlp.accuracy(test, None, truth)["accuracy"] > 0.9
    assert ConcatLinear().fit(features, None, labels).accuracy(test, None, truth)["accuracy"] < 0.65


def test_states_left_out_have_no_influence(two_bits, short):
    features, labels = two_bits(160)
    for states, used in (("last_half", [2]), ("strided", [0, 2])):
        head = VFusion(states, hidden=8, latent=4, penalty=0.0, budget=short).fit(features, None, labels)
        other = features.clone()
        other[[s for s in range(3) if s not in used]] = 7 * torch.randn(3 - len(used), 160, 8)
        assert head.predict_logits(other).equal(head.predict_logits(features))
        assert len(head.fitted.tensors["normal.mean"]) == 8 * len(used)


@pytest.mark.parametrize("hidden", [7, None])
def test_scores_are_those_of_plain_modules(hidden):
    generator = torch.Generator().manual_seed(0)
    network = FusionEncoder(10, hidden, 4, 3)
    p = {k: torch.randn(v.shape, generator=generator) for k, v in network.initial(generator).items()}
    x = torch.randn(20, 10, generator=generator)
    layers = [nn.Linear(10, hidden), nn.GELU(), nn.Linear(hidden, 4)] if hidden else [nn.Linear(10, 4)]
    model = nn.Sequential(*layers, nn.LayerNorm(4), nn.Linear(4, 3)).double()
    names = ["encoder.0", *(["encoder.1"] if hidden else []), "norm", "head"]
    with torch.no_grad():
        parts = [m for m in model if not isinstance(m, nn.GELU)]
        for name, part in zip(names, parts, strict=True):
            part.weight.copy_(p[f"{name}.weight"])
            part.bias.copy_(p[f"{name}.bias"])
    torch.testing.assert_close(evaluate(network, p, (x,)).double(), model(x.double()), atol=1e-4, rtol=1e-4)


def test_without_weight_the_penalty_is_as_if_it_were_not_there(two_bits, short):
    """λ = 0 tried beside others is the run of a head that knows no penalty at all."""
    features, labels = two_bits(160)
    grid = VFusion(penalty=(0.0, 0.1), hidden=8, latent=4, budget=short).fit(features, None, labels)
    only = VFusion(
        penalty=0.0, hidden=8, latent=4, budget=SelectionBudget(1, short.epochs, short.batch, short.steps)
    ).fit(features, None, labels)
    assert only.report["configurations"][0] == grid.report["configurations"][0]
    assert only.report["configurations"][0]["lr"] == RATES[0]
    assert only.report["validation_accuracy"][0] == grid.report["validation_accuracy"][0]


def test_the_penalty_decorrelates_the_latent_token(two_bits):
    features, labels = two_bits()
    means = []
    for penalty in (0.0, 10.0):
        budget = SelectionBudget(1, 1, 64, 200)
        head = VFusion(penalty=penalty, hidden=16, latent=6, dropout=0.0, budget=budget)
        head.fit(features, None, labels)
        network = FusionEncoder(24, 16, 6, 4)
        t = head.fitted.tensors
        x = torch.nn.functional.layer_norm(features, (8,)).transpose(0, 1).flatten(1)
        own = {k: v[None] for k, v in t.items() if not k.startswith("normal.")}
        _, z = network.forward(own, (x - t["normal.mean"]) / t["normal.scale"])
        c = torch.corrcoef(z[0].double().T)
        means.append(((c.square().sum() - 6) / 30).item())
    assert means[1] < 0.6 * means[0]


def test_the_scale_of_a_state_does_not_matter(two_bits, short):
    features, labels = two_bits(160)
    scale = torch.tensor([0.1, 1.0, 50.0])[:, None, None]
    budget = SelectionBudget(1, 1, 64, 60)
    scores = [
        VFusion(hidden=8, latent=4, budget=budget).fit(x, None, labels).predict_logits(x)
        for x in (features, scale * features + 3 * scale)
    ]
    torch.testing.assert_close(scores[0], scores[1], atol=0.02, rtol=0.02)


@pytest.mark.parametrize("states", ["holistic", "last_half"])
def test_the_control_has_as_many_parameters(states):
    features, labels = torch.randn(13, 60, 32), torch.arange(60) % 3
    budget = SelectionBudget(1, 1, 64, 1)
    counts = [
        kind(states=states, hidden=40, latent=8, budget=budget)
        .fit(features, None, labels)
        .report["parameters"]
        for kind in (VFusion, LastLayerMLP)
    ]
    assert abs(counts[0] - counts[1]) <= (32 + 1 + 8) / 2
    kept = 13 if states == "holistic" else 6
    assert counts[0] == (kept * 32 + 1) * 40 + 41 * 8 + 16 + 9 * 3


def test_the_control_sees_the_last_state_only(two_bits, short):
    features, labels = two_bits(100)
    head = LastLayerMLP(hidden=8, latent=4, penalty=0.0, budget=short).fit(features, None, labels)
    other = torch.cat([torch.randn(2, 100, 8), features[2:]])
    assert head.predict_logits(other).equal(head.predict_logits(features))


def test_what_the_budget_is_spent_on(two_bits):
    grid = VFusion().configurations()
    assert [c["penalty"] for c in grid[::2]] == [c["penalty"] for c in grid[1::2]] == [0.0, 0.1, 0.01, 1.0]
    assert [c["lr"] for c in grid] == [RATES[0], RATES[2]] * 4
    single = VFusion(penalty=0.1).configurations()
    assert [c["lr"] for c in single] == list(RATES)
    assert {c["penalty"] for c in single} == {0.1}


def test_a_batch_smaller_than_the_latent_is_reported(two_bits):
    features, labels = two_bits(100)
    budget = SelectionBudget(1, 1, 20, 1)
    warned = VFusion(hidden=8, latent=32, penalty=1.0, budget=budget).fit(features, None, labels)
    assert any("batches of 20 images cannot decorrelate 32" in w for w in warned.report["warnings"])
    silent = VFusion(hidden=8, latent=32, penalty=0.0, budget=budget).fit(features, None, labels)
    assert silent.report["warnings"] == []


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (VFusion, {"states": "first_half"}, "states must be one of holistic, last_half, strided, got 'first"),
        (VFusion, {"encoder": "cnn"}, "encoder must be 'mlp' or 'linear', got 'cnn'"),
        (VFusion, {"penalty": -1.0}, "penalty must be one or more λ ≥ 0"),
        (VFusion, {"penalty": ()}, "penalty must be one or more λ ≥ 0"),
        (VFusion, {"latent": 1}, "latent at least 2, got 256 and 1"),
        (VFusion, {"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        (LastLayerMLP, {"encoder": "linear"}, "encoder must be 'mlp'"),
    ],
)
def test_bad_options_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)


def test_training_that_diverges_says_so(two_bits, monkeypatch):
    monkeypatch.setattr("vitscope.fusion.vfusion.RATES", (1e30,))
    features, labels = two_bits(100)
    with pytest.raises(ValueError, match="training diverged at"):
        VFusion(hidden=8, latent=4, penalty=0.0, budget=SelectionBudget(1, 1, 64, 30)).fit(
            features, None, labels
        )
