"""The work of a fit where it is done, and what goes wrong; notebooks: runs/test_sweep_notebook.py."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from planted_sweeps import task
from vitscope.runs import runner
from vitscope.runs.layout import Project
from vitscope.sweeps import fits, grid, read, tasks
from vitscope.sweeps.cluster import Local
from vitscope.sweeps.sweep import sweep

ONE = Local(workers=1, threads=1, gpus=False)
FIT = {
    "fit": {"heads": ["VFusion"], "images": 60, "test_images": 40, "configurations": 1, "steps": 10},
    "profile": "smoke",
}


def raising(error: Exception):
    def raise_it(*_, **__):
        raise error

    return raise_it


@pytest.fixture
def same(monkeypatch):
    """Tasks of a fit whose sources are the worker's, and whose fit is ours to plant."""

    def plant(one: tasks.Task, fit) -> tasks.Task:
        monkeypatch.setattr(fits, "inputs", lambda *_: one.inputs)
        monkeypatch.setattr(fits, "fit", fit)
        return one

    return plant


@pytest.mark.parametrize(
    "error",
    [
        runner.NotStarted("the kernel did not start in 3 attempts"),
        BlockingIOError(11, "Resource temporarily unavailable"),
    ],
)
def test_what_never_began_is_raised_so_that_it_is_tried_again(tmp_path, same, error):
    with pytest.raises(tasks.StartFailed, match=r"did not start|temporarily unavailable"):
        tasks.perform(same(task(tmp_path, 0), raising(error)))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (runner.RunFailed("cell 3 raised"), "cell 3 raised"),
        (runner.RunFailed("cell 3", Path("a.failed.ipynb")), "cell 3 (a.failed.ipynb)"),
        (ValueError("no such class"), "no such class"),
        (KeyError("x"), "KeyError: 'x'"),
        (MemoryError("8 GB"), "MemoryError: 8 GB"),
    ],
)
def test_a_failure_of_the_work_is_an_outcome_with_its_message(tmp_path, same, error, message):
    outcome = tasks.perform(same(task(tmp_path, 0), raising(error)))
    assert (outcome.state, outcome.message, outcome.numbers) == ("failed", message, [])
    assert "torch" in outcome.versions


def test_a_worker_with_other_sources_says_in_what(tmp_path, same):
    one = same(task(tmp_path, 0), raising(AssertionError("it was fitted")))
    outcome = tasks.perform(dataclasses.replace(one, inputs=one.inputs.model_copy(update={"library": "b"})))
    assert outcome.state == "failed"
    assert outcome.message.startswith("this worker differs from where the sweep was started in ")
    assert "library" in outcome.message.partition(":")[0]


def test_threads_reach_the_fit(tmp_path, same):
    seen = []
    one = same(task(tmp_path, 0), lambda p, project, threads: seen.append((p.seed, project, threads)) or [])
    assert tasks.perform(one, 3).state == "done"
    assert seen == [(0, Project(tmp_path), 3)]


def test_ids_tell_notebooks_profiles_and_values_apart():
    ids = {
        tasks.task_id("fit", "smoke", {"seed": 0}),
        tasks.task_id("fit", "course", {"seed": 0}),
        tasks.task_id("04_vfusion", "smoke", {"seed": 0}),
        tasks.task_id("fit", "smoke", {"seed": 1}),
        tasks.task_id("fit", "smoke", {"seed": "0"}),
    }
    assert len(ids) == 5
    assert tasks.task_id("fit", "smoke", {"a": 1, "b": 2}) == tasks.task_id("fit", "smoke", {"b": 2, "a": 1})


def swept(planned, folder):
    said: list[str] = []
    return sweep(planned, ONE, folder, processes=False, say=said.append), said


def test_a_fit_of_the_smoke_profile_from_grid_to_table(tmp_path):
    read_grid = grid.Grid.model_validate({**FIT, "grid": {"seed": [0, 1]}, "results": "out"})
    planned = grid.plan(read_grid, Project(tmp_path), tmp_path)
    summary, _ = swept(planned, tmp_path / "out")
    assert summary.whole, summary.lines()
    found = read(tmp_path / "out").set_index(["seed", "name"])
    for seed in (0, 1):
        accuracy = found.loc[(seed, "accuracy_VFusion")]
        best = found.loc[(seed, "accuracy_BestLayer")]
        gain = found.loc[(seed, "gain_over_best_VFusion")]
        assert 0 <= accuracy["low"] <= accuracy["value"] <= accuracy["high"] <= 100
        assert gain["value"] == pytest.approx(accuracy["value"] - best["value"])
        assert (accuracy["n"], accuracy["unit"], gain["unit"]) == (40, "%", "points")
    direct = fits.fit(fits.HeadFit.validate_all(planned[1].parameters), Project(tmp_path), threads=1)
    alone = {row["name"]: row["value"] for row in direct}
    assert alone["accuracy_VFusion"] == found.loc[(1, "accuracy_VFusion"), "value"]
