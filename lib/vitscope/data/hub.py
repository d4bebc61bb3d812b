"""Datasets of the hub, through `datasets`: known sets with their columns, others by an unambiguous rule.

The registry names the sixteen in-distribution and five shifted sets of paper B. The sixteen are our proposal,
for the paper's own list was not found; the shifted ones are those of its section 5.3 and Table 3. Code of a
dataset's repository is never run: what needs it is refused with the way round it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitscope.data import shifts
from vitscope.data.files import IMAGE_COLUMNS, LABEL_COLUMNS, choose_column, from_rows
from vitscope.data.images import Images, UnlabelledError, fingerprint


class NotReachable(RuntimeError):
    """A dataset or weight file lies neither in the local cache nor within reach."""


@dataclass(frozen=True)
class HubSet:
    """Where a dataset lies and which columns and splits it has (`splits`: our name -> theirs).

    `label_names` name False and True of a label that is an attribute. `attribute` is the column that, crossed
    with the label, makes the groups of a subpopulation shift. `clean` is the set that a test-only set of
    plain arrays is the shift of. `refused` says why the hub is of no use here, and the way round.
    """

    path: str = ""
    image: str = "image"
    label: str = "label"
    config: str | None = None
    splits: tuple[tuple[str, str], ...] = (("train", "train"), ("test", "test"))
    licence: str = "none stated by its authors; look at its card"
    label_names: tuple[str, str] | None = None
    attribute: str | None = None
    attribute_names: tuple[str, str] = ("no", "yes")
    clean: str | None = None
    refused: str = ""


_TEST_IS_VALIDATION = (("train", "train"), ("test", "validation"))
_THREE = (("train", "train"), ("validation", "validation"), ("test", "test"))
_TEST_ONLY = (("test", "test"),)
_RESEARCH = "non-commercial research only"
# Ids, columns and splits as listed by the datasets' cards and by evaluation suites that read them.
HUB_SETS = {
    "cifar10": HubSet("uoft-cs/cifar10", image="img"),
    "cifar100": HubSet("uoft-cs/cifar100", image="img", label="fine_label"),
    "stl10": HubSet("tanganke/stl10"),
    "dtd": HubSet("tanganke/dtd", licence="research only"),
    "eurosat": HubSet("tanganke/eurosat", licence="MIT"),
    "resisc45": HubSet("tanganke/resisc45"),
    "pcam": HubSet("1aurent/PatchCamelyon", licence="CC0"),
    "gtsrb": HubSet("tanganke/gtsrb"),
    "svhn": HubSet("ufldl-stanford/svhn", config="cropped_digits", licence="non-commercial use only"),
    "flowers102": HubSet("dpdl-benchmark/oxford_flowers102", splits=_THREE),
    "pets": HubSet("timm/oxford-iiit-pet", licence="CC BY-SA 4.0"),
    "food101": HubSet("ethz/food101", splits=_TEST_IS_VALIDATION),
    "stanford_cars": HubSet("tanganke/stanford_cars"),
    "sun397": HubSet("tanganke/sun397"),
    "caltech101": HubSet("mteb/Caltech101", licence="CC BY 4.0"),
    "fgvc_aircraft": HubSet("mteb/FGVCAircraft", label="variant", splits=_THREE, licence=_RESEARCH),
    "imagenet": HubSet(  # its own test split has no labels
        "ILSVRC/imagenet-1k",
        splits=_TEST_IS_VALIDATION,
        licence=f"{_RESEARCH}; gated: accept its terms on the hub and log in with a token",
    ),
    "cifar10-c": HubSet("YashP54/cifar10-c", clean="cifar10", splits=_TEST_ONLY, licence="CC BY 4.0"),
    "cifar100-c": HubSet(
        clean="cifar100",
        splits=_TEST_ONLY,
        licence="CC BY 4.0",
        refused="its hub copy randall-lab/cifar100-c needs a loading script, and code of a dataset is never "
        "run. Download the arrays of Hendrycks and Dietterich (Zenodo 3555552) and pass "
        "FOLDER/CORRUPTION/SEVERITY, FOLDER being where labels.npy lies",
    ),
    "imagenet200-c": HubSet(
        clean="imagenet",
        splits=_TEST_ONLY,
        licence=f"CC BY 4.0 for ImageNet-C, the pictures as ImageNet ({_RESEARCH})",
        refused="no hub copy is known. Pass a folder with train/ (clean) and test/ (the class folders of "
        "ImageNet-C's CORRUPTION/SEVERITY, links will do), both with the 200 classes of OpenOOD v1.5's list "
        "test_imagenet200_c.txt",
    ),
    "celeba": HubSet(
        "flwrlabs/celeba",
        config="img_align+identity+attr",
        splits=(("train", "train"), ("validation", "valid"), ("test", "test")),
        label="Blond_Hair",
        label_names=("not blond", "blond"),
        attribute="Male",
        attribute_names=("not male", "male"),
        licence=f"CelebA release agreement, {_RESEARCH}",
    ),
    "waterbirds": HubSet(
        "grodino/waterbirds",
        splits=_THREE,
        label_names=("landbird", "waterbird"),
        attribute="place",
        attribute_names=("land", "water"),
        licence=f"{_RESEARCH}, as CUB-200-2011 and Places, which it is made of",
    ),
}
SHIFTED = ("cifar10-c", "cifar100-c", "imagenet200-c", "celeba", "waterbirds")
IN_DISTRIBUTION = tuple(name for name in HUB_SETS if name not in (*SHIFTED, "imagenet"))
# Ids whose repository holds a loading script -> the name under which we read the same set.
SCRIPTED = {
    "randall-lab/cifar10-c": "cifar10-c",
    "randall-lab/cifar100-c": "cifar100-c",
    "HuggingFaceM4/FGVC-Aircraft": "fgvc_aircraft",
}


def is_offline() -> bool:
    """True when one of the hub's own offline switches is set."""
    on = {"1", "true", "yes", "on"}
    return any(os.environ.get(k, "").lower() in on for k in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"))


def load_hub(
    name: str, split: str, *, image_column: str | None = None, label_column: str | None = None
) -> Images:
    """One split of a hub dataset, by id or by its name here; sets in -c take /CORRUPTION/SEVERITY.

    A set with an `attribute` column has it in `extras`, with `extras["group"]` = 2·label + attribute and the
    groups' names in `source["groups"]`. An empty result is never returned.

    Errors: `NotReachable` with the licence and the way round; `ValueError` for splits and columns it lacks;
    `UnlabelledError` for labels that are no classes.
    """
    if name in SCRIPTED:
        raise NotReachable(
            f"dataset {name!r} needs a loading script, and code of a dataset is never run; "
            f"use {SCRIPTED[name]!r}"
        )
    base, _, address = name.partition("/")
    ours = base if base in SHIFTED else next((k for k, s in HUB_SETS.items() if name in (k, s.path)), None)
    known = HUB_SETS[ours] if ours else None
    if known is None or known.clean is None:
        if address and base in SHIFTED:
            raise ValueError(f"{base} has no corruptions; write {base!r}")
        return _load_rows(name, known, split, image_column, label_column)
    if split == "train":
        return load_hub(known.clean, split)
    if known.refused:
        raise NotReachable(
            f"dataset {ours!r} is not read from the hub: {known.refused}. Licence: {known.licence}."
        )
    return _load_arrays(str(ours), known, address if base in SHIFTED else "", split)


def _load_rows(name, known: HubSet | None, split, image_column, label_column) -> Images:
    import datasets  # heavy, and absent where only the embedded world is used

    wanted = known or HubSet(name)
    theirs = dict(wanted.splits).get(split, split)
    with _told_apart(name, wanted, theirs):
        rows = datasets.load_dataset(wanted.path, wanted.config, split=theirs)
    if known is not None:
        image_column, label_column = image_column or known.image, label_column or known.label
    image = choose_column(rows.column_names, image_column or None, IMAGE_COLUMNS, "image", name)
    label = choose_column(rows.column_names, label_column or None, LABEL_COLUMNS, "label", name)
    pictures = rows.cast_column(image, datasets.Image(decode=False))
    labels, names = rows[label], getattr(rows.features[label], "names", None)
    if label == wanted.label and wanted.label_names:
        names = names or wanted.label_names
        labels = _binary(labels, names, f"{name}/{split} column {label}")
    images = from_rows(
        name=name, split=split, cells=_Column(pictures, image), labels=labels, names=names,
        digest=rows._fingerprint,
        source={"kind": "hub", "path": wanted.path, "config": wanted.config, "split": theirs,
                "image_column": image, "label_column": label, "version": str(rows.info.version),
                "licence": wanted.licence},
    )  # fmt: skip
    return _grouped(images, wanted, rows) if wanted.attribute else images


def _grouped(images: Images, wanted: HubSet, rows) -> Images:
    """The images with the attribute and the group of each."""
    column = str(wanted.attribute)
    choose_column(rows.column_names, column, (), "attribute", images.name)
    names = getattr(rows.features[column], "names", None) or wanted.attribute_names
    where = f"{images.name}/{images.split} column {column}"
    attribute = np.array(_binary(rows[column], names, where), dtype=np.int64)
    return replace(
        images,
        extras={column: attribute, "group": 2 * images.labels + attribute},
        source={**images.source, "groups": [f"{c}, {column} {a}" for c in images.classes for a in names]},
        digest=fingerprint(images.digest, column, attribute),
    )


def _binary(values: Sequence, names: Sequence[str], where: str) -> list[int]:
    """Booleans, 0 and 1, or the two names, as 0 and 1. Anything else is refused rather than guessed."""
    code = {0: 0, 1: 1, names[0]: 0, names[1]: 1}  # False and True are 0 and 1
    strange = sorted({repr(v) for v in values if v not in code})
    if len(names) != 2 or strange:
        raise UnlabelledError(
            f"{where}: holds {', '.join(strange[:5]) or f'{len(names)} classes'}; "
            f"expected booleans, 0 and 1, or the texts {names[0]!r} and {names[1]!r}"
        )
    return [code[v] for v in values]


def _load_arrays(name: str, known: HubSet, address: str, split: str) -> Images:
    """A published set of plain arrays: one file a corruption and the labels."""
    from huggingface_hub import hf_hub_download

    corruption, severity = shifts.published(name, address)
    if split not in dict(known.splits):
        raise ValueError(f"{name} has the splits train (clean) and test, not {split!r}")
    with _told_apart(name, known, split):
        files = [hf_hub_download(known.path, f"{x}.npy", repo_type="dataset") for x in (corruption, "labels")]
    return shifts.load_arrays(Path(files[0]), Path(files[1]), severity, name=f"{name}/{address}")


@contextmanager
def _told_apart(name: str, wanted: HubSet, theirs: str) -> Iterator[None]:
    """Ask the hub once; say of what it raises whether the split is missing or the set is out of reach."""
    try:
        with _cache_only_when_silent():
            yield
    except ValueError as error:
        if "split" in str(error).lower():
            raise ValueError(f"{name} has no split {theirs!r}: {error}") from error
        raise NotReachable(_unreachable(name, wanted, error)) from error
    except (ConnectionError, OSError, RuntimeError) as error:
        raise NotReachable(_unreachable(name, wanted, error)) from error


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


def _unreachable(name: str, wanted: HubSet, error: Exception) -> str:
    said = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:160]}"
    mode = "offline mode is on" if is_offline() else said
    licence = f" Licence: {wanted.licence}." if wanted in HUB_SETS.values() else ""
    return (
        f"dataset {name!r} ({wanted.path}) is not in the local cache and cannot be fetched ({mode})."
        f"{licence} Use an embedded set (vitscope list data), or pass the path of a folder of class folders "
        "or of a Parquet file."
    )
