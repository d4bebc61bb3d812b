"""A sweep from its tasks to its summary: what is there is kept, what is missing is run and written down."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from vitscope.runs.layout import Project
from vitscope.runs.record import completed
from vitscope.sweeps import cluster as clusters
from vitscope.sweeps import engine, results, warm_up
from vitscope.sweeps.cluster import Cluster
from vitscope.sweeps.results import SweepError
from vitscope.sweeps.tasks import DONE, FIT, Outcome, Perform, Task, of_record, perform

Say = Callable[[str], None]
Standing = Literal["done", "failed", "lost", "missing"]


@dataclass
class Summary:
    """How a sweep ended. `early` says why it ended before every task had its turn, if it did."""

    total: int
    before: int = 0
    done: list[Task] = field(default_factory=list)
    failed: list[tuple[Task, Outcome]] = field(default_factory=list)
    early: str | None = None
    seconds: float = 0.0
    worked: float = 0.0

    @property
    def left(self) -> int:
        """Tasks without an outcome: never started, or cut off."""
        return self.total - self.before - len(self.done) - len(self.failed)

    @property
    def whole(self) -> bool:
        return not self.failed and not self.left

    def lines(self) -> list[str]:
        """The summary as text, a line for each failure."""
        before = f" ({self.before} of them before)" if self.before else ""
        text = [
            f"{self.total} tasks: {self.before + len(self.done)} done{before}, {len(self.failed)} failed, "
            f"{self.left} never started or cut off"
        ]
        if self.early:
            text.append(f"ended early: {self.early}")
        if self.done or self.failed:
            speed = f"{self.worked:.0f} s of work in {self.seconds:.0f} s"
            if self.seconds > 0:
                speed += f", {self.worked / self.seconds:.2f} at a time"
            text.append(speed)
        text += [f"! {outcome.state}: {task.words}: {outcome.message}" for task, outcome in self.failed]
        return text


def standing(task: Task, folder: Path, say: Say = lambda _: None, *, adopt: bool = True) -> Standing:
    """Whether a task's result is there, from these sources, or failed; a damaged file is said and counts not.

    A notebook's run that was finished otherwise, by `vitscope run` or a sweep that was ended, counts too and
    gets its rows here, unless `adopt` is False.
    """
    path = results.file_of(folder, task.id)
    if path.is_file():
        try:
            first = results.rows_of(path)[0]
        except SweepError as error:
            say(f"! {error}")
        else:
            if first["key"] == task.key:
                state: Standing = first["state"]
                return "done" if state == DONE or _adopt(task, folder, adopt) else state
    return "done" if _adopt(task, folder, adopt) else "missing"


def _adopt(task: Task, folder: Path, rows: bool) -> bool:
    """Whether the task's run is complete; then its `rows` are written, if wanted."""
    if task.name == FIT:
        return False
    run = Project(Path(task.root)).state / "runs" / task.name / task.key
    record = completed(run, task.key, task.name)
    if record is None:
        return False
    if rows:
        keep(folder, task, of_record(record))
    return True


def keep(folder: Path, task: Task, outcome: Outcome) -> Path:
    """Write a task's rows."""
    said = {
        "task": task.id, "sweep": task.name, "profile": task.profile, "given": task.given, "key": task.key,
        "state": outcome.state, "message": outcome.message, "seconds": outcome.seconds,
        "worker": outcome.worker, "commit": outcome.commit, "versions": outcome.versions,
        "parameters": task.parameters,
    }  # fmt: skip
    return results.write(folder, said, outcome.numbers)


def sweep(
    tasks: Sequence[Task],
    cluster: Cluster,
    folder: Path,
    *,
    retries: int = 2,
    only_failed: bool = False,
    say: Say = lambda _: None,
    heard: Callable[[Task | None, Outcome | None, int], None] = lambda *_: None,
    work: Perform = perform,
    processes: bool = True,
) -> Summary:
    """Run the tasks whose results are missing and write each outcome into `folder` as it comes.

    `only_failed` runs those that failed or were lost and no others. `say` hears what is being done, `heard`
    each task with its outcome and how many there are to run. `work` and `processes` are for tests.

    Raises `SweepError` when another sweep writes into the folder, when no scheduler answers, or when the
    cluster cannot be.
    """
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise SweepError(f"another sweep writes into {folder}; wait for it, or name other results") from None
    with lock:
        for remains in folder.glob(".*.partial"):  # of a sweep that was killed
            remains.unlink(missing_ok=True)
        stands = {task.id: standing(task, folder, say) for task in tasks}
        wanted = ("failed", "lost") if only_failed else ("failed", "lost", "missing")
        todo = [task for task in tasks if stands[task.id] in wanted]
        summary = Summary(len(tasks), sum(state == DONE for state in stands.values()))
        heard(None, None, len(todo))
        if todo:
            try:
                _fetch(todo, say)
                _fan_out(todo, cluster, folder, retries, summary, say, heard, work, processes)
            except KeyboardInterrupt:
                summary.early = engine.INTERRUPTED
    summary.seconds = time.monotonic() - began
    return summary


def _fan_out(
    todo: list[Task], cluster: Cluster, folder: Path, retries: int, summary: Summary, say: Say,
    heard: Callable[[Task | None, Outcome | None, int], None], work: Perform, processes: bool,
) -> None:  # fmt: skip
    def hear(task: Task, outcome: Outcome) -> None:
        keep(folder, task, outcome)
        if outcome.state == DONE:
            summary.done.append(task)
        else:
            summary.failed.append((task, outcome))
        summary.worked += outcome.seconds
        heard(task, outcome, len(todo))

    with clusters.started(cluster, retries, processes=processes) as running:
        say(f"{len(todo)} tasks on {running.words}")
        summary.early = engine.run(todo, running, retries, hear, work=work)


def _fetch(todo: list[Task], say: Say) -> None:
    from vitscope.runs.schema import schema_of
    from vitscope.sweeps.fits import HeadFit

    first = todo[0]
    schema = HeadFit if first.name == FIT else schema_of(first.name)
    start = Path(first.source).parent if first.source else Path(first.root)
    models, sets = warm_up.wanted((schema.validate_all(task.parameters) for task in todo), start)
    warm_up.fetch(models, sets, say)
