"""Counter-based random numbers: one stream per sample, independent of batch and order.

A generator that is advanced from sample to sample makes sample 17 depend on samples 0 to 16. Here every
number is a pure function of (seed, sample id, channel): the SplitMix64 finaliser (Steele, Lea and Flood,
OOPSLA 2014) applied to a Weyl sequence. Integer arithmetic is exact, so the result is the same on every
machine, in every batch and on every thread.
"""

import numpy as np

_WEYL = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def uniforms(seed: int, ids: np.ndarray, channels: int) -> np.ndarray:
    """Uniform numbers in [0, 1), one row per sample id.

    Parameters: `seed` any non-negative integer, `ids` integers [N], `channels` the numbers wanted per id.
    Returns float64 [N, channels]; row i depends on `seed` and `ids[i]` alone.

    >>> bool((uniforms(0, np.array([5, 9]), 3)[1] == uniforms(0, np.array([9]), 3)[0]).all())
    True
    """
    if seed < 0:
        raise ValueError(f"seed must be a non-negative integer, got {seed}")
    with np.errstate(over="ignore"):
        start = _mix(np.asarray([seed], dtype=np.uint64) + _WEYL)
        key = _mix(np.asarray(ids, dtype=np.int64).astype(np.uint64) ^ start)
        steps = np.arange(1, channels + 1, dtype=np.uint64) * _WEYL
        bits = _mix(key[:, None] + steps[None, :])
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
