"""Heads under shift: which parts a set has, and answers that are predicted and never fitted."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import flat, tiny
from planted_shift import pictures, planted_tested
from vitscope import features, shifted, shifted_sets
from vitscope.comparison import BEST, ORACLE
from vitscope.data import shifts
from vitscope.errors import UnknownName

LIMITS = {"images": 60, "test_images": 30, "seed": 0}
SMALL = {"configurations": 1, "steps": 20, "hidden": 8, "latent": 4}


# --- the parts of a set -----------------------------------------------------------------------------------


def test_corrupted_sets_show_the_clean_pictures_at_each_severity():
    found = shifted_sets.load("digits-c", severities=[1, 5], **LIMITS)
    assert found.severities == (1, 5)
    assert (len(found.train), len(found.clean), len(found.parts)) == (60, 30, 4)
    clean = found.clean.pixels().float()
    apart = []
    for severity, part in zip(found.severities, found.tests, strict=True):
        assert part.ids.tolist() == found.clean.ids.tolist()
        assert set(part.extras["severity"]) == {severity}
        apart.append((part.pixels().float() - clean).abs().mean())
    assert 0 < apart[0] < apart[1]
    assert (found.tests[0].extras["corruption"] == found.tests[1].extras["corruption"]).all()
    assert len(set(found.tests[0].extras["corruption"])) > 3


def test_an_address_chooses_corruption_and_severity():
    one = shifted_sets.load("digits-c/fog/2", severities=[1, 5], **LIMITS)
    assert one.severities == (2,)
    assert set(one.tests[0].extras["corruption"]) == {"fog"}
    assert shifted_sets.load("digits-c/fog", severities=[1, 5], **LIMITS).severities == (1, 5)
    with pytest.raises(UnknownName, match="Did you mean 'fog'"):
        shifted_sets.load("digits-c/fogg", severities=[1], **LIMITS)


def test_another_style_shows_the_same_emoji_and_places_have_groups():
    style = shifted_sets.load("emoji_group-style", severities=[1], **LIMITS)
    assert style.severities == ()
    assert (style.clean.extras["identity"] == style.tests[0].extras["identity"]).all()
    assert not torch.equal(style.clean.pixels([0, 1]), style.tests[0].pixels([0, 1]))
    places = shifted_sets.load("emoji_places", severities=[1], **LIMITS)
    assert places.clean is None
    assert places.has_groups
    assert not style.has_groups


def test_a_folder_is_tested_on_its_own_test_part(tmp_path):
    for part, levels in (("train", range(4)), ("test", range(10, 12))):
        for name in ("a", "b"):
            folder = tmp_path / "deep/er" / part / name
            folder.mkdir(parents=True)
            for level in levels:
                flat(level).save(folder / f"{level}.png")
    found = shifted_sets.load(str(tmp_path / "deep/er"), severities=[1, 3], **LIMITS)
    assert (len(found.train), len(found.tests), len(found.tests[0])) == (8, 1, 4)
    assert found.clean is None
    assert not found.has_groups


def test_a_group_of_one_picture_stops_before_the_long_part(monkeypatch):
    images = pictures(5, group=[0, 0, 1, 1, 2])
    monkeypatch.setattr(shifted_sets.data, "load", lambda *_, **__: images)
    with pytest.raises(ValueError, match="group 2 holds fewer than two independent pictures"):
        shifted_sets.load("waterbirds", severities=[1], **LIMITS)


@pytest.fixture
def published(monkeypatch):
    """`data.load` of a hub set: every picture shows the number of its corruption, plus its severity."""

    def load(name, split, *, limit, seed):
        address = name.split("/")[1:]
        images = pictures(300, split)
        if split == "train" or not address:
            return replace(images, classes=("airplane", "automobile"))
        level = 10 * shifts.PUBLISHED.index(address[0]) + int(address[1])
        return replace(
            images, name=name, classes=("0", "1"), digest=name,
            extras={"corruption": np.full(300, address[0]), "severity": np.full(300, int(address[1]))},
            read=lambda indices: torch.full((len(indices), 3, 8, 8), level, dtype=torch.uint8),
        )  # fmt: skip

    monkeypatch.setattr(shifted_sets.data, "load", load)


@pytest.mark.usefixtures("published")
def test_published_sets_without_a_corruption_draw_one_of_fifteen_for_each_picture():
    found = shifted_sets.load("cifar10-c", severities=[1, 4], **LIMITS)
    assert found.severities == (1, 4)
    for severity, part in zip(found.severities, found.tests, strict=True):
        assert part.classes == found.train.classes  # matched by name, and arrays hold numbers only
        kinds = part.extras["corruption"]
        assert set(kinds) == set(shifted_sets.STANDARD)
        levels = [int(p[0, 0, 0]) for p in part.pixels()]
        assert levels == [10 * shifts.PUBLISHED.index(k) + severity for k in kinds]
    assert (found.tests[0].extras["corruption"] == found.tests[1].extras["corruption"]).all()
    assert found.tests[0].digest != found.tests[1].digest
    other = shifted_sets.load("cifar10-c", severities=[1], **{**LIMITS, "seed": 1})
    assert (other.tests[0].extras["corruption"] != found.tests[0].extras["corruption"]).any()
    one = shifted_sets.load("cifar10-c/fog", severities=[1, 4], **LIMITS)
    assert set(one.tests[1].extras["corruption"]) == {"fog"}


# --- measuring --------------------------------------------------------------------------------------------


def test_heads_are_fitted_once_and_features_are_found_again(tmp_path, monkeypatch):
    chosen = shifted_sets.load("digits-c", severities=[2, 5], **LIMITS)
    model = tiny("supervised", size=32)
    (tested,) = shifted.measure([model], [chosen], sizes=SMALL, seed=0, cache=tmp_path)["digits-c"]
    assert [c.heads is tested.clean.heads for c in tested.shifted] == [True, True]
    assert [c.members is tested.clean.members for c in tested.shifted] == [True, True]
    assert tested.clean.task.train is tested.shifted[1].task.train
    clean, strong = tested.clean, tested.shifted[1]
    for method in ("BestLayer", "VFusion"):
        head = clean.heads[method]
        logits = strong.members.probes.logits(strong.task.test.features) if head.uses_logits else None
        expected = head.accuracy(strong.task.test.features, logits, strong.task.test.labels)["accuracy"]
        assert strong.accuracy(method) == pytest.approx(100 * expected)
    monkeypatch.setattr(features, "capture", lambda *_, **__: pytest.fail("features were computed again"))
    fits = []
    monkeypatch.setattr(shifted, "compare", lambda *_, **__: fits.append(1) or tested.clean)
    same = replace(chosen, name="other")
    again = shifted.measure([model], [chosen, same], sizes=SMALL, seed=0, cache=tmp_path)
    assert len(fits) == 1  # the sets have one training part
    assert all((again["other"][0].right(m) == tested.right(m)).all() for m in shifted.METHODS)


BOTH = planted_tested(
    "s-c",
    [{"BestLayer": [1, 0, 0, 0], "VFusion": [1, 1, 0, 0], "Oracle": [1, 1, 1, 0], "LastLayer": [0, 0, 0, 0]},
     {"BestLayer": [0, 0, 0, 0], "VFusion": [1, 0, 0, 0], "Oracle": [1, 1, 0, 0], "LastLayer": [0, 0, 0, 0]}],
    clean={
        "BestLayer": [1, 1, 1, 0], "VFusion": [1, 1, 1, 1], "Oracle": [1, 1, 1, 1], "LastLayer": [1, 1, 0, 0],
    },
    severities=[1, 5],
)  # fmt: skip


def test_known_answers():
    assert BOTH.right("VFusion").tolist() == [1, 0.5, 0, 0]
    assert BOTH.right_at("VFusion", 5).tolist() == [1, 0, 0, 0]
    assert BOTH.right_at("BestLayer", 0).tolist() == [1, 1, 1, 0]
    assert shifted.accuracy([BOTH], "VFusion").value == 37.5
    assert shifted.gain([BOTH]).value == 25.0
    assert shifted.gain([BOTH], clean=True).value == 25.0
    assert shifted.gap_closed([BOTH]).value == pytest.approx(50.0)  # (3 − 1) of (5 − 1)
    assert shifted.recovery([BOTH]).value == pytest.approx(100 * 5 / 8)
    assert shifted.recovery([BOTH], clean=True).value == pytest.approx(100.0)


def test_what_cannot_be_measured_says_why():
    alike = planted_tested("s", [{"BestLayer": [1, 1, 1]}])
    assert "right no more often" in shifted.gap_closed([alike]).reason
    assert "makes no errors" in shifted.recovery([alike]).reason
    with pytest.raises(ValueError, match="s has no clean test part"):
        alike.right(BEST, clean=True)


def test_intervals_are_of_differences_and_of_what_is_independent():
    rng = np.random.default_rng(0)
    best = rng.integers(0, 2, 200)
    better = best.copy()
    better[:20] = 1 - better[:20]  # differs in 20 pictures only
    one = planted_tested("s", [{"BestLayer": best, "VFusion": better}])
    gain, accuracy = shifted.gain([one]), shifted.accuracy([one], BEST)
    assert gain.high - gain.low < accuracy.high - accuracy.low
    assert gain.low <= gain.value <= gain.high
    # every picture five times: as many pictures, a fifth of them independent
    tied = planted_tested("s", [{"BestLayer": np.repeat(best[:40], 5)}], groups=np.repeat(np.arange(40), 5))
    free = planted_tested("s", [{"BestLayer": np.repeat(best[:40], 5)}])
    wide, narrow = (shifted.accuracy([t], BEST) for t in (tied, free))
    ratio = (wide.high - wide.low) / (narrow.high - narrow.low)
    assert ratio == pytest.approx(5**0.5, rel=0.15)


def test_several_backbones_are_drawn_as_well():
    low, high = (planted_tested("s", [{"BestLayer": [v] * 8}], backbone=str(v)) for v in (0, 1))
    found = shifted.accuracy([low, high], BEST)
    assert (found.value, found.low, found.high) == (50.0, 0.0, 100.0)


def test_groups():
    right = {"BestLayer": [1, 1, 1, 0, 0, 0, 1, 1], "VFusion": [1, 1, 1, 1, 1, 0, 1, 1]}
    one = planted_tested("places", [right], group=[0, 0, 1, 1, 2, 2, 3, 3])
    table = shifted.by_group([one]).set_index(["method", "group"])["accuracy"]
    assert table.loc["BestLayer"].to_dict() == {
        "average": 62.5, "a, land": 100, "a, water": 50, "b, land": 0, "b, water": 100, "worst": 0,
    }  # fmt: skip
    assert table["VFusion", "worst"] == 50
    other = planted_tested("places", [{"BestLayer": [1] * 8}], group=[0, 0, 1, 1, 2, 2, 3, 3])
    both = shifted.by_group([one, other]).set_index(["method", "group"])["accuracy"]
    assert both["BestLayer", "worst"] == 50
    assert both["BestLayer", "b, land"] == 50
    assert ORACLE in both
