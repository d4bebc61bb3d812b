"""What `vitscope list` prints: notebooks, the parameters of one, backbones, datasets, finished runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitscope.errors import unknown

TOPICS = ("notebooks", "backbones", "data", "runs")


@dataclass(frozen=True)
class Listing:
    """A titled table, and what is said below it."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    footer: str = ""


def listing(what: str) -> Listing:
    """One topic, or the parameters of the notebook of that name."""
    from vitscope.runs.schema import SCHEMAS

    if what in SCHEMAS:
        return parameters(what)
    topics = {
        "notebooks": notebooks,
        "backbones": backbones,
        "data": datasets,
        "datasets": datasets,
        "runs": runs,
    }
    if what not in topics:
        raise unknown("topic or notebook", what, [*TOPICS, *SCHEMAS])
    return topics[what]()


def notebooks() -> Listing:
    from vitscope.runs.schema import SCHEMAS

    rows = [(name, (cls.__doc__ or "").partition(": ")[2].splitlines()[0]) for name, cls in SCHEMAS.items()]
    return Listing(
        "Notebooks (vitscope list NAME shows the parameters of one):", ("name", "what it shows"), rows
    )


def parameters(notebook: str) -> Listing:
    """Every parameter with its type and course value, and below it what the other profiles change."""
    from vitscope.runs.parameters import PROFILES, expected
    from vitscope.runs.schema import resolve, schema_of

    cls = schema_of(notebook)
    course = resolve(notebook).model_dump()
    rows = [
        (name, _short(course[name]), expected(field))
        for name, field in cls.model_fields.items()
        if name != "profile"
    ]
    changes = []
    for profile in PROFILES:
        values = resolve(notebook, profile).model_dump()
        lines = [f"    {k}={_short(v)}" for k, v in values.items() if v != course[k] and k != "profile"]
        if profile != "course":
            changes.append("\n".join([f"  --profile {profile}", *(lines or ["    as course"])]))
    footer = "What the other profiles change:\n" + "\n".join(changes)
    return Listing(
        f"Parameters of {notebook}, with the values of the course profile:",
        ("name", "value", "takes"),
        rows,
        footer,
    )


def backbones() -> Listing:
    from vitscope import backbones as registry

    zoo = registry.zoo_names()
    rows = [(name, "embedded zoo") for name in zoo]
    more = len(registry.available()) - len(zoo)
    title = f"Backbones. Besides the zoo: {more} ViTs of timm by name, and local weight files by path."
    return Listing(title, ("name", "from"), rows)


def datasets() -> Listing:
    from vitscope import data
    from vitscope.data import shifts, tasks

    described = tasks.DESCRIPTIONS | shifts.DESCRIPTIONS
    here = set(data.available(embedded_only=True))
    rows = [
        (
            name,
            "embedded" if name in here else "hub",
            described.get(name, described.get(name.partition("@")[0], "")),
        )
        for name in data.available()
    ]
    title = (
        "Datasets. Besides these: a hub id owner/name, a folder of class folders, or a Parquet file by path."
    )
    return Listing(title, ("name", "from", "task"), rows)


def runs() -> Listing:
    from vitscope.runs.layout import Project
    from vitscope.runs.record import FILE_NAME, Record, completed

    rows = []
    for path in sorted((Project.find().state / "runs").glob(f"*/*/{FILE_NAME}")):
        record = completed(path.parent, path.parent.name, path.parent.parent.name)
        if isinstance(record, Record):
            changed = ", ".join(f"{k}={_short(v)}" for k, v in record.changed.items())
            when, seconds = record.volatile.started[:16].replace("T", " "), f"{record.volatile.seconds:.0f}"
            rows.append((record.notebook, record.profile, changed, when, seconds, record.key))
    return Listing(
        "Finished runs:", ("notebook", "profile", "changed", "started (UTC)", "seconds", "key"), rows
    )


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)
