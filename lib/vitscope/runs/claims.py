"""The claims of the papers as data: what was published, which reported numbers answer it, and by which rule.

`data/claims.yml` is the ledger, `data/records/` holds the published records. Both are text of this project,
read where `embedded.root()` finds them, in a clone as in an installed wheel; the manifest lists what came
from elsewhere or was trained. Nothing here judges: `verdicts` does.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)  # fmt: skip

from vitscope.errors import unknown
from vitscope.runs import schema
from vitscope.runs.record import FILE_NAME, NAME_PATTERN, Record, RecordError, read

Paper = Literal["A", "B", "C"]
SettingName = Literal["twin", "paper"]
Grade = Literal["P", "R", "C", "BRIEF", "DERIVED"]


class ClaimError(ValueError):
    """The ledger is malformed, or a record cannot answer it; the message says which entry and what to do."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Sign(_Part):
    """The number is above or below zero."""

    sign: Literal["positive", "negative"]


class Range(_Part):
    """The number lies between two bounds, both included; null leaves a side open."""

    range: list[float | None] = Field(min_length=2, max_length=2)

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        low, high = self.target
        if self.range == [None, None] or low > high:
            raise ValueError(f"range {self.range}: expected [low, high], with null for at most one of them")
        return self

    @property
    def target(self) -> tuple[float, float]:
        low, high = self.range
        return (float("-inf") if low is None else low, float("inf") if high is None else high)


class _About(_Part):
    value: float
    within: float = Field(ge=0)


class Near(_Part):
    """The number differs from `value` by at most `within`, in its own unit."""

    near: _About

    @property
    def target(self) -> tuple[float, float]:
        return self.near.value - self.near.within, self.near.value + self.near.within


class _Times(_Part):
    of: float
    within: float = Field(gt=1)

    @model_validator(mode="after")
    def _not_zero(self) -> _Times:
        if not self.of:
            raise ValueError("a ratio of 0 says nothing; use near")
        return self


class Ratio(_Part):
    """The number is the published number `of`, up to a factor `within` either way."""

    ratio: _Times

    @property
    def target(self) -> tuple[float, float]:
        ends = self.ratio.of / self.ratio.within, self.ratio.of * self.ratio.within
        return min(ends), max(ends)


class All(_Part):
    """The number counts hits among its `n`, and all of them hit."""

    all: Literal[True]


class Order(_Part):
    """The numbers under these keys ascend strictly."""

    order: list[str] = Field(min_length=2)


def _kind(rule: Any) -> str:
    """The one word that says which rule this is."""
    return " + ".join(map(str, rule)) if isinstance(rule, dict) else type(rule).__name__.lower()


Rule = Annotated[
    Annotated[Sign, Tag("sign")]
    | Annotated[Range, Tag("range")]
    | Annotated[Near, Tag("near")]
    | Annotated[Ratio, Tag("ratio")]
    | Annotated[All, Tag("all")]
    | Annotated[Order, Tag("order")],
    Discriminator(
        _kind,
        custom_error_type="rule",
        custom_error_message="unknown rule; expected exactly one of sign, range, near, ratio, all, order",
    ),
]


class Difference(_Part):
    """The number under `left` minus the one under `minus`, of the same record."""

    left: str
    minus: str


class Clause(_Part):
    """One sentence that a record can confirm or refute: a number, or a difference of two, under a rule.

    Keys may hold roles, as in "onset.{L}", which the setting replaces by the names of its models. A number
    that was not detected leaves the clause undecided, unless its absence already refutes it.
    """

    says: str = Field(min_length=1)
    value: str | Difference | None = None
    rule: Rule
    absent: Literal["undecided", "fails"] = "undecided"

    @model_validator(mode="after")
    def _complete(self) -> Clause:
        if isinstance(self.rule, Order) != (self.value is None):
            raise ValueError("`order` names its keys itself; every other rule needs a `value`")
        if isinstance(self.rule, All) and isinstance(self.value, Difference):
            raise ValueError("`all` needs one count with its n, not a difference")
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys it reads, with their roles as written."""
        if isinstance(self.rule, Order):
            return tuple(self.rule.order)
        if isinstance(self.value, Difference):
            return self.value.left, self.value.minus
        return (str(self.value),)


class Setting(_Part):
    """Where a claim is put to the test: models by role, a notebook, and the profile its records must have.

    `parameters` are those in which the records differ from the profile. `seed` and `device` are free.
    """

    models: dict[str, str]
    notebook: str
    profile: Literal["course", "colab", "paper"]
    parameters: dict[str, Any] = {}
    clauses: list[Clause] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits(self) -> Setting:
        if self.notebook not in schema.SCHEMAS:
            raise unknown("notebook", self.notebook, schema.SCHEMAS)
        declared = schema.SCHEMAS[self.notebook].model_fields
        for name in self.parameters:
            if name not in declared:
                raise unknown(f"parameter of {self.notebook}", name, declared)
        for key in (key for clause in self.clauses for key in clause.keys):
            if not re.match(NAME_PATTERN, self.fill(key)):
                raise ValueError(
                    f"key {key!r}: expected lower-case letters, digits, '_', '-' and '.', as in 'onset.{{L}}'"
                )
        return self

    def fill(self, key: str) -> str:
        """A key with model names in place of roles. Errors: `UnknownName` for a role without a model."""

        def name(found: re.Match[str]) -> str:
            if found[1] not in self.models:
                raise unknown(f"role in key {key!r}:", found[1], self.models)
            return self.models[found[1]]

        return re.sub(r"\{([^{}]*)\}", name, key)


class Published(_Part):
    """What the paper reports: as text, and as a number or several where there are any."""

    text: str
    unit: str | None
    value: float | list[float] | None


class Claim(_Part):
    """One row of the ledger. `section` is a page of this book, with an anchor where there is one."""

    id: str = Field(pattern=r"^[ABC][1-9]\d*$")
    paper: Paper
    statement: str = Field(min_length=1)
    published: Published
    grade: Grade
    conditions: str
    section: str = Field(pattern=r"^[a-z0-9_]+(#[a-z0-9-]+)?$")
    note: str = Field(min_length=1)
    settings: dict[SettingName, Setting] = Field(min_length=2)

    @field_validator("section")
    @classmethod
    def _of_a_page(cls, section: str) -> str:
        page = section.partition("#")[0]
        if page not in schema.SCHEMAS:
            raise unknown("page", page, schema.SCHEMAS)
        return section

    @model_validator(mode="after")
    def _of_its_paper(self) -> Claim:
        if not self.id.startswith(self.paper):
            raise ValueError(f"claim {self.id} cannot belong to paper {self.paper}")
        return self


class Ledger(_Part):
    """Every claim, in the order of the file."""

    format: Literal[1]
    claims: list[Claim]

    @model_validator(mode="after")
    def _unique(self) -> Ledger:
        ids = [claim.id for claim in self.claims]
        twice = sorted({i for i in ids if ids.count(i) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)}: each id may stand once")
        return self

    def claim(self, id: str) -> Claim:
        """One claim. Errors: `UnknownName`, with near ids.

        >>> load().claim("A11").published.value
        [0.02, -0.002]
        """
        found = {claim.id: claim for claim in self.claims}
        if id not in found:
            raise unknown("claim", id, found)
        return found[id]


def load(path: Path | None = None) -> Ledger:
    """The ledger at `path`; left out, the one that the library carries.

    Errors: `ClaimError` with every entry that is not as it should be, or for a key written twice.
    """
    path = path or _root() / "claims.yml"
    if not path.is_file():
        raise ClaimError(f"no ledger at {path}; expected a YAML file like data/claims.yml")
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Strict)
        return Ledger.model_validate(content)
    except yaml.YAMLError as error:
        raise ClaimError(f"{path.name} cannot be read: {error}") from None
    except ValidationError as error:
        lines = [
            f"{_place(content, e['loc'])}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors()
        ]
        raise ClaimError("\n".join([f"{path.name} is not a ledger:", *lines])) from None


def read_records(folder: Path) -> list[Record]:
    """The records in a folder: its `*.json`, and every `record.json` below it, as finished runs have them.

    Errors: `ClaimError` for a folder without any, or a file that is no record of this version, with what is
    wrong with it. Whether a record may answer a claim is decided in `verdicts.verdicts`.
    """
    paths = sorted({*folder.glob("*.json"), *folder.rglob(FILE_NAME)})
    if not paths:
        failed = sorted(folder.rglob("*.failed.ipynb"))
        left = f"; {failed[0].name} is what a failed run left, which is no result" if failed else ""
        raise ClaimError(f"no record in {folder}; expected a folder with files like {FILE_NAME}{left}")
    try:
        return [read(path) for path in paths]
    except RecordError as error:
        raise ClaimError(str(error)) from None


def published_records() -> list[Record]:
    """The records behind the published verdicts, `data/records/NOTEBOOK-SETTING-seedK.json`, if any."""
    folder = _root() / "records"
    return read_records(folder) if folder.is_dir() and any(folder.glob("*.json")) else []


def _root() -> Path:
    from vitscope.data import embedded  # reading a ledger elsewhere needs no data

    return embedded.root()


class _Strict(yaml.SafeLoader):
    """YAML in which a key written twice is an error: the first would silently be lost, and a rule with it."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(
                None, None, f"{twice[0]!r} is written twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


def _place(content: Any, where: tuple[int | str, ...]) -> str:
    """Where in the file, with a claim's id in place of its number."""
    parts = [str(part) for part in where]
    if len(where) > 1 and isinstance(where[1], int):
        entry = content["claims"][where[1]]
        name = entry.get("id") if isinstance(entry, dict) else None
        parts[:2] = [f"claim {name or f'number {where[1] + 1}'}"]
    return ".".join(parts) or "the file"
