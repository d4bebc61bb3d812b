"""Cliff, plateau and climb against the thresholds of the detector: what is found where a reader sets them."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from vitscope.explore import Explorer, Readout, made
from vitscope.explore_curves import HEIGHT, read_off, select
from vitscope.phases import SHORTEST_CURVE, Phases, detect_phases

TOLERANCES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
BANDS = (0.005, 0.01, 0.02, 0.05)
SHARES = (0.05, 0.1, 0.2, 0.3)
MOST = 8
"""Curves that fit a page at every setting."""
COLOURS = {"cliff": "#D55E00", "plateau": "#0072B2", "climb": "#009E73"}
"""Of the shades; people with any colour vision tell them apart."""

Setting = tuple[int, int, int]
"""Where tolerance, band and share lie on their grids."""


def thresholds(
    table: pd.DataFrame, *, title: str, y: str = "mean", hue: str = "backbone", ylabel: str = ""
) -> Explorer | None:
    """The phases of every curve at a grid of the detector's three thresholds, shaded on the curve.

    `table` has a row for each `hue` and `state`; of many curves the first `MOST` are taken. The sliders start
    at the detector's own defaults. None where every curve is too short for it.
    """
    long = {
        str(name): part.sort_values("state")
        for name, part in table.groupby(hue, sort=False)
        if len(part) >= SHORTEST_CURVE
    }
    curves = dict(itertools.islice(long.items(), MOST))
    if not curves:
        return None
    found = {name: _at_all(part[y].to_numpy(float), part["state"].tolist()) for name, part in curves.items()}
    usual = _usual()
    texts: dict[str, int] = {}
    rows = [
        (name, *at, phase, *_ends(phases, phase), texts.setdefault(_said(phases, phase), len(texts)), colour)
        for name, by_setting in found.items()
        for at, phases in by_setting.items()
        for phase, colour in COLOURS.items()
    ]
    drawn = [
        pd.DataFrame({"m": name, "x": part["state"], "y": part[y].to_numpy(float)})
        for name, part in curves.items()
    ]
    where = {"m": "m", "t": "t", "b": "b", "q": "q"}
    return made(
        _chart(list(curves), usual, ylabel or y),
        title=title,
        words=_words(found, usual),
        data={
            "curves": pd.concat(drawn, ignore_index=True),
            "phases": pd.DataFrame(rows, columns=[*where, "n", "x", "x2", "w", "c"]),
        },
        readout=Readout(
            data="phases", where=where, name="n", value="w", head=("phase", "found"), lead="", colour="c",
            words=tuple(texts),
        ),
        texts={
            "t": [f"{v:g}" for v in TOLERANCES],
            "b": [f"±{v:g}" for v in BANDS],
            "q": [f"±{v:.0%}" for v in SHARES],
        },
    )  # fmt: skip


def _at_all(values: np.ndarray, states: Sequence[int]) -> dict[Setting, Phases]:
    grid = itertools.product(range(len(TOLERANCES)), range(len(BANDS)), range(len(SHARES)))
    return {
        (t, b, q): detect_phases(
            values, states=states, tolerance=TOLERANCES[t], band=BANDS[b], band_share=SHARES[q],
            resamples=0, pieces=False,
        )
        for t, b, q in grid
    }  # fmt: skip


def _usual() -> Setting:
    """Where the detector's own defaults lie on the grids."""
    given = {name: p.default for name, p in inspect.signature(detect_phases).parameters.items()}
    return (
        TOLERANCES.index(given["tolerance"]),
        BANDS.index(given["band"]),
        SHARES.index(given["band_share"]),
    )


def _ends(phases: Phases, phase: str) -> tuple[int | None, int | None]:
    """The states between which a phase is shaded; None where it was not found."""
    if phase == "cliff" and phases.cliff:
        return phases.states[0], phases.cliff.state
    if phase == "plateau" and phases.plateau:
        return phases.plateau.start, phases.plateau.end
    if phase == "climb" and phases.climb:
        return phases.climb.onset - 1, phases.states[-1]
    return None, None


def _said(phases: Phases, phase: str) -> str:
    """What was found of one phase, or why it was not."""
    if phase == "cliff" and phases.cliff:
        return f"falls by {phases.cliff.size:.3f} into state {phases.cliff.state}"
    if phase == "plateau" and phases.plateau:
        return f"states {phases.plateau.start} to {phases.plateau.end}, {phases.plateau.length} in all"
    if phase == "climb" and phases.climb:
        return f"from state {phases.climb.onset} on, by {phases.climb.rise:.3f}"
    return phases.reasons[phase].replace("not detected, because", "not found:")


def _chart(names: Sequence[str], usual: Setting, ylabel: str) -> Any:
    params = [select("m", names, "backbone")] if len(names) > 1 else [alt.param(name="m", value=names[0])]
    sliders = (
        ("t", "tolerance of a step", len(TOLERANCES)),
        ("b", "band of the plateau", len(BANDS)),
        ("q", "or as a share of the range", len(SHARES)),
    )
    for (name, label, count), value in zip(sliders, usual, strict=True):
        bound = alt.binding_range(min=0, max=count - 1, step=1, name=label)
        params.append(alt.param(name=name, value=value, bind=bound))
    axis = alt.Axis(tickMinStep=1, format=",d", tickCount=8)
    x = alt.X("x:Q", title="state", axis=axis, scale=alt.Scale(nice=False, padding=10, zero=False))
    here = "datum.m == m && datum.t == t && datum.b == b && datum.q == q && isValid(datum.x)"
    shades = alt.Chart(alt.NamedData(name="phases")).transform_filter(here)
    curve = alt.Chart(alt.NamedData(name="curves")).transform_filter("datum.m == m")
    colour = alt.Color("c:N", scale=None, legend=None)
    rect = shades.mark_rect(opacity=0.22).encode(x=x, x2="x2:Q", color=colour)
    middle = shades.transform_calculate(at="(datum.x + datum.x2) / 2")
    named = middle.mark_text(baseline="top", dy=3, fontSize=11, color="black").encode(
        x=alt.X("at:Q"), y=alt.value(0), text="n:N"
    )
    dots = alt.OverlayMarkDef(filled=True, size=36, color="black")
    line = curve.mark_line(point=dots, color="black", strokeWidth=1.4)
    drawn = line.encode(x=x, y=alt.Y("y:Q", title=ylabel, scale=alt.Scale(zero=False)))
    return alt.layer(rect, drawn, named).add_params(*params).properties(width="container", height=HEIGHT)


def _words(found: Mapping[str, Mapping[Setting, Phases]], usual: Setting) -> str:
    name, by_setting = next(iter(found.items()))
    seen = "; ".join(f"{phase} {_said(by_setting[usual], phase)}" for phase in COLOURS)
    every = [phases.detected for by in found.values() for phases in by.values()]
    return (
        f"Choose the backbone ({', '.join(found)}) and the three thresholds of the detector by sliders. At "
        f"the start they are those of the table below: tolerance {TOLERANCES[usual[0]]:g}, and a band of "
        f"±{BANDS[usual[1]]:g} or ±{SHARES[usual[2]]:.0%} of the range, whichever is wider. {name}: {seen}. "
        f"All three phases are found in {sum(every)} of the {len(every)} pairs of curve and setting here."
    )


def of_similarity(table: pd.DataFrame, statistic: str, order: Sequence[str]) -> Explorer | None:
    """What readers explore of a table of similarities: all forms below the raw one, phases below the centred.

    None for other statistics, and for curves too short for phases.
    """
    if statistic == "centred":
        shown = table[table["statistic"] == statistic]
        return thresholds(shown, title="cliff, plateau and climb at other thresholds", ylabel="cosine")
    if statistic != "raw":
        return None
    named = table.assign(statistic=[f"cosine of patch tokens, {s}" for s in table["statistic"]])
    return read_off(
        named, y="mean", series="backbone", order=order, panel="statistic", band=("low", "high"),
        ylabel="cosine", title="token similarity in every form, state by state",
    )  # fmt: skip
