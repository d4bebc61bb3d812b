"""Heads under shift: tables and figures of its chapter. Its numbers: `shift_numbers`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from vitscope import plotting, shifted
from vitscope.comparison import BEST, ORACLE
from vitscope.estimates import estimate
from vitscope.shifted import METHODS, UnderShift
from vitscope.shifted_sets import ShiftedSet

DRAWN = (BEST, "SuperLearner", "VFusion", ORACLE)  # seven curves would hide each other
NO_GROUPS = "No set here has groups that are known."
NO_CLEAN = "No set here has a clean test part with the same pictures."

Found = Mapping[str, Sequence[UnderShift]]
"""By the name of the set, the backbones tested on it."""


def sets_table(chosen: Iterable[ShiftedSet]) -> pd.DataFrame:
    """What is learned from and what is tested on, a row per set."""
    rows = []
    for one in chosen:
        severities = ", ".join(map(str, one.severities))
        kind = (
            f"corrupted, severity {severities}" if severities else "another style" if one.clean else "other"
        )
        rows.append(
            {
                "set": one.name,
                "shift": "groups in other shares" if one.has_groups else kind,
                "classes": len(np.unique(one.train.labels)),
                "training pictures": len(one.train),
                "test pictures": len(one.tests[0]),
                "clean twin": "yes" if one.clean else "no",
            }
        )
    return pd.DataFrame(rows)


def remarks(found: Found) -> list[tuple[str, str]]:
    """What a reader must know of each fit: what it is about, and a sentence."""
    said = []
    for name, tested in found.items():
        for one in tested:
            task = one.shifted[0].task
            dropped = task.train.dropped + task.test.dropped
            if dropped:
                text = f"{dropped} pictures of classes with fewer than two training pictures are left out."
                said.append((name, text))
            for method, texts in one.shifted[0].warnings.items():
                said += [(f"{method} on {name} of {one.backbone}", text) for text in texts]
    return said


def accuracy_table(found: Found) -> pd.DataFrame:
    """Every accuracy in percent: backbone, set, part (clean, severity k, shifted), method; and the gap."""
    parts = []
    for name, tested in found.items():
        for one in tested:
            labels = [f"severity {k}" for k in one.chosen.severities] or ["shifted"]
            comparisons = dict(zip(labels, one.shifted, strict=True))
            if one.clean is not None:
                comparisons = {"clean": one.clean, **comparisons}
            for part, comparison in comparisons.items():
                table = comparison.table.set_index("method").loc[list(METHODS)].reset_index()
                parts.append(table.assign(set=name, part=part, backbone=one.backbone))
    columns = ["backbone", "set", "part", "method", "accuracy", "low", "high", "balanced", "gap closed"]
    return pd.concat(parts, ignore_index=True)[columns]


def severity_table(found: Found) -> pd.DataFrame:
    """Accuracy by severity (0 is clean) of the methods drawn, over the backbones on each corrupted set."""
    rows = []
    for name, tested in found.items():
        levels = tested[0].chosen.severities
        for method in DRAWN if levels else ():
            for level in (0, *levels):
                right = {"a": [t.right_at(method, level) for t in tested]}
                value, drawn = shifted.means(right, tested[0].clusters)
                at = estimate(100 * value["a"], 100 * drawn["a"], "")
                rows.append((name, method, level, at.value, at.low, at.high))
    return pd.DataFrame(rows, columns=["set", "method", "severity", "accuracy", "low", "high"])


def severity_figure(table: pd.DataFrame, found: Found | None = None) -> plotting.Figure:
    """A panel per corrupted set: accuracy against severity, a curve per method.

    With `found`, readers explore every method under every corruption.
    """
    from vitscope.explore_shift import severities  # brings altair

    sets = list(dict.fromkeys(table["set"]))
    with plotting.style():
        figure = Canvas(figsize=(1.4 + 2.4 * len(sets), 3.2), layout="constrained")
        for axis, name in zip(np.ravel(figure.subplots(1, len(sets), squeeze=False)), sets, strict=True):
            for i, method in enumerate(DRAWN):
                rows = table[(table["set"] == name) & (table["method"] == method)]
                look = {"color": plotting.PALETTE[i], "marker": plotting.MARKERS[i], "ms": 3.5, "lw": 1.4}
                axis.plot(rows["severity"], rows["accuracy"], label=method, **look)
                axis.fill_between(
                    rows["severity"], rows["low"], rows["high"], color=plotting.PALETTE[i], alpha=0.15, lw=0
                )
            axis.set(title=name, xlabel="severity (0 is clean)")
            axis.set_xticks(sorted(set(rows["severity"])))
        figure.axes[0].set_ylabel("accuracy (%)")
        figure.axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    ends = "; ".join(
        f"{name}: " + ", ".join(
            f"{method} {part['accuracy'].iloc[0]:.1f} → {part['accuracy'].iloc[-1]:.1f}"
            for method, part in of.groupby("method", sort=False)
        )
        for name, of in table.groupby("set", sort=False)
    )  # fmt: skip
    alt = f"Accuracy in percent, clean and at the highest severity, by set and method: {ends}."
    return plotting.Figure(figure, table, alt, "severity", None if found is None else severities(found))


def change_table(found: Found) -> pd.DataFrame:
    """Accuracy on clean and shifted pictures, and points lost, paired by picture; sets with a clean twin."""
    rows = []
    for name, tested in found.items():
        if tested[0].clean is None:
            continue
        for method in METHODS:
            columns = {k: [t.right(method, clean=k == "clean") for t in tested] for k in ("clean", "shifted")}
            lost = shifted.difference(columns, "clean", "shifted", tested[0].clusters)
            clean, under = (100 * float(np.mean(columns[k])) for k in ("clean", "shifted"))
            rows.append((name, method, clean, under, lost.value, lost.low, lost.high))
    return pd.DataFrame(rows, columns=["set", "method", "clean", "shifted", "lost", "low", "high"])


def change_figure(table: pd.DataFrame) -> plotting.Figure:
    """Points lost by the methods drawn, by set."""
    shown = table[table["method"].isin(DRAWN)]
    return plotting.category_bars(
        shown,
        x="set",
        y="lost",
        hue="method",
        hue_order=DRAWN,
        band=("low", "high"),
        title="Accuracy lost from clean to shifted pictures",
        ylabel="points lost",
        alt=lambda drawn: f"Points of accuracy lost by set and method: {_listed(drawn, 'lost')}.",
        name="lost",
    )


def groups_table(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The tables of `shifted.by_group` of several sets in one."""
    return pd.concat([table.assign(set=name) for name, table in tables.items()], ignore_index=True)[
        ["set", "group", "method", "accuracy", "low", "high", "count"]
    ]


def group_figure(table: pd.DataFrame, name: str) -> plotting.Figure:
    """Accuracy of every method on average, in every group of a set, and in its worst group."""
    return plotting.category_bars(
        table.rename(columns={"method": "set"}),
        x="set",
        y="accuracy",
        hue="group",
        band=("low", "high"),
        title=f"{name}: accuracy by group",
        xlabel="method",
        ylabel="accuracy (%)",
        alt=lambda drawn: f"Accuracy in percent on {name}: {_listed(drawn, 'accuracy', 'group')}.",
        name="groups",
    )


def gain_table(found: Found) -> pd.DataFrame:
    """VFusion less the best layer in points, gap closed and recovery, a row per set and part."""
    rows = []
    for name, tested in found.items():
        for part in ("clean", "shifted"):
            clean = part == "clean"
            if clean and tested[0].clean is None:
                continue
            gain, gap = shifted.gain(tested, clean=clean), shifted.gap_closed(tested, clean=clean)
            back = shifted.recovery(tested, clean=clean)
            rows.append(
                {
                    "set": name,
                    "part": part,
                    "gain": gain.value,
                    "low": gain.low,
                    "high": gain.high,
                    "gap closed": gap.value,
                    "gap low": gap.low,
                    "gap high": gap.high,
                    "recovery": back.value,
                    "recovery low": back.low,
                    "recovery high": back.high,
                }
            )
    return pd.DataFrame(rows)


def gain_figure(table: pd.DataFrame) -> plotting.Figure:
    """What VFusion gains over the best layer, by set, on clean and shifted pictures."""
    return plotting.category_bars(
        table,
        x="set",
        y="gain",
        hue="part",
        hue_order=[part for part in ("clean", "shifted") if part in set(table["part"])],
        band=("low", "high"),
        reference=(0.0, "the best layer"),
        title="VFusion less the best layer",
        ylabel="points",
        alt=lambda drawn: (
            f"VFusion less the best layer, in points, by set and part: {_listed(drawn, 'gain', 'part')}."
        ),
        name="gain",
    )


def recovery_figure(table: pd.DataFrame) -> plotting.Figure:
    """The share of the last layer's errors that some earlier layer gets right, by set and part."""
    shown = table.dropna(subset=["recovery"])
    return plotting.category_bars(
        shown,
        x="set",
        y="recovery",
        hue="part",
        hue_order=[part for part in ("clean", "shifted") if part in set(shown["part"])],
        band=("recovery low", "recovery high"),
        title="Errors of the last layer that some earlier layer gets right",
        ylabel="recovery rate (%)",
        alt=lambda drawn: f"Recovery rate in percent by set and part: {_listed(drawn, 'recovery', 'part')}.",
        name="recovery",
    )


def control_table(tested: UnderShift, control: UnderShift) -> pd.DataFrame:
    """Shifted accuracy of every method with learned and with random weights."""
    rows = []
    for weights, one in (("learned", tested), ("random", control)):
        for method in METHODS:
            at = shifted.accuracy([one], method)
            rows.append((weights, method, at.value, at.low, at.high))
    return pd.DataFrame(rows, columns=["weights", "method", "accuracy", "low", "high"])


def _listed(table: pd.DataFrame, value: str, hue: str = "method") -> str:
    rows = zip(table["set"], table[hue], table[value], strict=True)
    return ", ".join(f"{name} {kind} {v:.1f}".replace("\n", " ") for name, kind, v in rows)
