"""`vitscope print`: the whole book as one page, and that page as a PDF where a browser is installed.

    finished runs -> staging tree -> jupyter-book's singlehtml, -W -> gate -> Chromium -> moved into place

Nothing is run for it, nothing is loaded from elsewhere, and what stood there stays until all is made.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml
from filelock import FileLock

from vitscope.runs import gate, gate_html, one_page, run_statistics, runner
from vitscope.runs.layout import Project
from vitscope.runs.render import render, replace
from vitscope.runs.stage import stage

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PDF_NAME = "book.pdf"
PDF_SECONDS = 900
_EXTENSION = "vitscope.runs.one_page"
_SHEET = re.compile(rb"/Type\s*/Page\b(?!s)")


class PrintError(RuntimeError):
    """The book cannot be printed; the message says why and what to do."""


@dataclass(frozen=True)
class Printed:
    """The page; the PDF with its number of `sheets` where a browser is installed, else why there is none."""

    page: Path
    pdf: Path | None
    sheets: int
    why_no_pdf: str
    seconds: float


def print_book(
    out: Path | str = Path("_build/print"),
    profile: str = "course",
    *,
    project: Project | None = None,
    say: Callable[[str], None] | None = None,
) -> Printed:
    """The book of one profile as one page, `OUT/index.html`, and as `OUT/book.pdf`.

    `out` is relative to the book's root; a folder that stands there is replaced. Errors: `PrintError` for a
    notebook without a finished run, and for a browser that fails; `BuildFailed` when Sphinx warns;
    `GateError` when the page is not whole.
    """
    began = time.monotonic()
    project, say = project or Project.find(), say or (lambda _: None)
    target = project.root / out
    gate.check_tools()
    gate.check_config(project.root / "_config.yml")
    project.state.mkdir(exist_ok=True)
    with FileLock(project.state / "build.lock"):
        results = _finished(project, profile)
        workplace = project.state / "book"
        workplace.mkdir(exist_ok=True)
        executed = {page: result.notebook for page, result in results.items()}
        staged = stage(project, executed, workplace / "print-stage")
        run_statistics.save(staged, {page: result.record for page, result in results.items()})
        _extend(staged / "_config.yml")
        say("putting all pages on one")
        html = render(staged, workplace / "print-sphinx", "singlehtml")
        page = html / "index.html"
        soup = gate_html.parse(page)
        one_page.separate(soup, project.pages[0], project.pages)
        page.write_text(str(soup), encoding="utf-8")
        gate.check_one_page(html, page, {name: result.record for name, result in results.items()})
        browser = next(filter(None, map(shutil.which, BROWSERS)), None)
        sheets = 0
        if browser:
            say("printing it")
            sheets = to_pdf(browser, page, html / PDF_NAME)
        replace(html, target)
    missing = "" if browser else f"none of {', '.join(BROWSERS)} is installed; the page is whole without it"
    pdf = target / PDF_NAME if browser else None
    return Printed(target / "index.html", pdf, sheets, missing, time.monotonic() - began)


def _finished(project: Project, profile: str) -> dict[str, runner.Result]:
    """The finished result of every notebook as it is now."""
    results, missing = {}, []
    for page in project.pages:
        if (source := project.source(page)).suffix == ".ipynb":
            result = runner.plan(str(source), profile, project=project).result()
            if result:
                results[page] = result
            else:
                missing.append(source.stem)
    if missing:
        raise PrintError(
            f"no finished {profile} run, as the sources are now, of: {', '.join(missing)}; "
            f"`vitscope build --profile {profile}` makes what is missing"
        )
    return results


def _extend(config: Path) -> None:
    """Let the staged book be built with our extension for one page."""
    content = yaml.safe_load(config.read_text(encoding="utf-8"))
    sphinx = content.setdefault("sphinx", {})
    sphinx["extra_extensions"] = [*(sphinx.get("extra_extensions") or []), _EXTENSION]
    config.write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False), encoding="utf-8")


def to_pdf(browser: str, page: Path, target: Path) -> int:
    """Print a page with Chromium, which may look up no other machine; returns how many sheets it takes."""
    with tempfile.TemporaryDirectory(prefix="vitscope-print-") as profile:
        command = [
            browser, "--headless", "--disable-gpu", "--disable-background-networking", "--no-first-run",
            "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={profile}",
            "--no-pdf-header-footer", "--generate-pdf-document-outline",
            "--virtual-time-budget=30000",  # formulas are typeset after the page has loaded
            f"--print-to-pdf={target}", page.as_uri(),
        ]  # fmt: skip
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # Chromium refuses root its sandbox
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PDF_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise PrintError(f"{browser} did not print the page within {PDF_SECONDS} seconds") from None
    sheets = len(_SHEET.findall(target.read_bytes())) if target.is_file() else 0
    if done.returncode or not sheets:
        raise PrintError(f"{browser} made no PDF:\n{done.stderr.strip()[-1000:]}")
    return sheets
