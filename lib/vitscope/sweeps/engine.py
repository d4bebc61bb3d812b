"""The fan-out: tasks to Dask, outcomes back one by one, and what is said when workers or the scheduler die.

Dask schedules, tries starts again (`retries`), and runs a task again whose worker died (`allowed-failures`).
Here is only the waiting: it ends within seconds when the scheduler is gone, and at once on Ctrl-C.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Sequence
from typing import Any

from vitscope.sweeps.cluster import Running
from vitscope.sweeps.tasks import FAILED, LOST, Outcome, Perform, StartFailed, Task, perform

Heard = Callable[[Task, Outcome], None]
_GLANCE = 0.5
_TOP_UP = 15.0  # seconds between looks at whether workers are missing

GONE = "the scheduler is gone"
INTERRUPTED = "interrupted"


def run(
    tasks: Sequence[Task], running: Running, retries: int, heard: Heard, *, work: Perform = perform
) -> str | None:
    """Do the tasks on a cluster; `heard` gets each outcome as it comes, in whatever order.

    Returns None when every task has an outcome, else why it ended early: `GONE` or `INTERRUPTED`.
    """
    client = running.client
    ended: queue.SimpleQueue[tuple[Task, Any]] = queue.SimpleQueue()
    futures: list[Any] = []
    try:
        futures = _submit(client, tasks, running.threads, retries, work)
        for task, future in zip(tasks, futures, strict=True):
            future.add_done_callback(lambda done, task=task: ended.put((task, done)))
        return _listen(len(tasks), ended, running, retries, heard)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if client.status == "running":
            with contextlib.suppress(Exception):  # on the way out there is nobody left to tell
                client.cancel([one for one in futures if not one.done()], force=True)


def _submit(
    client: Any, tasks: Sequence[Task], threads: int | None, retries: int, work: Perform
) -> list[Any]:
    """A future for each task.

    A worker's death counts against every task that was sent to it, begun or not. Tasks marked as producers
    of data wait at the scheduler until a worker is free, so that none suffers for another.
    """
    import dask
    from dask._task_spec import Task as Node

    keys = [("vitscope-sweep", number, task.id) for number, task in enumerate(tasks)]
    graph = {
        key: Node(key, work, task, threads, _data_producer=True)
        for key, task in zip(keys, tasks, strict=True)
    }
    with dask.annotate(priority=_as_listed):
        futures: list[Any] = client.get(graph, keys, sync=False, retries=retries)
    return futures


def _as_listed(key: tuple[str, int, str]) -> int:
    return -key[1]


def _listen(
    count: int, ended: queue.SimpleQueue[tuple[Task, Any]], running: Running, retries: int, heard: Heard
) -> str | None:
    looked = time.monotonic()
    while count:
        try:
            task, future = ended.get(timeout=_GLANCE)
        except queue.Empty:
            if running.client.status != "running":
                return GONE
            if time.monotonic() - looked > _TOP_UP:
                looked = time.monotonic()
                running.top_up()
            continue
        outcome = _outcome(future, retries)
        if outcome is None:
            return GONE
        future.release()  # else Dask does it again when the worker that holds the answer dies
        heard(task, outcome)
        count -= 1
    return None


def _outcome(future: Any, retries: int) -> Outcome | None:
    """What a future that ended stands for; None when it was lost with the scheduler."""
    from concurrent.futures import CancelledError

    from distributed import KilledWorker
    from distributed.client import FutureCancelledError

    try:
        found = future.result()
    except KilledWorker as error:
        name = getattr(error.last_worker, "name", "?")
        times = error.allowed_failures + 1
        return Outcome(LOST, f"its worker died {times} times, the last time {name}", worker=str(name))
    except (CancelledError, FutureCancelledError):
        return None
    except StartFailed as error:
        return Outcome(FAILED, f"did not start in {retries + 1} tries: {error}")
    except Exception as error:  # of Dask or of a worker that cannot do this work at all
        if future.status != "error":  # not the task's: its result could not be fetched
            return None
        return Outcome(FAILED, f"{type(error).__name__}: {error}")
    if not isinstance(found, Outcome):
        return Outcome(FAILED, f"the worker answered with {type(found).__name__} in place of an outcome")
    return found
