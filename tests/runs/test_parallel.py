"""Several notebooks at once: that they are, that numbers do not change, and what a failure leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from filelock import FileLock

from vitscope.runs import book as books
from vitscope.runs import preflight, process, runner
from vitscope.runs.hashing import sha256_file
from vitscope.runs.parameters import ParameterError
from vitscope.runs.record import Record, Volatile

WAIT_FOR = """
import pathlib, time
pathlib.Path("{ready}").touch()
deadline = time.monotonic() + 60
while not pathlib.Path("{other}").exists():
    assert time.monotonic() < deadline, "{other} did not come: nothing runs beside this notebook"
    time.sleep(0.05)
"""


def kernels_of(book) -> list[int]:
    """Processes whose working folder is the notebooks' folder."""
    found = []
    for one in psutil.process_iter():
        try:
            if Path(one.cwd()) == book.notebooks and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one.pid)
        except (psutil.Error, OSError):
            continue
    return found


def plan(book, name: str) -> runner.Job:
    return runner.plan(name, "smoke", project=book.project)


@pytest.fixture(autouse=True)
def _no_site(monkeypatch):
    """These tests end where the site begins, and decide about threads themselves."""
    monkeypatch.setattr(books, "_publish", lambda *_: False)
    for name in runner.THREADS:
        monkeypatch.delenv(name, raising=False)


def test_two_run_at_once_with_their_share_of_threads_and_the_same_numbers(book, monkeypatch):
    monkeypatch.setattr(books, "_cores", lambda: 2)
    book.write(meet=WAIT_FOR.format(ready="a", other="b"))
    book.add("other", meet=WAIT_FOR.format(ready="b", other="a"))
    said: list[str] = []
    states: list[tuple[str, str]] = []
    built = books.build(
        "smoke", project=book.project, jobs=2, say=said.append, progress=lambda *state: states.append(state)
    )
    assert [c.page for c in built.chapters] == ["book/intro", "notebooks/tiny", "notebooks/other"]
    assert said[:2] == ["running tiny (smoke)", "running other (smoke)"]
    assert sorted(line.rsplit(" in ")[0] for line in said[2:]) == ["finished other", "finished tiny"]
    for name in ("tiny", "other"):
        own = [state for who, state in states if who == name]
        assert own[0].startswith("cell 2/7, "), "the first that runs, after the title"
        assert own[-1] == ""

        together = plan(book, name).result().record
        assert together.volatile.threads == 1
        alone = runner.execute(plan(book, name), force=True, threads=1).record
        assert json.dumps(alone.stable()) == json.dumps(together.stable())

    again = books.build("smoke", project=book.project, jobs=2, say=said.append)
    assert [c.reused for c in again.chapters[1:]] == [True, True]
    assert len(said) == 4


def test_a_failure_stops_the_others_and_keeps_what_is_finished(book):
    finished = book.project.state / "runs" / "done"
    fail = (
        WAIT_FOR.format(ready="a", other="b")
        + f"while not list(pathlib.Path({str(finished)!r}).glob('*/record.json')): time.sleep(0.05)\n"
        + "raise LookupError('gone')"
    )
    book.write(boom=fail)
    book.add("slow", nap="import pathlib, time\npathlib.Path('b').touch()\ntime.sleep(600)")
    book.add("done")
    said: list[str] = []
    began = time.monotonic()
    with pytest.raises(runner.RunFailed, match=r"^tiny: cell \d+ raised LookupError: gone") as caught:
        books.build("smoke", project=book.project, jobs=3, say=said.append)
    assert time.monotonic() - began < 60
    assert caught.value.notebook == plan(book, "tiny").failed
    assert said[-1] == "stopping slow"
    assert kernels_of(book) == []
    assert plan(book, "slow").result() is None
    assert "the build ended early" in plan(book, "slow").failed.read_text(encoding="utf-8")
    assert plan(book, "done").result() is not None


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
def test_interrupted_build_leaves_no_kernel(book, how):
    nap = "import pathlib, time\npathlib.Path('{}').touch()\ntime.sleep(600)"
    book.write(nap=nap.format("a"))
    book.add("other", nap=nap.format("b"))
    program = (
        # a job in the background of a shell is born deaf to SIGINT
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sys, pathlib; sys.path.insert(0, 'notebooks'); import tiny_schema\n"
        "from vitscope.runs import book, layout\n"
        "book.build('smoke', project=layout.Project(pathlib.Path.cwd()), jobs=2)"
    )
    environment = process.environment(book.project.root / "scratch", {})
    started = subprocess.Popen(
        [sys.executable, "-c", program], cwd=book.project.root, env=environment, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    try:
        while not all((book.notebooks / ready).exists() for ready in "ab"):
            assert started.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert kernels_of(book)
        started.send_signal(getattr(signal, how))
        assert started.wait(timeout=30) != 0
        while kernels_of(book) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert kernels_of(book) == []
    finally:
        started.kill()  # nothing, where it has ended; else its workers notice and end


def test_a_stopped_build_does_not_wait_for_another_runner(book):
    job, stop = plan(book, "tiny"), threading.Event()
    job.folder.parent.mkdir(parents=True)
    stop.set()
    with (
        FileLock(job.folder.parent / f".{job.inputs.key}.lock"),
        pytest.raises(runner.RunFailed, match="tiny: not started, the build ended early"),
    ):
        runner.execute(job, stop=stop)


@pytest.mark.parametrize("jobs", [0, -1])
def test_fewer_than_one_at_once_is_refused(book, jobs):
    with pytest.raises(ParameterError, match=f"jobs: got {jobs}; expected how many notebooks run at once"):
        books.build("smoke", project=book.project, jobs=jobs)
    assert not book.project.state.exists()


def test_what_is_missing_is_said_before_anything_runs(book, monkeypatch):
    book.add("other")

    def check(_, folder):
        raise preflight.PreflightError("no such dataset")

    monkeypatch.setattr(preflight, "check", check)
    monkeypatch.setattr(runner, "execute", lambda *_, **__: pytest.fail("a notebook ran"))
    with pytest.raises(preflight.PreflightError, match="tiny: no such dataset"):
        books.build("smoke", project=book.project)


class TestPlan:
    """Order and threads, with runs that take no time."""

    @pytest.fixture
    def started(self, book, monkeypatch) -> list[tuple[str, int | None]]:
        """(notebook, threads) in the order of their starts; four cores, no GPU, three notebooks."""
        for name in ("second", "third"):
            book.add(name)
        found: list[tuple[str, int | None]] = []

        def execute(job, *, threads, **_):
            found.append((job.name, threads))
            record = SimpleNamespace(volatile=SimpleNamespace(seconds=1.0))
            return SimpleNamespace(record=record, reused=False)

        monkeypatch.setattr(runner, "execute", execute)
        monkeypatch.setattr(books, "_cores", lambda: 4)
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        return found

    @staticmethod
    def known(monkeypatch, **seconds: float) -> None:
        monkeypatch.setattr(runner.Job, "last_seconds", lambda job: seconds.get(job.name))

    def test_one_at_a_time_keeps_the_books_order_and_all_threads(self, book, started, monkeypatch):
        self.known(monkeypatch, tiny=1.0, second=2.0, third=3.0)
        books.build("smoke", project=book.project, jobs=1)
        assert started == [("tiny", 4), ("second", 4), ("third", 4)]

    def test_unknown_then_longest_first(self, book, started, monkeypatch):
        self.known(monkeypatch, tiny=1.0, second=2.0)
        built = books.build("smoke", project=book.project, jobs=2)
        assert [name for name, _ in started] == ["third", "second", "tiny"]
        assert {threads for _, threads in started} == {2}
        assert [c.page for c in built.chapters[1:]] == [f"notebooks/{n}" for n in ("tiny", "second", "third")]

    def test_books_order_where_nothing_ran_before(self, book, started):
        books.build("smoke", project=book.project, jobs=2)
        assert [name for name, _ in started] == ["tiny", "second", "third"]

    def test_what_never_ran_here_is_as_long_as_published(self, book, started, monkeypatch):
        self.known(monkeypatch, tiny=1.0)
        records = [
            SimpleNamespace(notebook=name, profile=profile, volatile=SimpleNamespace(seconds=seconds))
            for name, profile, seconds in (
                ("second", "smoke", 2.0), ("second", "smoke", 1.5), ("second", "course", 99.0),
                ("third", "smoke", 3.0), ("tiny", "smoke", 9.0),
            )
        ]  # fmt: skip
        monkeypatch.setattr(books, "published_records", lambda: records)
        books.build("smoke", project=book.project, jobs=2)
        assert [name for name, _ in started] == ["third", "second", "tiny"]

    @pytest.mark.parametrize(
        ("cores", "gpu", "jobs", "threads"),
        [(4, False, None, 1), (8, False, None, 2), (2, False, None, 1), (8, True, None, 8), (8, True, 4, 2)],
    )
    def test_threads_are_shared_out(self, book, started, monkeypatch, cores, gpu, jobs, threads):
        monkeypatch.setattr(books, "_cores", lambda: cores)
        monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
        books.build("smoke", project=book.project, jobs=jobs)
        assert {n for _, n in started} == {threads}

    @pytest.mark.parametrize("name", runner.THREADS)
    def test_threads_that_the_environment_sets_stay(self, book, started, monkeypatch, name):
        monkeypatch.setenv(name, "3")
        books.build("smoke", project=book.project, jobs=2)
        assert {n for _, n in started} == {None}


def test_last_seconds_are_those_of_the_latest_whole_run_of_the_profile(book):
    job = plan(book, "tiny")
    assert job.last_seconds() is None
    for key, profile, started, seconds, changed in (
        ("a", "smoke", "2026-01-01", 1.0, {}),
        ("b", "smoke", "2026-01-02", 2.0, {}),
        ("c", "course", "2026-01-03", 3.0, {}),
        ("d", "smoke", "2026-01-04", 4.0, {"rows": 100}),
    ):
        folder = job.folder.parent / key
        folder.mkdir(parents=True)
        notebook = folder / "tiny.ipynb"
        notebook.write_text("{}")
        volatile = Volatile(started=started, seconds=seconds, notebook_sha256=sha256_file(notebook))
        Record(
            notebook="tiny", profile=profile, parameters={}, changed=changed, key=key, complete=True,
            volatile=volatile,
        ).save(folder)  # fmt: skip
    assert job.last_seconds() == 2.0
    (job.folder.parent / "b" / "tiny.ipynb").write_text("{ }")
    assert job.last_seconds() == 1.0
