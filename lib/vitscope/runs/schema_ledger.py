"""Parameters of the chapter that reads records in place of models and pictures: 09."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from vitscope.runs.parameters import Names, Parameters


class Scorecard(Parameters):
    """09_scorecard: every claim of the three papers with its verdict, and what the rules make of noise."""

    OVERRIDES: ClassVar = {"smoke": {}, "course": {}, "colab": {}, "paper": {}}
    READS_LEDGER: ClassVar = True

    records: Annotated[str | None, Names("records")] = Field(
        None, description="folder with records of your own; none judges the published ones"
    )
    setting: Literal["twin", "paper"] = Field(
        "twin", description="setting whose verdicts are counted, drawn and compared with noise"
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="draws of the noise")
