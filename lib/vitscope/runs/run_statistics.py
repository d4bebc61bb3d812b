"""From the records of runs to the tables of the page on how the pages were made.

The build leaves the records of the runs that it used in its staging tree; the Sphinx extension
`statistics_page` reads them there. Seconds and memory are those of the stored records, so a second build
with nothing changed says the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, ValidationError

from vitscope.runs import notebook as nb
from vitscope.runs.record import Record, Volatile

Runs = dict[str, Record]
"""The record of each page that is a notebook, in the order of the pages."""
FILE = "statistics.json"
_NOTHING = "–"
_MIB = 2**20


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid")

    runs: Runs


def save(folder: Path, runs: Mapping[str, Record]) -> None:
    """Write the records of a build, by page, into its staging tree."""
    text = _Kept(runs=dict(runs)).model_dump_json(indent=1)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def load(folder: Path) -> Runs | None:
    """What `save` wrote; None where no build of ours made this tree.

    Errors: `ValueError` for a file with anything else in it.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        return _Kept.model_validate_json(path.read_text(encoding="utf-8")).runs
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path} does not hold the records of a build: {where}: {first['msg']}") from None


def heading(notebook: Path, cell: str) -> str:
    """The heading under which a cell of a notebook stands, as plain text; empty where there is none."""
    last = ""
    for one in nb.read(notebook).cells:
        if one.get("id") == cell:
            return _plain(last)
        if one.cell_type == "markdown":
            found = re.findall(r"^#{1,6}\s+(.+?)\s*$", one.source, re.MULTILINE)
            last = found[-1] if found else last
    return ""


def _plain(text: str) -> str:
    """A heading without the marks of roles, code and formulas.

    >>> _plain("What {term}`CLS <cls>` and `p` do")
    'What CLS and p do'
    """
    text = re.sub(r"\{[a-z:]+\}`([^`<]*?)\s*(?:<[^`]*>)?`", r"\1", text)
    return re.sub(r"[`$*]", "", text)


def took(runs: Mapping[str, Record], headings: Mapping[str, str]) -> pd.DataFrame:
    """Seconds of each run and of its slowest cell; `headings` are those above that cell, by page."""
    return _frame(
        {
            "notebook": record.notebook,
            "date": record.volatile.started[:10] or None,
            "seconds": record.volatile.seconds,
            "slowest cell (s)": _slowest(record.volatile)[1],
            "under the heading": headings.get(page) or None,
        }
        for page, record in runs.items()
    )


def needed(runs: Mapping[str, Record]) -> pd.DataFrame:
    """Memory, threads and device of each run, and features that it computed or found in the cache.

    Features are counted in pictures, for each backbone that looked at them.
    """
    table = _frame(
        {
            "notebook": record.notebook,
            "peak memory (MiB)": _whole(record.volatile.peak_rss_mib),
            "peak GPU memory (MiB)": _whole(record.volatile.peak_gpu_mib),
            "threads": record.volatile.threads,
            "device": _either(model.device for model in record.models),
            "features computed (images)": record.volatile.features_computed,
            "features found (images)": record.volatile.features_found,
        }
        for record in runs.values()
    )
    on_gpu = any(record.volatile.peak_gpu_mib for record in runs.values())
    return table if on_gpu else table.drop(columns="peak GPU memory (MiB)")


def slowest_cell(record: Record) -> str | None:
    """Id of the cell that took longest; None where no cell was timed."""
    return _slowest(record.volatile)[0]


def shown(runs: Mapping[str, Record], sizes: Mapping[str, int]) -> pd.DataFrame:
    """What each page shows and how large it is; `sizes` are bytes, by page."""
    return _frame(
        {
            "notebook": record.notebook,
            "numbers": len(record.numbers),
            "figures": len(record.figures),
            "tables": len(record.tables),
            "page (KiB)": _whole(sizes[page] / 1024 if page in sizes else None),
        }
        for page, record in runs.items()
    )


def published(records: Iterable[Record]) -> pd.DataFrame:
    """When, where and at what cost the published records were made: by notebook, profile and seed."""
    ordered = sorted(records, key=lambda r: (r.notebook, r.profile, str(r.parameters.get("seed")).zfill(9)))
    return _frame(
        {
            "notebook": record.notebook,
            "profile": record.profile,
            "seed": record.parameters.get("seed"),
            "date": record.volatile.started[:10] or None,
            "machine": _machine(record.volatile),
            "threads": record.volatile.threads,
            "seconds": record.volatile.seconds,
            "peak memory (MiB)": _whole(record.volatile.peak_rss_mib),
            "commit": _commit(record.volatile),
        }
        for record in ordered
    )


def totals(runs: Mapping[str, Record], sizes: Mapping[str, int]) -> dict[str, str]:
    """One run or more taken together, and on what they ran; what differs among them is all named."""
    records = list(runs.values())
    volatile = [record.volatile for record in records]
    memory = max(records, key=lambda record: record.volatile.peak_rss_mib or 0.0)
    numbers, figures, tables = (
        sum(len(getattr(record, kind)) for record in records) for kind in ("numbers", "figures", "tables")
    )
    computed = sum(v.features_computed or 0 for v in volatile)
    found = sum(v.features_found or 0 for v in volatile)
    versions: dict[str, list[str]] = {}
    for record in records:
        for name, version in record.versions.items():
            versions.setdefault(name, []).append(version)
    return {
        "Profile": _either(record.profile for record in records),
        "Notebooks": str(len(records)),
        "Seconds of all runs": f"{sum(v.seconds for v in volatile):,.0f}, added up; runs may overlap",
        "Peak memory of one run": f"{memory.volatile.peak_rss_mib or 0:,.0f} MiB, {memory.notebook}",
        "Shown": f"{numbers:,} numbers, {figures:,} figures, {tables:,} tables",
        "Features": f"of {computed:,} images computed, of {found:,} found in the cache",
        "Pages": f"{sum(sizes.get(page, 0) for page in runs) / _MIB:,.1f} MiB with their pictures",
        "Machine": _either(map(_machine, volatile)),
        "Threads of a run": _either(str(v.threads) for v in volatile),
        "Commit": _either(_commit(v) or "none" for v in volatile),
        "Versions": ", ".join(f"{name} {_either(several)}" for name, several in versions.items()),
    }


def _slowest(volatile: Volatile) -> tuple[str | None, float | None]:
    cells = volatile.cell_seconds
    cell = max(cells, key=lambda id: cells[id]) if cells else None
    return cell, cells[cell] if cell is not None else None


def _machine(volatile: Volatile) -> str:
    return ", ".join(filter(None, (volatile.platform, volatile.processor, volatile.gpu))) or _NOTHING


def _commit(volatile: Volatile) -> str | None:
    if volatile.commit is None:
        return None
    return volatile.commit[:10] + (" with changes" if volatile.modified else "")


def _either(texts: Iterable[str]) -> str:
    return " or ".join(sorted({*texts})) or _NOTHING


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A table in which whole numbers stay whole where some are missing."""
    made = list(rows)
    table = pd.DataFrame(made)
    for name in table:
        if all(row[name] is None or isinstance(row[name], int) for row in made):
            table[name] = table[name].astype("Int64")
    return table
