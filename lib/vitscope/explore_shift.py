"""Accuracy under corruptions: a slider for the severity, selects for the set and the corruption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from vitscope import shifted
from vitscope.estimates import estimate
from vitscope.explore import ALL, Explorer, TooLarge
from vitscope.explore_levels import bars_at
from vitscope.shifted import METHODS, UnderShift


def corruption_table(found: Mapping[str, Sequence[UnderShift]]) -> pd.DataFrame:
    """Accuracy of every method by set, corruption and severity (0 is clean), with its interval and count.

    The same pictures are seen at every severity, each with one corruption; "all" is all of them. Left out are
    sets without severities, corruptions with fewer than two independent pictures, and the interval where a
    method is right on all pictures or on none.
    """
    rows = []
    for name, tested in found.items():
        levels = tested[0].chosen.severities
        part = tested[0].shifted[0].task.test
        kinds = part.extras.get("corruption", np.full(len(part), ALL))
        for kind in (ALL, *sorted(set(kinds.tolist()) - {ALL})) if levels else ():
            chosen = np.ones(len(kinds), dtype=bool) if kind == ALL else kinds == kind
            clusters = tested[0].clusters[chosen]
            if len(np.unique(clusters)) < 2:
                continue
            for level in (0, *levels):
                right = {m: [t.right_at(m, level)[chosen] for t in tested] for m in METHODS}
                value, drawn = shifted.means(right, clusters)
                for method in METHODS:
                    at = estimate(100 * value[method], 100 * drawn[method], "", shifted.LEVEL)
                    # of all or none of a few pictures every resample is the same, which is no certainty
                    ends = (at.low, at.high) if 0 < value[method] < 1 else (None, None)
                    rows.append((name, kind, level, method, at.value, *ends, int(chosen.sum())))
    columns = ["set", "corruption", "severity", "method", "accuracy", "low", "high", "count"]
    return pd.DataFrame(rows, columns=columns)


def severities(found: Mapping[str, Sequence[UnderShift]]) -> Explorer | None:
    """Bars of `corruption_table`, a bar for each method; None where no set has severities.

    Where single corruptions of all sets are too much for a page, there are all of them together only.
    """
    table = corruption_table(found)
    if table.empty:
        return None
    try:
        return _bars(table)
    except TooLarge:
        return _bars(table[table["corruption"] == ALL])


def _bars(table: pd.DataFrame) -> Explorer | None:
    words = {
        kind: f"{kind.replace('_', ' ')} ({int(part['count'].min())} pictures)" if kind != ALL else kind
        for kind, part in table.groupby("corruption", sort=False)
    }
    return bars_at(
        table.assign(corruption=table["corruption"].map(words)),
        value="accuracy",
        bar="method",
        slider="severity",
        selects={"set": "set", "corruption": "corruption"},
        order=list(METHODS),
        band=("low", "high"),
        unit="accuracy (%)",
        title="heads under every corruption and severity",
        label="severity, 0 is clean",
    )
