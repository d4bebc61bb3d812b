"""VFusion against its rivals: tables, figures and sentences of its chapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from vitscope import contrasts, plotting, ranking
from vitscope.comparison import BEST, BEST_ON_TEST, LAST, ORACLE, Comparison, across
from vitscope.estimates import Estimate
from vitscope.intervals import bootstrap_mean
from vitscope.reported import Reported
from vitscope.rivals import CONTESTANTS, CONTROL, METHODS

Comparisons = Mapping[tuple[str, str], Comparison]
"""(backbone, dataset) -> the heads compared there."""
FUSED, SUPER = "VFusion", "SuperLearner"
RANKED = tuple(name for name in METHODS if name != ORACLE)
"""Methods that one could use: the oracle needs the answer, the control is no rival."""


def accuracy_table(table: pd.DataFrame) -> pd.DataFrame:
    """Accuracy in percent: a row for each backbone and dataset, a column for each method."""
    methods = [m for m in (*METHODS[:-1], CONTROL, ORACLE) if m in set(table["method"])]
    wide = table.pivot(index=["backbone", "dataset"], columns="method", values="accuracy")
    pairs = table[["backbone", "dataset"]].drop_duplicates()
    return wide.loc[list(pairs.itertuples(index=False, name=None)), methods].reset_index()


def lead_figure(table: pd.DataFrame) -> plotting.Figure:
    """Lead of every method over the best layer, in points; readers explore the accuracies task by task."""
    from vitscope.explore_levels import bars_at  # brings altair

    cells = accuracy_table(table).set_index(["backbone", "dataset"])
    methods = [m for m in cells.columns if m not in (BEST, ORACLE)]
    leads = cells[methods].sub(cells[BEST], axis=0).stack().rename("points").reset_index()
    means = leads.groupby("method", sort=False)["points"].mean()
    said = ", ".join(f"{name} {value:+.1f}" for name, value in means.items())
    figure = plotting.category_points(
        leads,
        x="method",
        y="points",
        hue="backbone",
        order=methods,
        reference=(0.0, "as the best layer"),
        title="Lead over the best layer, a dot for each dataset",
        ylabel="points",
        name="leads",
        alt=f"Lead in points over the best layer on {len(cells)} tasks; means: {said}.",
    )
    explorer = bars_at(
        table[table["method"].isin(cells.columns)], value="accuracy", bar="method", order=list(cells.columns),
        selects=["dataset", "backbone"], band=("low", "high"), unit="accuracy (%)",
        title="accuracy of every method, task by task",
    )  # fmt: skip
    return replace(figure, explorer=explorer)


def mean_accuracies(table: pd.DataFrame) -> dict[str, Reported]:
    """Mean accuracy of each method, with an interval over datasets where there are several."""
    found = {}
    for method, part in table[table["method"] != BEST_ON_TEST].groupby("method", sort=False):
        means = part.groupby("dataset", sort=False)["accuracy"].mean().to_numpy()
        ends = None if len(means) < 2 else bootstrap_mean(means)
        found[str(method)] = {
            "value": float(means.mean()),
            "spread": None if ends is None else (float(ends.low), float(ends.high)),
            "n": len(means),
            "unit": "%",
            "text": f"{means.mean():.1f} %",
        }
    return found


def blocks(table: pd.DataFrame) -> pd.DataFrame:
    """Methods that can be ranked, a (backbone, dataset) pair being a block."""
    ranked = table[table["method"].isin(RANKED)]
    return ranked.assign(dataset=ranked["backbone"] + " on " + ranked["dataset"])


def rank_table(table: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy and mean rank over all tasks, and mean ranks for each backbone alone; best first."""
    found = ranking.mean_ranks(blocks(table)).set_index("method")[["mean", "rank", "first", "near best"]]
    for backbone, part in table.groupby("backbone", sort=False):
        if part["dataset"].nunique() > 1:
            own = ranking.mean_ranks(blocks(part)).set_index("method")["rank"]
            found[f"rank, {backbone}"] = own
    return found.reset_index()


def rank_figure(table: pd.DataFrame) -> plotting.Figure:
    """Mean rank of each method; ranks tell what lies above the line from the best."""
    ranks = ranking.mean_ranks(blocks(table))
    difference = float(ranking.friedman(blocks(table))["critical difference"].iloc[0])
    best = float(ranks["rank"].min())
    said = ", ".join(f"{r.method} {r.rank:.1f}" for r in ranks.itertuples())
    return plotting.category_points(
        ranks,
        x="method",
        y="rank",
        reference=(best + difference, "best + critical difference"),
        title=f"Mean rank over tasks, 1 is best; dashed: best + critical difference {difference:.1f}",
        ylabel="mean rank",
        name="ranks",
        alt=f"Mean ranks: {said}. The critical difference is {difference:.1f}.",
    )


def difference_table(table: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Every other method less `reference`, paired over datasets; backbones are averaged before."""
    usable = table[table["method"].isin((*RANKED, CONTROL))]
    averaged = usable.groupby(["dataset", "method"], sort=False)["accuracy"].mean().reset_index()
    return ranking.differences(averaged, reference)


def task_figure(comparisons: Comparisons, reference: str = BEST) -> plotting.Figure:
    """VFusion less `reference` on each task, with intervals over test images."""
    rows = []
    for (backbone, dataset), compared in comparisons.items():
        found = contrasts.over_images(contrasts.paired({(backbone, dataset): compared}, FUSED, reference))
        rows.append({"dataset": dataset, "backbone": backbone, **ends(found)})
    table = pd.DataFrame(rows)
    above, below = int((table["low"] > 0).sum()), int((table["high"] < 0).sum())
    return plotting.category_points(
        table,
        x="dataset",
        y="points",
        hue="backbone",
        band=("low", "high"),
        reference=(0.0, f"as {reference}"),
        title=f"{FUSED} less {reference}, task by task",
        ylabel="points",
        name="gain_by_task",
        alt=f"{FUSED} less {reference}: from {table['points'].min():+.1f} to {table['points'].max():+.1f} "
        f"points; the interval lies above 0 in {above} and below 0 in {below} of {len(table)} tasks.",
    )


def gain(comparisons: Comparisons, method: str, reference: str) -> Reported:
    """`method` less `reference` in points, with an interval over datasets; of one, over its test images."""
    datasets = {dataset for _, dataset in comparisons}
    if len(datasets) < 2:
        found = contrasts.over_images(contrasts.paired(comparisons, method, reference))
    else:
        row = difference_table(across(comparisons), reference).set_index("method").loc[method]
        found = Estimate(float(row["difference"]), float(row["low"]), float(row["high"]))
    return points(found, n=len(datasets))


def gains_by_backbone(comparisons: Comparisons, method: str, reference: str) -> dict[str, Reported]:
    """`gain` of each backbone alone."""
    names = dict.fromkeys(backbone for backbone, _ in comparisons)
    return {
        name: gain({k: c for k, c in comparisons.items() if k[0] == name}, method, reference)
        for name in names
    }


def points(found: Estimate, *, n: int | None = None, unit: str = "points") -> Reported:
    """What `Run.report` takes, from an estimate: signed for points, plain for percent."""
    if found.value is None:
        return {"value": None, "text": found.reason}
    style = "+z.1f" if unit == "points" else "z.0f"  # z: no "-0"
    text = f"{found.value:{style}} {unit}"
    spread = None
    if found.low is not None and found.high is not None:
        spread = (found.low, found.high)
        text += f" ({found.low:{style}} to {found.high:{style}})"
    return {"value": found.value, "spread": spread, "n": n, "unit": unit, "text": text}


def ends(found: Estimate) -> dict[str, float | None]:
    """An estimate in points as columns of a table."""
    return {"points": found.value, "low": found.low, "high": found.high}


def best_rival(table: pd.DataFrame) -> tuple[str, Reported]:
    """The rival of highest mean accuracy, known only after the comparison, and how to say so."""
    present = [name for name in CONTESTANTS if name in set(table["method"])]
    name = contrasts.best_by_mean(table, present)
    mean = float(table.loc[table["method"] == name, "accuracy"].groupby(table["dataset"]).mean().mean())
    return name, {"value": mean, "text": f"{name} ({mean:.1f} %)", "unit": "%"}


def gap_table(table: pd.DataFrame) -> pd.DataFrame:
    """Accuracy of last and best layer, VFusion and oracle, and the gap closed, task by task."""
    columns = {
        LAST: "last layer",
        BEST: "best layer",
        BEST_ON_TEST: "best by test",
        FUSED: FUSED,
        ORACLE: "oracle",
    }
    wide = table.pivot(index=["backbone", "dataset"], columns="method", values="accuracy")
    gaps = table[table["method"] == FUSED].set_index(["backbone", "dataset"])[
        ["gap closed", "gap low", "gap high"]
    ]
    return wide[list(columns)].rename(columns=columns).join(gaps).loc[gaps.index].reset_index()


def control_table(compared: Comparison, methods: Sequence[str] = (FUSED, SUPER, CONTROL)) -> pd.DataFrame:
    """Accuracy of the best layer and of methods on one task, with what they have over it."""
    key = (compared.task.backbone, compared.task.dataset)
    rows = [{"method": BEST, "accuracy": compared.accuracy(BEST)}]
    for method in methods:
        found = contrasts.over_images(contrasts.paired({key: compared}, method, BEST))
        rows.append({"method": method, "accuracy": compared.accuracy(method), **ends(found)})
    return pd.DataFrame(rows)


def ranks(table: pd.DataFrame) -> dict[str, Reported]:
    """Mean rank of each method over (backbone, dataset) pairs."""
    found = ranking.mean_ranks(blocks(table))
    n = len(table[["backbone", "dataset"]].drop_duplicates())
    return {r.method: {"value": r.rank, "n": n, "text": f"{r.rank:.1f}"} for r in found.itertuples()}


def gaps(table: pd.DataFrame) -> tuple[Reported, Reported]:
    """The gap that VFusion closes: ratio of means, and mean of ratios."""
    n = table["dataset"].nunique()
    of_means, of_ratios = contrasts.gap_over_tasks(table, FUSED)
    return points(of_means, n=n, unit="%"), points(of_ratios, n=n, unit="%")
