"""Curves over states to be read off: a slider moves a line over them, a table gives their values there.

One panel is shown at a time, chosen by a select where a table has several measures; another select makes one
curve stand out. Colours and order are those of the static figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from vitscope.errors import unknown
from vitscope.explore import ALL, Explorer, Readout, decimals, hexed, made, told
from vitscope.plotting import colours_of, levels_of

HEIGHT = 260
_FAINT = 0.15


def read_off(
    table: pd.DataFrame,
    *,
    y: str,
    title: str,
    x: str = "state",
    series: str | None = None,
    order: Sequence[Any] | None = None,
    panel: str | None = None,
    band: tuple[str, str] | None = None,
    reference: tuple[float, str] | Mapping[str, tuple[float, str]] | None = None,
    start: float | None = None,
    xlabel: str = "",
    ylabel: str = "",
) -> Explorer:
    """Curves of column `y` over the numeric column `x`, one for each level of `series`.

    `panel` is a column whose values are shown one at a time; `order`, `band` and `reference` are as in
    `plotting.layer_curves`, the reference by panel where there are several. The slider starts at `start`, or
    at the last `x` that every curve of the first panel has. Rows without a value are left out.

    Raises `UnknownName` for a column that is not there, and ValueError for a column `x` of text, two rows at
    one place, a `start` that is no value of `x`, and an empty table.
    """
    shown = _prepared(table, x=x, y=y, series=series, panel=panel, band=band)
    levels = levels_of(shown, "s", order, shown) if series else list(dict.fromkeys(shown["s"]))
    named = [str(level) for level in levels]
    shown["s"] = shown["s"].astype(str)
    places = sorted(set(shown["x"]))
    at = _start(shown, places) if start is None else start
    if at not in places:
        raise ValueError(f"start must be a value of {x!r}, one of {places}, got {at}")
    even = all(float(p).is_integer() for p in places) and len(places) == places[-1] - places[0] + 1
    number = {place: int(place) if even else k for k, place in enumerate(places)}
    shown["i"] = shown["x"].map(number)
    panels = list(dict.fromkeys(shown["p"]))
    colours = [hexed(c) for c in colours_of(levels)]
    shown["c"] = shown["s"].map(dict(zip(named, colours, strict=True)))
    lines = _references(reference, panels)
    chart = _chart(
        shown, named, colours, panels, lines, number, number[at], xlabel or x, ylabel or y, series or "curve"
    )
    columns = ["p", "s", "c", "x", "i", "y", *(["l", "h"] if band else [])]
    readout = Readout(
        data="curves",
        where={"i": "at"} | ({"p": "panel"} if len(panels) > 1 else {}),
        name="s", value="y", head=(series or "", ylabel or y), lead="at",
        low="l" if band else None, high="h" if band else None,
        digits=decimals(shown["y"]), colour="c", sort=True, mark="marked" if len(named) > 1 else None,
    )  # fmt: skip
    return made(
        chart,
        title=title,
        words=_words(shown, named, panels, xlabel or x, at, band is not None),
        data={"curves": shown[columns], "lines": lines},
        readout=readout,
        texts=None if even else {"at": [f"{p:,g}" for p in places]},
    )


def _prepared(
    table: pd.DataFrame, *, x: str, y: str, series: str | None, panel: str | None,
    band: tuple[str, str] | None,
) -> pd.DataFrame:  # fmt: skip
    """The columns drawn under short names: p(anel), s(eries), x, y, l(ow), h(igh)."""
    names = {"p": panel, "s": series, "x": x, "y": y}
    if band is not None:
        names |= {"l": band[0], "h": band[1]}
    for column in names.values():
        if column is not None and column not in table.columns:
            raise unknown("column", column, map(str, table.columns))
    shown = pd.DataFrame({k: table[c] if c is not None else "" for k, c in names.items()})
    shown = shown.dropna(subset=["x", "y"]).reset_index(drop=True)
    if shown.empty:
        raise ValueError("there is nothing to explore: the table has no rows with a value")
    if not pd.api.types.is_numeric_dtype(shown["x"]):
        raise ValueError(f"column {x!r} must be numeric to move along it, got {shown['x'].dtype}")
    twice = shown[shown.duplicated(["p", "s", "x"])]
    if len(twice):
        raise ValueError(
            f"{len(twice)} rows repeat a place ({x}={twice['x'].iloc[0]}): aggregate before exploring"
        )
    shown["p"] = shown["p"].astype(str)
    return shown


def _start(shown: pd.DataFrame, places: Sequence[float]) -> float:
    first = shown[shown["p"] == shown["p"].iloc[0]]
    count = first["x"].value_counts()
    shared = [p for p in places if count.get(p, 0) == first["s"].nunique()]
    return (shared or places)[-1]


def _references(
    reference: tuple[float, str] | Mapping[str, tuple[float, str]] | None, panels: Sequence[str]
) -> pd.DataFrame:
    by_panel = reference if isinstance(reference, Mapping) else dict.fromkeys(panels, reference)
    rows = [(panel, *found) for panel, found in by_panel.items() if found is not None]
    return pd.DataFrame(rows, columns=["p", "y", "label"])


def _chart(
    shown: pd.DataFrame, named: Sequence[str], colours: Sequence[str], panels: Sequence[str],
    lines: pd.DataFrame, number: Mapping[float, int], at: int, xlabel: str, ylabel: str, series: str,
) -> Any:  # fmt: skip
    ends = min(number.values()), max(number.values())
    slider = alt.binding_range(min=ends[0], max=ends[1], step=1, name=xlabel)
    params = [alt.param(name="at", value=at, bind=slider)]
    curves, heights = alt.Chart(alt.NamedData(name="curves")), alt.Chart(alt.NamedData(name="lines"))
    if len(panels) > 1:
        params.append(select("panel", panels, "measure"))
        curves, heights = (c.transform_filter("datum.p == panel") for c in (curves, heights))
    opacity: Any = alt.value(1.0)
    if len(named) > 1:
        params.append(select("marked", [ALL, *named], f"highlight {series}"))
        stands_out = f"marked == '{ALL}' || marked == datum.s"
        opacity = alt.when(stands_out).then(alt.value(1.0)).otherwise(alt.value(_FAINT))
    whole = all(float(x).is_integer() for x in number)
    tick = alt.Axis(tickMinStep=1, format=",d", tickCount=8) if whole else alt.Axis(tickCount=8)
    x = alt.X("x:Q", title=xlabel, axis=tick, scale=alt.Scale(zero=False, nice=False, padding=10))
    y = alt.Y("y:Q", title=None if len(panels) > 1 else ylabel, scale=alt.Scale(zero=False))
    colour = alt.Color("s:N", legend=None, scale=alt.Scale(domain=list(named), range=list(colours)))
    layers = [curves.mark_line(strokeWidth=1.6).encode(x=x, y=y, color=colour, opacity=opacity)]
    if "l" in shown:
        shade = alt.Opacity(value=0.16) if len(named) == 1 else alt.when(stands_out).then(
            alt.value(0.16)).otherwise(alt.value(0.03))  # fmt: skip
        area = curves.transform_filter("isValid(datum.l) && isValid(datum.h)").mark_area()
        layers.insert(0, area.encode(x=x, y=alt.Y("l:Q"), y2="h:Q", color=colour, opacity=shade))
    if len(lines):
        dashed = heights.mark_rule(strokeDash=[5, 4], color="#555555").encode(y="y:Q")
        label = heights.mark_text(align="left", baseline="bottom", dx=3, dy=-2, fontSize=10, color="#555555")
        layers += [dashed, label.encode(y="y:Q", x=alt.value(0), text="label:N")]
    here = curves.transform_filter("datum.i == at")
    layers.append(here.mark_rule(color="#333333").encode(x=x))
    points = here.mark_point(filled=True, size=70, stroke="white", strokeWidth=1)
    layers.append(points.encode(x=x, y=y, color=colour, opacity=opacity))
    title = (
        {"title": alt.TitleParams(text=alt.expr("panel"), limit=alt.expr("width"))} if len(panels) > 1 else {}
    )
    return alt.layer(*layers).add_params(*params).properties(width="container", height=HEIGHT, **title)


def select(name: str, options: Sequence[str], label: str) -> alt.Parameter:
    """A control that chooses one of some texts; the first is chosen at the start."""
    return alt.param(name=name, value=options[0], bind=alt.binding_select(options=list(options), name=label))


def _words(
    shown: pd.DataFrame, named: Sequence[str], panels: Sequence[str], xlabel: str, at: float, banded: bool
) -> str:
    first = shown[(shown["p"] == panels[0]) & (shown["x"] == at)].sort_values("y", ascending=False)
    digits = decimals(shown["y"])
    seen = ", ".join(f"{s} {y:.{digits}f}".strip() for s, y in zip(first["s"], first["y"], strict=True))
    moves = [f"{xlabel} from {shown['x'].min():,g} to {shown['x'].max():,g} by the slider"]
    if len(panels) > 1:
        moves.append(f"the measure ({told(panels)})")
    if len(named) > 1:
        moves.append("which curve stands out (also by a click on it)")
    of = f"{panels[0]}; " if len(panels) > 1 else ""
    bands = " Shaded: 95 % intervals." if banded else ""
    return f"Choose {', '.join(moves)}. At the start ({of}{xlabel} {at:,g}): {seen}.{bands}"
