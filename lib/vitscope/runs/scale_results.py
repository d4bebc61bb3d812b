"""Results of benchmarks as the page on scale reads them: costs as work grows, and what a GPU did.

Both are files below `benchmarks/results`, written by scripts in `benchmarks/`. One that is not there is no
error: the page says so. One that holds anything else stops the build with its name.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vitscope.runs import speed_results
from vitscope.runs.speed_results import Results as Measured
from vitscope.runs.speed_results import SpeedError
from vitscope.scale import MEASURED, VITS, UnitCosts

FOLDER = "benchmarks/results"
COSTS, GPU = "costs.json", "gpu_check.json"
_SIZE = re.compile(r"(?<![_\d])224(?!\d)")  # not that of a name such as vit_small_patch16_224


class ResultError(ValueError):
    """A file of results holds something else; the message names it and says what."""


@dataclass(frozen=True)
class Results:
    """What there is of both files."""

    costs: Measured | None
    gpu: Measured | None

    @property
    def units(self) -> UnitCosts:
        """Unit costs; one that was measured on several models is the mean of their medians.

        Raises ResultError for costs that lack one.
        """
        rates = gpu_rates(self.gpu)
        if self.costs is None:
            return UnitCosts(gpu_images_per_s=rates)
        found: dict[str, float] = {}
        for name, what in MEASURED.items():
            values = [row.ratio.median for row in self.costs.rows if row.what == what and row.ratio]
            if not values:
                raise ResultError(
                    f"{FOLDER}/{COSTS} has no row {what!r}: run python benchmarks/costs.py again"
                )
            found[name] = statistics.fmean(values)
        return UnitCosts(**found, gpu_images_per_s=rates)


def load(root: Path) -> Results:
    """The results of a book's folder. Raises ResultError for a file that cannot be read as one."""
    return Results(_read(root / FOLDER / COSTS), _read(root / FOLDER / GPU))


def _read(path: Path) -> Measured | None:
    if not path.is_file():
        return None
    try:
        return speed_results.load(path)
    except SpeedError as error:
        raise ResultError(str(error)) from None


def gpu_rates(document: Measured | None) -> Mapping[str, float]:
    """Images a second of our capture at 224 pixels on the GPU, by the name of the ViT: of the fastest type.

    Rows count whose `what` begins with "capture", which name the ViT and 224 somewhere in their texts and
    have `images_per_s` among their values. Statistics of attention are left out.
    """
    rates: dict[str, float] = {}
    for row in document.rows if document else []:
        text = " ".join([row.what, row.against, row.setting, *(str(v) for v in row.values.values())])
        rate = row.values.get("images_per_s")
        if not row.what.startswith("capture") or "attention" in text or not isinstance(rate, int | float):
            continue
        for vit in VITS:
            names = vit.name, vit.name.partition("/")[0] + " ", _timm_name(vit.name)
            if _SIZE.search(text) and any(name in f"{text} " for name in names):
                rates[vit.name] = max(rate, rates.get(vit.name, 0.0))
    return rates


def _timm_name(name: str) -> str:
    size = {"S": "small", "B": "base", "L": "large"}[name.removeprefix("ViT-")[0]]
    return f"vit_{size}_patch16_224"
