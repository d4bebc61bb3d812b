"""What lies in the folder of a store: entries, what is being written, locks, and files of others.

Names say which is which: KIND-KEY.safetensors, KIND-KEY.ID.partial (a folder), KIND-KEY.lock. Anything else
is another's and never touched. Locks are the operating system's: they end with their holder, also when it is
killed.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from vitscope import entry_file
from vitscope.entry_file import ENDING, Damaged, Header

KIND = r"[a-z][a-z0-9_]*"
_STEM = rf"{KIND}-[0-9a-f]{{{entry_file.KEY_LENGTH}}}"
_ENTRY, _ASIDE, _LOCK = (
    re.compile(_STEM + ending) for ending in (re.escape(ENDING), r"\.[0-9a-f]{32}\.partial", r"\.lock")
)
_MOVING = re.compile(r"\.moving\.lock")
_STALE = 86_400  # seconds after which any write clears away what another process left unfinished


@dataclass(frozen=True)
class Entry:
    """One entry as its file says; `header` is None where that cannot be read. `used` is a Unix time."""

    path: Path
    kind: str
    size: int
    used: float
    header: Header | None


@dataclass(frozen=True)
class Problem:
    """A damaged entry, and what is wrong with it."""

    path: Path
    what: str


@dataclass
class Pruned:
    """What was removed: entries, and bytes, unfinished ones included; `failed`: what could not be removed."""

    entries: int = 0
    bytes: int = 0
    failed: list[str] = field(default_factory=list)

    def remove(self, path: Path, size: int) -> bool:
        """Remove an entry and count it; whether it is gone."""
        try:
            path.unlink()
        except FileNotFoundError:  # another process was first
            return True
        except OSError as error:
            self.failed.append(f"{path}: {plainly(error)}")
            return False
        self.entries += 1
        self.bytes += size
        return True


class StoreFolder:
    """The folder, listed by name. What another process removes meanwhile is no error anywhere here."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def files(self) -> list[tuple[float, Path, int]]:
        """(last use, path, bytes) of every entry, the one used longest ago first."""
        found = []
        for path in self._named(_ENTRY):
            with suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime, path, status.st_size))
        return sorted(found)

    def entries(self) -> list[Entry]:
        """Every entry with its header, the one used last first."""
        return [
            Entry(path, path.name.partition("-")[0], size, used, _header(path))
            for used, path, size in reversed(self.files())
        ]

    def problems(self) -> list[Problem]:
        """Every entry that is not whole or not what its name says; all are read in full."""
        return [Problem(path, what) for _, path, _ in self.files() if (what := _wrong(path))]

    def unfinished(self) -> list[Path]:
        """What is being written, and what killed processes left."""
        return self._named(_ASIDE)

    def strangers(self) -> list[Path]:
        """What belongs to others."""
        ours = (_ENTRY, _ASIDE, _LOCK, _MOVING)
        return [path for path in self._listed() if not any(kind.fullmatch(path.name) for kind in ours)]

    @contextmanager
    def waiting(self, stem: str) -> Iterator[None]:
        """Alone with the entry of this name, once nobody else is.

        Errors: `OSError`, `NotImplementedError` where there are no locks.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with self._locked(f"{stem}.lock"):
            yield

    @contextmanager
    def trying(self, stem: str) -> Iterator[bool]:
        """Alone with the entry of this name, if nobody is at it now."""
        lock = FileLock(self.path / f"{stem}.lock")
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError, NotImplementedError):
            yield False
            return
        with _released(lock):
            yield True

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Alone with the sum of all entries, so that two writers do not exceed it together."""
        with self._locked(".moving.lock"):
            yield

    def make_room(self, limit: int, done: Pruned, spared: Path | None = None) -> None:
        """Remove what was used longest ago until at most `limit` bytes are left, `spared` not counted."""
        files = [(path, size) for _, path, size in self.files() if path != spared]
        total = sum(size for _, size in files)
        for path, size in files:
            if total <= limit:
                break
            if done.remove(path, size):
                total -= size

    def clear(self, stem: str) -> None:
        """Remove what earlier builders of an entry left; the caller is alone with it."""
        for path in self.unfinished():
            if path.name.startswith(f"{stem}."):
                shutil.rmtree(path, ignore_errors=True)

    def clear_unfinished(self, done: Pruned, age: float = _STALE) -> None:
        """Remove what is unfinished for more than `age` seconds and nobody is at; at age 0 dead locks too."""
        for path in self.unfinished():
            with suppress(OSError):
                if time.time() - path.stat().st_mtime < age:
                    continue
            with self.trying(path.name.partition(".")[0]) as alone:
                if alone:
                    _remove_folder(path, done)
        if age <= 0:
            for path in self._named(_LOCK):
                with self.trying(path.stem):  # which removes the file
                    pass

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        lock = FileLock(self.path / name)
        lock.acquire()
        with _released(lock):
            yield

    def _listed(self) -> list[Path]:
        try:
            return sorted(self.path.iterdir())
        except OSError:
            return []

    def _named(self, pattern: re.Pattern[str]) -> list[Path]:
        return [path for path in self._listed() if pattern.fullmatch(path.name)]


def plainly(error: BaseException) -> str:
    """What went wrong, without number and path."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@contextmanager
def _released(lock: FileLock) -> Iterator[None]:
    """Release a lock at the end and leave no file: who waits on a removed one notices and makes another."""
    try:
        yield
    finally:
        with suppress(OSError):
            Path(lock.lock_file).unlink()
        lock.release()


def _remove_folder(path: Path, done: Pruned) -> None:
    try:
        size = sum(file.stat().st_size for file in path.iterdir())
        shutil.rmtree(path)
        done.bytes += size
    except FileNotFoundError:
        pass
    except OSError as error:
        done.failed.append(f"{path}: {plainly(error)}")


def _header(path: Path) -> Header | None:
    with suppress(Damaged, OSError):
        return entry_file.read_header(path)
    return None


def _wrong(path: Path) -> str | None:
    try:
        header = entry_file.check(path)
    except FileNotFoundError:
        return None
    except Damaged as error:
        return str(error)
    except OSError as error:
        return f"cannot be opened ({plainly(error)})"
    return None if path.name == f"{header.kind}-{header.key}{ENDING}" else "is the entry of something else"
