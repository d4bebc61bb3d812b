"""Typed parameters: plain values in, checked values out, and errors that name what was wrong.

papermill only warns about unknown parameters and guesses types. Here a notebook's parameters are one pydantic
class, and everything that reaches a kernel has passed through `validate`.
"""

from __future__ import annotations

import json
import os
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from vitscope.errors import unknown

PROFILES = ("smoke", "course", "colab", "paper")


class ParameterError(ValueError):
    """A parameter has a value it cannot have; the message shows name, value and what was expected."""


@dataclass(frozen=True)
class Names:
    """Marks a field whose values name what is opened: a registry's entry, or a local file or folder."""

    kind: Literal["backbone", "weights", "dataset", "annotated", "records"]


class Parameters(BaseModel):
    """Base of every notebook's parameters. Field defaults are the `course` profile.

    `OVERRIDES` says what the other profiles change; `ALIASES` maps a singular name to the list it fills;
    `READS_LEDGER` is set where the ledger and the published records are read.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    OVERRIDES: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    ALIASES: ClassVar[Mapping[str, str]] = {}
    READS_LEDGER: ClassVar[bool] = False

    profile: Literal["smoke", "course", "colab", "paper"] = Field(
        "course", description="which group of values this run started from"
    )

    @classmethod
    def validate_all(cls, values: Mapping[str, Any]) -> Self:
        """Check a complete or partial set of values; what is missing takes its default."""
        for name in values:
            if name not in cls.model_fields:
                raise unknown("parameter", name, cls.model_fields)
        try:
            return cls.model_validate({name: plain(value) for name, value in values.items()})
        except ValidationError as error:
            raise ParameterError("\n".join(_explain(cls, error, values))) from None

    def named(self, kind: str | None = None) -> list[str]:
        """The values of every field marked `Names(kind)`, or of all marked fields."""
        return [text for name in self._marked(kind) for text in _listed(getattr(self, name))]

    def with_named(self, change: Callable[[str], str]) -> Self:
        """A copy in which every marked value has passed through `change`."""
        values = {name: getattr(self, name) for name in self._marked(None)}
        changed = {
            k: [change(t) for t in v] if isinstance(v, list) else v and change(v) for k, v in values.items()
        }
        return self.model_copy(update=changed)

    @classmethod
    def _marked(cls, kind: str | None) -> list[str]:
        return [
            name
            for name, field in cls.model_fields.items()
            if any(isinstance(mark, Names) and kind in (None, mark.kind) for mark in field.metadata)
        ]

    def changed(self) -> dict[str, Any]:
        """The parameters that differ from the profile they claim to follow."""
        reference = type(self)(profile=self.profile, **self.OVERRIDES.get(self.profile, {}))
        return {k: v for k, v in self.model_dump().items() if v != getattr(reference, k)}


def _listed(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else value or []


def plain(value: Any) -> Any:
    """NumPy scalars and arrays, tuples and paths as the plain values that survive a trip into a kernel.

    >>> plain((1, 2))
    [1, 2]
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if not isinstance(value, type) and callable(getattr(value, "tolist", None)):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    return value


def parse(cls: type[Parameters], name: str, text: str) -> Any:
    """Read `name=text` of a command line by the type that the schema declares, never by the text's looks."""
    target = cls.ALIASES.get(name, name)
    if target not in cls.model_fields:
        raise unknown("parameter", name, [*cls.model_fields, *cls.ALIASES])
    field = cls.model_fields[target]
    try:
        if target != name:  # a singular alias names one entry, whatever commas it holds
            return [_read(get_args(field.annotation)[0], text.strip())]
        return _read(field.annotation, text.strip())
    except ValueError:
        raise ParameterError(f"{name}={text!r}: expected {expected(field)}") from None


def expand_aliases(cls: type[Parameters], values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace `backbone="x"` by `backbones=["x"]`. Giving both is an error."""
    expanded: dict[str, Any] = {}
    for name, value in values.items():
        target = cls.ALIASES.get(name, name)
        if target in expanded:
            raise ParameterError(f"{name} and {target} both set {target}; give one of them")
        many = name == target or not isinstance(value, str)
        expanded[target] = value if many else [value]
    return expanded


def _read(annotation: Any, text: str) -> Any:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _read_union(get_args(annotation), text)
    if origin is Literal:
        return next(choice for choice in _or_value_error(get_args(annotation)) if str(choice) == text)
    if origin is list:
        return [_read(get_args(annotation)[0], item) for item in _items(text)]
    if origin is dict or annotation is dict:
        return json.loads(text)
    return _SCALARS[annotation](text)


def _read_union(choices: Iterable[Any], text: str) -> Any:
    choices = tuple(choices)
    if type(None) in choices and text.lower() in ("none", "null"):
        return None
    for choice in choices:
        try:
            if choice is not type(None):
                return _read(choice, text)
        except ValueError:
            continue
    raise ValueError(text)


def _or_value_error(choices: Iterable[Any]) -> Iterable[Any]:
    """The choices, then a `ValueError` for whoever asks for more."""
    yield from choices
    raise ValueError("none of the choices")


def _items(text: str) -> list[str]:
    if text.startswith("[") and text.endswith("]"):
        try:
            return [v if isinstance(v, str) else json.dumps(v) for v in json.loads(text)]
        except json.JSONDecodeError:  # [a, b] without quotes, as one types it in a shell
            text = text[1:-1]
    return [item.strip().strip("'\"") for item in text.split(",") if item.strip()]


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)  # 1e4 is an integer to anyone but int()
        if not number.is_integer():
            raise
        return int(number)


def _boolean(text: str) -> bool:
    known = {
        "true": True,
        "yes": True,
        "on": True,
        "1": True,
        "false": False,
        "no": False,
        "off": False,
        "0": False,
    }
    if text.lower() not in known:
        raise ValueError(text)
    return known[text.lower()]


_SCALARS: dict[Any, Callable[[str], Any]] = {bool: _boolean, int: _integer, float: float, str: str}


# --- what was expected, in words -------------------------------------------------------------------------


def expected(field: FieldInfo) -> str:
    """The values a field takes, in words: "an integer from 1 to 100000 (training images of the probes)"."""
    words = describe_type(field.annotation) + _limits(field.metadata)
    return f"{words} ({field.description})" if field.description else words


def describe_type(annotation: Any) -> str:
    """A type in words.

    >>> describe_type(list[int]), describe_type(str | None)
    ('a list of integers', 'text or none')
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        known = [describe_type(choice) for choice in inner if choice is not type(None)]
        return " or ".join([*known, "none"] if type(None) in inner else known)
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in inner)
    if origin is list:
        return "a list of " + _PLURAL.get(inner[0], describe_type(inner[0]))
    if origin is dict or annotation is dict:
        return "a JSON object"
    return _WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))


_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
_PLURAL = {int: "integers", float: "numbers", bool: "true/false values", str: "texts"}


def _limits(metadata: Iterable[Any]) -> str:
    found = {
        key: getattr(m, key)
        for m in metadata
        for key in ("ge", "gt", "le", "lt", "min_length")
        if hasattr(m, key)
    }
    words = ""
    if "ge" in found and "le" in found:
        return f" from {found['ge']} to {found['le']}"
    for key, word in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
        words += f" {word} {found[key]}" if key in found else ""
    if found.get("min_length"):
        words += f" with at least {found['min_length']} entries" if found["min_length"] > 1 else ", not empty"
    return words


def _explain(cls: type[Parameters], error: ValidationError, values: Mapping[str, Any]) -> list[str]:
    lines = []
    for problem in error.errors():
        if not problem["loc"]:  # a rule between parameters
            lines.append(problem["msg"].removeprefix("Value error, "))
            continue
        name, *where = problem["loc"]
        place = str(name) + "".join(f"[{w!r}]" for w in where)
        shown = values.get(str(name), problem["input"])
        lines.append(
            f"{place}: got {shown!r}; expected {expected(cls.model_fields[str(name)])}: {problem['msg']}"
        )
    return lines
