"""The parameters of every notebook, and the profiles that group them.

One class a notebook. Field defaults are the `course` profile, the one that the published book shows;
`OVERRIDES` holds what `smoke`, `colab` and `paper` change. `vitscope list` prints this page as a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from vitscope.errors import unknown
from vitscope.runs.parameters import PROFILES, Names, ParameterError, Parameters, expand_aliases, parse

Backbones = Annotated[list[str], Names("backbone"), Field(min_length=1)]
Datasets = Annotated[list[str], Names("dataset"), Field(min_length=1)]
Device = Literal["auto", "cpu", "cuda", "mps"]

SUPERVISED_SIZES = [
    "vit_small_patch16_224.augreg_in21k_ft_in1k",
    "vit_base_patch16_224.augreg_in21k_ft_in1k",
    "vit_large_patch16_224.augreg_in21k_ft_in1k",
]

TWINS = ["twin_s", "twin_b"]
DEPTH_SERIES = ["depth_06", "depth_12", "depth_18", "depth_24"]
SAME = "same"
COLAB_LAYERS: dict[str, Any] = {
    "backbones": ["vit_small_patch16_224.augreg_in21k_ft_in1k", "vit_small_patch14_dinov2.lvd142m"],
    "depth_series": [],
    "dataset": "cifar100",
    "images": 5000,
    "test_images": 2000,
}
PAPER_LAYERS: dict[str, Any] = {
    "backbones": SUPERVISED_SIZES,
    "depth_series": [],
    "dataset": "imagenet",
    "images": 100_000,
    "test_images": 10_000,
}


class _Layers(Parameters):
    """What the chapters on layers have in common."""

    ALIASES: ClassVar = {"backbone": "backbones"}

    backbones: Backbones = Field(TWINS, description="backbones whose curves are drawn together")
    depth_series: Annotated[list[str], Names("backbone")] = Field(
        DEPTH_SERIES, description="backbones of one width and rising depth; may be empty"
    )
    weights: Annotated[str | None, Names("weights")] = Field(
        None,
        description="local weight file of the one backbone, or 'random'; none takes the published weights",
    )
    dataset: Annotated[str, Names("dataset")] = Field(
        "emoji_group", description="task whose classes the probes tell apart"
    )
    images: int = Field(2000, ge=20, le=200_000, description="images that train the probes")
    test_images: int = Field(
        1000, ge=20, le=200_000, description="images that test the probes and whose tokens are measured"
    )
    norm: Literal["none", "final", "layer"] = Field(
        "none", description="which norm is applied to a state before it is measured"
    )
    seed: int = Field(
        0, ge=0, le=2**31 - 1, description="draw of the images, split and start of the probes, bootstrap"
    )
    device: Device = Field("auto", description="where the backbone runs; auto takes a GPU if there is one")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        from_file = self.weights is not None and self.weights.partition(":")[0] != "random"
        if from_file and len(self.backbones) != 1:
            raise ValueError("a weight file belongs to one backbone; name that one: -p backbone=NAME")
        named = [*self.backbones, *self.depth_series]
        twice = sorted({name for name in named if named.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)}: named twice in backbones and depth_series together")
        return self


class PhaseCurves(_Layers):
    """01_phase_curves: cliff, plateau and climb of token similarity and of probes, layer by layer."""

    OVERRIDES: ClassVar = {
        "smoke": {
            "backbones": ["twin_s"],
            "depth_series": ["depth_06"],
            "images": 160,
            "test_images": 80,
            "control_images": 40,
        },
        "course": {},
        "colab": COLAB_LAYERS | {"own_dataset": None, "training_of": None},
        "paper": PAPER_LAYERS | {"own_dataset": SAME, "training_of": None},
    }

    own_dataset: Annotated[str | None, Names("dataset")] = Field(
        "emoji_identity",
        description="task that the backbones' own heads were trained on, 'same' for that of `dataset`; "
        "none leaves out what needs it",
    )
    training_of: Annotated[str | None, Names("backbone")] = Field(
        "twin_s", description="model of the zoo whose snapshots along training are shown; none leaves it out"
    )
    control_images: int = Field(
        256, ge=20, le=100_000, description="test images for controls, own heads and effective rank"
    )

    @model_validator(mode="before")
    @classmethod
    def _same(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("own_dataset") == SAME:
            return values | {"own_dataset": values.get("dataset", cls.model_fields["dataset"].default)}
        return values


class InformationScrambling(_Layers):
    """02_information_scrambling: where a patch's information goes, and when the task overtakes it."""

    OVERRIDES: ClassVar = {
        "smoke": {
            "backbones": ["twin_s"],
            "depth_series": ["depth_06"],
            "images": 160,
            "test_images": 80,
            "isi_images": 80,
            "isi_maps": 1,
        },
        "course": {},
        "colab": COLAB_LAYERS | {"isi_images": 500},
        "paper": PAPER_LAYERS | {"isi_images": 5000},
    }

    isi_images: int = Field(
        500, ge=20, le=50_000, description="test images on which patches are reconstructed"
    )
    isi_maps: int = Field(3, ge=1, le=16, description="spatial maps that pool the context of a patch")


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
        "smoke": {"backbones": ["twin_s"], "images": 64},
        "course": {},
        "colab": {},
        "paper": {},
    }

    backbones: Backbones = Field([*TWINS, *DEPTH_SERIES], description="models of the zoo that are described")
    images: int = Field(
        1000, ge=20, le=100_000, description="fresh renders on which each model's accuracy is checked"
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="which renders are drawn")
    device: Device = Field("auto", description="where the backbone runs; auto takes a GPU if there is one")


SCHEMAS: dict[str, type[Parameters]] = {
    "01_phase_curves": PhaseCurves,
    "02_information_scrambling": InformationScrambling,
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
