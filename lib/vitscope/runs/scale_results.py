"""Results of benchmarks as the page on scale reads them: costs as work grows, and what a GPU did.

Both are files below `benchmarks/results`, written by scripts in `benchmarks/`. One that is not there is no
error: the page says so. One that holds anything else stops the build with its name.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from vitscope.scale import MEASURED, VITS, UnitCosts

FOLDER = "benchmarks/results"
COSTS, GPU = "costs.json", "gpu_check.json"
_SIZE = "224"


class ResultError(ValueError):
    """A file of results holds something else; the message names it and says what."""


class Spread(BaseModel):
    """Median, smallest and largest over the rounds."""

    model_config = ConfigDict(allow_inf_nan=False)

    median: float
    min: float
    max: float


class Row(BaseModel):
    """One line of a result, as `benchmarks/common.py` has it; without a ratio where nothing was measured."""

    what: str
    against: str
    setting: str = ""
    ratio: Spread | None
    values: dict[str, float | str | None] = {}

    @property
    def unit(self) -> str:
        return str(self.values.get("unit", ""))


class Document(BaseModel):
    """A file of results: rows, and where and how they were measured."""

    command: str
    date: str
    machine: dict[str, str | int | float | None]
    rows: list[Row]


@dataclass(frozen=True)
class Results:
    """What there is of both files."""

    costs: Document | None
    gpu: Document | None

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


def _read(path: Path) -> Document | None:
    if not path.is_file():
        return None
    try:
        return Document.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError) as error:
        said = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            said = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
        raise ResultError(f"{FOLDER}/{path.name} does not hold results of a benchmark: {said}") from None


def gpu_rates(document: Document | None) -> Mapping[str, float]:
    """Images a second of our capture at 224 pixels on the GPU, by the name of the ViT: of the fastest type.

    Rows count whose `what` begins with "capture", which name the ViT and 224 somewhere in their texts and
    have `images_per_s` among their values. Statistics of attention are left out.
    """
    rates: dict[str, float] = {}
    for row in document.rows if document else []:
        text = " ".join([row.what, row.against, row.setting, *(str(v) for v in row.values.values())])
        rate = row.values.get("images_per_s")
        if not row.what.startswith("capture") or "attention" in text or not isinstance(rate, float):
            continue
        for vit in VITS:
            names = vit.name, vit.name.partition("/")[0] + " ", _timm_name(vit.name)
            if _SIZE in text and any(name in f"{text} " for name in names):
                rates[vit.name] = max(rate, rates.get(vit.name, 0.0))
    return rates


def _timm_name(name: str) -> str:
    size = {"S": "small", "B": "base", "L": "large"}[name.removeprefix("ViT-")[0]]
    return f"vit_{size}_patch16_224"
