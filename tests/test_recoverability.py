"""Recoverability: planted layers that are right on known images, slow float64 references, invariances."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr

from vitscope.estimates import divided, estimate, resampled_sums
from vitscope.recoverability import analyse
from vitscope.relations import relations


def voting(answers: np.ndarray, classes: int = 4, sharpness: float = 3.0, noise: float = 0.0) -> torch.Tensor:
    """Logits [S, N, C] whose largest entry is the given answer [S, N]."""
    logits = sharpness * torch.nn.functional.one_hot(torch.as_tensor(answers), classes).float()
    return logits + noise * torch.rand(logits.shape, generator=torch.Generator().manual_seed(0))


def random_case(states=5, images=60, classes=4, seed=0) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, images)
    logits = rng.normal(size=(states, images, classes))
    logits[:, np.arange(images), labels] += np.linspace(0.2, 1.5, states)[:, None]
    return torch.tensor(logits, dtype=torch.float32), labels


def cosine_distance(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    return 1 - float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def slow(logits: torch.Tensor, labels: np.ndarray) -> dict[str, float | list[float]]:
    """All scalars once more, image by image."""
    z = logits.double().numpy()
    states, images, _ = z.shape
    named = [[int(np.argmax(z[s, n])) for n in range(images)] for s in range(states)]
    errors = [n for n in range(images) if named[-1][n] != labels[n]]
    fine = [n for n in range(images) if named[-1][n] == labels[n]]
    correcting = {n: [s for s in range(states - 1) if named[s][n] == labels[n]] for n in errors}
    recovered = [n for n in errors if correcting[n]]
    counts = [sum(s in correcting[n] for n in errors) for s in range(states - 1)]
    shares = [c / sum(counts) for c in counts]
    pairs = list(itertools.combinations(range(states), 2))
    return {
        "oracle": 100
        * np.mean([any(named[s][n] == labels[n] for s in range(states)) for n in range(images)]),
        "recovery_rate": 100 * len(recovered) / len(errors),
        "per_layer": [100 * c / len(errors) for c in counts],
        "harm": [100 * np.mean([named[s][n] != labels[n] for n in fine]) for s in range(states - 1)],
        "correction_entropy": -sum(q * math.log(q) for q in shares if q) / math.log(states - 1),
        "correction_entropy_samples": np.mean([math.log(len(correcting[n])) for n in recovered])
        / math.log(states - 1),
        "geometric_disagreement": np.mean(
            [cosine_distance(z[s, n], z[-1, n]) for n in errors for s in range(states - 1)]
        ),
        "geometric_disagreement_pairs": np.mean(
            [cosine_distance(z[s, n], z[t, n]) for n in errors for s, t in pairs]
        ),
    }


# --- the measures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("states", [3, 6])
def test_every_measure_is_that_of_a_slow_count(states, seed):
    logits, labels = random_case(states=states, seed=seed)
    found = analyse(logits, labels, draws=5)
    for name, value in slow(logits, labels).items():
        ours = getattr(found, name)
        np.testing.assert_allclose(
            ours.mean if name in ("per_layer", "harm") else ours.value, value, atol=1e-9
        )


def test_the_rate_is_the_papers_formula_of_accuracies():
    logits, labels = random_case(images=200)
    found = analyse(logits, labels, draws=5)
    last = found.accuracy.mean[-1]
    assert found.recovery_rate.value == pytest.approx(100 * (found.oracle.value - last) / (100 - last))
    assert found.recovered == round(found.recovery_rate.value * found.errors / 100)
    assert found.errors == round((100 - last) * 2)


def test_diversity_against_counts_of_pairs():
    logits, labels = random_case(images=120)
    found = analyse(logits, labels, draws=5)
    right = logits.argmax(2).numpy() == labels
    for i, j in itertools.product(range(5), repeat=2):
        a, d = int((right[i] & right[j]).sum()), int((~right[i] & ~right[j]).sum())
        b, c = int((right[i] & ~right[j]).sum()), int((~right[i] & right[j]).sum())
        assert found.disagreement[i, j] == pytest.approx(100 * (b + c) / 120)
        assert found.double_fault[i, j] == pytest.approx(100 * d / 120)
        assert found.q_statistic[i, j] == pytest.approx((a * d - b * c) / (a * d + b * c))


def test_features_are_compared_after_their_mean_is_taken_away():
    logits, labels = random_case()
    features = np.random.default_rng(1).normal(size=(5, 60, 7)) + 3
    found = analyse(logits, labels, features=torch.tensor(features), draws=5)
    centred = features - features.mean(1, keepdims=True)
    errors = np.flatnonzero(logits.argmax(2)[-1].numpy() != labels)
    unit = centred / np.linalg.norm(centred, axis=2, keepdims=True)
    slowly = np.mean([1 - unit[s, n] @ unit[-1, n] for n in errors for s in range(4)])
    assert found.feature_disagreement.value == pytest.approx(slowly)
    offset = torch.tensor(features + 100 * np.random.default_rng(2).normal(size=(5, 1, 7)))
    moved = analyse(logits, labels, features=offset, draws=5)
    assert moved.feature_disagreement.value == pytest.approx(slowly)
    assert analyse(logits, labels, draws=5).feature_disagreement is None


# --- planted answers ----------------------------------------------------------------------------------


def disjoint(states=5, each=10, images=100) -> tuple[torch.Tensor, np.ndarray]:
    """The last state errs on 60 images; each earlier one is right on 10 of them, no other is."""
    labels = np.zeros(images, dtype=int)
    answers = np.ones((states, images), dtype=int)
    answers[-1, 60:] = 0
    for s in range(states - 1):
        answers[s, s * each : (s + 1) * each] = 0
    return voting(answers), labels


def test_layers_that_are_right_on_disjoint_parts():
    found = analyse(*disjoint())
    assert found.recovery_rate.value == pytest.approx(100 * 40 / 60)
    np.testing.assert_allclose(found.per_layer.mean, 100 * 10 / 60)
    np.testing.assert_allclose(found.harm.mean, 100.0)
    assert found.oracle.value == 80.0
    assert found.correction_entropy.value == pytest.approx(1.0)
    assert found.correction_entropy_samples.value == pytest.approx(0.0)
    np.testing.assert_allclose(found.q_statistic[:-1, -1], -1)  # never right together
    assert found.summary() == (
        f"Earlier states get 66.7 % ({found.recovery_rate.low:.1f} to {found.recovery_rate.high:.1f}) "
        "of the last state's errors right: 40 of 60."
    )


def test_layers_that_are_all_alike_recover_nothing():
    one, labels = random_case(states=2)
    found = analyse(one[:1].expand(5, -1, -1), labels)
    rate = found.recovery_rate
    assert (rate.value, rate.low, rate.high) == (0.0, 0.0, 0.0)
    assert found.harm.mean.tolist() == [0.0] * 4
    assert found.geometric_disagreement.value == pytest.approx(0, abs=1e-12)
    assert found.geometric_disagreement_pairs.value == pytest.approx(0, abs=1e-12)
    assert found.correction_entropy.value is None
    assert found.correction_entropy.reason == "not measured, because no earlier state corrects an error"
    assert not found.disagreement.any()
    np.testing.assert_allclose(found.q_statistic, 1)


def test_one_layer_that_corrects_all_has_no_entropy_and_layers_together_have_all_of_both():
    answers = np.ones((4, 40), dtype=int)
    answers[-1, :20] = 0
    answers[1] = 0
    alone = analyse(voting(answers), np.zeros(40, dtype=int))
    assert (alone.recovery_rate.value, alone.correction_entropy.value) == (100.0, 0.0)
    assert alone.per_layer.mean.tolist() == [0.0, 100.0, 0.0]
    assert alone.harm.mean.tolist() == [100.0, 0.0, 100.0]
    answers[:3] = 0
    together = analyse(voting(answers), np.zeros(40, dtype=int))
    assert together.correction_entropy.value == pytest.approx(1)
    assert together.correction_entropy_samples.value == pytest.approx(1)


def test_independent_errors_have_a_q_of_zero():
    rng = np.random.default_rng(0)
    answers = (rng.random((2, 20_000)) < 0.3).astype(int)
    found = analyse(voting(answers), np.zeros(20_000, dtype=int), draws=2)
    assert abs(found.q_statistic[0, 1]) < 0.05


def test_disagreement_of_opposite_and_of_orthogonal_logits():
    last = torch.tensor([[0.0, 1.0, 0.0, -1.0]] * 4)
    across = torch.tensor([[1.0, 0.0, -1.0, 0.0]] * 4)
    labels = [0, 0, 0, 0]
    opposite = analyse(torch.stack([-last, last]), labels, draws=5)
    assert opposite.geometric_disagreement.value == pytest.approx(2)
    assert analyse(
        torch.stack([across, last]), labels, draws=5
    ).geometric_disagreement.value == pytest.approx(1)
    both = analyse(torch.stack([-last, across, last]), labels, draws=5)
    assert both.geometric_disagreement.value == pytest.approx(1.5)
    assert both.geometric_disagreement_pairs.value == pytest.approx(4 / 3)


def test_logits_without_a_direction_are_at_distance_one():
    """A state that is the same for every image, as CLS is before the first block, gives equal logits."""
    logits, labels = random_case(states=3)
    logits[0] = 0.1
    found, rest = analyse(logits, labels, draws=5), analyse(logits[1:], labels, draws=5)
    assert found.geometric_disagreement.value == pytest.approx((1 + rest.geometric_disagreement.value) / 2)


# --- invariances --------------------------------------------------------------------------------------


def test_scale_and_common_offset_of_logits_do_not_matter():
    logits, labels = random_case()
    rng = np.random.default_rng(5)
    factor = torch.tensor(rng.uniform(0.1, 10, size=(5, 60, 1)))
    offset = torch.tensor(rng.normal(0, 50, size=(5, 60, 1)))
    moved = analyse(factor * logits.double() + offset, labels, draws=5)
    found = analyse(logits.double(), labels, draws=5)
    for name in ("recovery_rate", "geometric_disagreement", "geometric_disagreement_pairs"):
        assert getattr(moved, name).value == pytest.approx(getattr(found, name).value)


def test_order_of_images_classes_and_earlier_layers_does_not_matter():
    logits, labels = random_case()
    found = analyse(logits, labels, draws=5)
    rng = np.random.default_rng(0)
    images, classes, states = rng.permutation(60), rng.permutation(4), [2, 0, 3, 1, 4]
    moved = analyse(logits[states][:, images][:, :, classes], np.argsort(classes)[labels[images]], draws=5)
    for name in ("oracle", "recovery_rate", "correction_entropy", "correction_entropy_samples",
                 "geometric_disagreement", "geometric_disagreement_pairs"):  # fmt: skip
        assert getattr(moved, name).value == pytest.approx(getattr(found, name).value)
    np.testing.assert_allclose(moved.per_layer.mean, found.per_layer.mean[states[:4]])


def test_class_names_say_what_the_columns_are():
    logits, labels = random_case()
    names = ("ant", "bee", "cow", "dog")
    by_name = analyse(logits, np.array(names)[labels], classes=names, draws=5)
    assert by_name.recovery_rate == analyse(logits, labels, draws=5).recovery_rate
    gaps = analyse(logits, 10 * labels, classes=(0, 10, 20, 30), draws=5)
    assert gaps.recovery_rate == by_name.recovery_rate


# --- intervals ----------------------------------------------------------------------------------------


def test_the_interval_of_the_rate_is_that_of_a_share_of_errors():
    rng = np.random.default_rng(0)
    answers = (rng.random((2, 3000)) < np.array([[0.6], [0.2]])).astype(int)
    found = analyse(voting(answers, classes=2), np.zeros(3000, dtype=int), draws=2000)
    share = found.recovery_rate.value / 100
    half = 196 * math.sqrt(share * (1 - share) / found.errors)
    assert found.recovery_rate.low == pytest.approx(100 * share - half, abs=0.25 * half)
    assert found.recovery_rate.high == pytest.approx(100 * share + half, abs=0.25 * half)


def test_clusters_of_copies_are_one_image():
    logits, labels = random_case(images=80)
    names = np.tile(np.arange(80), 6)
    copied = (logits.repeat(1, 6, 1), np.tile(labels, 6))
    once, apart, together = analyse(logits, labels), analyse(*copied), analyse(*copied, clusters=names)
    for name in ("recovery_rate", "correction_entropy", "geometric_disagreement"):
        one, wrong, fine = (getattr(f, name) for f in (once, apart, together))
        assert (fine.low, fine.high) == pytest.approx((one.low, one.high))
        assert wrong.high - wrong.low < 0.6 * (fine.high - fine.low)


def test_a_seed_fixes_the_intervals():
    logits, labels = random_case()
    first, again, other = (analyse(logits, labels, seed=s).geometric_disagreement for s in (0, 0, 1))
    assert first == again
    assert (first.low, first.high) != (other.low, other.high)
    narrow = analyse(logits, labels, level=0.5).geometric_disagreement
    assert first.low < narrow.low < narrow.high < first.high


# --- nothing to measure, and bad input ----------------------------------------------------------------


def test_a_model_without_errors_has_no_rate_but_a_reason():
    logits, labels = random_case()
    logits[-1] = voting(labels)
    found = analyse(logits, labels, features=logits, draws=5)
    reason = "not measured, because the last state makes no error on these 60 images"
    names = (
        "recovery_rate", "correction_entropy", "correction_entropy_samples", "geometric_disagreement",
        "geometric_disagreement_pairs", "feature_disagreement",
    )  # fmt: skip
    for name in names:
        estimated = getattr(found, name)
        assert (estimated.value, estimated.low, estimated.high, estimated.reason) == (
            None,
            None,
            None,
            reason,
        )
    assert np.isnan(found.per_layer.mean).all()
    assert found.oracle.value == 100.0
    assert np.isfinite(found.harm.mean).all()
    assert found.summary() == f"Recovery {reason}."


def test_a_model_that_is_never_right_can_do_no_harm():
    found = analyse(voting(np.array([[0, 1], [1, 1]])), [0, 0], draws=20)
    assert np.isnan(found.harm.mean).all()
    assert found.recovery_rate.value == 50.0


def test_one_earlier_state_has_no_entropy():
    found = analyse(*random_case(states=2), draws=5)
    assert found.recovery_rate.value is not None
    assert found.correction_entropy.value is None
    assert "one earlier state only" in found.correction_entropy.reason


def test_resamples_without_errors_do_not_count():
    answers = np.zeros((2, 5), dtype=int)
    answers[-1, 0] = 1
    found = analyse(voting(answers), np.zeros(5, dtype=int)).recovery_rate
    assert (found.value, found.low, found.high) == (100.0, 100.0, 100.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(1, 60, 4)}, r"two or more states .* got shape \(1, 60, 4\)"),
        ({"logits": torch.zeros(60, 4)}, r"got shape \(60, 4\)"),
        ({"labels": [0] * 59}, "60 images in the logits but 59 labels"),
        ({"labels": [4] * 60}, "not among the 4"),
        ({"labels": [-1] * 60}, "hidden labels"),
        ({"classes": (1, 2, 3)}, "3 classes are named for 4 columns"),
        ({"clusters": np.zeros(60)}, "at least two independent samples, got 1"),
        ({"clusters": np.zeros(59)}, r"\(59,\) for 60 images"),
        ({"draws": 0}, "draws must be at least 1, got 0"),
        ({"level": 95.0}, "between 0 and 1, got 95.0"),
        ({"features": torch.zeros(4, 60, 3)}, r"states and images of the logits \(5, 60\), got shape"),
        ({"features": torch.full((5, 60, 3), torch.nan)}, "features hold NaN or inf"),
    ],
)
def test_bad_input_is_named(change, message):
    logits, labels = random_case()
    arguments = {"logits": logits, "labels": labels} | change
    with pytest.raises(ValueError, match=message):
        analyse(arguments.pop("logits"), arguments.pop("labels"), **arguments)


def test_states_that_are_not_finite_are_named():
    logits, labels = random_case()
    logits[2, 3], logits[2, 4, 0], logits[4, 0, 0] = torch.nan, torch.inf, torch.nan
    with pytest.raises(
        ValueError, match=r"\(counting from state 0\): 2 images in state 2, 1 images in state 4"
    ):
        analyse(logits, labels)


# --- estimates ----------------------------------------------------------------------------------------


def test_resampled_sums_keep_shapes_and_pair_the_columns():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=30), rng.normal(size=(30, 2, 3))
    total, drawn = resampled_sums({"a": a, "b": b, "c": 2 * a}, clusters=np.arange(30) % 7, draws=50, seed=1)
    assert drawn["a"].shape == (50,)
    assert drawn["b"].shape == (50, 2, 3)
    np.testing.assert_allclose(total["b"], b.sum(0))
    np.testing.assert_allclose(drawn["c"], 2 * drawn["a"])  # the same images in every column
    assert drawn["a"].std() > 0


def test_resamples_are_made_of_whole_clusters():
    """A column per cluster that counts its rows: every resample has each cluster wholly, so many times."""
    names = np.array(["a"] * 5 + ["b"] * 2 + ["c"] + ["d"] * 4)[np.random.default_rng(0).permutation(12)]
    sizes = {"a": 5, "b": 2, "c": 1, "d": 4}
    counting = np.stack([names == n for n in sizes], 1)
    _, drawn = resampled_sums({"rows": counting}, clusters=names, draws=400, seed=0)
    times = drawn["rows"] / list(sizes.values())
    np.testing.assert_array_equal(times, times.round())
    np.testing.assert_array_equal(times.sum(1), 4)
    np.testing.assert_allclose(times.mean(0), 1, atol=0.15)


def test_divided_and_estimate_know_what_is_undefined():
    np.testing.assert_array_equal(divided(np.ones((2, 3)), np.array([2.0, 0.0])), [[0.5] * 3, [np.nan] * 3])
    assert estimate(np.array(np.nan), np.ones(3), "why").reason == "why"
    alone = estimate(np.array(2.0), np.full(3, np.nan), "")
    assert (alone.value, alone.low, alone.high) == (2.0, None, None)


# --- relations over datasets --------------------------------------------------------------------------


def planted_table(rows=40, seed=0, common=0.0) -> pd.DataFrame:
    """Recovery goes with entropy and against disagreement; `common`: only through accuracy."""
    rng = np.random.default_rng(seed)
    accuracy, own = rng.normal(size=(2, rows))
    shared = (1 - common) * own + common * accuracy

    def near(x):
        return x + 0.3 * rng.normal(size=rows)

    return pd.DataFrame(
        {
            "dataset": np.arange(rows) // 2,
            "accuracy": accuracy,
            "recovery_rate": near(shared),
            "correction_entropy": np.exp(near(shared)),  # ranks see no difference
            "geometric_disagreement": -near(shared),
        }
    )


def test_correlations_are_those_of_scipy_and_of_residuals_of_ranks():
    table = planted_table(common=0.5)
    ranks = table.rank()
    for name, found in relations(table, draws=20).items():
        assert found.spearman.value == pytest.approx(spearmanr(table["recovery_rate"], table[name]).statistic)
        left = []
        for column in ("recovery_rate", name):
            design = np.stack([np.ones(40), ranks["accuracy"]], 1)
            fit = np.linalg.lstsq(design, ranks[column], rcond=None)[0]
            left.append(ranks[column] - design @ fit)
        assert found.partial.value == pytest.approx(np.corrcoef(*left)[0, 1])
        assert found.rows == 40


def test_planted_signs_are_found_and_what_accuracy_explains_is_taken_out():
    own = relations(planted_table())
    assert own["correction_entropy"].spearman.low > 0.5
    assert own["geometric_disagreement"].spearman.high < -0.5
    assert own["correction_entropy"].partial.low > 0.5
    through = relations(planted_table(rows=200, common=1.0))["correction_entropy"]
    assert through.spearman.value > 0.7
    assert through.partial.low < 0 < through.partial.high


def test_rows_of_a_dataset_are_drawn_together():
    once = planted_table(rows=20).assign(dataset=np.arange(20))
    copied = pd.concat([once] * 8)
    apart, together, single = relations(copied), relations(copied, clusters="dataset"), relations(once)
    wide = [r["correction_entropy"].spearman for r in (apart, together, single)]
    widths = [e.high - e.low for e in wide]
    assert widths[1] == pytest.approx(widths[2], rel=0.05)
    assert widths[0] < 0.6 * widths[1]


def test_too_few_rows_have_no_correlation_but_a_reason():
    found = relations(planted_table(rows=3))["correction_entropy"]
    assert found.spearman.value is None
    assert found.partial.reason == "not measured, because 4 rows are needed, got 3"
    grouped = relations(planted_table(rows=6), clusters="dataset")["correction_entropy"]
    assert grouped.spearman.reason == "not measured, because 4 different values of dataset are needed, got 3"
    assert grouped.rows == 6


def test_rows_without_a_rate_are_left_out():
    table = planted_table(rows=10).astype(object)
    table.loc[[1, 4], "recovery_rate"] = None
    table.loc[7, "correction_entropy"] = None
    found = relations(table)
    assert (found["correction_entropy"].rows, found["geometric_disagreement"].rows) == (7, 8)
    kept = planted_table(rows=10).drop([1, 4, 7])
    assert found["correction_entropy"] == relations(kept)["correction_entropy"]


def test_columns_that_say_nothing_are_named():
    flat = planted_table(rows=10).assign(correction_entropy=0.5)
    found = relations(flat)["correction_entropy"]
    assert found.spearman.reason == "not measured, because correction_entropy does not vary"
    steady = relations(planted_table(rows=10).assign(accuracy=90.0))["correction_entropy"]
    assert steady.spearman.value is not None
    assert steady.partial.reason == "not measured, because the accuracy does not vary"
    table = planted_table(rows=10)
    alike = relations(table.assign(correction_entropy=-table["accuracy"]))["correction_entropy"]
    assert "the ranks of the accuracy or their reverse" in alike.partial.reason
    with pytest.raises(ValueError, match="no column recovery_rate, depth; it has dataset, accuracy"):
        relations(table.drop(columns="recovery_rate"), ["depth"])
    with pytest.raises(ValueError, match="draws must be at least 1, got 0"):
        relations(table, draws=0)
