"""Per-image reductions against double loops in float64, and their edge cases."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope import reductions
from vitscope.reductions import REDUCTIONS, Tokens


def tokens(patches, cls=None, registers=None) -> Tokens:
    n, _, d = patches.shape
    return Tokens(
        cls=cls, registers=patches.new_zeros(n, 0, d) if registers is None else registers, patches=patches
    )


def normal(*shape, seed=0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cosine(a, b) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    lengths = [math.sqrt(sum(x * x for x in v)) for v in (a, b)]
    return dot / (lengths[0] * lengths[1]) if min(lengths) > 0 else 0.0


def slow_similarity(patches: torch.Tensor, centred: bool) -> list[float]:
    """The definition: the mean over all ordered pairs i ≠ j, one image after the other, in float64."""
    found = []
    for image in patches.double():
        rows = (image - image.mean(0) if centred else image).tolist()
        pairs = [cosine(a, b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
        found.append(sum(pairs) / len(pairs))
    return found


@pytest.mark.parametrize("offset", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("count", [2, 3, 16])
def test_similarity_equals_the_double_loop(count, offset):
    patches = normal(3, count, 8) + offset * normal(1, 1, 8, seed=1)
    result = reductions.similarity(tokens(patches))
    for name, centred in (("similarity", False), ("similarity_centred", True)):
        expected = torch.tensor(slow_similarity(patches, centred), dtype=torch.float64)
        torch.testing.assert_close(result[name].double(), expected, rtol=2e-5, atol=2e-5)
    norms = torch.tensor([[math.hypot(*t) for t in image] for image in patches.double().tolist()])
    torch.testing.assert_close(result["patch_norm"].double(), norms.double().mean(1), rtol=1e-6, atol=0)


def test_similarity_of_equal_opposite_and_orthogonal_tokens():
    unit = torch.eye(4)
    equal, orthogonal = unit[:1].expand(4, -1), unit
    opposite = torch.stack([unit[0], -unit[0]] * 2)
    found = reductions.similarity(tokens(torch.stack([equal, orthogonal, opposite])))["similarity"]
    torch.testing.assert_close(found, torch.tensor([1.0, 0.0, -1 / 3]))


@pytest.mark.parametrize("count", [7, 49, 64, 196])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_identical_tokens_have_no_centred_direction(count, scale):
    """What is left after centring is rounding; it must not be read as perfect agreement."""
    patches = (scale * normal(1, 1, 32)).expand(1, count, 32).contiguous()
    result = reductions.similarity(tokens(patches))
    assert abs(float(result["similarity"]) - 1) < 1e-5
    assert abs(float(result["similarity_centred"])) < 1e-3


@pytest.mark.parametrize("zeros", [1, 3, 6])
def test_zero_tokens_count_as_orthogonal_to_everything(zeros):
    patches = normal(2, 6, 5)
    patches[:, :zeros] = 0
    result = reductions.similarity(tokens(patches))
    assert all(torch.isfinite(v).all() for v in result.values())
    expected = torch.tensor(slow_similarity(patches, False), dtype=torch.float64)
    torch.testing.assert_close(result["similarity"].double(), expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-3, 1e3), st.integers(0, 10_000))
def test_similarity_ignores_scale_rotation_and_order(scale, seed):
    patches = normal(1, 9, 6, seed=seed) + 0.5
    rotation = torch.linalg.qr(normal(6, 6, seed=seed + 1)).Q
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    original, moved = (
        reductions.similarity(tokens(p)) for p in (patches, scale * (patches @ rotation)[:, order])
    )
    for name in ("similarity", "similarity_centred"):
        torch.testing.assert_close(original[name], moved[name], rtol=1e-4, atol=1e-5)
    assert float(original["similarity_centred"]) >= -1 / 8 - 1e-5, "no less than −1/(P−1)"


def test_centred_similarity_ignores_a_common_shift():
    patches = normal(2, 12, 6)
    shifted = reductions.similarity(tokens(patches + normal(2, 1, 6, seed=3)))
    torch.testing.assert_close(
        shifted["similarity_centred"],
        reductions.similarity(tokens(patches))["similarity_centred"],
        atol=1e-5,
        rtol=0,
    )


def test_one_patch_has_no_pairs():
    with pytest.raises(ValueError, match=r"one patch|two patches|at least 2"):
        reductions.similarity(tokens(normal(2, 1, 4)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_reduced_in_float32(dtype):
    patches = (normal(2, 16, 8) * 50).to(dtype)  # squared norms leave the range of fp16
    result = reductions.similarity(tokens(patches))
    exact = reductions.similarity(tokens(patches.float()))
    for name, value in result.items():
        assert value.dtype == torch.float32
        assert torch.equal(value, exact[name])
    assert reductions.patch_mean(tokens(patches))["patch_mean"].dtype == torch.float32


def test_cls_and_patch_mean():
    patches, cls = normal(3, 5, 4), normal(3, 4, seed=2)
    result = reductions.cls(tokens(patches, cls))
    assert torch.equal(result["cls"], cls)
    torch.testing.assert_close(result["cls_norm"], cls.square().sum(1).sqrt())
    slow = torch.tensor([[sum(image[:, d].tolist()) / 5 for d in range(4)] for image in patches.double()])
    torch.testing.assert_close(reductions.patch_mean(tokens(patches))["patch_mean"], slow.float())


def test_cosine_of_cls_and_patches():
    patches, cls = normal(2, 6, 4), normal(2, 4, seed=2)
    found = reductions.cls_patch_cosine(tokens(patches, cls))["cls_patch_cosine"]
    slow = [
        sum(cosine(c, p) for p in image) / 6
        for c, image in zip(cls.double().tolist(), patches.double().tolist(), strict=True)
    ]
    torch.testing.assert_close(found.double(), torch.tensor(slow, dtype=torch.float64), rtol=1e-5, atol=1e-6)


def test_nothing_is_said_about_a_cls_that_is_not_there():
    assert reductions.cls(tokens(normal(1, 4, 3))) == {}
    assert reductions.cls_patch_cosine(tokens(normal(1, 4, 3))) == {}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_registers_never_enter(name):
    patches, cls, registers = normal(2, 6, 4), normal(2, 4, seed=1), normal(2, 3, 4, seed=2)
    quiet = REDUCTIONS[name](tokens(patches, cls, registers))
    loud = REDUCTIONS[name](tokens(patches, cls, torch.full_like(registers, 1e6)))
    assert quiet
    assert all(torch.equal(quiet[k], loud[k]) for k in quiet)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_images_do_not_touch_each_other(name):
    patches, cls = normal(4, 6, 4), normal(4, 4, seed=1)
    together = REDUCTIONS[name](tokens(patches, cls))
    for i in range(4):
        alone = REDUCTIONS[name](tokens(patches[i : i + 1], cls[i : i + 1]))
        for key, value in alone.items():
            torch.testing.assert_close(value[0], together[key][i], rtol=1e-5, atol=1e-6)
