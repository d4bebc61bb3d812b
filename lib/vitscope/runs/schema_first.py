"""Parameters of chapter 00, for learners."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from vitscope.runs.parameters import Names, Parameters
from vitscope.runs.schema_common import Device


class InsideAViT(Parameters):
    """00_inside_a_vit: a ViT in 80 lines, from pixels to answers, and what it does block by block."""

    OVERRIDES: ClassVar = {"smoke": {"images": 40, "pictures": 2}, "course": {}, "colab": {}, "paper": {}}

    backbone: Annotated[str, Names("backbone")] = Field(
        "twin_s",
        description="a plain ViT of the zoo that names emoji, a snapshot of it, or your own file",
    )
    images: int = Field(400, ge=20, le=2500, description="renders that are named; half of them with changes")
    pictures: int = Field(6, ge=1, le=12, description="pictures that are shown")
    seed: int = Field(
        0, ge=0, le=2**31 - 1, description="draw of the renders, order of shuffled patches, random weights"
    )
    device: Device = Field("auto", description="where the model runs; auto takes a GPU if there is one")
