"""The embedded tasks: who is in which split, labels by an independent count, digests, limits."""

from collections import Counter

import numpy as np
import pytest
import torch

from vitscope import data
from vitscope.data import emoji, tasks
from vitscope.errors import UnknownName

EMOJI_TASKS = tuple(tasks.RENDERS)
SPLITS = ("train", "test")


def identity_numbers(images: data.Images) -> np.ndarray:
    """The identity of every picture, read back from its public id (split-RENDER·10⁴ + identity)."""
    return np.array([int(i.rpartition("-")[2]) for i in images.ids]) % 10_000


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", EMOJI_TASKS)
def test_labels_classes_and_counts(name, split):
    images = data.load(name, split)
    table = emoji.identities().iloc[identity_numbers(images)]
    truth = {
        "emoji_group": table["group"],
        "emoji_subgroup": table["group"] + " / " + table["subgroup"],
    }.get(name, table["name"])
    assert [images.classes[label] for label in images.labels] == list(truth)
    expected = Counter(truth)
    assert dict(zip(images.classes, images.counts, strict=True)) == expected
    assert len(set(images.ids)) == len(images) == tasks.RENDERS[name][split] * len(set(table.index))


@pytest.mark.parametrize("name", EMOJI_TASKS)
def test_held_out_identities_are_where_the_task_says(name):
    held_out = emoji.identities()["held_out"].to_numpy()
    share = {split: held_out[identity_numbers(data.load(name, split))] for split in SPLITS}
    if name == "emoji_novel":
        assert share["train"].all()
        assert share["test"].all()
    else:
        assert not share["train"].any()
        assert share["test"].all() == (name != "emoji_identity")


@pytest.mark.parametrize("name", EMOJI_TASKS)
def test_no_picture_serves_both_splits(name):
    train, test = (data.load(name, split) for split in SPLITS)
    assert not set(train.ids) & set(test.ids)
    assert train.classes == test.classes
    assert train.digest != test.digest
    few = [{x.tobytes() for x in part.pixels(slice(0, 40)).numpy()} for part in (train, test)]
    assert not few[0] & few[1]


def test_evaluation_never_uses_the_backgrounds_of_pretraining(monkeypatch):
    asked = []
    real = emoji.backgrounds.tiles
    monkeypatch.setattr(emoji.backgrounds, "tiles", lambda part: asked.append(part) or real(part))
    for name in EMOJI_TASKS:
        for split in SPLITS:
            data.load(name, split).pixels([0])
    data.load("scenes", "train").pixels([0])
    assert set(asked) == {"test"}


def test_seed_gives_other_renders_of_the_same_task():
    a, b = data.load("emoji_group", "test"), data.load("emoji_group", "test", seed=1)
    assert (a.labels == b.labels).all()
    assert a.digest != b.digest
    assert not torch.equal(a.pixels([0, 1]), b.pixels([0, 1]))


def test_style_is_another_dataset_of_the_same_labels():
    a, b = data.load("emoji_group", "test"), data.load("emoji_group@twemoji", "test")
    assert b.name == "emoji_group@twemoji"
    assert a.digest != b.digest
    assert (a.labels == b.labels).all()
    assert a.classes == b.classes
    assert not torch.equal(a.pixels([0]), b.pixels([0]))


def test_digest_is_stable_and_pixels_are_read_by_index():
    a, b = data.load("emoji_subgroup", "train"), data.load("emoji_subgroup", "train")
    assert a.digest == b.digest
    assert torch.equal(a.pixels([7, 2]), b.pixels([2, 7]).flip(0))


@pytest.mark.parametrize("name", ["fashion_mnist", "digits"])
def test_plain_sets(name):
    train, test = (data.load(name, split) for split in SPLITS)
    assert train.classes == test.classes
    assert len(train.classes) == 10
    assert not set(train.ids) & set(test.ids)
    first = test.pixels([0, 1])
    assert first.dtype == torch.uint8
    assert first.shape[:2] == (2, 3)
    assert torch.equal(first[:, 0], first[:, 1])
    assert first.float().std() > 10
    assert train.counts.min() > 100
    assert test.counts.min() > 40


def test_digits_equal_their_source():
    from sklearn.datasets import load_digits

    bunch = load_digits()
    train, test = (data.load("digits", split) for split in SPLITS)
    assert len(train) + len(test) == len(bunch.target)
    assert (np.concatenate([train.labels, test.labels]) == bunch.target).all()
    picture = test.pixels([3])[0, 0].double().view(8, 4, 8, 4)
    assert (picture.amax((1, 3)) == picture.amin((1, 3))).all(), "each source pixel is one flat 4 × 4 block"
    source = torch.from_numpy(bunch.images[len(train) + 3]) * 255 / 16
    assert (picture[:, 0, :, 0] - source).abs().max() <= 0.5


@pytest.mark.parametrize("limit", [1, 8, 50, 100_000])
def test_limit_keeps_order_and_shares(limit):
    whole = data.load("emoji_group", "train")
    part = data.load("emoji_group", "train", limit=limit)
    assert len(part) == min(limit, len(whole))
    places = [np.flatnonzero(whole.ids == i)[0] for i in part.ids]
    assert places == sorted(places)
    if limit == 50:
        assert np.abs(part.counts - 50 * whole.counts / len(whole)).max() <= 1
        assert torch.equal(part.pixels([4]), whole.pixels([places[4]]))
        assert part.digest != whole.digest


def test_unknown_names_splits_and_styles():
    with pytest.raises(UnknownName, match="Did you mean 'emoji_group'"):
        data.load("emoji_gruop", "train")
    with pytest.raises(ValueError, match="has the splits train, test, not 'validation'"):
        data.load("emoji_group", "validation")
    with pytest.raises(UnknownName, match="'twemoji'"):
        data.load("emoji_group@tweemoji", "train")
    with pytest.raises(ValueError, match="one style only"):
        data.load("digits@noto", "train")
    with pytest.raises(ValueError, match="at least 1, got 0"):
        data.load("digits", "train", limit=0)


def test_available_lists_the_embedded_sets_first():
    embedded = data.available(embedded_only=True)
    assert set(EMOJI_TASKS) | {"digits", "fashion_mnist", "scenes", "emoji_group@twemoji"} <= set(embedded)
    assert data.available()[: len(embedded)] == embedded
    assert "cifar100" in data.available()
