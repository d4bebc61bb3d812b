"""What becomes of a sweep when tasks, workers, the scheduler or its user end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from planted_sweeps import obey, task, tries
from processes import environment
from vitscope.sweeps import engine, read, results
from vitscope.sweeps.cluster import Elsewhere, Local, started
from vitscope.sweeps.sweep import standing, sweep

TWO = Local(workers=2, threads=1, gpus=False)
ONE = Local(workers=1, threads=1, gpus=False)
LOST = "its worker died 2 times, the last time"


def run(tasks, folder, cluster=ONE, **options):
    """A sweep, and what it said."""
    said: list[str] = []
    options = {"processes": False, "retries": 1, "work": obey, "say": said.append} | options
    return sweep(tasks, cluster, folder, **options), said


def squares(folder: Path) -> dict[int, float]:
    found = read(folder)
    return {int(s): v for s, v in zip(found["seed"], found["value"], strict=True) if v == v}


def seeds(tasks) -> list[int]:
    return sorted(one.given["seed"] for one in tasks)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def workers_of(root: Path) -> set[int]:
    """Processes that began a task."""
    return {int(path.read_text()) for path in root.glob("try-*")}


def until(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


# without processes ---------------------------------------------------------------------------------------


def test_a_sweep_writes_a_file_a_task(tmp_path):
    tasks = [task(tmp_path, seed) for seed in range(3)]
    summary, said = run(tasks, tmp_path / "out")
    assert summary.whole
    assert squares(tmp_path / "out") == {0: 0, 1: 1, 2: 4}
    assert said == ["3 tasks on 1 local workers, 1 threads each"]
    assert summary.lines()[0] == "3 tasks: 3 done, 0 failed, 0 never started or cut off"
    assert summary.lines()[1].startswith("3 s of work in ")


def test_tasks_are_begun_in_the_order_of_the_file(tmp_path):
    heard = []
    tasks = [task(tmp_path, seed) for seed in range(12)]
    run(tasks, tmp_path / "out", heard=lambda one, *_: heard.append(one and one.given["seed"]))
    assert heard == [None, *range(12)]


def test_the_same_call_again_runs_nothing(tmp_path):
    tasks = [task(tmp_path, seed) for seed in range(2)]
    run(tasks, tmp_path / "out")
    summary, said = run(tasks, tmp_path / "out")
    assert said == []
    assert summary.whole
    assert summary.lines() == ["2 tasks: 2 done (2 of them before), 0 failed, 0 never started or cut off"]
    assert [tries(one) for one in tasks] == [1, 1]


def test_only_what_is_missing_is_run(tmp_path):
    tasks = [task(tmp_path, seed) for seed in range(3)]
    run(tasks[:2], tmp_path / "out")
    summary, _ = run(tasks, tmp_path / "out")
    assert (summary.before, seeds(summary.done)) == (2, [2])


def test_results_of_other_sources_count_not_and_are_replaced(tmp_path):
    run([task(tmp_path, 1)], tmp_path / "out")
    other = task(tmp_path, 1, sources="b")
    assert standing(other, tmp_path / "out") == "missing"
    run([other], tmp_path / "out")
    assert list(read(tmp_path / "out")["key"]) == [other.key]


def test_a_damaged_file_is_said_and_replaced(tmp_path):
    tasks = [task(tmp_path, seed) for seed in range(2)]
    run(tasks, tmp_path / "out")
    results.file_of(tmp_path / "out", tasks[1].id).write_bytes(b"PAR1")
    summary, said = run(tasks, tmp_path / "out")
    assert said[0].startswith(f"! {tmp_path}/out/{tasks[1].id}.parquet cannot be read")
    assert (summary.before, seeds(summary.done)) == (1, [1])
    assert squares(tmp_path / "out") == {0: 0, 1: 1}


def test_remains_of_a_killed_sweep_are_removed(tmp_path):
    (tmp_path / "out").mkdir()
    remains = tmp_path / "out" / ".abc-1.partial"
    remains.touch()
    run([task(tmp_path, 0)], tmp_path / "out")
    assert not remains.exists()


def test_a_failing_task_is_not_tried_again_and_others_go_on(tmp_path):
    tasks = [task(tmp_path, 0, "fail"), task(tmp_path, 1), task(tmp_path, 2)]
    summary, _ = run(tasks, tmp_path / "out")
    assert (tries(tasks[0]), seeds(summary.done), summary.whole) == (1, [1, 2], False)
    assert summary.lines()[0] == "3 tasks: 2 done, 1 failed, 0 never started or cut off"
    assert summary.lines()[-1] == "! failed: do=fail, seed=0: the work went wrong"
    row = read(tmp_path / "out").query("seed == 0").iloc[0]
    assert (row["state"], row["message"], row["seconds"]) == ("failed", "the work went wrong", 0.5)


def test_a_start_that_fails_is_tried_again(tmp_path):
    tasks = [task(tmp_path, 0, "refuse 1"), task(tmp_path, 1, "refuse 2")]
    summary, _ = run(tasks, tmp_path / "out")
    assert [tries(one) for one in tasks] == [2, 2]
    assert seeds(summary.done) == [0]
    assert summary.lines()[-1] == "! failed: do=refuse 2, seed=1: did not start in 2 tries: no kernel"


def test_failed_tasks_are_run_again_by_the_same_call(tmp_path):
    refused = task(tmp_path, 1, "refuse 2")
    run([refused], tmp_path / "out")
    assert standing(refused, tmp_path / "out") == "failed"
    summary, _ = run([refused], tmp_path / "out")
    assert summary.whole
    assert squares(tmp_path / "out") == {1: 1}


def test_only_failed_leaves_what_never_ran(tmp_path):
    refused, fresh = task(tmp_path, 1, "refuse 2"), task(tmp_path, 2)
    run([refused], tmp_path / "out")
    summary, _ = run([refused, fresh], tmp_path / "out", only_failed=True)
    assert (seeds(summary.done), summary.left, tries(fresh)) == ([1], 1, 0)


def crash(task, threads):
    raise ZeroDivisionError("division by zero")


def test_work_that_answers_nonsense_is_a_failure_with_its_reason(tmp_path):
    summary, _ = run([task(tmp_path, 0)], tmp_path / "out", work=lambda task, threads: 3)
    assert summary.failed[0][1].message == "the worker answered with int in place of an outcome"
    summary, _ = run([task(tmp_path, 0)], tmp_path / "out", work=crash, retries=0)
    assert summary.failed[0][1].message == "ZeroDivisionError: division by zero"


def test_two_sweeps_do_not_write_into_one_folder(tmp_path):
    def second(task, threads):
        run([task], tmp_path / "out")

    summary, _ = run([task(tmp_path, 0)], tmp_path / "out", work=second, retries=0)
    (message,) = [outcome.message for _, outcome in summary.failed]
    assert message.startswith("SweepError: another sweep writes into ")
    assert message.endswith("wait for it, or name other results")


def test_the_progress_is_heard(tmp_path):
    heard = []
    tasks = [task(tmp_path, 0), task(tmp_path, 1, "fail")]
    run(tasks, tmp_path / "out", heard=lambda *what: heard.append(what))
    assert heard[0] == (None, None, 2)
    assert sorted((one.given["seed"], outcome.state, count) for one, outcome, count in heard[1:]) == [
        (0, "done", 2), (1, "failed", 2),
    ]  # fmt: skip


# with processes ------------------------------------------------------------------------------------------


def test_one_and_two_workers_find_the_same(tmp_path):
    for name, cluster in (("one", ONE), ("two", TWO)):
        tasks = [task(tmp_path / name, seed) for seed in range(6)]
        (tmp_path / name).mkdir()
        assert run(tasks, tmp_path / name / "out", cluster, processes=cluster is TWO)[0].whole
    one, two = (read(tmp_path / name / "out").drop(columns=["seconds", "worker"]) for name in ("one", "two"))
    assert one.equals(two)
    assert os.getpid() not in workers_of(tmp_path / "two")


def test_deaths_of_workers(tmp_path):
    """One task kills its worker once, another as often as it is begun; the others go on."""
    once, ever, *others = (
        task(tmp_path, seed, do) for seed, do in enumerate(("die 1", "die 99", "slow", "slow"))
    )
    summary, _ = run([once, ever, *others], tmp_path / "out", TWO, processes=True)
    assert seeds(summary.done) == [0, 2, 3]
    assert (tries(once), tries(ever)) == (2, 2)
    ((lost, outcome),) = summary.failed
    assert (lost, outcome.state) == (ever, "lost")
    assert outcome.message.startswith(LOST)
    assert summary.lines()[0] == "4 tasks: 3 done, 1 failed, 0 never started or cut off"
    assert squares(tmp_path / "out") == {0: 0, 2: 4, 3: 9}
    assert standing(ever, tmp_path / "out") == "lost"
    assert not any(map(alive, workers_of(tmp_path)))


def test_a_death_does_not_undo_what_its_worker_had_answered(tmp_path):
    tasks = [task(tmp_path, seed, do) for seed, do in enumerate(("work", "work", "slow", "die 1"))]
    summary, _ = run(tasks, tmp_path / "out", ONE, processes=True)
    assert summary.whole
    assert [tries(one) for one in tasks[:2]] == [1, 1]  # the third may have been on its way when it died
    assert tries(tasks[3]) == 2


@contextmanager
def scheduler(folder: Path):
    """A scheduler and one worker as processes of their own; yields its address and process."""
    folder.mkdir(exist_ok=True)
    where = folder / "scheduler.json"
    where.unlink(missing_ok=True)
    common = ["--scheduler-file", str(where), "--no-dashboard"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{what}", *common, *more],
            env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder,
        )
        for what, more in (
            ("scheduler", ["--host", "127.0.0.1", "--port", "0"]),
            ("worker", ["--nthreads", "1", "--no-nanny", "--host", "127.0.0.1"]),
        )
    ]  # fmt: skip
    try:
        until(lambda: where.is_file() and where.stat().st_size > 0)
        yield json.loads(where.read_text())["address"], processes[0]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_the_scheduler_dies_and_the_same_call_resumes(tmp_path):
    quick, waiting = task(tmp_path, 1), [task(tmp_path, seed, "wait") for seed in (2, 3)]
    died = []

    def then_kill(one, outcome, count):
        if one is not None:
            process.kill()
            died.append(time.monotonic())

    with scheduler(tmp_path / "dask") as (address, process):
        where = Elsewhere(kind="scheduler", address=address)
        summary, said = run([quick, *waiting], tmp_path / "out", where, heard=then_kill)
        assert time.monotonic() - died[0] < 8
        until(lambda: list(tmp_path.glob("stopped-*")), 15)  # the worker ends what nobody waits for
    assert said == [f"3 tasks on scheduler {address}"]
    assert summary.early == engine.GONE
    assert (seeds(summary.done), summary.failed, summary.left) == ([1], [], 2)
    assert summary.lines()[:2] == [
        "3 tasks: 1 done, 0 failed, 2 never started or cut off",
        "ended early: the scheduler is gone",
    ]
    (tmp_path / "go").touch()
    summary, _ = run([quick, *waiting], tmp_path / "out")
    assert (summary.whole, summary.before, tries(quick)) == (True, 1, 1)
    assert squares(tmp_path / "out") == {1: 1, 2: 4, 3: 9}


CALL = """
import sys
from pathlib import Path
from planted_sweeps import obey, task
from vitscope.sweeps.cluster import Local
from vitscope.sweeps.sweep import sweep

if __name__ == "__main__":
    root = Path(sys.argv[1])
    tasks = [task(root, 0), *(task(root, seed, "wait") for seed in (1, 2, 3))]
    two = Local(workers=2, threads=1, gpus=False)
    summary = sweep(tasks, two, root / "out", work=obey)
    print("\\n".join(summary.lines()))
    sys.exit(0 if summary.whole else 130)
"""


def test_ctrl_c_keeps_what_is_done_and_leaves_no_process(tmp_path):
    (tmp_path / "call.py").write_text(CALL)
    call = [sys.executable, str(tmp_path / "call.py"), str(tmp_path)]
    process = subprocess.Popen(
        call, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        until(lambda: list((tmp_path / "out").glob("*.parquet")) and len(list(tmp_path.glob("try-*"))) >= 3)
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert time.monotonic() - began < 10
    assert (process.returncode, errors) == (130, "")
    assert output.splitlines()[:2] == [
        "4 tasks: 1 done, 0 failed, 3 never started or cut off",
        "ended early: interrupted",
    ]
    assert squares(tmp_path / "out") == {0: 0}
    assert len(list(tmp_path.glob("stopped-*"))) == 2
    until(lambda: not any(map(alive, workers_of(tmp_path))), 2)


def test_a_cluster_that_was_left_by_an_error_leaves_no_process():
    found = []

    def leave() -> None:
        with started(ONE, 0) as running:
            running.client.wait_for_workers(1, timeout=30)
            found.extend(running.client.run(os.getpid).values())
            raise KeyError

    with pytest.raises(KeyError):
        leave()
    assert len(found) == 1
    assert not alive(found[0])
