"""Reading one picture, mask, depth map or box file of a dense dataset.

What would read as a number that it is not is refused by name: another bit depth, another size than the
picture's, a value outside the list of classes.
"""

import xml.etree.ElementTree as ET
from pathlib import Path
from xml.parsers import expat

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from vitscope.data.dense_layouts import Layout, shorten
from vitscope.data.images import DecodeError, decode

_ORIENTATION = 0x0112
_GREY, _PALETTE = 0, 3
_COLOUR_TYPES = {0: "grey", 2: "RGB", 3: "palette", 4: "grey with alpha", 6: "RGB with alpha"}
_UNLISTED = -1


def read_picture(path: Path) -> Tensor:
    """uint8 [3, h, w]. Raises `DecodeError` for damaged files and for pictures with an EXIF rotation."""
    try:
        with Image.open(path) as opened:
            opened.load()
            turned = opened.getexif().get(_ORIENTATION, 1)
            if turned not in range(2, 9):
                return decode(opened, str(path))
    except DecodeError:
        raise
    except Exception as error:  # as in `decode`: Pillow raises many kinds on damaged files
        raise DecodeError(f"{path}: not a readable picture ({error})") from error
    raise DecodeError(
        f"{path}: carries EXIF orientation {turned}; its annotation does not say whether it was drawn "
        "before or after turning; expected 1 or none"
    )


def read_mask(picture: Path, mask: Path, layout: Layout) -> Int[Tensor, "h w"]:
    """Class numbers, int64, of an 8-bit grey or a palette PNG, by the layout's list of values."""
    depth, colour = _png_header(mask)
    if not (colour == _PALETTE or (colour == _GREY and depth == 8)):
        raise DecodeError(
            f"{mask}: {depth}-bit {_COLOUR_TYPES.get(colour, colour)} PNG; expected a palette or 8-bit grey"
        )
    values = _array(mask)
    _same_size(picture, mask, values.shape)
    listed = next(values for ending, values in layout.labels.items() if mask.name.endswith(ending))
    table = np.full(256, _UNLISTED, dtype=np.int64)
    table[list(listed)] = list(listed.values())
    classes = table[values]
    if (classes == _UNLISTED).any():
        strange = np.unique(values[classes == _UNLISTED])
        raise DecodeError(
            f"{mask}: holds {shorten(strange)}, not among the values of {layout.name}; looked for "
            f"{layout.annotations}"
        )
    return torch.from_numpy(classes)


def read_depth(picture: Path, depth: Path, layout: Layout) -> Float[Tensor, "h w"]:
    """Metres, float32, of a 16-bit grey PNG; 0 where nothing was measured."""
    bits, colour = _png_header(depth)
    if (bits, colour) != (16, _GREY):
        raise DecodeError(
            f"{depth}: {bits}-bit {_COLOUR_TYPES.get(colour, colour)} PNG; expected 16-bit grey depth "
            "(a depth map made to be looked at holds no metres)"
        )
    values = _array(depth).astype(np.uint16)
    _same_size(picture, depth, values.shape)
    return torch.from_numpy(metres(values, layout))


def metres(values: np.ndarray, layout: Layout) -> np.ndarray:
    """uint16 as stored to float32 metres.

    >>> from vitscope.data.dense_layouts import LAYOUTS
    >>> stored = np.array([0, 1500 << 3], dtype=np.uint16)
    >>> metres(stored, LAYOUTS["sunrgbd"]).tolist(), metres(stored, LAYOUTS["nyuv2"]).tolist()
    ([0.0, 1.5], [0.0, 12.0])
    """
    if layout.depth_scale is None:
        raise ValueError(f"layout {layout.name} is of kind {layout.kind!r} and has no depth scale")
    turned = (values >> np.uint16(3)) | (values << np.uint16(13)) if layout.rotated else values
    return turned.astype(np.float32) / np.float32(layout.depth_scale)


def read_boxes(picture: Path, xml: Path) -> tuple[Float[Tensor, "M 4"], tuple[int, int]]:
    """All boxes of an XML file, float64 pixels x0, y0, x1, y1 as they stand, and (width, height)."""
    root = _tree(xml)
    width, height = (int(_number(root, f"size/{side}", xml)) for side in ("width", "height"))
    _same_size(picture, xml, (height, width))
    boxes = []
    for found in root.findall("object"):
        corners = ("xmin", "ymin", "xmax", "ymax")
        x0, y0, x1, y1 = (_number(found, f"bndbox/{corner}", xml) for corner in corners)
        if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
            raise DecodeError(
                f"{xml}: box {x0:g}, {y0:g}, {x1:g}, {y1:g} in a picture of {width} × {height}; expected "
                "0 ≤ xmin < xmax ≤ width and 0 ≤ ymin < ymax ≤ height"
            )
        boxes.append((x0, y0, x1, y1))
    return torch.tensor(boxes, dtype=torch.float64).view(-1, 4), (width, height)


def _tree(xml: Path) -> ET.Element:
    data = xml.read_bytes()

    def refuse(*_: object) -> None:
        raise DecodeError(f"{xml}: declares a document type; expected plain XML, as entities can be harmful")

    # entities can only be declared inside a document type, so none of them is ever expanded
    guard = expat.ParserCreate()
    guard.StartDoctypeDeclHandler = refuse
    try:
        guard.Parse(data, True)
    except expat.ExpatError as error:
        raise DecodeError(f"{xml}: not readable XML ({error})") from error
    return ET.fromstring(data)


def _number(element: ET.Element, path: str, xml: Path) -> float:
    text = element.findtext(path)
    try:
        return float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise DecodeError(f"{xml}: {path} is {text!r}; expected a number") from None


def _png_header(path: Path) -> tuple[int, int]:
    """Bit depth and colour type as the file has them: Pillow stretches grey of 1, 2 or 4 bits to 0 … 255."""
    with path.open("rb") as file:
        head = file.read(26)
    if len(head) < 26 or head[:8] != b"\x89PNG\r\n\x1a\n" or head[12:16] != b"IHDR":
        raise DecodeError(f"{path}: not a PNG file")
    return head[24], head[25]


def _array(path: Path) -> np.ndarray:
    try:
        with Image.open(path) as opened:
            return np.array(opened)
    except Exception as error:  # Pillow's plugins raise many kinds on damaged files
        raise DecodeError(f"{path}: not a readable picture ({error})") from error


def _same_size(picture: Path, annotation: Path, shape: tuple[int, ...]) -> None:
    try:
        with Image.open(picture) as opened:  # reads the header only
            width, height = opened.size
    except Exception as error:
        raise DecodeError(f"{picture}: not a readable picture ({error})") from error
    if (height, width) != shape:
        raise DecodeError(
            f"{annotation}: {shape[1]} × {shape[0]} pixels for the picture {picture.name} of "
            f"{width} × {height}; expected the same size"
        )
