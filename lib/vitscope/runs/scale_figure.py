"""The figure of the page on scale: hours over images, both logarithmic, with the limits marked."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from vitscope import scale
from vitscope.figures import PALETTE, Figure, style
from vitscope.runs.quantities import hours, number
from vitscope.runs.scale_tables import SHORT, SITE
from vitscope.scale import (
    BILLION,
    IMAGENET_1K,
    IMAGENET_21K,
    VITS,
    Collection,
    Estimate,
    Site,
    UnitCosts,
    Vit,
)

TITLE = "A forward pass over all images, and what stops it with ViT-B/16"
_IMAGES = np.logspace(4, 9, 26)
_MARKED = VITS[1]
_STAGGERED = (6, -14, 17, -25)  # points between a mark and its number: some marks lie close together


def cost(units: UnitCosts, site: Site = SITE) -> Figure:
    """GPU-hours of each ViT, as a band from low to high utilisation, and CPU core-hours of ViT-B/16.

    Marks on the line of ViT-B/16 are the numbers of images at which its limits are reached.
    """
    marks = [x for x in scale.limits(_MARKED, site, units, IMAGENET_1K.classes) if x.images <= _IMAGES[-1]]
    table = _table(units, site)
    with style():
        fig = Canvas(figsize=(7.6, 4.2), layout="constrained")
        ax = fig.subplots()
        for colour, vit in zip(PALETTE, VITS, strict=False):
            rows = table[table["ViT"] == vit.name]
            ax.fill_between(rows["images"], rows["GPU low"], rows["GPU high"], color=colour, alpha=0.25, lw=0)
            ax.plot(rows["images"], rows["GPU high"], color=colour, lw=1.4, label=f"{vit.name}, GPU-hours")
            if vit == _MARKED and units.seconds_per_gflop:
                label = f"{vit.name}, CPU core-hours"
                ax.plot(rows["images"], rows["CPU cores"], color=colour, lw=1.4, ls="--", label=label)
        for place, mark in enumerate(marks, start=1):
            y = max(_at(mark.images, _MARKED, units, site).gpu_hours)
            label = f"{place}  {SHORT[mark.key]}: {number(mark.images)}"
            ax.plot([mark.images], [y], "o", ms=5, color="black", label=label)
            up = _STAGGERED[place % len(_STAGGERED)]
            ax.annotate(
                str(place), (mark.images, y), (0, up), textcoords="offset points", ha="center", fontsize=8
            )
        for collection in (IMAGENET_1K, IMAGENET_21K):
            ax.axvline(collection.images, color="#777777", lw=0.8, ls=":")
            across, name = ax.get_xaxis_transform(), f" {collection.name}"
            ax.text(collection.images, 0.98, name, transform=across, fontsize=7, va="top", ha="left")
        ax.set(xscale="log", yscale="log", xlabel="images", ylabel="hours", title=TITLE)
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7.5)
    return Figure(fig, table, _words(units, site, marks), "scale_cost")


def _at(images: float, vit: Vit, units: UnitCosts, site: Site) -> Estimate:
    return scale.estimate(Collection("", round(images), IMAGENET_1K.classes), vit, site, units)


def _table(units: UnitCosts, site: Site) -> pd.DataFrame:
    rows = []
    for vit in VITS:
        for images in _IMAGES:
            found = _at(images, vit, units, site)
            low, high = sorted(found.gpu_hours)
            rows.append({"ViT": vit.name, "images": round(images), "GPU low": low, "GPU high": high,
                         "CPU cores": found.cpu_core_hours})  # fmt: skip
    return pd.DataFrame(rows)


def _words(units: UnitCosts, site: Site, marks: list[scale.Limit]) -> str:
    ends = [(vit, scale.estimate(BILLION, vit, site, units)) for vit in VITS]
    gpu = ", ".join(f"{vit.name} {hours(found.gpu_hours)}" for vit, found in ends)
    cores = ends[1][1].cpu_core_hours
    cpu = "" if cores is None else f" On CPUs {_MARKED.name} takes {number(cores)} core-hours there."
    stops = "; ".join(f"{SHORT[mark.key]} at {number(mark.images)}" for mark in marks)
    return (
        f"Lines over {number(_IMAGES[0])} to {number(_IMAGES[-1])} images, both axes logarithmic: hours grow "
        f"in proportion to images. GPU-hours at the right end: {gpu}.{cpu} Marks on the line of "
        f"{_MARKED.name} where a limit is reached: {stops}."
    )
