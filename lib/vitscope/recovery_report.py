"""How much earlier states recover, against luck and harm: tables, figures, sentences, reported numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from vitscope import plotting
from vitscope.estimates import Estimate
from vitscope.recovery import Recovery
from vitscope.reported import Reported

Where = tuple[str, str]  # backbone and dataset
Found = Mapping[Where, Recovery]

FLAWLESS = "The last state makes no error on these test pictures: there is nothing to recover."
UNDIVIDED = "The last state makes no error on these test pictures, or nothing but errors."
RATES: dict[str, Callable[[Recovery], Estimate]] = {
    "MLP, earlier states": lambda r: r.mlp.recovery_rate,
    "MLP, permuted within an answer": lambda r: r.permuted.rate,
    "MLP, permuted within a class": lambda r: r.permuted_true.rate,
    "linear, earlier states": lambda r: r.linear.recovery_rate,
    "linear, last state reseeded": lambda r: r.reseeded.rate,
}
EXCESSES: dict[str, Callable[[Recovery], Estimate]] = {
    "excess_permuted": lambda r: r.permuted.excess,
    "excess_permuted_true": lambda r: r.permuted_true.excess,
    "excess_reseeded": lambda r: r.reseeded.excess,
}


def rate_table(found: Found) -> pd.DataFrame:
    """Accuracy of the last state and of the oracle, and both recovery rates with their intervals, per row."""
    rows = []
    for (backbone, dataset), r in found.items():
        rate, linear = r.mlp.recovery_rate, r.linear.recovery_rate
        rows.append(
            {
                "backbone": backbone, "dataset": dataset, "classes": r.classes, "majority": r.majority,
                "last state": r.mlp.accuracy.mean[-1], "errors": r.mlp.errors, "oracle": r.mlp.oracle.value,
                "recovery": rate.value, "low": rate.low, "high": rate.high,
                "last state, linear": r.linear.accuracy.mean[-1],
                "recovery, linear": linear.value, "linear low": linear.low, "linear high": linear.high,
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def rate_figure(found: Found) -> plotting.Figure | None:
    """Any-layer recovery rate of the MLP probes by dataset; None where no last state makes an error."""
    table = rate_table(found).dropna(subset="recovery")
    if table.empty:
        return None
    ends = "; ".join(
        f"{backbone} {part['recovery'].min():.0f} to {part['recovery'].max():.0f} %"
        for backbone, part in table.groupby("backbone", sort=False)
    )
    return plotting.category_bars(
        table,
        x="dataset",
        y="recovery",
        hue="backbone",
        band=("low", "high"),
        title="Errors of the last state recovered",
        ylabel="recovery rate (%)",
        name="recovery",
        alt=f"Recovery rate on {table['dataset'].nunique()} datasets, MLP probes, any earlier state: {ends}.",
    )


def chance_table(found: Found) -> pd.DataFrame:
    """Recovery by luck, and the excess of the real rate over it in points, per row and control."""
    rows = []
    for (backbone, dataset), r in found.items():
        controls = {
            "permuted within an answer": r.permuted,
            "permuted within a class": r.permuted_true,
            "last state reseeded": r.reseeded,
        }
        for control, luck in controls.items():
            rows.append(
                {
                    "backbone": backbone, "dataset": dataset, "control": control,
                    "real": luck.real.value, "by luck": luck.rate.value,
                    "excess": luck.excess.value, "low": luck.excess.low, "high": luck.excess.high,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def chance_figure(found: Found, backbone: str) -> plotting.Figure | None:
    """Recovery rates of one backbone beside what luck recovers; None where it makes no error."""
    from vitscope.explore_levels import bars_at  # brings altair

    rows = [
        {"dataset": dataset, "probes": name, "rate": e.value, "low": e.low, "high": e.high}
        for (model, dataset), r in found.items()
        if model == backbone
        for name, rate in RATES.items()
        if (e := rate(r)).value is not None
    ]
    if not rows:
        return None
    table = pd.DataFrame(rows)
    means = ", ".join(f"{n} {v:.0f} %" for n, v in table.groupby("probes", sort=False)["rate"].mean().items())
    figure = plotting.category_bars(
        table,
        x="dataset",
        y="rate",
        hue="probes",
        hue_order=[name for name in RATES if name in set(table["probes"])],
        band=("low", "high"),
        title=f"Recovery and luck: {backbone}",
        ylabel="recovery rate (%)",
        name="chance",
        alt=f"Recovery rates of {backbone} beside controls on {table['dataset'].nunique()} datasets, "
        f"on average: {means}.",
    )
    explorer = bars_at(
        table, value="rate", bar="probes", selects=["dataset"],
        order=[name for name in RATES if name in set(table["probes"])], band=("low", "high"),
        unit="recovery rate (%)", title=f"recovery and luck, {backbone}, task by task",
    )  # fmt: skip
    return replace(figure, explorer=explorer)


def count_figure(counts: pd.DataFrame, where: Where) -> plotting.Figure | None:
    """Recovery rate over the number of probes that may try; None where the last state makes no error."""
    if counts["rate"].isna().any():
        return None
    ends = "; ".join(
        f"{who} {part['rate'].iloc[0]:.0f} % with {part['members'].iloc[0]}, "
        f"{part['rate'].iloc[-1]:.0f} % with {part['members'].iloc[-1]}"
        for who, part in counts.groupby("who", sort=False)
    )
    return plotting.layer_curves(
        counts,
        x="members",
        y="rate",
        hue="who",
        band=("low", "high"),
        title=f"Recovery by the number of probes that may try: {at(where)}",
        xlabel="probes beside that of the last state",
        ylabel="recovery rate (%)",
        name="recovery_by_count",
        explore=True,
        alt=f"Recovery rate of linear probes over their number: {ends}.",
    )


def state_figure(recovery: Recovery, where: Where) -> plotting.Figure | None:
    """What every earlier state recovers and spoils, beside the any-layer rate; None without errors."""
    rate = recovery.mlp.recovery_rate.value
    if rate is None or np.isnan(recovery.mlp.harm.mean).any():
        return None
    parts = {
        "recovered, of its errors": recovery.mlp.per_layer,
        "spoiled, of its right answers": recovery.mlp.harm,
    }
    table = pd.concat(
        pd.DataFrame(interval._asdict()).assign(share=name, state=range(1, len(interval.mean) + 1))
        for name, interval in parts.items()
    )
    tops = ", ".join(
        f"{name} {i.mean.min():.0f} to {i.mean.max():.0f} %, at the last but one {i.mean[-1]:.0f} %"
        for name, i in parts.items()
    )
    return plotting.layer_curves(
        table,
        y="mean",
        hue="share",
        order=list(parts),
        band=("low", "high"),
        title=f"One earlier state against the last: {at(where)}",
        ylabel="share (%)",
        reference=(rate, f"any of them: {rate:.1f} %"),
        name="recovery_by_state",
        explore=True,
        alt=f"Share of the last state's answers that single earlier states change, {at(where)}: {tops}. "
        f"Any of them is right on {rate:.0f} % of its errors.",
    )


def by_state(found: Found, measure: str) -> pd.DataFrame:
    """A column per earlier state: the share it recovers ("per_layer") or spoils ("harm"), in percent."""
    rows = []
    for (backbone, dataset), r in found.items():
        shares = enumerate(getattr(r.mlp, measure).mean, start=1)
        rows.append({"backbone": backbone, "dataset": dataset, **{str(k): share for k, share in shares}})
    table = pd.DataFrame(rows)
    states = sorted((name for name in table.columns if name.isdigit()), key=int)
    return table[["backbone", "dataset", *states]]


def best_table(found: Found) -> pd.DataFrame:
    """The state that recovers most: what it recovers and spoils, and its accuracy beside the last state's."""
    rows = []
    for (backbone, dataset), r in found.items():
        row: dict[str, Any] = {"backbone": backbone, "dataset": dataset, "state": r.best}
        last = float(r.mlp.accuracy.mean[-1])
        if r.best is not None:
            parts = {"recovers": r.mlp.per_layer, "spoils": r.mlp.harm, "accuracy": r.mlp.accuracy}
            row |= {name: float(interval.mean[r.best - 1]) for name, interval in parts.items()}
        rows.append({**row, "last state": last, "gain": row.get("accuracy", np.nan) - last})
    columns = ["backbone", "dataset", "state", "recovers", "spoils", "accuracy", "last state", "gain"]
    return pd.DataFrame(rows).reindex(columns=columns).astype({"state": "Int64"})


def control_table(cases: Mapping[str, Recovery]) -> pd.DataFrame:
    """A trained backbone beside itself with random weights: accuracy, recovery, excess over luck."""
    rows = []
    for name, r in cases.items():
        rows.append(
            {
                "weights": name,
                "last state": r.mlp.accuracy.mean[-1],
                "majority": r.majority,
                "oracle": r.mlp.oracle.value,
                "recovery": r.mlp.recovery_rate.value,
                "over permuted": r.permuted.excess.value,
                "recovery, linear": r.linear.recovery_rate.value,
                "over reseeded": r.reseeded.excess.value,
            }
        )
    return pd.DataFrame(rows)


def numbers(found: Found) -> dict[str, dict[str, Reported]]:
    """Per row "BACKBONE.DATASET" the numbers that claims about recovery rest on, by key.

    - `recovery`, `recovery_linear`: any-layer rate of MLP and linear probes, in percent
    - `excess_permuted`, `excess_permuted_true`, `excess_reseeded`: what it exceeds luck by, in points
    - `best_layer_recovery`, `best_layer_harm`: of the state that recovers most, chosen on the same pictures
    """
    keys = ("recovery", "recovery_linear", *EXCESSES, "best_layer_recovery", "best_layer_harm")
    result: dict[str, dict[str, Reported]] = {key: {} for key in keys}
    for (backbone, dataset), r in found.items():
        name, errors = f"{backbone}.{dataset}", r.mlp.errors
        result["recovery"][name] = estimated(r.mlp.recovery_rate, errors)
        result["recovery_linear"][name] = estimated(r.linear.recovery_rate, r.linear.errors)
        for key, excess in EXCESSES.items():
            of = r.linear.errors if key == "excess_reseeded" else errors
            result[key][name] = estimated(excess(r), of, "points")
        for key, interval in (("best_layer_recovery", r.mlp.per_layer), ("best_layer_harm", r.mlp.harm)):
            of = errors if key == "best_layer_recovery" else r.mlp.images - errors
            single = Estimate(None, reason=_nothing(r))
            if r.best is not None and of:
                value, low, high = (float(part[r.best - 1]) for part in interval)
                single = Estimate(value, low, high)
            result[key][name] = estimated(single, of)
    return result


def estimated(found: Estimate, n: int, unit: str = "%") -> Reported:
    """An estimate as a reported number, its interval in the text; the reason where there is none."""
    if found.value is None:
        return {"value": None, "text": found.reason}
    style = "+.1f" if unit == "points" else ".1f"
    text = f"{found.value:{style}} {unit}"
    if found.low is None or found.high is None:
        return {"value": found.value, "n": n, "unit": unit, "text": text}
    text += f" ({found.low:{style}} to {found.high:{style}})"
    return {"value": found.value, "spread": (found.low, found.high), "n": n, "unit": unit, "text": text}


def extremes(found: Found) -> dict[str, Reported]:
    """`recovery_least` and `recovery_most`: lowest and highest any-layer rate of all rows, MLP probes."""
    rows = {w: r for w, r in found.items() if r.mlp.recovery_rate.value is not None}
    if not rows:
        nothing: Reported = {"value": None, "text": "nothing (no last state makes an error)"}
        return {"recovery_least": nothing, "recovery_most": nothing}
    ranked = sorted(rows, key=lambda w: rows[w].mlp.recovery_rate.value or 0.0)
    result = {}
    for key, where in (("recovery_least", ranked[0]), ("recovery_most", ranked[-1])):
        said = estimated(rows[where].mlp.recovery_rate, rows[where].mlp.errors)
        result[key] = said | {"text": f"{said['value']:.1f} % ({at(where)})"}
    return result


def above_text(found: Found, key: str) -> Reported:
    """In how many rows the excess over a control (a key of `EXCESSES`) is above 0, interval included."""
    there = [e for r in found.values() if (e := EXCESSES[key](r)).low is not None and e.high is not None]
    above, below = sum(e.low > 0 for e in there), sum(e.high < 0 for e in there)  # type: ignore[operator]
    return {"value": above, "n": len(there), "text": f"{above} of {len(there)} pairs (below in {below})"}


def gain_text(found: Found) -> Reported:
    """In how many rows the state that recovers most is also more accurate than the last one, all in all."""
    gains = best_table(found)["gain"].dropna()
    more = int((gains > 0).sum())
    return {"value": more, "n": len(gains), "text": f"{more} of {len(gains)} pairs"}


def warnings(found: Found) -> dict[str, str]:
    """What the probes of each backbone warn of, and pictures left out, in one text per backbone."""
    said: dict[str, list[str]] = {}
    for (backbone, dataset), r in found.items():
        texts = [f"{about}: {text}" for about, several in r.warnings.items() for text in several]
        if r.dropped:
            texts.append(f"{r.dropped} test pictures of classes that training lacks were left out")
        said.setdefault(backbone, []).extend(f"{dataset}, {text}" for text in texts)
    return {backbone: "; ".join(texts) + "." for backbone, texts in said.items() if texts}


def at(where: Where) -> str:
    """How a backbone on a dataset is named in titles and texts."""
    return " on ".join(where)


def _nothing(recovery: Recovery) -> str:
    if recovery.mlp.errors:
        return "not measured, because the last state has no right answer to spoil"
    return f"not measured, because the last state makes no error on these {recovery.mlp.images} images"
