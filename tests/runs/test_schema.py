"""Parameters: what is refused before a kernel starts, and how text becomes values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
from pydantic import Field

from vitscope.errors import UnknownName
from vitscope.runs import schema
from vitscope.runs.parameters import PROFILES, ParameterError, Parameters, expand_aliases, parse, plain
from vitscope.runs.schema import SCHEMAS, resolve


class Every(Parameters):
    """One field of each type that a notebook may declare."""

    ALIASES = {"name": "names"}  # noqa: RUF012

    count: int = Field(3, ge=1, le=10, description="how many")
    rate: float = Field(0.5, gt=0, description="how fast")
    flag: bool = False
    text: str = "x"
    maybe: str | None = None
    number: int | None = None
    names: list[str] = Field(["a"], min_length=1)
    sizes: list[int] = []  # noqa: RUF012  (pydantic copies it)
    nested: dict[str, Any] = {}  # noqa: RUF012


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", "7", 7),
        ("count", "0007", 7),
        ("count", "1e1", 10),
        ("rate", "1e-4", 1e-4),
        ("rate", "3", 3.0),
        ("flag", "true", True),
        ("flag", "no", False),
        ("text", "true", "true"),
        ("text", "none", "none"),
        ("text", "010", "010"),
        ("maybe", "none", None),
        ("maybe", "nothing", "nothing"),
        ("number", "None", None),
        ("number", "4", 4),
        ("names", "a,b", ["a", "b"]),
        ("names", "[a, b]", ["a", "b"]),
        ("names", '["a,b", "c"]', ["a,b", "c"]),
        ("name", "a,b", ["a,b"]),
        ("sizes", "[1,2]", [1, 2]),
        ("sizes", "[]", []),
        ("nested", '{"a": [1, null]}', {"a": [1, None]}),
    ],
)
def test_text_is_read_by_declared_type(name, text, value):
    read = parse(Every, name, text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("count", "abc", "an integer from 1 to 10 (how many)"),
        ("count", "1.5", "an integer"),
        ("rate", "fast", "a number above 0 (how fast)"),
        ("flag", "maybe", "true or false"),
        ("number", "x", "an integer or none"),
        ("sizes", "1,x", "a list of integers"),
        ("nested", "[", "a JSON object"),
    ],
)
def test_unreadable_text_names_what_was_expected(name, text, expected):
    with pytest.raises(ParameterError) as caught:
        parse(Every, name, text)
    assert name in str(caught.value)
    assert repr(text) in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize("value", ["7", 7.0, True, None, 11, 0])
def test_wrong_types_and_ranges_are_refused(value):
    with pytest.raises(ParameterError, match=r"count: got .*expected an integer from 1 to 10"):
        Every.validate_all({"count": value})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_are_finite(value):
    with pytest.raises(ParameterError, match="rate"):
        Every.validate_all({"rate": value})


def test_values_of_the_scientific_stack_become_plain():
    values = {
        "count": np.int64(4),
        "rate": np.float64(0.25),
        "flag": np.bool_(True),
        "text": Path("a") / "b",
        "names": ("a", "b"),
        "sizes": np.arange(3),
        "nested": {"k": (1, np.float32(0.5))},
    }
    checked = Every.validate_all(values)
    assert checked.model_dump(include=set(values)) == {
        "count": 4, "rate": 0.25, "flag": True, "text": str(Path("a") / "b"), "names": ["a", "b"],
        "sizes": [0, 1, 2], "nested": {"k": [1, 0.5]},
    }  # fmt: skip
    assert plain(np.array(3)) == 3


def test_dictionaries_need_text_keys():
    with pytest.raises(ParameterError, match="nested"):
        Every.validate_all({"nested": {1: "a"}})


def test_unknown_names_are_refused_with_a_suggestion():
    with pytest.raises(UnknownName, match="Did you mean 'count'"):
        Every.validate_all({"coun": 3})
    with pytest.raises(UnknownName, match="Did you mean 'backbones'"):
        resolve("01_phase_curves", overrides={"backbons": ["twin_s"]})
    with pytest.raises(UnknownName, match="Did you mean 'course'"):
        resolve("01_phase_curves", "corse")
    with pytest.raises(UnknownName, match="Did you mean '01_phase_curves'"):
        resolve("01_phase_curve")


def test_alias_fills_the_list_once():
    assert resolve("01_phase_curves", overrides={"backbone": "twin_b"}).backbones == ["twin_b"]
    with pytest.raises(ParameterError, match="give one of them"):
        expand_aliases(Every, {"name": "a", "names": ["b"]})


def test_rules_between_parameters():
    with pytest.raises(ParameterError, match="one backbone"):
        resolve("01_phase_curves", overrides={"weights": "mine.safetensors"})
    assert resolve("01_phase_curves", overrides={"weights": "random"}).weights == "random"
    with pytest.raises(ParameterError, match="--profile smoke"):
        resolve("01_phase_curves", overrides={"profile": "smoke"})


CHAPTERS_ON_LAYERS = ["01_phase_curves", "02_information_scrambling"]


@pytest.mark.parametrize("notebook", CHAPTERS_ON_LAYERS)
@pytest.mark.parametrize(
    ("backbones", "series", "twice"),
    [
        (["twin_s", "twin_b"], ["depth_06", "twin_b"], "twin_b"),
        (["twin_s", "twin_s"], [], "twin_s"),
        (["a", "b"], ["b", "a", "c"], "a, b"),
    ],
)
def test_a_backbone_is_named_once(notebook, backbones, series, twice):
    given = {"backbones": backbones, "depth_series": series}
    with pytest.raises(ParameterError, match=f"^{twice}: named twice in backbones and depth_series together"):
        resolve(notebook, overrides=given)
    assert resolve(notebook, overrides={**given, "backbones": ["x"], "depth_series": []}).depth_series == []


@pytest.mark.parametrize("notebook", CHAPTERS_ON_LAYERS)
def test_a_weight_file_belongs_to_one_backbone(notebook):
    file = {"weights": "mine.safetensors"}
    with pytest.raises(ParameterError, match="name that one: -p backbone=NAME"):
        resolve(notebook, overrides={**file, "backbones": ["twin_s", "twin_b"]})
    one = resolve(notebook, overrides=file, text={"backbone": "twin_b", "depth_series": "[]"})
    assert (one.backbones, one.depth_series, one.weights) == (["twin_b"], [], "mine.safetensors")
    for random in ("random", "random:7"):
        assert resolve(notebook, overrides={"weights": random}).backbones == resolve(notebook).backbones


def test_own_dataset_may_be_the_same_as_dataset():
    assert resolve("01_phase_curves", "paper").own_dataset == "imagenet"
    assert resolve("01_phase_curves", "paper", text={"dataset": "digits"}).own_dataset == "digits"
    assert resolve("01_phase_curves", text={"own_dataset": "same"}).own_dataset == "emoji_group"
    assert resolve("01_phase_curves", "paper", text={"own_dataset": "none"}).own_dataset is None


def test_changed_lists_departures_from_the_profile():
    assert resolve("01_phase_curves", "smoke").changed() == {}
    assert resolve("01_phase_curves", "smoke", text={"seed": "3"}).changed() == {"seed": 3}


@pytest.mark.parametrize("notebook", SCHEMAS)
def test_every_notebook_has_every_profile_and_describes_every_field(notebook):
    cls = SCHEMAS[notebook]
    assert set(cls.OVERRIDES) == set(PROFILES)
    for profile in PROFILES:
        assert resolve(notebook, profile).profile == profile
    assert all(field.description for field in cls.model_fields.values())
    assert cls.__doc__ is not None
    assert cls.__doc__.startswith(f"{notebook}: ")
    assert set(cls.model_fields).isdisjoint({"notebook", "project", "force", "timeout"})  # taken by runs.run


def test_no_notebook_without_a_schema():
    notebooks = Path(__file__).resolve().parents[2] / "notebooks"
    assert {p.stem for p in notebooks.glob("*.ipynb")} <= set(schema.SCHEMAS)


def test_paper_scale_names_every_registered_set_and_published_weights():
    from vitscope.data import hub
    from vitscope.runs.schema_frozen import HUB_FAMILIES, HUB_SHIFTS, HUB_TASKS

    assert sorted(HUB_TASKS) == sorted(hub.IN_DISTRIBUTION)
    assert sorted(HUB_SHIFTS) == sorted(hub.SHIFTED)
    assert set(HUB_FAMILIES) <= set(timm.list_pretrained())
