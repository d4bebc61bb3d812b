"""`record.json`: what a run was, what it reported, and the proof that it was completed.

Everything outside `volatile` is a function of the run's inputs: two runs with equal inputs on one machine
have equal records there, number for number and bit for bit.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from vitscope.runs.hashing import Inputs, sha256_file

FILE_NAME = "record.json"
NAME_PATTERN = r"^[a-z0-9][a-z0-9_.\-]*$"
_ALWAYS = ("format", "complete", "notebook", "profile", "parameters", "numbers")


class RecordError(ValueError):
    """A file is no record of this version; the message names it, what was wrong and what to do."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Number(_Part):
    """A reported number. `value` is None where a method says "not detected"; then `text` says why."""

    value: int | float | None
    spread: float | tuple[float, float] | None = Field(
        None, description="standard deviation, or an interval (low, high)"
    )
    n: int | None = Field(None, description="images, seeds or whatever the spread is over")
    unit: str | None = None
    text: str = Field(description="as prose shows it")

    @field_validator("value", "spread")
    @classmethod
    def _finite(cls, value: Any) -> Any:
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, float) and not math.isfinite(part):
                raise ValueError(f"{part} is not a finite number")
        return value


class Shown(_Part):
    """A figure or table: its data as CSV beside the record, and what stands for it in words."""

    name: str = Field(pattern=NAME_PATTERN)
    text: str = Field(description="alt text of a figure, caption of a table")
    rows: int
    csv_sha256: str


class Explored(_Part):
    """A chart with sliders below the figure `name`, as the page must show it."""

    name: str = Field(pattern=NAME_PATTERN)
    words: str = Field(description="what can be done, and what is seen at the start")
    spec_sha256: str


class Model(_Part):
    name: str
    digest: str
    source: dict[str, Any]
    device: str
    dtype: str


class Data(_Part):
    name: str
    split: str
    count: int
    classes: int
    digest: str
    source: dict[str, Any]
    skipped: list[tuple[str, str]] = []


class Remark(_Part):
    """Something a reader must know: a figure that does not apply, a solver that did not converge."""

    about: str
    text: str


class Volatile(_Part):
    """What differs from run to run and from machine to machine."""

    started: str = ""
    seconds: float = 0.0
    cell_seconds: dict[str, float] = {}
    peak_rss_mib: float | None = None
    peak_gpu_mib: float | None = None
    features_computed: int | None = Field(
        None, description="pictures, where features may be kept between runs"
    )
    features_found: int | None = Field(None, description="pictures whose features an earlier call had kept")
    threads: int = 0
    platform: str = ""
    processor: str | None = None
    gpu: str | None = None
    commit: str | None = None
    modified: bool | None = Field(
        None, description="the checkout differed from its commit in lib, notebooks or data"
    )
    notebook_sha256: str | None = Field(None, description="of the executed notebook beside this record")


class Record(_Part):
    """One run of one notebook. It counts as a result only with `complete` set, which the runner does last."""

    format: int = 1
    complete: bool = False
    notebook: str
    profile: str
    key: str | None = Field(None, description="digest over `inputs`; None for an interactive run")
    inputs: Inputs | None = None
    parameters: dict[str, Any]
    changed: dict[str, Any] = Field({}, description="parameters that differ from the profile")
    models: list[Model] = []
    data: list[Data] = []
    numbers: dict[str, Number] = {}
    figures: list[Shown] = []
    explorers: list[Explored] = []
    tables: list[Shown] = []
    remarks: list[Remark] = []
    versions: dict[str, str] = {}
    volatile: Volatile = Volatile()

    @property
    def run_id(self) -> str:
        return self.key or "interactive"

    def save(self, folder: Path) -> Path:
        """Write `record.json` whole or not at all."""
        path = folder / FILE_NAME
        text = json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        temporary = path.with_suffix(".partial")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
        return path

    @classmethod
    def load(cls, folder: Path) -> Record:
        return cls.model_validate_json((folder / FILE_NAME).read_text(encoding="utf-8"))

    def stable(self) -> dict[str, Any]:
        """The part that equal inputs reproduce."""
        return self.model_dump(mode="json", exclude={"volatile"})


def read(path: Path) -> Record:
    """The record in a file, from wherever it came.

    Errors: `RecordError` for a file that cannot be read, is no JSON or no record, has another format, or has
    keys missing, unknown or with values that cannot be.
    """
    again = "run it again with this version of vitscope"
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror}); expected a {FILE_NAME}") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not JSON ({error}); expected the {FILE_NAME} of a run") from None
    if not isinstance(content, dict) or "notebook" not in content:
        raise RecordError(f"{path} is JSON, but no record; expected the {FILE_NAME} of a run")
    wanted = Record.model_fields["format"].default
    if content.get("format", wanted) != wanted:
        raise RecordError(f"{path} has format {content['format']}, expected {wanted}; {again}")
    problems = {"lacks": [name for name in _ALWAYS if name not in content]}
    try:
        record = Record.model_validate_json(text)
    except ValidationError as error:
        for one in error.errors():
            name = ".".join(map(str, one["loc"]))
            kind = {"missing": "lacks", "extra_forbidden": "has the unknown"}.get(one["type"], "has")
            problems.setdefault(kind, []).append(name if kind != "has" else f"{name}: {one['msg']}")
    said = [f"it {kind} {', '.join(dict.fromkeys(names))}" for kind, names in problems.items() if names]
    if said:
        raise RecordError(f"{path} is no record of this version: {'; '.join(said)}; {again}")
    return record


def completed(folder: Path, key: str, notebook: str) -> Record | None:
    """The record of a finished run of exactly this key, its notebook intact beside it, or None."""
    try:
        record = Record.load(folder)
    except (OSError, ValueError):
        return None
    executed = folder / f"{notebook}.ipynb"
    intact = executed.is_file() and sha256_file(executed) == record.volatile.notebook_sha256
    return record if record.complete and record.key == key and intact else None


def check_name(name: str) -> str:
    """A name fit for a file, a glue key and an HTML id."""
    if not re.match(NAME_PATTERN, name):
        raise ValueError(
            f"name {name!r}: expected lower-case letters, digits, '_', '-' and '.', as in 'probe_twin_s'"
        )
    return name
