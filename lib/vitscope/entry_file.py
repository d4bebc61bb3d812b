"""One entry of a store as a file: tensors, what they are of, and a digest over all of it.

The file is a safetensors file. Its metadata hold the format, the kind, the parts of the key, a description,
the time, the order of the tensors, and a SHA-256 over all of these and the tensors' names, types, shapes and
bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
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
        _add(digest, name, plain[name])
    save_file(plain, path, metadata=described | {"sha256": digest.hexdigest()})
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
    _openable(path)
    try:
        with safe_open(path, framework="pt") as file:
            return _parsed(file.metadata())[0]
    except SafetensorError as error:
        raise Damaged(f"is no whole safetensors file ({error})") from error


def _examine(path: Path, keep: dict[str, Tensor] | None) -> tuple[Header, list[str]]:
    _openable(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            header, order = _parsed(metadata)
            digest = _begin({k: v for k, v in metadata.items() if k != "sha256"})
            names = sorted(file.keys())
            for name in names:
                # a copy: the file's own pages may change or vanish under a mapped tensor
                tensor = file.get_tensor(name).clone()
                _add(digest, name, tensor)
                if keep is not None:
                    keep[name] = tensor
    except SafetensorError as error:
        raise Damaged(f"is no whole safetensors file ({error})") from error
    if sorted(order) != names:
        raise Damaged("does not hold the tensors that its metadata name")
    if digest.hexdigest() != metadata["sha256"]:
        raise Damaged("differs from its digest: it was altered after it was written")
    return header, order


def _openable(path: Path) -> None:
    """An error of the file system, which safetensors would tell less plainly."""
    with path.open("rb"):
        pass


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


def _add(digest: hashlib._Hash, name: str, tensor: Tensor) -> None:
    digest.update(_json([name, str(tensor.dtype), list(tensor.shape)]).encode())
    digest.update(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))


def _plain(tensor: Tensor) -> Tensor:
    """A tensor on the CPU with storage of its own, as the file format wants it."""
    plain = tensor.detach().cpu().contiguous()
    return plain.clone() if plain.untyped_storage().nbytes() != plain.nbytes else plain


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
