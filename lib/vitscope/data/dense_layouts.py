"""Where dense datasets keep pictures and annotations, and what the numbers in their files mean.

Each `Layout` describes one dataset as its publishers hand it out. Nothing is downloaded: the folder is yours.
`vitscope.data.dense_sets.load_dense` reads it.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

Kind = Literal["segmentation", "depth", "boxes"]
IGNORE = 255

VOC_CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
ADE_CLASSES = tuple(f"class {i:03d}" for i in range(1, 151))
CITYSCAPES_CLASSES = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation",
    "terrain", "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle",
)  # fmt: skip
_CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)


class Entry(NamedTuple):
    """A picture and its annotation; `annotation` is None where the dataset itself says that there is none."""

    id: str
    picture: Path
    annotation: Path | None


@dataclass(frozen=True)
class Layout:
    """One dataset on disk.

    `pictures`, `annotations` and `lists` say in words where things lie. `needed` are the places that must
    exist, each with its alternatives; `find(folder, places, split)` lists the pictures of a split.
    Segmentation: `labels` gives, by the ending of the mask's name, the class of each value a mask may hold;
    a value that is not in it is an error. Depth: metres = value / `depth_scale`, 0 = not measured, after the
    16-bit rotation (d >> 3) | (d << 13) where `rotated`.
    """

    name: str
    kind: Kind
    splits: tuple[str, ...]
    pictures: str
    annotations: str
    lists: str
    find: Callable[[Path, list[Path], str], list[Entry]] = field(repr=False)
    needed: tuple[tuple[str, ...], ...] = ()
    classes: tuple[str, ...] = ()
    labels: Mapping[str, Mapping[int, int]] = field(default_factory=dict, repr=False)
    depth_scale: float | None = None
    rotated: bool = False

    @property
    def looked_for(self) -> str:
        return "; ".join(text for text in (self.pictures, self.annotations, self.lists) if text)

    def entries(self, folder: Path, split: str) -> list[Entry]:
        """Pictures of a split, in a fixed order. Raises ValueError for a folder of another layout."""
        if not folder.is_dir():
            raise ValueError(f"no such folder: {folder}; layout {self.name} expects {self.looked_for}")
        groups = [tuple(place.format(split=split) for place in group) for group in self.needed]
        absent = [" or ".join(group) for group in groups if not any((folder / p).exists() for p in group)]
        if absent:
            raise ValueError(
                f"{folder} is not in the layout {self.name}: no {', no '.join(absent)}. "
                f"Looked for: {self.looked_for}.{_hint(folder, groups)}"
            )
        places = [next(folder / p for p in group if (folder / p).exists()) for group in groups]
        found = self.find(folder, places, split)
        if not found:
            raise ValueError(f"split {split!r} of {folder} holds no pictures; looked for: {self.looked_for}")
        names = [entry.id for entry in found]
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise ValueError(
                f"split {split!r} of {folder} has {len(twice)} pictures twice: {shorten(twice)}; remove one"
            )
        return found

    def class_names(self, folder: Path) -> tuple[str, ...]:
        """Names by class number: for ADE20K from its objectInfo150.txt, else `class 001` to `class 150`."""
        file = folder / "objectInfo150.txt"
        if self.name != "ade20k" or not file.is_file():
            return self.classes
        rows = [line.split(None, 5) for line in _lines(file)[1:]]  # index, ratio, train, val, stuff, name
        if [row[0] for row in rows] != [str(i) for i in range(1, 151)] or any(len(row) < 6 for row in rows):
            raise ValueError(
                f"{file}: {len(rows)} rows; expected a heading and 150 rows 'Idx Ratio Train Val Stuff "
                "Name', Idx from 1 to 150; remove the file to go without names"
            )
        return tuple(row[5] for row in rows)


def shorten(names: Iterable[object], most: int = 3) -> str:
    """The first names, and how many more there are.

    >>> shorten(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    listed = [str(name) for name in names]
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def _hint(folder: Path, groups: list[tuple[str, ...]]) -> str:
    for pattern in ("*/", "*/*/"):
        for below in sorted(folder.glob(pattern)):
            if all(any((below / p).exists() for p in group) for group in groups):
                return f" {below} is: pass that folder."
    return ""


def _lines(file: Path) -> list[str]:
    return [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _first(candidates: Iterable[Path]) -> Path:
    """The candidate that exists, else the first, so that an error can name where it should be."""
    listed = list(candidates)
    return next((path for path in listed if path.is_file()), listed[0])


def _keyed(folder: Path, pattern: str, ending: str) -> dict[str, Path]:
    return {f.relative_to(folder).as_posix()[: -len(ending)]: f for f in _files(folder, pattern)}


def _files(folder: Path, pattern: str) -> list[Path]:
    """Hidden files are passed over: macOS leaves `._NAME` beside every NAME."""
    return sorted(f for f in folder.glob(pattern) if not f.name.startswith("."))


def _voc(folder: Path, places: list[Path], split: str) -> list[Entry]:
    pictures, masks, listed = places
    return [Entry(name, pictures / f"{name}.jpg", masks / f"{name}.png") for name in _lines(listed)]


def _ade20k(folder: Path, places: list[Path], split: str) -> list[Entry]:
    pictures, masks = places
    # of both folders, so that half a download is noticed whichever half is missing
    names = {*_keyed(pictures, "*.jpg", ".jpg"), *_keyed(masks, "*.png", ".png")}
    return [Entry(name, pictures / f"{name}.jpg", masks / f"{name}.png") for name in sorted(names)]


def _cityscapes(folder: Path, places: list[Path], split: str) -> list[Entry]:
    pictures, masks = places
    endings = ("_gtFine_labelIds.png", "_gtFine_labelTrainIds.png")
    names = {*_keyed(pictures, "*/*_leftImg8bit.png", "_leftImg8bit.png")}
    for ending in endings:
        names |= {*_keyed(masks, f"*/*{ending}", ending)}
    return [
        Entry(name, pictures / f"{name}_leftImg8bit.png", _first(masks / f"{name}{e}" for e in endings))
        for name in sorted(names)
    ]


def _nyuv2(folder: Path, places: list[Path], split: str) -> list[Entry]:
    pictures, depths, listed = places
    return [
        Entry(name, _first(pictures / f"{name}{e}" for e in (".png", ".jpg")), depths / f"{name}.png")
        for name in _lines(listed)
    ]


def _sunrgbd(folder: Path, places: list[Path], split: str) -> list[Entry]:
    scenes = _all_scenes(folder) if split == "all" else _listed_scenes(folder, split)
    return [Entry(name, _only(folder / name / "image", "*.jpg"), _only(folder / name / "depth", "*.png"))
            for name in scenes]  # fmt: skip


def _all_scenes(folder: Path) -> list[str]:
    scenes = []
    for place, below, _ in os.walk(folder):
        if "image" in below and "depth" in below:
            scenes.append(Path(place).relative_to(folder).as_posix())
            below.clear()
    return sorted(scenes)


def _listed_scenes(folder: Path, split: str) -> list[str]:
    toolbox = Path("SUNRGBDtoolbox/traintestSUNRGBD/allsplit.mat")
    listed = folder / f"{split}.txt"
    if listed.is_file():
        names = _lines(listed)
    else:
        matlab = _first((folder / toolbox, folder.parent / toolbox))
        if not matlab.is_file():
            raise ValueError(
                f"{folder} has no list of the split {split!r}: looked for {listed.name}, {toolbox} and "
                f"../{toolbox}; the split 'all' needs no list"
            )
        from scipy.io import loadmat

        names = [str(cell.item()).strip() for cell in loadmat(matlab)[f"all{split}"].reshape(-1)]
    # the publishers' list holds absolute paths of their machine, /…/SUNRGBD/kv1/…
    return [name.rpartition("SUNRGBD/")[2].strip("/") for name in names]


def _only(folder: Path, pattern: str) -> Path:
    found = _files(folder, pattern)
    if len(found) > 1:
        raise ValueError(f"{folder} holds {len(found)} files {pattern}, expected one: {shorten(found)}")
    return found[0] if found else folder / pattern


def _kitti(folder: Path, places: list[Path], split: str) -> list[Entry]:
    truths = (
        "",
        "gt_depth",
        "data_depth_annotated",
        "data_depth_annotated/train",
        "data_depth_annotated/val",
    )
    entries = []
    for number, line in enumerate(_lines(places[0]), start=1):
        parts = line.split()
        if len(parts) < 2:
            raise ValueError(
                f"{places[0]} line {number}: {line!r}; expected 'PICTURE DEPTH', DEPTH may be None"
            )
        picture, depth = (part.lstrip("/") for part in parts[:2])
        # lists name DRIVE/…, the raw data lies in DATE/DRIVE/…, and DATE is how DRIVE begins
        dated = [picture, f"{picture[:10]}/{picture}"]
        found = _first(folder / base / name for base in ("", "raw", "input") for name in dated)
        truth = None if depth == "None" else _first(folder / base / depth for base in truths)
        entries.append(Entry(picture, found, truth))
    return entries


def _imagenet(folder: Path, places: list[Path], split: str) -> list[Entry]:
    pictures, boxes = places
    found = sorted(_files(pictures, "*.JPEG") + _files(pictures, "n*/*.JPEG"), key=lambda f: f.stem)
    return [Entry(f.stem, f, boxes / f"{f.stem}.xml") for f in found]


_ALL = (
    Layout(
        name="voc", kind="segmentation", splits=("train", "val", "trainval"), find=_voc,
        pictures="JPEGImages/*.jpg", annotations="SegmentationClass/*.png (palette indices, 255 = void)",
        lists="ImageSets/Segmentation/SPLIT.txt (one name a line)",
        needed=(("JPEGImages",), ("SegmentationClass",), ("ImageSets/Segmentation/{split}.txt",)),
        classes=VOC_CLASSES, labels={".png": {**{i: i for i in range(21)}, 255: IGNORE}},
    ),
    Layout(
        name="ade20k", kind="segmentation", splits=("training", "validation"), find=_ade20k,
        pictures="images/SPLIT/*.jpg", annotations="annotations/SPLIT/*.png (0 = other, 1 to 150 = classes)",
        lists="", needed=(("images/{split}",), ("annotations/{split}",)),
        classes=ADE_CLASSES, labels={".png": {0: IGNORE, **{i + 1: i for i in range(150)}}},
    ),
    Layout(
        name="cityscapes", kind="segmentation", splits=("train", "val"), find=_cityscapes,
        pictures="leftImg8bit/SPLIT/CITY/*_leftImg8bit.png",
        annotations="gtFine/SPLIT/CITY/*_gtFine_labelIds.png (or *_labelTrainIds.png)", lists="",
        needed=(("leftImg8bit/{split}",), ("gtFine/{split}",)), classes=CITYSCAPES_CLASSES,
        labels={
            "labelIds.png": {
                **dict.fromkeys(range(34), IGNORE), **{v: i for i, v in enumerate(_CITYSCAPES_IDS)}
            },
            "labelTrainIds.png": {**{i: i for i in range(19)}, 255: IGNORE},
        },
    ),
    Layout(
        name="nyuv2", kind="depth", splits=("train", "test"), find=_nyuv2, pictures="rgb/NAME.png or .jpg",
        annotations="depth/NAME.png (16-bit millimetres, 0 = none)", lists="SPLIT.txt (one NAME a line)",
        needed=(("rgb",), ("depth",), ("{split}.txt",)), depth_scale=1000,
    ),
    Layout(
        name="sunrgbd", kind="depth", splits=("train", "test", "all"), find=_sunrgbd,
        pictures="SCENE/image/*.jpg (one a scene; SCENE such as kv1/NYUdata/NYU0001)",
        annotations="SCENE/depth/*.png (16-bit, rotated by three bits, millimetres)",
        lists="SPLIT.txt (one SCENE a line) or SUNRGBDtoolbox/traintestSUNRGBD/allsplit.mat",
        depth_scale=1000, rotated=True,
    ),
    Layout(
        name="kitti", kind="depth", splits=("train", "test"), find=_kitti,
        pictures="as the list says, below the folder, raw/ or input/",
        annotations="as the list says, below the folder, gt_depth/ or data_depth_annotated/[train/|val/] "
        "(16-bit, 256 a metre, 0 = none)",
        lists="SPLIT.txt, kitti_eigen_SPLIT.txt or eigen_SPLIT_files_with_gt.txt (lines 'PICTURE DEPTH …')",
        needed=(("{split}.txt", "kitti_eigen_{split}.txt", "eigen_{split}_files_with_gt.txt"),),
        depth_scale=256,
    ),
    Layout(
        name="imagenet_boxes", kind="boxes", splits=("val",), find=_imagenet,
        pictures="val/*.JPEG, val/WNID/*.JPEG or Data/CLS-LOC/val/*.JPEG",
        annotations="Annotations/*.xml, Annotations/val/*.xml or Annotations/CLS-LOC/val/*.xml", lists="",
        needed=(("val", "Data/CLS-LOC/val"), ("Annotations/CLS-LOC/val", "Annotations/val", "Annotations")),
    ),
)  # fmt: skip
LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in _ALL}
"""Every layout by name."""
