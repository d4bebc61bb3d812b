"""Parameters of the chapters on layers: 01 and 02."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from vitscope.runs.parameters import Names, Parameters
from vitscope.runs.schema_common import DEPTH_SERIES, TWINS, Backbones, Device, check_distinct, check_weights

SUPERVISED_SIZES = [
    "vit_small_patch16_224.augreg_in21k_ft_in1k",
    "vit_base_patch16_224.augreg_in21k_ft_in1k",
    "vit_large_patch16_224.augreg_in21k_ft_in1k",
]

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
    images: int = Field(1000, ge=20, le=200_000, description="images that train the probes")
    test_images: int = Field(
        600, ge=20, le=200_000, description="images that test the probes and whose tokens are measured"
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
        check_weights(self.weights, self.backbones)
        check_distinct("backbones and depth_series together", [*self.backbones, *self.depth_series])
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
        400, ge=20, le=50_000, description="test images on which patches are reconstructed"
    )
    isi_maps: int = Field(3, ge=1, le=16, description="spatial maps that pool the context of a patch")
