"""Emoji or background: what the pictures share, and how answers of known kind come out."""

import numpy as np
import pandas as pd
import pytest
import torch

from vitscope import backbones, shortcut
from vitscope.data import emoji


@pytest.fixture(scope="module")
def pictures() -> shortcut.Triplets:
    return shortcut.triplets(60, seed=0, scale=(0.4, 0.5))


def test_what_the_three_pictures_share(pictures):
    """Small emoji leave most of the canvas free: there one background shows twice, up to its light."""

    def correlation(a, b):
        rows = [x.float().mean(1).flatten(1).numpy() for x in (a, b)]
        return np.array([np.corrcoef(one, other)[0, 1] for one, other in zip(*rows, strict=True)])

    background = correlation(pictures.asked, pictures.same_background)
    elsewhere = correlation(pictures.asked, pictures.same_emoji)
    assert np.median(background) > np.median(elsewhere) + 0.2
    assert not torch.equal(pictures.asked, pictures.same_background)


def test_pictures_depend_on_seed_alone(pictures):
    again = shortcut.triplets(60, seed=0, scale=(0.4, 0.5))
    assert all(torch.equal(a, b) for a, b in zip(pictures, again, strict=True))
    assert not torch.equal(pictures.asked, shortcut.triplets(60, seed=1, scale=(0.4, 0.5)).asked)


def test_a_background_of_another_sample_is_that_sample_s():
    numbers, ids = np.array([0, 1, 2]), np.array([5, 6, 7])
    options = {"style": "noto", "seed": 3}
    plain = emoji.render(numbers, ids, **options)
    assert torch.equal(emoji.render(numbers, ids, backgrounds=ids, **options), plain)
    moved = emoji.render(numbers, ids, backgrounds=ids[::-1].copy(), **options)
    assert torch.equal(moved[1], plain[1])  # the middle one keeps its own
    assert not torch.equal(moved[0], plain[0])
    with pytest.raises(ValueError, match=r"one background per picture is needed, got \(2,\) for \(3,\)"):
        emoji.render(numbers, ids, backgrounds=ids[:2], **options)


def test_planted_features_have_the_planted_answer():
    draw = torch.Generator().manual_seed(0)
    emojis, others, places = (torch.randn(50, 16, generator=draw) for _ in range(3))
    for weight, expected in ((0.0, True), (30.0, False)):  # the place counts nothing, or everything
        asked, elsewhere, same = emojis + weight * places, emojis, others + weight * places
        assert (shortcut.prefers_emoji(asked, elsewhere, same) == expected).mean() > 0.95


def test_shares_and_their_figure(pictures):
    few = shortcut.Triplets(*(part[:24] for part in pictures))
    model = backbones.load("dino_softmax", weights="random")
    found = shortcut.preference({"one": model, "again": model}, few)
    assert found["emoji"].nunique() == 1
    assert (found["low"] <= found["emoji"]).all()
    assert (found["emoji"] <= found["high"]).all()
    assert shortcut.numbers(found, 24)["one"]["n"] == 24
    figure = shortcut.preference_figure(
        pd.DataFrame([{"model": "m", "emoji": 12.34, "low": 10.0, "high": 15.0}])
    )
    assert figure.alt.endswith("m 12.3 % (10.0 to 15.0).")


@pytest.mark.parametrize("count", [1, 5000])
def test_counts_that_cannot_be_drawn_are_refused(count):
    with pytest.raises(ValueError, match=rf"between 2 and the 1291 emoji seen, got {count}"):
        shortcut.triplets(count, seed=0)
