"""Where to stop a ViT and what to fine-tune, read from probe accuracy and cost over the states.

Paper A (2511.21635) is often summarised as "stop at the plateau, freeze early blocks, fine-tune late ones";
the rules that turn curves into such advice are ours:

- **truncate**: the earliest state whose accuracy is at most `points` below the best state's, and than which
  the best state is not significantly better. The best stands for all that come later: with a test for each
  of them, one would be found better by chance sooner or later.
- **fine_tune**: the blocks of the accuracy's final climb, as `phases.detect_phases` defines it on the states
  up to `truncate`: from the end of its plateau to there. Where it finds none, no block is set apart.
- **freeze**: the blocks before that climb.

Significant, with each picture's correctness: the bootstrap interval of the paired difference lies above 0.
Without it: the two intervals do not overlap, which asks for more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from vitscope.errors import unknown
from vitscope.intervals import bootstrap_mean
from vitscope.phases import SHORTEST_CURVE, detect_phases
from vitscope.runs.hashing import sha256_file
from vitscope.runs.layout import Project
from vitscope.runs.record import FILE_NAME, Record, completed

WRITER = "02_information_scrambling"
TABLES = {
    "probes_by_state": ("backbone", "token", "state", "accuracy", "low", "high"),
    "cost": ("backbone", "state", "gflops", "gflops_total", "share"),
}
_ROUNDING = 0.05  # points by which a table may differ from the correctness behind it
_STEP, _BAND = 0.2, 1.0  # tolerance and band of the phases, in percent as accuracies are here


class RunRefused(RuntimeError):
    """A folder of a run that advice cannot be read from; the message says why and what to do."""


@dataclass(frozen=True)
class Advice:
    """What `advise` found for one backbone of `depth` blocks.

    `truncate` and `best` are states, `freeze` and `fine_tune` numbers of blocks (block ℓ makes state ℓ).
    `saved` is the share of operations after `truncate`, in [0, 1]; `reason` says why `fine_tune` is empty.

    `evidence` has a row per state: state, accuracy, low, high and behind (points below the best state) in
    percent, beaten (whether the best state is significantly better), per_block and per_gflop (points gained
    since the state before, by block and by 10⁹ operations; NaN in the first row), share (of all operations).
    """

    depth: int
    truncate: int
    best: int
    saved: float
    freeze: tuple[int, ...]
    fine_tune: tuple[int, ...]
    reason: str
    evidence: pd.DataFrame
    text: str

    @property
    def unused(self) -> int:
        """Blocks after `truncate`."""
        return self.depth - self.truncate


def advise(
    accuracy: pd.DataFrame,
    costs: pd.DataFrame,
    *,
    points: float = 0.5,
    correct: np.ndarray | None = None,
    clusters: np.ndarray | None = None,
) -> Advice:
    """Advice for one backbone and one kind of token, by the rules at the top of this file.

    `accuracy`: columns state, accuracy, low, high, in percent; state −1 costs what state 0 does and is left
    out. `costs`: as from `cost.layer_costs`. `points`: percentage points of accuracy that may be given up.
    `correct` [S, N]: whether each picture was named right, a row for each row of `accuracy`; `clusters` [N]:
    pictures that belong together, as in `intervals.bootstrap_mean`.

    Raises ValueError for missing columns, repeated states, numbers that are not finite, states without a
    cost, and a `correct` that does not give these accuracies.

    >>> table = pd.DataFrame({"state": range(8), "accuracy": [20, 20, 21, 20, 35, 50, 60, 60.2]})
    >>> table = table.assign(low=table["accuracy"] - 2, high=table["accuracy"] + 2)
    >>> costs = pd.DataFrame({"state": range(8), "gflops_total": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5]})
    >>> found = advise(table, costs)
    >>> found.truncate, round(found.saved, 3), found.freeze, found.fine_tune
    (6, 0.133, (1, 2, 3), (4, 5, 6))
    """
    if not points >= 0:
        raise ValueError(f"points are percentage points to give up, 0 or more, got {points}")
    curve, right = _curve(accuracy, correct)
    spent, total = _spent(costs, curve["state"].tolist())
    values = curve["accuracy"].to_numpy(float)
    best = int(values.argmax())
    beaten = _beaten(curve, right, clusters, best)
    # the best state itself always qualifies
    end = int(np.flatnonzero((values >= values[best] - points) & ~beaten)[0])
    evidence = curve.assign(
        behind=values[best] - values,
        beaten=beaten,
        per_block=_gains(values, curve["state"].to_numpy(float)),
        per_gflop=_gains(values, spent),
        share=np.diff(spent, prepend=0) / total,
    )
    states = curve["state"].tolist()
    first, reason = _climb(values[: end + 1], states[: end + 1], points)
    freeze = () if first is None else tuple(range(1, first))
    fine_tune = () if first is None else tuple(range(first, states[end] + 1))
    found = Advice(
        int(costs["state"].max()), states[end], states[best], float(1 - spent[end] / total),
        freeze, fine_tune, reason, evidence, "",
    )  # fmt: skip
    return replace(found, text=_text(found, points))


def advise_backbones(
    tables: Mapping[str, pd.DataFrame], *, token: str, backbone: str | None = None, points: float = 0.5
) -> dict[str, Advice]:
    """Advice for each backbone in the tables of `read_run`, or for the one named; `token` as in the table.

    Raises `UnknownName` for a backbone or token that the run did not probe, `RunRefused` without its costs.
    """
    probes, costs = tables["probes_by_state"], tables["cost"]
    names = probes["backbone"].unique().tolist()
    if backbone is not None and backbone not in names:
        raise unknown("backbone of this run", backbone, names)
    found = {}
    for name in names if backbone is None else [backbone]:
        own = probes[probes["backbone"] == name]
        if token not in (kinds := own["token"].unique().tolist()):
            raise unknown(f"token of {name}", token, kinds)
        if name not in set(costs["backbone"]):
            raise RunRefused(f"table 'cost' of this run has no rows of {name}; the chapter must write them")
        found[name] = advise(own[own["token"] == token], costs[costs["backbone"] == name], points=points)
    return found


def find_run(name: str) -> Path:
    """The folder of a run: `name` itself, or the latest finished `course` run of the chapter of that name.

    Raises `UnknownName` for what is neither, and `RunRefused` for a chapter without such a run.
    """
    folder = Path(name)
    if folder.is_dir():
        return folder
    project = Project.find()
    if name not in (chapters := [p.stem for p in sorted((project.root / "notebooks").glob("*.ipynb"))]):
        raise unknown("folder of a run, or chapter,", name, chapters)
    found = []
    for path in (project.state / "runs" / name).glob(f"*/{FILE_NAME}"):
        record = completed(path.parent, path.parent.name, name)
        if record and record.profile == "course":
            found.append((record.volatile.started, path.parent))
    if not found:
        raise RunRefused(f"{name} has no finished course run in this checkout; vitscope run {name} makes one")
    return max(found)[1]


def read_run(folder: Path) -> tuple[Record, dict[str, pd.DataFrame]]:
    """The record of a finished run, and the tables of it that advice needs, compared with their checksums.

    Raises `RunRefused` where there is no complete record, a table is missing or lacks a column, or a table is
    not the one that the run wrote (SHA-256).
    """
    try:
        record = Record.load(folder)
    except (OSError, ValueError) as error:
        raise RunRefused(f"{folder} holds no readable {FILE_NAME}: {error}") from error
    if not record.complete:
        raise RunRefused(
            f"the record in {folder} is not complete: the run was interactive or did not finish; "
            f"vitscope run {record.notebook} makes one that counts"
        )
    digests = {table.name: table.csv_sha256 for table in record.tables}
    return record, {name: _table(folder, record.notebook, name, digests) for name in TABLES}


def _table(folder: Path, notebook: str, name: str, digests: Mapping[str, str]) -> pd.DataFrame:
    path = folder / "tables" / f"{name}.csv"
    if name not in digests or not path.is_file():
        raise RunRefused(
            f"the run of {notebook} in {folder} has no table {name!r}; "
            f"chapter {WRITER} writes it: vitscope run {WRITER}"
        )
    if (found := sha256_file(path)) != digests[name]:
        raise RunRefused(
            f"{path} was changed after the run: its SHA-256 is {found[:12]}…, the record says "
            f"{digests[name][:12]}…; vitscope run {notebook} --force writes it again"
        )
    table = pd.read_csv(path)
    if missing := [column for column in TABLES[name] if column not in table]:
        raise RunRefused(
            f"{path} has no column {', '.join(missing)}; expected {', '.join(TABLES[name])}, "
            f"as chapter {WRITER} writes them"
        )
    return table


def _curve(accuracy: pd.DataFrame, correct: np.ndarray | None) -> tuple[pd.DataFrame, np.ndarray | None]:
    """State, accuracy and interval by ascending state from 0 on, and correctness [S, N] in that order."""
    columns = ["state", "accuracy", "low", "high"]
    if missing := [column for column in columns if column not in accuracy]:
        raise ValueError(f"accuracy has no column {', '.join(missing)}; expected {', '.join(columns)}")
    table = accuracy[columns].reset_index(drop=True)
    if correct is not None:
        _check_correct(table, correct)
    table = table[table["state"] >= 0].sort_values("state")
    if table.empty:
        raise ValueError("accuracy has no state from 0 on")
    if repeated := sorted(set(table["state"][table["state"].duplicated()].tolist())):
        raise ValueError(
            f"accuracy has states {repeated} more than once; give one backbone and one kind of token"
        )
    if not np.isfinite(table.to_numpy(float)).all():
        raise ValueError("accuracy holds NaN or infinite numbers")
    if crossed := table["state"][table["low"] > table["high"]].tolist():
        raise ValueError(f"low is above high at states {crossed}")
    return table.reset_index(drop=True), None if correct is None else correct[table.index]


def _check_correct(table: pd.DataFrame, correct: np.ndarray) -> None:
    if correct.ndim != 2 or len(correct) != len(table):
        raise ValueError(
            f"correct is [S, N] with a row for each of {len(table)} states, got {list(correct.shape)}"
        )
    apart = np.abs(100 * correct.mean(1) - table["accuracy"].to_numpy(float))
    for state, points in zip(table["state"], apart, strict=True):
        if points > _ROUNDING:
            raise ValueError(
                f"correct gives an accuracy {points:.2f} points from the table's at state {state}; "
                "its rows must be in the table's order, and the table in percent"
            )


def _spent(costs: pd.DataFrame, states: Sequence[int]) -> tuple[np.ndarray, float]:
    """Operations up to each state, and of all blocks, in 10⁹."""
    if missing := [column for column in ("state", "gflops_total") if column not in costs]:
        raise ValueError(f"costs have no column {', '.join(missing)}; vitscope.cost.layer_costs makes them")
    by_state = costs.set_index("state")["gflops_total"].sort_index()
    if without := [s for s in states if s not in by_state.index]:
        raise ValueError(f"costs have no states {without}; they know {by_state.index.tolist()}")
    if not by_state.index.is_unique or not (np.diff(by_state, prepend=0) > 0).all():
        raise ValueError("gflops_total must grow from state to state; give the costs of one backbone")
    return by_state.loc[list(states)].to_numpy(float), float(by_state.iloc[-1])


def _beaten(
    curve: pd.DataFrame, correct: np.ndarray | None, clusters: np.ndarray | None, best: int
) -> np.ndarray:
    """Whether the best state is significantly better than each [S]."""
    if correct is None:
        return (curve["low"][best] > curve["high"]).to_numpy()
    right = np.asarray(correct, dtype=float)
    return bootstrap_mean(right[best] - right, clusters=clusters).low > 0


def _gains(values: np.ndarray, spent: np.ndarray) -> np.ndarray:
    return np.concatenate([[np.nan], np.diff(values) / np.diff(spent)])


def _climb(values: np.ndarray, states: list[int], points: float) -> tuple[int | None, str]:
    """First block of the final climb to the last of `states`, or why there is none."""
    end = states[-1]
    if len(states) < SHORTEST_CURVE:
        short = (
            f"a climb takes {SHORTEST_CURVE} states or more; up to state {end} the curve has {len(states)}"
        )
        return None, short
    phases = detect_phases(values, states=states, tolerance=max(points, _STEP), band=_BAND)
    if phases.climb:
        return states[states.index(phases.climb.onset) - 1] + 1, ""
    phase = "climb" if phases.plateau else "plateau"
    why = phases.reasons[phase]
    unit = " (in percentage points)" if "±" in why else ""
    return None, f"up to state {end} a {phase} is {why}{unit}"


def _text(found: Advice, points: float) -> str:
    rows = found.evidence.set_index("state")
    here, best = rows.loc[found.truncate], rows.loc[found.best]
    reads = f"a linear probe reads {here['accuracy']:.1f} % [{here['low']:.1f} to {here['high']:.1f}] there"
    if found.truncate == found.best:
        reads += ", the most of all states"
        if found.truncate > rows.index[0]:
            reads += f"; each before it is more than {points:g} points or significantly below"
    else:
        reads += (
            f", {here['behind']:.1f} points below the best state, {found.best} ({best['accuracy']:.1f} %), "
            "which is not significantly better"
        )
    where = f"after block {found.truncate} of {found.depth}" if found.truncate else "before block 1"
    stop = f"Stop {where}: {reads}. That saves {100 * found.saved:.0f} % of embedding's and blocks' GFLOPs."
    if not found.unused:
        stop = f"Keep all {found.depth} blocks: {reads}."
    if found.fine_tune:
        base = rows["accuracy"][found.fine_tune[0] - 1]
        tune = (
            f"Fine-tune {_blocks(found.fine_tune)}, over which accuracy climbs by "
            f"{here['accuracy'] - base:.1f} points; freeze the embedding and {_blocks(found.freeze)}, over "
            f"which it changes by {base - rows['accuracy'].iloc[0]:+.1f}."
        )
    else:
        tune = f"No block is set apart for fine-tuning: {found.reason}."
    return (
        f"{stop} {tune} This is read from linear probes on frozen features of these pictures: it shows "
        "neither what fine-tuned blocks would reach nor that other data rank the states alike."
    )


def _blocks(numbers: tuple[int, ...]) -> str:
    first, last = numbers[0], numbers[-1]
    return f"block {first}" if first == last else f"blocks {first} to {last}"
