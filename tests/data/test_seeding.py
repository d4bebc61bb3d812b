"""Counter-based random numbers: a second implementation in Python integers, independence, spread."""

import numpy as np
import pytest

from vitscope.data.seeding import uniforms

WORD = 2**64
WEYL = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % WORD
    return x ^ (x >> 31)


def slow(seed: int, sample: int, channel: int) -> float:
    """SplitMix64 in unbounded integers; the published test vector pins the finaliser below."""
    key = mix((sample % WORD) ^ mix((seed + WEYL) % WORD))
    return (mix((key + (channel + 1) * WEYL) % WORD) >> 11) / 2**53


def test_finaliser_is_splitmix64():
    # first outputs of SplitMix64 started at 0 (Steele, Lea and Flood; the value every implementation quotes)
    assert [mix(WEYL), mix(2 * WEYL % WORD)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


@pytest.mark.parametrize("seed", [0, 1, 77_000_000, 2**40])
def test_equals_integer_arithmetic(seed):
    ids = np.array([0, 1, 2, 10**8, 2**31, 2**53 + 1])
    expected = [[slow(seed, int(i), c) for c in range(5)] for i in ids]
    assert (uniforms(seed, ids, 5) == np.array(expected)).all()


def test_a_row_depends_on_its_id_alone():
    ids = np.array([5, 9, 2, 10**8 + 3])
    together = uniforms(3, ids, 7)
    assert (together[::-1] == uniforms(3, ids[::-1], 7)).all()
    for row, sample in enumerate(ids):
        assert (together[row] == uniforms(3, np.array([sample]), 7)[0]).all()
    assert (together[:, :4] == uniforms(3, ids, 4)).all(), "asking for fewer channels changed the others"


def test_seeds_and_ids_give_unrelated_numbers():
    ids = np.arange(4000)
    a, b = uniforms(0, ids, 2), uniforms(1, ids, 2)
    assert not np.isin(a, b).any()
    for x, y in [(a[:, 0], b[:, 0]), (a[:, 0], a[:, 1]), (a[:-1, 0], a[1:, 0])]:
        assert abs(np.corrcoef(x, y)[0, 1]) < 0.06  # four standard errors


def test_spread_is_uniform():
    u = uniforms(0, np.arange(20_000), 3)
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.stack([np.histogram(u[:, c], bins=20, range=(0, 1))[0] for c in range(3)])
    chi2 = ((counts - 1000) ** 2 / 1000).sum(1)
    assert (chi2 < 50).all()  # 19 degrees of freedom: 50 is beyond the 99.98 % quantile


def test_negative_seed_is_refused():
    with pytest.raises(ValueError, match="non-negative integer, got -1"):
        uniforms(-1, np.arange(2), 1)
