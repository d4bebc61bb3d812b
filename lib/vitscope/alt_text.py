"""What a chart shows, in words and numbers, for readers who do not see it."""

from collections.abc import Hashable

import numpy as np
import pandas as pd

MOST_CURVES = 8
MOST_VALUES = 24


def describe_curves(table: pd.DataFrame, x: str, y: str, hue: str | None, levels: list) -> str:
    """Each curve's ends, lowest and highest point; of more than eight curves the first and the last.

    >>> table = pd.DataFrame({"state": [0, 1, 2], "accuracy": [0.5, 0.25, 0.75]})
    >>> describe_curves(table, "state", "accuracy", None, [None])[47:]
    'it goes from 0.5 to 0.75, lowest 0.25 at 1, highest 0.75 at 2.'
    """
    said = levels if len(levels) <= MOST_CURVES else [levels[0], levels[-1]]
    of = "" if hue is None else f", {len(levels)} curves by {hue}"
    parts = [f"Line chart of {y} over {x} from {table[x].min():g} to {table[x].max():g}{of}"]
    for level in said:
        rows = (table if hue is None else table[table[hue] == level]).dropna(subset=[y]).sort_values(x)
        if rows.empty:
            parts.append(f"{level}: no value")
            continue
        low, high = rows.loc[rows[y].idxmin()], rows.loc[rows[y].idxmax()]
        parts.append(
            f"{'it' if level is None else level} goes from {rows[y].iloc[0]:.3g} to {rows[y].iloc[-1]:.3g}, "
            f"lowest {low[y]:.3g} at {low[x]:g}, highest {high[y]:.3g} at {high[x]:g}"
        )
    return "; ".join(parts) + "."


def describe_categories(table: pd.DataFrame, x: str, y: str, hue: str | None, places: list) -> str:
    """The value of every category and hue (the mean, where there are several rows).

    >>> table = pd.DataFrame({"set": ["a", "b"], "accuracy": [0.5, 0.25]})
    >>> describe_categories(table, "set", "accuracy", None, ["a", "b"])
    'accuracy for 2 values of set: a 0.5, b 0.25.'
    """
    keys: list[Hashable] = [x] if hue is None or hue == x else [x, hue]
    means = table.groupby(keys, sort=False)[y].mean()
    named = [f"{' '.join(map(str, np.atleast_1d(key)))} {value:.3g}" for key, value in means.items()]
    shown = (
        named if len(named) <= MOST_VALUES else [*named[:MOST_VALUES], f"and {len(named) - MOST_VALUES} more"]
    )
    return f"{y} for {len(places)} values of {x}: {', '.join(shown)}."
