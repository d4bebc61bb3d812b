"""The whole book, built once with the smoke profile, and a browser that cannot reach anything else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """Folder of the built site; parallel workers share one build."""
    from vitscope.runs import book

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with FileLock(shared / "site.lock"):
        return book.build("smoke", html=shared / "site").html


@pytest.fixture(scope="session")
def pages(site) -> list[Path]:
    return sorted(p for folder in ("book", "notebooks") for p in (site / folder).glob("*.html"))


@pytest.fixture(scope="session")
def browser() -> Iterator:
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        message = f"no browser among {', '.join(BROWSERS)}; on Debian: apt-get install chromium"
        # a machine that decides about a change must have one; a reader's need not
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=found,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--disable-component-update",
            ],
        )
        yield running
        running.close()


class Visit:
    """A page that was opened, and what it said and asked for on the way."""

    def __init__(self, page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.loaded: list[str] = []
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.loaded.append(request.url))
        page.on("requestfailed", lambda request: self.errors.append(f"not loaded: {request.url}"))
        page.route("**/*", self._route)

    def _route(self, route) -> None:
        if route.request.url.startswith(("file:", "data:", "blob:")):
            return route.continue_()
        self.requests.append(route.request.url)
        return route.abort()

    def open(self, path: Path, query: str = "") -> Visit:
        self.page.goto(path.as_uri() + query)
        self.page.wait_for_load_state("networkidle")
        self.page.evaluate("document.fonts.ready.then(() => null)")
        return self


@pytest.fixture
def visit(browser) -> Iterator:
    """Open a page at a width and in a colour scheme: `visit(path, width=…, scheme=…)`."""
    contexts = []

    def start(path: Path, *, width: int = 1280, scheme: str = "light", query: str = "") -> Visit:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        return Visit(context.new_page()).open(path, query)

    yield start
    for context in contexts:
        context.close()
