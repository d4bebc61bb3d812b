"""The `vitscope` command: what it prints, how it fails, and what it does not import."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from vitscope import cli, doctor, terminal
from vitscope.runs import cards, runner
from vitscope.runs.book import Built, Chapter
from vitscope.runs.hashing import sha256_text
from vitscope.runs.parameters import ParameterError
from vitscope.runs.record import Record, Shown


def invoke(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments))


def plainly(text: str, nl: bool = True, err: bool = False) -> None:
    print(text, end="\n" * nl)


def test_help_names_every_command():
    output = invoke("--help").output
    commands = "run build print address claims compare advise fuse list doctor train course data cache"
    for command in commands.split():
        assert command in output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "01_phase_curve"], "Did you mean '01_phase_curves'"),
        (["run", "01_phase_curves", "--profile", "coarse"], "Did you mean 'course'"),
        (["run", "01_phase_curves", "-p", "imags=3"], "Did you mean 'images'"),
        (["run", "01_phase_curves", "-p", "images=many"], "images='many': expected an integer from 20 to"),
        (["run", "01_phase_curves", "-p", "images"], "expected NAME=VALUE"),
        (["run", "01_phase_curves", "-p", "seed=1", "-p", "seed=2"], "given twice"),
        (["list", "notebook"], "Did you mean 'notebooks'"),
    ],
)
def test_mistakes_end_at_once_without_a_traceback(arguments, said, monkeypatch):
    monkeypatch.setattr(runner, "execute", lambda *_, **__: pytest.fail("it ran"))
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


def test_failed_runs_exit_with_1(monkeypatch):
    def fail(*_, **__):
        raise runner.RunFailed("tiny: cell 3 raised KeyError: 'x'")

    monkeypatch.setattr(runner, "plan", lambda *_, **__: type("Job", (), {"name": "tiny"}))
    monkeypatch.setattr(runner, "execute", fail)
    result = invoke("run", "tiny")
    assert result.exit_code == 1
    assert "cell 3 raised KeyError" in result.output


def test_bugs_keep_their_traceback(monkeypatch):
    def broken(*_, **__):
        raise KeyError("a bug")

    monkeypatch.setattr(runner, "plan", broken)
    assert isinstance(invoke("run", "tiny").exception, KeyError)


def test_split_parameters():
    assert cli.split_parameters(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(ParameterError):
        cli.split_parameters(["=1"])


def test_list_shows_parameters_of_a_notebook():
    output = invoke("list", "01_phase_curves").output
    assert "an integer from 20 to 200000" in output
    assert "--profile smoke" in output
    assert "backbones=twin_s" in output
    for topic in ("notebooks", "data", "runs"):
        assert invoke("list", topic).exit_code == 0


def test_build_prints_site_and_chapters(monkeypatch, tmp_path):
    from vitscope.runs import book

    html = tmp_path / "html"
    chapters = [Chapter("book/intro", None, False), Chapter("notebooks/tiny", 12.3, True)]
    monkeypatch.setattr(book, "build", lambda *_, **__: Built(html, chapters, seconds=4.0))
    result = invoke("build", "--html", str(html))
    assert result.exit_code == 0
    assert "notebooks/tiny  12       reused" in result.output
    assert str(html / "index.html") in result.output


def test_build_refuses_to_run_none_at_once():
    result = invoke("build", "--jobs", "0")
    assert result.exit_code == 2
    assert "jobs: got 0; expected how many notebooks run at once, 1 or more" in result.output


def test_build_passes_jobs_on(monkeypatch, tmp_path):
    from vitscope.runs import book

    seen = []
    monkeypatch.setattr(book, "build", lambda *_, jobs, **__: seen.append(jobs) or Built(tmp_path))
    invoke("build")
    invoke("build", "--jobs", "3")
    assert seen == [None, 3]


class TestStatusLine:
    """What stands on a terminal of some width, and that a log holds nothing but what was said."""

    @staticmethod
    def screen(text: str) -> list[str]:
        """The lines a terminal shows after `text`, where a carriage return goes back to the line's begin."""
        shown = []
        for line in text.split("\n"):
            cells: list[str] = []
            for part in line.split("\r"):
                cells[: len(part)] = part
            shown.append("".join(cells).rstrip())
        return shown

    def lines(self, monkeypatch, capsys, *, columns: int = 80, on_terminal: bool = True) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        line = terminal.StatusLine()
        line.terminal = on_terminal
        monkeypatch.setattr(
            terminal.typer, "echo", lambda text, nl=True, err=False: print(text, end="\n" * nl)
        )
        line.say("running a")
        line.show("a", "cell 1/9, 0 s")
        line.show("b", "cell 2/40, 3 s")
        line.show("a", "cell 2/9, 5 s")
        line.say("running c")
        line.show("c", "cell 1/5, 0 s")
        return self.screen(capsys.readouterr().out)

    def test_keeps_below_what_was_said(self, monkeypatch, capsys):
        assert self.lines(monkeypatch, capsys) == [
            "running a",
            "running c",
            "a: cell 2/9, 5 s | b: cell 2/40, 3 s | c: cell 1/5, 0 s",
        ]

    def test_fits_the_terminal(self, monkeypatch, capsys):
        assert self.lines(monkeypatch, capsys, columns=40)[-1] == "a: cell 2/9, 5 s | and 2 more"
        assert self.lines(monkeypatch, capsys, columns=10)[-1] == "a: cell 2"

    def test_is_gone_at_the_end(self, monkeypatch, capsys):
        monkeypatch.setattr(
            terminal.typer, "echo", lambda text, nl=True, err=False: print(text, end="\n" * nl)
        )
        with terminal.StatusLine() as line:
            line.terminal = True
            line.show("a", "cell 1/9, 0 s")
            line.show("a", "")
            assert line.running == {}
        assert self.screen(capsys.readouterr().out) == [""]

    def test_nothing_of_it_in_a_log(self, monkeypatch, capsys):
        assert self.lines(monkeypatch, capsys, on_terminal=False) == ["running a", "running c", ""]


def test_doctor_says_what_fails_and_never_crashes(monkeypatch):
    monkeypatch.setattr(doctor, "kernel", lambda: doctor.Check("ok", "kernel", "starts"))
    monkeypatch.setattr(doctor, "data", lambda: 1 / 0)
    result = invoke("doctor", "--offline")
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.output
    assert "not tried (offline)" in result.output
    assert "checksums" not in result.output


def test_doctor_compares_with_the_lock_file(monkeypatch):
    assert doctor.packages().state in ("ok", "note")
    monkeypatch.setattr(doctor, "installed", lambda name: "0.0.1")
    check = doctor.packages()
    assert check.state == "note"
    assert "differ from the lock file" in check.detail


@pytest.fixture
def run_folder(tmp_path):
    """A finished run of `twin_s` whose probes rest to state 5, climb to 9 and stay there."""
    accuracy = np.array([20, 20.3, 20.1, 20.2, 20.0, 20.1, 30, 42, 52, 60, 60.2, 60.3, 60.1])
    numbers = {"backbone": "twin_s", "state": range(13)}
    probes = pd.DataFrame({**numbers, "token": "mean patch token", "accuracy": accuracy})
    probes = probes.assign(low=accuracy - 1, high=accuracy + 1)
    costs = pd.DataFrame({**numbers, "gflops": 0.1, "gflops_total": np.arange(1, 14) / 10, "share": 1 / 13})
    (tmp_path / "tables").mkdir()
    tables = []
    for name, table in (("probes_by_state", probes), ("cost", costs)):
        text = cards.csv(table)
        (tmp_path / "tables" / f"{name}.csv").write_text(text, encoding="utf-8")
        tables.append(Shown(name=name, text="t", rows=13, csv_sha256=sha256_text(text)))
    record = Record(
        complete=True, notebook="02_information_scrambling", profile="course", key="k1", parameters={},
        tables=tables,
    )  # fmt: skip
    record.save(tmp_path)
    return tmp_path


def test_advise_prints_the_advice_and_its_evidence(run_folder):
    result = invoke("advise", str(run_folder))
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "02_information_scrambling · course · k1 · probes of the mean patch token"
    assert lines[2].startswith("twin_s: Stop after block 9 of 12: a linear probe reads 60.0 % [59.0 to 61.0]")
    assert "saves 23 %" in lines[2]
    assert "Fine-tune blocks 6 to 9" in lines[2]
    assert lines[3].split() == (
        ["state", "accuracy", "low", "high", "behind", "beaten", "per_block", "per_gflop", "share"]
    )
    assert lines[4].split() == ["0", "20.0", "19.0", "21.0", "40.3", "yes", "0.077"]
    assert lines[10].split() == ["6", "30.0", "29.0", "31.0", "30.3", "yes", "9.9", "99.0", "0.077"]
    assert len(lines) == 4 + 13
    exact = invoke("advise", str(run_folder), "--points", "0")
    assert "twin_s: Stop after block 11 of 12" in exact.output


def test_advise_measures_milliseconds_when_asked(run_folder, monkeypatch):
    from vitscope import cost

    total = 0.25 * np.arange(1, 14)
    measured = pd.DataFrame({"state": range(13), "milliseconds": 0.25, "milliseconds_total": total})
    asked = []
    monkeypatch.setattr(cost, "layer_milliseconds", lambda backbone: asked.append(backbone) or measured)
    lines = invoke("advise", str(run_folder), "--time", "--backbone", "twin_s").output.splitlines()
    assert lines[3] == "Measured: 2.50 of 3.25 ms per picture up to state 9."
    assert lines[4].split()[-2:] == ["milliseconds", "milliseconds_total"]
    assert lines[6].split()[-2:] == ["0.25", "0.5"]
    assert [(b.name, b.source["kind"]) for b in asked] == [("twin_s", "random")]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--token", "cls"], 2, "Unknown token of twin_s 'CLS token'. Available: mean patch token."),
        (["--token", "cl"], 2, "Unknown token 'cl'. Did you mean 'cls'"),
        (["--backbone", "twin_z"], 2, "Did you mean 'twin_s'"),
        (["--points", "-1"], 2, "--points"),
    ],
)
def test_advise_says_what_it_cannot_do(run_folder, arguments, code, said):
    result = invoke("advise", str(run_folder), *arguments)
    assert result.exit_code == code
    assert said in result.output
    assert "Traceback" not in result.output


def test_advise_refuses_a_table_that_was_changed(run_folder):
    path = run_folder / "tables" / "cost.csv"
    path.write_text(path.read_text().replace("0.1", "0.2"))
    result = invoke("advise", str(run_folder))
    assert result.exit_code == 1
    assert "was changed after the run" in result.output
    assert invoke("advise", "02_no_such_chapter").exit_code == 2


def test_data_commands():
    result = invoke("data", "verify")
    assert result.exit_code == 0, result.output
    assert "ok   emoji/noto.parquet" in result.output
    assert invoke("data", "build").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        ("'--help'", "torch pandas numpy papermill pydantic"),
        # a rented GPU trains with these missing
        (
            "'train', '--help'",
            "papermill nbformat nbclient matplotlib seaborn datasets entmax bs4 psutil vitscope.runs",
        ),
    ],
)
def test_imports_stay_light(arguments, absent):
    program = (
        "import sys\nfrom vitscope.cli import app\n"
        f"try:\n    app([{arguments}])\nexcept SystemExit:\n    pass\n"
        f"print('LOADED', [m for m in {absent.split()} if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "LOADED []", done.stdout + done.stderr
