"""Ledgers with planted claims, and the records that give each clause its planted outcome."""

from __future__ import annotations

from typing import Any

from vitscope.runs.claims import Ledger
from vitscope.runs.record import Number, Record

CHAPTER = "02_information_scrambling"
VALUES: dict[str, float | None] = {"holds": 0.5, "fails": 9.0, "undecided": None}


def planted(id: str, *outcomes: str, grade: str = "P", text: str = "It is so.") -> dict[str, Any]:
    """A claim whose clauses have these outcomes in `RECORDS`; without outcomes none of them answers it."""
    chapter = CHAPTER if outcomes else "03_recoverability"
    clauses = [
        {"says": f"{text} {i}", "value": outcome, "rule": {"range": [0, 1]}}
        for i, outcome in enumerate(outcomes or ["holds"])
    ]
    return {
        "id": id, "paper": id[0], "statement": text, "grade": grade, "conditions": text,
        "published": {"text": f"3 of 3 {text}", "unit": None, "value": None},
        "section": f"{chapter}#the-index", "note": f"A note. {text}",
        "settings": {
            name: {"models": {}, "notebook": chapter, "profile": profile, "clauses": clauses}
            for name, profile in (("twin", "course"), ("paper", "paper"))
        },
    }  # fmt: skip


def ledger(*made: dict[str, Any]) -> Ledger:
    return Ledger.model_validate({"format": 1, "claims": list(made)})


def record(seed: int, numbers: dict[str, Number]) -> Record:
    parameters = {"profile": "course", "seed": seed}
    made = Record(complete=True, notebook=CHAPTER, profile="course", parameters=parameters)
    return made.model_copy(update={"numbers": numbers})


RECORDS = [
    record(
        seed,
        {k: Number(value=v, text="none" if v is None else str(v)) for k, v in VALUES.items()},
    )
    for seed in range(3)
]
