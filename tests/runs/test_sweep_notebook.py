"""A sweep of a notebook: its tasks are runs as any other, and runs that are there are its results."""

from __future__ import annotations

from pathlib import Path

from vitscope.sweeps import grid, read
from vitscope.sweeps.cluster import Local
from vitscope.sweeps.sweep import sweep

ONE = Local(workers=1, threads=1, gpus=False)


def swept(planned, folder):
    said: list[str] = []
    return sweep(planned, ONE, folder, processes=False, say=said.append), said


def test_notebooks_of_a_sweep_are_runs_and_runs_are_results_of_a_sweep(book, tmp_path):
    book.write(show=book.cells["show"] + "\nif p.rows == 3:\n    raise KeyError('three')\n")
    read_grid = grid.Grid.model_validate(
        {"notebook": "tiny", "profile": "smoke", "grid": {"rows": [3, 5]}, "results": "out", "timeout": 100.0}
    )
    planned = grid.plan(read_grid, book.project, tmp_path)
    summary, _ = swept(planned, tmp_path / "out")
    assert [one.given for one in summary.done] == [{"rows": 5}]
    ((failed, outcome),) = summary.failed
    assert failed.given == {"rows": 3}
    assert "KeyError: 'three'" in outcome.message
    left = outcome.message.rpartition("(")[2].rstrip(")")
    assert left.endswith("tiny.failed.ipynb")
    assert Path(left).is_file()
    mean = read(tmp_path / "out").query("name == 'mean'").iloc[0]
    assert (mean["rows"], mean["n"], mean["sweep"]) == (5, 10, "tiny")

    again, said = swept(planned[1:], tmp_path / "other")
    assert (again.before, said) == (1, [])  # nothing was run
    assert read(tmp_path / "other").query("name == 'mean'").iloc[0]["value"] == mean["value"]
