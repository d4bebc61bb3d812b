"""`run(notebook, profile, …)`: one notebook from checked parameters to a record that can be trusted.

    preflight -> child process (papermill, this interpreter's kernel) -> checks -> move into place

A run is written under a temporary name. Only when it has finished, shows what it should and carries a
complete record does it move to `.vitscope/runs/NOTEBOOK/KEY/`. A failed run leaves `NOTEBOOK.failed.ipynb`
there instead, which nothing takes for a result.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from filelock import FileLock, Timeout

from vitscope.runs import child, postprocess, preflight, worker
from vitscope.runs import notebook as nb
from vitscope.runs.hashing import Inputs, inputs_of, sha256_file
from vitscope.runs.layout import Project
from vitscope.runs.parameters import Parameters
from vitscope.runs.provenance import commit_of
from vitscope.runs.record import FILE_NAME, Record, completed
from vitscope.runs.schema import resolve, schema_of
from vitscope.runs.session import PREFIX, RUN_DIR, RUN_KEY

ATTEMPTS = 3
START_TIMEOUT = 120
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # torch follows the first, MKL's own loops the second
TIMEOUTS = {"smoke": 900, "course": 3600, "colab": 2 * 3600, "paper": 48 * 3600}


class RunFailed(RuntimeError):
    """A run did not complete. `notebook` is the `.failed.ipynb` that it left, if a cell was reached."""

    def __init__(self, message: str, notebook: Path | None = None) -> None:
        super().__init__(message)
        self.notebook = notebook


class NotStarted(RunFailed):
    """No attempt reached a cell: nothing was computed, and another try may help."""


@dataclass(frozen=True)
class Job:
    """A notebook with its parameters, and where its result belongs."""

    name: str
    source: Path
    parameters: Parameters
    inputs: Inputs
    project: Project

    @property
    def folder(self) -> Path:
        return self.project.state / "runs" / self.name / self.inputs.key

    @property
    def failed(self) -> Path:
        return self.folder / f"{self.name}.failed.ipynb"

    def result(self) -> Result | None:
        """The finished result of exactly these inputs, if there is one."""
        record = completed(self.folder, self.inputs.key, self.name)
        return Result(record, self.folder, reused=True) if record else None

    def check(self) -> None:
        """Raise `PreflightError`, with the notebook's name, unless all that the parameters name is there."""
        try:
            preflight.check(self.parameters, self.source.parent)
        except preflight.PreflightError as error:
            raise preflight.PreflightError(f"{self.name}: {error}") from None

    def last_seconds(self) -> float | None:
        """What the notebook's latest finished run took with this profile, whatever has changed since."""
        found = []
        for path in self.folder.parent.glob(f"*/{FILE_NAME}"):
            record = completed(path.parent, path.parent.name, self.name)
            if record and record.profile == self.parameters.profile and not record.changed:
                found.append((record.volatile.started, record.volatile.seconds))
        return max(found)[1] if found else None


@dataclass(frozen=True)
class Result:
    """A completed run on disk: the executed notebook, `record.json`, `figures/` and `tables/`."""

    record: Record
    folder: Path
    reused: bool

    @property
    def notebook(self) -> Path:
        return self.folder / f"{self.record.notebook}.ipynb"


def run(
    notebook: str,
    profile: str = "course",
    *,
    project: Project | None = None,
    force: bool = False,
    timeout: float | None = None,
    **parameters: Any,
) -> Record:
    """Run a notebook with a profile and single parameters changed, or reuse the result of the same inputs.

    Errors: `UnknownName`, `ParameterError`, `NotebookError` and `PreflightError` before a kernel starts;
    `RunFailed` afterwards. `timeout` is in seconds for the whole run, `force` ignores an earlier result.
    """
    return execute(plan(notebook, profile, parameters, project=project), force=force, timeout=timeout).record


def plan(
    notebook: str,
    profile: str = "course",
    overrides: dict[str, Any] | None = None,
    *,
    text: dict[str, str] | None = None,
    project: Project | None = None,
) -> Job:
    """Everything that is settled before a kernel starts: parameters, sources, key."""
    project = project or Project.find()
    source = project.notebook(notebook)
    parameters = resolve(source.stem, profile, overrides, text=text)
    node = nb.read(source)
    nb.check(node, schema_of(source.stem))
    parameters = preflight.localise(parameters, Path.cwd(), source.parent, project.root)
    inputs = inputs_of(nb.digest(node), parameters, project, source.parent)
    return Job(source.stem, source, parameters, inputs, project)


def execute(
    job: Job,
    *,
    force: bool = False,
    timeout: float | None = None,
    threads: int | None = None,
    stop: threading.Event | None = None,
    progress: child.Progress | None = None,
) -> Result:
    """Run a job unless its result is there. Two calls for one job do not run it twice.

    `threads` is how many CPU threads the kernel gets (None: as the environment says, else all). Setting
    `stop` from another thread ends the run, and with it its processes, as a `RunFailed`.
    """
    stop = stop or threading.Event()
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(job, stop):
        if not force and (result := job.result()):
            return result
        for remains in job.folder.parent.glob(f".{job.inputs.key}-*"):  # of a runner that was killed
            shutil.rmtree(remains, ignore_errors=True)
        job.check()
        return _run(job, timeout or TIMEOUTS[job.parameters.profile], threads, stop, progress)


@contextmanager
def _locked(job: Job, stop: threading.Event) -> Iterator[None]:
    """Hold the job's lock; waiting for it, which can take as long as another runner's run, heeds `stop`."""
    lock = FileLock(job.folder.parent / f".{job.inputs.key}.lock")
    while not lock.is_locked:
        try:
            lock.acquire(timeout=1)
        except Timeout:
            if stop.is_set():
                raise RunFailed(f"{job.name}: not started, the build ended early") from None
    try:
        yield
    finally:
        lock.release()


def _run(
    job: Job, timeout: float, threads: int | None, stop: threading.Event, progress: child.Progress | None
) -> Result:
    with tempfile.TemporaryDirectory(prefix=f".{job.inputs.key}-", dir=job.folder.parent) as scratch:
        workplace = Path(scratch)
        product = workplace / "result"
        product.mkdir()
        raw = workplace / "executed.ipynb"
        started = time.monotonic()
        try:
            _attempts(job, raw, workplace, started + timeout, threads, stop, progress)
            record = _finish(job, raw, product, time.monotonic() - started)
        except BaseException as error:
            failed = _keep_failed(job, raw, error)
            if isinstance(error, RunFailed | postprocess.OutputError):
                kind = NotStarted if isinstance(error, NotStarted) else RunFailed
                raise kind(f"{job.name}: {error}", failed) from None
            raise
        _move(product, job.folder)
    return Result(record, job.folder, reused=False)


def _attempts(
    job: Job,
    raw: Path,
    workplace: Path,
    deadline: float,
    threads: int | None,
    stop: threading.Event,
    progress: child.Progress | None,
) -> None:
    """Run the worker; a kernel that never reached a cell is started again, with fresh sockets or ports."""
    request = {
        "name": job.name,
        "source": str(job.source),
        "output": str(raw),
        "parameters": job.parameters.model_dump(mode="json"),
        "folder": str(job.source.parent),
        "start_timeout": START_TIMEOUT,
        "cells": len(nb.read(job.source).cells) + 1,  # papermill adds one
    }
    marks = {PREFIX: sys.prefix, RUN_DIR: str(workplace / "result"), RUN_KEY: job.inputs.key}
    if threads is not None:
        marks |= dict.fromkeys(THREADS, str(threads))
    for attempt in range(1, ATTEMPTS + 1):
        outcome, message = child.work(request, workplace / str(attempt), marks, deadline, stop, progress)
        if outcome == worker.OK:
            return
        if outcome != worker.NOT_STARTED:
            break
    else:
        raise NotStarted(f"the kernel did not start in {ATTEMPTS} attempts: {message}")
    raise RunFailed(message)


def _finish(job: Job, raw: Path, product: Path, seconds: float) -> Record:
    """Check what the notebook shows, write it as it is published, and complete its record."""
    executed = nb.read(raw)
    postprocess.check_outputs(executed, nb.promises(nb.read(job.source)))
    if not (product / FILE_NAME).is_file():
        raise RunFailed("the notebook ended without run.finish(), so there is no record of what it did")
    record = Record.load(product)
    if record.notebook != job.name or record.parameters != job.parameters.model_dump(mode="json"):
        raise RunFailed(
            f"the notebook began a run of {record.notebook} with other parameters than were injected"
        )
    times = postprocess.cell_seconds(executed)
    version = record.versions.get("python", "3")
    published = postprocess.publishable(executed, version, postprocess.private_paths(job.project.root))
    target = product / f"{job.name}.ipynb"
    nbformat.write(published, target)
    commit, modified = commit_of(job.project.root)
    volatile = record.volatile.model_copy(
        update={
            "seconds": round(seconds, 3),
            "cell_seconds": times,
            "commit": commit,
            "modified": modified,
            "notebook_sha256": sha256_file(target),
        }
    )
    record = record.model_copy(
        update={"complete": True, "inputs": job.inputs, "key": job.inputs.key, "volatile": volatile}
    )
    record.save(product)
    return record


def _keep_failed(job: Job, raw: Path, error: BaseException) -> Path | None:
    """Leave what was executed as `NOTEBOOK.failed.ipynb`, beside nothing that looks like its result."""
    if not raw.is_file():
        return None
    try:
        partial = nb.read(raw)
    except nb.NotebookError:  # the worker was ended while it wrote
        partial = None
    node = postprocess.mark_failed(partial, str(error) or type(error).__name__, job.name)
    if (job.folder / FILE_NAME).is_file() and job.result() is None:
        shutil.rmtree(job.folder)
    job.folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(node, job.failed)
    return job.failed


def _move(product: Path, target: Path) -> None:
    """Put a finished result in place; an earlier one, or a failure's remains, make way."""
    if target.exists():
        shutil.rmtree(target)
    product.rename(target)
