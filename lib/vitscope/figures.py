"""What a figure of the book is: a drawing, the table it shows, and a text that says what is seen.

One style for all: opaque white, so that a dark page does not swallow the axes; a font that Matplotlib
carries itself; colours that people with any colour vision tell apart.
"""

from __future__ import annotations

import io
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure as Canvas

from vitscope.small_png import small_png

if TYPE_CHECKING:
    from vitscope.explore import Explorer

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C6D31")
"""Okabe and Ito's colours; brown in place of their yellow, which is faint on white."""
SHORTEST_ALT = 20

_STYLE: dict[str, Any] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.transparent": False,
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "#444444",
    "axes.labelcolor": "black",
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.color": "black",
    "xtick.color": "black",
    "ytick.color": "black",
}


def style() -> AbstractContextManager[None]:
    """The book's look for a `with` block; at its end all settings are what they were before."""
    return mpl.rc_context(_STYLE)  # type: ignore[arg-type]  # its keys are a closed list of literals


@dataclass(frozen=True)
class Figure:
    """A drawing (`fig`, Matplotlib's), the tidy table it shows, its alt text, and a name for files.

    `explorer` is what the built book shows below it, with sliders, where there is one.

    Raises ValueError for alt text that is short or without a number, and names that are no file names.
    """

    fig: Canvas
    data: pd.DataFrame
    alt: str
    name: str
    explorer: Explorer | None = None

    def __post_init__(self) -> None:
        if len(self.alt.strip()) < SHORTEST_ALT or not re.search(r"\d", self.alt):
            raise ValueError(
                f"alt text must say what is seen, with numbers, in {SHORTEST_ALT} characters or more; "
                f"got {self.alt!r}"
            )
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", self.name):
            raise ValueError(f"a figure's name is made of a-z, 0-9, - and _, got {self.name!r}")

    def png(self) -> bytes:
        """The drawing as PNG; on one machine the same bytes each time."""
        buffer = io.BytesIO()
        with style():
            self.fig.savefig(buffer, format="png", metadata={"Software": None})
        return small_png(buffer.getvalue())

    def _repr_png_(self) -> bytes:
        return self.png()
