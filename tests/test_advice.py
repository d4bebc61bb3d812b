"""Advice on planted curves, its rules one by one, and what a run's folder must be to be read."""

import re

import numpy as np
import pandas as pd
import pytest

from vitscope.advice import RunRefused, advise, advise_backbones, find_run, read_run
from vitscope.errors import UnknownName
from vitscope.runs.hashing import sha256_text
from vitscope.runs.layout import Project
from vitscope.runs.record import Record, Shown, Volatile


def curve(values, width=0.4, first=0):
    values = np.asarray(values, dtype=float)
    return pd.DataFrame(
        {
            "state": range(first, first + len(values)),
            "accuracy": values,
            "low": values - width / 2,
            "high": values + width / 2,
        }
    )


def costs(depth, embedding=0.5, block=1.0):
    gflops = np.array([embedding, *[block] * depth])
    return pd.DataFrame(
        {
            "state": range(depth + 1),
            "gflops": gflops,
            "gflops_total": gflops.cumsum(),
            "share": gflops / gflops.sum(),
        }
    )


# rests to state 5, climbs to 9, and ends three blocks later than it pays
CLIMB = [20, 20.3, 20.1, 20.2, 20.0, 20.1, 30, 42, 52, 60, 60.2, 60.3, 60.1]


def test_a_plateau_a_climb_and_idle_blocks_after_it():
    found = advise(curve(CLIMB), costs(12))
    assert (found.truncate, found.best, found.depth, found.unused) == (9, 11, 12, 3)
    assert found.freeze == (1, 2, 3, 4, 5)
    assert found.fine_tune == (6, 7, 8, 9)
    assert found.saved == pytest.approx(3 / 12.5)
    assert found.reason == ""
    for part in (
        "Stop after block 9 of 12: a linear probe reads 60.0 % [59.8 to 60.2] there, 0.3 points below",
        "the best state, 11 (60.3 %), which is not significantly better",
        "saves 24 % of",
        "Fine-tune blocks 6 to 9, over which accuracy climbs by 39.9 points",
        "freeze the embedding and blocks 1 to 5, over which it changes by +0.1",
        "it shows neither what fine-tuned blocks would reach",
    ):
        assert part in found.text


def test_evidence_holds_gains_by_hand():
    found = advise(curve([10, 14, 20, 19, 19.5]), costs(4, block=2.0))
    table = found.evidence
    np.testing.assert_allclose(table["per_block"], [np.nan, 4, 6, -1, 0.5])
    np.testing.assert_allclose(table["per_gflop"], [np.nan, 2, 3, -0.5, 0.25])
    np.testing.assert_allclose(table["share"], costs(4, block=2.0)["share"])
    np.testing.assert_allclose(table["behind"], [10, 6, 0, 1, 0.5])
    assert table["beaten"].tolist() == [True, True, False, True, True]
    assert list(table) == [
        "state", "accuracy", "low", "high", "behind", "beaten", "per_block", "per_gflop", "share",
    ]  # fmt: skip


@pytest.mark.parametrize(("points", "truncate"), [(0, 11), (0.1, 10), (0.3, 9), (9, 8), (50, 0)])
def test_points_are_what_may_be_given_up(points, truncate):
    wide = advise(curve(CLIMB, width=200), costs(12), points=points)
    assert wide.truncate == truncate


def test_a_significantly_better_state_is_not_given_up_however_many_points_are_allowed():
    assert advise(curve(CLIMB, width=0.2), costs(12), points=50).truncate == 10
    assert advise(curve(CLIMB, width=0.08), costs(12), points=50).truncate == 11


def slow_beaten(correct, draws=1000):
    """The paired bootstrap, picture by picture, with one resample after another."""
    rng = np.random.default_rng(5)
    best = correct.mean(1).argmax()
    count = correct.shape[1]
    sums = []
    for _ in range(draws):
        chosen = rng.integers(0, count, count)
        sums.append((correct[best, chosen].astype(float) - correct[:, chosen]).mean(1))
    return np.quantile(sums, 0.025, axis=0) > 0


def nested(rates, count):
    """Correctness [S, N] in which who answers more pictures right answers the same ones right too."""
    return np.arange(count) < (np.asarray(rates) * count)[:, None]


def test_pairs_tell_apart_what_intervals_do_not():
    rates = [0.30, 0.50, 0.55, 0.60]
    correct = nested(rates, 200)
    table = curve(100 * correct.mean(1), width=14)  # about ± 2 standard errors
    alone, paired = advise(table, costs(3), points=20), advise(table, costs(3), points=20, correct=correct)
    assert alone.truncate == 1
    assert paired.truncate == 3
    assert paired.evidence["beaten"].tolist() == slow_beaten(correct).tolist() == [True, True, True, False]


def test_clusters_widen_the_paired_interval():
    correct = np.ones((3, 80), dtype=bool)
    correct[0, :16] = False  # two clusters of eight
    correct[1, ::10] = False  # eight pictures all over
    table, clusters = curve(100 * correct.mean(1)), np.repeat(np.arange(10), 8)
    assert advise(table, costs(2), correct=correct).evidence["beaten"].tolist() == [True, True, False]
    clustered = advise(table, costs(2), correct=correct, clusters=clusters)
    assert clustered.evidence["beaten"].tolist() == [False, True, False]


@pytest.mark.parametrize("depth", [12, 24])
@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_the_unit_of_costs_and_the_order_of_rows_do_not_matter(factor, depth):
    values = [*CLIMB, *[60.0] * (depth - 12)]
    spent = costs(depth)
    reference = advise(curve(values), spent)
    shuffled = curve(values).sample(frac=1, random_state=0)
    other = advise(shuffled, spent.assign(gflops_total=factor * spent["gflops_total"]))
    assert (other.truncate, other.freeze, other.fine_tune, other.text) == (
        reference.truncate, reference.freeze, reference.fine_tune, reference.text,
    )  # fmt: skip
    assert other.saved == pytest.approx(reference.saved)


def test_the_state_before_the_position_embedding_is_left_out_with_its_pictures():
    rng = np.random.default_rng(0)
    correct = rng.random((14, 500)) < np.array([0.9, *CLIMB])[:, None] / 100
    correct[0] = True
    table = curve(100 * correct.mean(1), first=-1)
    found = advise(table, costs(12), correct=correct)
    reference = advise(table[1:], costs(12), correct=correct[1:])
    assert found.best > 5
    assert found.evidence.equals(reference.evidence)
    assert found.evidence["state"].tolist() == list(range(13))


def test_skipped_states_give_whole_blocks():
    values = curve(CLIMB)[::2]
    found = advise(values, costs(12), points=1)
    assert found.truncate == 10
    assert found.fine_tune == (5, 6, 7, 8, 9, 10)
    assert found.freeze == (1, 2, 3, 4)
    assert found.evidence["per_block"].iloc[3] == pytest.approx((30 - 20.0) / 2)


@pytest.mark.parametrize(
    ("values", "truncate", "reason"),
    [
        ([60.0] * 13, 0, "a climb takes 5 states or more; up to state 0 the curve has 1"),
        ([20, 40, 60, *[59.9] * 10], 2, "a climb takes 5 states or more; up to state 2 the curve has 3"),
        (np.linspace(20, 80, 13), 12, "a plateau is not detected, because at most 3 states in a row stay"),
        (np.minimum(20 + 20 * np.arange(13), 60 + 0.6 * np.arange(13)), 12,
         "a climb is not detected, because the plateau lasts to the last state"),
    ],
)  # fmt: skip
def test_no_blocks_to_fine_tune_has_its_reason(values, truncate, reason):
    found = advise(curve(values), costs(12))
    assert found.truncate == truncate
    assert (found.freeze, found.fine_tune) == ((), ())
    assert reason in found.reason
    assert f"No block is set apart for fine-tuning: {found.reason}." in found.text


def test_the_text_fits_the_ends_of_the_model():
    assert advise(curve([60.0] * 13), costs(12)).text.startswith("Stop before block 1: ")
    whole = advise(curve(np.linspace(20, 80, 13)), costs(12)).text
    assert whole.startswith("Keep all 12 blocks: a linear probe reads 80.0 %")
    assert "the most of all states; each before it is more than 0.5 points or significantly below" in whole
    assert "saves" not in whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": -1}, "0 or more, got -1"),
        ({"accuracy": curve([1, 2]).drop(columns="low")}, "accuracy has no column low; expected state, acc"),
        ({"accuracy": pd.concat([curve([1, 2])] * 2)}, "states [0, 1] more than once"),
        ({"accuracy": curve([1, np.nan])}, "NaN or infinite"),
        ({"accuracy": curve([1, 2], width=-1)}, "low is above high at states [0, 1]"),
        ({"accuracy": curve([1], first=-1)}, "no state from 0 on"),
        ({"accuracy": curve([1, 2, 3, 4])}, "costs have no states [3]; they know [0, 1, 2]"),
        ({"costs": costs(2).drop(columns="gflops_total")}, "vitscope.cost.layer_costs makes them"),
        ({"costs": pd.concat([costs(2)] * 2)}, "give the costs of one backbone"),
        ({"correct": np.ones((2, 10), dtype=bool)}, "a row for each of 3 states, got [2, 10]"),
        ({"correct": np.ones((3, 10), dtype=bool)}, "90.00 points from the table's at state 0"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {"accuracy": curve([10, 20, 30]), "costs": costs(2), **change}
    with pytest.raises(ValueError, match=re.escape(message)):
        advise(arguments.pop("accuracy"), arguments.pop("costs"), **arguments)


PROBES = pd.concat(
    [
        curve(values).assign(backbone=name, token=token)
        for name, token, values in (
            ("deep", "CLS token", np.linspace(20, 80, 13)),
            ("deep", "mean patch token", CLIMB),
            ("bare", "mean patch token", [60.0] * 13),
        )
    ]
)
COSTS = pd.concat([costs(12).assign(backbone=name, params=1, params_total=1) for name in ("deep", "bare")])


def write_run(folder, *, tables=None, **changes):
    """A run's folder as the runner leaves it, without its notebook."""
    tables = {"probes_by_state": PROBES, "cost": COSTS} if tables is None else tables
    (folder / "tables").mkdir(parents=True)
    shown = []
    for name, table in tables.items():
        text = table.to_csv(index=False, lineterminator="\n")
        (folder / "tables" / f"{name}.csv").write_text(text, encoding="utf-8")
        shown.append(Shown(name=name, text="t", rows=len(table), csv_sha256=sha256_text(text)))
    record = {"complete": True, "notebook": "02_information_scrambling", "profile": "course", "key": "k1"}
    Record(**{**record, "parameters": {}, "tables": shown, **changes}).save(folder)
    return folder


def test_a_run_is_read_and_each_backbone_advised(tmp_path):
    record, tables = read_run(write_run(tmp_path / "run"))
    assert record.key == "k1"
    found = advise_backbones(tables, token="mean patch token")
    assert {name: one.truncate for name, one in found.items()} == {"deep": 9, "bare": 0}
    assert found["deep"].text == advise(curve(CLIMB), costs(12)).text
    only = advise_backbones(tables, token="CLS token", backbone="deep", points=10)
    assert list(only) == ["deep"]
    assert only["deep"].truncate == 12  # intervals of 0.4 points tell 75 % from 80 %


def test_names_that_the_run_does_not_know(tmp_path):
    _, tables = read_run(write_run(tmp_path / "run"))
    with pytest.raises(UnknownName, match=r"Unknown backbone of this run 'deap'\. Did you mean 'deep'"):
        advise_backbones(tables, token="CLS token", backbone="deap")
    with pytest.raises(UnknownName, match=r"Unknown token of bare 'CLS token'\. Available: mean patch token"):
        advise_backbones(tables, token="CLS token")
    tables["cost"] = costs(12).assign(backbone="deep")
    with pytest.raises(RunRefused, match="'cost' of this run has no rows of bare"):
        advise_backbones(tables, token="mean patch token")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"complete": False}, "is not complete: the run was interactive or did not finish"),
        ({"tables": {"cost": COSTS}},
         "has no table 'probes_by_state'; chapter 02_information_scrambling writes it"),
        ({"tables": {"probes_by_state": PROBES.drop(columns="low"), "cost": COSTS}},
         "has no column low; expected backbone, token, state"),
    ],
)  # fmt: skip
def test_runs_that_are_refused(tmp_path, changes, message):
    with pytest.raises(RunRefused, match=message):
        read_run(write_run(tmp_path / "run", **changes))


def test_a_changed_table_is_refused(tmp_path):
    folder = write_run(tmp_path / "run")
    path = folder / "tables" / "cost.csv"
    path.write_text(path.read_text().replace("0.5", "0.4"))
    with pytest.raises(RunRefused, match=r"cost.csv was changed after the run: its SHA-256 is \w{12}…"):
        read_run(folder)
    path.unlink()
    with pytest.raises(RunRefused, match="has no table 'cost'"):
        read_run(folder)


def test_folders_without_a_record_are_refused(tmp_path):
    with pytest.raises(RunRefused, match=r"holds no readable record\.json"):
        read_run(tmp_path)


def test_a_chapter_means_its_latest_finished_course_run(tmp_path, monkeypatch):
    monkeypatch.setattr(Project, "find", classmethod(lambda cls: cls(tmp_path)))
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "02_scrambling.ipynb").write_text("{}")
    with pytest.raises(UnknownName, match="Did you mean '02_scrambling'"):
        find_run("02_scramblin")
    with pytest.raises(RunRefused, match="no finished course run in this checkout; vitscope run 02_scra"):
        find_run("02_scrambling")
    for key, profile, started, complete in (
        ("old", "course", "2025-01-01", True),
        ("new", "course", "2025-03-01", True),
        ("smoke", "smoke", "2025-04-01", True),
        ("broken", "course", "2025-05-01", False),
    ):
        folder = tmp_path / ".vitscope" / "runs" / "02_scrambling" / key
        folder.mkdir(parents=True)
        (folder / "02_scrambling.ipynb").write_text("")
        write_run(
            folder, notebook="02_scrambling", key=key, profile=profile, complete=complete,
            volatile=Volatile(started=started, notebook_sha256=sha256_text("")),
        )  # fmt: skip
    assert find_run("02_scrambling").name == "new"
    assert find_run(str(tmp_path)) == tmp_path
