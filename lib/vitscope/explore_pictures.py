"""Galleries with a slider: what models make of a few pictures, at the state or block that a reader chooses.

Tiles are stored patch by patch, one pixel each, and enlarged by the browser without smoothing.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import UInt8
from PIL import Image

from vitscope.explore import LARGEST, Explorer, Readout, made, told
from vitscope.explore_curves import select

ROW = 84  # pixels of a row of tiles
_LABELS = 120  # pixels left of them
_COLOURS = 96  # of a photograph, whose full number would take five times the bytes
_PHOTOGRAPH = 48  # pixels a side from which a tile is taken for one
_BUDGET = 0.8 * LARGEST
PICTURE = "picture"


@dataclass(frozen=True)
class Tiles:
    """One row of tiles, `images` [N, r, c, 3], shown at `step` of the slider as the row called `row`.

    `choice` is the option of the select at which it is seen; `note` is said of it in the table.
    """

    row: str
    step: int
    images: UInt8[np.ndarray, "N r c 3"]
    note: str
    choice: str = ""


def pictures(
    originals: UInt8[np.ndarray, "N s s 3"],
    tiles: Sequence[Tiles],
    *,
    title: str,
    label: str,
    what: str,
    head: tuple[str, str],
    choice: str = "",
    start: int | None = None,
) -> Explorer:
    """The pictures, and below them the rows of tiles at a step of the slider, which is called `label`.

    `what` says what tiles show; `head` names both columns of the table of notes; `choice` is what the select
    is called where tiles name several. The slider starts at `start`, or at the last step. What would be too
    large for a page is thinned out: every other step, the first and the one at the start kept, then pictures.

    Raises ValueError for tiles that are no uint8 pictures or not as many as there are originals, two rows for
    one place, and a `start` without tiles.
    """
    for one in (*tiles, Tiles(PICTURE, 0, originals, "")):
        if one.images.dtype != np.uint8 or one.images.ndim != 4 or one.images.shape[3] != 3:
            raise ValueError(f"{one.row}: tiles must be uint8 [N, rows, columns, 3], got {one.images.dtype} "
                             f"{one.images.shape}")  # fmt: skip
        if len(one.images) != len(originals):
            raise ValueError(f"{one.row}: {len(one.images)} tiles for {len(originals)} pictures")
    steps = sorted({one.step for one in tiles})
    at = steps[-1] if start is None and steps else start
    if at is None or at not in steps:
        raise ValueError(f"start must be a step that has tiles, one of {steps}, got {at}")
    originals, tiles, steps = _thinned(originals, tiles, steps, at)
    places = [(one.step, one.choice, one.row) for one in tiles]
    if len(set(places)) < len(places):
        raise ValueError("two rows of tiles have the same step, choice and row")
    choices = list(dict.fromkeys(one.choice for one in tiles))
    rows = list(dict.fromkeys(one.row for one in tiles))
    shown = pd.DataFrame(
        [
            (steps.index(one.step), one.choice, one.row, n, png(image))
            for one in tiles
            for n, image in enumerate(one.images, start=1)
        ],
        columns=["i", "k", "r", "n", "u"],
    )
    top = pd.DataFrame({"r": PICTURE, "n": range(1, len(originals) + 1), "u": [png(o) for o in originals]})
    notes = pd.DataFrame(
        [(steps.index(one.step), one.choice, one.row, one.note) for one in tiles],
        columns=["i", "k", "r", "t"],
    )
    params, where = [], {"i": "at"}
    if len(choices) > 1:
        params.append(select("k", choices, choice))
        where["k"] = "k"
    bound = alt.binding_range(min=0, max=len(steps) - 1, step=1, name=label)
    params.append(alt.param(name="at", value=steps.index(at), bind=bound))
    test = " && ".join(f"datum.{column} == {control}" for column, control in where.items())
    chart = _chart(test, [PICTURE, *rows]).add_params(*params)
    return made(
        chart,
        title=title,
        words=_words(tiles, at, choices, label, choice, what, len(originals), steps, head[1]),
        data={"tiles": shown, "originals": top, "notes": notes},
        readout=Readout(data="notes", where=where, name="r", value="t", head=head, lead="at"),
        texts={"at": [str(step) for step in steps]},
        widest=_LABELS + ROW * len(originals),
    )


def _thinned(
    originals: np.ndarray, tiles: Sequence[Tiles], steps: list[int], at: int
) -> tuple[np.ndarray, list[Tiles], list[int]]:
    """Fewer steps, and then fewer pictures, until what is left fits a page."""
    sizes = [len(png(image)) for image in originals]
    large = [(one.step, len(png(one.images[0])) + 60) for one in tiles]  # a row's other fields
    count = len(originals)
    while sum(sizes[:count]) + count * sum(size for step, size in large if step in steps) > _BUDGET:
        if len(steps) > 3:
            steps = sorted({*steps[::2], at})
        elif count > 1:
            count -= 1
        else:
            break
    kept = [replace(one, images=one.images[:count]) for one in tiles if one.step in steps]
    return originals[:count], kept, steps


def _chart(test: str, rows: Sequence[str]) -> Any:
    side: dict[str, Any] = {
        "width": alt.expr("0.96 * bandwidth('x')"),
        "height": alt.expr("0.96 * bandwidth('y')"),
    }
    axis = alt.Axis(ticks=False, domain=False, grid=False, labelLimit=_LABELS - 10)
    x = alt.X("n:O", axis=None, scale=alt.Scale(type="band", padding=0))
    y = alt.Y("r:N", title=None, axis=axis, scale=alt.Scale(type="band", padding=0, domain=list(rows)))
    top = alt.Chart(alt.NamedData(name="originals")).mark_image(aria=False, **side)
    below = alt.Chart(alt.NamedData(name="tiles")).transform_filter(test)
    maps = below.mark_image(smooth=False, aria=False, **side)
    layers = (part.encode(x=x, y=y, url="u:N") for part in (top, maps))
    return alt.layer(*layers).properties(width="container", height=ROW * len(rows))


def png(image: UInt8[np.ndarray, "r c 3"]) -> str:
    """A picture as a data address of a PNG; photographs in fewer colours.

    >>> png(np.zeros((2, 2, 3), np.uint8))[:30]
    'data:image/png;base64,iVBORw0K'
    """
    drawn = Image.fromarray(np.ascontiguousarray(image))
    if min(drawn.size) >= _PHOTOGRAPH:
        drawn = drawn.quantize(_COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    drawn.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _words(
    tiles: Sequence[Tiles], at: int, choices: Sequence[str], label: str, choice: str, what: str, count: int,
    steps: Sequence[int], noted: str,
) -> str:  # fmt: skip
    moves = f"{label} from {steps[0]} to {steps[-1]} by the slider"
    if len(choices) > 1:
        moves += f" and the {choice} ({told(choices)})"
    here = [one for one in tiles if one.step == at and one.choice == choices[0]]
    said = "; ".join(f"{one.row} {one.note}" for one in here)
    of = f", {choice} {choices[0]}" if len(choices) > 1 else ""
    return f"{count} pictures and {what}. Choose {moves}. At the start ({label} {at}{of}), {noted}: {said}."
