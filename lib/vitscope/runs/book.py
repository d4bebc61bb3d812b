"""`build(profile, html)`: from sources to a site that passed the gate.

    every notebook: reuse or run -> staging tree -> jupyter-book -W -n, from clean -> gate -> moved into place

Nothing is published half: the site at `html` is the last one that passed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock
from pydantic import BaseModel

from vitscope.runs import gate, hashing, runner
from vitscope.runs.child import Progress
from vitscope.runs.layout import Project
from vitscope.runs.stage import stage

Say = Callable[[str], None]
_COMMAND = "from jupyter_book.cli.main import main; main()"
_MOST_SHOWN = 40


class BuildFailed(RuntimeError):
    """Sphinx refused the book; the message holds its warnings, which count as errors."""


@dataclass
class Chapter:
    """One line of the table that `vitscope build` prints."""

    page: str
    seconds: float | None
    reused: bool


@dataclass
class Built:
    """A finished build: where the site is, what each chapter took, and whether Sphinx had to run."""

    html: Path
    chapters: list[Chapter] = field(default_factory=list)
    seconds: float = 0.0
    unchanged: bool = False


class _Stamp(BaseModel):
    """What the site at some path was built from, and what it looked like when it was."""

    sources: str
    site: str


def build(
    profile: str = "course",
    html: Path | str = Path("_build/html"),
    *,
    project: Project | None = None,
    force: bool = False,
    say: Say | None = None,
    progress: Progress | None = None,
) -> Built:
    """Build the whole book with one profile.

    `html` is relative to the book's root; `force` runs everything again.

    Errors: those of `runner.run`; `BuildFailed` when Sphinx warns; `GateError` when a page is not whole. A
    site that stood at `html` is left as it was.
    """
    began = time.monotonic()
    project = project or Project.find()
    target = project.root / html
    say = say or (lambda _: None)
    gate.check_tools()
    gate.check_config(project.root / "_config.yml")
    project.state.mkdir(exist_ok=True)
    with FileLock(project.state / "build.lock"):
        built = Built(target)
        results = _results(project, profile, built, force, say, progress)
        built.unchanged = _publish(project, results, target, force, say)
    built.seconds = time.monotonic() - began
    return built


def _results(
    project: Project, profile: str, built: Built, force: bool, say: Say, progress: Progress | None
) -> dict[str, runner.Result]:
    """Every notebook's result, one after the other: parallel kernels would fight for memory and cores."""
    # plan all before running any: a typing error in the last chapter must not cost the first one's minutes
    jobs = {
        name: runner.plan(str(path), profile, project=project) for name, path in project.notebooks().items()
    }
    results: dict[str, runner.Result] = {}
    for page in project.pages:
        name = Path(page).name
        if project.source(page).suffix != ".ipynb":
            built.chapters.append(Chapter(page, None, reused=False))
            continue
        if force or jobs[name].result() is None:
            say(f"running {name} ({profile})")
        results[page] = runner.execute(jobs[name], force=force, progress=progress)
        built.chapters.append(Chapter(page, results[page].record.volatile.seconds, results[page].reused))
    return results


def _publish(
    project: Project, results: dict[str, runner.Result], target: Path, force: bool, say: Say
) -> bool:
    """Stage, build, check and move. Returns True when the site that stands there is already this one."""
    workplace = project.state / "book"
    workplace.mkdir(exist_ok=True)
    staged = stage(project, {page: result.notebook for page, result in results.items()}, workplace / "stage")
    stamp_file = workplace / f"{hashing.sha256_text(str(target.resolve()))[:12]}.json"
    sources = hashing.sha256_text(hashing.folder_digest(staged) + _tools(project))
    if not force and _is_current(stamp_file, sources, target):
        return True
    say("building the site")
    html = _sphinx(staged, workplace / "sphinx")
    gate.check_site(
        html,
        project.pages,
        {page: project.source(page) for page in results},
        {page: staged / f"{page}.ipynb" for page in results},
        {page: result.record for page, result in results.items()},
    )
    _replace(html, target)
    stamp = _Stamp(sources=sources, site=hashing.folder_digest(target))
    stamp_file.write_text(stamp.model_dump_json(), encoding="utf-8")
    return False


def _tools(project: Project) -> str:
    """Digest of what turns the staging tree into the site."""
    here = Path(__file__).parent
    files = [here / name for name in ("book.py", "gate.py", "gate_html.py", "stage.py")]
    versions = [
        f"{name} {hashing.installed(name)}"
        for name in ("jupyter-book", "myst-nb", "sphinx", "sphinx-book-theme")
    ]
    return hashing.tree_digest((f.name, f) for f in files) + " ".join(versions)


def _is_current(stamp_file: Path, sources: str, target: Path) -> bool:
    try:
        stamp = _Stamp.model_validate_json(stamp_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return stamp.sources == sources and target.is_dir() and stamp.site == hashing.folder_digest(target)


def _sphinx(staged: Path, output: Path) -> Path:
    """jupyter-book on the staging tree, from clean, warnings as errors. Returns the folder of the pages."""
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    command = [
        sys.executable, "-c", _COMMAND, "build", str(staged), "--path-output", str(output),
        "-W", "-n", "--keep-going",
    ]  # fmt: skip
    log = output / "build.log"
    with log.open("w", encoding="utf-8") as file:
        environment = {**os.environ, "PYTHONWARNINGS": "ignore", "NO_COLOR": "1"}
        done = subprocess.run(
            command, cwd=output, stdout=file, stderr=subprocess.STDOUT, env=environment, check=False
        )
    html = output / "_build" / "html"
    if done.returncode or not (html / "index.html").is_file():
        raise BuildFailed(f"{_complaints(log, staged)}\nThe whole log: {log}")
    return html


def _complaints(log: Path, staged: Path) -> str:
    """Sphinx's warnings and errors with paths as in the repository, or the log's end when it crashed."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(encoding="utf-8", errors="replace"))
    lines = [line.replace(f"{staged}{os.sep}", "") for line in text.splitlines() if line.strip()]
    loud = [line for line in lines if re.search(r"\b(WARNING|ERROR|CRITICAL|Exception|Error):", line)]
    shown = (loud or lines[-20:])[:_MOST_SHOWN]
    return "\n".join(shown)


def _replace(new: Path, target: Path) -> None:
    """Put a folder in place of another in one rename; readers never see half a site."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}-{uuid.uuid4().hex[:8]}")
    old = fresh.with_suffix(".old")
    shutil.copytree(new, fresh)
    if target.exists():
        target.rename(old)
    fresh.rename(target)
    shutil.rmtree(old, ignore_errors=True)
