"""What a sweep found: one Parquet file a task, written whole or not at all, read as one table.

A file is named by its task's combination, so that running again after a change replaces it. Its schema
carries the version of this format; whatever else lies in the folder is refused by name.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitscope.errors import unknown

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

VERSION = "1"
_MARK = b"vitscope.sweep"
NUMBER = ("name", "value", "low", "high", "spread", "n", "unit", "text")
"""Columns of a number in long form."""


class SweepError(RuntimeError):
    """A sweep, its grid or its results are not as they must be; the message says what to do."""


def number_row(
    name: str,
    value: float | None,
    *,
    text: str = "",
    n: int | None = None,
    unit: str | None = None,
    interval: tuple[float, float] | None = None,
    spread: float | None = None,
) -> dict[str, Any]:
    """A number in long form: every column of `NUMBER`."""
    low, high = interval or (None, None)
    return dict(zip(NUMBER, (name, value, low, high, spread, n, unit, text), strict=True))


def file_of(folder: Path, identity: str) -> Path:
    """Where the task of this id has its rows."""
    return folder / f"{identity}.parquet"


def write(folder: Path, task: dict[str, Any], numbers: Sequence[dict[str, Any]]) -> Path:
    """Write a task's rows: what `task` says of it (see `_schema`) repeated for every number.

    A task without numbers, as one that failed, has one row with empty ones.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: json.dumps(v, sort_keys=True) if isinstance(v, dict) else v for name, v in task.items()}
    rows = [plain | {name: number.get(name) for name in NUMBER} for number in numbers or [{}]]
    target = file_of(folder, task["task"])
    aside = folder / f".{target.stem}-{uuid.uuid4().hex}.partial"
    try:
        pq.write_table(pa.Table.from_pylist(rows, schema=_schema()), aside)
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)
    return target


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of one file, JSON read. Raises `SweepError` for a file that is none of a sweep."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found = pq.read_table(path, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise SweepError(
            f"{path} cannot be read ({reason}); remove it, or run the sweep again, which replaces it"
        ) from None
    version = (found.schema.metadata or {}).get(_MARK, b"").decode()
    if version != VERSION:
        what = f"has format {version}" if version else "is no result of a sweep"
        raise SweepError(f"{path} {what}, expected format {VERSION}; move it out of {path.parent}")
    if found.schema.names != _schema().names or not found.num_rows:
        raise SweepError(f"{path} lacks columns or rows of a result; remove it and run the sweep again")
    return [
        row | {name: json.loads(row[name]) for name in ("parameters", "given", "versions")}
        for row in found.to_pylist()
    ]


def read(folder: Path | str) -> pd.DataFrame:
    """Everything that a sweep found, a row for each number of each task.

    Columns: what the grid gave the task, one column each (empty where a task was not given it); then task,
    sweep (a notebook, or "fit"), profile, key, state (done, failed or lost), message; name, value, low, high,
    spread, n, unit and text of the number; seconds, worker, commit, versions and parameters (complete).
    A task without numbers has one row.

    Raises `SweepError`, with the name, for a folder without results and for a file in it that is damaged,
    of another version or no result of a sweep. Hidden files do not count.
    """
    import pandas as pd

    folder = Path(folder)
    files = sorted(p for p in folder.glob("*") if not p.name.startswith(".")) if folder.is_dir() else []
    if not files:
        raise SweepError(f"no results in {folder}; expected the folder that a grid names as its `results`")
    rows = []
    for path in files:
        if path.suffix != ".parquet" or not path.is_file():
            raise SweepError(f"{path} is no result of a sweep; move it out of {folder}")
        rows += rows_of(path)
    given: dict[str, None] = {}
    for row in rows:
        given |= dict.fromkeys(row["given"])
    if taken := sorted(set(given) & set(_schema().names)):
        raise SweepError(f"{folder}: parameters named as columns of the results: {', '.join(taken)}")
    columns = [*given, *(name for name in _schema().names if name != "given")]
    return pd.DataFrame([row | row["given"] for row in rows], columns=columns)


def table(
    found: pd.DataFrame,
    number: str,
    *,
    rows: str | None = None,
    columns: str | None = None,
    digits: int = 1,
) -> pd.DataFrame:
    """One number over two parameters: "mean (min to max)" over everything else, seeds among it.

    `number` may name a parameter in braces, as in "accuracy_mean_{backbone}", which each task fills with its
    own. `rows` and `columns` name parameters that the grid gave; left out, they are backbone and dataset
    where there are such, else the first two of several values. Cells are text; an empty one had no task.

    Raises `UnknownName` for a number or parameter that no task has.
    """
    given = _given(found)
    chosen = rows or _first(found, given, ("backbone", "backbones"), ())
    across = columns or _first(found, given, ("dataset", "datasets"), (chosen,))
    for name in (chosen, across):
        if name is not None and name not in given:
            raise unknown("parameter of the sweep", name, given)
    done = found[found["name"].notna()]
    wanted = [number.format(**dict(zip(given, line, strict=True)))
              for line in done[given].itertuples(index=False)] if "{" in number else number  # fmt: skip
    here = done[done["name"] == wanted]
    if not len(here):
        raise unknown("number", number, sorted(done["name"].unique()))
    keys = [here[name].map(str) for name in (chosen, across) if name is not None]
    return _cells(here["value"], keys, number, digits)


def _cells(values: pd.Series, keys: list[pd.Series], number: str, digits: int) -> pd.DataFrame:
    import pandas as pd

    def shown(group: pd.Series) -> str:
        known = group.dropna()
        if not len(known):
            return "none"
        mean, low, high = (f"{v:.{digits}f}" for v in (known.mean(), known.min(), known.max()))
        return f"{mean} ({low} to {high})" if len(known) > 1 else mean

    if not keys:
        return pd.DataFrame({number: [shown(values)]})
    text = values.groupby(keys).agg(shown)  # sorted by name: files come in no order
    return text.unstack(fill_value="") if len(keys) > 1 else text.to_frame(number)


def _given(found: pd.DataFrame) -> list[str]:
    """The columns that the grid gave: those before the results' own."""
    return list(found.columns[: list(found.columns).index("task")])


def _first(
    found: pd.DataFrame, given: Sequence[str], likely: Sequence[str], taken: Sequence[str | None]
) -> str | None:
    """A likely parameter, else the first not taken that has several values and is no seed."""
    several = [n for n in given if found[n].map(str).nunique() > 1 and n not in ("seed", *taken)]
    return next((n for n in likely if n in given and n not in taken), next(iter(several), None))


def _schema() -> pa.Schema:
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    types = {
        "task": text, "sweep": text, "profile": text, "given": text, "key": text, "state": text,
        "message": text, "name": text, "value": number, "low": number, "high": number, "spread": number,
        "n": pa.int64(), "unit": text, "text": text, "seconds": number, "worker": text, "commit": text,
        "versions": text, "parameters": text,
    }  # fmt: skip
    return pa.schema(list(types.items()), metadata={_MARK: VERSION.encode()})
