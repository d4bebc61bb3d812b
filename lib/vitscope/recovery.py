"""Recoverability of a frozen backbone on a task: both kinds of probes, and the same by luck.

Paper B's rate is that of MLP probes. Of the controls in `chance`, permuted answers are compared with the MLP
probes, and reseeded probes, which are linear, with the linear ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from vitscope import chance, recoverability
from vitscope.backbones import Backbone
from vitscope.chance import Chance
from vitscope.estimates import Estimate
from vitscope.frozen import Task
from vitscope.mlp_probes import fit_mlp_probes
from vitscope.probes import GRID, ProbeSet, fit_probes
from vitscope.recoverability import Recoverability

L2 = GRID[:-1]
"""Strengths that the linear probes choose from: the weakest of the grid takes longest and changes little."""
REAL = "earlier states, the last ones first"
RESEEDED = "more probes of the last state"
PERMUTED = "earlier states, answers permuted"


@dataclass(frozen=True)
class Recovery:
    """What was found of one backbone on one dataset, over the same test images.

    `mlp` and `linear` are those of the two kinds of probes on the states 1 … L. `permuted` (within the answer
    of the last state) and `permuted_true` (within the class) are the luck of the MLP probes, `reseeded` that
    of the linear ones. `majority`: accuracy of always naming the most frequent training class, in percent.
    `classes` are those learned, `dropped` test images of other classes are left out. `warnings` by subject.
    `counts` is the table of `by_count`, or None where it was not asked for.
    """

    mlp: Recoverability
    linear: Recoverability
    permuted: Chance
    permuted_true: Chance
    reseeded: Chance
    majority: float
    classes: int
    dropped: int
    warnings: dict[str, tuple[str, ...]]
    counts: pd.DataFrame | None = None

    @property
    def best(self) -> int | None:
        """The state (from 1) whose MLP probe corrects most errors of the last one; None without errors."""
        rates = self.mlp.per_layer.mean
        return None if np.isnan(rates).any() else 1 + int(rates.argmax())


def check(models: Sequence[Backbone]) -> None:
    """Raise ValueError for what cannot be measured, before work starts: one block only, names that repeat."""
    for model in models:
        if model.depth < 2:
            raise ValueError(
                f"{model.name} has {model.depth} block: recovery is of the last block's errors by earlier "
                "blocks, so a backbone of two or more is needed"
            )
    names = [model.name for model in models]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"two backbones are named {', '.join(twice)}, and results are kept by name: rename a file"
        )


def measure(
    task: Task,
    *,
    hidden: int,
    epochs: int,
    seed: int,
    draws: int = 1000,
    counts: bool = False,
) -> Recovery:
    """Fit both kinds of probes to every state of the task and measure what earlier ones get right.

    `hidden` and `epochs` are those of the MLP probes. Images that belong together are held out and resampled
    together. With `counts` the linear probes are measured by their number as well. Errors: as
    `fit_mlp_probes`, `fit_probes` and `recoverability.analyse`.
    """
    train, test = task.train, task.test
    names = [str(k + 1) for k in range(len(train.features))]
    given: dict[str, Any] = {"groups": task.groups, "seed": seed, "names": names}
    mlp = fit_mlp_probes(train.features, train.labels, hidden=hidden, epochs=epochs, **given)
    linear = fit_probes(train.features, train.labels, l2=L2, **given)
    logits, linear_logits = mlp.logits(test.features), linear.logits(test.features)
    named: dict[str, Any] = {"classes": task.classes, "clusters": test.groups, "draws": draws, "seed": seed}
    reseeded = _reseeded(task, linear_logits, seed, draws)
    return Recovery(
        mlp=recoverability.analyse(logits, test.labels, features=test.features, **named),
        linear=recoverability.analyse(linear_logits, test.labels, **named),
        permuted=chance.permuted(logits, test.labels, within="predicted", **named),
        permuted_true=chance.permuted(logits, test.labels, within="true", **named),
        reseeded=reseeded,
        majority=100 * float(np.mean(test.labels == linear.majority)),
        classes=len(task.classes),
        dropped=test.dropped,
        warnings=_warnings(linear, mlp.warnings, reseeded),
        counts=by_count(task, linear_logits, seed=seed, draws=draws) if counts else None,
    )


def by_count(task: Task, logits: Tensor, *, seed: int, draws: int = 1000) -> pd.DataFrame:
    """Recovery rate of any of k members, for k = 1, 2, 4 … L − 1: the k states next to the last, and luck.

    `logits` [L, N, C] are those of linear probes. Members of the controls: k more probes of the last state,
    and the same k states with their answers permuted. Columns: members (k), who, rate, low, high in percent;
    NaN where the last state makes no error.
    """
    rows = []
    for count in _doubled(len(logits) - 1):
        last = logits[-1 - count :]
        drawn = _reseeded(task, last, seed, draws)
        shuffled = chance.permuted(
            last, task.test.labels, classes=task.classes, clusters=task.test.groups, draws=draws, seed=seed
        )
        for who, found in ((REAL, drawn.real), (RESEEDED, drawn.rate), (PERMUTED, shuffled.rate)):
            rows.append({"members": count, "who": who, **_columns(found)})
    return pd.DataFrame(rows)


def _reseeded(task: Task, logits: Tensor, seed: int, draws: int) -> Chance:
    """As many more probes of the last state as there are states before it in `logits`."""
    train, test = task.train, task.test
    return chance.reseeded(
        train.features[-1],
        train.labels,
        test.features[-1],
        test.labels,
        logits=logits,
        l2=L2,
        groups=task.groups,
        clusters=test.groups,
        draws=draws,
        seed=seed,
    )


def _doubled(most: int) -> list[int]:
    """1, 2, 4 … and `most`.

    >>> _doubled(11), _doubled(4), _doubled(1)
    ([1, 2, 4, 8, 11], [1, 2, 4], [1])
    """
    return sorted({*(2**i for i in range(most.bit_length()) if 2**i <= most), most})


def _columns(found: Estimate) -> dict[str, float]:
    values = {"rate": found.value, "low": found.low, "high": found.high}
    return {key: np.nan if value is None else value for key, value in values.items()}


def _warnings(linear: ProbeSet, mlp: tuple[str, ...], reseeded: Chance) -> dict[str, tuple[str, ...]]:
    # the first reseeded probe is of the images as they are: of the last state it warns like the real one
    again = tuple(w for w in reseeded.warnings if not w.startswith("l2 = "))
    found = {"MLP probes": mlp, "linear probes": linear.warnings, "reseeded probes": again}
    return {about: texts for about, texts in found.items() if texts}
