"""What one task of a sweep is, what comes of it, and the work itself as a Dask worker does it.

A failure of the work is an outcome like any other and is not tried again. Only a start that failed is raised,
as `StartFailed`, because Dask tries again what raises.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitscope.runs import notebook as nb
from vitscope.runs import runner
from vitscope.runs.hashing import Inputs, inputs_of, sha256_text
from vitscope.runs.layout import Project
from vitscope.runs.provenance import commit_of, versions
from vitscope.runs.record import Record
from vitscope.runs.schema import schema_of
from vitscope.sweeps.results import number_row

FIT = "fit"
DONE, FAILED, LOST = "done", "failed", "lost"
_GLANCE = 0.5


class StartFailed(RuntimeError):
    """The work never began; trying again may help."""


@dataclass(frozen=True)
class Task:
    """One combination of a grid. `parameters` are complete and checked, `given` what the grid says of it.

    `id` names the combination whatever the library does, and with it the task's file; `inputs` are those of
    a run, so that their key says whether a result is of these sources. `words` tell the combination apart.
    """

    id: str
    name: str
    source: str
    profile: str
    given: dict[str, Any]
    parameters: dict[str, Any]
    inputs: Inputs
    root: str
    words: str
    timeout: float | None = None

    @property
    def key(self) -> str:
        return self.inputs.key

    def job(self) -> runner.Job:
        """The run that a notebook's task stands for, its inputs as they are where this is called."""
        source, project = Path(self.source), Project(Path(self.root))
        parameters = schema_of(self.name).validate_all(self.parameters)
        inputs = inputs_of(nb.digest(nb.read(source)), parameters, project, source.parent)
        return runner.Job(self.name, source, parameters, inputs, project)


@dataclass(frozen=True)
class Outcome:
    """What came of a task. `numbers` are rows with name, value, low, high, spread, n, unit and text."""

    state: str
    message: str = ""
    numbers: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    worker: str = ""
    commit: str | None = None
    versions: dict[str, str] = field(default_factory=dict)


Perform = Callable[[Task, int | None], Outcome]


def perform(task: Task, threads: int | None = None) -> Outcome:
    """Do a task here, with so many CPU threads (None: as the environment says).

    Errors: `StartFailed`. Whatever else goes wrong is a failed outcome with its message.
    """
    began = time.monotonic()
    worker = _worker_name()
    try:
        with _stopped_when_unwanted() as stop:
            if task.name == FIT:
                return _fit(task, threads, worker, began)
            return _notebook(task, threads, stop, worker)
    except (runner.NotStarted, BlockingIOError) as error:  # the latter: no process could be made
        raise StartFailed(str(error)) from None
    except Exception as error:  # the boundary of the worker: the sweep must hear of it, and others go on
        named = type(error).__module__.startswith("vitscope") or isinstance(error, ValueError)
        message = str(error) if named else f"{type(error).__name__}: {error}"
        if isinstance(error, runner.RunFailed) and error.notebook:
            message += f" ({error.notebook})"
        return Outcome(FAILED, message, seconds=_since(began), worker=worker, versions=versions())


def of_record(record: Record, worker: str = "") -> Outcome:
    """The outcome that a finished run stands for."""
    return Outcome(
        DONE,
        numbers=[
            number_row(
                name, one.value, text=one.text, n=one.n, unit=one.unit,
                interval=one.spread if isinstance(one.spread, tuple) else None,
                spread=one.spread if isinstance(one.spread, float) else None,
            )
            for name, one in record.numbers.items()
        ],
        seconds=record.volatile.seconds,
        worker=worker,
        commit=record.volatile.commit,
        versions=record.versions,
    )  # fmt: skip


def task_id(name: str, profile: str, given: dict[str, Any]) -> str:
    """A name for a combination that does not hang on the order of its parameters."""
    return sha256_text(repr((name, profile, sorted(given.items()))))[:16]


def _notebook(task: Task, threads: int | None, stop: threading.Event, worker: str) -> Outcome:
    job = task.job()
    _require_same(task, job.inputs)
    result = runner.execute(job, threads=threads, timeout=task.timeout, stop=stop)
    return of_record(result.record, worker)


def _fit(task: Task, threads: int | None, worker: str, began: float) -> Outcome:
    from vitscope.sweeps import fits

    parameters, project = fits.HeadFit.validate_all(task.parameters), Project(Path(task.root))
    _require_same(task, fits.inputs(parameters, project))
    numbers = fits.fit(parameters, project, threads=threads)
    commit, _ = commit_of(project.root)
    return Outcome(DONE, "", numbers, _since(began), worker, commit, versions())


def _require_same(task: Task, here: Inputs) -> None:
    """A worker with other sources would compute other numbers and file them under this key."""
    if different := here.changed_since(task.inputs):
        raise RuntimeError(
            f"this worker differs from where the sweep was started in {', '.join(different)}: both need the "
            "same clone and environment, and local files at the same place"
        )


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)


def _worker_name() -> str:
    """What Dask calls the worker that runs this thread; empty outside one."""
    worker = _worker()
    return "" if worker is None else str(worker.name)


def _worker() -> Any:
    import sys

    if "distributed" not in sys.modules:  # called without Dask, as from a test
        return None
    from distributed import get_worker

    try:
        return get_worker()
    except ValueError:
        return None


@contextmanager
def _stopped_when_unwanted() -> Iterator[threading.Event]:
    """An event that is set once Dask wants the task no longer: cancelled, or its client or scheduler gone.

    Dask cannot end a thread; it leaves the task's state as cancelled, or its worker's as closing.
    """
    stop, over = threading.Event(), threading.Event()
    worker = _worker()
    if worker is not None:
        key = worker.get_current_task()
        running = type(worker.status).running

        def watch() -> None:
            while not over.wait(_GLANCE):
                state = worker.state.tasks.get(key)
                if state is None or state.state == "cancelled" or worker.status != running:
                    return stop.set()
            return None

        threading.Thread(target=watch, daemon=True, name="vitscope-sweep-watch").start()
    try:
        yield stop
    finally:
        over.set()
