"""Galleries: tiles pixel by pixel, what the alt text counts, refusals."""

import numpy as np
import pytest
import torch

from vitscope import gallery
from vitscope.dense.pca import PcaMaps
from vitscope.transforms import Transform

PICTURES = np.full((2, 8, 8, 3), 7, np.uint8)
GRID = (2, 2)


def test_shown_states_hold_the_ends():
    assert gallery.shown([1, 2, 3]) == [1, 2, 3]
    assert gallery.shown(range(1, 25)) == [1, 6, 10, 15, 19, 24]
    with pytest.raises(ValueError, match="got 0 and 6"):
        gallery.shown([])


def test_originals_undo_the_transform():
    pixels = torch.randint(0, 256, (3, 3, 5, 5), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    transform = Transform(5, 5, (0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
    found = gallery.originals(transform(pixels), transform)
    assert np.array_equal(found, pixels.permute(0, 2, 3, 1).numpy())


def test_a_strip_enlarges_patches_without_mixing_and_keeps_white_between():
    tiles = np.arange(8, dtype=np.uint8).reshape(2, 2, 2, 1).repeat(3, 3)
    row = gallery.strip(tiles, side=4)
    assert row.shape == (4, 12, 3)
    assert row[:, :4, 0].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]
    assert (row[:, 4:8] == 255).all()
    assert row[0, 8:, 1].tolist() == [4, 4, 5, 5]
    assert gallery.strip(np.zeros((1, 4, 8, 3), np.uint8), side=2).shape == (2, 4, 3)
    with pytest.raises(ValueError, match="uint8"):
        gallery.strip(tiles / 2)


def test_score_maps_count_best_patches_in_the_box():
    scores = np.array([[[0.1, 0.9, 0.2, 0.3], [0.5, 0.1, 0.1, 0.1]], [[0.8, 0.1, 0, 0], [0.1, 0, 0, -0.4]]])
    owned = np.array([[False, True, False, False], [True, True, False, False]])
    figure = gallery.score_maps(PICTURES, scores, [1, 2], GRID, owned, "scores")
    assert "state 1: 2 of 2, cosines 0.10 to 0.90; state 2: 1 of 2, cosines -0.40 to 0.80" in figure.alt
    assert figure.data["in box"].tolist() == [True, True, False, True]
    assert figure.data[["row", "column"]].values.tolist()[0] == [0, 1]
    with pytest.raises(ValueError, match=r"maps must be finite \[1, 2, 4\], got \(2, 2, 4\)"):
        gallery.score_maps(PICTURES, scores, [1], GRID, owned, "scores")


def test_colours_of_the_first_pictures_with_variance_and_agreement():
    rgb = np.zeros((2, 5, 2, 2, 3), np.float32)
    maps = PcaMaps(rgb, np.array([[0.5, 0.2, 0.1], [0.3, 0.2, 0.1]]), np.array([1.0, 0.25]), ("a", "b"))
    figure = gallery.pca_colours(PICTURES, maps, ["a", "b"], "colours")
    assert "a: 80 % of variance, agreement 1.00; b: 60 % of variance, agreement 0.25" in figure.alt
    with pytest.raises(ValueError, match=r"\[1, 2 or more, rows, columns, 3\]"):
        gallery.pca_colours(PICTURES, maps, ["a"], "colours")


def test_heads_say_how_much_of_their_attention_is_on_objects():
    attention = np.array([[[1.0, 0, 0, 0], [1, 0, 0, 0]], [[1.0, 1, 1, 1], [1, 1, 1, 1]]])
    covered = np.array([[1.0, 0, 0, 0], [0.5, 0, 0, 0]])
    figure = gallery.head_maps(PICTURES, attention, GRID, covered, "heads")
    assert "(which cover 19 %): head 1 75 %, head 2 19 %" in figure.alt
    assert figure.data["attention on objects (%)"].tolist() == [100.0, 50.0, 25.0, 12.5]
    assert len(figure.png()) > 1000
