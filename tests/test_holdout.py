import numpy as np
import pytest
import torch

from vitscope.holdout import fold_numbers, holdout
from vitscope.splits import stratified


def test_without_groups_it_is_the_stratified_split():
    codes = torch.arange(90) % 4
    for ours, theirs in zip(holdout(codes, 0.25, 3), stratified(codes, 0.25, 3), strict=True):
        assert ours.equal(theirs)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_groups_are_never_separated_and_a_share_of_each_class_is_held(seed):
    codes = torch.arange(240) // 80
    groups = np.arange(240) // 8  # ten groups a class
    train, held = holdout(codes, 0.2, seed, groups)
    assert not set(groups[train]) & set(groups[held])
    assert codes[held].bincount().tolist() == [16, 16, 16]
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(240))


def test_a_group_of_several_classes_is_held_once():
    # every group holds both classes: holding two of ten for one class holds them for the other
    codes, groups = torch.arange(80) % 2, np.arange(80) // 8
    _, held = holdout(codes, 0.2, 0, groups)
    assert len(np.unique(groups[held])) == 2


def test_a_class_of_one_group_stays_in_training():
    codes, groups = torch.tensor([0, 0, 1, 1, 1, 1]), np.array([0, 0, 1, 1, 2, 2])
    _, held = holdout(codes, 0.2, 0, groups)
    assert set(groups[held]) <= {1, 2}
    assert len(held) == 2


def test_what_cannot_be_held_out_is_refused():
    with pytest.raises(ValueError, match="every class is one group: nothing can be held out"):
        holdout(torch.tensor([0, 0, 1, 1]), 0.2, 0, ["a", "a", "b", "b"])
    with pytest.raises(ValueError, match="between 0 and 1, got 1"):
        holdout(torch.tensor([0, 0, 1, 1]), 1.0, 0, ["a", "b", "c", "d"])
    with pytest.raises(ValueError, match=r"one group per image is needed: \(3,\) for 4 images"):
        holdout(torch.tensor([0, 0, 1, 1]), 0.2, 0, ["a", "b", "c"])


def test_groups_that_would_take_a_class_away_are_refused():
    # class 1 lives in two groups, and class 0 and class 2 may hold both of them
    codes = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    groups = ["a", "b", "c", "a", "d", "d", "e", "f"]
    with pytest.raises(ValueError, match="class number 1 shares all its groups with other classes"):
        [holdout(codes, 0.3, seed, groups) for seed in range(40)]


@pytest.mark.parametrize("count", [2, 5])
def test_folds_are_even_in_size_and_in_every_class(count):
    codes = torch.arange(200) % 4
    fold = fold_numbers(codes, count, seed=0)
    for part in (fold, *(fold[codes == c] for c in range(4))):
        sizes = part.bincount(minlength=count)
        assert sizes.max() - sizes.min() <= 1


def test_folds_keep_groups_whole_and_follow_the_seed():
    codes, groups = torch.arange(120) // 40, np.arange(120) // 4
    fold = fold_numbers(codes, 5, 0, groups)
    assert all(len(fold[torch.from_numpy(groups == g)].unique()) == 1 for g in range(30))
    assert fold.equal(fold_numbers(codes, 5, 0, groups))
    assert not fold.equal(fold_numbers(codes, 5, 1, groups))


def test_a_class_too_small_for_folds_is_named():
    with pytest.raises(
        ValueError, match=r"class number 2 lies in one of the 5 folds alone; .* single sample"
    ):
        fold_numbers(torch.tensor([0] * 9 + [1] * 9 + [2]), 5, 0)
    with pytest.raises(ValueError, match=r"class number 1 .* single group of samples"):
        fold_numbers(torch.tensor([0, 0, 1, 1]), 2, 0, ["a", "b", "c", "c"])
    with pytest.raises(ValueError, match="at least 2 folds, got 1"):
        fold_numbers(torch.tensor([0, 0, 1, 1]), 1, 0)
