"""One door to every dataset: embedded, hub, a folder of pictures, a Parquet file."""

from pathlib import Path

from vitscope.data import hub, scenes, shifts, tasks
from vitscope.data.files import load_folder, load_parquet
from vitscope.data.images import Images
from vitscope.errors import unknown

__all__ = ["Images", "available", "is_embedded", "load"]


def available(*, embedded_only: bool = False) -> list[str]:
    """Names that `load` knows. Hub names and paths beyond these work too."""
    names = [*tasks.NAMES, *(f"{t}@twemoji" for t in tasks.RENDERS), *scenes.NAMES, *shifts.NAMES]
    return names if embedded_only else [*names, *hub.HUB_SETS]


def is_embedded(name: str) -> bool:
    """True for what needs neither network nor file, corruptions and severities after a name included.

    >>> is_embedded("emoji_group-c/fog/3"), is_embedded("cifar10-c/fog/3")
    (True, False)
    """
    return name in available(embedded_only=True) or shifts.is_shifted(name)


def load(
    name: str,
    split: str,
    *,
    limit: int | None = None,
    seed: int = 0,
    image_column: str | None = None,
    label_column: str | None = None,
    on_error: str = "fail",
) -> Images:
    """A split of a dataset as `Images`.

    `name`: an embedded set or a known hub set (`available()`), a hub id `owner/name`, a folder
    (`CLASS/*.jpg` or `SPLIT/CLASS/*.jpg`), or a Parquet file or folder of `SPLIT.parquet`. `limit` draws a
    subset with the class shares of the whole; `seed` decides that draw, renders and corruptions.

    Shifted sets (`vitscope.data.shifts`): `fashion_mnist-c/fog/3` and `cifar10-c/fog/3` give the clean set
    as `"train"` and that corruption at that severity as `"test"`; a folder of arrays in the layout of
    CIFAR-10-C is read as `FOLDER/fog/3`.

    Errors: `UnknownName` with near matches; `hub.NotReachable` before any work; `UnlabelledError`,
    `DecodeError` and `ValueError` with the file, split or column that is wrong.
    """
    return _open(name, split, seed, image_column, label_column, on_error).limited(limit, seed)


def _open(name, split, seed, image_column, label_column, on_error) -> Images:
    path = Path(name).expanduser()
    if shifts.is_shifted(name):
        return shifts.load_shifted(name, split, seed=seed)
    if name.partition("@")[0] in tasks.NAMES:
        return tasks.load_task(name, split, seed=seed)
    if name in scenes.NAMES:
        return scenes.load_scenes(name, split, seed=seed)
    base = name.partition("/")[0]
    if base not in hub.SHIFTED and shifts.array_root(name):
        return shifts.load_local_arrays(name, split)
    if path.is_file() or (path.is_dir() and list(path.glob("*.parquet"))):
        return load_parquet(path, split, image_column=image_column, label_column=label_column)
    if path.is_dir():
        return load_folder(path, split, seed=seed, on_error=on_error)
    known = name in hub.HUB_SETS or base in hub.SHIFTED
    if known or (name.count("/") == 1 and not name.startswith((".", "/", "~"))):
        return hub.load_hub(name, split, image_column=image_column, label_column=label_column)
    if name.count("/") == 2 and base.endswith("-c"):
        raise unknown("dataset", base, available())
    if "/" in name or path.suffix:
        raise ValueError(f"no such folder or Parquet file: {name}")
    raise unknown("dataset", name, available())
