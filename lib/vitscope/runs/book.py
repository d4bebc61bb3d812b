"""`build(profile, html)`: from sources to a site that passed the gate.

    every notebook: reuse or run -> staging tree -> jupyter-book -W -n, from clean -> gate -> moved into place

Nothing is published half: the site at `html` is the last one that passed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock
from pydantic import BaseModel

from vitscope.runs import gate, hashing, run_statistics, runner
from vitscope.runs.child import Progress
from vitscope.runs.claims import published_records
from vitscope.runs.launch import Repository
from vitscope.runs.layout import Project
from vitscope.runs.parameters import ParameterError
from vitscope.runs.render import render, replace
from vitscope.runs.stage import stage

Say = Callable[[str], None]
_TOOLS = (
    "book", "gate", "gate_html", "stage", "offline_pages", "accessible_pages", "explore_pages",
    "explore_cards", "claim_badges", "claims", "verdicts", "scorecard_html", "launch", "render",
    "statistics_page", "speed_page", "speed_results", "run_statistics", "record", "cards",
    "scale_page", "scale_tables", "scale_results", "scale_figure", "quantities",
    "schema_layers", "../scale", "../figures",
)  # fmt: skip


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
    jobs: int | None = None,
    repository: str | None = None,
    say: Say | None = None,
    progress: Progress | None = None,
) -> Built:
    """Build the whole book with one profile.

    `html` is relative to the book's root; `force` runs everything again. `jobs` notebooks run at once (None:
    one for each CPU core, one alone where there is a GPU), and share the CPU cores as threads unless the
    environment sets `OMP_NUM_THREADS` or `MKL_NUM_THREADS`. At an equal number of threads, numbers do not
    depend on `jobs`. `repository` is the address that buttons lead to, in place of that of `_config.yml`.

    Errors: `ParameterError` for `jobs` below 1; `AddressError` for an address that Colab cannot open;
    those of `runner.run`, with the notebook's name: notebooks running beside a failed one are stopped,
    finished ones are kept; `BuildFailed` when Sphinx warns; `GateError` when a page is not whole. A site
    that stood at `html` is left as it was.
    """
    began = time.monotonic()
    if jobs is not None and jobs < 1:
        raise ParameterError(f"jobs: got {jobs}; expected how many notebooks run at once, 1 or more")
    project = project or Project.find()
    target = project.root / html
    address = Repository.of(project, repository)
    say = say or (lambda _: None)
    if address != Repository.of(project):
        say("the notebooks keep the address that they have; `vitscope address URL` writes it there")
    gate.check_tools()
    gate.check_config(project.root / "_config.yml")
    project.state.mkdir(exist_ok=True)
    with FileLock(project.state / "build.lock"):
        results = _results(project, profile, force, jobs, say, progress)
        built = Built(target, [_chapter(page, results.get(page)) for page in project.pages])
        built.unchanged = _publish(project, results, target, address, force, say)
    built.seconds = time.monotonic() - began
    return built


def _chapter(page: str, result: runner.Result | None) -> Chapter:
    if result is None:
        return Chapter(page, None, reused=False)
    return Chapter(page, result.record.volatile.seconds, result.reused)


def _results(
    project: Project, profile: str, force: bool, jobs: int | None, say: Say, progress: Progress | None
) -> dict[str, runner.Result]:
    """The result of every page that is a notebook: those that are there, then those that must run."""
    # plan all before running any: a typing error in the last chapter must not cost the first one's minutes
    planned = {
        page: runner.plan(str(source), profile, project=project)
        for page in project.pages
        if (source := project.source(page)).suffix == ".ipynb"
    }
    results = {page: found for page, job in planned.items() if not force and (found := job.result())}
    missing = {page: job for page, job in planned.items() if page not in results}
    for job in missing.values():
        job.check()
    if missing:
        results |= _run_all(missing, jobs or _at_once(len(missing)), force, say, progress)
    return {page: results[page] for page in planned}


def _run_all(
    waiting: Mapping[str, runner.Job], at_once: int, force: bool, say: Say, progress: Progress | None
) -> dict[str, runner.Result]:
    """Run jobs, `at_once` at a time, each in a thread that waits for its process; one failure ends all."""
    threads = None if any(os.environ.get(name) for name in runner.THREADS) else max(1, _cores() // at_once)
    queue = list(waiting) if at_once == 1 else _longest_first(waiting)
    stop = threading.Event()
    running: dict[Future[runner.Result], str] = {}
    results: dict[str, runner.Result] = {}
    with ThreadPoolExecutor(at_once) as pool:
        try:
            while queue or running:
                while queue and len(running) < at_once:
                    page = queue.pop(0)
                    job = waiting[page]
                    say(f"running {job.name} ({job.parameters.profile})")
                    future = pool.submit(
                        runner.execute, job, force=force, threads=threads, stop=stop, progress=progress
                    )
                    running[future] = page
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    page = running.pop(future)
                    results[page] = future.result()
                    say(f"finished {waiting[page].name} in {results[page].record.volatile.seconds:.0f} s")
        except BaseException:  # Ctrl-C too: only this thread hears of it, the others end what they started
            stop.set()
            if unfinished := [page for future, page in running.items() if not future.done()]:
                say(f"stopping {', '.join(waiting[page].name for page in unfinished)}")
            raise
    return results


def _longest_first(waiting: Mapping[str, runner.Job]) -> list[str]:
    """Pages by what they last took, so that none runs alone at the end; those of unknown length come first.

    What never ran here is taken to be as long as the published records say; their machines matter little.
    """
    published: dict[tuple[str, str], float] = {}
    for record in published_records():
        name = record.notebook, record.profile
        published[name] = max(published.get(name, 0.0), record.volatile.seconds)
    seconds = {
        page: job.last_seconds() or published.get((job.name, job.parameters.profile))
        for page, job in waiting.items()
    }
    return sorted(seconds, key=lambda page: -(seconds[page] or float("inf")))


def _at_once(count: int) -> int:
    """How many of `count` notebooks run at once unless asked; on a GPU they would fight for its memory."""
    import torch  # seconds, which only a build that runs something should spend

    return 1 if torch.cuda.is_available() else min(_cores(), count)


def _cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _publish(
    project: Project,
    results: dict[str, runner.Result],
    target: Path,
    repository: Repository,
    force: bool,
    say: Say,
) -> bool:
    """Stage, build, check and move. Returns True when the site that stands there is already this one."""
    workplace = project.state / "book"
    workplace.mkdir(exist_ok=True)
    executed = {page: result.notebook for page, result in results.items()}
    staged = stage(project, executed, workplace / "stage", repository)
    run_statistics.save(staged, {page: result.record for page, result in results.items()})
    stamp_file = workplace / f"{hashing.sha256_text(str(target.resolve()))[:12]}.json"
    sources = hashing.sha256_text(hashing.folder_digest(staged) + _tools(project))
    if not force and _is_current(stamp_file, sources, target):
        return True
    say("building the site")
    html = render(staged, workplace / "sphinx")
    sources_of = {page: project.source(page) for page in project.pages}
    gate.check_site(
        html,
        project.pages,
        sources_of,
        {page: staged / f"{page}.ipynb" for page in results},
        {page: result.record for page, result in results.items()},
        gate.Launch(repository, project.root, sources_of),
    )
    replace(html, target)
    stamp = _Stamp(sources=sources, site=hashing.folder_digest(target))
    stamp_file.write_text(stamp.model_dump_json(), encoding="utf-8")
    return False


def _tools(project: Project) -> str:
    """Digest of what turns the staging tree into the site: claims get their verdicts then."""
    here = Path(__file__).parent
    files = [here / f"{name}.py" for name in _TOOLS]
    versions = [
        f"{name} {hashing.installed(name)}"
        for name in ("jupyter-book", "myst-nb", "sphinx", "sphinx-book-theme")
    ]
    return " ".join([hashing.tree_digest((f.name, f) for f in files), hashing.ledger_digest(), *versions])


def _is_current(stamp_file: Path, sources: str, target: Path) -> bool:
    try:
        stamp = _Stamp.model_validate_json(stamp_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return stamp.sources == sources and target.is_dir() and stamp.site == hashing.folder_digest(target)
