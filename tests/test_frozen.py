"""Tasks of frozen backbones: which pictures, states and groups they hold."""

import numpy as np
import pytest
import torch

from vitscope import backbones, frozen
from vitscope.capture import capture
from vitscope.data.images import Images


@pytest.fixture(scope="module")
def backbone():
    return backbones.load("depth_06", device="cpu")


def picture_set(labels, classes, *, split="train", extras=None, name="planted"):
    pixels = torch.randint(0, 256, (len(labels), 3, 64, 64), generator=torch.Generator().manual_seed(1))
    return Images(
        name=name,
        split=split,
        labels=np.asarray(labels),
        ids=np.array([f"{split}-{i}" for i in range(len(labels))]),
        classes=tuple(classes),
        digest=f"{name}{split}{labels}{classes}",
        source={},
        read=lambda indices: pixels.to(torch.uint8)[torch.from_numpy(np.asarray(indices))],
        extras=extras or {},
    )


def test_a_task_holds_block_outputs_and_class_names(backbone):
    train = picture_set([0, 0, 1, 1], ["cat", "dog"])
    task = frozen.make(backbone, train, picture_set([1, 0], ["cat", "dog"], split="test"))
    plain = capture(backbone, train, norm="none")
    first = plain.states.index(1)
    assert torch.equal(task.train.features, plain.cls[first:])
    assert task.train.labels.tolist() == ["cat", "cat", "dog", "dog"]
    assert task.classes == ("cat", "dog")
    assert task.train.groups is None
    assert task.groups is None


def test_classes_of_the_splits_are_matched_by_name_not_by_number(backbone):
    train = picture_set([0, 0, 1, 1], ["cat", "dog"])
    test = picture_set([0, 1, 2], ["dog", "eel", "cat"], split="test")
    task = frozen.make(backbone, train, test)
    assert task.test.labels.tolist() == ["dog", "cat"]
    assert task.test.dropped == 1


def test_a_class_with_a_single_training_picture_is_left_out_and_counted(backbone):
    train = picture_set([0, 0, 1, 1, 2], ["cat", "dog", "eel"])
    task = frozen.make(backbone, train, picture_set([0, 1, 2, 2], ["cat", "dog", "eel"], split="test"))
    assert task.classes == ("cat", "dog")
    assert (task.train.dropped, task.test.dropped) == (1, 2)


def test_too_few_classes_and_foreign_test_classes_are_refused(backbone):
    with pytest.raises(ValueError, match="1 of 2 classes have two or more pictures"):
        frozen.make(backbone, picture_set([0, 0, 1], ["a", "b"]), picture_set([0], ["a"], split="test"))
    train = picture_set([0, 0, 1, 1], ["a", "b"])
    with pytest.raises(ValueError, match=r"no picture of the 2 classes learned \(a, b\)"):
        frozen.make(backbone, train, picture_set([0, 0], ["x", "y"], split="test"))


def test_groups_are_those_of_the_data_unless_a_group_is_a_class(backbone):
    test = picture_set([0, 1], ["a", "b"], split="test")
    many = picture_set([0, 0, 1, 1], ["a", "b"], extras={"identity": np.array([1, 2, 3, 4])})
    assert frozen.make(backbone, many, test).groups.tolist() == [1, 2, 3, 4]
    one = picture_set([0, 0, 1, 1], ["a", "b"], extras={"identity": np.array([1, 1, 2, 2])})
    task = frozen.make(backbone, one, test)
    assert task.groups is None
    assert task.train.groups.tolist() == [1, 1, 2, 2]


def test_without_a_cls_token_the_mean_patch_is_taken():
    model = backbones.load("vit_base_patch16_siglip_224", weights="random", img_size=64, device="cpu")
    assert not model.has_cls
    train = picture_set([0, 0, 1, 1], ["a", "b"])
    task = frozen.make(model, train, train, tokens="cls")
    assert task.tokens == "patch_mean"
    assert torch.equal(task.train.features[-1], capture(model, train, norm="none").patch_mean[-1])


def test_another_test_set_keeps_the_training_part(backbone):
    task = frozen.make(backbone, picture_set([0, 0, 1, 1], ["a", "b"]), picture_set([0], ["a"], split="test"))
    shifted = picture_set([1, 0, 0], ["b", "a"], split="test", name="shifted")
    other = task.tested_on(backbone, shifted)
    assert other.train is task.train
    assert other.dataset == "shifted"
    assert other.test.labels.tolist() == ["a", "b", "b"]
    with pytest.raises(ValueError, match="the task is of depth_06, not of twin_s"):
        task.tested_on(backbones.load("twin_s", device="cpu"), shifted)
