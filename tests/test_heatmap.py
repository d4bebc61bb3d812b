"""Grids of shaded cells: every number in its cell, axes in order, gaps left white."""

import numpy as np
import pandas as pd
import pytest

from vitscope.errors import UnknownName
from vitscope.heatmap import MOST_LABELS, heatmap

TABLE = pd.DataFrame(
    {"state": [2, 0, 1, 2, 0], "model": ["b", "b", "b", "a", "a"], "cka": [0.3, 0.1, 0.2, 0.6, 0.4]}
)


def drawn(figure):
    axes = figure.fig.axes[0]
    return axes, axes.get_images()[0].get_array()


def test_each_number_is_in_its_cell_and_a_missing_one_is_masked():
    axes, cells = drawn(heatmap(TABLE, x="state", y="model", value="cka"))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "2"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "a"]
    np.testing.assert_allclose(cells.filled(-1), [[0.1, 0.2, 0.3], [0.4, -1, 0.6]])


def test_limits_fix_the_scale_and_the_bar_is_named():
    figure = heatmap(TABLE, x="state", y="model", value="cka", limits=(0, 1))
    assert figure.fig.axes[0].get_images()[0].get_clim() == (0, 1)
    assert figure.fig.axes[1].get_ylabel() == "cka"


def test_long_axes_keep_some_labels():
    table = pd.DataFrame({"x": range(100), "y": 0, "v": 1.0 + np.arange(100)})
    axes, cells = drawn(heatmap(table, x="x", y="y", value="v"))
    assert cells.shape == (1, 100)
    assert len(axes.get_xticks()) <= MOST_LABELS


def test_alt_text_names_the_extremes():
    alt = heatmap(TABLE, x="state", y="model", value="cka").alt
    assert "lowest 0.1 at state 0, model b" in alt
    assert "highest 0.6 at state 2, model a" in alt


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(UnknownName, match="column 'stat'"):
        heatmap(TABLE, x="stat", y="model", value="cka")
    with pytest.raises(ValueError, match=r"1 rows repeat a cell \(state=2, model=b\): aggregate first"):
        heatmap(pd.concat([TABLE, TABLE[:1]]), x="state", y="model", value="cka")
    with pytest.raises(ValueError, match="nothing to draw"):
        heatmap(TABLE[:0], x="state", y="model", value="cka")
