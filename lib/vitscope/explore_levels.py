"""One level at a time: a slider says at which, selects say of what, and bars or a curve show it.

The axis of values is that of all levels together, so that what moves is the data and not the scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from vitscope.errors import unknown
from vitscope.explore import Explorer, Readout, decimals, hexed, made, told
from vitscope.explore_curves import HEIGHT, select
from vitscope.plotting import colours_of, levels_of

_BAR = 26  # pixels a bar takes


def bars_at(
    table: pd.DataFrame,
    *,
    value: str,
    bar: str,
    title: str,
    unit: str,
    slider: str | None = None,
    selects: Mapping[str, str] | Sequence[str] = (),
    order: Sequence[str] | None = None,
    band: tuple[str, str] | None = None,
    label: str = "",
) -> Explorer | None:
    """A bar for each level of column `bar`, long as `value`, at the level of `slider` and of every select.

    `selects` are columns of text, or a mapping from them to what the controls are called; one with a single
    value gets no control. `slider` is a column of numbers, called `label`; a grey mark stays at what each
    bar is at its first level. `order` fixes the bars, `band` names the columns of an interval. None where
    there is nothing to choose.

    Raises `UnknownName` for a column that is not there, ValueError for two rows that would share a bar, and
    for a table without a value.
    """
    names = dict(selects) if isinstance(selects, Mapping) else {s: s for s in selects}
    shown, steps = _prepared(table, {"n": bar, "v": value}, slider, list(names), band)
    bars = [str(b) for b in levels_of(shown, "n", order, shown)]
    shown = shown.assign(n=shown["n"].astype(str))
    shown["c"] = shown["n"].map(dict(zip(bars, map(hexed, colours_of(bars)), strict=True)))
    params, where, tests = _controls(shown, steps, names, label or slider or "")
    if not params:
        return None
    rows = _filtered(alt.Chart(alt.NamedData(name="rows")), tests)
    y = alt.Y("n:N", sort=list(bars), title=None)
    scale = alt.Scale(domain=_domain(shown, zero=True), nice=True)
    x = alt.X("v:Q", title=unit, scale=scale)
    colour = alt.Color("c:N", scale=None, legend=None)
    layers = [rows.mark_bar(size=_BAR - 8, opacity=0.65).encode(x=x, y=y, color=colour)]  # whiskers show
    if "l" in shown:
        ends = rows.transform_filter("isValid(datum.l) && isValid(datum.h)").mark_rule(strokeWidth=1.5)
        layers.append(ends.encode(x=alt.X("l:Q"), x2="h:Q", y=y, color=alt.value("black")))
    if steps:
        still = {**tests, "i": "datum.i == 0"}
        first = _filtered(alt.Chart(alt.NamedData(name="rows")), still)
        layers.append(first.mark_tick(color="#777777", thickness=2, size=_BAR - 4).encode(x=x, y=y))
    chart = alt.layer(*layers).add_params(*params).properties(width="container", height=_BAR * len(bars) + 4)
    return made(
        chart,
        title=title,
        words=_words(shown, steps, names, label or slider or "", unit, band is not None),
        data={"rows": shown},
        readout=_readout(shown, where, (bar, unit), band is not None),
        texts={"at": [_text(s) for s in steps]} if steps else None,
    )


def curve_at(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    slider: str,
    title: str,
    series: str | None = None,
    order: Sequence[str] | None = None,
    selects: Mapping[str, str] | Sequence[str] = (),
    band: tuple[str, str] | None = None,
    xlabel: str = "",
    ylabel: str = "",
    label: str = "",
) -> Explorer | None:
    """A curve of `y` over `x` for each level of `series`, at a level of `slider`, whose first stays in grey.

    Arguments and errors as in `bars_at`. The table beside it gives every curve's value at each `x` there is.
    """
    names = dict(selects) if isinstance(selects, Mapping) else {s: s for s in selects}
    columns = {"x": x, "v": y} | ({"s": series} if series else {})
    shown, steps = _prepared(table, columns, slider, list(names), band)
    shown["s"] = shown["s"].astype(str) if series else ""
    curves = [str(level) for level in levels_of(shown, "s", order, shown)]
    shown["c"] = shown["s"].map(dict(zip(curves, map(hexed, colours_of(curves)), strict=True)))
    shown["n"] = [
        f"{s}, {xlabel or x} {p:,g}" if series else f"{p:,g}"
        for s, p in zip(shown["s"], shown["x"], strict=True)
    ]
    params, where, tests = _controls(shown, steps, names, label or slider)
    if not params:
        return None
    whole = (shown["x"] % 1 == 0).all()
    tick = alt.Axis(tickMinStep=1, format=",d", tickCount=8) if whole else alt.Axis(tickCount=8)
    along = alt.X("x:Q", title=xlabel or x, axis=tick, scale=alt.Scale(zero=False, nice=False, padding=10))
    scale = alt.Scale(domain=_domain(shown, zero=False), nice=True)
    up = alt.Y("v:Q", title=ylabel or y, scale=scale)
    colour, parts = alt.Color("c:N", scale=None, legend=None), alt.Detail("s:N")
    rows = _filtered(alt.Chart(alt.NamedData(name="rows")), tests)
    first = _filtered(alt.Chart(alt.NamedData(name="rows")), {**tests, "i": "datum.i == 0"})
    grey = first.mark_line(strokeWidth=1, strokeDash=[2, 2]).encode(color=alt.value("#888888"))
    layers = [grey.encode(x=along, y=up, detail=parts)]
    if band is not None:
        area = rows.mark_area(opacity=0.16).encode(
            x=along, y=alt.Y("l:Q"), y2="h:Q", color=colour, detail=parts
        )
        layers.append(area)
    dots = alt.OverlayMarkDef(filled=True, size=36)
    layers.append(rows.mark_line(point=dots).encode(x=along, y=up, color=colour, detail=parts))
    chart = alt.layer(*layers).add_params(*params).properties(width="container", height=HEIGHT)
    return made(
        chart,
        title=title,
        words=_words(shown, steps, names, label or slider, ylabel or y, band is not None),
        data={"rows": shown},
        readout=_readout(
            shown, where, (series or xlabel or x, ylabel or y), band is not None, coloured=series is not None
        ),
        texts={"at": [_text(s) for s in steps]},
    )


def _prepared(
    table: pd.DataFrame, columns: Mapping[str, str], slider: str | None, selects: Sequence[str],
    band: tuple[str, str] | None,
) -> tuple[pd.DataFrame, list]:  # fmt: skip
    """Columns under short names, i(ndex of the slider's level), k0, k1 … of the selects; and the levels."""
    names = {f"k{n}": column for n, column in enumerate(selects)} | dict(columns)
    names |= {"i": slider} if slider else {}
    names |= {"l": band[0], "h": band[1]} if band else {}
    for column in names.values():
        if column not in table.columns:
            raise unknown("column", column, map(str, table.columns))
    shown = pd.DataFrame({short: table[column] for short, column in names.items()})
    shown = shown.dropna(subset=["v"]).reset_index(drop=True)
    if shown.empty:
        raise ValueError("there is nothing to explore: the table has no rows with a value")
    keys = [k for k in shown.columns if k not in ("v", "l", "h")]
    twice = shown[shown.duplicated(keys)]
    if len(twice):
        first = ", ".join(f"{names[k]}={twice[k].iloc[0]}" for k in keys)
        raise ValueError(f"{len(twice)} rows repeat a place ({first}): aggregate before exploring")
    for n in range(len(selects)):
        shown[f"k{n}"] = shown[f"k{n}"].astype(str)
    steps = sorted(set(shown["i"])) if slider else []
    if slider:
        shown["i"] = shown["i"].map({step: k for k, step in enumerate(steps)})
    return shown, steps


def _controls(
    shown: pd.DataFrame, steps: Sequence, selects: Mapping[str, str], label: str
) -> tuple[list[alt.Parameter], dict[str, str], dict[str, str]]:
    """Parameters with their inputs; which column must equal which of them; and that as tests."""
    params, where = [], {}
    for n, called in enumerate(selects.values()):
        options = list(dict.fromkeys(shown[f"k{n}"]))
        if len(options) > 1:
            params.append(select(f"k{n}", options, called))
            where[f"k{n}"] = f"k{n}"
    if len(steps) > 1:
        bound = alt.binding_range(min=0, max=len(steps) - 1, step=1, name=label)
        params.append(alt.param(name="at", value=0, bind=bound))
        where["i"] = "at"
    return params, where, {column: f"datum.{column} == {control}" for column, control in where.items()}


def _filtered(chart: alt.Chart, tests: Mapping[str, str]) -> alt.Chart:
    return chart.transform_filter(" && ".join(tests.values())) if tests else chart


def _domain(shown: pd.DataFrame, *, zero: bool) -> list[float]:
    every = shown[[c for c in ("v", "l", "h") if c in shown]].to_numpy(float).ravel()
    low, high = float(pd.Series(every).min()), float(pd.Series(every).max())
    return [min(low, 0.0), max(high, 0.0)] if zero else [low, high]


def _readout(
    shown: pd.DataFrame, where: Mapping[str, str], head: tuple[str, str], banded: bool, coloured: bool = True
) -> Readout:
    ends = ("l", "h") if banded else (None, None)
    lead = "at" if "i" in where else ""
    return Readout(
        data="rows", where=where, name="n", value="v", head=head, lead=lead, low=ends[0], high=ends[1],
        digits=decimals(shown["v"]), colour="c" if coloured else None,
    )  # fmt: skip


def _words(
    shown: pd.DataFrame, steps: Sequence, selects: Mapping[str, str], label: str, unit: str, banded: bool
) -> str:
    first, moves, start = shown, [], []
    for n, called in enumerate(selects.values()):
        options = list(dict.fromkeys(shown[f"k{n}"]))
        first = first[first[f"k{n}"] == options[0]]
        if len(options) > 1:
            moves.append(f"{called} ({told(options)})")
            start.append(f"{called} {options[0]}")
    if len(steps) > 1:
        moves.append(f"{label} ({told([_text(s) for s in steps])}) by the slider")
        start.append(f"{label} {_text(steps[0])}")
        first = first[first["i"] == 0]
    digits = decimals(shown["v"])
    many = len(first) > 8
    said = ", ".join(f"{n} {v:.{digits}f}" for n, v in zip(first["n"], first["v"], strict=True))
    if many:
        said = f"from {first['v'].min():.{digits}f} to {first['v'].max():.{digits}f}"
    bands = "; with 95 % intervals" if banded else ""
    kept = " What is seen there stays as a grey mark." if len(steps) > 1 else ""
    return f"Choose {' and '.join(moves)}. At the start ({', '.join(start)}), {unit}: {said}{bands}.{kept}"


def _text(step: Any) -> str:
    return f"{step:,g}" if isinstance(step, int | float) else str(step)
