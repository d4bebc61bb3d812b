import io
import itertools
import logging

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from vitscope import plotting
from vitscope.errors import UnknownName
from vitscope.figures import PALETTE, Figure, style


def curves(models=("a", "b"), states=range(-1, 5)):
    rows = [
        (s, m, 0.1 * s + i, 0.1 * s + i - 0.05, 0.1 * s + i + 0.05)
        for s in states
        for i, m in enumerate(models)
    ]
    return pd.DataFrame(rows, columns=["state", "model", "accuracy", "low", "high"])


def legend_of(figure):
    return [text.get_text() for text in figure.fig.axes[0].get_legend().texts]


def bar_centres(figure):
    return sorted(round(p.get_x() + p.get_width() / 2, 9) for p in figure.fig.axes[0].patches)


# --- curves -------------------------------------------------------------------------------------------


def test_lines_hold_the_numbers_of_the_table_in_the_order_of_the_states():
    table = curves().sample(frac=1, random_state=0)
    figure = plotting.layer_curves(table, y="accuracy", hue="model", order=["b", "a"])
    first, second = figure.fig.axes[0].lines
    assert legend_of(figure) == ["b", "a"]
    np.testing.assert_allclose(first.get_xdata(), range(-1, 5))
    np.testing.assert_allclose(first.get_ydata(), [0.1 * s + 1 for s in range(-1, 5)])
    assert second.get_color() == PALETTE[1]


@pytest.mark.parametrize("count", [4, 9, 24, 32])
def test_numeric_levels_all_appear_in_the_legend_in_order(count):
    table = pd.DataFrame([(s, layer, s * layer) for s in range(3) for layer in range(count)])
    table.columns = ["state", "layer", "value"]
    figure = plotting.layer_curves(table.sample(frac=1, random_state=1), y="value", hue="layer")
    assert legend_of(figure) == [str(i) for i in range(count)]
    assert len({line.get_color() for line in figure.fig.axes[0].lines}) == count


def test_more_numeric_levels_than_a_legend_holds_get_a_colour_bar():
    table = pd.DataFrame([(s, k, s * k) for s in range(3) for k in range(40)], columns=["state", "k", "v"])
    figure = plotting.layer_curves(table, y="v", hue="k", reference=(1.0, "chance"))
    axes, bar = figure.fig.axes
    assert bar.get_ylabel() == "k"
    assert bar.get_ylim() == (0, 39)
    assert legend_of(figure) == ["chance"]
    assert len(axes.lines) == 41


def test_bands_and_the_reference_line_are_drawn_and_named():
    figure = plotting.layer_curves(
        curves(), y="accuracy", hue="model", band=("low", "high"), reference=(0.125, "majority class")
    )
    axes = figure.fig.axes[0]
    assert len(axes.collections) == 2
    assert legend_of(figure) == ["a", "b", "majority class"]
    assert axes.lines[-1].get_ydata()[0] == 0.125
    assert {"low", "high"} <= set(figure.data.columns)


def test_one_curve_needs_no_legend_and_states_are_whole_ticks():
    figure = plotting.layer_curves(curves(["a"]), y="accuracy", title="T", ylabel="top-1", xlabel="layer")
    axes = figure.fig.axes[0]
    assert axes.get_legend() is None
    assert (axes.get_title("left"), axes.get_ylabel(), axes.get_xlabel()) == ("T", "top-1", "layer")
    assert all(tick % 1 == 0 for tick in axes.get_xticks())


def test_the_table_of_a_figure_is_what_was_drawn_and_not_the_callers():
    table = curves().assign(unused=1)
    figure = plotting.layer_curves(table, y="accuracy", hue="model")
    assert list(figure.data.columns) == ["state", "accuracy", "model"]
    assert len(figure.data) == len(table)
    figure.data.loc[0, "accuracy"] = 99
    assert table["accuracy"].max() < 99


# --- categories: element centres against ticks -----------------------------------------------------------


@pytest.mark.parametrize("dtype", ["str", "object", "category"])
def test_a_hue_that_repeats_the_category_leaves_every_bar_on_its_tick(dtype):
    table = pd.DataFrame({"set": pd.Series(["x", "y", "z"], dtype=dtype), "value": [1.0, 2.0, 3.0]})
    figure = plotting.category_bars(table, x="set", y="value", hue="set")
    assert bar_centres(figure) == [0, 1, 2] == list(figure.fig.axes[0].get_xticks())
    assert [p.get_width() for p in figure.fig.axes[0].patches] == pytest.approx([0.736] * 3)


def test_unused_categories_leave_no_gap_and_category_order_holds():
    sets = pd.Categorical(["z", "x", "z", "x"], categories=["unused", "z", "y", "x"], ordered=True)
    table = pd.DataFrame({"set": sets, "model": ["a", "a", "b", "b"], "value": [1.0, 2.0, 3.0, 4.0]})
    figure = plotting.category_bars(table, x="set", y="value", hue="model")
    axes = figure.fig.axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["z", "x"]
    assert bar_centres(figure) == [-0.2, 0.2, 0.8, 1.2]
    heights = {round(p.get_x() + p.get_width() / 2, 9): p.get_height() for p in axes.patches}
    assert heights == {-0.2: 1.0, 0.8: 2.0, 0.2: 3.0, 1.2: 4.0}


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_groups_are_centred_on_their_tick_and_do_not_overlap(groups):
    rows = [(c, g, c + g) for c in range(4) for g in range(groups)]
    table = pd.DataFrame(rows, columns=["c", "g", "v"]).astype({"c": str, "g": str})
    figure = plotting.category_bars(table, x="c", y="v", hue="g")
    centres = np.reshape(bar_centres(figure), (4, groups))
    np.testing.assert_allclose(centres.mean(1), range(4), atol=1e-9)
    edges = sorted((p.get_x(), p.get_x() + p.get_width()) for p in figure.fig.axes[0].patches)
    assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(edges))


def test_a_missing_combination_moves_nobody():
    table = pd.DataFrame({"c": ["x", "x", "y"], "g": ["a", "b", "b"], "v": [1.0, 2.0, 3.0]})
    figure = plotting.category_bars(table, x="c", y="v", hue="g")
    assert bar_centres(figure) == [-0.2, 0.2, 1.2]


def test_points_show_every_row_at_its_category():
    table = pd.DataFrame({"m": ["x", "x", "y"], "v": [1.0, 2.0, 3.0], "lo": [0.5, 1, 2], "hi": [1.5, 3, 4]})
    figure = plotting.category_points(table, x="m", y="v", order=["y", "x"], band=("lo", "hi"))
    (line,) = figure.fig.axes[0].lines
    assert line.get_xdata().tolist() == [1, 1, 0]
    assert line.get_ydata().tolist() == [1, 2, 3]
    segments = figure.fig.axes[0].collections[0].get_segments()
    assert [s[:, 1].tolist() for s in segments] == [[0.5, 1.5], [1, 3], [2, 4]]


# --- what is refused ------------------------------------------------------------------------------------


def test_unknown_columns_and_levels_are_named_with_a_suggestion():
    with pytest.raises(UnknownName, match=r"Unknown column 'acuracy'\. Did you mean 'accuracy'"):
        plotting.layer_curves(curves(), y="acuracy")
    with pytest.raises(UnknownName, match="Unknown model 'c'"):
        plotting.layer_curves(curves(), y="accuracy", hue="model", order=["a", "b", "c"])


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (curves(), {"hue": "model", "order": ["a"]}, "'b' is in the table but not in the order"),
        (curves(), {}, r"6 rows repeat a point \(state=-1\): aggregate"),
        (curves().head(0), {}, "no rows"),
        (curves(["a"]).astype({"state": str}), {}, "must be numeric"),
        (curves(["a"]), {"alt": "too short"}, "alt text must say what is seen"),
        (curves(["a"]), {"alt": "a text that is long and has no number"}, "with numbers"),
        (curves(["a"]), {"name": "Bad Name"}, "a figure's name is made of"),
    ],
)
def test_what_cannot_be_drawn_faithfully_is_refused(table, options, message):
    with pytest.raises(ValueError, match=message):
        plotting.layer_curves(table, y="accuracy", **options)


def test_two_rows_may_not_share_a_bar():
    with pytest.raises(ValueError, match="1 rows repeat a point"):
        plotting.category_bars(pd.DataFrame({"c": ["x", "x"], "v": [1.0, 2.0]}), x="c", y="v")


# --- alt text ------------------------------------------------------------------------------------------


def test_alt_text_carries_computed_values():
    figure = plotting.layer_curves(curves(["a"]), y="accuracy")
    assert figure.alt == (
        "Line chart of accuracy over state from -1 to 4; it goes from -0.1 to 0.4, "
        "lowest -0.1 at -1, highest 0.4 at 4."
    )
    made = plotting.layer_curves(
        curves(["a"]), y="accuracy", alt=lambda t: f"Accuracy peaks at {t['accuracy'].max():.2f}."
    )
    assert made.alt == "Accuracy peaks at 0.40."
    bars = plotting.category_bars(pd.DataFrame({"c": ["x", "y"], "v": [0.25, 0.5]}), x="c", y="v")
    assert bars.alt == "v for 2 values of c: x 0.25, y 0.5."


def test_alt_text_says_which_curve_has_no_value():
    table = curves()
    table.loc[table["model"] == "b", "accuracy"] = np.nan
    assert "b: no value" in plotting.layer_curves(table, y="accuracy", hue="model").alt


# --- pictures and style ---------------------------------------------------------------------------------


def test_image_grid_shows_pixels_and_titles_in_order():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, 3, 4, 6), dtype=torch.uint8, generator=generator)
    figure = plotting.image_grid(images, [f"picture {i}" for i in range(5)], columns=3)
    shown = [ax for ax in figure.fig.axes if ax.images]
    assert [ax.get_title() for ax in shown] == [f"picture {i}" for i in range(5)]
    np.testing.assert_array_equal(shown[3].images[0].get_array(), images[3].permute(1, 2, 0))
    assert figure.data["title"].tolist() == [f"picture {i}" for i in range(5)]
    mixed = plotting.image_grid([images[0], images[1][:, :2]], ["whole", "half"])
    assert mixed.alt == "2 pictures in 1 rows of up to 2: whole, half."


def test_image_grid_refuses_what_is_no_picture():
    with pytest.raises(ValueError, match=r"image 0 must be uint8 \[3, h, w\], got torch.float32"):
        plotting.image_grid(torch.zeros(1, 3, 4, 4), ["x"])
    with pytest.raises(ValueError, match="got 1 images, 2 titles"):
        plotting.image_grid(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), ["x", "y"])


def test_png_is_opaque_white_sharp_and_repeatable():
    figure = plotting.layer_curves(curves(), y="accuracy", hue="model")
    first = figure.png()
    assert first == figure.png() == figure._repr_png_()
    picture = Image.open(io.BytesIO(first))
    assert picture.size == (1050, 540)
    corner = picture.convert("RGBA").getpixel((0, 0))
    assert corner == (255, 255, 255, 255)


def test_settings_are_what_they_were_also_after_an_error():
    before = dict(mpl.rcParams)
    plotting.layer_curves(curves(), y="accuracy", hue="model").png()
    with pytest.raises(ZeroDivisionError), style():
        mpl.rcParams["figure.dpi"] /= 0
    assert dict(mpl.rcParams) == before


def test_no_figure_is_registered_with_pyplot():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    plotting.category_points(pd.DataFrame({"c": ["x"], "v": [1.0]}), x="c", y="v")
    assert plt.get_fignums() == before


def test_the_font_is_found(caplog):
    with caplog.at_level(logging.WARNING, logger="matplotlib.font_manager"):
        plotting.layer_curves(curves(["twin_s", "ℓ ± λ ≤ ½"]), y="accuracy", hue="model").png()
    assert caplog.records == []


def test_colours_differ_in_lightness_on_white():
    rgb = np.array([mpl.colors.to_rgb(c) for c in PALETTE])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    contrast = 1.05 / (linear @ [0.2126, 0.7152, 0.0722] + 0.05)
    assert contrast.min() > 2.0
    assert len(set(PALETTE)) == len(PALETTE) == 8


def test_a_figure_checks_itself():
    with pytest.raises(ValueError, match="20 characters or more"):
        Figure(mpl.figure.Figure(), pd.DataFrame(), "1", "x")


def test_categories_of_one_colour_name_their_reference_line():
    table = pd.DataFrame({"task": ["a", "b"], "gain": [1.0, 2.0]})
    for draw in (plotting.category_points, plotting.category_bars):
        figure = draw(table, x="task", y="gain", reference=(0.0, "as before"))
        assert [t.get_text() for t in figure.fig.axes[0].get_legend().get_texts()] == ["as before"]
        assert draw(table, x="task", y="gain").fig.axes[0].get_legend() is None
