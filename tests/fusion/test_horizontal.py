import pytest
import torch

from vitscope.fusion import HFusion, SelectionBudget, VFusion


def bits_of_two_backbones(images=320, seed=0):
    """Four classes of two bits; each backbone knows one, in its last state."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (images,), generator=generator)
    first, second = (torch.randn(images, width, generator=generator) for width in (6, 9))
    first[:, 0] += 4.0 * (labels // 2 * 2 - 1)
    second[:, 1] += 4.0 * (labels % 2 * 2 - 1)
    return [first, second], labels


def test_backbones_complete_each_other(enough):
    features, labels = bits_of_two_backbones()
    test, truth = bits_of_two_backbones(seed=1)
    options = {"hidden": 32, "latent": 8, "penalty": 0.0, "budget": enough}
    both = HFusion(**options).fit(features, None, labels)
    assert both.accuracy(test, None, truth)["accuracy"] > 0.95
    one = HFusion(**options).fit(features[:1], None, labels)
    assert one.accuracy(test[:1], None, truth)["accuracy"] < 0.65


def test_over_one_backbone_it_is_vertical_fusion(two_bits, short):
    features, labels = two_bits(160)
    options = {"hidden": 8, "latent": 4, "states": "strided", "budget": short}
    horizontal = HFusion(**options).fit([features], None, labels).predict_logits([features])
    assert horizontal.equal(VFusion(**options).fit(features, None, labels).predict_logits(features))


def test_stacks_of_states_of_any_depth_and_width(short):
    labels = torch.arange(120) % 3
    features = [torch.randn(5, 120, 4), torch.randn(2, 120, 7)]
    budget = SelectionBudget(1, 1, 64, 5)
    head = HFusion("last_half", hidden=8, latent=4, budget=budget).fit(features, None, labels)
    assert len(head.fitted.tensors["normal.mean"]) == 2 * 4 + 1 * 7
    assert head.fitted.sizes["blocks"] == [[5, 4], [2, 7]]
    with pytest.raises(
        ValueError, match="fitted on 5 states of width 4 and 2 states of width 7, got 2 states"
    ):
        head.predict_logits(features[::-1])


def test_bad_input_is_refused():
    labels = torch.arange(40) % 2
    with pytest.raises(ValueError, match="HFusion takes a list over backbones"):
        HFusion().fit(torch.randn(2, 40, 3), None, labels)
    with pytest.raises(ValueError, match="HFusion takes a list"):
        HFusion().fit([], None, labels)
    with pytest.raises(ValueError, match=r"the same images, got \[40, 39\] of them"):
        HFusion().fit([torch.randn(40, 3), torch.randn(39, 3)], None, labels)
    with pytest.raises(ValueError, match="features of backbone 1 hold NaN or inf"):
        HFusion().fit([torch.randn(40, 3), torch.full((40, 3), torch.nan)], None, labels)
