"""The `vitscope` command: what it prints, how it fails, and what it does not import."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from vitscope import cli, doctor
from vitscope.runs import runner
from vitscope.runs.book import Built, Chapter
from vitscope.runs.parameters import ParameterError


def invoke(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments))


def test_help_names_every_command():
    output = invoke("--help").output
    for command in ("run", "build", "list", "doctor", "train", "data"):
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
