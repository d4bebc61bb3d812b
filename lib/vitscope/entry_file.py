"""One entry of a store as a file: tensors, what they are of, and a digest over all of it.

The file is a safetensors file. Its metadata hold the format, the kind, the parts of the key, a description,
the time, the order of the tensors, and a SHA-256 over all of these and the tensors' names, types, shapes and
bytes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FORMAT = "vitscope-store-1"
ENDING = ".safetensors"
KEY_LENGTH = 32


class Damaged(Exception):
    """A file that is no whole entry, or not the one that was meant; the message says what is wrong."""


@dataclass(frozen=True)
class Header:
    """What an entry is of: `parts` decide its key; `about` only describes; `created` is a Unix time."""

    kind: str
    parts: Mapping[str, Any]
    about: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0

    @property
    def key(self) -> str:
        """Digest of format, kind and parts. Errors: `TypeError`, `ValueError` for parts that are no JSON."""
        return hashlib.sha256(_json([FORMAT, self.kind, self.parts]).encode()).hexdigest()[:KEY_LENGTH]


def write(path: Path, header: Header, tensors: Mapping[str, Tensor]) -> None:
    """Write an entry and wait until it is on the disk. `path` must be aside: readers may see half of it.

    Errors: `OSError`, `SafetensorError` (a full disk too), `MemoryError`.
    """
    plain = {name: _plain(tensor) for name, tensor in tensors.items()}
    described = {
        "format": FORMAT,
        "kind": header.kind,
        "parts": _json(header.parts),
        "about": _json(header.about),
        "created": repr(header.created),
        "order": _json(list(plain)),
    }
    digest = _begin(described)
    for name in sorted(plain):
        _add(digest, name, plain[name], _bytes(plain[name]))
    save_file(plain, path, metadata=described | {"sha256": digest.hexdigest()})
    os.chmod(path, path.parent.stat().st_mode & 0o666)  # as the umask has it; safetensors keeps others out
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path) -> tuple[Header, dict[str, Tensor]]:
    """Header and tensors, in memory of their own and in the order they were written, once all is checked.

    Errors: `Damaged`; `OSError` where the file cannot be opened, which says nothing about its content.
    """
    tensors: dict[str, Tensor] = {}
    header, order = _examine(path, tensors)
    return header, {name: tensors[name] for name in order}


def check(path: Path) -> Header:
    """The header of an entry whose content has been compared with its digest, a tensor at a time.

    Errors: as `read`.
    """
    return _examine(path, None)[0]


def read_header(path: Path) -> Header:
    """The header alone; the content is not looked at. Errors: as `read`."""
    with _opened(path) as file:
        return _parsed(file.metadata())[0]


def _examine(path: Path, keep: dict[str, Tensor] | None) -> tuple[Header, list[str]]:
    with _opened(path) as file:
        metadata = file.metadata()
        header, order = _parsed(metadata)
        digest = _begin({k: v for k, v in metadata.items() if k != "sha256"})
        names = sorted(file.keys())
        for name in names:
            mapped = file.get_tensor(name)
            # a copy: the file's own pages may change or vanish under a mapped tensor
            content = _bytes(mapped).clone()
            _add(digest, name, mapped, content)
            if keep is not None:
                keep[name] = content.view(mapped.dtype).view(mapped.shape)
        if sorted(order) != names:
            raise Damaged("does not hold the tensors that its metadata name")
        if digest.hexdigest() != metadata["sha256"]:
            raise Damaged("differs from its digest: it was altered after it was written")
    return header, order


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """An open safetensors file. What is wrong with its content is `Damaged`, anything else an `OSError`.

    safetensors opens the path twice, so that another process may remove or replace the file in between: this
    is no damage, but as if the file had not been there.
    """
    before = _identity(path)
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, Damaged, RuntimeError, OSError) as error:
        if _identity(path) != before:
            raise FileNotFoundError(errno.ENOENT, "replaced while it was read", str(path)) from error
        if isinstance(error, SafetensorError):
            raise Damaged(f"is no whole safetensors file ({error})") from error
        if isinstance(error, RuntimeError):  # torch's word for what it could not map
            raise OSError(str(error)) from error
        raise


def _identity(path: Path) -> tuple[int, int]:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino


def _parsed(metadata: Mapping[str, str] | None) -> tuple[Header, list[str]]:
    found = metadata or {}
    if found.get("format") != FORMAT:
        raise Damaged(f"has the format {found.get('format')!r}, expected {FORMAT!r}")
    try:
        header = Header(
            found["kind"], json.loads(found["parts"]), json.loads(found["about"]), float(found["created"])
        )
        order = json.loads(found["order"])
        known = isinstance(header.parts, dict) and isinstance(header.about, dict) and isinstance(order, list)
    except (KeyError, ValueError) as error:
        raise Damaged(f"has metadata that cannot be read ({error!r})") from error
    if not known or "sha256" not in found:
        raise Damaged("has metadata that are incomplete")
    return header, order


def _begin(described: Mapping[str, str]) -> hashlib._Hash:
    return hashlib.sha256(_json(described).encode())


def _add(digest: hashlib._Hash, name: str, tensor: Tensor, content: Tensor) -> None:
    digest.update(_json([name, str(tensor.dtype), list(tensor.shape)]).encode())
    digest.update(content.numpy().data)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _plain(tensor: Tensor) -> Tensor:
    """A tensor on the CPU with storage of its own, as the file format wants it."""
    plain = tensor.detach().cpu().contiguous()
    return plain.clone() if plain.untyped_storage().nbytes() != plain.nbytes else plain


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
