"""Shifted sets: one learns on the split `train` and is tested on a `test` split from another distribution.

Twins of paper B's five shifted sets (its section 5.3 and Table 3), and what reads the published ones.

| name                             | `train`                     | `test`                          |
|----------------------------------|-----------------------------|---------------------------------|
| `TASK-c/CORRUPTION/SEVERITY`     | TASK, clean                 | TASK, corrupted                 |
| `TASK-c/CORRUPTION`, `TASK-c`    | TASK, clean                 | what is left out drawn by picture |
| `TASK-style`                     | TASK in the style Noto      | TASK in the style Twemoji       |
| `emoji_places`, after Waterbirds | 95 % on one kind of background by class | each on both kinds  |

Examples: `fashion_mnist-c/fog/3`, `emoji_group@twemoji-c/contrast`, `emoji_identity-style`.
Use `corrupted` where training pictures are to be corrupted too.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from vitscope.data import corruptions, embedded, emoji, tasks
from vitscope.data.images import Images, Pixels, UnlabelledError, encode_labels, fingerprint
from vitscope.data.seeding import uniforms
from vitscope.errors import unknown
from vitscope.intervals import Interval, bootstrap_mean

NAMES = (*(f"{t}-c" for t in tasks.NAMES), *(f"{t}-style" for t in tasks.RENDERS), tasks.PLACES)
DESCRIPTIONS = {
    **{f"{t}-c": f"{t}, its test pictures corrupted (/CORRUPTION/SEVERITY choose)" for t in tasks.NAMES},
    **{f"{t}-style": f"{t}, learnt in one art style, tested in the other" for t in tasks.RENDERS},
    tasks.PLACES: "living things and food, or objects; the background misleads, as in Waterbirds",
}
# the kinds of which CIFAR-10-C, CIFAR-100-C and ImageNet-C hold a file or folder each
PUBLISHED = (
    "gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "defocus_blur", "glass_blur",
    "motion_blur", "zoom_blur", "gaussian_blur", "snow", "frost", "fog", "brightness", "spatter", "contrast",
    "elastic_transform", "pixelate", "jpeg_compression", "saturate",
)  # fmt: skip


def is_shifted(name: str) -> bool:
    """True for the names of this module, with an art style and an address or without.

    >>> is_shifted("emoji_group@twemoji-c/fog/3"), is_shifted("emoji_group"), is_shifted("cifar10-c/fog/3")
    (True, False, False)
    """
    task, _, kind = _parts(name)
    return f"{task}-{kind}" in NAMES or name == tasks.PLACES


def _parts(name: str) -> tuple[str, str, str]:
    """Task, art style ("" for the default) and "c", "style" or ""."""
    base, _, kind = name.partition("/")[0].rpartition("-")
    task, _, style = base.partition("@")
    return task, style, kind


def load_shifted(name: str, split: str, *, seed: int = 0) -> Images:
    """One split of a shifted set; `seed` decides renders and corruptions.

    `extras` of a corrupted test: `corruption`, `severity` (and `identity` of emoji); of `emoji_places`:
    `place`, `group` = 2·label + place, with the groups' names in `source["groups"]`, and `identity`.

    Errors: `UnknownName` for a corruption or style; `ValueError` for a split or severity that is none.
    """
    if name == tasks.PLACES:
        return tasks.load_places(split, seed=seed)
    task, style, kind = _parts(name)
    address = name.split("/")[1:]
    if kind == "style":
        if style or address:
            raise ValueError(f"{name}: the styles are fixed, train in one and test in the other; "
                             f"write '{task}-style'")  # fmt: skip
        drawn = emoji.STYLES[0] if split == "train" else emoji.STYLES[1]
        return replace(tasks.load_task(f"{task}@{drawn}", split, seed=seed), name=name)
    corruption, severity = _address(name, address)
    clean = tasks.load_task(f"{task}@{style}" if style else task, split, seed=seed)
    shifted = clean if split == "train" else corrupted(clean, corruption, severity, seed=seed)
    return replace(shifted, name=name)


def _address(name: str, address: list[str]) -> tuple[str | None, int | None]:
    if len(address) > 2:
        raise ValueError(f"{name}: expected {name.partition('/')[0]}/CORRUPTION/SEVERITY")
    if address:
        corruptions.find(address[0])
    if len(address) < 2:
        return (address[0] if address else None), None
    return address[0], _severity(address[1])


def _severity(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"severity must be 1, 2, 3, 4 or 5, got {text!r}")
    corruptions.check_severity(int(text))
    return int(text)


def corrupted(
    images: Images, corruption: str | None = None, severity: int | None = None, *, seed: int = 0
) -> Images:
    """The same pictures, corrupted whenever they are read.

    What is None is drawn for each picture, uniformly over `corruptions.CORRUPTIONS` and severities 1 to 5:
    one pass then estimates the mean over all of them. Everything is a function of `seed` and the picture's
    split and id, so a subset of corrupted pictures is the corrupted subset, and train and test share no draw.

    `extras` gains `corruption` and `severity` [N]; the digest changes with both and with `seed`.
    Errors: `UnknownName` for the corruption, `ValueError` for the severity.
    """
    numbers = np.array([_number(f"{images.split}/{i}") for i in images.ids])
    u = uniforms(corruptions.stream("mixture", seed), numbers, 2)
    names = np.array(list(corruptions.CORRUPTIONS))
    if corruption is None:
        kinds = names[(u[:, 0] * len(names)).astype(int)]
    else:
        corruptions.find(corruption)
        kinds = np.full(len(images), corruption)
    if severity is None:
        severities = 1 + (u[:, 1] * len(corruptions.SEVERITIES)).astype(np.int64)
    else:
        corruptions.check_severity(severity)
        severities = np.full(len(images), severity, dtype=np.int64)

    def read(indices: np.ndarray) -> Pixels:
        clean = images.read(indices)
        batches = [clean] if isinstance(clean, torch.Tensor) else [picture.unsqueeze(0) for picture in clean]
        places = [indices] if isinstance(clean, torch.Tensor) else np.split(indices, len(indices))
        made = [_mixed(b, kinds[i], severities[i], numbers[i], seed)
                for b, i in zip(batches, places, strict=True)]  # fmt: skip
        return made[0] if isinstance(clean, torch.Tensor) else [picture[0] for picture in made]

    table = {name: corruptions.find(name).strengths for name in sorted(set(kinds.tolist()))}
    return replace(
        images,
        name=f"{images.name} ({corruption or 'all corruptions'}, severity {severity or '1 to 5'})",
        digest=fingerprint(images.digest, kinds.tolist(), severities, seed, table,
                           corruptions.CORRUPTION_VERSION),
        source={**images.source, "corruption": corruption or "mixed", "severity": severity or "mixed",
                "seed": seed, "strengths": table, "corruption_version": corruptions.CORRUPTION_VERSION},
        read=read,
        extras={**images.extras, "corruption": kinds, "severity": severities},
    )  # fmt: skip


def _mixed(clean: torch.Tensor, kinds, severities, numbers, seed: int) -> torch.Tensor:
    out = torch.empty_like(clean)
    for kind, severity in sorted(set(zip(kinds.tolist(), severities.tolist(), strict=True))):
        here = np.flatnonzero((kinds == kind) & (severities == severity))
        rows = torch.from_numpy(here)
        out[rows] = corruptions.corrupt(clean[rows], kind, severity, ids=numbers[here], seed=seed)
    return out


def _number(text: str) -> int:
    """A picture's own number below 2⁶³, from its name."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


# --- published arrays -------------------------------------------------------------------------------------


def array_root(name: str) -> Path | None:
    """The folder of plain arrays that a path FOLDER/CORRUPTION/SEVERITY points into, or None.

    Errors: `ValueError` for a path that stops at FOLDER or at FOLDER/CORRUPTION.
    """
    path = Path(name).expanduser()
    is_root = (path / "labels.npy").is_file() and not any(entry.is_dir() for entry in path.iterdir())
    if is_root or (Path(f"{path}.npy").is_file() and (path.parent / "labels.npy").is_file()):
        root = path if is_root else path.parent
        raise ValueError(f"{root} holds corrupted arrays; write {root}/CORRUPTION/SEVERITY, as {root}/fog/3")
    root = path.parent.parent
    below = name.count("/") > 1 and not path.exists()
    return root if below and (root / "labels.npy").is_file() else None


def published(name: str, address: str) -> tuple[str, int]:
    """Corruption and severity of the address CORRUPTION/SEVERITY of a published set.

    >>> published("cifar10-c", "glass_blur/2")
    ('glass_blur', 2)
    """
    corruption, _, severity = address.partition("/")
    if not severity:
        raise ValueError(
            f"{name} needs a corruption and a severity; write {name}/CORRUPTION/SEVERITY, as fog/3"
        )
    if corruption not in PUBLISHED:
        raise unknown("corruption", corruption, PUBLISHED)
    return corruption, _severity(severity)


def load_arrays(array: Path, labels: Path, severity: int, *, name: str) -> Images:
    """The test split of a set in the layout of CIFAR-10-C, one corruption and severity.

    `array` is a `.npy` of uint8 [5·N, h, w, 3], rows (s−1)·N … s·N−1 being severity s; `labels` a `.npy` of
    5·N classes. Class k of the labels is class k of the clean set. Only the rows that are asked for are read.

    Errors: `ValueError` for another shape or type; `UnlabelledError` for labels that do not repeat.
    """
    corruptions.check_severity(severity)
    pictures, classes = np.load(array, mmap_mode="r"), np.load(labels)
    if pictures.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[-1] != 3 or len(pictures) % 5:
        raise ValueError(
            f"{array}: expected uint8 [5·N, h, w, 3], got {pictures.dtype} {list(pictures.shape)}"
        )
    count = len(pictures) // 5
    if classes.shape != (len(pictures),) or (classes.reshape(5, -1) != classes[:count]).any():
        raise UnlabelledError(
            f"{labels}: expected {len(pictures)} labels, the same {count} for each severity, "
            f"got shape {list(classes.shape)}"
        )
    encoded, names = encode_labels(classes[:count].tolist(), f"{labels}")
    first = (severity - 1) * count
    return Images(
        name=name, split="test", labels=encoded, ids=np.array([f"{i:06d}" for i in range(count)]),
        classes=names, digest=fingerprint(embedded.sha256(array), encoded, names, severity),
        source={"kind": "arrays", "corruption": array.stem, "severity": severity},
        read=lambda indices: torch.from_numpy(pictures[first + indices]).permute(0, 3, 1, 2).contiguous(),
        extras={"corruption": np.full(count, array.stem), "severity": np.full(count, severity)},
    )  # fmt: skip


def load_local_arrays(name: str, split: str) -> Images:
    """FOLDER/CORRUPTION/SEVERITY of arrays on this machine. Errors as `load_arrays`, and a missing file."""
    path = Path(name).expanduser()
    root, corruption = path.parent.parent, path.parent.name
    if split != "test":
        raise ValueError(f"{root} holds test pictures only, no split {split!r}; learn from the clean set")
    if not (root / f"{corruption}.npy").is_file():
        there = sorted(f.stem for f in root.glob("*.npy") if f.stem != "labels")
        raise unknown("corruption", corruption, there)
    return load_arrays(root / f"{corruption}.npy", root / "labels.npy", _severity(path.name), name=name)


# --- groups -----------------------------------------------------------------------------------------------


class GroupAccuracy(NamedTuple):
    """Accuracies (fractions) of `groups` [G] with intervals, and the lowest of them."""

    average: Interval
    groups: np.ndarray
    counts: np.ndarray
    by_group: Interval
    worst_group: int
    worst: Interval


def worst_group_accuracy(
    correct: np.ndarray,
    groups: np.ndarray,
    *,
    clusters: np.ndarray | None = None,
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> GroupAccuracy:
    """min_g mean(correct | group = g), with the accuracy of every group and of all pictures.

    `correct` booleans [N]; `groups` integers [N]; `clusters` [N] name what was drawn independently (the
    identity of a render). Intervals are percentile bootstraps within a group; that of the worst is the
    interval of the group found worst, which leans low where several groups are about equally bad.
    `average` weighs pictures alike, so it follows the group shares of the test set.

    Errors: `ValueError` for values that are neither 0 nor 1, for lengths that differ, and for a group of
    fewer than two independent pictures.

    Source: Sagawa et al., "Distributionally robust neural networks for group shifts" (ICLR 2020).

    >>> right = np.array([1, 1, 1, 1, 1, 0, 1, 0])
    >>> found = worst_group_accuracy(right, np.array([0, 0, 0, 0, 3, 3, 3, 3]))
    >>> float(found.average.mean), found.worst_group, float(found.worst.mean)
    (0.75, 3, 0.5)
    """
    values, groups = np.asarray(correct), np.asarray(groups)
    if not np.isin(values, (0, 1)).all():
        raise ValueError("correct holds values other than 0 and 1; pass predictions == labels")
    if values.ndim != 1 or groups.shape != values.shape:
        raise ValueError(f"one group per picture is needed, got {values.shape} and {groups.shape}")
    names = np.unique(groups)
    independent = np.arange(len(values)) if clusters is None else np.asarray(clusters)
    for g in names:
        if len(np.unique(independent[groups == g])) < 2:
            raise ValueError(f"group {g} holds fewer than two independent pictures; an interval needs two")

    def interval(chosen: np.ndarray) -> Interval:
        return bootstrap_mean(
            values[chosen], clusters=independent[chosen], level=level, draws=draws, seed=seed
        )

    each = [interval(groups == g) for g in names]
    worst = int(np.argmin([i.mean for i in each]))
    return GroupAccuracy(
        interval(np.ones(len(values), dtype=bool)),
        names,
        np.array([(groups == g).sum() for g in names]),
        Interval(*(np.array(ends) for ends in zip(*each, strict=True))),
        int(names[worst]),
        each[worst],
    )
