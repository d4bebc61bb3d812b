"""Parameters of the chapters on dense features: 07 and 08."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from vitscope.runs.parameters import Names, Parameters
from vitscope.runs.schema_common import Backbones, Device, check_distinct, check_weights

Annotateds = Annotated[list[str], Names("annotated"), Field(min_length=1)]
KINDS = ("softmax", "entmax15", "register4", "specialized")
VARIANTS = [f"sup_{kind}" for kind in KINDS]
REPEATS = [f"{name}-1" for name in VARIANTS]
SELF_SUPERVISED = [f"dino_{kind}" for kind in KINDS]
PRETRAINED = [f"dino_vits16_{kind}" for kind in KINDS]
DINO_S16 = "vit_small_patch16_224.dino"


class _Dense(Parameters):
    """What the chapters on dense features have in common."""

    ALIASES: ClassVar = {"backbone": "backbones"}

    weights: Annotated[str | None, Names("weights")] = Field(
        None,
        description="local weight file of the one backbone, or 'random'; none takes the published weights",
    )
    images: int = Field(300, ge=20, le=200_000, description="pictures that train the dense probes")
    test_images: int = Field(200, ge=20, le=200_000, description="pictures that test them")
    img_size: int | None = Field(
        96, ge=16, le=2048, description="side of the pictures in pixels; none takes the backbone's own"
    )
    norm: Literal["none", "final", "layer"] = Field(
        "final", description="which norm is applied to a state before it is used"
    )
    seed: int = Field(
        0, ge=0, le=2**31 - 1, description="draw of the pictures, splits and start of the probes, bootstrap"
    )
    device: Device = Field("auto", description="where the backbone runs; auto takes a GPU if there is one")


class SemanticDiffusion(_Dense):
    """07_semantic_diffusion: where the meaning of an image lies among its patches, layer by layer."""

    OVERRIDES: ClassVar = {
        "smoke": {
            "backbones": ["depth_06"],
            "images": 40,
            "test_images": 24,
            "control_images": 20,
            "gallery": 2,
            "training_of": None,
        },
        "course": {},
        "colab": {
            "backbones": [DINO_S16, "vit_small_patch14_dinov2.lvd142m"],
            "img_size": 224,
            "images": 1000,
            "test_images": 500,
            "training_of": None,
        },
        "paper": {
            "backbones": [DINO_S16, "vit_base_patch16_224.dino", "vit_small_patch14_dinov2.lvd142m"],
            "img_size": 224,
            "scenes": "voc:data/VOC2012",
            "boxes": "imagenet_boxes:data/imagenet",
            "depth": "nyuv2:data/nyuv2",
            "images": 10_000,
            "test_images": 5_000,
            "training_of": None,
        },
    }

    backbones: Backbones = Field(
        ["dino_softmax", "sup_softmax", "twin_s"], description="backbones whose layers are compared"
    )
    scenes: Annotated[str, Names("annotated")] = Field(
        "scenes", description="set with masks, for segmentation and for foreground and background"
    )
    boxes: Annotated[str, Names("annotated")] = Field(
        "scenes_single", description="set with boxes, for point-in-box, and for leakage where it has masks"
    )
    depth: Annotated[str, Names("annotated")] = Field("scenes", description="set with depth")
    control_images: int = Field(
        100, ge=20, le=100_000, description="test pictures for attention, likeness, norms and masks"
    )
    gallery: int = Field(4, ge=1, le=12, description="pictures shown in the galleries")
    training_of: Annotated[str | None, Names("backbone")] = Field(
        "dino_softmax",
        description="model of the zoo whose snapshots along training are measured; none leaves it out",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_weights(self.weights, self.backbones)
        check_distinct("backbones", self.backbones)
        return self


class EntmaxAttention(_Dense):
    """08_entmax_attention: sparse attention against softmax, registers and specialization."""

    OVERRIDES: ClassVar = {
        "smoke": {
            "repeats": [],
            "self_supervised": [],
            "datasets": ["scenes"],
            "depth": ["scenes"],
            "images": 40,
            "test_images": 24,
            "probe_images": 60,
            "gallery": 2,
            "training_of": [],
        },
        "course": {},
        "colab": {
            "backbones": [DINO_S16],
            "repeats": [],
            "self_supervised": [],
            "img_size": 224,
            "images": 1000,
            "test_images": 500,
            "training_of": [],
        },
        "paper": {
            "backbones": [f"runs/train/{name}-seed0/{name}.safetensors" for name in PRETRAINED],
            "repeats": [],
            "self_supervised": [],
            "img_size": 224,
            "dataset": "imagenet",
            "datasets": ["voc:data/VOC2012", "ade20k:data/ADE20K", "cityscapes:data/cityscapes"],
            "depth": ["nyuv2:data/nyuv2", "sunrgbd:data/sunrgbd", "kitti:data/kitti"],
            "images": 10_000,
            "test_images": 5_000,
            "probe_images": 100_000,
            "training_of": [],
        },
    }

    backbones: Backbones = Field(
        VARIANTS, description="variants of one training, the one they are compared with first"
    )
    repeats: Annotated[list[str], Names("backbone")] = Field(
        REPEATS,
        description="the same variants, in the same order, trained with other seeds; may be empty",
    )
    self_supervised: Annotated[list[str], Names("backbone")] = Field(
        SELF_SUPERVISED,
        description="self-supervised variants, the one they are compared with first; may be empty",
    )
    dataset: Annotated[str, Names("dataset")] = Field(
        "emoji_group", description="task for linear probe and nearest neighbours, the recognition of images"
    )
    datasets: Annotateds = Field(
        ["scenes", "scenes_fine", "scenes_single"], description="sets with masks, for segmentation"
    )
    depth: Annotateds = Field(["scenes", "scenes_single"], description="sets with depth")
    probe_images: int = Field(
        500, ge=20, le=2_000_000, description="images that train the linear probe; half as many test it"
    )
    gallery: int = Field(4, ge=1, le=12, description="pictures shown in the galleries")
    training_of: Annotated[list[str], Names("backbone")] = Field(
        ["dino_softmax", "dino_entmax15"],
        description="models whose snapshots along training are measured; may be empty",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_weights(self.weights, self.backbones)
        check_distinct("all backbones together", [*self.backbones, *self.repeats, *self.self_supervised])
        for name in ("datasets", "depth"):
            check_distinct(name, [one.partition(":")[0] for one in getattr(self, name)])
        if len(self.repeats) % len(self.backbones):
            raise ValueError(
                f"repeats must name all {len(self.backbones)} variants once for each further training, "
                f"got {len(self.repeats)} names"
            )
        return self
