"""The heads of the chapters: all there, in one order, of one budget."""

import pytest

from vitscope import rivals
from vitscope.errors import UnknownName

SMALL = {"configurations": 2, "steps": 7, "hidden": 16, "latent": 8}


def test_ten_heads_in_the_order_of_the_legend_and_of_one_budget():
    heads = rivals.heads(**SMALL)
    assert tuple(heads) == rivals.METHODS
    assert len(heads) == 10
    assert {type(head).__name__ for head in heads.values()} == set(rivals.METHODS)
    assert len({str(head.budget) for head in heads.values()}) == 1
    assert (heads["VFusion"].hidden, heads["VFusion"].latent, heads["VFusion"].budget.steps) == (16, 8, 7)


def test_heads_by_name_are_new_each_time_and_may_include_the_control():
    first, second = (rivals.some(["LastLayerMLP", "VFusion"], **SMALL) for _ in range(2))
    assert list(first) == ["LastLayerMLP", "VFusion"]
    assert first["VFusion"] is not second["VFusion"]
    assert first["LastLayerMLP"].hidden == first["VFusion"].hidden


def test_an_unknown_head_is_named_with_its_neighbours():
    with pytest.raises(UnknownName, match=r"Unknown head 'VFussion'\. Did you mean 'VFusion'"):
        rivals.some(["VFussion"], **SMALL)


def test_rivals_are_what_one_could_use():
    assert set(rivals.METHODS) - set(rivals.CONTESTANTS) == {"VFusion", "Oracle"}
    assert rivals.CONTROL not in rivals.METHODS


@pytest.mark.parametrize(("latent", "batch"), [(8, 128), (64, 128), (65, 130), (256, 512)])
def test_batches_are_larger_than_the_latent_is_wide(latent, batch):
    assert rivals.budget(configurations=1, steps=1, latent=latent).batch == batch
