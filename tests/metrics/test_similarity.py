import math

import numpy as np
import pytest
import torch

from vitscope.metrics.similarity import cls_patch_cosine, similarity_floor, token_similarity


def slow_similarity(tokens, centred):
    """The definition, pair by pair, in float64."""
    results = []
    for image in tokens.double().numpy():
        x = image - image.mean(0) if centred else image
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
