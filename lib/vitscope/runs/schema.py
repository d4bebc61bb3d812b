"""The parameters of every notebook, and the profiles that group them.

One class a notebook. Field defaults are the `course` profile, the one that the published book shows;
`OVERRIDES` holds what `smoke`, `colab` and `paper` change. `vitscope list` prints this page as a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from vitscope.errors import unknown
from vitscope.runs.parameters import PROFILES, Names, ParameterError, Parameters, expand_aliases, parse
from vitscope.runs.schema_common import DEPTH_SERIES, TWINS, Backbones, Datasets, Device
from vitscope.runs.schema_dense import (
    REPEATS,
    SELF_SUPERVISED,
    VARIANTS,
    EntmaxAttention,
    SemanticDiffusion,
)
from vitscope.runs.schema_first import InsideAViT
from vitscope.runs.schema_frozen import FusionAblations, Recoverability, Shift, VerticalFusion
from vitscope.runs.schema_layers import InformationScrambling, PhaseCurves
from vitscope.runs.schema_ledger import Scorecard


class DataAppendix(Parameters):
    """data_appendix: what the embedded datasets hold, shown and counted."""

    ALIASES: ClassVar = {"dataset": "datasets"}
    OVERRIDES: ClassVar = {
        "smoke": {"datasets": ["emoji_group", "fashion_mnist"], "examples": 8},
        "course": {},
        "colab": {"datasets": ["emoji_group", "cifar100"]},
        "paper": {"datasets": ["cifar100"]},
    }

    datasets: Datasets = Field(
        [
            "emoji_identity",
            "emoji_group",
            "emoji_subgroup",
            "emoji_novel",
            "scenes",
            "fashion_mnist",
            "digits",
        ],
        description="datasets that are shown",
    )
    examples: int = Field(16, ge=1, le=64, description="pictures shown of each dataset")
    seed: int = Field(0, ge=0, le=2**31 - 1, description="which pictures are shown")


class ZooAppendix(Parameters):
    """zoo_appendix: the embedded backbones, how they were trained and what they reach."""

    ALIASES: ClassVar = {"backbone": "backbones"}
    OVERRIDES: ClassVar = {
        "smoke": {
            "backbones": ["twin_s"],
            "variants": SELF_SUPERVISED[:1],
            "views": ["dino_crops"],
            "pairs": 40,
            "images": 64,
        },
        "course": {},
        "colab": {},
        "paper": {},
    }

    backbones: Backbones = Field([*TWINS, *DEPTH_SERIES], description="models of the zoo that are described")
    variants: Annotated[list[str], Names("backbone")] = Field(
        [*VARIANTS, *REPEATS, *SELF_SUPERVISED],
        description="further models of the zoo, shown by their cards alone; may be empty",
    )
    views: Annotated[list[str], Names("backbone")] = Field(
        ["dino_renders", "dino_crops"],
        description="models of one training that differ in where its views come from; may be empty",
    )
    pairs: int = Field(
        1000, ge=20, le=1291, description="emoji whose likeness and background are compared for `views`"
    )
    images: int = Field(
        1000, ge=20, le=100_000, description="fresh renders on which the accuracy of `backbones` is checked"
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="which renders are drawn")
    device: Device = Field("auto", description="where the backbone runs; auto takes a GPU if there is one")


SCHEMAS: dict[str, type[Parameters]] = {
    "00_inside_a_vit": InsideAViT,
    "01_phase_curves": PhaseCurves,
    "02_information_scrambling": InformationScrambling,
    "03_recoverability": Recoverability,
    "04_vfusion": VerticalFusion,
    "05_vfusion_ablations": FusionAblations,
    "06_shift": Shift,
    "07_semantic_diffusion": SemanticDiffusion,
    "08_entmax_attention": EntmaxAttention,
    "09_scorecard": Scorecard,
    "data_appendix": DataAppendix,
    "zoo_appendix": ZooAppendix,
}


def schema_of(notebook: str) -> type[Parameters]:
    """The class that types a notebook's parameters."""
    if notebook not in SCHEMAS:
        raise unknown("notebook", notebook, SCHEMAS)
    return SCHEMAS[notebook]


def resolve(
    notebook: str,
    profile: str = "course",
    overrides: Mapping[str, Any] | None = None,
    *,
    text: Mapping[str, str] | None = None,
) -> Parameters:
    """All parameters of one run: the profile's values, then `overrides`, then `text` parsed by declared type.

    Errors: `UnknownName` for a notebook, profile or parameter that does not exist, with near matches;
    `ParameterError` for a value of the wrong type or out of range.

    >>> resolve("01_phase_curves", "smoke", text={"backbone": "twin_b"}).backbones
    ['twin_b']
    """
    cls = schema_of(notebook)
    if profile not in PROFILES:
        raise unknown("profile", profile, PROFILES)
    read = {name: parse(cls, name, value) for name, value in (text or {}).items()}
    given = expand_aliases(cls, {**(overrides or {}), **read})
    if "profile" in given:
        raise ParameterError(
            f"the profile is chosen by itself, not as a parameter: --profile {given['profile']}"
        )
    return cls.validate_all({**cls.OVERRIDES.get(profile, {}), **given, "profile": profile})
