"""Reach of attention: double loops in float64, known maps, capture of a model, refusals."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from helpers import tiny
from vitscope.capture import capture
from vitscope.metrics.attention_graph import attention_distance, attention_entropy
from vitscope.metrics.support import (
    attention_support,
    effective_support,
    foreground_attention_distance,
    mass_to_background,
    normalised_entropy,
    zero_share,
)

GRID, PREFIX, TOKENS = (2, 3), 3, 9  # CLS and two registers before six patches
COVERAGE = torch.tensor(
    [[0.9, 0.0, 0.3, 1.0, 0.0, 0.0], [0.0] * 6, [1.0] * 6, [0.6, 0.0, 0.0, 0.0, 0.0, 0.5]]
)
MEASURES = [attention_support, zero_share, effective_support, normalised_entropy]


def sparse_maps(images=4, heads=2, *, seed=0) -> torch.Tensor:
    """Rows that sum to 1, about half of their weights exactly 0."""
    raw = torch.randn(images, heads, TOKENS, TOKENS, generator=torch.Generator().manual_seed(seed)).relu()
    raw[..., 0] += 0.1
    return raw / raw.sum(-1, keepdim=True)


def entropy(row) -> float:
    return -sum(p * math.log(p) for p in row if p > 0)


def test_equals_the_definitions_row_by_row():
    attn = sparse_maps()
    exact = attn.double().numpy()
    for measure, of_row in {
        attention_support: lambda row: sum(p > 0 for p in row),
        zero_share: lambda row: np.mean([p == 0 for p in row]),
        effective_support: lambda row: math.exp(entropy(row)),
        normalised_entropy: lambda row: entropy(row) / math.log(TOKENS),
    }.items():
        patches = exact[:, :, PREFIX:]
        expected = [[np.mean([of_row(row) for row in head]) for head in image] for image in patches]
        found = measure(attn, prefix=PREFIX)
        torch.testing.assert_close(found.double(), torch.tensor(expected).double(), atol=2e-6, rtol=0)
        torch.testing.assert_close(measure(attn[:, 1], prefix=PREFIX), found[:, 1])  # maps without heads
        torch.testing.assert_close(measure(attn[2:3], prefix=PREFIX), found[2:3])  # whatever the batch


def test_mass_and_distance_of_foreground_queries_equal_loops():
    attn = sparse_maps(seed=1)
    attn[0, 0, PREFIX] = torch.eye(TOKENS)[0]  # a foreground patch that gives the patches nothing
    found = mass_to_background(attn, COVERAGE, prefix=PREFIX)
    away = foreground_attention_distance(attn, COVERAGE, GRID, prefix=PREFIX)
    for n, cover in enumerate(COVERAGE.tolist()):
        objects = [i for i in range(6) if cover[i] > 0.5]
        behind = [i for i in range(6) if cover[i] == 0]
        for h in range(2):
            rows = attn[n, h, PREFIX:, PREFIX:].double().numpy()
            looking = [i for i in objects if rows[i].sum() > 0]
            if objects and behind:
                mass = np.mean([rows[i, behind].sum() / rows[i].sum() for i in looking])
                assert found.share[n, h].item() == pytest.approx(mass, abs=1e-6)
                assert found.ratio[n, h].item() == pytest.approx(mass / (len(behind) / 6), abs=1e-5)
            else:
                assert found.share[n, h].isnan()
                assert found.ratio[n, h].isnan()
            if objects:
                steps = np.array(
                    [[math.dist(divmod(i, 3), divmod(j, 3)) for j in range(6)] for i in range(6)]
                )
                far = np.mean([rows[i] @ steps[i] / rows[i].sum() for i in looking])
                assert away[n, h].item() == pytest.approx(far, abs=1e-6)
            else:
                assert away[n, h].isnan()
    assert found.undefined == 2
    alone = mass_to_background(attn[:, 0], COVERAGE, prefix=PREFIX)  # maps without heads
    torch.testing.assert_close(alone.ratio, found.ratio[:, 0], equal_nan=True)


def test_attention_blind_to_objects_has_ratio_one_and_attention_within_them_zero():
    uniform = torch.full((4, 2, TOKENS, TOKENS), 1 / TOKENS)
    ratio = mass_to_background(uniform, COVERAGE, prefix=PREFIX).ratio
    torch.testing.assert_close(ratio[[0, 3]], torch.ones(2, 2))
    itself = torch.eye(TOKENS).expand(4, 2, -1, -1)
    assert mass_to_background(itself, COVERAGE, prefix=PREFIX).share[[0, 3]].eq(0).all()
    assert foreground_attention_distance(itself, COVERAGE, GRID, prefix=PREFIX)[[0, 2, 3]].eq(0).all()


def test_agrees_with_the_graph_measures_where_all_queries_count():
    attn = sparse_maps(seed=2)
    torch.testing.assert_close(normalised_entropy(attn, prefix=0), attention_entropy(attn, normalised=True))
    everywhere = torch.ones(4, 6)
    torch.testing.assert_close(
        foreground_attention_distance(attn, everywhere, GRID, prefix=PREFIX),
        attention_distance(attn, GRID, prefix=PREFIX),
    )


def test_support_is_bounded_by_its_extremes():
    itself, uniform = torch.eye(TOKENS)[None], torch.full((1, TOKENS, TOKENS), 1 / TOKENS)
    assert [m(itself, prefix=1).item() for m in MEASURES] == pytest.approx([1, 8 / 9, 1, 0])
    assert [m(uniform, prefix=1).item() for m in MEASURES] == pytest.approx([TOKENS, 0, TOKENS, 1])
    attn = sparse_maps(seed=3)
    assert (effective_support(attn, prefix=0) < attention_support(attn, prefix=0)).all()


def test_statistics_of_a_capture():
    backbone = tiny("dinov2_registers")
    images = torch.rand(3, 3, 42, 42, generator=torch.Generator().manual_seed(0))
    own = {m.__name__: partial(m, prefix=backbone.num_prefix_tokens) for m in MEASURES}
    names = set(capture(backbone, images, norm="none", attention=own).stats["statistic"])
    assert set(own) <= names


def test_refuses_what_is_no_map_or_does_not_fit(no_axis_check):
    attn = sparse_maps()
    mass = partial(mass_to_background, prefix=PREFIX)
    for measure in MEASURES:
        for prefix in (-1, TOKENS):
            with pytest.raises(ValueError, match=f"must leave a patch, got prefix = {prefix} of 9 tokens"):
                measure(attn, prefix=prefix)
        with pytest.raises(ValueError, match="rows must sum to 1"):
            measure(2 * attn, prefix=PREFIX)
        with pytest.raises(ValueError, match="not finite, first in image 0"):
            measure(attn / 0, prefix=PREFIX)
    with pytest.raises(ValueError, match="ln 1 = 0"):
        normalised_entropy(torch.ones(1, 1, 1), prefix=0)
    with pytest.raises(ValueError, match=r"= \(4, 6\) for maps \(4, 2, 9, 9\) with prefix = 3, got \(4, 5\)"):
        mass(attn, COVERAGE[:, :5])
    with pytest.raises(ValueError, match=r"each in \[0, 1\]"):
        mass(attn, COVERAGE - 1)
    with pytest.raises(ValueError, match="6 patches do not fill a grid of 2 x 4"):
        foreground_attention_distance(attn, COVERAGE, (2, 4), prefix=PREFIX)
