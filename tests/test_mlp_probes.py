"""MLP probes: a slow loop of single networks, planted problems, invariances, and nothing leaks."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from vitscope.mlp import fit_mlps
from vitscope.mlp_probes import DECAYS, fit_mlp_probes
from vitscope.probes import fit_probes
from vitscope.splits import stratified


def states_with_rings(images=300, states=3, width=4, seed=0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes, inside and outside a circle in features 0 and 1; the signal grows with the state."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, images)
    angle = rng.uniform(0, 2 * np.pi, images)
    ring = (1 + 2 * labels)[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    x = rng.normal(size=(states, images, width))
    for s in range(states):
        x[s, :, :2] = x[s, :, :2] * (1 - 0.8 * s / (states - 1)) + ring * s / (states - 1)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(labels)


QUICK = {"hidden": 12, "epochs": 8, "batch_size": 32}


def slow_network(x, y, held, held_y, decay, hidden, epochs, batch_size, rate, seed):
    """One network in float64, by torch's AdamW: logits of the held-out images at the best epoch."""
    generator = torch.Generator().manual_seed(seed)
    start = [2 * torch.rand(a, b, generator=generator) - 1 for a, b in ((x.shape[1], hidden), (hidden, 2))]
    w1 = (start[0] / math.sqrt(x.shape[1])).double().requires_grad_()
    w2 = (start[1] / math.sqrt(hidden)).double().requires_grad_()
    b1, b2 = (torch.zeros(n, dtype=torch.float64, requires_grad=True) for n in (hidden, 2))
    optimizer = torch.optim.AdamW(
        [{"params": [w1, w2], "weight_decay": decay}, {"params": [b1, b2], "weight_decay": 0.0}]
    )
    steps, step, best, kept = epochs * math.ceil(len(x) / batch_size), 0, math.inf, None
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(batch_size):
            for group in optimizer.param_groups:
                group["lr"] = rate * (1 + math.cos(math.pi * step / steps)) / 2
            optimizer.zero_grad()
            functional.cross_entropy(functional.gelu(x[rows] @ w1 + b1) @ w2 + b2, y[rows]).backward()
            optimizer.step()
            step += 1
        logits = (functional.gelu(held @ w1 + b1) @ w2 + b2).detach()
        loss = float(functional.cross_entropy(logits, held_y))
        if loss < best:
            best, kept = loss, logits
    return best, kept


# --- the networks -------------------------------------------------------------------------------------


def test_every_network_is_that_of_a_slow_loop():
    x, labels = states_with_rings(images=120)
    train, held = x[:, :90], x[:, 90:]
    options = {"hidden": 6, "epochs": 4, "batch_size": 25, "seed": 3}
    found = fit_mlps(train, labels[:90], held, labels[90:], 2, (5.0, 0.5), learning_rate=0.01, **options)
    for s in range(3):
        for g, decay in enumerate((5.0, 0.5)):
            best, logits = slow_network(
                train[s].double(), labels[:90], held[s].double(), labels[90:], decay, 6, 4, 25, 0.01, 3
            )
            assert found.loss[s, g].item() == pytest.approx(best, rel=1e-4)
            right = (logits.argmax(1) == labels[90:]).double().mean().item()
            assert found.right[s, g].item() == pytest.approx(right)


def test_a_state_alone_has_the_probe_it_has_among_others():
    x, labels = states_with_rings()
    together = fit_mlp_probes(x, labels, **QUICK)
    for s in range(3):
        alone = fit_mlp_probes(x[s : s + 1], labels, **QUICK)
        torch.testing.assert_close(alone.logits(x[s : s + 1])[0], together.logits(x)[s], atol=1e-3, rtol=1e-3)
        assert alone.chosen_epoch[0] == together.chosen_epoch[s]


def test_a_decay_alone_gives_the_network_it_gives_in_a_grid():
    x, labels = states_with_rings()
    together = fit_mlp_probes(x, labels, grid=(10.0, 1.0, 0.1), **QUICK)
    for g, decay in enumerate(together.grid):
        alone = fit_mlp_probes(x, labels, grid=[decay], **QUICK)
        torch.testing.assert_close(alone.validation_accuracy[:, 0], together.validation_accuracy[:, g])


def test_the_best_epoch_is_kept():
    """Validation of the labels turned round only gets worse: the first epoch is the best of all."""
    x, labels = states_with_rings(images=400)
    against = (x[:, 300:], 1 - labels[300:])
    found = fit_mlp_probes(x[2:, :300], labels[:300], validation=(against[0][2:], against[1]), **QUICK)
    assert found.chosen_epoch.tolist() == [1]
    onward = fit_mlp_probes(x[2:, :300], labels[:300], validation=(x[2:, 300:], labels[300:]), **QUICK)
    assert onward.chosen_epoch.item() > 4


# --- known answers ------------------------------------------------------------------------------------


def test_what_no_line_divides_is_learned_and_noise_is_not():
    x, labels = states_with_rings(images=1200)
    train, test = x[:, :600], x[:, 600:]
    mlp = fit_mlp_probes(train, labels[:600], hidden=32, batch_size=32)
    linear = fit_probes(train, labels[:600]).accuracy(test, labels[600:])["accuracy"]
    scores = mlp.accuracy(test, labels[600:])
    assert scores["accuracy"][2] > 0.98
    assert linear[2] < 0.65
    assert abs(scores["accuracy"][0] - 0.5) < 0.08


def test_scores_against_their_definitions():
    x, labels = states_with_rings()
    probes = fit_mlp_probes(x, labels, **QUICK)
    test, truth = states_with_rings(images=91, seed=5)
    guesses, scores = probes.logits(test).argmax(2), probes.accuracy(test, truth)
    for s in range(3):
        recalls = [(guesses[s][truth == c] == c).double().mean() for c in range(2)]
        assert scores["accuracy"][s] == pytest.approx((guesses[s] == truth).double().mean().item())
        assert scores["balanced_accuracy"][s] == pytest.approx(np.mean(recalls))
    assert scores["majority"] == pytest.approx((truth == probes.majority).double().mean().item())


def test_decay_is_chosen_by_validation_the_strongest_of_equals():
    x, labels = states_with_rings()
    probes = fit_mlp_probes(x, labels, **QUICK)
    for s in range(3):
        right = probes.validation_accuracy[s].tolist()
        assert probes.chosen_decay[s].item() == pytest.approx(DECAYS[right.index(max(right))])
    constant = fit_mlp_probes(torch.ones(1, 300, 4), labels, **QUICK)
    assert constant.chosen_decay.item() == max(DECAYS)
    assert constant.warnings == ()


# --- invariances --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_scale_and_offset_of_features_do_not_matter(scale):
    x, labels = states_with_rings()
    plain = fit_mlp_probes(x, labels, **QUICK).logits(x)
    moved = fit_mlp_probes(scale * x + 3 * scale, labels, **QUICK).logits(scale * x + 3 * scale)
    torch.testing.assert_close(moved, plain, atol=0.02, rtol=0.02)


def test_the_same_call_gives_the_same_bits_and_a_seed_another_probe():
    x, labels = states_with_rings()
    state = torch.get_rng_state()
    first, again, other = (fit_mlp_probes(x, labels, seed=s, **QUICK) for s in (0, 0, 1))
    assert all(a.equal(b) for a, b in zip(first.network, again.network, strict=True))
    assert not first.network.weight.equal(other.network.weight)
    assert torch.get_rng_state().equal(state)


def test_images_in_one_batch_or_many_are_validated_alike(monkeypatch):
    x, labels = states_with_rings()
    plain = fit_mlp_probes(x, labels, **QUICK)
    monkeypatch.setattr("vitscope.mlp._IMAGES_AT_ONCE", 7)
    parts = fit_mlp_probes(x, labels, **QUICK)
    assert plain.chosen_epoch.equal(parts.chosen_epoch)
    torch.testing.assert_close(parts.validation_accuracy, plain.validation_accuracy)


# --- nothing leaks ------------------------------------------------------------------------------------


def test_standardised_on_the_training_part_only():
    x, labels = states_with_rings()
    train, held = stratified(labels, 0.2, seed=0)
    probes = fit_mlp_probes(x, labels, **QUICK)
    torch.testing.assert_close(probes.mean, x[:, train].mean(1))
    torch.testing.assert_close(probes.scale, x[:, train].std(1, correction=0))
    assert probes.images == len(train)
    assert len(held)


def test_validation_images_choose_and_do_nothing_else():
    """Moved validation images may choose another epoch; a network of one epoch is the same, bit for bit."""
    x, labels = states_with_rings(images=400)
    fitted = [
        fit_mlp_probes(
            x[:, :300], labels[:300], validation=(x[:, 300:] + shift, labels[300:]), grid=[1.0], epochs=1
        )
        for shift in (0.0, 5.0)
    ]
    assert all(a.equal(b) for a, b in zip(fitted[0].network, fitted[1].network, strict=True))
    assert fitted[0].mean.equal(fitted[1].mean)
    assert not fitted[0].validation_accuracy.equal(fitted[1].validation_accuracy)


def test_groups_are_held_out_whole():
    """Feature g is 1 for images of group g: its training mean is 0 or 1/24, nothing between."""
    groups = np.repeat(np.arange(30), 10)
    labels = (np.arange(30) % 2)[groups]
    x = functional.one_hot(torch.tensor(groups)).float()[None]
    order = np.random.default_rng(0).permutation(300)
    probes = fit_mlp_probes(x[:, order], labels[order], groups=groups[order], **QUICK)
    held = probes.mean[0] == 0
    assert probes.images == 240
    assert held.sum() == 6  # a fifth of the fifteen groups of each class
    assert held[::2].sum() == 3
    torch.testing.assert_close(probes.mean[0][~held], torch.full((24,), 1 / 24))
    named = fit_mlp_probes(x[:, order], labels[order], groups=groups[order].astype(str), **QUICK)
    assert named.images == 240


# --- warnings and bad input ---------------------------------------------------------------------------


def test_an_edge_of_the_grid_that_wins_is_reported():
    x, labels = states_with_rings(images=600)
    weak = fit_mlp_probes(x[2:], labels, grid=(5.0, 0.5), names=["12"], **QUICK)
    assert weak.warnings == (
        "decay = 0.5, the weakest of the grid, was chosen for states 12: add weaker values",
    )
    assert fit_mlp_probes(x[2:], labels, grid=(5.0, 0.0), **QUICK).warnings == ()  # nothing is weaker
    wide = torch.randn(1, 1000, 100, generator=torch.Generator().manual_seed(0))
    few, rest, truth = wide[:, :200], wide[:, 200:], wide[0, :, 0] > 0
    options = {"hidden": 32, "batch_size": 16, "validation": (rest, truth[200:])}
    strong = fit_mlp_probes(few, truth[:200], grid=(3.0, 0.0), **options)
    assert strong.warnings == (
        "decay = 3, the strongest of the grid, was chosen for states 0: add stronger values",
    )


def test_names_and_gaps_of_classes_are_kept():
    x, labels = states_with_rings()
    numbers = fit_mlp_probes(x, torch.tensor([3, 70])[labels], **QUICK)
    names = fit_mlp_probes(x, np.array(["ant", "bee"])[labels.numpy()], **QUICK)
    assert (numbers.classes, names.classes) == ((3, 70), ("ant", "bee"))
    assert names.network.weight.equal(numbers.network.weight)
    assert isinstance(names.majority, str)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_features_that_need_gradients(dtype):
    x, labels = states_with_rings()
    probes = fit_mlp_probes(x.to(dtype).requires_grad_(), labels, **QUICK)
    assert probes.logits(x.to(dtype)).dtype == torch.float32
    assert not any(p.requires_grad for p in probes.network)
    assert not probes.mean.requires_grad


def test_features_that_are_not_finite_are_named():
    x, labels = states_with_rings()
    x[1, 3, 0], x[1, 4, 2], x[2, 0, 0] = torch.nan, torch.inf, torch.nan
    with pytest.raises(ValueError, match="2 images in state 1, 1 images in state 2"):
        fit_mlp_probes(x, labels, **QUICK)
    with pytest.raises(ValueError, match="validation features hold NaN"):
        fit_mlp_probes(x[:1], labels, validation=(x[1:2], labels), **QUICK)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.zeros(300, dtype=torch.long)}, "one class only"),
        ({"labels": torch.full((300,), -1)}, "hidden labels"),
        ({"labels": torch.arange(299) % 2}, "300 images in the features but 299 labels"),
        ({"grid": []}, "one or more decays, 0 or above"),
        ({"grid": [-1.0]}, r"0 or above, got \[-1.0\]"),
        ({"validation": 1.5}, "between 0 and 1"),
        ({"hidden": 0}, "hidden must be at least 1, got 0"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"learning_rate": 0.5}, r"below 1 / \(strongest decay\), got 0.5 with decay 10"),
        ({"learning_rate": 1e30, "grid": [0.0]}, "training diverged for states 0, 1, 2: lower learning_rate"),
        ({"names": ["a"]}, "1 names for 3 states"),
        ({"groups": np.zeros(5)}, r"one group per image is needed: \(5,\) for 300"),
        ({"groups": np.zeros(300)}, "every class is one group: nothing can be held out"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    x, labels = states_with_rings()
    arguments = {"labels": labels, **QUICK} | change
    with pytest.raises(ValueError, match=message):
        fit_mlp_probes(x, arguments.pop("labels"), **arguments)


def test_sets_that_do_not_fit_together_are_refused():
    x, labels = states_with_rings()
    with pytest.raises(ValueError, match="states and width must agree"):
        fit_mlp_probes(x, labels, validation=(x[:2], labels), **QUICK)
    with pytest.raises(ValueError, match="groups say how to hold images out"):
        fit_mlp_probes(x, labels, validation=(x, labels), groups=np.arange(300), **QUICK)
    probes = fit_mlp_probes(x, labels, **QUICK)
    with pytest.raises(ValueError, match="fitted on 3 states of width 4"):
        probes.logits(x[:, :, :3])
    with pytest.raises(ValueError, match="not among the 2 seen in training: 9"):
        probes.accuracy(x, torch.full((300,), 9))
