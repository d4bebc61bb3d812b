"""A fit without a notebook: features of a frozen backbone from the shared cache, heads, and test numbers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from vitscope.runs.hashing import Inputs, inputs_of
from vitscope.runs.layout import Project
from vitscope.runs.parameters import Names, Parameters
from vitscope.runs.schema_common import Device
from vitscope.runs.schema_frozen import COLAB_HEADS, PAPER_HEADS, SMOKE_HEADS
from vitscope.sweeps.results import number_row

DIGEST = "fit 1"
_SIZES = ("configurations", "steps", "hidden", "latent")
_NOT_ONE = ("backbones", "datasets")


def _of_one(profile: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in profile.items() if name not in _NOT_ONE}


class HeadFit(Parameters):
    """Fusion heads and probes on one backbone and one dataset, sized as in chapter 04."""

    OVERRIDES: ClassVar = {
        "smoke": _of_one(SMOKE_HEADS) | {"heads": ["VFusion"]},
        "course": {},
        "colab": _of_one(COLAB_HEADS),
        "paper": _of_one(PAPER_HEADS),
    }

    backbone: Annotated[str, Names("backbone")] = Field("twin_s", description="frozen backbone")
    weights: Annotated[str | None, Names("weights")] = Field(
        None, description="local weight file, or 'random'; none takes the published weights"
    )
    dataset: Annotated[str, Names("dataset")] = Field("emoji_group", description="task of the heads")
    heads: list[str] = Field(
        ["SuperLearner", "VFusion"],
        min_length=1,
        description="heads fitted beside LastLayer, BestLayer (the probes) and Oracle, which always are",
    )
    images: int = Field(800, ge=20, le=200_000, description="training images")
    test_images: int = Field(400, ge=20, le=200_000, description="test images")
    tokens: Literal["cls", "patch_mean"] = Field("cls", description="token that stands for a state")
    norm: Literal["none", "final", "layer"] = Field("none", description="norm applied to a state")
    configurations: int = Field(4, ge=1, le=64, description="settings that every head may try")
    steps: int = Field(150, ge=1, le=100_000, description="least number of updates of a trained head")
    hidden: int = Field(128, ge=1, le=8192, description="hidden units of VFusion's encoder")
    latent: int = Field(64, ge=2, le=4096, description="width of VFusion's latent token")
    seed: int = Field(0, ge=0, le=2**31 - 1, description="draw of images, splits, starts, bootstrap")
    device: Device = Field("auto", description="where the backbone runs; auto takes a GPU if there is one")

    @field_validator("heads")
    @classmethod
    def _known(cls, heads: list[str]) -> list[str]:
        from vitscope import rivals
        from vitscope.errors import unknown

        for head in heads:
            if head not in (known := (*rivals.METHODS, rivals.CONTROL)):
                raise unknown("head", head, known)
        return list(dict.fromkeys(heads))


def inputs(parameters: HeadFit, project: Project) -> Inputs:
    """What the numbers of a fit depend on, as of a run; relative paths start at the book's root."""
    return inputs_of(DIGEST, parameters, project, project.root)


def fit(p: HeadFit, project: Project, *, threads: int | None = None) -> list[dict[str, Any]]:
    """Fit the heads and return their test numbers as rows (see `results.number_row`).

    For every method: accuracy_METHOD and balanced_METHOD in percent, gap_closed_METHOD in percent, and
    gain_over_best_METHOD in points, paired image by image. Errors: as `backbones.load`, `frozen.load` and
    `comparison.compare`.
    """
    from vitscope import backbones, comparison, contrasts, frozen, rivals

    _prepare(p.seed, threads)
    model = backbones.load(_path(p.backbone, project), weights=_weights(p, project), device=p.device)
    cache = project.cache
    task, _ = frozen.load(
        model, _path(p.dataset, project), images=p.images, test_images=p.test_images, seed=p.seed,
        norm=p.norm, tokens=p.tokens, cache=cache,
    )  # fmt: skip
    heads = rivals.some(p.heads, **{name: getattr(p, name) for name in _SIZES})
    compared = comparison.compare(task, heads, seed=p.seed, cache=cache)
    pair = {(task.backbone, task.dataset): compared}
    count, rows = len(task.test), []
    for one in compared.table.to_dict("records"):
        method = str(one["method"]).replace(" ", "_")
        interval = one["low"], one["high"]
        rows.append(_row(f"accuracy_{method}", one["accuracy"], interval, count, "%"))
        rows.append(_row(f"balanced_{method}", one["balanced"], None, count, "%"))
        gap = one["gap low"], one["gap high"]
        rows.append(_row(f"gap_closed_{method}", one["gap closed"], gap, count, "%"))
        if one["method"] != comparison.BEST:
            gain = contrasts.over_images(contrasts.paired(pair, one["method"], comparison.BEST), seed=p.seed)
            rows.append(_row(f"gain_over_best_{method}", gain.value, (gain.low, gain.high), count, "points"))
    return rows


def _weights(p: HeadFit, project: Project) -> str:
    return "auto" if p.weights is None else _path(p.weights, project)


def _path(text: str, project: Project) -> str:
    """A relative path starts at the book's root, wherever the worker was started."""
    path = project.root / text
    return str(path) if path.exists() else text


def _row(name: str, value: Any, interval: tuple[Any, Any] | None, count: int, unit: str) -> dict[str, Any]:
    """A number as plain Python, None where it is not there."""
    value = _plain(value)
    ends = None if value is None or interval is None else tuple(map(_plain, interval))
    text = f"not measured, n {count}" if value is None else f"{value:.1f}"
    known = ends if ends and None not in ends else None
    return number_row(name, value, text=text, n=count, unit=unit, interval=known)  # type: ignore[arg-type]


def _plain(value: Any) -> float | None:
    return None if value is None or value != value else float(value)


def _prepare(seed: int, threads: int | None) -> None:
    import numpy as np
    import torch

    np.random.seed(seed)
    torch.manual_seed(seed)
    if threads is not None:
        torch.set_num_threads(threads)
