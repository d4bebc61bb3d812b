import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from vitscope.logistic import fit_logistic, spectrum
from vitscope.probes import GRID, fit_probes, fit_ridge
from vitscope.splits import stratified


def gaussian_states(images=400, states=3, width=12, classes=3, seed=0, strongest=1.5, decay=1.0):
    """Features whose class signal grows with the state, from none; ill-conditioned for decay > 0."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, images)
    spectrum = np.arange(1, width + 1.0) ** -decay
    centres = np.random.default_rng(99).normal(size=(classes, width)) * spectrum
    features = [
        rng.normal(size=(images, width)) * spectrum + strongest * s / max(1, states - 1) * centres[labels]
        for s in range(states)
    ]
    return torch.tensor(np.stack(features), dtype=torch.float32), torch.tensor(labels)


def standardised(reference, x):
    mean, scale = reference.double().mean(0), reference.double().std(0, correction=0)
    return ((x.double() - mean) / scale).numpy()


# --- the solution -------------------------------------------------------------------------------------


def test_weights_are_those_of_scikit_learn_for_every_state_and_strength():
    features, labels = gaussian_states()
    x = torch.stack([torch.tensor(standardised(f, f)) for f in features]).float()
    strengths = torch.tensor([1.0, 0.1, 0.01, 0.001]).expand(3, -1)
    fits = fit_logistic(x, labels, 3, strengths, tolerance=1e-6)
    for s in range(3):
        for g, l2 in enumerate(strengths[s].tolist()):
            # same objective: C = 1/(l2 N)
            exact = LogisticRegression(C=1 / (l2 * 400), tol=1e-9, max_iter=10_000)
            exact.fit(x[s].double().numpy(), labels.numpy())
            size = np.abs(exact.coef_).max()
            np.testing.assert_allclose(fits.weight[s, g], exact.coef_, atol=2e-3 * size)
            np.testing.assert_allclose(
                fits.bias[s, g] - fits.bias[s, g].mean(),
                exact.intercept_ - exact.intercept_.mean(),
                atol=2e-3 * max(1, size),
            )


def test_the_gradient_of_the_stated_objective_vanishes():
    features, labels = gaussian_states(classes=5, decay=1.5)
    x = torch.stack([torch.tensor(standardised(f, f)) for f in features])
    fits = fit_logistic(x.float(), labels, 5, torch.full((3, 1), 0.003), tolerance=1e-5)
    weight = fits.weight[:, 0].double().requires_grad_()
    bias = fits.bias[:, 0].double().requires_grad_()
    logits = x @ weight.mT + bias[:, None]
    loss = (
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.repeat(3), reduction="sum") / 400
        + 0.0015 * weight.square().sum()
    )
    slopes = torch.autograd.grad(loss, [weight, bias])
    assert max(s.abs().max().item() for s in slopes) < 5e-5
    assert fits.converged.all()


@pytest.mark.parametrize("decay", [0.0, 1.5])
def test_accuracy_is_within_a_third_of_a_point_of_a_scikit_learn_loop_on_every_state(decay):
    everything, labels = gaussian_states(images=2400, states=4, width=24, classes=6, decay=decay)
    train, y, test, truth = everything[:, :800], labels[:800], everything[:, 800:], labels[800:]
    ours = fit_probes(train, y)
    inner, held = stratified(y, 0.2, seed=0)
    scores = []
    for s in range(4):
        a, b = standardised(train[s][inner], train[s][inner]), standardised(train[s][inner], train[s][held])
        right = [
            LogisticRegression(C=1 / (l2 * len(a)), tol=1e-6, max_iter=20_000)
            .fit(a, y[inner].numpy())
            .score(b, y[held].numpy())
            for l2 in GRID
        ]
        a, b = standardised(train[s], train[s]), standardised(train[s], test[s])
        final = LogisticRegression(C=1 / (GRID[int(np.argmax(right))] * 800), tol=1e-6, max_iter=20_000)
        scores.append(final.fit(a, y.numpy()).score(b, truth.numpy()))
    np.testing.assert_allclose(ours.accuracy(test, truth)["accuracy"], scores, atol=0.003)


def test_ridge_weights_are_those_of_scikit_learn():
    features, labels = gaussian_states(decay=0.5)
    probes = fit_ridge(features, labels, l2=[0.05])
    for s in range(3):
        exact = Ridge(alpha=0.05 * 400).fit(standardised(features[s], features[s]), np.eye(3)[labels])
        np.testing.assert_allclose(probes.weight[s], exact.coef_, atol=2e-5)
        np.testing.assert_allclose(probes.bias[s], exact.intercept_, atol=2e-5)


# --- known answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fit", [fit_probes, fit_ridge])
def test_separable_classes_are_told_apart_and_noise_is_not(fit):
    everything, labels = gaussian_states(images=1200, strongest=12.0)
    probes = fit(everything[:, :400], labels[:400])
    scores = probes.accuracy(everything[:, 400:], labels[400:])
    assert scores["accuracy"][2] > 0.99
    assert abs(scores["accuracy"][0] - 1 / 3) < 0.06
    assert probes.converged.all()


def test_scores_against_their_definitions():
    features, labels = gaussian_states(classes=4)
    probes = fit_probes(features, labels)
    test, truth = gaussian_states(classes=4, images=97, seed=5)
    scores = probes.accuracy(test, truth)
    guesses = probes.logits(test).argmax(2)
    counts = labels.bincount()
    for s in range(3):
        recalls = [(guesses[s][truth == c] == c).double().mean() for c in range(4)]
        assert scores["accuracy"][s] == pytest.approx((guesses[s] == truth).double().mean().item())
        assert scores["balanced_accuracy"][s] == pytest.approx(np.mean(recalls))
    assert scores["majority"] == pytest.approx((truth == counts.argmax()).double().mean().item())
    assert probes.majority == int(counts.argmax())


def test_balanced_accuracy_shows_what_accuracy_hides():
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 380 + [1] * 20)
    scores = fit_probes(torch.randn(1, 400, 5, generator=generator), labels, l2=[1.0]).accuracy(
        torch.randn(1, 400, 5, generator=generator), labels
    )
    assert scores["accuracy"].item() == pytest.approx(0.95)
    assert scores["majority"].item() == pytest.approx(0.95)
    assert scores["balanced_accuracy"].item() == pytest.approx(0.5)


# --- invariances --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fit", [fit_probes, fit_ridge])
@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_the_scale_and_offset_of_features_do_not_matter(fit, scale):
    everything, labels = gaussian_states(images=900)
    train, test = everything[:, :400], everything[:, 400:]
    reference = fit(train, labels[:400]).accuracy(test, labels[400:])["accuracy"]
    moved = fit(scale * train + 7 * scale, labels[:400])
    scores = moved.accuracy(scale * test + 7 * scale, labels[400:])["accuracy"]
    assert (scores - reference).abs().max() <= 0.01


def test_the_order_of_features_and_states_does_not_matter():
    features, labels = gaussian_states()
    reference = fit_probes(features, labels)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    shuffled = fit_probes(features.flip(0)[:, :, order], labels)
    torch.testing.assert_close(shuffled.chosen_l2, reference.chosen_l2.flip(0))
    torch.testing.assert_close(
        shuffled.logits(features.flip(0)[:, :, order]).flip(0),
        reference.logits(features),
        atol=0.02,
        rtol=0.01,
    )


def test_a_state_alone_gets_the_probe_it_gets_among_others():
    features, labels = gaussian_states()
    together = fit_probes(features, labels)
    alone = fit_probes(features[1:2], labels)
    torch.testing.assert_close(alone.weight[0], together.weight[1], atol=1e-3, rtol=1e-2)


def test_blocks_of_states_and_images_do_not_change_the_solution(monkeypatch):
    features, labels = gaussian_states()
    reference = fit_probes(features, labels).logits(features)
    monkeypatch.setattr("vitscope.logistic._CPU_BLOCK_BYTES", 4096)
    torch.testing.assert_close(fit_probes(features, labels).logits(features), reference, atol=0.02, rtol=0.01)


def test_the_same_call_gives_the_same_bits_and_a_seed_another_split():
    features, labels = gaussian_states()
    first, again, other = (fit_probes(features, labels, seed=s, refit=False) for s in (0, 0, 1))
    assert first.weight.equal(again.weight)
    assert not first.weight.equal(other.weight)


# --- nothing leaks ------------------------------------------------------------------------------------


def test_test_images_have_no_influence_on_the_fit():
    """Shifting the test set by +5 changes its scores; all that was fitted stays the same, bit for bit."""
    everything, labels = gaussian_states(images=800)
    train, test = everything[:, :400], everything[:, 400:]
    fitted = []
    for shift in (0.0, 5.0):
        probes = fit_probes(train, labels[:400])
        score = probes.accuracy(test + shift, labels[400:])["accuracy"]
        fitted.append((probes.weight, probes.bias, probes.mean, probes.scale, score))
    for a, b in zip(fitted[0][:4], fitted[1][:4], strict=True):
        assert a.equal(b)
    assert not fitted[0][4].equal(fitted[1][4])


def test_without_refit_validation_images_choose_and_do_nothing_else():
    features, labels = gaussian_states(images=600)
    train, held = features[:, :400], features[:, 400:]
    probes = fit_probes(train, labels[:400], validation=(held, labels[400:]), refit=False)
    moved = fit_probes(train, labels[:400], validation=(held + 5, labels[400:]), l2=GRID, refit=False)
    torch.testing.assert_close(probes.mean, train.mean(1))
    assert probes.images == 400
    same = probes.chosen_l2 == moved.chosen_l2
    assert probes.weight[same].equal(moved.weight[same])
    assert probes.mean.equal(moved.mean)


def test_refit_uses_exactly_the_images_given():
    features, labels = gaussian_states(images=600)
    own = fit_probes(features[:, :400], labels[:400], validation=(features[:, 400:], labels[400:]))
    assert own.images == 600
    torch.testing.assert_close(own.mean, features.mean(1))
    shots = torch.cat([(labels == c).nonzero()[:5, 0] for c in range(3)])
    few = fit_probes(features[:, shots], labels[shots])
    assert few.images == 15
    torch.testing.assert_close(few.mean, features[:, shots].mean(1))


# --- warnings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fit", [fit_probes, fit_ridge])
def test_groups_are_held_out_whole(fit):
    """Feature g is 1 for images of group g: its training mean is 0 or 1/24, nothing between."""
    groups = np.repeat(np.arange(30), 10)
    labels = (np.arange(30) % 2)[groups]
    x = torch.nn.functional.one_hot(torch.tensor(groups)).float()[None]
    mean = fit(x, labels, groups=groups, refit=False).mean[0]
    held = mean == 0
    assert held.sum() == 6  # a fifth of the fifteen groups of each class
    assert held[::2].sum() == 3
    torch.testing.assert_close(mean[~held], torch.full((24,), 1 / 24))


def test_an_edge_of_the_grid_that_wins_is_reported():
    everything, labels = gaussian_states(images=300, width=60, strongest=0.6)
    weak = fit_probes(everything, labels, l2=[1e-5, 1e-6])
    assert any("the strongest of the grid" in w and "add stronger values" in w for w in weak.warnings)
    strong = fit_probes(*gaussian_states(decay=1.5, width=30, images=800), l2=[100.0, 30.0])
    assert any("the weakest of the grid" in w and "add weaker values" in w for w in strong.warnings)


def test_a_tie_at_the_edge_is_no_news():
    features, labels = gaussian_states(strongest=40.0)
    probes = fit_probes(features[2:], labels)
    assert probes.validation_accuracy.min() == 1.0
    assert probes.chosen_l2.item() == GRID[0]
    assert probes.warnings == ()


def test_too_few_iterations_are_reported():
    features, labels = gaussian_states(decay=1.5)
    probes = fit_probes(features, labels, max_iter=2)
    assert not probes.converged.all()
    assert any("did not converge for states" in w for w in probes.warnings)
    assert any("fits of the grid did not converge" in w for w in probes.warnings)


# --- awkward input ------------------------------------------------------------------------------------


def test_classes_with_gaps_and_names_are_kept():
    features, labels = gaussian_states()
    numbers = fit_probes(features, torch.tensor([3, 7, 1000])[labels])
    names = fit_probes(features, np.array(["ant", "bee", "cow"])[labels.numpy()])
    assert numbers.classes == (3, 7, 1000)
    assert names.classes == ("ant", "bee", "cow")
    assert names.weight.equal(numbers.weight)
    assert isinstance(names.majority, str)


def test_constant_features_and_more_features_than_images_are_no_problem():
    features, labels = gaussian_states(images=40, width=100, strongest=6.0)
    features[:, :, 5] = 1234.567
    probes = fit_probes(features, labels)
    assert probes.weight.isfinite().all()
    assert probes.weight[:, :, 5].abs().max() < 1e-4
    assert (probes.scale[:, 5] == 1).all()
    assert probes.converged.all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_are_computed_in_float32(dtype):
    features, labels = gaussian_states()
    probes = fit_probes(features.to(dtype), labels)
    assert probes.logits(features.to(dtype)).dtype == torch.float32
    assert probes.accuracy(features.to(dtype), labels)["accuracy"][2] > 0.5


def test_fewer_images_than_features_give_the_same_directions():
    """Through products of images or of features: the same covariance, one direction less than images."""
    x = torch.randn(2, 30, 200, generator=torch.Generator().manual_seed(0))
    x = x - x.mean(1, keepdim=True)
    found = spectrum(x)
    assert found.values.shape == (2, 29)
    torch.testing.assert_close(
        (found.vectors * found.values[:, None]) @ found.vectors.mT, x.mT @ x / 30, atol=1e-5, rtol=1e-5
    )
    identity = torch.eye(29).expand(2, -1, -1)
    torch.testing.assert_close(found.vectors.mT @ found.vectors, identity, atol=1e-5, rtol=0)


def test_features_that_need_gradients_do_not_build_a_graph():
    features, labels = gaussian_states()
    assert not fit_probes(features.requires_grad_(), labels).weight.requires_grad


def test_features_that_are_not_finite_are_named():
    features, labels = gaussian_states()
    features[1, 3, 0], features[1, 4, 2], features[2, 0, 0] = torch.nan, torch.inf, torch.nan
    with pytest.raises(ValueError, match="2 images in state 1, 1 images in state 2"):
        fit_probes(features, labels)
    with pytest.raises(ValueError, match="validation features hold NaN"):
        fit_probes(features[:1], labels, validation=(features[1:2], labels))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.zeros(400, dtype=torch.long)}, "one class only"),
        ({"labels": torch.full((400,), -1)}, "hidden labels"),
        ({"labels": torch.arange(399) % 3}, "400 images in the features but 399 labels"),
        ({"labels": torch.arange(400)}, "single image"),
        ({"l2": [0.0, 1.0]}, "positive strengths"),
        ({"l2": []}, "positive strengths"),
        ({"validation": 1.5}, "between 0 and 1"),
        ({"max_iter": 0}, "max_iter must be at least 1"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    features, labels = gaussian_states()
    arguments = {"labels": labels} | change
    with pytest.raises(ValueError, match=message):
        fit_probes(features, arguments.pop("labels"), **arguments)


def test_sets_that_do_not_fit_together_are_refused():
    features, labels = gaussian_states()
    with pytest.raises(ValueError, match="states and width must agree"):
        fit_probes(features, labels, validation=(features[:2], labels))
    with pytest.raises(ValueError, match="not among the 2 seen in training: 2"):
        fit_probes(features[:, labels < 2], labels[labels < 2], validation=(features, labels))
    probes = fit_probes(features, labels)
    with pytest.raises(ValueError, match="fitted on 3 states of width 12"):
        probes.logits(features[:, :, :5])
    with pytest.raises(ValueError, match="not among the 3 seen in training: 9"):
        probes.accuracy(features, torch.full((400,), 9))


def test_names_are_used_in_warnings_and_must_fit():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    features = torch.nn.functional.one_hot(labels, 4) + 1e-3 * torch.randn(2, 90, 4, generator=generator)
    noisy = features + torch.randn(2, 90, 4, generator=generator)
    probes = fit_probes(noisy, labels, max_iter=1, names=["first", "second"])
    assert any("for states first" in w for w in probes.warnings)
    with pytest.raises(ValueError, match="3 names for 2 states"):
        fit_probes(noisy, labels, names=["a", "b", "c"])
