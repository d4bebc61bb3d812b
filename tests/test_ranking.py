"""Comparison of methods over datasets: textbook numbers, slow references, planted orders, and bad tables."""

import itertools
import re

import numpy as np
import pandas as pd
import pytest
from scipy.stats import friedmanchisquare

from vitscope.ranking import critical_difference, differences, friedman, mean_ranks


def tidy(values: np.ndarray, value: str = "accuracy") -> pd.DataFrame:
    """A table of values [methods, datasets, seeds], its rows shuffled."""
    rows = [
        {"method": f"m{k}", "dataset": f"d{n}", "seed": s, value: values[k, n, s]}
        for k, n, s in np.ndindex(values.shape)
    ]
    return pd.DataFrame(rows).sample(frac=1, random_state=0)


def random_values(methods=4, datasets=7, seeds=3, ties=False, seed=0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(80, 5, size=(methods, datasets, seeds))
    return values.round(-1) if ties else values


def slow_ranks(row: list[float]) -> list[float]:
    """Rank 1 for the largest: one more than the number of larger values, plus half of the equal others."""
    return [1 + sum(o > v for o in row) + (sum(o == v for o in row) - 1) / 2 for v in row]


# --- ranks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
def test_mean_ranks_are_those_of_a_slow_count(ties):
    values = random_values(ties=ties)
    found = mean_ranks(tidy(values)).set_index("method")
    means = values.mean(2)
    ranks = np.array([slow_ranks([round(v, 9) for v in column]) for column in means.T])
    for k in range(4):
        assert found.loc[f"m{k}", "rank"] == pytest.approx(ranks[:, k].mean())
        assert found.loc[f"m{k}", "mean"] == pytest.approx(values[k].mean())
        assert found.loc[f"m{k}", "first"] == sum(
            np.isclose(means[k, n], means[:, n].max()) for n in range(7)
        )
    assert found["rank"].sum() == pytest.approx(4 * 5 / 2)  # ranks are shared out whatever the ties
    assert list(found["rank"]) == sorted(found["rank"])


def test_seeds_are_averaged_and_their_spread_is_that_of_ranks_by_one_seed():
    values = random_values(seed=3)
    found = mean_ranks(tidy(values)).set_index("method")
    each = np.array([[slow_ranks(list(values[:, n, s])) for n in range(7)] for s in range(3)]).mean(1)
    for k in range(4):
        assert found.loc[f"m{k}", "rank low"] == pytest.approx(each[:, k].min())
        assert found.loc[f"m{k}", "rank high"] == pytest.approx(each[:, k].max())
    one = mean_ranks(tidy(values[..., :1]).drop(columns="seed")).set_index("method")
    np.testing.assert_array_equal(one["rank low"], one["rank high"])


def test_a_planted_order_is_found_and_turns_round_for_losses():
    values = np.arange(5.0)[:, None, None] + np.random.default_rng(0).normal(0, 0.1, size=(5, 12, 2))
    up = mean_ranks(tidy(values))
    assert list(up["method"]) == ["m4", "m3", "m2", "m1", "m0"]
    assert list(up["rank"]) == [1, 2, 3, 4, 5]
    # CD = 2.728 √(5·6/(6·12)) = 1.76: rank 2 cannot be told from rank 1, rank 3 can
    assert list(up["near best"]) == [True, True, False, False, False]
    down = mean_ranks(tidy(values, "loss"), value="loss", higher_is_better=False)
    assert list(down["method"]) == ["m0", "m1", "m2", "m3", "m4"]
    assert list(down["first"]) == [12, 0, 0, 0, 0]


def test_monotone_changes_of_a_dataset_change_no_rank():
    values = random_values(seeds=1)
    warped = values.copy()
    warped[:, ::2] = np.exp(warped[:, ::2] / 10) - 1e4
    for name in ("rank", "first"):
        assert list(mean_ranks(tidy(warped)).set_index("method").loc[["m0", "m1", "m2", "m3"], name]) == list(
            mean_ranks(tidy(values)).set_index("method").loc[["m0", "m1", "m2", "m3"], name]
        )


def test_means_that_differ_by_rounding_are_a_tie():
    values = np.array([[[0.1, 0.2, 0.3], [1, 1, 1]], [[0.3, 0.2, 0.1], [1, 1, 1]]], dtype=float)
    assert values[0, 0].mean() != values[1, 0].mean()
    assert list(mean_ranks(tidy(values))["rank"]) == [1.5, 1.5]
    assert differences(tidy(values), "m0")[["wins", "ties", "losses"]].to_numpy().tolist() == [[0, 2, 0]]


# --- tests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)])
def test_critical_differences_are_those_of_the_table_in_the_source(methods, q):
    expected = q * np.sqrt(methods * (methods + 1) / (6 * 20))
    assert critical_difference(methods, 20) == pytest.approx(expected, abs=1e-3)


def test_a_stricter_level_needs_a_larger_difference():
    # q for α = 0.10 and k = 4 in the source: 2.291
    assert critical_difference(4, 14, level=0.10) == pytest.approx(2.291 * np.sqrt(20 / 84), abs=1e-3)
    assert critical_difference(4, 14, level=0.01) > critical_difference(4, 14)


@pytest.mark.parametrize("ties", [False, True])
def test_friedman_by_its_formula_and_by_scipy(ties):
    values = random_values(ties=ties, seeds=1, seed=5)
    found = friedman(tidy(values)).iloc[0]
    ranks = np.array([slow_ranks(list(column)) for column in values[..., 0].T])
    n, k = ranks.shape
    chi2 = 12 * n / (k * (k + 1)) * ((ranks.mean(0) - (k + 1) / 2) ** 2).sum()
    counts = [np.unique(row, return_counts=True)[1] for row in ranks]
    chi2 /= 1 - sum((c**3 - c).sum() for c in counts) / (n * (k**3 - k))
    expected = friedmanchisquare(*values[..., 0])
    assert found["chi2"] == pytest.approx(chi2)
    assert (found["chi2"], found["p"]) == pytest.approx((expected.statistic, expected.pvalue))
    assert (found["methods"], found["datasets"]) == (4, 7)


def test_friedman_by_all_permutations_of_a_small_table():
    """Under the null every order of three methods on a dataset is as likely: p is near the exact share."""
    values = np.array([[9, 8, 9, 7, 9.5], [5, 6, 4, 6, 9.6], [1, 2, 3, 6.5, 3]])[..., None]
    found = friedman(tidy(values)).iloc[0]
    orders = list(itertools.permutations([1, 2, 3]))
    sums = np.array([np.sum(c, axis=0) for c in itertools.product(orders, repeat=5)])
    chi2 = 12 / (5 * 3 * 4) * (sums**2).sum(1) - 3 * 5 * 4
    assert found["p"] == pytest.approx((chi2 >= found["chi2"] - 1e-9).mean(), abs=0.03)


def test_methods_that_tie_everywhere_do_not_differ():
    found = friedman(tidy(np.full((3, 5, 2), 70.0))).iloc[0]
    assert (found["chi2"], found["p"]) == (0.0, 1.0)


# --- differences --------------------------------------------------------------------------------------


def test_differences_against_a_slow_bootstrap():
    values = random_values(methods=3, datasets=9)
    found = differences(tidy(values), "m1", draws=4000).set_index("method")
    assert set(found.index) == {"m0", "m2"}
    rng = np.random.default_rng(7)
    for k in (0, 2):
        gaps = [values[k, n].mean() - values[1, n].mean() for n in range(9)]
        drawn = [np.mean([gaps[i] for i in rng.integers(9, size=9)]) for _ in range(4000)]
        row = found.loc[f"m{k}"]
        assert row["difference"] == pytest.approx(np.mean(gaps))
        np.testing.assert_allclose(
            [row["low"], row["high"]], np.quantile(drawn, [0.025, 0.975]), atol=0.1 * np.std(gaps)
        )
        assert (row["wins"], row["ties"], row["losses"]) == (
            sum(g > 0 for g in gaps), 0, sum(g < 0 for g in gaps),
        )  # fmt: skip


def test_differences_are_paired():
    """Datasets differ by tens of points, methods by one: only pairing finds an interval without 0."""
    rng = np.random.default_rng(0)
    base = rng.uniform(30, 90, size=(1, 10, 1))
    values = base + np.array([0.0, 1.0])[:, None, None] + rng.normal(0, 0.2, size=(2, 10, 3))
    row = differences(tidy(values), "m0").iloc[0]
    assert 0.7 < row["low"] < 1 < row["high"] < 1.3
    assert (row["wins"], row["losses"]) == (10, 0)
    lower = differences(tidy(values), "m0", higher_is_better=False).iloc[0]
    assert (lower["wins"], lower["losses"]) == (0, 10)


def test_small_differences_may_count_as_ties():
    values = np.array([[80, 80, 80, 80], [80.1, 79.9, 81, 79]], dtype=float)[..., None]
    assert differences(tidy(values), "m0").iloc[0][["wins", "ties", "losses"]].tolist() == [2, 0, 2]
    assert differences(tidy(values), "m0", tie=0.5).iloc[0][["wins", "ties", "losses"]].tolist() == [1, 2, 1]


def test_more_seeds_do_not_narrow_the_interval_as_datasets_would():
    values = random_values(methods=2, datasets=8, seeds=1)
    once, often = (differences(tidy(np.repeat(values, r, axis=2)), "m0").iloc[0] for r in (1, 10))
    assert (once["low"], once["high"]) == pytest.approx((often["low"], often["high"]))


def test_the_order_of_rows_does_not_matter_and_a_seed_gives_the_same_interval():
    table = tidy(random_values())
    pd.testing.assert_frame_equal(differences(table.iloc[::-1], "m2"), differences(table, "m2"))
    pd.testing.assert_frame_equal(mean_ranks(table.iloc[::-1]), mean_ranks(table))
    assert not differences(table, "m2", seed=1).equals(differences(table, "m2"))


# --- bad tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [mean_ranks, friedman, lambda t: differences(t, "m0")])
def test_missing_cells_are_named(call):
    table = tidy(random_values()).reset_index(drop=True)
    gone = table[~((table["method"] == "m1") & (table["dataset"] == "d2") & (table["seed"] == 0))].copy()
    with pytest.raises(ValueError, match=re.escape("1 of 84 cells are missing: m1 on d2 (seed 0); run them")):
        call(gone)
    gone.loc[(gone["method"] == "m3") & (gone["dataset"] == "d5"), "accuracy"] = np.nan
    with pytest.raises(ValueError, match="4 of 84 cells are missing"):
        call(gone)
    whole = table[~((table["method"] == "m1") & (table["dataset"] <= "d1"))]
    with pytest.raises(ValueError, match=r"6 of 84 cells are missing: .* and 1 more"):
        call(whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: pd.concat([t, t.iloc[:1]]), r"1 cells come more than once: m\d on d\d \(seed \d\)"),
        (lambda t: t.drop(columns="accuracy"), "no column accuracy; it has method, dataset, seed"),
        (lambda t: t[t["method"] == "m0"], "at least two methods, got 1"),
        (lambda t: t[t["dataset"] == "d0"], "at least two datasets, got 1"),
        (lambda t: t.replace({"accuracy": {t["accuracy"].max(): np.inf}}), "accuracy is infinite for m"),
    ],
)
def test_bad_tables_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        mean_ranks(change(tidy(random_values())))


def test_bad_arguments_are_refused():
    table = tidy(random_values(methods=2))
    with pytest.raises(ValueError, match="needs three methods, got 2: see `differences`"):
        friedman(table)
    with pytest.raises(ValueError, match="no method is named 'mine'; there are m"):
        differences(table, "mine")
    with pytest.raises(ValueError, match="tie must be 0 or above, got -1"):
        differences(table, "m0", tie=-1.0)
    with pytest.raises(ValueError, match=r"level between 0 and 1, got 1000 and 95\.0"):
        differences(table, "m0", level=95.0)
    with pytest.raises(ValueError, match=r"level must lie between 0 and 1, got 5\.0"):
        critical_difference(3, 4, level=5.0)
    with pytest.raises(ValueError, match="two methods and a dataset are needed, got 1 and 4"):
        critical_difference(1, 4)
