"""The training log `train.jsonl`: one line an entry, readable after any interruption."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NAME = "train.jsonl"


def append(folder: Path, entry: dict[str, Any]) -> None:
    """Add an entry. A line that was cut short, by a full disk for one, is closed first."""
    with open(folder / _NAME, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(entry).encode() + b"\n")


def read_log(folder: Path) -> Iterator[dict]:
    """The entries of `train.jsonl`; a resumed run may repeat steps, the last entry of a step counts.

    Lines that were cut short are passed over.
    """
    entries = {}
    for line in (folder / _NAME).read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        entries[entry["step"]] = entry
    yield from (entries[step] for step in sorted(entries))
