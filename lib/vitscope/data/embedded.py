"""Files that the repository carries: where they are, and proof that they are what was published.

`data/manifest.json` lists every embedded file with its SHA-256, size, licence, source and the command that
restores it. Nothing embedded is opened without passing here first.
"""

import hashlib
import json
from functools import lru_cache
from pathlib import Path


class DataIntegrityError(RuntimeError):
    """An embedded file is missing, altered or not listed in the manifest."""


@lru_cache(maxsize=1)
def root() -> Path:
    """The `data/` folder: beside `lib/` in a clone, inside the package in an installed wheel."""
    here = Path(__file__).resolve()
    for candidate in (here.parents[3] / "data", here.parents[1] / "_embedded"):
        if (candidate / "manifest.json").is_file():
            return candidate
    raise DataIntegrityError(
        f"no data/manifest.json near {here.parents[1]}: the installation is incomplete; "
        "reinstall vitscope from its repository"
    )


def manifest(base: Path | None = None) -> dict[str, dict]:
    """Path below `data/` -> {sha256, bytes, licence, source, restore}."""
    return json.loads(((base or root()) / "manifest.json").read_text(encoding="utf-8"))["files"]


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=256)
def _digest_of(path: Path, size: int, mtime_ns: int) -> str:
    return sha256(path)


def verified(relative: str, base: Path | None = None) -> Path:
    """The path of an embedded file whose content matches the manifest.

    Raises `DataIntegrityError` when the file is not listed, is missing, or has other content, and names the
    command that restores it.
    """
    base = base or root()
    files = manifest(base)
    if relative not in files:
        raise DataIntegrityError(f"data/{relative} is not listed in data/manifest.json")
    entry, path = files[relative], base / relative
    restore = f"restore it with: {entry['restore']}"
    if not path.is_file():
        raise DataIntegrityError(f"embedded file data/{relative} is missing; {restore}")
    stat = path.stat()
    found = _digest_of(path, stat.st_size, stat.st_mtime_ns)
    if found != entry["sha256"]:
        raise DataIntegrityError(
            f"embedded file data/{relative} was altered: SHA-256 {found[:12]}… ({stat.st_size} bytes), "
            f"expected {entry['sha256'][:12]}… ({entry['bytes']} bytes); {restore}"
        )
    return path


def digest(relative: str) -> str:
    """SHA-256 of an embedded file, as listed."""
    return manifest()[relative]["sha256"]
