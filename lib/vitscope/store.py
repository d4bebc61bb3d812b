"""A folder of computed tensors, each found again by what it was computed from, and never taken for another.

- An entry is written aside, flushed to the disk and moved in one step: what a killed process leaves is no
  entry.
- A reader compares an entry with its digest. One that is truncated, altered or another's is removed and built
  again.
- Of several processes that want one entry, one builds it and the others wait. A killed holder holds nothing.
- What was used longest ago goes first where a new entry would exceed the limit.
- Where nothing can be written or locked (a full disk, a read-only folder), results are computed and handed
  out as if there were no store, with a warning.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from vitscope import entry_file
from vitscope.amounts import parse_size, size_text
from vitscope.entry_file import ENDING, Damaged, Header
from vitscope.store_folder import KIND, Entry, Problem, Pruned, StoreFolder, plainly

__all__ = ["LIMIT", "VARIABLE", "Entry", "Problem", "Pruned", "Store", "StoreWarning"]

LIMIT = 8 * 2**30
VARIABLE = "VITSCOPE_CACHE_LIMIT"
Accept = Callable[[Mapping[str, Tensor]], bool]
_log = logging.getLogger(__name__)


class StoreWarning(UserWarning):
    """A result could not be kept. It was computed and is right."""


def limit_from_environment() -> int:
    """Bytes that a store may hold: `VITSCOPE_CACHE_LIMIT`, or 8 GiB. Errors: `AmountError`."""
    text = os.environ.get(VARIABLE)
    return LIMIT if text is None else parse_size(text, VARIABLE)


class Store:
    """A folder of entries. `limit` bounds the bytes of all (default: `limit_from_environment`).

    A limit of 0 turns the store off: nothing is read or kept. `rebuilt` counts the entries that were there,
    were refused and built again.
    """

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.folder = Path(folder)
        self.limit = limit_from_environment() if limit is None else limit
        self.rebuilt = 0
        self._within = StoreFolder(self.folder)
        self._said: set[str] = set()

    def fetch(
        self,
        kind: str,
        parts: Mapping[str, Any],
        build: Callable[[], dict[str, Tensor]],
        *,
        about: Mapping[str, str] | None = None,
        accept: Accept | None = None,
    ) -> tuple[dict[str, Tensor], bool]:
        """The tensors of `kind` and `parts`, and whether they were found; else `build` makes them.

        `parts` is JSON and says which entry is meant: everything that can change a number belongs there.
        `about` only describes it ("backbone", "pictures"). `accept` says whether found tensors can be what is
        wanted (names, shapes); a file that it refuses is built again. What `build` raises is raised, and
        nothing is left then.

        Errors: `ValueError` for a kind that is no plain word; `TypeError`, `ValueError` for parts that are no
        JSON.

        >>> import tempfile, torch
        >>> store = Store(Path(tempfile.mkdtemp()))
        >>> [store.fetch("squares", {"to": 3}, lambda: {"x": torch.arange(3) ** 2}) for _ in range(2)]
        [({'x': tensor([0, 1, 4])}, False), ({'x': tensor([0, 1, 4])}, True)]
        """
        if not re.fullmatch(KIND, kind):
            raise ValueError(f"kind must be lower-case letters, digits and _, got {kind!r}")
        header = Header(kind, dict(parts), dict(about or {}), time.time())
        path = self.folder / f"{kind}-{header.key}{ENDING}"
        if self.limit <= 0:
            return build(), False
        if (found := self._read(path, header, accept)) is not None:
            return found, True
        with self._alone(path) as alone:
            if alone:
                if (found := self._read(path, header, accept, remove=True)) is not None:
                    return found, True
                self._within.clear(path.stem)
            tensors = build()
            if alone:
                self._keep(path, header, tensors)
            return tensors, False

    def entries(self) -> list[Entry]:
        """Every entry, the one used last first; only headers are read."""
        return self._within.entries()

    def verify(self) -> list[Problem]:
        """Read every entry in full, and say which are damaged and how."""
        return self._within.problems()

    def remove(self, problems: Sequence[Problem]) -> Pruned:
        """Remove the entries that `verify` found damaged."""
        done = Pruned()
        for problem in problems:
            with suppress(FileNotFoundError):
                done.remove(problem.path, problem.path.stat().st_size)
        return done

    def strangers(self) -> list[Path]:
        """What lies in the folder and is not the store's; nothing here touches it."""
        return self._within.strangers()

    def unfinished(self) -> list[Path]:
        """What is being written now, and what killed processes left; `prune` tells these apart."""
        return self._within.unfinished()

    def prune(
        self, limit: int | None = None, older_than: float | None = None, everything: bool = False
    ) -> Pruned:
        """Remove what was used longest ago until at most `limit` bytes are left (default: the store's limit).

        `older_than`: also what was not used for so many seconds. `everything`: all entries. What killed
        processes left goes in any case; what is being written stays, and a process that reads is not harmed.
        """
        done, now = Pruned(), time.time()
        self._within.clear_unfinished(done, age=0)
        for used, path, size in self._within.files():
            if everything or (older_than is not None and now - used > older_than):
                done.remove(path, size)
        self._within.make_room(self.limit if limit is None else limit, done)
        return done

    def _read(
        self, path: Path, wanted: Header, accept: Accept | None, remove: bool = False
    ) -> dict[str, Tensor] | None:
        try:
            header, tensors = entry_file.read(path)
            if (header.kind, header.key) != (wanted.kind, wanted.key):
                raise Damaged("is the entry of something else")
            if accept is not None and not accept(tensors):
                raise Damaged("holds tensors that cannot be what it is of")
        except FileNotFoundError:
            return None
        except (Damaged, OSError) as error:
            if remove:  # only alone with it: another process may have replaced it just now
                self.rebuilt += 1
                _log.info("%s %s; it is built again", path, error)
                if isinstance(error, Damaged):
                    with suppress(OSError):
                        path.unlink()
            return None
        with suppress(OSError):  # a read-only folder; pruned since
            os.utime(path)
        return tensors

    def _keep(self, path: Path, header: Header, tensors: Mapping[str, Tensor]) -> None:
        """Write an entry, make room for it and move it there; a failure costs the entry, never the result."""
        size = sum(tensor.nbytes for tensor in tensors.values())
        if size > self.limit:
            self._say(
                "size",
                f"a result of {size_text(size)} is not kept in {self.folder}: it is larger than the limit of "
                f"{size_text(self.limit)}. Set {VARIABLE} to allow more, such as {VARIABLE}=20GB",
            )
            return
        aside = self.folder / f"{path.stem}.{uuid.uuid4().hex}.partial"
        try:
            aside.mkdir()
            whole = aside / path.name
            entry_file.write(whole, header, tensors)
            with self._within.moving():
                self._within.make_room(self.limit - whole.stat().st_size, Pruned(), spared=path)
                os.replace(whole, path)
            self._within.clear_unfinished(Pruned())
        except (OSError, SafetensorError, MemoryError, NotImplementedError) as error:
            self._say(
                "write",
                f"a result is not kept in {self.folder}: {plainly(error)}. It is computed each time until "
                "there is space (`vitscope cache prune` frees some) and the folder can be written to",
            )
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    @contextmanager
    def _alone(self, path: Path) -> Iterator[bool]:
        """Alone with an entry, once nobody else is; False where no lock can be had."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self._within.waiting(path.stem))
            except (OSError, NotImplementedError) as error:
                self._say(
                    "lock",
                    f"nothing is kept in {self.folder}: {plainly(error)}. Results are computed each time; "
                    "make the folder writable, or choose another",
                )
                alone = False
            else:
                alone = True
            yield alone

    def _say(self, failure: str, text: str) -> None:
        """Warn, once of each kind of failure."""
        if failure not in self._said:
            self._said.add(failure)
            warnings.warn(text, StoreWarning, stacklevel=2)
