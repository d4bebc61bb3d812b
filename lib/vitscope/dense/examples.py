"""Pictures with masks, depth and boxes, embedded or in folders, and the tokens a backbone makes of them.

A set is named "scenes" (masks by group), "scenes_fine" (masks by subgroup), "scenes_single" (one small
object), or "LAYOUT:FOLDER" for a dataset of one's own in a published layout, as "voc:VOCdevkit/VOC2012".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitscope.backbones import Backbone
from vitscope.capture import capture
from vitscope.data import emoji, scenes
from vitscope.data.dense_layouts import LAYOUTS
from vitscope.data.dense_sets import Aligned, DenseImages, aligned, load_dense
from vitscope.data.images import Images
from vitscope.dense.boxes import crop_box
from vitscope.errors import unknown
from vitscope.reductions import Tokens as TokensOfState
from vitscope.reductions import cls as cls_token

EMBEDDED = ("scenes", "scenes_fine", "scenes_single")
IGNORE = 255
_PICTURES_AT_ONCE = 128  # whose tokens of all states are held at a time
Kind = Literal["segmentation", "depth", "boxes"]


@dataclass(frozen=True)
class Annotated:
    """One split of a set. `kinds` says which annotations it has; `classes` name the mask's numbers from 0.

    `clusters` [N] name what belongs together when images are held out or drawn again. `folder_set` is there
    for sets in folders.
    """

    name: str
    images: Images
    kinds: tuple[Kind, ...]
    classes: tuple[str, ...]
    clusters: np.ndarray
    folder_set: DenseImages | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def key(self) -> str:
        """The name without the folder: "voc" of "voc:VOCdevkit/VOC2012"."""
        return self.name.partition(":")[0]


@dataclass(frozen=True)
class Prepared:
    """What a backbone sees of a set, and its annotations cut and resized with the pictures.

    `inputs` [N, 3, s, s]; `mask` [N, s, s] with 255 where no class is given; `depth` [N, s, s], 0 where
    nothing was measured; `boxes` [N, K, 4] as fractions of the input, NaN rows for no object. None for what
    is missing.
    """

    inputs: Float[Tensor, "N 3 s s"]
    mask: Int[Tensor, "N s s"] | None
    depth: Float[Tensor, "N s s"] | None
    boxes: Float[Tensor, "N K 4"] | None


@dataclass(frozen=True)
class DenseTokens:
    """Tokens of `states`: `patches` [S, N, P, D], row by row of the grid, and `cls` [S, N, D].

    `cls` is None for models without CLS, and NaN at state −1, where there is none yet.
    """

    states: list[int]
    patches: Float[Tensor, "S N P D"]
    cls: Float[Tensor, "S N D"] | None

    def at(self, *states: int) -> DenseTokens:
        """The same for some of the states. Raises ValueError for one that is not there."""
        missing = [s for s in states if s not in self.states]
        if missing:
            raise ValueError(f"states {missing} were not kept; there are {self.states}")
        rows = [self.states.index(s) for s in states]
        return DenseTokens(list(states), self.patches[rows], None if self.cls is None else self.cls[rows])


def load(name: str, split: str, *, limit: int | None = None, seed: int = 0) -> Annotated:
    """A split ("train" or "test") of an annotated set; of folder sets "test" is the validation part.

    `limit` draws so many pictures, by `seed`. Errors: `UnknownName` for a set or layout that does not exist,
    `ValueError` and `DecodeError` as in `data.dense_sets.load_dense`.
    """
    require(name)
    layout, colon, folder = name.partition(":")
    if colon:
        return _from_folder(name, layout, folder, split, limit, seed)
    base = "scenes" if name == "scenes_fine" else name
    images = scenes.load_scenes(base, split, seed=seed).limited(limit, seed)
    return Annotated(
        name=name,
        images=images,
        kinds=("segmentation", "depth", "boxes"),
        classes=("background", *(_subgroups() if name == "scenes_fine" else images.classes)),
        clusters=images.ids,
    )


def _subgroups() -> list[str]:
    return sorted(set(emoji.identities()["subgroup"]))


def require(name: str, relative_to: Path = Path()) -> None:
    """Raise unless a set is embedded, or its layout is known and its folder there."""
    layout, colon, folder = name.partition(":")
    if not colon:
        if name not in EMBEDDED:
            raise unknown("annotated set", name, [*EMBEDDED, *(f"{known}:FOLDER" for known in LAYOUTS)])
        return
    if layout not in LAYOUTS:
        raise unknown("layout", layout, LAYOUTS)
    path = relative_to / Path(folder).expanduser()
    if not path.is_dir():
        raise FileNotFoundError(
            f"no such folder: {folder}; layout {layout} expects {LAYOUTS[layout].looked_for}"
        )


def _from_folder(name, layout, folder, split, limit, seed) -> Annotated:
    splits = LAYOUTS[layout].splits
    asked = (
        split if split in splits else next((s for s in ("val", "validation", "test") if s in splits), split)
    )
    dense = load_dense(folder, layout, asked)
    images = Images(
        name=name, split=split, labels=np.zeros(len(dense), dtype=np.int64), ids=np.asarray(dense.ids),
        classes=("all",), digest=dense.digest, source={"kind": "folder", "layout": layout, "split": asked},
        read=lambda indices: dense.pixels(indices), skipped=dense.skipped,
        extras={"position": np.arange(len(dense))},
    ).limited(limit, seed)  # fmt: skip
    return Annotated(name, images, (dense.kind,), dense.classes, images.ids, dense)


def prepare(backbone: Backbone, one: Annotated) -> Prepared:
    """Pictures as the backbone's own transform makes them, annotations cut alike (`dense_sets.aligned`).

    Masks and depth take the nearest pixel, boxes are mapped. Errors: `ValueError` for a backbone whose input
    is not square or whose transform is no centre crop.
    """
    transform = backbone.transform
    if transform.height != transform.width:
        raise ValueError(
            f"{backbone.name} takes pictures of {transform.height} × {transform.width}; annotations are cut "
            "to squares: load it with a square img_size"
        )
    size = transform.height
    pictures = list(one.images.pixels(np.arange(len(one))))
    mask, depth, boxes = _annotations(one)
    names = list(map(str, one.images.ids))

    def cut(maps: Sequence[Tensor] | None, kind: str) -> Aligned | None:
        if maps is None:
            return None
        return aligned(pictures, maps, size=size, kind=kind, transform=transform, names=names)

    masks, depths = cut(mask, "segmentation"), cut(depth, "depth")
    having = masks or depths
    return Prepared(
        inputs=having.pixels if having else transform(pictures),
        mask=masks and masks.annotation,
        depth=depths and depths.annotation,
        boxes=None if boxes is None else _placed(boxes, pictures, size, transform.crop_pct),
    )


def _annotations(one: Annotated) -> tuple[Sequence[Tensor] | None, Sequence[Tensor] | None, Tensor | None]:
    """Masks, depth and boxes (as fractions of the whole picture) of a set; None for what it lacks."""
    if one.folder_set is not None:
        where, kind = one.images.extras["position"], one.folder_set.kind
        return (
            one.folder_set.masks(where) if kind == "segmentation" else None,
            one.folder_set.depths(where) if kind == "depth" else None,
            one.folder_set.boxes[where] if kind == "boxes" else None,
        )
    numbers = one.images.extras["scene"]
    made = scenes.compose(one.images.name, one.images.split, numbers, one.images.source["seed"])
    mask = made["mask"].long()
    if one.name == "scenes_fine":
        table = emoji.identities()
        number = {name: i for i, name in enumerate(_subgroups(), start=1)}
        classes = torch.tensor([0, *(number[name] for name in table["subgroup"])])
        mask = classes[made["identity"].long()]
        # a subgroup of which no identity is seen in training cannot be learned: its pixels do not count
        seen = {number[name] for name in table["subgroup"][~table["held_out"]]} | {0}
        unseen = [number for number in range(len(number) + 1) if number not in seen]
        mask[torch.isin(mask, torch.tensor(unseen, dtype=mask.dtype))] = IGNORE
    return list(mask), list(made["depth"]), made["boxes"]


def _placed(boxes: Tensor, pictures: Sequence[Tensor], size: int, crop_pct: float) -> Tensor:
    """Boxes as fractions of what resize and centre crop leave of each picture."""
    sizes = torch.tensor([[p.shape[2], p.shape[1]] for p in pictures])
    if bool((sizes == size).all()):
        return boxes
    pixels = boxes * sizes.repeat(1, 2).unsqueeze(1)
    resize = math.floor(size / crop_pct)
    moved = [crop_box(pixels[:, k], sizes, resize=resize, crop=size) for k in range(boxes.shape[1])]
    return torch.stack(moved, dim=1)


def tokens(
    backbone: Backbone, inputs: Float[Tensor, "N 3 s s"], *, norm: str, states: Sequence[int] | None = None
) -> DenseTokens:
    """Patch and CLS tokens of some states (all by default), a part of the pictures at a time.

    Errors: `ValueError` for a state the backbone has not, and those of `capture.capture`.
    """
    chosen = backbone.states if states is None else list(states)
    missing = [s for s in chosen if s not in backbone.states]
    if missing or not chosen:
        raise ValueError(f"{backbone.name} has states {backbone.states}, not {missing or 'none'}")
    rows = [backbone.states.index(s) for s in chosen]
    patches, cls = [], []
    for start in range(0, len(inputs), _PICTURES_AT_ONCE):
        part = inputs[start : start + _PICTURES_AT_ONCE]
        found = capture(
            backbone, part, norm=norm, reductions={"patches": _patches, "cls": cls_token}, progress=False
        )
        patches.append(found.extra["patches"][rows])
        if found.cls is not None:
            cls.append(found.cls[rows])
    return DenseTokens(chosen, torch.cat(patches, dim=1), torch.cat(cls, dim=1) if cls else None)


def _patches(tokens: TokensOfState) -> dict[str, Tensor]:
    return {"patches": tokens.patches.float()}
