"""Labels, sets and subsets: what a dataset is once loaded."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope.data.images import (
    Images,
    UnlabelledError,
    encode_labels,
    fingerprint,
    stratified,
)

# --- labels -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "names", "labels", "classes"),
    [
        ([7, 3, 7], None, [1, 0, 1], ("3", "7")),
        ([1, 2, 3], None, [0, 1, 2], ("1", "2", "3")),
        (["dog", "cat", "dog"], None, [1, 0, 1], ("cat", "dog")),
        ([0.0, 1.0, 1.0], None, [0, 1, 1], ("0", "1")),
        (list(np.array([5, 5, 9], dtype=np.uint8)), None, [0, 0, 1], ("5", "9")),
        ([True, False], None, [1, 0], ("0", "1")),
        ([2, 0], ["a", "b", "c"], [2, 0], ("a", "b", "c")),
        ([10, 9], None, [1, 0], ("9", "10")),
    ],
)
def test_labels_become_class_numbers(values, names, labels, classes):
    found, named = encode_labels(values, "x", names)
    assert found.dtype == np.int64
    assert found.tolist() == labels
    assert named == classes


@pytest.mark.parametrize("values", [[-1, -1], [0, -1], [None, "a"], [0.0, float("nan")], [-1.0, 1.0]])
@pytest.mark.parametrize("names", [None, ["a", "b"]])
def test_missing_labels_are_refused_with_their_count(values, names):
    missing = 2 if values == [-1, -1] else 1
    with pytest.raises(UnlabelledError, match=f"set/test: {missing} of 2 pictures have no label"):
        encode_labels(values, "set/test", names)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([0.0, 1.5], "1.5 are no class ids"),
        ([[0], [1, 2]], "several labels a picture"),
        ([np.array([0, 1]), np.array([1, 1])], "several labels a picture"),
        ([0.0, float("inf")], "no class ids"),
        ([0, "a"], "set/test"),
    ],
)
def test_labels_that_are_no_classes_are_refused(values, reason):
    with pytest.raises(UnlabelledError, match=reason):
        encode_labels(values, "set/test")


# --- the set itself ---------------------------------------------------------------------------------------


def toy(labels=(0, 1, 1, 0, 1, 0), classes=("a", "b"), **changes) -> Images:
    labels = np.array(labels, dtype=np.int64)
    content = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
    return Images(
        **{
            "name": "toy", "split": "train", "labels": labels, "classes": classes, "digest": "d",
            "source": {},
            "ids": np.array([f"p{i}" for i in range(len(labels))]),
            "read": lambda indices: content[torch.from_numpy(indices)],
            "extras": {"number": np.arange(len(labels))},
            **changes,
        }
    )  # fmt: skip


def test_pixels_by_list_slice_array_and_whole():
    images = toy()
    assert images.pixels()[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert images.pixels([4, 1])[:, 0, 0, 0].tolist() == [4, 1]
    assert images.pixels(slice(2, 4))[:, 0, 0, 0].tolist() == [2, 3]
    assert images.pixels(np.array([-1]))[:, 0, 0, 0].tolist() == [5]
    assert images.counts.tolist() == [3, 3]
    assert len(images) == 6


def test_select_keeps_everything_aligned():
    chosen = toy().select([5, 2, 2]).select([1, 0])
    assert chosen.pixels()[:, 0, 0, 0].tolist() == chosen.extras["number"].tolist() == [2, 5]
    assert chosen.ids.tolist() == ["p2", "p5"]
    assert chosen.labels.tolist() == [1, 0]
    assert len({toy().digest, toy().select([0]).digest, toy().select([1]).digest, chosen.digest}) == 4


def test_select_by_mask_is_what_it_says_or_refused():
    """A boolean mask must not be read as the indices 0 and 1."""
    images = toy()
    mask = images.labels == 1
    try:
        chosen = images.select(mask)
    except (TypeError, ValueError, IndexError):
        return
    assert chosen.ids.tolist() == ["p1", "p2", "p4"]


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"labels": ()}, ValueError, "toy/train holds no pictures"),
        ({"ids": np.array(["a"])}, ValueError, "6 labels for 1 pictures"),
        ({"labels": (0, -1)}, UnlabelledError, "labels run from -1 to 0, expected 0 to 1"),
        ({"labels": (0, 2)}, UnlabelledError, "labels run from 0 to 2"),
    ],
)
def test_inconsistent_sets_cannot_exist(changes, error, reason):
    with pytest.raises(error, match=reason):
        toy(**changes)


# --- subsets ----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=200), st.integers(1, 200), st.integers(0, 3))
def test_stratified_shares_are_right_to_within_one_picture(labels, count, seed):
    labels = np.array(labels)
    count = min(count, len(labels))
    chosen = stratified(labels, count, seed)
    assert len(chosen) == count
    assert (np.diff(chosen) > 0).all()
    share = np.bincount(labels, minlength=6) * count / len(labels)
    assert np.abs(np.bincount(labels[chosen], minlength=6) - share).max() <= 1
    assert (chosen == stratified(labels, count, seed)).all()


def test_stratified_draws_anew_with_another_seed():
    labels = np.arange(100) % 4
    assert (stratified(labels, 20, 0) != stratified(labels, 20, 1)).any()


def test_fingerprint_separates_what_differs():
    array = np.arange(6)
    different = [
        fingerprint(array), fingerprint(array[::-1]), fingerprint(array, 1), fingerprint(1, array),
        fingerprint("ab", "c"), fingerprint("a", "bc"), fingerprint({"a": 1}), fingerprint(["a", "b"]),
    ]  # fmt: skip
    assert len(set(different)) == len(different)
    assert fingerprint(array[::2]) == fingerprint(np.array([0, 2, 4]))
