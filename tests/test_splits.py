import numpy as np
import pandas as pd
import pytest
import torch

from vitscope.splits import distinct, encode, label_array, stratified


def test_codes_follow_the_order_of_the_classes():
    assert encode(torch.tensor([7, 3, 7]), (3, 7)).tolist() == [1, 0, 1]
    assert encode(["cat", "dog"], ("cat", "dog")).tolist() == [0, 1]
    assert distinct(np.array([9, 3, 9, 3])) == (3, 9)
    assert distinct(["b", "a"]) == ("a", "b")


@pytest.mark.parametrize(
    "labels", [np.array([0.0, 1.0]), np.array([False, True]), np.array([0, 1], dtype=np.uint8)]
)
def test_whole_numbers_of_any_type_are_class_numbers(labels):
    assert label_array(labels).dtype == np.int64
    assert label_array(labels).tolist() == [0, 1]


def test_strings_of_pandas_are_names():
    assert label_array(pd.Series(["x", "y"]).to_numpy()).tolist() == ["x", "y"]
    assert label_array(np.asarray(pd.Series(["x", "y"], dtype="category"))).tolist() == ["x", "y"]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0.0, 1.5]), "got 1.5: this is no class"),
        (np.array([0.0, np.nan]), "got nan"),
        (np.array([-1, -1, 3]), r"2 of 3 labels are -1 \(hidden labels\)"),
        (np.array(["a", None], dtype=object), "1 labels are missing, first at position 1"),
        (np.array([], dtype=int), "non-empty"),
        (np.zeros((3, 1), dtype=int), r"got shape \(3, 1\)"),
        (np.array([1 + 2j]), "must be integers or strings, got complex128"),
    ],
)
def test_what_is_no_label_is_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        label_array(labels)


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="one class only \\('cat'\\)"):
        distinct(["cat", "cat"])


def test_strangers_are_named():
    with pytest.raises(ValueError, match="2 classes are not among the 2 seen in training: emu, owl"):
        encode(["cat", "owl", "emu", "owl"], ("cat", "dog"))


def test_every_class_is_split_by_share_and_keeps_an_image_in_training():
    codes = torch.tensor([0] * 50 + [1] * 10 + [2] * 2 + [3])
    train, held = stratified(codes, 0.2, seed=3)
    assert codes[held].bincount(minlength=4).tolist() == [10, 2, 1, 0]
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(63))


def test_the_seed_decides_the_split():
    codes = torch.arange(100) % 4
    first, again, other = (stratified(codes, 0.25, seed=s)[1] for s in (0, 0, 1))
    assert first.equal(again)
    assert not first.equal(other)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_outside_its_range_is_refused(share):
    with pytest.raises(ValueError, match="between 0 and 1"):
        stratified(torch.tensor([0, 0, 1, 1]), share, seed=0)


def test_classes_of_one_image_cannot_be_split():
    with pytest.raises(ValueError, match="single image"):
        stratified(torch.tensor([0, 1, 2]), 0.2, seed=0)
