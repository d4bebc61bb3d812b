"""One door to every dataset: embedded, hub, a folder of pictures, a Parquet file."""

from pathlib import Path

from vitscope.data import hub, scenes, tasks
from vitscope.data.files import load_folder, load_parquet
from vitscope.data.images import Images
from vitscope.errors import unknown

__all__ = ["Images", "available", "load"]


def available(*, embedded_only: bool = False) -> list[str]:
    """Names that `load` knows. Hub names and paths beyond these work too."""
    names = [*tasks.NAMES, *(f"{t}@twemoji" for t in tasks.RENDERS), *scenes.NAMES]
    return names if embedded_only else [*names, *hub.HUB_SETS]


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
    subset with the class shares of the whole; `seed` decides that draw and the family of renders.

    Errors: `UnknownName` with near matches; `hub.NotReachable` before any work; `UnlabelledError`,
    `DecodeError` and `ValueError` with the file, split or column that is wrong.
    """
    return _open(name, split, seed, image_column, label_column, on_error).limited(limit, seed)


def _open(name, split, seed, image_column, label_column, on_error) -> Images:
    path = Path(name).expanduser()
    if name.partition("@")[0] in tasks.NAMES:
        return tasks.load_task(name, split, seed=seed)
    if name in scenes.NAMES:
        return scenes.load_scenes(name, split, seed=seed)
    if path.is_file() or (path.is_dir() and list(path.glob("*.parquet"))):
        return load_parquet(path, split, image_column=image_column, label_column=label_column)
    if path.is_dir():
        return load_folder(path, split, seed=seed, on_error=on_error)
    if name in hub.HUB_SETS or (name.count("/") == 1 and not name.startswith((".", "/", "~"))):
        return hub.load_hub(name, split, image_column=image_column, label_column=label_column)
    if "/" in name or path.suffix:
        raise ValueError(f"no such folder or Parquet file: {name}")
    raise unknown("dataset", name, available())
