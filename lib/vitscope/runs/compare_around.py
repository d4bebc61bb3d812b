"""What differs around the numbers of two runs: parameters, environment, remarks."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from vitscope.runs.record import Record

FREE = ("seed", "device")
"""Parameters in which runs that answer one question may differ."""

_ABSENT = "–"
_DIGEST = 12
_INPUTS = {
    "library": "library sources",
    "notebook": "notebook cells",
    "data": "embedded data and weights",
    "files": "local files",
    "environment": "lock file, Python and torch",
}


def seed_of(record: Record) -> Any:
    """The parameter that tells repetitions apart; None where there is none."""
    return record.parameters.get("seed")


def parameters(record: Record, references: Sequence[Record]) -> pd.DataFrame:
    """The parameters whose value no reference has: name, book, mine, as text."""

    def texts(one: Record) -> dict[str, str]:
        return {name: _text(value) for name, value in one.parameters.items()}

    return _differences(texts(record), [texts(one) for one in references])


def environment(record: Record, references: Sequence[Record]) -> pd.DataFrame:
    """Versions, machine, digests and commit that no reference has: name, book, mine, as text.

    Another seed draws other pictures, so digests of pictures are compared with the reference of the same
    seed; where there is none, only their counts are.
    """
    same = [one for one in references if seed_of(one) == seed_of(record)]
    parts = [
        _differences(_machine(record), [_machine(one) for one in references]),
        _differences(
            _pictures(record, bool(same)), [_pictures(one, bool(same)) for one in same or references]
        ),
        _differences(_code(record), [_code(one) for one in references]),
    ]
    return pd.concat(parts, ignore_index=True)


def remarks(record: Record, references: Sequence[Record], against: str) -> pd.DataFrame:
    """Remarks that only one of the two has: where, records (how many have it), about, text."""
    mine = list(dict.fromkeys((r.about, r.text) for r in record.remarks))
    theirs: dict[tuple[str, str], int] = defaultdict(int)
    for one in references:
        for remark in dict.fromkeys((r.about, r.text) for r in one.remarks):
            theirs[remark] += 1
    rows = [("only here", 1, *remark) for remark in mine if remark not in theirs]
    rows += [(f"only in the {against}", n, *remark) for remark, n in theirs.items() if remark not in mine]
    return pd.DataFrame(rows, columns=("where", "records", "about", "text"))


def _differences(mine: Mapping[str, str], theirs: Sequence[Mapping[str, str]]) -> pd.DataFrame:
    """What is in `mine` and in none of `theirs`, by name; a name that one of them lacks counts as absent."""
    rows = []
    for name in dict.fromkeys(name for one in (*theirs, mine) for name in one):
        found = dict.fromkeys(one.get(name, _ABSENT) for one in theirs)
        own = mine.get(name, _ABSENT)
        if own not in found:
            rows.append((name, " or ".join(found), own))
    return pd.DataFrame(rows, columns=("name", "book", "mine"))


def _machine(record: Record) -> dict[str, str]:
    """Versions, where the models ran, and which weights they had."""
    weights: dict[str, set[str]] = defaultdict(set)
    for model in record.models:
        weights[model.name].add(model.digest[:_DIGEST])
    return {
        **record.versions,
        "device": ", ".join(sorted({model.device for model in record.models})) or "none",
        "number type": ", ".join(sorted({model.dtype for model in record.models})) or "none",
        "threads": str(record.volatile.threads),
        "platform": record.volatile.platform,
        "GPU": record.volatile.gpu or "none",
        **{f"weights of {name}": ", ".join(sorted(digests)) for name, digests in weights.items()},
    }


def _pictures(record: Record, digests: bool) -> dict[str, str]:
    """Each set of pictures by name and split, with its digest where asked for."""
    found: dict[str, set[str]] = defaultdict(set)
    for data in record.data:
        facts = [f"{data.count} of {data.classes} classes"]
        facts += [f"{len(data.skipped)} skipped"] if data.skipped else []
        facts += [data.digest[:_DIGEST]] if digests else []
        found[f"pictures of {data.name} ({data.split})"].add(", ".join(facts))
    return {name: "; ".join(sorted(facts)) for name, facts in found.items()}


def _code(record: Record) -> dict[str, str]:
    """Commit, and the digests of what the run was made from."""
    commit = (record.volatile.commit or "none")[:_DIGEST]
    inputs = record.inputs
    digests = {} if inputs is None else {t: getattr(inputs, n)[:_DIGEST] for n, t in _INPUTS.items()}
    return {"commit": commit + (" with changes" if record.volatile.modified else ""), **digests}


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
