"""`Images`: what every dataset is once loaded, and the rules by which a picture from outside becomes RGB.

Decoding rules, the same for files, Parquet and hub rows:
- EXIF orientation is applied; of an animation the first frame is taken;
- transparency is composited over white; CMYK, palette and grey pictures are converted to RGB;
- 16-bit grey is divided by 257, so 0…65535 becomes 0…255; floating-point grey must lie in [0, 1];
- a file that does not decode to its last byte is an error with its name, never a picture padded with grey.
"""

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

Pixels = torch.Tensor | list[torch.Tensor]


class DecodeError(ValueError):
    """A picture could not be read; the message names it and says why."""


class UnlabelledError(ValueError):
    """Labels are missing, constant −1, or cannot be read as classes."""


def decode(data: bytes | Path | Image.Image, name: str) -> torch.Tensor:
    """One picture as uint8 [3, h, w]. `name` is used in errors only."""
    try:
        picture = (
            data
            if isinstance(data, Image.Image)
            else Image.open(data if isinstance(data, Path) else io.BytesIO(data))
        )
        picture.load()
        picture = ImageOps.exif_transpose(picture)
    except Exception as error:  # Pillow's plugins raise many kinds on damaged files; all mean the same here
        raise DecodeError(f"{name}: not a readable picture ({error})") from error
    return torch.from_numpy(np.asarray(_to_rgb(picture, name)).copy()).permute(2, 0, 1)


def _to_rgb(picture: Image.Image, name: str) -> Image.Image:
    if picture.mode in ("I", "F") or picture.mode.startswith("I;16"):
        values = np.asarray(picture).astype(np.float64)
        top = 1.0 if picture.mode == "F" else 65535.0
        if not np.isfinite(values).all() or values.min() < 0 or values.max() > top:
            raise DecodeError(
                f"{name}: mode {picture.mode} with values {values.min():g} to {values.max():g}; "
                f"expected 0 to {top:g}"
            )
        return Image.fromarray(np.rint(values * (255 / top)).astype(np.uint8)).convert("RGB")
    if "A" in picture.getbands() or "transparency" in picture.info:
        rgba = picture.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return picture.convert("RGB")


@dataclass(frozen=True)
class Images:
    """A labelled set of pictures, read on demand.

    `pixels(indices)` gives uint8 [n, 3, h, w], or a list of uint8 [3, h, w] where sizes differ. `labels` are
    0…C−1 and name entries of `classes`; `ids` name the pictures; `digest` changes with any of them.
    """

    name: str
    split: str
    labels: np.ndarray
    ids: np.ndarray
    classes: tuple[str, ...]
    digest: str
    source: dict
    read: Callable[[np.ndarray], Pixels] = field(repr=False)
    skipped: tuple[tuple[str, str], ...] = ()
    extras: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if len(self.labels) == 0:
            raise ValueError(f"{self.name}/{self.split} holds no pictures")
        if len(self.labels) != len(self.ids):
            raise ValueError(
                f"{self.name}/{self.split}: {len(self.labels)} labels for {len(self.ids)} pictures"
            )
        if self.labels.min() < 0 or self.labels.max() >= len(self.classes):
            raise UnlabelledError(
                f"{self.name}/{self.split}: labels run from {self.labels.min()} to {self.labels.max()}, "
                f"expected 0 to {len(self.classes) - 1}; a split whose labels are hidden cannot be used"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def counts(self) -> np.ndarray:
        """Pictures per class [C]."""
        return np.bincount(self.labels, minlength=len(self.classes))

    def pixels(self, indices: Sequence[int] | np.ndarray | slice | None = None) -> Pixels:
        everything = np.arange(len(self))
        chosen = everything if indices is None else everything[indices]
        return self.read(np.atleast_1d(chosen))

    def select(self, indices: Sequence[int] | np.ndarray) -> "Images":
        """The pictures at `indices`, in that order."""
        chosen = np.arange(len(self))[np.asarray(indices)]
        read = self.read
        return replace(
            self,
            labels=self.labels[chosen],
            ids=self.ids[chosen],
            extras={key: value[chosen] for key, value in self.extras.items()},
            digest=fingerprint(self.digest, chosen),
            read=lambda indices: read(chosen[indices]),
        )

    def limited(self, limit: int | None, seed: int = 0) -> "Images":
        """At most `limit` pictures, drawn class by class in proportion, in the original order."""
        if limit is None or limit >= len(self):
            return self
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        return self.select(stratified(self.labels, limit, seed))


def stratified(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """`count` sorted indices whose class shares follow `labels` to within one picture a class.

    Each class gets the whole part of its share count·n_c/N; what is left goes, one each, to the classes with
    the largest remainders, ties by chance. Members are drawn by chance.
    """
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(labels))
    _, inverse, sizes = np.unique(labels[shuffled], return_inverse=True, return_counts=True)
    quota, remainder = np.divmod(count * sizes, len(labels))
    order = np.lexsort((rng.random(len(sizes)), -remainder))
    quota[order[: count - quota.sum()]] += 1
    by_class = np.argsort(inverse, kind="stable")
    place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = by_class[place < np.repeat(quota, sizes)]
    return np.sort(shuffled[chosen])


def fingerprint(*parts: object) -> str:
    """SHA-256 over arrays (their bytes) and plain values (their text)."""
    digest = hashlib.sha256()
    for part in parts:
        content = (
            np.ascontiguousarray(part).tobytes()
            if isinstance(part, np.ndarray) and part.dtype != object
            else repr(part).encode()
        )
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def encode_labels(
    values: Sequence, where: str, names: Sequence[str] | None = None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Any labels as 0…C−1 with their class names.

    With `names` (declared by the source) integers index them. Otherwise the distinct values, sorted, become
    the classes, so ids with gaps such as {3, 7} are safe. Missing, −1 and fractional labels are refused.
    """
    values = list(values)
    if any(isinstance(v, list | tuple | dict | np.ndarray) for v in values):
        raise UnlabelledError(f"{where}: several labels a picture; choose one label column")
    missing = [v is None or v == -1 or (isinstance(v, float) and v != v) for v in values]
    if any(missing):
        raise UnlabelledError(
            f"{where}: {sum(missing)} of {len(values)} pictures have no label (None, NaN or −1)"
        )
    fractional = [v for v in values if isinstance(v, float | np.floating) and not float(v).is_integer()]
    if fractional:
        raise UnlabelledError(f"{where}: labels such as {fractional[0]} are no class ids")
    if names is not None:
        return np.asarray(values, dtype=np.int64), tuple(names)
    texts = sum(isinstance(v, str) for v in values)
    if 0 < texts < len(values):
        raise UnlabelledError(f"{where}: {texts} of {len(values)} labels are texts, the others numbers")
    if not texts:
        values = [int(v) for v in values]
    classes = sorted(set(values))
    index = {value: i for i, value in enumerate(classes)}
    return np.array([index[v] for v in values], dtype=np.int64), tuple(str(c) for c in classes)
