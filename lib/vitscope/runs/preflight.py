"""What must be there before a kernel starts: every backbone, weight file, dataset and record that is named.

All that is missing is listed at once. Nothing here falls back to another model, random weights or other data.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from vitscope.data.dense_layouts import LAYOUTS
from vitscope.runs.parameters import Parameters


class PreflightError(RuntimeError):
    """Something that the run needs is not there; the message lists each item and the ways out."""


def localise(parameters: Parameters, caller: Path, folder: Path, root: Path) -> Parameters:
    """Paths as the kernel in `folder` sees them: relative inside the book at `root`, absolute elsewhere."""

    def change(text: str) -> str:
        head, colon, tail = text.partition(":")
        if colon and head in LAYOUTS:  # LAYOUT:FOLDER
            return f"{head}:{change(tail)}"
        path = (caller / Path(text).expanduser()).resolve()
        looks_like_path = "/" in text or os.sep in text or path.suffix or path.is_file()
        if not looks_like_path or not path.exists():
            return text
        return os.path.relpath(path, folder) if path.is_relative_to(root) else str(path)

    return parameters.with_named(change)


def check(parameters: Parameters, folder: Path) -> None:
    """Raise `PreflightError` unless everything that `parameters` name can be opened or fetched."""
    weights = parameters.named("weights")
    checks: list[tuple[Callable[..., None], tuple]] = [
        *(
            (_backbone, (name, weights[0] if weights else "auto", folder))
            for name in parameters.named("backbone")
        ),
        *((_dataset, (name, folder)) for name in parameters.named("dataset")),
        *((_annotated, (name, folder)) for name in parameters.named("annotated")),
        *((_records, (name, folder)) for name in parameters.named("records")),
    ]
    problems = []
    for function, arguments in checks:
        try:
            function(*arguments)
        except (ValueError, RuntimeError, OSError) as error:
            problems.append(str(error))
    if problems:
        raise PreflightError("\n".join(dict.fromkeys(problems)))


def _backbone(name: str, weights: str, folder: Path) -> None:
    import timm

    from vitscope import backbones
    from vitscope.errors import unknown
    from vitscope.weights import is_random, require_reachable

    from_file = weights != "auto" and not is_random(weights)
    if from_file and not (folder / Path(weights).expanduser()).is_file():
        raise FileNotFoundError(f"no weight file {weights}")
    if name.partition("@")[0] in backbones.zoo_names():
        backbones.zoo_file(name)
        return
    if (folder / Path(name).expanduser()).is_file():
        return
    architecture = name.partition(".")[0]
    if not timm.is_model(architecture):
        raise unknown("backbone", name, backbones.available())
    if weights == "auto":
        require_reachable(name, timm.get_pretrained_cfg(name) or timm.get_pretrained_cfg(architecture))


def _dataset(name: str, folder: Path) -> None:
    from vitscope import data
    from vitscope.data import hub, shifts
    from vitscope.errors import unknown

    path_of = folder / Path(name).expanduser()
    if data.is_embedded(name) or path_of.exists() or shifts.array_root(str(path_of)):
        return
    # a shifted set of the hub is named with its corruption and severity: cifar10-c/fog/3
    known = hub.HUB_SETS.get(name) or hub.HUB_SETS.get(name.partition("/")[0])
    if known is not None and known.refused:
        raise ValueError(f"dataset {name!r}: {known.refused}")
    if known is None and (name.count("/") != 1 or name.startswith((".", "/", "~"))):
        if "/" in name or Path(name).suffix:
            raise FileNotFoundError(f"no such folder or Parquet file: {name}")
        raise unknown("dataset", name, data.available())
    path = known.path if known else name
    if not _cached_dataset(path):
        hub.require_answer(
            f"dataset {name!r} ({path})",
            "Use an embedded set (vitscope list data), or the path of a folder or Parquet file.",
        )


def _annotated(name: str, folder: Path) -> None:
    from vitscope.dense.examples import require

    require(name, folder)


def _records(name: str, folder: Path) -> None:
    from vitscope.runs import claims

    where = folder / Path(name).expanduser()
    if not where.is_dir():
        raise FileNotFoundError(f"no folder {name} with records; a folder beside you is written ./NAME")
    claims.read_records(where)


def _cached_dataset(path: str) -> bool:
    from datasets import config
    from huggingface_hub import constants

    return (
        Path(config.HF_DATASETS_CACHE, path.replace("/", "___").lower()).is_dir()
        or Path(constants.HF_HUB_CACHE, "datasets--" + path.replace("/", "--")).is_dir()
    )
