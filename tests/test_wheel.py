"""What an installed vitscope brings: pip from the repository must give a library with its data."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from vitscope.data import embedded

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def files() -> set[str]:
    """Paths in the wheel, as its builder lists them; nothing is packed."""
    if not os.environ.get("CI"):
        pytest.importorskip("hatchling", reason="hatchling comes with the extra 'dev'")
    from hatchling.builders.wheel import WheelBuilder

    builder = WheelBuilder(str(ROOT))
    data = builder.get_default_build_data()
    builder.set_build_data_defaults(data)
    with builder.config.set_build_data({"artifacts": [], "force_include": {}, **data}):
        return {found.distribution_path for found in builder.recurse_included_files()}


def test_wheel_carries_every_embedded_file(files):
    wanted = {*embedded.manifest(), "manifest.json", "claims.yml"}
    wanted |= {path.relative_to(ROOT / "data").as_posix() for path in (ROOT / "data" / "records").glob("*")}
    assert sorted(name for name in wanted if f"vitscope/_embedded/{name}" not in files) == []


def test_wheel_carries_every_module_and_nothing_of_the_book(files):
    modules = {path.relative_to(ROOT / "lib").as_posix() for path in (ROOT / "lib").rglob("*.py")}
    assert modules <= files
    assert {name.partition("/")[0] for name in files} == {"vitscope"}


def test_bounds_take_what_a_notebook_service_brings():
    """Bounds from below only, none exact: pip leaves a newer torch or numpy of the service alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == ">=3.11"
    for requirement in project["dependencies"]:
        assert ">=" in requirement, requirement
        assert not any(sign in requirement for sign in ("==", "<", "~=", ",")), requirement
