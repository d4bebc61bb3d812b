"""The runner: what it refuses, what it passes on, what it leaves behind when things go wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

from vitscope.errors import UnknownName
from vitscope.runs import child, preflight, process, runner
from vitscope.runs.notebook import NotebookError
from vitscope.runs.parameters import ParameterError
from vitscope.runs.record import Record
from vitscope.runs.runner import RunFailed

AWKWARD = 'it\'s "quoted"\nnew line \\ back, {braces}, naïve 漢字 C:\\new\\table'


UNREACHED = "print(rows, rate, words, note, nested, flag, seed)"


def run(book, profile: str = "smoke", **parameters):
    return runner.run("tiny", profile, project=book.project, **parameters)


def left_behind(book) -> list[str]:
    """Everything below the runs folder, without locks."""
    base = book.project.state / "runs"
    return sorted(str(p.relative_to(base)) for p in base.rglob("*") if p.is_file() and p.suffix != ".lock")


def kernels_of_this_test(book) -> list[int]:
    """Processes whose working folder is the test's notebook folder: kernels that should be gone."""
    found = []
    for process_ in psutil.process_iter():
        try:
            if Path(process_.cwd()) == book.notebooks and process_.status() != psutil.STATUS_ZOMBIE:
                found.append(process_.pid)
        except (psutil.Error, OSError):
            continue
    return found


class TestRefused:
    """All of it in well under a second, with no kernel."""

    @pytest.fixture(autouse=True)
    def _no_kernel(self, monkeypatch):
        def start(*_, **__):
            pytest.fail("a kernel was started")

        monkeypatch.setattr(child, "work", start)

    def test_misspelt_parameter(self, book):
        with pytest.raises(UnknownName, match="Did you mean 'rows'"):
            run(book, row=3)

    def test_wrong_type(self, book):
        with pytest.raises(ParameterError, match="rows: got '3'; expected an integer from 1 to 100"):
            run(book, rows="3")

    def test_undeclared_parameter(self, book):
        book.write(parameters=book.cells["parameters"].replace("rate = 0.5\n", ""))
        with pytest.raises(NotebookError, match="rate is in the schema but not declared"):
            run(book)

    def test_parameter_that_no_schema_types(self, book):
        book.write(parameters=book.cells["parameters"] + "rat = 1\n")
        with pytest.raises(NotebookError, match="Unknown parameter 'rat'"):
            run(book)

    def test_parameter_that_nothing_reads(self, book):
        book.write(finish=book.cells["finish"].replace("p.flag", "0"))
        with pytest.raises(NotebookError, match="flag is declared but nothing reads it"):
            run(book)

    def test_default_that_is_not_the_course_profile(self, book):
        book.write(parameters=book.cells["parameters"].replace("rows = 4", "rows = 5"))
        with pytest.raises(NotebookError, match="rows defaults to 5, the course profile has 4"):
            run(book)

    def test_missing_tag(self, book):
        book.tagged = []
        book.write()
        with pytest.raises(NotebookError, match="exactly one code cell tagged"):
            run(book)

    def test_unknown_notebook(self, book):
        with pytest.raises(UnknownName, match="Did you mean 'tiny'"):
            runner.run("tini", "smoke", project=book.project)


def test_values_arrive_as_they_were_sent(book):
    nested = {"a": [1, None, {"b": AWKWARD}], "empty": {}, "true": True, "small": 1e-12}
    record = run(book, words=["a", AWKWARD], note=AWKWARD, nested=nested, flag=True, rate=1e-4, rows=2)
    seen = record.numbers["seen"].text
    assert seen == "nothing, because " + str((["a", AWKWARD], AWKWARD, nested, True, 0))
    assert record.parameters["nested"] == nested
    assert record.changed == {
        "words": ["a", AWKWARD],
        "note": AWKWARD,
        "nested": nested,
        "flag": True,
        "rate": 1e-4,
    }


@pytest.mark.parametrize("kernelspec", [{"name": "conda-env-me-py", "display_name": "Me"}, None])
def test_kernel_named_in_the_notebook_does_not_matter(book, kernelspec):
    book.kernelspec = kernelspec
    book.write(
        show=book.cells["show"] + "\nimport sys\nassert sys.prefix == " + repr(sys.prefix),
    )
    result = runner.execute(runner.plan("tiny", "smoke", project=book.project))
    assert result.record.complete
    used = nbformat.read(result.notebook, as_version=4).metadata.kernelspec
    assert used["name"] == "python3"
    assert used["display_name"].startswith("Python 3.")


def test_equal_seeds_give_bit_equal_records(book):
    first = runner.execute(runner.plan("tiny", "smoke", {"seed": 7}, project=book.project))
    again = runner.execute(runner.plan("tiny", "smoke", {"seed": 7}, project=book.project), force=True)
    assert not again.reused
    assert json.dumps(again.record.stable()) == json.dumps(first.record.stable())


class TestResult:
    def test_is_complete_clean_and_described(self, book):
        result = runner.execute(runner.plan("tiny", "smoke", project=book.project))
        notebook = nbformat.read(result.notebook, as_version=4)
        text = result.notebook.read_text(encoding="utf-8")
        assert "papermill" not in json.dumps(notebook.metadata)
        assert str(Path.home()) not in text
        assert str(book.project.root) not in text
        cells = {cell.id: cell for cell in notebook.cells}
        assert set(cells) == {"title", "parameters", "injected-parameters", "begin", "show", "finish"}
        assert set(cells["injected-parameters"].metadata.tags) == {"injected-parameters", "hide-input"}
        assert cells["show"].metadata.mystnb.image.alt == result.record.figures[0].text
        assert (result.folder / "figures" / "line.csv").is_file()
        assert (result.folder / "figures" / "line.png").read_bytes().startswith(b"\x89PNG")
        assert (result.folder / "tables" / "values.csv").is_file()
        assert result.record.volatile.seconds > 0
        assert result.record.volatile.peak_rss_mib
        assert result.record.inputs is not None
        assert result.record.inputs.key == result.folder.name

    def test_is_reused_only_when_it_matches_and_is_whole(self, book):
        job = runner.plan("tiny", "smoke", project=book.project)
        first = runner.execute(job)
        assert runner.execute(runner.plan("tiny", "smoke", project=book.project)).reused
        assert runner.plan("tiny", "smoke", {"rows": 3}, project=book.project).result() is None
        book.write(extra="1 + 1")
        assert runner.plan("tiny", "smoke", project=book.project).result() is None, "the source changed"
        book.write()
        assert job.result() is not None

        record = Record.load(first.folder)
        record.model_copy(update={"complete": False}).save(first.folder)
        assert job.result() is None, "not completed"
        record.save(first.folder)
        first.notebook.write_text(first.notebook.read_text("utf-8") + "\n", encoding="utf-8")
        assert job.result() is None, "the notebook is not the one that was recorded"
        (first.folder / "record.json").write_text("{", encoding="utf-8")
        assert job.result() is None, "the record is broken"


class TestFailure:
    def failing(self, book, timeout: float | None = None, **cells) -> RunFailed:
        book.write(**cells)
        began = time.monotonic()
        with pytest.raises(RunFailed) as caught:
            runner.run("tiny", "smoke", project=book.project, timeout=timeout)
        assert time.monotonic() - began < 60, "the runner hung"
        assert kernels_of_this_test(book) == []
        assert [name for name in left_behind(book) if not name.endswith("tiny.failed.ipynb")] == []
        assert runner.plan("tiny", "smoke", project=book.project).result() is None
        return caught.value

    def test_cell_raises(self, book):
        error = self.failing(book, boom="raise LookupError('gone')")
        assert "raised LookupError: gone" in str(error)
        assert error.notebook is not None
        assert error.notebook.name == "tiny.failed.ipynb"
        notebook = nbformat.read(error.notebook, as_version=4)
        assert "This run failed and is no result" in notebook.cells[0].source
        assert not [c for c in notebook.cells if "papermill" in c.source]

        book.write()  # mended: the next run succeeds and the mark of failure does not stay in its way
        record = run(book)
        assert record.complete

    def test_kernel_kills_itself(self, book):
        error = self.failing(book, boom="import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
        assert "died" in str(error).lower()
        assert error.notebook is not None

    def test_no_finish(self, book):
        error = self.failing(book, finish=book.cells["finish"].replace("run.finish()", ""))
        assert "without run.finish()" in str(error)

    def test_promised_figure_is_not_shown(self, book):
        show = book.cells["show"].replace("run.figure(", "if p.rows > 50: run.figure(")
        error = self.failing(book, show=show)
        assert "calls run.figure, but shows none" in str(error)

    def test_two_figures_in_a_cell(self, book):
        again = "\nrun.figure(Figure(fig=fig, data=data, alt=alt, name='again'))"
        error = self.failing(book, show=book.cells["show"] + again)
        assert "several figures" in str(error)

    def test_time_is_up_in_a_computation_that_holds_the_interpreter(self, book):
        # a sum in C never lets another thread run, so the kernel cannot notice that its parent is gone
        error = self.failing(book, timeout=7, begin="sum(range(10**12))", show="0", finish=UNREACHED)
        assert "the time allowed was up" in str(error)

    def test_other_parameters_than_injected(self, book):
        error = self.failing(book, begin=book.cells["begin"].replace("rows=rows", "rows=99"))
        assert "other parameters than were injected" in str(error)

    def test_an_earlier_result_survives(self, book):
        job = runner.plan("tiny", "smoke", project=book.project)
        runner.execute(job)
        with pytest.raises(RunFailed):
            runner.execute(job, force=True, timeout=0.5)
        assert job.result() is not None


def test_kernels_that_do_not_start_are_tried_again(book, monkeypatch, tmp_path):
    """The first kernel dies before any cell, the second runs; a real failure is not tried again."""
    marker, starter = tmp_path / "tried", tmp_path / "starter.py"
    starter.write_text(
        "import os, pathlib, runpy, sys\n"
        f"marker = pathlib.Path({str(marker)!r})\n"
        "first = not marker.exists()\n"
        "marker.open('a').write('x')\n"
        "if first: sys.exit(1)\n"
        "runpy.run_module('ipykernel_launcher', run_name='__main__')\n",
        encoding="utf-8",
    )
    command = process.kernel_command()
    command[1:3] = [str(starter)]
    monkeypatch.setattr(process, "kernel_command", lambda: command)
    assert run(book).complete
    assert marker.read_text() == "xx"

    book.write(boom="raise ValueError")
    with pytest.raises(RunFailed, match="raised ValueError"):
        run(book)
    assert marker.read_text() == "xxx"


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
def test_interrupted_runner_leaves_no_kernel(book, how):
    import signal

    ready = book.notebooks / "ready"
    book.write(boom=f"import time\nopen({str(ready)!r}, 'w').close()\ntime.sleep(600)")
    program = (
        # a job in the background of a shell is born deaf to SIGINT
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sys, pathlib; sys.path.insert(0, 'notebooks'); import tiny_schema\n"
        "from vitscope.runs import layout, runner\n"
        "runner.run('tiny', 'smoke', project=layout.Project(pathlib.Path.cwd()))"
    )
    environment = process.environment(book.project.root / "scratch", {})
    started = subprocess.Popen(
        [sys.executable, "-c", program], cwd=book.project.root, env=environment, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not ready.exists() and time.monotonic() < deadline:
        assert started.poll() is None
        time.sleep(0.1)
    assert kernels_of_this_test(book)
    started.send_signal(getattr(signal, how))
    assert started.wait(timeout=30) != 0
    while kernels_of_this_test(book) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert kernels_of_this_test(book) == []
    if how == "SIGINT":
        assert [n for n in left_behind(book) if not n.endswith("tiny.failed.ipynb")] == []


def test_paths_reach_the_kernel_from_where_they_were_typed(book, tmp_path, monkeypatch):
    from vitscope.runs.schema import resolve

    inside, outside = book.project.root / "mine.safetensors", tmp_path / "elsewhere.safetensors"
    inside.touch()
    outside.touch()
    monkeypatch.chdir(book.project.root)
    for given, seen in (
        ("mine.safetensors", str(Path("..") / "mine.safetensors")),
        (str(outside), str(outside)),
    ):
        parameters = resolve("01_phase_curves", overrides={"backbone": "twin_s", "weights": given})
        moved = preflight.localise(parameters, Path.cwd(), book.notebooks, book.project.root)
        assert moved.weights == seen
        assert moved.backbones == ["twin_s"]


def test_preflight_lists_everything_that_is_missing(book, monkeypatch):
    from vitscope.runs.schema import resolve

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    parameters = resolve(
        "01_phase_curves",
        overrides={"backbones": ["twin_z", "vit_small_patch14_dinov2.lvd142m"], "dataset": "cifar100"},
    )
    with pytest.raises(preflight.PreflightError) as caught:
        preflight.check(parameters, book.notebooks)
    text = str(caught.value)
    assert "twin_z" in text
    assert "vit_small_patch14_dinov2.lvd142m" in text
    assert "cifar100" in text
    assert "offline mode is on" in text


def test_preflight_knows_addressed_sets(book, monkeypatch, tmp_path):
    """A corruption and a severity belong to the name of a shifted set; arrays are found by their path."""
    import numpy as np

    from vitscope.runs.schema import resolve

    def check(dataset):
        preflight.check(resolve("01_phase_curves", overrides={"dataset": dataset}), book.notebooks)

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    check("fashion_mnist-c/fog/3")
    np.save(tmp_path / "labels.npy", np.zeros(50_000, dtype=np.int64))
    np.save(tmp_path / "fog.npy", np.zeros((5, 2, 2, 3), dtype=np.uint8))
    check(str(tmp_path / "fog/3"))
    with pytest.raises(preflight.PreflightError, match="offline mode is on"):
        check("cifar10-c/fog/3")
    with pytest.raises(preflight.PreflightError, match="imagenet200-c"):
        check("imagenet200-c")
