"""Fusion heads compared on one task: one split, one selection budget, one set of members for all.

The gap that a method closes is (a_m − a_best) / (a_oracle − a_best), in percent: 0 is the best single state,
100 the oracle, which needs the answer. The best state is chosen on validation images; the one that is best on
the test images is given beside it, as no method could know it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitscope.estimates import Estimate, divided, estimate, resampled_sums
from vitscope.features import Cache
from vitscope.fits import fit_head, fitted_members
from vitscope.frozen import Part, Task
from vitscope.fusion import BestLayer, Head, LastLayer, Members, Oracle
from vitscope.intervals import bootstrap_mean

LAST, BEST, ORACLE, BEST_ON_TEST = "LastLayer", "BestLayer", "Oracle", "best layer by test"
VALIDATION = 0.2


@dataclass(frozen=True)
class Comparison:
    """Heads fitted to one task, and which test images each of them gets right.

    `table` has a row per method: accuracy with its interval and balanced accuracy in percent, gap closed with
    its interval in percent, learned parameters (those of the probes apart), seconds of the fit.
    `test_logits` are the members' on the test images, state by state.
    """

    task: Task
    table: pd.DataFrame
    right: dict[str, Bool[np.ndarray, " N"]]
    heads: dict[str, Head]
    members: Members
    test_logits: Float[Tensor, "L N C"]

    def accuracy(self, method: str) -> float:
        """Accuracy of a method on the test images, in percent."""
        return float(self.table.set_index("method").loc[method, "accuracy"])

    def milliseconds(self, *, repeats: int = 3) -> dict[str, float]:
        """What each method takes to classify 1000 images from their states, the least of `repeats` tries.

        Of methods that combine logits, with the probes whose logits they need. These are times of this
        machine as busy as it is, and no two runs agree: records leave them out.
        """
        test, probes = self.task.test, self.members.probes
        one_member = _least_seconds(lambda: probes.logits(test.features), repeats) / len(test.features)
        times = {}
        for name, head in self.heads.items():
            logits = self.test_logits if head.uses_logits else None
            predict = partial(head._scores_for, test.features, logits, test.labels)
            seconds = _least_seconds(predict, repeats) + used_members(head) * one_member
            times[name] = 1e6 * seconds / len(test)
        return times

    @property
    def warnings(self) -> dict[str, list[str]]:
        """What the heads warn of, by method; methods without warnings are left out."""
        return {name: head.report["warnings"] for name, head in self.heads.items() if head.report["warnings"]}

    def tested_on(self, task: Task) -> Comparison:
        """The fitted heads on another test part of the same backbone: nothing is fitted again."""
        logits = self.members.probes.logits(task.test.features)
        right = _answers(self.heads, task.test, logits)
        fit = self.table[["method", "parameters", "seconds"]]
        return replace(self, task=task, right=right, test_logits=logits, table=_table(right, task.test, fit))


def compare(
    task: Task, heads: Mapping[str, Head], *, seed: int, folds: int = 5, cache: Cache = None
) -> Comparison:
    """Fit every head to the task and measure it on the test images.

    `LastLayer`, `BestLayer` and `Oracle` are added where they are missing: the gap needs them. Heads that
    combine logits get those of the same linear probes, out of fold in training. Test images play no part in
    any choice. What was fitted before is found in `cache`. Errors: as `out_of_fold` and `Head.fit`, with
    the method's name.
    """
    chosen = {LAST: LastLayer(), BEST: BestLayer(), ORACLE: Oracle()} | dict(heads)
    train, groups = task.train, separable(task)
    options: dict[str, Any] = {"folds": folds, "groups": groups, "validation": VALIDATION, "seed": seed}
    members = fitted_members(train.features, train.labels, cache=cache, **options)
    rows = []
    for name, head in chosen.items():
        try:
            seconds = fit_head(
                head,
                train.features,
                members.logits if head.uses_logits else None,
                train.labels,
                validation=VALIDATION,
                groups=groups,
                seed=seed,
                cache=cache,
            )
        except ValueError as error:
            raise ValueError(f"{name} on {task.dataset} of {task.backbone}: {error}") from error
        rows.append({"method": name, "parameters": head.report["parameters"], "seconds": seconds})
    logits = members.probes.logits(task.test.features)
    right = _answers(chosen, task.test, logits)
    table = _table(right, task.test, pd.DataFrame(rows))
    return Comparison(task, table, right, chosen, members, logits)


def separable(task: Task) -> np.ndarray | None:
    """What to keep together in splits: the task's groups, but pictures of a class that is one group singly.

    Folds need two parts of every class; naming a class of which training has a single thing is recognising
    that thing, as in `Task.groups`.
    """
    groups, labels = task.groups, task.train.labels
    if groups is None:
        return None
    codes = np.unique(groups, return_inverse=True)[1]
    for name in task.classes:
        own = np.flatnonzero(labels == name)
        if len(np.unique(codes[own])) == 1:
            codes[own] = -1 - own  # a name that nothing else has
    return codes


def used_members(head: Head) -> int:
    """How many probes a fitted head needs the logits of; 0 for heads that read features."""
    if not head.uses_logits or head.fitted is None:
        return 0
    return len(head.fitted.sizes.get("members", range(head.fitted.sizes["blocks"][0][0])))


def _least_seconds(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def _answers(heads: Mapping[str, Head], test: Part, logits: Tensor) -> dict[str, np.ndarray]:
    """Which images each head gets right, and the state that is best on the test images."""
    found = {}
    for name, head in heads.items():
        scores = head._scores_for(test.features, logits if head.uses_logits else None, test.labels)
        found[name] = np.asarray(head.classes)[scores.argmax(1).cpu().numpy()] == test.labels
    classes = np.asarray(next(iter(heads.values())).classes)
    states = classes[logits.argmax(2).cpu().numpy()] == test.labels
    return found | {BEST_ON_TEST: states[int(states.mean(1).argmax())]}


def _table(right: Mapping[str, np.ndarray], test: Part, fit: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for name, correct in right.items():
        interval = bootstrap_mean(100.0 * correct, clusters=test.groups)
        recalls = [correct[test.labels == c].mean() for c in np.unique(test.labels)]
        gap = gap_closed(correct, right[BEST], right[ORACLE], clusters=test.groups)
        rows.append(
            {
                "method": name,
                "accuracy": float(interval.mean),
                "low": float(interval.low),
                "high": float(interval.high),
                "balanced": 100 * float(np.mean(recalls)),
                "gap closed": gap.value,
                "gap low": gap.low,
                "gap high": gap.high,
            }
        )
    return pd.DataFrame(rows).merge(fit, on="method", how="left")


def gap_closed(
    method: Bool[np.ndarray, " N"],
    best: Bool[np.ndarray, " N"],
    oracle: Bool[np.ndarray, " N"],
    *,
    clusters: np.ndarray | None = None,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """100 · (a_method − a_best) / (a_oracle − a_best), from which images each gets right (paper B, B-f3).

    A resample draws the same images for all three. None, with the reason, where the oracle gains nothing.

    >>> best, oracle = np.array([1, 1, 0, 0, 0]) > 0, np.array([1, 1, 1, 1, 0]) > 0
    >>> gap_closed(np.array([1, 1, 1, 0, 0]) > 0, best, oracle).value
    50.0
    """
    columns = {"gained": method.astype(float) - best, "gap": oracle.astype(float) - best}
    total, drawn = resampled_sums(columns, clusters=clusters, draws=draws, seed=seed)

    def share(sums: dict[str, np.ndarray]) -> np.ndarray:
        return divided(100 * sums["gained"], sums["gap"])

    reason = "not measured, because the oracle is right no more often than the best state"
    return estimate(share(total), share(drawn), reason, level)


def across(comparisons: Mapping[tuple[str, str], Comparison]) -> pd.DataFrame:
    """The tables of several comparisons in one, with the columns `backbone` and `dataset` in front.

    Keys are (backbone, dataset). `ranking` reads the result, a (backbone, dataset) pair being a block there.
    """
    parts = [
        c.table.assign(backbone=backbone, dataset=dataset) for (backbone, dataset), c in comparisons.items()
    ]
    table = pd.concat(parts, ignore_index=True)
    first = ["backbone", "dataset", "method"]
    return table[[*first, *(c for c in table.columns if c not in first)]]


def importance(comparison: Comparison, method: str, *, draws: int = 5, seed: int = 0) -> pd.DataFrame:
    """What a fused head looks at: accuracy lost, in points, when one state is that of another image.

    Per state ℓ, the features x_ℓ (and logits) of the test images are permuted among them, `draws` times, the
    other states staying what they are (Breiman 2001, permutation importance). States that hold the same
    information share it between them, so the losses need not add up.

    Columns: state (1 … L), loss (mean over permutations), low and high (bootstrap interval over images).
    Raises ValueError for heads that need the labels.
    """
    head, test = comparison.heads[method], comparison.task.test
    if head.needs_labels:
        raise ValueError(f"{method} answers with the labels in hand: it looks at all states alike")
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(test), generator=generator) for _ in range(draws)]
    classes, intact, rows = np.asarray(head.classes), comparison.right[method], []
    for state in range(len(test.features)):
        lost = np.zeros(len(test))
        for order in orders:
            features, logits = test.features.clone(), comparison.test_logits.clone()
            features[state], logits[state] = features[state, order], logits[state, order]
            scores = head.predict_logits(features, logits if head.uses_logits else None)
            lost += 1.0 * intact - (classes[scores.argmax(1).cpu().numpy()] == test.labels)
        interval = bootstrap_mean(100 * lost / draws, clusters=test.groups)
        ends = {k: float(v) for k, v in zip(("loss", "low", "high"), interval, strict=True)}
        rows.append({"state": state + 1, **ends})
    return pd.DataFrame(rows)
