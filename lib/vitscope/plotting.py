"""The charts of the book: curves over depth, categories side by side, grids of pictures.

Each takes a tidy table and returns a `Figure`. Orders are fixed and never guessed by a plotting library, a
legend names every level, elements sit on their ticks, and a value that an `order` forgets is an error, not
a gap. Figures are made without pyplot: nothing is shown twice, kept alive or left changed behind.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from vitscope.alt_text import describe_categories, describe_curves
from vitscope.errors import unknown
from vitscope.figures import PALETTE, Figure, style

__all__ = ["PALETTE", "Figure", "category_bars", "category_points", "image_grid", "layer_curves", "style"]

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SCALE = "viridis"
LONGEST_LEGEND = 32
LEGEND_ROWS = 16
GROUP_WIDTH = 0.8
MOST_LETTERS = 60  # of all categories together; more are turned

Alt = str | Callable[[pd.DataFrame], str] | None
"""Alt text, or a function that makes it of the table drawn, or None for a description made here."""
Levels = Sequence[str] | Sequence[float]
Reference = tuple[float, str]


def layer_curves(
    data: pd.DataFrame,
    *,
    y: str,
    x: str = "state",
    hue: str | None = None,
    order: Levels | None = None,
    band: tuple[str, str] | None = None,
    reference: Reference | None = None,
    title: str = "",
    xlabel: str | None = None,
    ylabel: str | None = None,
    alt: Alt = None,
    name: str = "layer_curves",
    explore: bool = False,
) -> Figure:
    """One curve per level of `hue`, of column `y` over the numeric column `x`.

    `order` fixes the levels (as they come if left out; ascending if numeric); `band` names the columns of a
    lower and upper bound; `reference` is a height and its label, drawn as a dashed line. More than 32
    numeric levels get a colour bar in place of a legend. `explore` adds the explorer in which readers move
    along `x` and read off the curves.

    Raises ValueError for two rows of one level at the same `x` (aggregate first), and `UnknownName` for a
    column or level that is not there.
    """
    table = _tidy(data, [x, y, hue, *(band or ())])
    if not pd.api.types.is_numeric_dtype(table[x]):
        raise ValueError(f"column {x!r} must be numeric to draw a curve over it, got {table[x].dtype}")
    _one_row_each(table, [x, hue])
    levels = levels_of(table, hue, order, data)
    colours = colours_of(levels)
    with style():
        fig, ax = _canvas(7.0 if hue else 6.0, 3.6, title, xlabel or x, ylabel or y)
        for i, level in enumerate(levels):
            rows = (table if hue is None else table[table[hue] == level]).sort_values(x)
            look = {"color": colours[i], "marker": MARKERS[i % len(MARKERS)], "ms": 3.5, "lw": 1.4}
            ax.plot(rows[x], rows[y], label=None if hue is None else str(level), **look)
            if band is not None:
                ax.fill_between(rows[x], rows[band[0]], rows[band[1]], color=colours[i], alpha=0.18, lw=0)
        if (table[x] % 1 == 0).all():
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        _reference(ax, reference)
        _key(fig, ax, hue, levels)
    explorer = None
    if explore:
        from vitscope.explore_curves import read_off  # brings altair, which not every chart needs

        explorer = read_off(
            table, x=x, y=y, series=hue, order=levels if hue else None, band=band, reference=reference,
            title=title or f"{ylabel or y} over {xlabel or x}", xlabel=xlabel or x, ylabel=ylabel or y,
        )  # fmt: skip
    text = _alt(alt, table, lambda: describe_curves(table, x, y, hue, levels))
    return Figure(fig, table, text, name, explorer)


def category_points(data: pd.DataFrame, *, x: str, y: str, **options: object) -> Figure:
    """One dot per row at its category `x`; several rows of a category and hue (say, seeds) all show.

    Options as in `category_bars`.
    """
    return _categories("points", data, x, y, **options)  # type: ignore[arg-type]


def category_bars(data: pd.DataFrame, *, x: str, y: str, **options: object) -> Figure:
    """One bar per category `x`, side by side for the levels of `hue`.

    Options: `hue`; `order` and `hue_order`, which fix the sequence (left out: the categories in use, as
    they come); `band`, `reference`, `title`, `xlabel`, `ylabel`, `alt`, `name` as in `layer_curves`. Raises
    ValueError for two rows that would share a bar.
    """
    return _categories("bars", data, x, y, **options)  # type: ignore[arg-type]


def _categories(
    kind: Literal["points", "bars"],
    data: pd.DataFrame,
    x: str,
    y: str,
    *,
    hue: str | None = None,
    order: Levels | None = None,
    hue_order: Levels | None = None,
    band: tuple[str, str] | None = None,
    reference: Reference | None = None,
    title: str = "",
    xlabel: str | None = None,
    ylabel: str | None = None,
    alt: Alt = None,
    name: str = "categories",
) -> Figure:
    table = _tidy(data, [x, y, hue, *(band or ())])
    if kind == "bars":
        _one_row_each(table, [x, hue])
    places = levels_of(table, x, order, data)
    levels = levels_of(table, hue, order if hue == x else hue_order, data)
    colours = colours_of(levels)
    # A hue that repeats the category only colours it: every element then stays on its tick.
    groups = 1 if hue in (None, x) else len(levels)
    width = GROUP_WIDTH / groups
    with style():
        longest = max(len(str(p)) for p in places)
        turned = longest * len(places) > MOST_LETTERS
        room = 0.8 if turned else max(0.8, 0.09 * longest)  # inches a category
        beside = 1.6 if groups == 1 else 2.4  # axis labels, and a legend
        if reference is not None:  # its label stands in the legend
            beside = max(beside, 1.6 + 0.08 * len(reference[1]))
        fig, ax = _canvas(max(4.0, beside + room * len(places)), 3.4, title, xlabel or x, ylabel or y)
        for i, level in enumerate(levels):
            rows = table if hue is None else table[table[hue] == level]
            shift = (i - (groups - 1) / 2) * width if groups > 1 else 0.0
            at = rows[x].map({place: k for k, place in enumerate(places)}).to_numpy(float) + shift
            look = {"color": colours[i], "label": None if hue is None else str(level)}
            if kind == "bars":
                ax.bar(at, rows[y], width=0.92 * width, **look)
            else:
                ax.plot(at, rows[y], ls="none", marker=MARKERS[i % len(MARKERS)], ms=5, **look)
            if band is not None:
                ax.vlines(at, rows[band[0]], rows[band[1]], color="black", lw=1)
        ax.set_xticks(range(len(places)), [str(p) for p in places])
        ax.set_xlim(-0.6, len(places) - 0.4)
        ax.grid(visible=False, axis="x")
        if turned:
            ax.tick_params(axis="x", rotation=30)
        _reference(ax, reference)
        if groups > 1 or (hue is None and reference is not None):
            _key(fig, ax, hue, levels)
    return Figure(fig, table, _alt(alt, table, lambda: describe_categories(table, x, y, hue, places)), name)


def image_grid(
    images: Tensor | Sequence[Tensor],
    titles: Sequence[str],
    *,
    columns: int = 6,
    title: str = "",
    alt: str | None = None,
    name: str = "image_grid",
) -> Figure:
    """Pictures in rows, each under its title. Images: uint8 [N, 3, h, w], or a list of [3, h, w].

    Raises ValueError for other types and shapes, and for titles that do not match the number of images.
    """
    pictures = list(images)
    for i, picture in enumerate(pictures):
        if str(picture.dtype) != "torch.uint8" or picture.ndim != 3 or picture.shape[0] != 3:
            raise ValueError(f"image {i} must be uint8 [3, h, w], got {picture.dtype} {tuple(picture.shape)}")
    if not pictures or len(pictures) != len(titles):
        raise ValueError(f"a grid needs a title per image, got {len(pictures)} images, {len(titles)} titles")
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    with style():
        fig = Canvas(figsize=(1.15 * columns, 1.35 * rows + 0.3 * bool(title)), layout="constrained")
        if title:
            fig.suptitle(title, x=0.01, ha="left", fontsize=10)
        for i, ax in enumerate(np.ravel(fig.subplots(rows, columns, squeeze=False))):
            ax.set_axis_off()
            if i < len(pictures):
                ax.imshow(pictures[i].cpu().permute(1, 2, 0).numpy(), interpolation="nearest")
                ax.set_title(titles[i], fontsize=7, loc="center")
    table = pd.DataFrame({"position": range(len(pictures)), "title": list(titles)})
    text = f"{len(pictures)} pictures in {rows} rows of up to {columns}: {', '.join(map(str, titles))}."
    return Figure(fig, table, alt or text, name)


# --- shared parts ---------------------------------------------------------------------------------------


def _canvas(width: float, height: float, title: str, xlabel: str, ylabel: str) -> tuple[Canvas, Axes]:
    fig = Canvas(figsize=(width, height), layout="constrained")
    ax = fig.subplots()
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel)
    return fig, ax


def _tidy(data: pd.DataFrame, columns: Sequence[str | None]) -> pd.DataFrame:
    """The columns drawn, each once; categoricals and booleans as text, so that no unused category lingers."""
    wanted = list(dict.fromkeys(c for c in columns if c is not None))
    for column in wanted:
        if column not in data.columns:
            raise unknown("column", column, map(str, data.columns))
    if data.empty:
        raise ValueError("there is nothing to draw: the table has no rows")
    table = data[wanted].reset_index(drop=True)
    for column in wanted:
        if isinstance(table[column].dtype, pd.CategoricalDtype) or table[column].dtype == bool:
            table[column] = table[column].astype(str)
    return table


def _one_row_each(table: pd.DataFrame, keys: Sequence[str | None]) -> None:
    used = list(dict.fromkeys(k for k in keys if k is not None))
    twice = table[table.duplicated(used)]
    if len(twice):
        first = ", ".join(f"{k}={twice[k].iloc[0]}" for k in used)
        raise ValueError(f"{len(twice)} rows repeat a point ({first}): aggregate before plotting")


def levels_of(table: pd.DataFrame, column: str | None, order: Levels | None, source: pd.DataFrame) -> list:
    """The values of a column in drawing order: as given, by category, ascending for numbers, else as met.

    Raises ValueError for a value that `order` forgets, `UnknownName` for one that the column lacks.
    """
    if column is None:
        return [None]
    present = table[column].drop_duplicates().tolist()
    if order is not None:
        listed = [str(v) for v in order] if isinstance(present[0], str) else list(order)
        for level in present:
            if level not in listed:
                raise ValueError(f"{column} {level!r} is in the table but not in the order {listed}")
        for level in listed:
            if level not in present:
                raise unknown(column, level, map(str, present))
        return listed
    if isinstance(source[column].dtype, pd.CategoricalDtype):
        return [str(c) for c in source[column].cat.categories if str(c) in present]
    return sorted(present) if pd.api.types.is_numeric_dtype(table[column]) else present


def _numeric(levels: list) -> bool:
    return not any(isinstance(v, str) or v is None for v in levels)


def colours_of(levels: list) -> list:
    """Distinct colours for names; a scale from dark to light for numbers, whose order then shows."""
    if len(levels) <= len(PALETTE) and not (_numeric(levels) and len(levels) > 3):
        return list(PALETTE[: len(levels)])
    shades = mpl.colormaps[SCALE]
    return [shades(t) for t in _scale(levels)]


def _scale(levels: list) -> np.ndarray:
    if not _numeric(levels):
        return np.linspace(0, 0.9, len(levels))
    values = np.asarray(levels, dtype=float)
    return 0.9 * (values - values.min()) / max(np.ptp(values), 1e-12)


def _reference(ax: Axes, reference: Reference | None) -> None:
    if reference is not None:
        ax.axhline(reference[0], color="#555555", ls="--", lw=1, label=reference[1], zorder=1)


def _key(fig: Canvas, ax: Axes, hue: str | None, levels: list) -> None:
    """A legend that names every level, beside the axes; a colour bar where it would be too long."""
    handles, labels = ax.get_legend_handles_labels()
    if hue is not None and _numeric(levels) and len(levels) > LONGEST_LEGEND:
        low, high = min(levels), max(levels)
        # Colours end at 0.9 of the scale, where they are still dark enough to see on white.
        bar = fig.colorbar(ScalarMappable(Normalize(low, low + (high - low) / 0.9), SCALE), ax=ax, label=hue)
        bar.ax.set_ylim(low, high)
        if len(handles) > len(levels):
            ax.legend(handles[len(levels) :], labels[len(levels) :], fontsize=8)
    elif handles:
        columns = -(-len(handles) // LEGEND_ROWS)
        beside = (1.0, 0.5)
        ax.legend(
            handles, labels, title=hue, ncols=columns, loc="center left", bbox_to_anchor=beside, fontsize=8
        )


def _alt(alt: Alt, table: pd.DataFrame, describe: Callable[[], str]) -> str:
    if alt is None:
        return describe()
    return alt if isinstance(alt, str) else alt(table)
