"""`vitscope sweep`: a grid of notebooks or fits on this machine, any Dask scheduler, or Slurm."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitscope.terminal import plain_errors, print_table

if TYPE_CHECKING:
    from vitscope.sweeps.grid import Grid
    from vitscope.sweeps.tasks import Task


def sweep(
    grid: Annotated[Path, typer.Argument(metavar="GRID.yml", help="The grid file.")],
    workers: Annotated[int | None, typer.Option(min=1, help="Workers, in place of the grid's.")] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="tcp://…", help="Run on this Dask scheduler instead.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and print the plan; run nothing.")
    ] = False,
    only_failed: Annotated[
        bool, typer.Option("--only-failed", help="Run again what failed or was lost, and nothing else.")
    ] = False,
    table: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Print a number of the results; run nothing.")
    ] = None,
    rows: Annotated[str | None, typer.Option(help="Parameter down the table.")] = None,
    columns: Annotated[str | None, typer.Option(help="Parameter across the table.")] = None,
    digits: Annotated[int, typer.Option(min=0, max=8, help="Digits in the table.")] = 1,
) -> None:
    """Run a notebook, or fits of heads, over backbones × datasets × seeds; only what is missing."""
    with plain_errors():
        from vitscope.sweeps import grid as grids

        read = _with_options(grids.load(grid), workers, scheduler)
        if table is not None:
            return _print_table(read, table, rows, columns, digits)
        from vitscope.runs.layout import Project

        tasks = grids.plan(read, Project.find(), Path.cwd())
        if dry_run:
            return _print_plan(read, tasks)
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Slurm ends a job: Ctrl-C
        try:
            whole, early = _run(read, tasks, only_failed)
        finally:
            signal.signal(signal.SIGTERM, before)
    if early or not whole:
        options = [f"--workers {workers}"] if workers else []
        options += [f"--scheduler {shlex.quote(scheduler)}"] if scheduler else []
        typer.echo(f"resume: vitscope sweep {' '.join([shlex.quote(str(grid)), *options])}")
    raise typer.Exit(0 if whole else 130 if early == "interrupted" else 1)


def _with_options(grid: Grid, workers: int | None, scheduler: str | None) -> Grid:
    from vitscope.sweeps.cluster import Elsewhere
    from vitscope.sweeps.grid import GridError

    cluster: Any = grid.cluster
    if scheduler is not None:
        if "://" not in scheduler:
            raise GridError(f"--scheduler {scheduler}: expected an address as tcp://HOST:PORT")
        threads = cluster.threads if isinstance(cluster, Elsewhere) else None
        cluster = Elsewhere(kind="scheduler", address=scheduler, threads=threads)
    if workers is not None:
        if isinstance(cluster, Elsewhere):
            raise GridError("--workers: a scheduler that runs already has the workers that joined it")
        cluster = cluster.model_copy(update={"workers": workers})
    return grid.model_copy(update={"cluster": cluster})


def _run(grid: Grid, tasks: list[Task], only_failed: bool) -> tuple[bool, str | None]:
    from tqdm import tqdm

    from vitscope.sweeps.sweep import sweep as start
    from vitscope.sweeps.tasks import DONE, Outcome

    with tqdm(total=0, unit="task", disable=not sys.stderr.isatty(), dynamic_ncols=True) as bar:

        def say(text: str) -> None:
            bar.clear()
            typer.echo(text)

        def heard(task: Task | None, outcome: Outcome | None, count: int) -> None:
            if task is None or outcome is None:
                bar.reset(count)
                return
            bar.update()
            if outcome.state != DONE:
                say(f"! {outcome.state}: {task.words}")

        summary = start(
            tasks, grid.cluster, Path(grid.results), retries=grid.retries, only_failed=only_failed,
            say=say, heard=heard,
        )  # fmt: skip
    for line in summary.lines():
        typer.echo(line)
    typer.echo(f"results {grid.results}")
    return summary.whole or (only_failed and not summary.failed and not summary.early), summary.early


def _print_plan(grid: Grid, tasks: list[Task]) -> None:
    from vitscope.sweeps import cluster as clusters
    from vitscope.sweeps.sweep import standing

    found = [standing(task, Path(grid.results), typer.echo, adopt=False) for task in tasks]
    typer.echo(f"{len(tasks)} tasks of {tasks[0].name} · {grid.profile} · results in {grid.results}")
    shown = [[state, *task.words.split(", ")] for state, task in zip(found, tasks, strict=True)]
    width = max(map(len, shown))
    print_table([""] * width, [row + [""] * (width - len(row)) for row in shown])
    where = grid.cluster
    if isinstance(where, clusters.Slurm):
        typer.echo(f"{where.workers} jobs of this script at once:\n\n{clusters.job_script(where)}")
    elif isinstance(where, clusters.Elsewhere):
        typer.echo(f"scheduler {where.address}, which was not tried")
    else:
        devices = clusters.visible_gpus() if where.gpus else []
        count, threads = clusters.sizes(where, devices, clusters.cores())
        typer.echo(f"{count} local workers, {threads} threads each, {len(devices)} GPUs")


def _print_table(grid: Grid, number: str, rows: str | None, columns: str | None, digits: int) -> None:
    from vitscope import sweeps

    found = sweeps.read(grid.results)
    bad = found[found["state"] != "done"]["task"].nunique()
    shown = sweeps.table(found, number, rows=rows, columns=columns, digits=digits)
    typer.echo(f"{number} · mean (min to max) over everything else")
    print_table(
        [shown.index.name or "", *map(str, shown.columns)],
        [[str(index), *line] for index, line in zip(shown.index, shown.itertuples(index=False), strict=True)],
    )
    if bad:
        typer.echo(f"! {bad} tasks failed and are not in the table")
