"""Dense datasets in folders: pictures with class masks, depth maps or boxes, and their common crop.

Layouts are described in `vitscope.data.dense_layouts`. A picture and its annotation must agree in size, and a
picture must not carry an EXIF rotation, because no annotation says whether it was drawn before or after it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitscope.data.dense_layouts import IGNORE, LAYOUTS, Entry, Kind, Layout, shorten
from vitscope.data.dense_reading import read_boxes, read_depth, read_mask, read_picture
from vitscope.data.embedded import sha256
from vitscope.data.files import MAX_BAD_SHARE
from vitscope.data.images import DecodeError, fingerprint
from vitscope.errors import unknown
from vitscope.transforms import Transform

Indices = Sequence[int] | np.ndarray | slice | None
_GARG = (0.40810811, 0.99189189, 0.03594771, 0.96405229)


@dataclass(frozen=True)
class DenseImages:
    """Pictures of one split with dense annotations, read on demand; made by `load_dense`.

    `paths` are pairs (picture, annotation) in the order of `ids`. `classes` are empty for depth and boxes.
    `skipped` are (id, reason) of pictures left out. Every reading method takes indices (all if None) and
    raises `DecodeError` naming the file that is damaged, of another kind, or not of its picture's size.
    """

    name: str
    split: str
    kind: Kind
    ids: np.ndarray
    classes: tuple[str, ...]
    paths: tuple[tuple[Path, Path], ...] = field(repr=False)
    layout: Layout = field(repr=False)
    skipped: tuple[tuple[str, str], ...] = ()
    eval_crop: str | None = None
    ignore: int = IGNORE

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the content of all files, the order and the crop."""
        content = [(sha256(picture), sha256(annotation)) for picture, annotation in self.paths]
        return fingerprint(self.layout.name, self.split, self.classes, self.eval_crop, content)

    def pixels(self, indices: Indices = None) -> list[Tensor]:
        """Pictures as uint8 [3, h, w], by the rules of `vitscope.data.images`."""
        return [read_picture(picture) for picture, _ in self._chosen(indices)]

    def masks(self, indices: Indices = None) -> list[Int[Tensor, "h w"]]:
        """Class numbers 0 … C−1 as int64, 255 where no class is given. Segmentation only."""
        self._only_for("masks", "segmentation")
        return [read_mask(*pair, self.layout) for pair in self._chosen(indices)]

    def depths(self, indices: Indices = None) -> list[Float[Tensor, "h w"]]:
        """Metres as float32, 0 where nothing was measured (or outside `eval_crop`). Depth only."""
        self._only_for("depths", "depth")
        read = [read_depth(*pair, self.layout) for pair in self._chosen(indices)]
        return [garg_crop(depth) for depth in read] if self.eval_crop == "garg" else read

    @property
    def pixel_boxes(self) -> tuple[Float[Tensor, "M 4"], ...]:
        """Boxes of every picture, float64 x0, y0, x1, y1 in pixels as the XML has them. Boxes only."""
        return tuple(boxes for boxes, _ in self._objects)

    @property
    def sizes(self) -> Int[Tensor, "N 2"]:
        """Width and height of every picture. Boxes only."""
        return torch.tensor([size for _, size in self._objects])

    @cached_property
    def boxes(self) -> Float[Tensor, "N M 4"]:
        """x0, y0, x1, y1 as fractions of the whole picture; NaN rows after the last object. Boxes only."""
        most = max([1, *map(len, self.pixel_boxes)])
        made = torch.full((len(self), most, 4), float("nan"))
        for i, (boxes, (width, height)) in enumerate(self._objects):
            made[i, : len(boxes)] = (boxes / torch.tensor([width, height, width, height])).float()
        return made

    @cached_property
    def _objects(self) -> list[tuple[Tensor, tuple[int, int]]]:
        self._only_for("boxes", "boxes")
        return [read_boxes(*pair) for pair in self.paths]

    def _chosen(self, indices: Indices) -> list[tuple[Path, Path]]:
        everything = np.arange(len(self))
        chosen = everything if indices is None else everything[indices]
        return [self.paths[i] for i in np.atleast_1d(chosen)]

    def _only_for(self, what: str, kind: str) -> None:
        if self.kind != kind:
            raise ValueError(f"{self.name} is a set of kind {self.kind!r}; {what} need kind {kind!r}")


def load_dense(
    folder: Path | str, layout: str, split: str, *, on_error: str = "fail", eval_crop: str | None = None
) -> DenseImages:
    """A split of a dense dataset that lies in a folder of your own.

    `layout` is a name in `LAYOUTS`, `split` one of its splits. `on_error="fail"` refuses missing files at
    once (how many, the first three) and damaged ones when they are read. `"skip"` reads every file first,
    leaves out what fails and lists it in `.skipped`; more than 5 % failing stop it. KITTI pictures whose list
    says `None` have no depth: they are in `.skipped` either way and do not count as failures.
    `eval_crop="garg"` (kitti only) sets depth outside Garg's crop to 0, see `garg_crop`.

    Raises `UnknownName` for layouts and splits that do not exist (with near matches), `ValueError` for a
    folder of another layout (with what was looked for) and an empty split, `DecodeError` for missing files.

    >>> import tempfile
    >>> from PIL import Image
    >>> place = tempfile.TemporaryDirectory()  # NYUv2 in small: 1.5 m beside a pixel without measurement
    >>> root = Path(place.name)
    >>> for part, values in (("rgb", np.zeros((1, 2, 3), np.uint8)), ("depth", np.uint16([[1500, 0]]))):
    ...     (root / part).mkdir()
    ...     Image.fromarray(values).save(root / part / "0001.png")
    >>> _ = (root / "test.txt").write_text("0001")
    >>> load_dense(root, "nyuv2", "test").depths()
    [tensor([[1.5000, 0.0000]])]
    >>> place.cleanup()
    """
    if on_error not in ("fail", "skip"):
        raise ValueError(f"on_error must be 'fail' or 'skip', got {on_error!r}")
    if layout not in LAYOUTS:
        raise unknown("layout", layout, LAYOUTS)
    chosen = LAYOUTS[layout]
    if split not in chosen.splits:
        raise unknown(f"{layout} split", split, chosen.splits)
    if eval_crop not in (None, "garg") or (eval_crop and layout != "kitti"):
        raise ValueError(f"eval_crop must be None, or 'garg' for kitti; got {eval_crop!r} for {layout}")
    root = Path(folder).expanduser()
    entries = chosen.entries(root, split)
    pairs = {e.id: (e.picture, e.annotation) for e in entries if e.annotation is not None}
    none_given = [(e.id, "its list gives no annotation") for e in entries if e.annotation is None]
    bad = _missing(entries)
    if on_error == "skip":
        bad |= _unreadable({i: pair for i, pair in pairs.items() if i not in bad}, chosen)
    if bad and (on_error == "fail" or len(bad) > MAX_BAD_SHARE * len(pairs)):
        advice = "more than 5 %" if on_error == "skip" else "on_error='skip' leaves out up to 5 %"
        raise DecodeError(
            f"{len(bad)} of {len(pairs)} pictures of {root} split {split!r} cannot be used ({advice}): "
            f"{shorten(bad.values())}"
        )
    kept = [i for i in pairs if i not in bad]
    if not kept:
        raise ValueError(f"split {split!r} of {root} holds no picture with an annotation")
    return DenseImages(
        name=f"{layout}:{root}", split=split, kind=chosen.kind, ids=np.array(kept),
        classes=chosen.class_names(root), paths=tuple(pairs[i] for i in kept), layout=chosen,
        skipped=(*bad.items(), *none_given), eval_crop=eval_crop,
    )  # fmt: skip


def _missing(entries: list[Entry]) -> dict[str, str]:
    gone = {}
    for entry in entries:
        if entry.annotation is not None and not entry.picture.is_file():
            gone[entry.id] = f"{entry.picture} is missing"
        elif entry.annotation is not None and not entry.annotation.is_file():
            gone[entry.id] = f"{entry.picture.name} has no annotation {entry.annotation}"
    return gone


def _unreadable(pairs: dict[str, tuple[Path, Path]], layout: Layout) -> dict[str, str]:
    bad = {}
    for name, (picture, annotation) in pairs.items():
        try:
            read_picture(picture)
            if layout.kind == "boxes":
                read_boxes(picture, annotation)
            else:
                (read_mask if layout.kind == "segmentation" else read_depth)(picture, annotation, layout)
        except DecodeError as error:
            bad[name] = str(error)
    return bad


def garg_crop(depth: Float[Tensor, "h w"]) -> Float[Tensor, "h w"]:
    """Depth with 0 outside the rows and columns on which KITTI is usually scored.

    Rows int(0.40810811 h) to int(0.99189189 h), columns int(0.03594771 w) to int(0.96405229 w), ends left out
    (Garg et al., ECCV 2016). Some evaluations cut pictures to 352 × 1216 first; this one does not.

    >>> garg_crop(torch.ones(375, 1242)).count_nonzero().item() == (371 - 153) * (1197 - 44)
    True
    """
    height, width = depth.shape
    top, bottom = (int(share * height) for share in _GARG[:2])
    left, right = (int(share * width) for share in _GARG[2:])
    kept = torch.zeros_like(depth)
    kept[top:bottom, left:right] = depth[top:bottom, left:right]
    return kept


class Aligned(NamedTuple):
    """Pictures ready for a model, and what they show at the same places."""

    pixels: Float[Tensor, "N 3 size size"]
    annotation: Tensor


def aligned(
    images: Sequence[Tensor],
    annotations: Sequence[Tensor],
    *,
    size: int,
    kind: str,
    transform: Transform | None = None,
    names: Sequence[str] | None = None,
) -> Aligned:
    """The same resize and centre crop for pictures and annotations; names are used in errors only.

    The shorter side becomes floor(size / crop_pct), the longer int(that · long / short), then the middle
    size × size is kept: the ends of the longer side are lost. What is size × size already is not resized.
    Pictures go through `transform` (a backbone's own; its height and width become `size`), by default
    bicubic, crop_pct 1 and the mean and deviation of ImageNet. Annotations take the nearest pixel: row i of
    h' is row ⌊(2i + 1) h / 2h'⌋ of h, so no class and no depth is ever a mixture, zeros stay zeros and metres
    stay metres.

    `kind` "segmentation": integer masks to int64 [N, size, size]; "depth": float32 [N, size, size].
    Raises `ValueError` for other kinds, other counts, and an annotation of another size than its picture.

    >>> picture, mask = torch.zeros(3, 2, 6, dtype=torch.uint8), torch.arange(12).view(2, 6)
    >>> aligned([picture], [mask], size=2, kind="segmentation").annotation.tolist()
    [[[2, 3], [8, 9]]]
    """
    if kind not in ("segmentation", "depth"):
        raise ValueError(f"kind must be 'segmentation' or 'depth', got {kind!r}; boxes are no map of pixels")
    if names is None:
        names = [f"picture {i}" for i in range(len(images))]
    if not len(images) or not len(images) == len(annotations) == len(names):
        raise ValueError(
            f"{len(images)} pictures, {len(annotations)} annotations, {len(names)} names; expected as many "
            "of each and at least one"
        )
    rule = transform or Transform(size, size, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    if rule.crop_mode != "center" or not 0 < rule.crop_pct <= 1 or size < 1:
        raise ValueError(
            f"crop_mode {rule.crop_mode!r}, crop_pct {rule.crop_pct}, size {size}; expected 'center', above "
            "0 to 1, and at least 1"
        )
    rule = replace(rule, height=size, width=size)
    cropped = []
    for where, image, annotation in zip(names, images, annotations, strict=True):
        if image.shape[1:] != annotation.shape:
            raise ValueError(
                f"{where}: picture {list(image.shape)} and annotation {list(annotation.shape)} differ in size"
            )
        whole = not annotation.is_floating_point() and annotation.dtype != torch.bool
        valid = whole or bool((torch.isfinite(annotation) & (annotation >= 0)).all())
        if whole != (kind == "segmentation") or not valid:
            wanted = "whole class numbers" if kind == "segmentation" else "floats, finite and 0 or more"
            raise ValueError(f"{where}: annotation of {annotation.dtype} for {kind}; expected {wanted}")
        rows, columns = _kept(annotation.shape[0], annotation.shape[1], size, rule.crop_pct)
        cropped.append(annotation[rows][:, columns].to(torch.int64 if whole else torch.float32))
    return Aligned(rule(list(images)), torch.stack(cropped))


def _kept(height: int, width: int, size: int, crop_pct: float) -> tuple[Tensor, Tensor]:
    """The rows and columns of the original that the pixels of the crop fall on."""
    if (height, width) == (size, size):
        return torch.arange(size), torch.arange(size)
    short = math.floor(size / crop_pct)
    sides = []
    for side in (height, width):
        # exact in whole numbers: floating point would choose either neighbour where a centre falls on an edge
        long = short if side == min(height, width) else int(short * side / min(height, width))
        places = torch.arange(size) + round((long - size) / 2.0)
        sides.append(((2 * places + 1) * side) // (2 * long))
    return sides[0], sides[1]
