import math

import numpy as np
import pytest
import torch

from vitscope.metrics.similarity import (
    cls_patch_cosine,
    effective_rank,
    similarity_floor,
    token_similarity,
)


def slow_similarity(tokens, centred, centre=None):
    """The definition, pair by pair, in float64."""
    results = []
    for image in tokens.double().numpy():
        x = image - image.mean(0) if centred else image
        x = x if centre is None else x - centre.double().numpy()
        cosines = [
            float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
            for i, a in enumerate(x)
            for j, b in enumerate(x)
            if i != j
        ]
        results.append(np.mean(cosines))
    return torch.tensor(results)


def tokens_like_a_state(seed=0, images=5, patches=9, width=16, common=3.0):
    generator = torch.Generator().manual_seed(seed)
    shared = common * torch.randn(1, 1, width, generator=generator)
    return torch.randn(images, patches, width, generator=generator) + shared


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("common", [0.0, 3.0, 100.0])
def test_equals_the_definition(centred, common):
    tokens = tokens_like_a_state(common=common)
    torch.testing.assert_close(
        token_similarity(tokens, centred).double(), slow_similarity(tokens, centred), atol=2e-6, rtol=0
    )


@pytest.mark.parametrize("common", [0.0, 3.0, 100.0])
def test_a_given_centre_is_subtracted_from_every_image(common):
    tokens = tokens_like_a_state(common=common)
    centre = tokens.mean((0, 1))
    found = token_similarity(tokens, centre=centre)
    torch.testing.assert_close(found.double(), slow_similarity(tokens, False, centre), atol=5e-6, rtol=0)
    # the same images before another background are as alike as they were
    torch.testing.assert_close(token_similarity(tokens - centre), found, atol=0, rtol=0)
    half = tokens.to(torch.bfloat16)
    expected = slow_similarity(half, False, centre)
    torch.testing.assert_close(token_similarity(half, centre=centre).double(), expected, atol=5e-6, rtol=0)


def test_what_sets_an_image_apart_stays_only_with_the_mean_of_the_dataset():
    """Tokens = background + image + small noise: centred by dataset they agree, by image they do not."""
    generator = torch.Generator().manual_seed(4)
    background, noise = (
        50 * torch.randn(64, generator=generator),
        torch.randn(40, 16, 64, generator=generator),
    )
    tokens = background + 10 * torch.randn(40, 1, 64, generator=generator) + 0.1 * noise
    by_dataset = token_similarity(tokens, centre=tokens.mean((0, 1)))
    assert by_dataset.min() > 0.99
    assert token_similarity(tokens, centred=True).abs().max() < 0.1
    # one image is its own dataset
    one = token_similarity(tokens[:1], centre=tokens[0].mean(0))
    torch.testing.assert_close(one, token_similarity(tokens[:1], centred=True), atol=2e-5, rtol=0)


def test_tokens_at_the_centre_have_no_direction():
    tokens = 7.3 * torch.randn(1, 1, 32, generator=torch.Generator().manual_seed(5)).expand(2, 9, 32)
    assert token_similarity(tokens, centre=tokens[0, 0] * (1 + 1e-7)).tolist() == [0.0, 0.0]


def test_one_centre_at_a_time_and_of_the_right_width():
    with pytest.raises(ValueError, match="choose one of the two"):
        token_similarity(torch.ones(2, 4, 3), True, centre=torch.ones(3))
    with pytest.raises(TypeError):  # the axis names, checked in tests
        token_similarity(torch.ones(2, 4, 3), centre=torch.ones(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    tokens = tokens_like_a_state(patches=64).to(dtype)
    result = token_similarity(tokens, centred=True)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), slow_similarity(tokens, True), atol=2e-6, rtol=0)


def test_known_answers():
    same = torch.tensor([1.0, 2.0, 3.0]).expand(1, 4, 3)
    assert token_similarity(same).item() == pytest.approx(1.0)
    orthogonal = torch.eye(4)[None]
    assert token_similarity(orthogonal).item() == pytest.approx(0.0, abs=1e-7)
    opposite = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]])
    assert token_similarity(opposite).item() == pytest.approx(-1.0)
    planted = torch.tensor([[math.cos(0), math.sin(0)], [math.cos(0.7), math.sin(0.7)]])[None]
    assert token_similarity(planted).item() == pytest.approx(math.cos(0.7))


def test_the_floor_is_reached_by_centred_tokens_of_equal_norm():
    """Orthogonal tokens of equal length, centred, form a simplex: the mean is exactly -1/(P-1)."""
    for patches in (2, 9, 196):
        simplex = torch.eye(patches)[None]
        floor = similarity_floor(patches)
        assert token_similarity(simplex, centred=True).item() == pytest.approx(floor, abs=1e-7)
    assert similarity_floor(196) == pytest.approx(-0.0051, abs=5e-5)


def test_invariances():
    tokens = tokens_like_a_state()
    raw, centred = token_similarity(tokens), token_similarity(tokens, centred=True)
    close = {"atol": 2e-6, "rtol": 0}
    for scale in (0.01, 1.0, 100.0):
        torch.testing.assert_close(token_similarity(scale * tokens), raw, **close)
        torch.testing.assert_close(token_similarity(scale * tokens, centred=True), centred, **close)
    shift = torch.randn(16, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(token_similarity(tokens + shift, centred=True), centred, **close)
    assert (token_similarity(tokens + 5 * shift) - raw).abs().max() > 0.01
    order = torch.randperm(9, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(token_similarity(tokens[:, order]), raw, **close)
    one_by_one = torch.cat([token_similarity(image[None], centred=True) for image in tokens])
    torch.testing.assert_close(one_by_one, centred, **close)


def test_tokens_of_norm_zero_count_as_cosine_zero():
    pair = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]])
    assert token_similarity(pair).item() == pytest.approx(2 / 6)


@pytest.mark.parametrize("size", [1e-3, 1.0, 37.3, 1e4])
def test_equal_tokens_centre_to_zero_and_not_to_rounding_noise(size):
    token = size * torch.randn(1, 1, 384, generator=torch.Generator().manual_seed(0))
    assert token_similarity(token.expand(3, 196, 384), centred=True).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("centred", [False, True])
def test_nan_stays_visible_and_stays_in_its_image(centred):
    tokens = tokens_like_a_state()
    tokens[1, 3, 2] = torch.nan
    assert token_similarity(tokens, centred).isnan().tolist() == [False, True, False, False, False]


def test_one_patch_has_no_pair():
    with pytest.raises(ValueError, match=r"P >= 2 patches, got \(3, 1, 8\)"):
        token_similarity(torch.ones(3, 1, 8))
    with pytest.raises(ValueError, match="at least 2 patches, got 1"):
        similarity_floor(1)


def test_cls_patch_cosine_equals_the_definition_and_ignores_scale():
    patches = tokens_like_a_state()
    cls = torch.randn(5, 16, generator=torch.Generator().manual_seed(3))
    expected = [
        np.mean([float(c @ p / (np.linalg.norm(c) * np.linalg.norm(p))) for p in image])
        for c, image in zip(cls.double().numpy(), patches.double().numpy(), strict=True)
    ]
    torch.testing.assert_close(
        cls_patch_cosine(cls, patches).double(), torch.tensor(expected), atol=2e-6, rtol=0
    )
    torch.testing.assert_close(
        cls_patch_cosine(0.01 * cls, 100 * patches), cls_patch_cosine(cls, patches), atol=2e-6, rtol=0
    )


def test_cls_patch_cosine_needs_a_patch_and_matching_axes():
    with pytest.raises(ValueError, match="P >= 1"):
        cls_patch_cosine(torch.ones(2, 4), torch.ones(2, 0, 4))
    with pytest.raises(TypeError):  # the axis names, checked in tests
        cls_patch_cosine(torch.ones(3, 4), torch.ones(2, 5, 4))


# --- effective rank ---------------------------------------------------------------------------------------


def slow_rank(tokens, centred):
    """exp of the entropy of the singular values, one image after the other, in float64."""
    results = []
    for image in tokens.double().numpy():
        sigma = np.linalg.svd(image - image.mean(0) if centred else image, compute_uv=False)
        shares = [s / sigma.sum() for s in sigma if s > 1e-12 * sigma.max()]
        results.append(math.exp(-sum(p * math.log(p) for p in shares)))
    return torch.tensor(results, dtype=torch.float64)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("patches", [5, 16, 49])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rank_equals_the_entropy_of_singular_values(dtype, patches, centred):
    tokens = tokens_like_a_state(patches=patches).to(dtype)
    found = effective_rank(tokens, centred)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(found.double(), slow_rank(tokens, centred), rtol=1e-6, atol=0)
    most = min(patches - centred, 16)
    assert (found <= most + 1e-4).all()
    assert (found >= 1).all()


def test_rank_takes_singular_values_and_not_their_squares():
    tokens = torch.tensor([[[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    by_value = math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    by_square = math.exp(-(0.9 * math.log(0.9) + 0.1 * math.log(0.1)))
    assert effective_rank(tokens, centred=False).item() == pytest.approx(by_value, abs=1e-6)
    assert by_value - by_square > 0.3


@pytest.mark.parametrize("rank", [1, 2, 5, 12])
@pytest.mark.parametrize("common", [0.0, 1e3])
def test_planted_rank_is_found_beside_a_large_common_component(rank, common):
    """Tokens ± along `rank` orthogonal axes of one length; float32 rounding of the rest is no direction."""
    axes = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(6))).Q[:rank]
    tokens = torch.cat([axes, -axes])[None] + common / 8
    assert effective_rank(tokens, centred=True).item() == pytest.approx(rank, rel=1e-3)


def test_the_most_is_one_direction_less_than_patches():
    assert effective_rank(torch.eye(9)[None]).item() == pytest.approx(8)
    wide = torch.randn(1, 500, 4, generator=torch.Generator().manual_seed(7))
    assert 3.9 < effective_rank(wide).item() <= 4 + 1e-5


@pytest.mark.parametrize("size", [1e-3, 1.0, 37.3, 1e4])
def test_equal_tokens_have_rank_zero_when_centred_and_one_when_not(size):
    token = size * torch.randn(1, 1, 96, generator=torch.Generator().manual_seed(0))
    equal = token.expand(2, 49, 96)
    jitter = equal * (1 + 1e-7 * torch.randn(2, 49, 96, generator=torch.Generator().manual_seed(1)))
    for tokens in (equal, jitter):
        assert effective_rank(tokens).tolist() == [0.0, 0.0]
        torch.testing.assert_close(effective_rank(tokens, centred=False), torch.ones(2), atol=1e-4, rtol=0)
    assert effective_rank(torch.zeros(2, 4, 3), centred=False).tolist() == [0.0, 0.0]
    assert effective_rank(token).item() == 0.0  # one patch, centred


def test_rank_ignores_scale_rotation_order_and_shift():
    tokens = tokens_like_a_state()
    rotation = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(2))).Q
    order = torch.randperm(9, generator=torch.Generator().manual_seed(3))
    moved = 100 * (tokens @ rotation)[:, order] + 5
    torch.testing.assert_close(effective_rank(moved), effective_rank(tokens), rtol=1e-5, atol=0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("centred", [False, True])
def test_rank_is_nan_for_an_image_that_is_not_finite_and_only_for_it(bad, centred):
    tokens = tokens_like_a_state()
    healthy = effective_rank(tokens, centred)
    tokens[1, 3, 2] = bad
    found = effective_rank(tokens, centred)
    assert found.isnan().tolist() == [False, True, False, False, False]
    torch.testing.assert_close(found[2:], healthy[2:])


def test_rank_needs_a_patch():
    with pytest.raises(ValueError, match=r"P >= 1 patches, got \(3, 0, 8\)"):
        effective_rank(torch.ones(3, 0, 8))
