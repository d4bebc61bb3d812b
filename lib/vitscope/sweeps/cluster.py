"""Where a sweep runs: processes on this machine, any Dask scheduler, or Slurm; its workers and their GPUs.

Each worker does one task at a time. What this module adds to Dask is the choice of GPUs and of threads.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from vitscope.errors import unknown
from vitscope.sweeps.results import SweepError

_CONNECT = 10  # seconds for each attempt to reach a scheduler
_GPUS = "CUDA_VISIBLE_DEVICES"


class Checked(BaseModel):
    """Base of what a grid file holds: strict types, unknown keys refused with near names."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values: Any) -> Any:
        for name in values if isinstance(values, Mapping) else ():
            if name not in cls.model_fields:
                raise unknown("key", name, cls.model_fields)
        return values


class Local(Checked):
    """Worker processes on this machine: one for each GPU that is visible, else one for each CPU core."""

    kind: Literal["local"] = "local"
    workers: int | None = Field(None, ge=1, description="worker processes")
    threads: int | None = Field(None, ge=1, description="CPU threads of each; its share of the cores")
    memory: str = Field("auto", description="limit of each worker, as 4GB; auto shares out the memory")
    gpus: bool = Field(True, description="false hides the GPUs")


class Elsewhere(Checked):
    """A Dask scheduler that runs already, with workers of its own."""

    kind: Literal["scheduler"]
    address: str = Field(pattern=r"^[a-z]+://.+", description="as tcp://HOST:PORT")
    threads: int | None = Field(None, ge=1, description="CPU threads of a task; the worker's if left out")


class Slurm(Checked):
    """Jobs of Slurm, one worker each, submitted by dask-jobqueue."""

    kind: Literal["slurm"]
    workers: int = Field(1, ge=1, description="jobs at once")
    queue: str | None = Field(None, description="partition (-p)")
    account: str | None = Field(None, description="account (-A)")
    walltime: str | None = Field(None, description="as 02:00:00; longer than one task takes")
    cores: int = Field(1, ge=1, description="CPU cores of a job, all for its one task")
    memory: str = Field("16GB", description="memory of a job")
    gres: str | None = Field(None, description="as gpu:1, the one GPU of a job")
    job_extra: list[str] = Field([], description="further #SBATCH directives, as -o FILE")
    prologue: list[str] = Field([], description="shell lines before the worker starts")
    python: str | None = Field(None, description="interpreter on the nodes; the running one if left out")
    interface: str | None = Field(None, description="network interface, as ib0")
    local_directory: str | None = Field(None, description="scratch folder on a node")

    @field_validator("walltime", mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        if isinstance(value, int):  # YAML takes 12:00:00 for a number to the base of 60
            raise ValueError("put the time in quotes, as '12:00:00'; without them YAML reads a number")
        return value

    @property
    def threads(self) -> int:
        return self.cores


Cluster = Local | Elsewhere | Slurm
KINDS: dict[str, type[Local] | type[Elsewhere] | type[Slurm]] = {
    "local": Local,
    "scheduler": Elsewhere,
    "slurm": Slurm,
}


@dataclass
class Running:
    """A cluster that can take tasks. `threads` are a task's; `top_up` replaces lost workers."""

    client: Any
    threads: int | None
    words: str
    top_up: Callable[[], None] = lambda: None


@contextmanager
def started(cluster: Cluster, retries: int, *, processes: bool = True) -> Iterator[Running]:
    """Start or join a cluster, and leave nothing of one that was started.

    `retries` is how often a task is run again whose worker died, and how often a scheduler is asked again.
    Without `processes`, local workers are threads of this process, for tests. Raises `SweepError`.
    """
    import dask
    from distributed import Client

    settings = {
        "distributed.scheduler.allowed-failures": retries,
        "distributed.scheduler.worker-saturation": 1.0,  # a worker has the task that it does, and no other
        # bad news is told by the summary; Dask's own logs would bury it
        "logging": {"distributed": "critical", "distributed.nanny": "critical"},
    }
    with dask.config.set(settings), tempfile.TemporaryDirectory(prefix="vitscope-sweep-") as scratch:
        _quiet()
        if isinstance(cluster, Elsewhere):
            client = _join(cluster.address, retries)
            try:
                yield Running(client, cluster.threads, f"scheduler {cluster.address}")
            finally:
                client.close(timeout=2)
            return
        made, threads, words = _made(cluster, Path(scratch), processes)
        try:
            with Client(made, set_as_default=False) as client:
                wanted = len(made.worker_spec) or getattr(cluster, "workers", 1) or 1
                yield Running(client, threads, words, lambda: made.scale(wanted))
        finally:
            made.close(timeout=10)


def _made(cluster: Local | Slurm, scratch: Path, processes: bool) -> tuple[Any, int, str]:
    if isinstance(cluster, Slurm):
        made = _jobqueue().SLURMCluster(**slurm_options(cluster))
        made.scale(jobs=cluster.workers)
        return made, cluster.threads, f"{cluster.workers} Slurm jobs"
    devices = visible_gpus() if cluster.gpus else []
    count, threads = sizes(cluster, devices, cores())
    made = _local(cluster, scratch, devices, count, threads, processes)
    return made, threads, f"{count} local workers, {threads} threads each" + (", a GPU each" * bool(devices))


def sizes(cluster: Local, devices: list[str], available: int) -> tuple[int, int]:
    """Workers and threads of each. Raises `SweepError` for more workers than GPUs."""
    count = cluster.workers or len(devices) or available
    if devices and count > len(devices):
        raise SweepError(
            f"{count} workers for {len(devices)} GPUs, but each worker gets one of its own: ask for at most "
            f"{len(devices)}, or set `gpus: false` in the grid's cluster"
        )
    return count, cluster.threads or max(1, available // count)


def worker_environment(devices: list[str], number: int, threads: int, gpus: bool) -> dict[str, str]:
    """Environment of local worker `number`: its threads, and the one GPU that it sees."""
    extra = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if devices:
        extra[_GPUS] = devices[number]
    elif not gpus:
        extra[_GPUS] = ""
    return extra


def visible_gpus() -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get(_GPUS)
    if named is not None:
        return [one.strip() for one in named.split(",") if one.strip() not in ("", "-1")]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def slurm_options(cluster: Slurm) -> dict[str, Any]:
    """What dask-jobqueue is asked for: one worker a job that does one task at a time on all of its cores."""
    options = {
        "queue": cluster.queue,
        "account": cluster.account,
        "walltime": cluster.walltime,
        "cores": 1,  # of Dask's own: tasks at once
        "processes": 1,
        "job_cpu": cluster.cores,
        "memory": cluster.memory,
        "job_name": "vitscope-sweep",
        "job_extra_directives": [*([f"--gres={cluster.gres}"] if cluster.gres else []), *cluster.job_extra],
        "job_script_prologue": [
            *(f"export {name}={cluster.cores}" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")),
            *cluster.prologue,
        ],
        "python": cluster.python,
        "interface": cluster.interface,
        "local_directory": cluster.local_directory,
    }
    return {name: value for name, value in options.items() if value is not None}


def job_script(cluster: Slurm) -> str:
    """The script that each Slurm job would be submitted with; needs no Slurm, and submits nothing."""
    job = _jobqueue().SLURMCluster.job_cls("tcp://SCHEDULER:PORT", "WORKER", **slurm_options(cluster))
    return str(job.job_script())


def _local(
    cluster: Local, scratch: Path, devices: list[str], count: int, threads: int, processes: bool
) -> Any:
    """A cluster of Dask's own whose workers differ in their environment, which its `LocalCluster` cannot."""
    from distributed import Nanny, Scheduler, SpecCluster, Worker
    from distributed.system import MEMORY_LIMIT

    limit = MEMORY_LIMIT // count if cluster.memory == "auto" else cluster.memory
    # a port of its own: two sweeps at once would both ask for the usual one
    here = {"dashboard": False, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
    common = here | {
        "nthreads": 1, "memory_limit": limit, "local_directory": str(scratch),
        "silence_logs": logging.CRITICAL,
    }  # fmt: skip
    workers = {
        number: {
            "cls": Nanny if processes else Worker,
            "options": common
            | (
                {"env": worker_environment(devices, number, threads, cluster.gpus), "preload": [__name__]}
                if processes
                else {}
            ),
        }
        for number in range(count)
    }
    scheduler = {"cls": Scheduler, "options": here | {"port": 0}}
    return SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.CRITICAL)


def dask_setup(_: Any) -> None:
    """Called by Dask in a new local worker: Ctrl-C goes to all of a terminal's processes, and is not its own.

    A handler that does nothing, unlike an ignored signal, is not handed on to the processes of a run.
    """
    signal.signal(signal.SIGINT, lambda *_: None)


def _join(address: str, retries: int) -> Any:
    from distributed import Client

    reason: Exception | None = None
    for _ in range(retries + 1):
        try:
            return Client(address, timeout=_CONNECT, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            reason = error
    raise SweepError(
        f"no Dask scheduler answers at {address} in {retries + 1} attempts ({reason}); start one with "
        "`dask scheduler`, or name another with --scheduler"
    )


def _jobqueue() -> Any:
    before = signal.getsignal(signal.SIGINT)
    try:
        import dask_jobqueue  # which turns Ctrl-C into a silent exit of the whole process
    except ModuleNotFoundError:
        raise SweepError(
            "sweeps on Slurm need dask-jobqueue: pip install 'vitscope[cluster]', or from the lock file"
        ) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
    return dask_jobqueue


def _quiet() -> None:
    for name in ("distributed", "distributed.nanny", "distributed.scheduler", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
