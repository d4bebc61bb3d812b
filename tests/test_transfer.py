"""Batches prepared ahead, results that arrive late, half precision: which numbers stay, and which move."""

import dataclasses
import threading

import numpy as np
import pytest
import torch

from helpers import noise, tiny, toy_images
from vitscope import backbones, data
from vitscope import capture as module
from vitscope.capture import NonFiniteActivations, capture
from vitscope.data.images import DecodeError
from vitscope.errors import UnknownName
from vitscope.reductions import patch_mean
from vitscope.source import Source
from vitscope.transfer import Arrival, Feed


def kept(found) -> dict[str, torch.Tensor]:
    """All tensors of a capture."""
    named = {"cls": found.cls, "patch_mean": found.patch_mean, "tokens": found.tokens}
    return {k: v for k, v in {**named, **found.per_image, **found.attention}.items() if v is not None}


def same(a, b) -> None:
    assert kept(a).keys() == kept(b).keys()
    for name, value in kept(a).items():
        assert torch.equal(value.nan_to_num(7.0), kept(b)[name].nan_to_num(7.0)), name


def torn(images, at: int):
    """The same set with one picture that cannot be read; also the indices that were asked for."""
    asked = []

    def read(indices):
        asked.append(indices.tolist())
        if at in indices:
            raise DecodeError(f"picture {at}: torn")
        return images.read(indices)

    return dataclasses.replace(images, read=read), asked


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("ahead", [False, True])
def test_neither_a_thread_nor_late_results_change_a_bit(monkeypatch, ahead, late):
    backbone, images = tiny("supervised"), toy_images(11)
    options = {"norm": "final", "attention": True, "keep_tokens": 5, "batch_size": 4}
    expected = capture(backbone, images, **options)
    monkeypatch.setattr(module, "_ON_THE_WAY", {"cpu": late})
    same(capture(backbone, images, ahead=ahead, **options), expected)


@pytest.mark.parametrize("ahead", [False, True])
def test_an_error_of_a_picture_is_raised_with_its_name_and_leaves_no_thread(ahead):
    before = threading.active_count()
    backbone = tiny("supervised")
    images, asked = torn(toy_images(12), at=7)
    with pytest.raises(DecodeError, match="picture 7: torn"):
        capture(backbone, images, norm="none", batch_size=2, ahead=ahead)
    assert asked == [[0, 1], [2, 3], [4, 5], [6, 7]], "no batch is read twice, nor one after the error"
    assert threading.active_count() == before


def test_a_picture_that_is_never_reached_raises_nothing():
    """Where the pass ends for another reason, that reason is what one hears."""
    backbone = tiny("supervised")
    images, _ = torn(toy_images(12), at=3)

    def broken(tokens):
        raise KeyError("a reduction of one's own")

    with pytest.raises(KeyError, match="of one's own"):
        capture(backbone, images, norm="none", batch_size=2, ahead=True, reductions={"broken": broken})


def test_batches_halve_with_a_thread_too():
    backbone, images = tiny("supervised"), toy_images(70)

    def hungry(tokens):
        if len(tokens.patches) > 20:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return patch_mean(tokens)

    found = capture(backbone, images, norm="none", reductions={"patch_mean": hungry}, ahead=True)
    assert found.batch_size == 16
    expected = capture(backbone, images, norm="none", reductions=["patch_mean"], batch_size=16)
    assert torch.equal(found.patch_mean, expected.patch_mean)


def test_late_results_are_checked_like_others(monkeypatch):
    backbone, images = tiny("supervised"), noise(6, 64)
    images[3] = float("inf")
    monkeypatch.setattr(module, "_ON_THE_WAY", {"cpu": 1})
    with pytest.raises(NonFiniteActivations, match="at state -1 for 1 of 2 images of a batch"):
        capture(backbone, images, norm="none", batch_size=2)


def test_feed_takes_any_order_and_prepares_only_what_follows():
    backbone = tiny("supervised")
    images, asked = torn(toy_images(6), at=99)
    pixels = backbone.transform(images.read(np.arange(6)))
    asked.clear()
    with Feed(Source(images, backbone), ahead=True) as feed:
        assert torch.equal(feed.take(0, 2), pixels[:2])
        assert torch.equal(feed.take(2, 2), pixels[2:4])
        assert torch.equal(feed.take(0, 3), pixels[:3])  # not what was prepared
        feed.drop()
        assert torch.equal(feed.take(3, 3), pixels[3:])
    assert [0, 1] in asked
    assert all(len(rows) for rows in asked), "nothing is prepared after the last picture"
    with Feed(Source(pixels, backbone)) as feed:
        assert feed._pool is None, "a tensor that is there needs no thread"


def test_results_on_the_cpu_have_arrived():
    results = {"a": torch.arange(3.0)}
    assert Arrival(results).get()["a"] is results["a"]


# --- half precision ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "turned", "moved"), [("bfloat16", 1e-3, 0.02), ("float16", 1e-5, 3e-3)])
def test_half_precision_is_reduced_in_float32_and_stays_near(dtype, turned, moved):
    """Random and trained weights: features keep their direction (1 − cosine), statistics their value."""
    images = data.load("digits", "test", limit=8)
    for name, options in (("vit_tiny_patch16_224", {"weights": "random", "img_size": 64}), ("twin_s", {})):
        full = backbones.load(name, device="cpu", **options)
        half = backbones.load(name, device="cpu", dtype=dtype, **options)
        assert next(half.model.parameters()).dtype == getattr(torch, dtype)
        assert half.source["dtype"] == dtype
        whole, found = (capture(b, images, norm="layer", attention=True) for b in (full, half))
        assert {value.dtype for value in kept(found).values()} == {torch.float32}
        for what in ("cls", "patch_mean"):
            a, b = (kept(c)[what][1:].double() for c in (whole, found))
            apart = float((1 - torch.cosine_similarity(a, b, dim=-1)).max())
            assert apart < turned, (name, what)
        for what in ("similarity", "similarity_centred", "entropy", "distance"):
            apart = float((kept(whole)[what] - kept(found)[what]).abs().max())
            assert apart < moved, (name, what)


def test_number_types_are_named():
    with pytest.raises(UnknownName, match=r"Unknown dtype 'bfloat'\. Did you mean 'bfloat16'"):
        backbones.load("twin_s", device="cpu", dtype="bfloat")
    assert "dtype" not in backbones.load("twin_s", device="cpu").source
