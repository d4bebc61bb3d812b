"""Recovery by luck: exact against brute-force permutations, planted knowledge and planted ignorance."""

import numpy as np
import pytest
import torch

from vitscope.chance import permuted, reseeded
from vitscope.probes import fit_probes
from vitscope.recoverability import analyse


def voting(answers: np.ndarray, classes: int) -> torch.Tensor:
    """Logits [S, N, C] whose largest entry is the given answer [S, N]."""
    return torch.nn.functional.one_hot(torch.as_tensor(answers), classes).float()


def guesses(images=60, states=4, classes=3, right=(0.5, 0.7), seed=0) -> tuple[np.ndarray, np.ndarray]:
    """Answers of states that err independently, and the labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, images)
    shares = np.linspace(*right, states)[:, None]
    wrong = (labels + rng.integers(1, classes, size=(states, images))) % classes
    return np.where(rng.random((states, images)) < shares, labels, wrong), labels


def brute(answers: np.ndarray, labels: np.ndarray, groups: np.ndarray, repeats: int) -> float:
    """Mean recovery rate over drawn permutations, each state permuted by itself within each group."""
    rng = np.random.default_rng(0)
    wrong, rates = answers[-1] != labels, []
    for _ in range(repeats):
        moved = answers[:-1].copy()
        for row in moved:
            for g in np.unique(groups):
                where = np.flatnonzero(groups == g)
                row[where] = row[rng.permutation(where)]
        rates.append(100 * (moved[:, wrong] == labels[wrong]).any(0).mean())
    return float(np.mean(rates))


# --- permuted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("within", ["predicted", "true"])
def test_the_rate_is_the_mean_over_permutations(within):
    answers, labels = guesses(right=(0.3, 0.6))
    found = permuted(voting(answers, 3), labels, within=within, draws=5)
    expected = brute(answers, labels, answers[-1] if within == "predicted" else labels, 1500)
    assert found.rate.value == pytest.approx(expected, abs=0.7)
    assert found.real.value == analyse(voting(answers, 3), labels, draws=5).recovery_rate.value
    assert found.excess.value == pytest.approx(found.real.value - found.rate.value)


def test_states_with_independent_errors_recover_what_their_accuracies_give():
    """No excess within true classes, at the rate 1 − Π(1 − a_ℓ)."""
    answers, labels = guesses(images=20_000, right=(0.2, 0.5))
    found = permuted(voting(answers, 3), labels, within="true", draws=200)
    shares = np.linspace(0.2, 0.5, 4)[:3]
    assert found.rate.value == pytest.approx(100 * (1 - np.prod(1 - shares)), abs=1)
    assert found.excess.low < 0 < found.excess.high
    assert abs(found.excess.value) < 1.5
    np.testing.assert_allclose(found.accuracy, 100 * shares, atol=1.5)


def test_states_that_only_know_the_last_answer_have_no_excess():
    """They differ from the last state at random, in its confusions: any recovery is luck."""
    rng = np.random.default_rng(1)
    last, labels = guesses(images=20_000, states=2, classes=4)
    answers = np.stack(
        [np.where(rng.random(20_000) < 0.6, last[-1], rng.integers(0, 4, 20_000)) for _ in range(5)]
    )
    found = permuted(voting(np.concatenate([answers, last[-1:]]), 4), labels, draws=200)
    # five tries at 0.4/4 each
    assert found.rate.value == pytest.approx(100 * (1 - 0.9**5), abs=1.5)
    assert found.excess.low < 0 < found.excess.high


def test_knowledge_of_single_images_is_an_excess():
    """One state is right on half of the errors, and agrees with the last state elsewhere."""
    _, labels = guesses(images=2000, classes=5)
    rng = np.random.default_rng(2)
    last = np.where(rng.random(2000) < 0.2, (labels + 1) % 5, labels)
    first = np.where(rng.random(2000) < 0.5, labels, last)
    found = permuted(voting(np.stack([first, last]), 5), labels)
    assert found.real.value == pytest.approx(50, abs=5)
    # within an answer of the last state, the first says something else for 1 image in 10
    assert found.rate.value == pytest.approx(10, abs=2)
    assert found.excess.low > 30
    assert found.summary() == (
        f"By luck {found.rate.value:.1f} % of the last state's errors would be recovered, "
        f"{found.real.value:.1f} % are: {found.excess.value:+.1f} points "
        f"({found.excess.low:+.1f} to {found.excess.high:+.1f})."
    )


def test_states_that_fail_together_are_below_independent_ones():
    answers, labels = guesses(images=500)
    copies = np.repeat(answers[-1:], 4, axis=0)
    found = permuted(voting(copies, 3), labels, within="true")
    assert found.real.value == 0
    assert found.excess.high < -50
    # within one answer of the last state all copies are alike: nothing can be permuted
    alike = permuted(voting(copies, 3), labels)
    assert (alike.rate.value, alike.excess.value) == (0, 0)


def test_more_states_are_luckier():
    answers, labels = guesses(images=3000, states=9)
    rates = [permuted(voting(answers[-k:], 3), labels, draws=2).rate.value for k in (2, 4, 9)]
    assert rates == sorted(rates)
    assert rates[-1] - rates[0] > 20


@pytest.mark.parametrize("within", ["predicted", "true"])
def test_names_and_order_do_not_matter_and_accuracy_is_kept_within_true_classes(within):
    answers, labels = guesses()
    found = permuted(voting(answers, 3), labels, within=within, draws=2)
    order, classes = np.random.default_rng(0).permutation(60), np.array([2, 0, 1])
    moved = permuted(
        voting(classes[answers[[1, 0, 2, 3]]][:, order], 3), classes[labels[order]], within=within, draws=2
    )
    assert moved.rate.value == pytest.approx(found.rate.value)
    if within == "true":
        np.testing.assert_allclose(found.accuracy, 100 * (answers[:-1] == labels).mean(1))


def test_clusters_widen_the_interval_and_a_seed_fixes_it():
    answers, labels = guesses(images=100)
    copied = voting(np.tile(answers, 6), 3), np.tile(labels, 6)
    apart, together = permuted(*copied).excess, permuted(*copied, clusters=np.tile(np.arange(100), 6)).excess
    assert apart.high - apart.low < 0.6 * (together.high - together.low)
    assert permuted(*copied, seed=3).excess == permuted(*copied, seed=3).excess != permuted(*copied).excess


def test_no_error_means_no_rate_but_a_reason():
    answers, labels = guesses()
    answers[-1] = labels
    found = permuted(voting(answers, 3), labels, draws=2)
    assert (found.rate.value, found.real.value, found.excess.value) == (None, None, None)
    reason = "not measured, because the last state makes no error on these 60 images"
    assert found.excess.reason == reason
    assert found.summary() == f"Recovery by luck {reason}."


def test_another_grouping_is_refused():
    answers, labels = guesses()
    with pytest.raises(ValueError, match="within must be 'predicted' or 'true', got 'class'"):
        permuted(voting(answers, 3), labels, within="class")


# --- reseeded -----------------------------------------------------------------------------------------


def features(images: int, signal: float, seed: int, width=8, classes=3) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.arange(images) % classes
    x = rng.normal(size=(images, width))
    x[:, :classes] += signal * np.eye(classes)[labels]
    return torch.tensor(x, dtype=torch.float32), labels


def last_twice(signal=1.0, images=150, tests=300):
    """Two states: one that knows the classes by another signal, and the last one, whose noise is its own."""
    (last, labels), (other, _) = features(images, signal, 0), features(images, signal, 1)
    (last_test, truth), (other_test, _) = features(tests, signal, 2), features(tests, signal, 3)
    probes = fit_probes(torch.stack([other, last]), labels)
    logits = probes.logits(torch.stack([other_test, last_test]))
    return last, labels, last_test, truth, logits


def test_probes_of_the_last_state_recover_less_than_a_state_with_knowledge_of_its_own():
    last, labels, test, truth, logits = last_twice()
    found = reseeded(last, labels, test, truth, logits=logits)
    assert found.accuracy.shape == (1,)
    assert found.real.value == analyse(logits, truth, draws=2).recovery_rate.value
    assert 0 < found.rate.value < found.real.value
    assert found.excess.low > 0


def test_states_that_are_refits_of_the_last_have_no_excess():
    """Earlier states = bootstraps of the last one's images, by another hand: what the control is made of."""
    last, labels, test, truth, logits = last_twice()
    rng = np.random.default_rng(5)
    rows = []
    for _ in range(6):
        drawn = np.concatenate([rng.choice(np.flatnonzero(labels == c), 50) for c in range(3)])
        rows.append(fit_probes(last[None, drawn], labels[drawn]).logits(test[None])[0])
    found = reseeded(last, labels, test, truth, logits=torch.stack([*rows, logits[-1]]))
    assert len(found.accuracy) == 6
    assert found.excess.low <= 0 <= found.excess.high
    np.testing.assert_allclose(found.accuracy, 100 * (logits[-1].argmax(1).numpy() == truth).mean(), atol=6)


def test_more_probes_recover_more_and_a_seed_gives_the_same():
    last, labels, test, truth, logits = last_twice()
    few, many, again = (
        reseeded(last, labels, test, truth, logits=logits, count=k, draws=5) for k in (1, 8, 8)
    )
    assert few.rate.value < many.rate.value
    np.testing.assert_array_equal(many.accuracy, again.accuracy)
    assert many.accuracy[0] == few.accuracy[0]
    other = reseeded(last, labels, test, truth, logits=logits, count=8, draws=5, seed=1)
    assert list(other.accuracy) != list(many.accuracy)


def test_groups_are_drawn_whole():
    """Ten copies of each of 30 images: drawn one by one hardly any goes missing, drawn whole a third does."""
    last, labels, test, truth, logits = last_twice(images=30)
    copied = (last.repeat(10, 1), np.tile(labels, 10), test, truth)
    options = {"logits": logits, "count": 6, "draws": 5, "l2": [0.01]}
    single, whole = (reseeded(*copied, **options, groups=g) for g in (None, np.tile(np.arange(30), 10)))
    assert whole.rate.value > single.rate.value + 5
    assert whole.accuracy.std() > single.accuracy.std()


def test_names_of_classes_are_those_of_the_training_labels():
    last, labels, test, truth, logits = last_twice()
    names = np.array(["ant", "bee", "cow"])
    plain = reseeded(last, labels, test, truth, logits=logits, count=2, draws=5)
    named = reseeded(last, names[labels], test, names[truth], logits=logits, count=2, draws=5)
    assert named.rate == plain.rate


def test_warnings_of_the_probes_are_kept():
    """Features much wider than what they hold: the stronger of two weak strengths wins."""
    x, labels = features(150, 1.0, 0, width=60)
    test, truth = features(90, 1.0, 1, width=60)
    logits = fit_probes(x[None], labels).logits(test[None]).expand(2, -1, -1)
    found = reseeded(x, labels, test, truth, logits=logits, count=1, draws=5, l2=[1.0, 1e-6])
    assert any("the strongest of the grid" in w for w in found.warnings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 0}, "count must be at least 1 probe, got 0"),
        ({"features": torch.zeros(10, 8)}, "10 images in the features but 150 labels"),
        ({"test_features": torch.zeros(300, 7)}, r"with 300 images.*got \(150, 8\) and \(300, 7\)"),
        ({"test_features": torch.zeros(299, 8)}, r"with 300 images.*got \(150, 8\) and \(299, 8\)"),
        ({"test_labels": [0] * 299}, "300 images in the logits but 299 labels"),
        ({"test_labels": [7] * 300}, "not among the 3 seen in training: 7"),
        ({"labels": np.arange(150) % 4}, "4 classes are named for 3 columns"),
        ({"groups": np.zeros(10)}, r"one group per image is needed: \(10,\) for 150"),
    ],
)
def test_bad_input_is_named(change, message):
    last, labels, test, truth, logits = last_twice()
    arguments = {"features": last, "labels": labels, "test_features": test, "test_labels": truth} | change
    with pytest.raises(ValueError, match=message):
        reseeded(**arguments, logits=logits, draws=5)
