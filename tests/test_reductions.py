"""Per-image reductions against double loops in float64, and their edge cases."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import noise, tiny
from vitscope import reductions
from vitscope.capture import capture
from vitscope.metrics.similarity import effective_rank, token_similarity
from vitscope.reductions import DEFAULT, REDUCTIONS, Tokens, similarity_by_dataset


def tokens(patches, cls=None, registers=None, state=3) -> Tokens:
    n, _, d = patches.shape
    return Tokens(
        state=state,
        cls=cls,
        registers=patches.new_zeros(n, 0, d) if registers is None else registers,
        patches=patches,
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


# --- similarity centred by the mean of the dataset ---------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("count", [2, 3, 16])
def test_similarity_by_dataset_equals_the_double_loop(count, offset):
    patches = normal(5, count, 8) + offset * normal(1, 1, 8, seed=1)
    mean = patches.mean((0, 1))
    found = similarity_by_dataset({3: mean})(tokens(patches))
    assert list(found) == ["similarity_dataset"]
    expected = torch.tensor(slow_similarity(patches.double() - mean.double(), False), dtype=torch.float64)
    torch.testing.assert_close(found["similarity_dataset"].double(), expected, rtol=2e-5, atol=2e-5)


def test_similarity_by_dataset_takes_the_mean_of_its_state():
    patches = normal(2, 6, 4) + 3
    means = {-1: torch.zeros(4), 0: torch.full((4,), 3.0)}
    reduction = similarity_by_dataset(means)
    raw = reductions.similarity(tokens(patches))["similarity"]
    means.clear()  # the reduction keeps what it was given
    at_minus_one, at_zero = (
        reduction(tokens(patches, state=state))["similarity_dataset"] for state in (-1, 0)
    )
    torch.testing.assert_close(at_minus_one, raw)
    torch.testing.assert_close(at_zero, reductions.similarity(tokens(patches - 3))["similarity"])


def test_tokens_at_the_mean_of_the_dataset_have_no_direction():
    patches = normal(1, 1, 32).expand(2, 49, 32).contiguous()
    mean = patches.mean((0, 1))  # differs from the tokens by rounding
    assert similarity_by_dataset({3: mean})(tokens(patches))["similarity_dataset"].abs().max() < 1e-6


def test_a_mean_that_is_missing_or_of_another_width_is_named_by_its_state():
    reduction = similarity_by_dataset({0: torch.zeros(4), -1: torch.zeros(4), 3: torch.zeros(1)})
    with pytest.raises(ValueError, match=r"no mean token of state 7, only of \[-1, 0, 3\]; pass one for"):
        reduction(tokens(normal(1, 3, 4), state=7))
    with pytest.raises(ValueError, match=r"mean token of state 3 must be \[4\], got \[1\]"):
        reduction(tokens(normal(1, 3, 4), state=3))
    with pytest.raises(ValueError, match="at least 2"):
        reduction(tokens(normal(2, 1, 4), state=0))


# --- inside capture ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["supervised", "dinov2_registers", "siglip"])
def test_capture_says_which_state_it_reduces(family):
    backbone = tiny(family)

    def state(tokens: Tokens) -> dict[str, torch.Tensor]:
        return {"state": torch.full((len(tokens.patches),), float(tokens.state))}

    found = capture(
        backbone, noise(5, backbone.transform.height), norm="none", reductions={"s": state}, batch_size=2
    )
    assert found.per_image["state"].T.tolist() == [[-1.0, 0.0, 1.0, 2.0]] * 5


@pytest.mark.parametrize("family", ["supervised", "dinov2_registers", "siglip"])
def test_streaming_equals_the_metrics_on_kept_tokens(family):
    backbone = tiny(family)
    images = noise(5, backbone.transform.height)
    first = capture(backbone, images, norm="none", reductions=("patch_mean",))
    means = dict(zip(first.states, first.patch_mean.mean(1), strict=True))
    chosen = {"dataset": similarity_by_dataset(means), "rank": reductions.effective_rank}
    found = capture(backbone, images, norm="none", reductions=chosen, keep_tokens=5, batch_size=2)
    patches = found.tokens[:, :, backbone.num_prefix_tokens :]
    for row, state in enumerate(found.states):
        centred = token_similarity(patches[row], centre=means[state])
        torch.testing.assert_close(found.per_image["similarity_dataset"][row], centred, rtol=0, atol=5e-6)
        assert torch.equal(found.per_image["effective_rank"][row], effective_rank(patches[row]))


def test_effective_rank_is_there_by_name_and_not_by_default():
    assert "effective_rank" in REDUCTIONS
    assert "effective_rank" not in DEFAULT
