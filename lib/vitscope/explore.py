"""What can be explored without a kernel: a Vega-Lite chart with sliders over numbers that a run computed.

An `Explorer` belongs to a figure of the book and is shown below it, closed. Its chart is written with Altair,
which checks it against the grammar's own schema, and is drawn by vega-embed, which the site itself serves
(`extra/explore`). The static figure stays: it is what is seen in print, in Jupyter and without JavaScript.

Beside the chart the page shows a table of the values at the chosen state. What that table reads is said in
the chart's `usermeta`: see `Readout`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from vitscope.figures import SHORTEST_ALT

LARGEST = 400_000
"""Bytes that a chart with its data may take on a page."""
DIGITS = 6
"""Significant digits of the numbers in a chart; the figure's CSV has them all."""
ALL = "all"
_OUTSIDE = re.compile(r"(?:https?:|ftp:|wss?:)?//[\w\[]", re.I)
_DATA_URI = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]*")


class TooLarge(ValueError):
    """A chart with its data takes more than `LARGEST` bytes."""


@dataclass(frozen=True)
class Explorer:
    """A chart with controls: `title` (what is explored), `words`, and `spec`, Vega-Lite as JSON text.

    `words` say what can be moved and what is seen at the start, with computed numbers. Raises ValueError for
    words that are short or without a number, a text that is no Vega-Lite chart, one that would load anything
    from elsewhere, and `TooLarge`, which is one, for more than `LARGEST` bytes.
    """

    title: str
    words: str
    spec: str

    def __post_init__(self) -> None:
        if not self.title.strip():
            raise ValueError("an explorer needs a title that says what is explored, got an empty one")
        if len(self.words.strip()) < SHORTEST_ALT or not re.search(r"\d", self.words):
            raise ValueError(
                "words must say what can be done and what is seen at the start, with numbers, in "
                f"{SHORTEST_ALT} characters or more; got {self.words!r}"
            )
        size = len(self.spec.encode())
        if size > LARGEST:
            raise TooLarge(
                f"the explorer {self.title!r} takes {size:,} bytes, {LARGEST:,} are allowed: show fewer "
                "states, pictures or panels"
            )
        problem = spec_problem(self.spec)
        if problem:
            raise ValueError(f"the explorer {self.title!r} {problem}")


def spec_problem(text: str) -> str | None:
    """What is wrong with a chart's JSON text, as a predicate ("is …"), or None. It is not drawn here.

    >>> spec_problem('{"mark": "bar", "data": {"url": "//example.org/a.csv"}}')
    'names an outside address: //example.org/a.csv'
    >>> spec_problem("[]")
    'is not a JSON object'
    """
    try:
        spec = json.loads(text)
    except ValueError as error:
        return f"is not JSON: {error}"
    if not isinstance(spec, dict):
        return "is not a JSON object"
    if not {"mark", "layer", "hconcat", "vconcat", "concat", "facet"} & set(spec):
        return "is no Vega-Lite chart: it has neither a mark nor layers"
    for address in _addresses(spec):
        return f"names an outside address: {address}"
    return None


def _addresses(part: Any) -> list[str]:
    """Texts in a chart that a browser might take for an address on another machine."""
    if isinstance(part, dict):
        return [a for key, value in part.items() for a in (*_addresses(key), *_addresses(value))]
    if isinstance(part, list):
        return [a for value in part for a in _addresses(value)]
    if isinstance(part, str) and _OUTSIDE.search(_DATA_URI.sub("", part)):
        return [part[:80]]
    return []


@dataclass(frozen=True)
class Readout:
    """The table beside a chart: which rows of the dataset `data` it shows, and what of them.

    `where` maps columns of the dataset to the controls whose value they must have; `name` is the column that
    says what a row is, `value` the number or text. `low` and `high` are an interval, `digits` the decimals,
    `colour` the column of a row's colour, `sort` whether rows come by size. `head` names both columns; `lead`
    is the control that the caption gives. `mark` is the control that a row's name is written to on a click.
    With `words`, values are places in this list of texts.
    """

    data: str
    where: Mapping[str, str]
    name: str
    value: str
    head: tuple[str, str]
    lead: str
    low: str | None = None
    high: str | None = None
    digits: int | None = None
    colour: str | None = None
    sort: bool = False
    mark: str | None = None
    words: tuple[str, ...] | None = None


def made(
    chart: Any, *, title: str, words: str, data: Mapping[str, pd.DataFrame], readout: Readout,
    texts: Mapping[str, Sequence[str]] | None = None, widest: int = 720,
) -> Explorer:  # fmt: skip
    """An explorer from an Altair chart that names its datasets, and the tables they hold.

    `texts` says, for a slider over 0, 1, 2 …, what each of its places is called. `widest` is the width in
    pixels beyond which the chart does not grow. Raises what Altair raises for a chart that its schema does
    not know, and what `Explorer` does.
    """
    import altair as alt  # seconds, and only where figures are made

    meta = {"readout": asdict(readout), "texts": {k: list(v) for k, v in (texts or {}).items()}}
    whole = chart.properties(
        datasets={name: records(table) for name, table in data.items()},
        description=words,
        usermeta={"vitscope": {**meta, "widest": widest}},
        background="white",
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        padding=4,
    )
    styled = whole.configure_axis(
        gridColor="#DDDDDD", domainColor="#444444", tickColor="#444444", labelColor="black",
        titleColor="black", titleFontWeight="normal", labelLimit=150,
    ).configure_view(stroke=None)  # fmt: skip
    spec = styled.configure_title(anchor="start", fontSize=13, color="black").to_dict()
    spec.pop("$schema")  # an address; the page says that it is Vega-Lite
    for size in ("continuousWidth", "continuousHeight"):  # of charts that have none; these do
        spec["config"].get("view", {}).pop(size, None)
    return Explorer(
        title, words, json.dumps(spec, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    )


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON takes them: numbers to `DIGITS` digits, NaN as null.

    >>> records(pd.DataFrame({"a": [1, 2], "b": [0.123456789, float("nan")]}))
    [{'a': 1, 'b': 0.123457}, {'a': 2, 'b': None}]
    """
    columns = {name: [_plain(v) for v in table[name].tolist()] for name in table.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain(value: Any) -> Any:
    if value is None or value is pd.NA:
        return None
    if isinstance(value, float | np.floating):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def decimals(values: Sequence[float] | np.ndarray | pd.Series) -> int:
    """Decimals that show differences of a thousandth of the range of some numbers.

    >>> decimals([0.012, 0.4]), decimals([12.0, 83.0]), decimals([5.0, 5.0])
    (4, 2, 3)
    """
    numbers = np.asarray(values, dtype=float)
    numbers = numbers[np.isfinite(numbers)]
    spread = float(np.ptp(numbers)) if numbers.size else 0.0
    return 3 if spread == 0 else int(np.clip(3 - math.floor(math.log10(spread)), 0, 6))


def told(options: Sequence[str]) -> str:
    """The options of a select in a sentence: all where there are few, else the first and the last.

    >>> told(["a", "b"]), told(["a", "b", "c", "d", "e"])
    ('a; b', 'a; … e, 5 of them')
    """
    if len(options) <= 4:
        return "; ".join(options)
    return f"{options[0]}; … {options[-1]}, {len(options)} of them"


def hexed(colour: Any) -> str:
    """A colour of Matplotlib as "#rrggbb".

    >>> hexed((1.0, 0.0, 0.0, 1.0))
    '#ff0000'
    """
    from matplotlib.colors import to_hex

    return to_hex(colour)
