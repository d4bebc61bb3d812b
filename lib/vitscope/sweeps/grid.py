"""A grid file: which notebook or fit, over which combinations, and where; all checked before a start."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from vitscope.errors import unknown
from vitscope.runs import notebook as nb
from vitscope.runs import preflight
from vitscope.runs.hashing import Inputs, inputs_of, local_files, parameters_digest
from vitscope.runs.layout import Project
from vitscope.runs.parameters import PROFILES, ParameterError, Parameters, expand_aliases
from vitscope.runs.schema import resolve, schema_of
from vitscope.sweeps import fits
from vitscope.sweeps.cluster import KINDS, Checked, Cluster, Local
from vitscope.sweeps.tasks import FIT, Task, task_id

_MOST_SHOWN = 8


class GridError(ValueError):
    """A grid file is not as it must be; the message names the key or the combination."""


class Grid(Checked):
    """What a grid file says. `grid` is a product; `include` adds combinations, `exclude` takes some away."""

    notebook: str | None = Field(None, description="a chapter, or a notebook's path")
    fit: dict[str, Any] | None = Field(None, description="values of a fit without a notebook")
    profile: str = "course"
    grid: dict[str, list[Any]] = Field({})
    include: list[dict[str, Any]] = Field([])
    exclude: list[dict[str, Any]] = Field([])
    fixed: dict[str, Any] = Field({})
    cluster: Annotated[Cluster, Field(discriminator="kind")] = Local()
    retries: int = Field(2, ge=0, le=10, description="further tries of a start, or after a worker's death")
    timeout: float | None = Field(None, gt=0, description="seconds after which a notebook is stopped")
    results: str = Field(min_length=1, description="folder of the results")

    @field_validator("cluster", mode="before")
    @classmethod
    def _of_a_kind(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        kind = value.get("kind", "local")
        if kind not in KINDS:
            raise unknown("kind of cluster", kind, KINDS)
        return {**value, "kind": kind}

    @model_validator(mode="after")
    def _whole(self) -> Grid:
        if (self.notebook is None) == (self.fit is None):
            raise ValueError("give either `notebook` or `fit`")
        if self.profile not in PROFILES:
            raise unknown("profile", self.profile, PROFILES)
        if not self.grid and not self.include:
            raise ValueError("neither `grid` nor `include` names a combination")
        if empty := [name for name, values in self.grid.items() if not values]:
            raise ValueError(f"grid: no value for {', '.join(empty)}")
        if both := sorted(set(self.grid) & set(self.fixed)):
            raise ValueError(f"both in `grid` and in `fixed`: {', '.join(both)}")
        return self

    def combinations(self) -> list[dict[str, Any]]:
        """Every combination in the order of the file, without what is fixed. Raises `GridError`."""
        product = [dict(zip(self.grid, v, strict=True)) for v in itertools.product(*self.grid.values())]
        found = product if self.grid else []
        for rule in self.exclude:
            left = [one for one in found if not _matches(one, rule)]
            if len(left) == len(found):
                raise GridError(f"exclude: no combination has {words(rule)}")
            found = left
        found = [*found, *(dict(one) for one in self.include)]
        if not found:
            raise GridError("exclude leaves no combination")
        return found


def load(path: Path) -> Grid:
    """Read and check a grid file. Raises `GridError` with every problem, one a line."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GridError(f"{path} cannot be read ({error.strerror}); expected a grid file in YAML") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise GridError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise GridError(f"{path} holds no keys; expected notebook or fit, grid, results and others")
    try:
        return Grid.model_validate(content)
    except ValidationError as error:
        lines = [
            f"{path}: " + (f"{'.'.join(map(str, one['loc']))}: " if one["loc"] else "")
            + one["msg"].removeprefix("Value error, ")
            for one in error.errors()
        ]  # fmt: skip
        raise GridError("\n".join(dict.fromkeys(lines))) from None


def plan(grid: Grid, project: Project, caller: Path) -> list[Task]:
    """The tasks of a grid, every one checked: its parameters, and that all it names is within reach.

    Relative paths start at `caller`. Raises `GridError`, which names each combination that cannot be.
    """
    if grid.notebook is None:
        source, name, folder = "", FIT, project.root
        schema: type[Parameters] = fits.HeadFit
        base = dict(grid.fit or {})
        digest = fits.DIGEST
    else:
        path = project.notebook(grid.notebook)
        source, name, folder = str(path), path.stem, path.parent
        schema, base = schema_of(name), {}
        node = nb.read(path)
        nb.check(node, schema)
        digest = nb.digest(node)
    made: dict[str, Task] = {}
    inputs: Inputs | None = None
    check, problems = _Reach(folder), []
    for number, one in enumerate(grid.combinations(), 1):
        given = base | grid.fixed | one
        try:
            checked = _resolve(name, schema, grid.profile, given)
            parameters = preflight.localise(checked, caller, folder, project.root)
            check(parameters)
        except (ValueError, preflight.PreflightError) as error:
            problems.append(f"combination {number} ({words(one)}): {error}")
            continue
        changed = {"parameters": parameters_digest(parameters), "files": local_files(parameters, folder)}
        inputs = inputs or inputs_of(digest, parameters, project, folder)
        identity = task_id(name, grid.profile, given)
        if identity in made:
            problems.append(f"combination {number} ({words(one)}) is there twice")
        made[identity] = Task(
            identity, name, source, grid.profile, given, parameters.model_dump(mode="json"),
            inputs.model_copy(update=changed), str(project.root), words(one), grid.timeout,
        )  # fmt: skip
    if problems:
        shown = problems[:_MOST_SHOWN]
        more = len(problems) - len(shown)
        raise GridError("\n".join([*shown, *([f"and {more} more like these"] if more else [])]))
    return list(made.values())


def words(given: Mapping[str, Any]) -> str:
    """A combination in words.

    >>> words({"backbone": "twin_s", "seed": 0})
    'backbone=twin_s, seed=0'
    """
    return ", ".join(f"{name}={value}" for name, value in given.items())


def _resolve(name: str, schema: type[Parameters], profile: str, given: dict[str, Any]) -> Parameters:
    if name != FIT:
        return resolve(name, profile, given)
    if "profile" in given:
        raise ParameterError("the profile is a key of the grid file, no parameter")
    values = expand_aliases(schema, given)
    return schema.validate_all({**schema.OVERRIDES[profile], **values, "profile": profile})


def _matches(one: Mapping[str, Any], rule: Mapping[str, Any]) -> bool:
    return bool(rule) and all(name in one and one[name] == value for name, value in rule.items())


class _Reach:
    """Asks once for each backbone, dataset and file whether it is within reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: dict[str, preflight.PreflightError | None] = {}

    def __call__(self, parameters: Parameters) -> None:
        kinds = ("backbone", "weights", "dataset", "annotated", "records")
        what = repr([parameters.named(kind) for kind in kinds])
        if what not in self.seen:
            self.seen[what] = _caught(lambda: preflight.check(parameters, self.folder))
        if error := self.seen[what]:
            raise error


def _caught(check: Callable[[], None]) -> preflight.PreflightError | None:
    try:
        check()
    except preflight.PreflightError as error:
        return error
    return None
