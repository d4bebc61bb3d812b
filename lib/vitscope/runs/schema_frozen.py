"""Parameters of the chapters on frozen features: 03 to 06."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from vitscope.runs.parameters import Names, Parameters
from vitscope.runs.schema_common import Backbones, Datasets, Device, check_distinct, check_weights

FAMILIES = ["twin_s", "clip_names"]
HUB_FAMILIES = [
    "vit_small_patch14_dinov2.lvd142m",
    "vit_base_patch14_dinov2.lvd142m",
    "vit_large_patch14_dinov2.lvd142m",
    "vit_small_patch16_224.augreg_in21k",
    "vit_base_patch16_224.augreg_in21k",
    "vit_large_patch16_224.augreg_in21k",
    "vit_base_patch16_clip_224.openai",
    "vit_large_patch14_clip_224.openai",
]
TASKS = ["fashion_mnist", "digits", "emoji_group", "emoji_subgroup", "emoji_novel", "scenes_single"]
SHIFTS = ["fashion_mnist-c", "emoji_group-c", "emoji_novel-c", "emoji_group-style", "emoji_places"]
HUB_TASKS = [
    "cifar10", "cifar100", "stl10", "caltech101", "dtd", "eurosat", "resisc45", "pcam",
    "gtsrb", "svhn", "flowers102", "pets", "food101", "stanford_cars", "fgvc_aircraft", "sun397",
]  # fmt: skip
HUB_SHIFTS = ["cifar10-c", "cifar100-c", "imagenet200-c", "celeba", "waterbirds"]
SMOKE_TASKS: dict[str, Any] = {
    "backbones": ["depth_06"],
    "datasets": ["emoji_group", "digits"],
    "images": 120,
    "test_images": 60,
}
COLAB_TASKS: dict[str, Any] = {
    "backbones": ["vit_small_patch14_dinov2.lvd142m", "vit_small_patch16_224.augreg_in21k"],
    "datasets": ["cifar10", "dtd", "eurosat", "pets"],
    "images": 2000,
    "test_images": 1000,
}
PAPER_TASKS: dict[str, Any] = {
    "backbones": HUB_FAMILIES,
    "datasets": HUB_TASKS,
    "images": 200_000,
    "test_images": 200_000,
}


class _Frozen(Parameters):
    """What the chapters on frozen features have in common."""

    ALIASES: ClassVar = {"backbone": "backbones", "dataset": "datasets"}

    backbones: Backbones = Field(FAMILIES, description="frozen backbones, one or more of every family")
    weights: Annotated[str | None, Names("weights")] = Field(
        None,
        description="local weight file of the one backbone, or 'random'; none takes the published weights",
    )
    datasets: Datasets = Field(TASKS, description="tasks that probes and heads are fitted to")
    images: int = Field(800, ge=20, le=200_000, description="training images of each task")
    test_images: int = Field(400, ge=20, le=200_000, description="test images of each task")
    tokens: Literal["cls", "patch_mean"] = Field(
        "cls", description="token that stands for a state; a backbone without CLS gives the mean patch token"
    )
    norm: Literal["none", "final", "layer"] = Field(
        "none", description="which norm is applied to a state before it is used"
    )
    seed: int = Field(
        0, ge=0, le=2**31 - 1, description="draw of the images, splits, start of probes and heads, bootstrap"
    )
    device: Device = Field("auto", description="where the backbone runs; auto takes a GPU if there is one")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_weights(self.weights, self.backbones)
        for name in ("backbones", "datasets"):
            check_distinct(name, getattr(self, name))
        return self


class _Heads(_Frozen):
    """What the chapters that train fusion heads have in common: one budget and one size for all."""

    configurations: int = Field(
        4, ge=1, le=64, description="settings that every head may try, chosen on held-out training images"
    )
    steps: int = Field(150, ge=1, le=100_000, description="least number of updates of a head that is trained")
    hidden: int = Field(128, ge=1, le=8192, description="hidden units of VFusion's encoder")
    latent: int = Field(64, ge=2, le=4096, description="width of VFusion's latent token")


SMOKE_HEADS = SMOKE_TASKS | {"configurations": 1, "steps": 20, "hidden": 16, "latent": 8}
COLAB_HEADS = COLAB_TASKS | {"steps": 300, "hidden": 512, "latent": 128}
PAPER_HEADS = PAPER_TASKS | {"steps": 1000, "hidden": 1024, "latent": 256}


class Recoverability(_Frozen):
    """03_recoverability: how much of the last layer's errors earlier layers get right, against chance."""

    OVERRIDES: ClassVar = {
        "smoke": SMOKE_TASKS | {"mlp_hidden": 16, "mlp_epochs": 3},
        "course": {},
        "colab": COLAB_TASKS,
        "paper": PAPER_TASKS,
    }

    mlp_hidden: int = Field(128, ge=1, le=4096, description="hidden units of the MLP probes")
    mlp_epochs: int = Field(25, ge=1, le=1000, description="epochs of the MLP probes")


class VerticalFusion(_Heads):
    """04_vfusion: VFusion against every rival, over datasets and backbone families."""

    OVERRIDES: ClassVar = {
        "smoke": SMOKE_HEADS,
        "course": {},
        "colab": COLAB_HEADS,
        "paper": PAPER_HEADS,
    }


class FusionAblations(_Heads):
    """05_vfusion_ablations: which layers, how large, which penalty, how many images; across against along."""

    OVERRIDES: ClassVar = {
        "smoke": SMOKE_HEADS | {"backbones": ["depth_06", "twin_s"], "latents": [4, 8]},
        "course": {},
        "colab": COLAB_HEADS | {"datasets": ["dtd", "eurosat"]},
        "paper": PAPER_HEADS,
    }

    backbones: Backbones = Field(
        ["twin_s", "twin_b", "clip_names"], description="frozen backbones, also fused with each other"
    )
    datasets: Datasets = Field(["emoji_group", "fashion_mnist"], description="tasks the heads are fitted to")
    latents: list[int] = Field([8, 32], min_length=1, description="latent widths compared with `latent`")

    @model_validator(mode="after")
    def _ranges(self) -> Self:
        if min(self.latents) < 2:
            raise ValueError(f"latents must be at least 2, got {self.latents}")
        return self


class Shift(_Heads):
    """06_shift: heads fitted to clean pictures and tested under covariate and subpopulation shift."""

    OVERRIDES: ClassVar = {
        "smoke": SMOKE_HEADS | {"datasets": ["digits-c", "emoji_places"], "severities": [3]},
        "course": {},
        "colab": COLAB_HEADS | {"datasets": ["cifar10-c/fog", "waterbirds"]},
        "paper": PAPER_HEADS | {"datasets": HUB_SHIFTS},
    }

    backbones: Backbones = Field(["twin_s"], description="frozen backbones, one or more")
    datasets: Datasets = Field(SHIFTS, description="shifted sets; heads learn from their clean training part")
    severities: list[int] = Field(
        [1, 3, 5], min_length=1, description="severities of corrupted sets, of 1 to 5"
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        if not set(self.severities) <= {1, 2, 3, 4, 5}:
            raise ValueError(f"severities must be of 1 to 5, got {self.severities}")
        if self.severities != sorted(set(self.severities)):
            raise ValueError(f"severities must ascend, each once, got {self.severities}")
        return self
