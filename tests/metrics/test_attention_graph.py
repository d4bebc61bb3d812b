"""Attention as a graph: against eigenvectors and double loops in float64, known graphs, refusals."""

import math
from collections.abc import Iterator
from functools import partial

import jaxtyping
import numpy as np
import pytest
import torch

from helpers import tiny
from vitscope import attention_maps
from vitscope.metrics.attention_graph import (
    attention_consensus,
    attention_distance,
    attention_entropy,
    cls_centrality,
    cls_incoming,
    head_consensus,
    token_centrality,
)

GRID, PREFIX, TOKENS = (2, 3), 3, 9  # CLS and two registers before six patches
CLOSE = {"atol": 2e-6, "rtol": 0}
CENTRALITY, INCOMING, CONSENSUS, HEADS = (
    partial(measure, prefix=PREFIX)
    for measure in (cls_centrality, cls_incoming, attention_consensus, head_consensus)
)
DISTANCE = partial(attention_distance, grid=GRID, prefix=PREFIX)
ALL = [token_centrality, CENTRALITY, INCOMING, CONSENSUS, HEADS, attention_entropy, DISTANCE]


def maps(images=4, heads=3, tokens=TOKENS, *, seed=0, sharp=2.0, dtype=torch.float32) -> torch.Tensor:
    logits = torch.randn(images, heads, tokens, tokens, generator=torch.Generator().manual_seed(seed))
    return (sharp * logits).softmax(-1).to(dtype)


@pytest.fixture
def no_axis_check() -> Iterator[None]:
    """What users get: under pytest the check of axis names would speak before our own messages."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def slow_pagerank(attn: np.ndarray) -> np.ndarray:
    """The eigenvector to eigenvalue 1 of the transposed walk matrix."""
    count = len(attn)
    values, vectors = np.linalg.eig((0.85 * attn + 0.15 / count).T)
    leading = vectors[:, np.argmax(values.real)].real
    return count * leading / leading.sum()


def slow_rows(attn: np.ndarray, prefix: int) -> list[np.ndarray]:
    return [row[prefix:] / row[prefix:].sum() for row in attn[prefix:] if row[prefix:].sum() > 0]


def slow_consensus(attn: np.ndarray, prefix: int) -> float:
    rows = slow_rows(attn, prefix)
    pairs = [(a, b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
    return np.mean([a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) for a, b in pairs])


def slow_entropy(row: np.ndarray) -> float:
    return -sum(p * math.log(p) for p in row if p > 0)


def slow_head_consensus(heads: np.ndarray, prefix: int) -> float:
    found = []
    for rows in zip(*(slow_rows(head, prefix) for head in heads), strict=True):
        middle = sum(rows) / len(rows)
        # the Jensen–Shannon divergence as mean divergence from the mean
        divergence = np.mean([np.sum(r * np.log(np.where(r > 0, r, 1) / middle)) for r in rows])
        found.append(1 - divergence / math.log(len(heads)))
    return np.mean(found)


def slow_distance(attn: np.ndarray, grid: tuple[int, int], prefix: int) -> float:
    found = []
    for i, row in enumerate(slow_rows(attn, prefix)):
        places = [(divmod(i, grid[1]), divmod(j, grid[1])) for j in range(len(row))]
        found.append(sum(p * math.dist(*place) for p, place in zip(row, places, strict=True)))
    return np.mean(found)


@pytest.mark.parametrize("sharp", [0.0, 2.0, 20.0])
def test_equals_the_definitions(sharp):
    attn = maps(sharp=sharp)
    exact = attn.double().numpy()
    exact = exact / exact.sum(-1, keepdims=True)
    mean = exact.mean(1)
    for measure, expected in {
        token_centrality: [slow_pagerank(a) for a in mean],
        CENTRALITY: [slow_pagerank(a)[0] for a in mean],
        CONSENSUS: [slow_consensus(a, PREFIX) for a in mean],
        HEADS: [slow_head_consensus(a, PREFIX) for a in exact],
        INCOMING: exact[..., 0].mean(-1),
        attention_entropy: [[np.mean([slow_entropy(r) for r in h]) for h in a] for a in exact],
        DISTANCE: [[slow_distance(h, GRID, PREFIX) for h in a] for a in exact],
    }.items():
        wanted = torch.tensor(np.array(expected))
        torch.testing.assert_close(measure(attn).double(), wanted, atol=5e-6, rtol=0)


def test_the_tolerance_of_the_power_iteration_holds_and_is_worth_its_name():
    """A chain away from the start is the slowest graph: mass must travel the whole way."""
    count = 60
    chain = torch.zeros(1, count, count, dtype=torch.float64)
    chain[0, torch.arange(count), (torch.arange(count) + 1).clamp_max(count - 1)] = 1
    exact = torch.tensor(slow_pagerank(chain[0].numpy()))
    errors = {t: (token_centrality(chain, tolerance=t)[0] - exact).abs().max() for t in (1.0, 1e-3, 1e-9)}
    assert all(error <= tolerance for tolerance, error in errors.items())
    assert errors[1.0] > 1e-3  # it does stop early when allowed to
    torch.testing.assert_close(token_centrality(chain, tolerance=1e-300)[0], exact)  # ends all the same
    with pytest.raises(ValueError, match="tolerance must be positive, got 0"):
        token_centrality(chain, tolerance=0.0)


@pytest.mark.parametrize("prefix", [1, 5])
def test_uniform_attention(prefix):
    tokens = prefix + 6
    uniform = torch.full((2, 4, tokens, tokens), 1 / tokens)
    torch.testing.assert_close(token_centrality(uniform).float(), torch.ones(2, tokens), **CLOSE)
    torch.testing.assert_close(cls_incoming(uniform, prefix=prefix), torch.full((2, 4), 1 / tokens), **CLOSE)
    torch.testing.assert_close(attention_consensus(uniform, prefix=prefix), torch.ones(2), **CLOSE)
    torch.testing.assert_close(head_consensus(uniform, prefix=prefix), torch.ones(2), **CLOSE)
    torch.testing.assert_close(attention_entropy(uniform, normalised=True), torch.ones(2, 4), **CLOSE)


def test_star_graph_to_cls():
    """All look at CLS: π_0 = 0.85 + 0.15/T, the others keep what the jumps bring, 0.15/T."""
    star = torch.zeros(1, 2, 5, 5)
    star[..., 0] = 1
    expected = torch.tensor([[0.85 * 5 + 0.15] + [0.15] * 4], dtype=torch.float64)
    torch.testing.assert_close(token_centrality(star), expected)
    assert cls_incoming(star, prefix=1).tolist() == [[1.0, 1.0]]
    assert attention_entropy(star).tolist() == [[0.0, 0.0]]
    # nobody looks at a patch: there are no rows to compare
    assert attention_consensus(star, prefix=1).isnan().all()
    assert head_consensus(star, prefix=1).isnan().all()
    assert attention_distance(star, (2, 2), prefix=1).isnan().all()


def test_planted_consensus():
    row = torch.tensor([0.5, 0.1, 0.3, 0.1]).expand(1, 4, 4)
    assert attention_consensus(row, prefix=1).item() == pytest.approx(1)
    assert attention_consensus(torch.eye(4)[None], prefix=1).item() == pytest.approx(0, abs=1e-7)
    # of four patches two look left, two look right: 2·2 ordered pairs of 12 agree
    camps = torch.eye(4)[None, [0, 0, 1, 1]]
    assert attention_consensus(camps, prefix=0).item() == pytest.approx(4 / 12)


def test_planted_agreement_of_heads():
    alike = maps(heads=1).expand(4, 5, TOKENS, TOKENS)
    torch.testing.assert_close(HEADS(alike), torch.ones(4), **CLOSE)
    apart = torch.zeros(1, 3, 3, 3)  # three heads that share no key
    apart[0, torch.arange(3), :, torch.arange(3)] = 1
    assert head_consensus(apart, prefix=0).item() == pytest.approx(0, abs=1e-6)


def test_planted_distance():
    assert attention_distance(torch.eye(6)[None], (2, 3), prefix=0).item() == 0
    # every patch of a row of six looks at the first: (0 + 1 + … + 5) / 6
    first = torch.zeros(1, 6, 6)
    first[..., 0] = 1
    assert attention_distance(first, (1, 6), prefix=0).item() == pytest.approx(2.5)
    # on two rows of three the same look is (0 + 1 + 2 + 1 + √2 + √5) / 6
    expected = (4 + math.sqrt(2) + math.sqrt(5)) / 6
    assert attention_distance(first, (2, 3), prefix=0).item() == pytest.approx(expected)


def test_sparse_rows_without_patch_mass_are_left_out():
    to_a_register = torch.eye(TOKENS, dtype=torch.float64)[1]  # as entmax can
    attn, in_one_head = (maps(images=1, dtype=torch.float64) for _ in range(2))
    attn[:, :, PREFIX + 1] = in_one_head[:, 0, PREFIX + 1] = to_a_register
    torch.testing.assert_close(HEADS(in_one_head), HEADS(attn))
    heads = attn[0].numpy()
    assert len(slow_rows(heads[0], PREFIX)) == 5
    assert CONSENSUS(attn).item() == pytest.approx(slow_consensus(heads.mean(0), PREFIX))
    assert HEADS(attn).item() == pytest.approx(slow_head_consensus(heads, PREFIX))
    patches = torch.from_numpy(heads[:, PREFIX:, PREFIX:])
    cells = torch.cartesian_prod(torch.arange(2.0), torch.arange(3.0)).double()
    travelled = (patches * torch.cdist(cells, cells)).sum(2) / patches.sum(2)
    torch.testing.assert_close(DISTANCE(attn)[0], travelled.nanmean(1))


def test_what_prefix_tokens_get_changes_nothing_among_patches():
    """Scaling a row's patch part down in favour of a register leaves the renormalised rows alone."""
    attn = maps(dtype=torch.float64)
    share = torch.rand(4, 1, TOKENS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    drained = attn * share[..., None]
    drained[..., 1] += 1 - share
    for measure in (CONSENSUS, HEADS, DISTANCE, lambda a: CONSENSUS(a.flatten(0, 1))):
        torch.testing.assert_close(measure(drained), measure(attn))


def test_order_of_images_patches_and_heads():
    attn = maps()
    generator = torch.Generator().manual_seed(2)
    images, heads = torch.randperm(4, generator=generator), torch.randperm(3, generator=generator)
    patches = torch.cat([torch.arange(PREFIX), PREFIX + torch.randperm(6, generator=generator)])
    shuffled = attn[images][:, heads][:, :, patches][..., patches]
    for measure in (CENTRALITY, CONSENSUS, HEADS):
        torch.testing.assert_close(measure(shuffled), measure(attn)[images], **CLOSE)
    for measure in (INCOMING, attention_entropy):
        torch.testing.assert_close(measure(shuffled), measure(attn)[images][:, heads], **CLOSE)
    every = token_centrality(attn)
    torch.testing.assert_close(token_centrality(shuffled), every[images][:, patches], **CLOSE)
    flipped = torch.cat([torch.arange(PREFIX), PREFIX + torch.arange(6).view(GRID).flip(1).flatten()])
    torch.testing.assert_close(DISTANCE(attn[:, :, flipped][..., flipped]), DISTANCE(attn), **CLOSE)


def test_batches_split_and_maps_without_heads():
    attn = maps()
    for measure in ALL:
        parts = torch.cat([measure(part) for part in attn.split(3)])
        torch.testing.assert_close(parts, measure(attn), **CLOSE)
    mean = attn.mean(1)
    for measure in (CENTRALITY, CONSENSUS):  # of the head-mean map by definition
        torch.testing.assert_close(measure(mean), measure(attn), **CLOSE)
    for measure in (INCOMING, attention_entropy, DISTANCE):
        torch.testing.assert_close(measure(attn[:, 1]), measure(attn)[:, 1], **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_accepted_and_computed_in_float32(dtype):
    attn = maps(tokens=203, dtype=dtype)  # 3 prefix tokens and 10 x 20 patches
    exact = attn.double() / attn.double().sum(-1, keepdim=True)
    masses = token_centrality(attn)
    torch.testing.assert_close(masses, token_centrality(exact), atol=0.01, rtol=0)
    torch.testing.assert_close(masses.mean(1), torch.ones(4).double())  # rounded rows leak nothing
    for measure in (CONSENSUS, HEADS, INCOMING, attention_entropy):
        assert measure(attn).dtype == torch.float32
        torch.testing.assert_close(measure(attn).double(), measure(exact), atol=0.01, rtol=0.01)


@pytest.mark.parametrize("family", ["supervised", "dinov2_registers", "dinov3_rope"])
def test_agrees_with_the_statistics_of_capture(family):
    backbone = tiny(family)
    grid, prefix = backbone.grid, backbone.num_prefix_tokens
    q, k = torch.randn(2, 3, 2, prefix + math.prod(grid), 8, generator=torch.Generator().manual_seed(0))
    geometry = attention_maps.Geometry(grid, prefix, backbone.has_cls, torch.device("cpu"))
    captured = attention_maps.statistics(q, k, geometry)
    attn = torch.softmax(q @ k.transpose(-2, -1), dim=-1)
    for value, name in (
        (attention_entropy(attn), "entropy"),
        (attention_distance(attn, grid, prefix=prefix), "distance"),
        (cls_incoming(attn, prefix=prefix), "cls_incoming"),
    ):
        torch.testing.assert_close(value, captured[name], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("measure", ALL)
def test_what_is_no_attention_map_is_refused(measure):
    attn = maps(dtype=torch.float64)
    off, masked, broken, negative = (attn.clone() for _ in range(4))
    off[2, 1, 4, 5] += 0.25
    masked[1, 0, 3] = 0
    broken[3, 0, 0, :2] = torch.nan
    negative[0, 0, 0, :2] = torch.tensor([-0.5, attn[0, 0, 0, :2].sum() + 0.5])
    for bad, message in (
        (off, r"largest deviation is 0\.25, in image 2, query 4"),
        (masked, "largest deviation is 1, in image 1, query 3"),
        (broken, "2 values that are not finite, first in image 3"),
        (negative, r"must be >= 0, the least is -0\.5"),
    ):
        with pytest.raises(ValueError, match=message):
            measure(bad)


@pytest.mark.usefixtures("no_axis_check")
@pytest.mark.parametrize("measure", ALL)
def test_wrong_shapes_and_types_are_refused(measure):
    for shape in ((9, 9), (2, 3, 8, 9), (1, 2, 3, 9, 9), (0, 3, 9, 9)):
        text = ", ".join(map(str, shape))
        with pytest.raises(ValueError, match=rf"must be \[N, H, T, T\] or \[N, T, T\], got \({text}\)"):
            measure(torch.ones(shape))
    with pytest.raises(ValueError, match=r"floating type, got torch\.int64"):
        measure(torch.eye(9, dtype=torch.int64).expand(2, 2, 9, 9))


def test_prefixes_that_leave_nothing_to_measure_are_refused():
    attn = maps()
    for measure in (cls_centrality, cls_incoming):
        with pytest.raises(ValueError, match="CLS is one of the prefix tokens, got prefix = 0 of 9"):
            measure(attn, prefix=0)
    for prefix in (-1, 8, 9, 20):
        for measure in (attention_consensus, head_consensus):
            with pytest.raises(
                ValueError, match=f"at least 2 patches are needed, got prefix = {prefix} of 9"
            ):
                measure(attn, prefix=prefix)
    with pytest.raises(ValueError, match="9 tokens are not 1 prefix tokens and a grid of 2 x 3"):
        attention_distance(attn, GRID, prefix=1)
    with pytest.raises(ValueError, match=r"H >= 2, got \(4, 1, 9, 9\)"):
        head_consensus(attn[:, :1], prefix=PREFIX)
    with pytest.raises(TypeError, match="prefix"):
        attention_consensus(attn)
