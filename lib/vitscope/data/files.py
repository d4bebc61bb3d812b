"""Pictures of one's own: a folder of class folders, or a Parquet file.

Folder layouts: `ROOT/CLASS/*.jpg`, or `ROOT/SPLIT/CLASS/*.jpg` with splits named train, test, val or
validation. Without split folders a seeded fifth of each class is the test part, and the split `all` is
everything. Hidden files are passed over; endings are compared without case.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from vitscope.data.embedded import sha256
from vitscope.data.images import DecodeError, Images, Pixels, decode, encode_labels, fingerprint

ENDINGS = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
SPLIT_FOLDERS = {"train": ("train",), "test": ("test", "val", "validation", "valid")}
IMAGE_COLUMNS = ("image", "img", "jpg", "png", "webp")
LABEL_COLUMNS = ("label", "labels", "fine_label", "cls", "class", "target")
MAX_BAD_SHARE = 0.05


def load_folder(root: Path, split: str, *, seed: int = 0, on_error: str = "fail") -> Images:
    """The pictures of one split of a folder.

    `on_error="skip"` decodes every file first, drops those that fail and lists them in `.skipped`; more than
    5 % bad files stop it. `"fail"` raises `DecodeError` with the file's name at the first bad one.
    """
    if on_error not in ("fail", "skip"):
        raise ValueError(f"on_error must be 'fail' or 'skip', got {on_error!r}")
    split_dirs = split_folders(root)
    if split_dirs and split not in split_dirs:
        raise ValueError(f"{root} has no split {split!r}; it has {', '.join(sorted(split_dirs))}")
    base = split_dirs.get(split, root)
    # the classes of every split together, so that a label means the same in train and test
    names = sorted({c.name for d in (split_dirs.values() or [root]) for c in _children(d)})
    if not names:
        raise ValueError(
            f"{base} has no class folders; "
            f"expected {base.name}/CLASS/picture.jpg with one folder for each class"
        )
    files = [(f, names.index(c.name)) for c in _children(base) for f in _pictures(c)]
    if not files:
        raise ValueError(f"no pictures below {base}; endings read: {', '.join(sorted(ENDINGS))}")
    if not split_dirs and split != "all":
        files = _seeded_part(files, split, seed)
    files, skipped = _readable(files, root) if on_error == "skip" else (files, ())
    rule = "folders" if split_dirs else "all" if split == "all" else f"seeded fifth, seed {seed}"
    return _images(root, split, files, names, rule, skipped)


def load_unlabelled(root: Path) -> Images:
    """Every picture below a folder, however its folders are called, as the one class `unlabelled`.

    Files that do not decode are left out and listed in `.skipped`. Raises `ValueError` where none is left.
    """
    if not root.is_dir():
        raise ValueError(f"no such folder of pictures: {root}")
    files, skipped = _readable([(f, 0) for f in _pictures(root)], root, most=1.0)
    if not files:
        raise ValueError(
            f"no readable picture below {root} ({len(skipped)} unreadable); endings read: "
            f"{', '.join(sorted(ENDINGS))}"
        )
    return _images(root, "all", files, ["unlabelled"], "all", skipped)


def split_folders(root: Path) -> dict[str, Path]:
    """The folders of the splits train and test below `root`; empty where `root` holds the classes itself."""
    present = {d.name.lower(): d for d in _children(root)}
    return {s: present[n] for s, names in SPLIT_FOLDERS.items() for n in reversed(names) if n in present}


def _images(root: Path, split: str, files: list[tuple[Path, int]], names, rule: str, skipped) -> Images:
    labels = np.array([label for _, label in files], dtype=np.int64)
    content = [sha256(f) for f, _ in files]

    def read(indices: np.ndarray) -> Pixels:
        return uniform([decode(files[i][0], str(files[i][0])) for i in indices])

    return Images(
        name=str(root),
        split=split,
        labels=labels,
        ids=np.array([str(f.relative_to(root)) for f, _ in files]),
        classes=tuple(names),
        digest=fingerprint(content, labels, names),
        source={"kind": "folder", "split_rule": rule},
        read=read,
        skipped=skipped,
    )


def _children(folder: Path) -> list[Path]:
    return sorted(d for d in folder.iterdir() if d.is_dir() and not d.name.startswith((".", "__")))


def _pictures(folder: Path) -> list[Path]:
    return sorted(
        f for f in folder.rglob("*")
        if f.is_file() and f.suffix.lower() in ENDINGS
        and not any(part.startswith((".", "__")) for part in f.relative_to(folder).parts)
    )  # fmt: skip


def _seeded_part(files: list[tuple[Path, int]], split: str, seed: int) -> list[tuple[Path, int]]:
    if split not in SPLIT_FOLDERS:
        raise ValueError(
            f"a folder without split folders has the splits train and test, not {split!r} ('all' is both)"
        )
    rng, test = np.random.default_rng(seed), set()
    labels = np.array([label for _, label in files])
    for c in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == c))
        if len(members) < 2:
            raise ValueError(f"class {files[members[0]][0].parent.name} has one picture; a split needs two")
        test.update(members[: max(1, len(members) // 5)].tolist())
    return [f for i, f in enumerate(files) if (i in test) == (split == "test")]


def _readable(
    files: list[tuple[Path, int]], root: Path, most: float = MAX_BAD_SHARE
) -> tuple[list, tuple[tuple[str, str], ...]]:
    kept, skipped = [], []
    for file, label in files:
        try:
            decode(file, str(file))
            kept.append((file, label))
        except DecodeError as error:
            skipped.append((str(file.relative_to(root)), str(error)))
    if len(skipped) > most * len(files):
        raise DecodeError(
            f"{len(skipped)} of {len(files)} files below {root} cannot be read "
            f"(more than {most:.0%}): " + ", ".join(path for path, _ in skipped[:5])
        )
    return kept, tuple(skipped)


def load_parquet(
    path: Path, split: str, *, image_column: str | None = None, label_column: str | None = None
) -> Images:
    """A Parquet file of pictures. A folder `DIR` with `train.parquet` and `test.parquet` has those splits."""
    file = path / f"{split}.parquet" if path.is_dir() else path
    if file.stem != split:
        raise ValueError(
            f"{path} is one file, read as the split {file.stem!r}, not {split!r}; "
            "pass the folder that holds train.parquet and test.parquet"
        )
    if not file.is_file():
        present = sorted(p.stem for p in path.glob("*.parquet"))
        raise ValueError(f"{path} has no split {split!r}; it has {', '.join(present) or 'no Parquet file'}")
    import pyarrow.parquet as pq  # a bare machine measures without it

    schema = pq.read_schema(file)
    image_column = choose_column(schema.names, image_column, IMAGE_COLUMNS, "image", str(file))
    label_column = choose_column(schema.names, label_column, LABEL_COLUMNS, "label", str(file))
    table = pq.read_table(file, columns=[image_column, label_column])
    return from_rows(
        name=str(path),
        split=split,
        cells=table.column(image_column),
        labels=table.column(label_column).to_pylist(),
        names=_declared_names(schema, label_column),
        digest=sha256(file),
        source={"kind": "parquet", "image_column": image_column, "label_column": label_column},
    )


def _declared_names(schema, label_column: str) -> list[str] | None:
    """Class names that a file written by `datasets` declares for its label column."""
    import json

    info = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    feature = info.get("info", {}).get("features", {}).get(label_column, {})
    return feature.get("names")


def choose_column(present, asked: str | None, known: tuple[str, ...], what: str, where: str) -> str:
    """The column asked for, or the only one with a known name; anything else is an error listing them."""
    if asked is not None:
        if asked not in present:
            raise ValueError(f"{where} has no column {asked!r}; it has {', '.join(present)}")
        return asked
    found = [name for name in present if name in known]
    if len(found) != 1:
        state = (
            f"several {what} columns ({', '.join(found)})" if found else f"no {what} column by a known name"
        )
        raise ValueError(f"{where} has {state}; name one of {', '.join(present)} as {what}_column")
    return found[0]


def from_rows(*, name, split, cells, labels, names, digest, source) -> Images:
    """`Images` from a column of picture cells: {bytes, path}, bytes, or PIL pictures."""
    where = f"{name}/{split}"
    if len(cells) == 0:
        raise ValueError(f"{where} holds no rows")
    encoded, classes = encode_labels(labels, where, names)
    ids = np.array([f"{i:06d}" for i in range(len(encoded))])

    def read(indices: np.ndarray) -> Pixels:
        return uniform([_cell(cells[int(i)], f"{where} row {i}") for i in indices])

    return Images(
        name=name, split=split, labels=encoded, ids=ids, classes=classes,
        digest=fingerprint(digest, source, encoded, classes), source={**source, "rows": len(encoded)},
        read=read,
    )  # fmt: skip


def _cell(cell, where: str) -> torch.Tensor:
    value = cell.as_py() if hasattr(cell, "as_py") else cell
    if isinstance(value, dict):
        value = value.get("bytes")
    if isinstance(value, str) or value is None:
        raise DecodeError(
            f"{where}: holds {'a text' if isinstance(value, str) else 'nothing'} instead of a picture"
        )
    return decode(value, where)


def uniform(pictures: list[torch.Tensor]) -> Pixels:
    """One tensor where all sizes agree, else the list."""
    return torch.stack(pictures) if len({p.shape for p in pictures}) == 1 else pictures


Loader = Callable[..., Images]
