import math

import numpy as np
import pytest
import torch
from torch import nn

from vitscope.fusion.scaling import joined
from vitscope.fusion.training import Noise, Schedule, SelectionBudget, decorrelation, evaluate, train
from vitscope.fusion.vfusion import FusionEncoder
from vitscope.protocol import moments

CONFIGURATIONS = [
    {"lr": 1e-2, "weight_decay": 0.1, "penalty": 0.0},
    {"lr": 3e-3, "weight_decay": 0.0, "penalty": 2.0},
]


def problem(images=90, width=6, classes=3):
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(images, width, generator=generator),
        torch.randint(0, classes, (images,), generator=generator),
    )


# --- the penalty --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("images", "k"), [(40, 5), (6, 9), (3, 2)])
def test_the_penalty_is_the_mean_squared_correlation_of_pairs(images, k):
    z = torch.randn(images, k, generator=torch.Generator().manual_seed(k)) * torch.arange(1.0, k + 1)
    wide = z.double().numpy()
    total = sum(np.corrcoef(wide[:, i], wide[:, j])[0, 1] ** 2 for i in range(k) for j in range(k) if i != j)
    assert decorrelation(z).item() == pytest.approx(total / (k * (k - 1)), rel=1e-4)


def test_the_penalty_of_several_configurations_is_that_of_each():
    z = torch.randn(3, 20, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(decorrelation(z), torch.stack([decorrelation(part) for part in z]))


def test_scale_offset_and_dimensions_without_variance_do_not_matter():
    z = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(decorrelation(100 * z + 7), decorrelation(z), rtol=1e-3, atol=1e-5)
    still = torch.cat([z, torch.full((30, 1), 3.0)], 1).requires_grad_()
    value = decorrelation(still)
    assert value.item() == pytest.approx(decorrelation(z).item() * 12 / 20, rel=1e-4)
    value.backward()
    assert still.grad.isfinite().all()


def test_the_penalty_has_the_gradient_of_its_value():
    z = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(decorrelation, z)


def test_one_dimension_has_no_pairs():
    with pytest.raises(ValueError, match="at least 2 dimensions, got 1"):
        decorrelation(torch.zeros(5, 1))


# --- training -----------------------------------------------------------------------------------------


class Plain(nn.Module):
    """The encoder as one would write it for a single run."""

    def __init__(self, start):
        super().__init__()
        self.first, self.second = nn.Linear(6, 7), nn.Linear(7, 4)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)
        names = {"encoder.0": "first", "encoder.1": "second", "norm": "norm", "head": "head"}
        self.load_state_dict(
            {f"{names[k.rpartition('.')[0]]}.{k.rpartition('.')[2]}": v for k, v in start.items()}
        )

    def forward(self, x):
        z = self.norm(self.second(nn.functional.gelu(self.first(x))))
        return self.head(z), z


def alone(configuration, network, x, codes, schedule, seed):
    """The same training in plain PyTorch, float64, one configuration."""
    model = Plain(network.initial(torch.Generator().manual_seed(seed))).double()
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=configuration["lr"], weight_decay=configuration["weight_decay"]
    )
    steps = schedule.epochs * schedule.batches
    cosine = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: 0.5 * (1 + math.cos(math.pi * s / steps)))
    shuffle = torch.Generator().manual_seed(seed)
    for _ in range(schedule.epochs):
        order = torch.randperm(len(codes), generator=shuffle)
        for batch in np.array_split(order.numpy(), schedule.batches):
            scores, z = model(x[batch].double())
            c = torch.corrcoef(z.T)
            penalty = (c.square().sum() - 4) / 12
            loss = nn.functional.cross_entropy(scores, codes[batch]) + configuration["penalty"] * penalty
            optimiser.zero_grad()
            loss.backward()
            if schedule.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), schedule.clip)
            optimiser.step()
            cosine.step()
    return model


@pytest.mark.parametrize("clip", [None, 0.05])
def test_stacked_training_is_that_of_plain_pytorch_for_each_configuration(clip):
    x, codes = problem()
    network, schedule = FusionEncoder(6, 7, 4, 3), Schedule(epochs=5, batches=4, clip=clip)
    trained = train(network, (x,), codes, CONFIGURATIONS, schedule, seed=3)
    for configuration, found in zip(CONFIGURATIONS, trained, strict=True):
        model = alone(configuration, network, x, codes, schedule, seed=3)
        torch.testing.assert_close(
            evaluate(network, found, (x,)), model(x.double())[0].float(), atol=2e-4, rtol=1e-3
        )


def test_a_configuration_becomes_what_it_becomes_alone():
    x, codes = problem()
    network = FusionEncoder(6, 7, 4, 3)
    fixed = [c | {"dropout": 0.3} for c in CONFIGURATIONS]
    together = train(network, (x,), codes, fixed, Schedule(4, 3), seed=0)
    for configuration, found in zip(fixed, together, strict=True):
        (single,) = train(network, (x,), codes, [configuration], Schedule(4, 3), seed=0)
        for name, value in found.items():
            torch.testing.assert_close(value, single[name], atol=1e-5, rtol=1e-4, msg=name)


def test_weights_of_images_count_as_repetitions_would():
    x, codes = problem(images=24)
    double = torch.cat([x, x[:8]]), torch.cat([codes, codes[:8]])
    weight = torch.where(torch.arange(24) < 8, 2.0, 1.0)
    network, one = FusionEncoder(6, 7, 4, 3), CONFIGURATIONS[:1]
    (weighted,) = train(network, (x,), codes, one, Schedule(12, 1), seed=0, weight=weight)
    (repeated,) = train(network, (double[0],), double[1], one, Schedule(12, 1), seed=0)
    for name, value in weighted.items():
        torch.testing.assert_close(value, repeated[name], atol=1e-4, rtol=1e-3)


def test_the_rate_falls_from_its_start_to_the_last():
    schedule = Schedule(epochs=10, batches=10, last_lr=1e-6)
    assert schedule.rate(0.1, 0) == 0.1
    assert schedule.rate(0.1, 50) == pytest.approx(0.5 * (0.1 + 1e-6))
    assert schedule.rate(0.1, 100) == pytest.approx(1e-6)


@pytest.mark.parametrize("name", ["configurations", "epochs", "batch", "steps"])
def test_a_budget_of_nothing_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} of a budget must be at least 1, got 0"):
        SelectionBudget(**{name: 0})


def test_small_sets_get_more_epochs_and_the_same_updates():
    budget = SelectionBudget(epochs=10, batch=100, steps=300)
    assert budget.schedule(10_000) == Schedule(10, 100)
    assert budget.schedule(500) == Schedule(60, 5)
    assert budget.schedule(20) == Schedule(300, 1)


# --- noise --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rates", [(0.5, 0.5), (0.0, 0.5)])
def test_dropout_keeps_the_mean_and_shares_its_mask(rates):
    noise = Noise([{"dropout": r} for r in rates], 0, torch.device("cpu"))
    dropped = noise.drop(torch.ones(2, 400, 50))
    for part, rate in zip(dropped, rates, strict=True):
        assert part.mean() == pytest.approx(1, abs=0.02)
        assert (part == 0).float().mean() == pytest.approx(rate, abs=0.02)
        assert set(part.unique().tolist()) <= {0.0, 1 / (1 - rate)}
    if rates[0] == rates[1]:
        assert dropped[0].equal(dropped[1])


def test_jitter_touches_its_share_of_the_samples():
    noise = Noise([{}], 0, torch.device("cpu"))
    moved = noise.jitter(torch.zeros(2000, 3, 4), 0.5, 0.05)
    touched = (moved != 0).flatten(1)
    assert touched.all(1).equal(touched.any(1))
    assert touched.any(1).float().mean() == pytest.approx(0.5, abs=0.05)
    assert moved[touched.any(1)].std() == pytest.approx(0.05, rel=0.05)


# --- scales -------------------------------------------------------------------------------------------


def test_states_are_normalised_one_by_one():
    generator = torch.Generator().manual_seed(0)
    entries = [torch.randn(10, 5, generator=generator), 100 + 50 * torch.randn(10, 3, generator=generator)]
    wide = [e.double() for e in entries]
    slow = [(e - e.mean(1, keepdim=True)) / e.std(1, correction=0, keepdim=True) for e in wide]
    torch.testing.assert_close(joined(entries), torch.cat(slow, 1).float(), atol=1e-4, rtol=1e-4)


def test_constant_features_become_zero():
    x = torch.full((2, 50, 3), 1234.567)
    x[0, :, 1] = torch.arange(50.0)
    standard = moments(x).standardise(x)
    assert standard[1].abs().max() < 1e-3
    assert standard[0, :, 1].std(correction=0) == pytest.approx(1.0)
