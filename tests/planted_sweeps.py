"""Tasks that do as they are told: succeed, fail, not start, kill their worker, or take their time.

Dask's workers import this module by its name, from the folders of `sys.path`.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from vitscope.runs.hashing import Inputs
from vitscope.sweeps import tasks
from vitscope.sweeps.fits import HeadFit
from vitscope.sweeps.grid import words
from vitscope.sweeps.results import number_row
from vitscope.sweeps.tasks import DONE, FAILED, Outcome, StartFailed, Task, task_id


def task(root: Path, seed: int, do: str = "work", *, sources: str = "a") -> Task:
    """A task of a fit that `obey` does in its own way; `sources` stands for the library's state."""
    given = {"do": do, "seed": seed}
    parameters = HeadFit.validate_all({"profile": "smoke", "seed": seed})
    inputs = Inputs(notebook="fit", parameters=str(seed), library=sources, data="", files="", environment="")
    return Task(
        task_id("fit", "smoke", given), "fit", "", "smoke", given, parameters.model_dump(mode="json"),
        inputs, str(root), words(given),
    )  # fmt: skip


def obey(task: Task, threads: int | None) -> Outcome:
    """Do what `do` says: work, fail, slow, "die N" (times), "refuse N" (times), wait (for a file)."""
    do, _, times = str(task.given["do"]).partition(" ")
    tried = _try(task)
    if do == "fail":
        return Outcome(FAILED, "the work went wrong", seconds=0.5)
    if do == "refuse" and tried <= int(times):
        raise StartFailed("no kernel")
    if do == "die" and tried <= int(times):
        os.kill(os.getpid(), signal.SIGKILL)
    if do == "slow":
        time.sleep(0.4)
    if do == "wait":
        with tasks._stopped_when_unwanted() as stop:
            while not (Path(task.root) / "go").exists():
                if stop.wait(0.05):
                    (Path(task.root) / f"stopped-{task.id}").touch()
                    return Outcome(FAILED, "stopped")
    seed = task.given["seed"]
    number = number_row("square", float(seed**2), text=f"{seed**2}", n=seed + 1, unit="apples")
    return Outcome(DONE, "", [number], 1.0, str(os.getpid()))


def tries(task: Task) -> int:
    """How often a task was begun."""
    return len(list(Path(task.root).glob(f"try-{task.id}-*")))


def _try(task: Task) -> int:
    number = tries(task) + 1
    (Path(task.root) / f"try-{task.id}-{number}").write_text(str(os.getpid()))
    return number
