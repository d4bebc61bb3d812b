"""`vitscope sweep`: plans, tables, what it says of failures, and how it exits."""

from __future__ import annotations

import signal

import pytest
from typer.testing import CliRunner

from vitscope import cli
from vitscope.sweeps import sweep as sweeps
from vitscope.sweeps.tasks import FAILED, Outcome

GRID = "fit: {heads: [VFusion]}\nprofile: smoke\ngrid: {backbone: [twin_s, twin_b], seed: [0, 1]}\n"
LOCAL = "cluster: {kind: local, workers: 2, threads: 1, gpus: false}\n"


@pytest.fixture
def call(tmp_path, monkeypatch):
    """The command on a grid's text, in a folder of its own; results lie in its `out`."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(tmp_path)

    def command(text: str, *options: str):
        (tmp_path / "grid.yml").write_text(text + "results: out\n")
        return CliRunner().invoke(cli.app, ["sweep", "grid.yml", *options])

    yield command
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def planted(monkeypatch):
    """Work that fails for some backbones, on workers that are threads here."""
    failing: set[str] = set()
    original = sweeps.sweep

    def work(task, threads):
        if task.parameters["backbone"] in failing:
            return Outcome(FAILED, "out of memory", seconds=1.0)
        from vitscope.sweeps.results import number_row

        value = 50.0 + task.parameters["seed"] + 10 * (task.parameters["backbone"] == "twin_b")
        return Outcome("done", "", [number_row("accuracy", value)], 1.0)

    monkeypatch.setattr(sweeps, "sweep", lambda *a, **k: original(*a, **k, work=work, processes=False))
    return failing


def test_a_dry_run_prints_the_plan_and_writes_nothing(call, tmp_path):
    result = call(GRID + LOCAL, "--dry-run")
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.splitlines()]
    assert result.output.startswith("4 tasks of fit · smoke · results in out")
    assert ["missing", "backbone=twin_b", "seed=1"] in lines
    assert result.output.splitlines()[-1] == "2 local workers, 1 threads each, 0 GPUs"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grid.yml"]


def test_a_dry_run_for_slurm_prints_the_script_of_its_jobs(call):
    result = call(GRID + "cluster: {kind: slurm, workers: 2, queue: gpu, gres: 'gpu:1'}\n", "--dry-run")
    assert "2 jobs of this script at once:\n\n#!/usr/bin/env bash" in result.output
    assert "#SBATCH --gres=gpu:1" in result.output


def test_options_come_before_the_grid(call):
    assert "5 local workers" in call(GRID + LOCAL, "--dry-run", "--workers", "5").output
    result = call(GRID + LOCAL, "--dry-run", "--scheduler", "tcp://here:8786")
    assert result.output.splitlines()[-1] == "scheduler tcp://here:8786, which was not tried"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (GRID + "sed: 1\n", [], "Unknown key 'sed'"),
        (GRID.replace("twin_b", "twin_z"), [], "combination 3 (backbone=twin_z, seed=0): Unknown backbone"),
        (GRID, ["--scheduler", "here"], "--scheduler here: expected an address as tcp://HOST:PORT"),
        (
            GRID + "cluster: {kind: scheduler, address: 'tcp://a:1'}\n",
            ["--workers", "2"],
            "--workers: a scheduler that runs already has the workers that joined it",
        ),
    ],
)
def test_mistakes_exit_with_2_before_anything_starts(call, tmp_path, text, options, message):
    result = call(text, *options)
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "out").exists()


def test_a_sweep_that_is_whole_exits_with_0_and_runs_nothing_twice(call, planted):
    result = call(GRID + LOCAL)
    assert (result.exit_code, result.output.splitlines()[0]) == (
        0,
        "4 tasks on 2 local workers, 1 threads each",
    )
    assert result.output.splitlines()[1] == "4 tasks: 4 done, 0 failed, 0 never started or cut off"
    assert result.output.splitlines()[-1] == "results out"
    again = call(GRID + LOCAL)
    assert (again.exit_code, again.output.splitlines()) == (
        0, ["4 tasks: 4 done (4 of them before), 0 failed, 0 never started or cut off", "results out"],
    )  # fmt: skip
    plan = call(GRID + LOCAL, "--dry-run").output
    assert plan.count("done ") == 4


def test_failures_exit_with_1_and_say_how_to_resume(call, planted):
    planted.add("twin_b")
    result = call(GRID + LOCAL, "--workers", "1")
    assert result.exit_code == 1
    assert "! failed: backbone=twin_b, seed=0\n" in result.output  # as it came
    assert "! failed: backbone=twin_b, seed=1: out of memory\n" in result.output
    assert "4 tasks: 2 done, 2 failed, 0 never started or cut off" in result.output
    assert result.output.splitlines()[-1] == "resume: vitscope sweep grid.yml --workers 1"

    table = call(GRID + LOCAL, "--table", "accuracy")
    assert table.exit_code == 0
    assert table.output.splitlines() == [
        "accuracy · mean (min to max) over everything else",
        "backbone  accuracy",
        "twin_s    50.5 (50.0 to 51.0)",
        "! 2 tasks failed and are not in the table",
    ]

    planted.clear()
    assert call(GRID + LOCAL, "--only-failed").exit_code == 0
    table = call(GRID + LOCAL, "--table", "accuracy", "--columns", "seed", "--digits", "0")
    assert [line.split() for line in table.output.splitlines()[1:]] == [
        ["backbone", "0", "1"],
        ["twin_b", "60", "61"],
        ["twin_s", "50", "51"],
    ]


def test_a_table_before_there_are_results(call):
    result = call(GRID, "--table", "accuracy")
    assert result.exit_code == 1
    assert "no results in out; expected the folder that a grid names" in result.output


def test_a_sweep_that_is_interrupted_exits_as_the_shell_expects(call, monkeypatch):
    ended = sweeps.Summary(4, early="interrupted")
    monkeypatch.setattr(sweeps, "sweep", lambda *_, **__: ended)
    result = call(GRID + LOCAL)
    assert result.exit_code == 130
    assert "ended early: interrupted" in result.output
    assert result.output.splitlines()[-1] == "resume: vitscope sweep grid.yml"


def test_a_scheduler_that_is_gone_exits_with_1(call, monkeypatch):
    ended = sweeps.Summary(4, early="the scheduler is gone")
    monkeypatch.setattr(sweeps, "sweep", lambda *_, **__: ended)
    result = call(GRID, "--scheduler", "tcp://here:1")
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == "resume: vitscope sweep grid.yml --scheduler tcp://here:1"


def test_a_scheduler_that_does_not_answer_is_said(call, monkeypatch):
    from vitscope.sweeps import cluster

    monkeypatch.setattr(cluster, "_CONNECT", 0.2)
    result = call(GRID + "retries: 0\n", "--scheduler", "tcp://127.0.0.1:1")
    assert result.exit_code == 1
    assert "no Dask scheduler answers at tcp://127.0.0.1:1 in 1 attempts" in result.output
