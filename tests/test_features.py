"""Cached features: the same numbers as without a cache, and never those of something else."""

import dataclasses

import numpy as np
import pytest
import torch

from vitscope import backbones, data, features, store
from vitscope.capture import capture
from vitscope.position import scaled


@pytest.fixture(scope="module")
def twin():
    return backbones.load("depth_06", device="cpu")


@pytest.fixture(scope="module")
def images():
    return data.load("digits", "test", limit=12)


def files(folder):
    return sorted(folder.iterdir())


def test_a_second_call_reads_what_the_first_computed(tmp_path, monkeypatch, twin, images):
    first = features.features(twin, images, norm="none", folder=tmp_path)
    plain = capture(twin, images, norm="none", reductions=features.KEPT)
    monkeypatch.setattr(features, "capture", None)  # whoever computes now, fails
    second = features.features(twin, images, norm="none", folder=tmp_path)
    for found in (first, second):
        assert torch.equal(found.patch_mean, plain.patch_mean)
        assert torch.equal(found.cls[1:], plain.cls[1:])
        assert torch.isnan(found.cls[0]).all()
        np.testing.assert_array_equal(found.labels, images.labels)
        assert found.states == plain.states
        assert found.norm == "none"
    assert len(files(tmp_path)) == 1


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch, twin, images):
    monkeypatch.chdir(tmp_path)
    features.features(twin, images, norm="none", folder=None)
    assert files(tmp_path) == []


def test_a_cache_counts_pictures_and_whose_they_were(tmp_path, twin, images):
    def counts(cache, pictures):
        features.features(twin, pictures, norm="none", folder=cache)
        return cache.computed, cache.found

    few = images.limited(8)
    one, other, nowhere = (features.FeatureCache(folder) for folder in (tmp_path, tmp_path, None))
    assert counts(one, images) == (12, 0)
    assert counts(one, few) == (20, 0)
    assert counts(one, images) == (20, 12)
    assert counts(other, few) == (0, 8)
    assert counts(nowhere, few) == (8, 0)
    assert counts(nowhere, few) == (16, 0)
    for path in files(tmp_path):
        path.write_bytes(b"broken")
    assert counts(other, few) == (8, 8)


def test_the_key_covers_whatever_changes_a_number(twin, images):
    keys = [
        features.key(twin, images, norm="none"),
        features.key(twin, images, norm="final"),
        features.key(scaled(twin, 0.5), images, norm="none"),
        features.key(twin, images.limited(8), norm="none"),
        features.key(twin, data.load("digits", "train", limit=12), norm="none"),
        features.key(backbones.load("depth_06", device="cpu", img_size=32), images, norm="none"),
        features.key(
            dataclasses.replace(twin, transform=dataclasses.replace(twin.transform, crop_pct=0.9)),
            images,
            norm="none",
        ),
    ]
    assert len(set(keys)) == len(keys)
    assert features.key(backbones.load("depth_06", device="cpu"), images, norm="none") == keys[0]


@pytest.mark.parametrize("content", [b"", b"<html>", b"\x00" * 64])
def test_a_broken_file_is_computed_again(tmp_path, twin, images, content):
    expected = features.features(twin, images, norm="none", folder=tmp_path)
    (path,) = files(tmp_path)
    path.write_bytes(content)
    again = features.features(twin, images, norm="none", folder=tmp_path)
    assert torch.equal(again.patch_mean, expected.patch_mean)
    assert files(tmp_path) == [path]
    assert path.stat().st_size > 1000


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch, twin, images):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(store.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        features.features(twin, images, norm="none", folder=tmp_path)
    assert files(tmp_path) == []


def test_a_model_without_cls_has_none(tmp_path, images):
    model = backbones.load("test_vit2", weights="random", device="cpu")
    assert not model.has_cls
    for _ in range(2):
        found = features.features(model, images, norm="none", folder=tmp_path)
        assert found.cls is None
        assert found.patch_mean.shape == (len(model.states), len(images), model.width)
