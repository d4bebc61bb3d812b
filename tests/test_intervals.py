import numpy as np
import pytest

from vitscope.intervals import bootstrap_mean


def test_interval_covers_the_standard_error():
    values = np.random.default_rng(0).normal(3.0, 2.0, size=400)
    interval = bootstrap_mean(values, draws=4000)
    assert interval.mean == pytest.approx(values.mean())
    half = 1.96 * values.std() / np.sqrt(400)
    assert interval.low == pytest.approx(values.mean() - half, abs=0.25 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.25 * half)


def test_clusters_of_copies_are_one_sample():
    once = np.random.default_rng(1).normal(size=60)
    copied, clusters = np.tile(once, 9), np.tile(np.arange(60), 9)
    apart, together = bootstrap_mean(copied), bootstrap_mean(copied, clusters=clusters)
    single = bootstrap_mean(once)
    width = lambda i: float(i.high - i.low)  # noqa: E731
    assert width(together) == pytest.approx(width(single), rel=0.05)
    assert width(apart) < 0.5 * width(together)


def test_leading_axes_and_unequal_clusters():
    values = np.stack([np.ones(10), np.arange(10.0)])
    interval = bootstrap_mean(values, clusters=np.array([0] * 7 + [1, 2, 3]))
    assert interval.mean.shape == interval.low.shape == (2,)
    assert interval.low[0] == interval.high[0] == 1.0
    assert interval.low[1] <= 4.5 <= interval.high[1]


def test_same_seed_same_interval():
    values = np.random.default_rng(2).random(50)
    assert bootstrap_mean(values, seed=3) == bootstrap_mean(values, seed=3)
    assert bootstrap_mean(values, seed=3) != bootstrap_mean(values, seed=4)


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (np.array([1.0, np.nan]), {}, "NaN or infinity"),
        (np.array([1.0]), {}, "at least two independent samples, got 1"),
        (np.ones(4), {"clusters": np.zeros(4)}, "at least two independent samples, got 1"),
        (np.ones(4), {"clusters": np.zeros(3)}, r"\(3,\) for 4 values"),
        (np.ones(4), {"level": 95}, "between 0 and 1, got 95"),
    ],
)
def test_bad_input_is_named(values, options, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_mean(values, **options)
