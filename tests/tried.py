"""What we tried to break: tests that hand in something hard say so, and a page of the book lists them.

    @pytest.mark.tried("images", "refused", "a JPEG cut at {share} %", "the file is named, with its index")

A case has the *door* it comes through, what became of it (`refused`: a clear error and nothing left behind;
`answered`: the right result; `recovered`: a fault in mid-work after which nothing is lost or wrong), what was
handed in and what the test asserts. `{name}` stands for a parameter of the test, `{id}` for the id of its
parameters.

`pytest --write-tried` writes the cases that passed to `tests/results/cases.json`; every other session checks
that the cases it collected are in that file (`test_tried.py`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

DOORS = (
    "images",
    "labels",
    "weights",
    "parameters",
    "records",
    "ledger",
    "cache",
    "runs",
    "training",
    "cluster",
    "numbers",
    "pages",
)
BECAME = ("refused", "answered", "recovered")
CASES = Path(__file__).parent / "results" / "cases.json"
COLLECTED = pytest.StashKey[list["Case"]]()
PASSED = pytest.StashKey[list["Case"]]()


@dataclass(frozen=True, order=True)
class Case:
    """One thing that was handed in, and what a test asserts about it."""

    door: str
    given: str
    became: str
    answer: str
    test: str


def of(item: pytest.Item) -> list[Case]:
    """Cases of a test.

    Raises:
        ValueError: if a marker is not (door, became, given, answer) with a known door.
    """
    found = []
    for mark in item.iter_markers("tried"):
        if len(mark.args) != 4 or mark.kwargs:
            raise ValueError(
                f"{item.nodeid}: tried(door, became, given, answer), got {mark.args} {mark.kwargs}"
            )
        door, became, given, answer = mark.args
        for value, allowed in ((door, DOORS), (became, BECAME)):
            if value not in allowed:
                raise ValueError(f"{item.nodeid}: {value!r} is none of {', '.join(allowed)}")
        callspec = getattr(item, "callspec", None)
        names = {**callspec.params, "id": callspec.id} if callspec else {}
        test = item.nodeid.partition("[")[0]
        found.append(Case(door, given.format(**names), became, answer.format(**names), test))
    return found


def published() -> list[Case]:
    """Cases in the file that the book shows."""
    return [Case(**case) for case in json.loads(CASES.read_text(encoding="utf-8"))]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-tried",
        action="store_true",
        help=f"write the cases that passed to {CASES.name}",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "tried(door, became, given, answer): a case for the page of what was tried"
    )
    config.stash[COLLECTED] = []
    config.stash[PASSED] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        cases = of(item)
        config.stash[COLLECTED] += cases
        # user properties travel from the worker processes to the one that writes
        item.user_properties += [("tried", asdict(case)) for case in cases]


class Collector:
    """Keeps the cases of tests that passed and writes them at the end of a session without failures."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            cases = self.config.stash[PASSED]
            cases += [Case(**value) for name, value in report.user_properties if name == "tried"]

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.OK:
            write(self.config.stash[PASSED])


def write(cases: list[Case]) -> None:
    """Write the cases, sorted, each once."""
    CASES.parent.mkdir(exist_ok=True)
    rows = [asdict(case) for case in sorted(set(cases))]
    CASES.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if config.getoption("--write-tried") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collector(config), "tried-collector")
