"""Errors that users meet by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST_LISTED = 12


class UnknownName(ValueError):
    """A name that is in no registry; the message lists near matches and what exists."""


def unknown(kind: str, name: object, choices: Iterable[str]) -> UnknownName:
    """Build the error for a name that is not among `choices`; the caller raises it.

    `kind` says what was named ("backbone", "dataset", "parameter"). Near matches ignore case.

    >>> str(unknown("backbone", "twin_z", ["twin_s", "twin_b"]))
    "Unknown backbone 'twin_z'. Did you mean 'twin_s' or 'twin_b'? Available: twin_s, twin_b."
    >>> str(unknown("dataset", "cifar", []))
    "Unknown dataset 'cifar'. None is available."
    """
    available = list(choices)
    by_lower = {choice.lower(): choice for choice in available}
    near = [by_lower[m] for m in difflib.get_close_matches(str(name).lower(), by_lower, n=3, cutoff=0.6)]
    parts = [f"Unknown {kind} {name!r}."]
    if near:
        parts.append(f"Did you mean {_either(near)}?")
    parts.append(f"Available: {_listing(available)}." if available else "None is available.")
    return UnknownName(" ".join(parts))


def _either(names: list[str]) -> str:
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]


def _listing(names: list[str]) -> str:
    shown = ", ".join(names[:_MOST_LISTED])
    more = len(names) - _MOST_LISTED
    return f"{shown} and {more} more" if more > 0 else shown
