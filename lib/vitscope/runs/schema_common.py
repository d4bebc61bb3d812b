"""What the parameters of several notebooks have in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from vitscope.runs.parameters import Names

Backbones = Annotated[list[str], Names("backbone"), Field(min_length=1)]
Datasets = Annotated[list[str], Names("dataset"), Field(min_length=1)]
Device = Literal["auto", "cpu", "cuda", "mps"]

TWINS = ["twin_s", "twin_b", "twin_l"]
DEPTH_SERIES = ["depth_06", "depth_12", "depth_18", "depth_24"]


def check_weights(weights: str | None, backbones: list[str]) -> None:
    """Raise ValueError for a weight file that several backbones would share."""
    from_file = weights is not None and weights.partition(":")[0] != "random"
    if from_file and len(backbones) != 1:
        raise ValueError("a weight file belongs to one backbone; name that one: -p backbone=NAME")


def check_distinct(where: str, named: list[str]) -> None:
    """Raise ValueError for names that come twice."""
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)}: named twice in {where}")
