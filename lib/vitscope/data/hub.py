"""Datasets of the hub, through `datasets`: known sets with their columns, others by an unambiguous rule."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vitscope.data.files import IMAGE_COLUMNS, LABEL_COLUMNS, choose_column, from_rows
from vitscope.data.images import Images


class NotReachable(RuntimeError):
    """A dataset or weight file lies neither in the local cache nor within reach."""


@dataclass(frozen=True)
class HubSet:
    """Where a dataset lies and which columns and splits it has (`splits`: our name -> theirs)."""

    path: str
    image: str = "image"
    label: str = "label"
    config: str | None = None
    splits: tuple[tuple[str, str], ...] = (("train", "train"), ("test", "test"))


# Ids, columns and splits as listed by the datasets' cards and by evaluation suites that read them.
_VALIDATION = (("train", "train"), ("test", "validation"))
HUB_SETS = {
    "cifar10": HubSet("uoft-cs/cifar10", image="img"),
    "cifar100": HubSet("uoft-cs/cifar100", image="img", label="fine_label"),
    "stl10": HubSet("tanganke/stl10"),
    "dtd": HubSet("tanganke/dtd"),
    "eurosat": HubSet("tanganke/eurosat"),
    "resisc45": HubSet("tanganke/resisc45"),
    "pcam": HubSet("1aurent/PatchCamelyon"),
    "gtsrb": HubSet("tanganke/gtsrb"),
    "svhn": HubSet("ufldl-stanford/svhn", config="cropped_digits"),
    "flowers102": HubSet("dpdl-benchmark/oxford_flowers102"),
    "pets": HubSet("timm/oxford-iiit-pet"),
    "food101": HubSet("ethz/food101", splits=_VALIDATION),
    "stanford_cars": HubSet("tanganke/stanford_cars"),
    "sun397": HubSet("tanganke/sun397"),
    "caltech101": HubSet("mteb/Caltech101"),
    "fgvc_aircraft": HubSet("mteb/FGVCAircraft", label="variant"),
    "imagenet": HubSet("ILSVRC/imagenet-1k", splits=_VALIDATION),  # its own test split has no labels
}


def is_offline() -> bool:
    """True when one of the hub's own offline switches is set."""
    on = {"1", "true", "yes", "on"}
    return any(os.environ.get(k, "").lower() in on for k in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"))


def load_hub(
    name: str, split: str, *, image_column: str | None = None, label_column: str | None = None
) -> Images:
    """One split of a hub dataset. Remote code is never run; an empty result is never returned."""
    import datasets  # heavy, and absent where only the embedded world is used

    known = HUB_SETS.get(name) or next((s for s in HUB_SETS.values() if s.path == name), None)
    wanted = known or HubSet(name)
    theirs = dict(wanted.splits).get(split, split)
    try:
        with _cache_only_when_silent():
            rows = datasets.load_dataset(wanted.path, wanted.config, split=theirs)
    except ValueError as error:
        if "split" in str(error).lower():
            raise ValueError(f"{name} has no split {theirs!r}: {error}") from error
        raise NotReachable(_unreachable(name, wanted.path, error)) from error
    except (ConnectionError, OSError, RuntimeError) as error:
        raise NotReachable(_unreachable(name, wanted.path, error)) from error
    if known is not None:
        image_column, label_column = image_column or known.image, label_column or known.label
    image = choose_column(rows.column_names, image_column or None, IMAGE_COLUMNS, "image", name)
    label = choose_column(rows.column_names, label_column or None, LABEL_COLUMNS, "label", name)
    pictures = rows.cast_column(image, datasets.Image(decode=False))
    return from_rows(
        name=name, split=split, cells=_Column(pictures, image), labels=rows[label],
        names=getattr(rows.features[label], "names", None), digest=rows._fingerprint,
        source={"kind": "hub", "path": wanted.path, "config": wanted.config, "split": theirs,
                "image_column": image, "label_column": label, "version": str(rows.info.version)},
    )  # fmt: skip


@contextmanager
def _cache_only_when_silent() -> Iterator[None]:
    """Ask the hub once; where it does not answer, `datasets` reads its cache instead of retrying for long."""
    from datasets import config
    from huggingface_hub import constants

    if is_offline() or answers():
        yield
        return
    before = constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before


def answers(seconds: float = 4.0) -> bool:
    """True when the hub responds at all, through whatever proxy is configured."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=seconds)
    except Exception:  # whatever the HTTP library raises: there is no answer
        return False
    return True


def require_answer(what: str, way_out: str) -> None:
    """Raise `NotReachable` for something that is not cached, unless the hub may be asked and answers."""
    if is_offline():
        raise NotReachable(f"{what} is not in the local cache and offline mode is on. {way_out}")
    if not answers():
        raise NotReachable(f"{what} is not in the local cache and the hub does not answer. {way_out}")


class _Column:
    """One column of a `datasets` table by row, without reading the others."""

    def __init__(self, rows, column: str) -> None:
        self.rows, self.column = rows.select_columns([column]), column

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int):
        return self.rows[index][self.column]


def _unreachable(name: str, path: str, error: Exception) -> str:
    said = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:160]}"
    mode = "offline mode is on" if is_offline() else said
    return (
        f"dataset {name!r} ({path}) is not in the local cache and cannot be fetched ({mode}). "
        "Use an embedded set (vitscope list data), or pass the path of a folder of class folders "
        "or of a Parquet file."
    )
