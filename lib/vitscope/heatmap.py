"""A table of numbers as a grid of shaded cells, rows from top to bottom as they come."""

from collections.abc import Hashable

import pandas as pd
from matplotlib.figure import Figure as Canvas

from vitscope.errors import unknown
from vitscope.figures import Figure, style

SCALE = "viridis"
MOST_LABELS = 14  # further ticks of an axis would touch each other


def heatmap(
    data: pd.DataFrame,
    *,
    x: str,
    y: str,
    value: str,
    limits: tuple[float, float] | None = None,
    title: str = "",
    xlabel: str | None = None,
    ylabel: str | None = None,
    alt: str | None = None,
    name: str = "heatmap",
) -> Figure:
    """One cell for each pair of `x` and `y`, shaded by `value`; a cell without a row stays white.

    Numeric axes ascend, others keep the order in which their values come. `limits` fix the ends of the colour
    scale (left out: the smallest and largest value). Raises `UnknownName` for a column that is not there and
    ValueError for a pair that has two rows and for a table without rows.

    >>> table = pd.DataFrame({"a": [0, 1], "b": [0, 0], "cka": [1.0, 0.5]})
    >>> heatmap(table, x="a", y="b", value="cka").alt
    'cka for 2 × 1 pairs of a and b: lowest 0.5 at a 1, b 0; highest 1 at a 0, b 0; mean 0.75.'
    """
    for column in (x, y, value):
        if column not in data.columns:
            raise unknown("column", column, map(str, data.columns))
    table = data[[x, y, value]].reset_index(drop=True)
    if table.empty:
        raise ValueError("there is nothing to draw: the table has no rows")
    twice = table[table.duplicated([x, y])]
    if len(twice):
        at = twice.index[0]
        raise ValueError(
            f"{len(twice)} rows repeat a cell ({x}={table.at[at, x]}, {y}={table.at[at, y]}): aggregate first"
        )
    columns, rows = _ordered(table[x]), _ordered(table[y])
    grid = table.pivot(index=y, columns=x, values=value).reindex(index=rows, columns=columns)
    with style():
        side = 0.22
        fig = Canvas(
            figsize=(2.2 + max(2.0, side * len(columns)), 1.2 + max(1.6, side * len(rows))),
            layout="constrained",
        )
        ax = fig.subplots()
        ax.grid(visible=False)
        low, high = limits or (table[value].min(), table[value].max())
        drawn = ax.imshow(grid.to_numpy(float), cmap=SCALE, vmin=low, vmax=high, aspect="auto")
        ax.set(title=title, xlabel=xlabel or x, ylabel=ylabel or y)
        for set_ticks, labels in ((ax.set_xticks, columns), (ax.set_yticks, rows)):
            step = -(-len(labels) // MOST_LABELS)
            set_ticks(range(0, len(labels), step), [str(label) for label in labels[::step]])
        fig.colorbar(drawn, ax=ax, label=value)
    return Figure(fig, table, alt or _describe(table, x, y, value, len(columns), len(rows)), name)


def _ordered(column: pd.Series) -> list[Hashable]:
    met = column.drop_duplicates().tolist()
    return sorted(met) if pd.api.types.is_numeric_dtype(column) else met


def _describe(table: pd.DataFrame, x: str, y: str, value: str, columns: int, rows: int) -> str:
    ends = "; ".join(
        f"{word} {table.at[at, value]:.3g} at {x} {table.at[at, x]}, {y} {table.at[at, y]}"
        for word, at in (("lowest", table[value].idxmin()), ("highest", table[value].idxmax()))
    )
    pairs = f"{columns} × {rows} pairs of {x} and {y}"
    return f"{value} for {pairs}: {ends}; mean {table[value].mean():.3g}."
