"""Decoding rules: every picture becomes RGB by a stated rule or is refused by name."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import encoded, photo
from vitscope.data.images import (
    DecodeError,
    decode,
)


def decoded(picture: Image.Image, kind: str, **options) -> torch.Tensor:
    return decode(encoded(picture, kind, **options), "a picture")


# --- modes ------------------------------------------------------------------------------------------------


def test_rgb_png_is_unchanged():
    picture = photo(9, 5)
    result = decoded(picture, "PNG")
    assert result.dtype == torch.uint8
    assert tuple(result.shape) == (3, 5, 9)
    assert (result.permute(1, 2, 0).numpy() == np.asarray(picture)).all()


def test_grey_becomes_three_equal_channels():
    result = decoded(photo(8, 8).convert("L"), "PNG")
    assert torch.equal(result[0], result[1])
    assert torch.equal(result[1], result[2])
    assert (result[0].numpy() == np.asarray(photo(8, 8).convert("L"))).all()


def test_bilevel_is_black_and_white():
    bits = np.indices((8, 8)).sum(0) % 2 == 0
    result = decoded(Image.fromarray(bits), "PNG")
    assert (result.numpy() == np.where(bits, 255, 0)).all()


def test_palette_shows_its_colours():
    picture = photo(16, 16).convert("P", palette=Image.Palette.ADAPTIVE, colors=16)
    for kind in ("PNG", "GIF"):
        assert (decoded(picture, kind).permute(1, 2, 0).numpy() == np.asarray(picture.convert("RGB"))).all()


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_transparency_is_composited_over_white(mode):
    alpha = np.tile(np.linspace(0, 255, 8).round().astype(np.uint8), (8, 1))
    colour = photo(8, 8, seed=1)
    picture = colour.convert("L" if mode == "LA" else "RGB")
    picture.putalpha(Image.fromarray(alpha))
    share = alpha[..., None] / 255
    base = np.asarray(colour.convert("L").convert("RGB") if mode == "LA" else colour).astype(float)
    expected = base * share + 255 * (1 - share)
    result = decoded(picture, "PNG").permute(1, 2, 0).numpy()
    assert np.abs(result - expected).max() <= 1
    assert (result[:, 0] == 255).all(), "fully transparent is white, whatever colour lies below"


def test_transparent_palette_entry_is_white():
    picture = Image.fromarray(np.array([[0, 1], [1, 0]], dtype=np.uint8), "P")
    picture.putpalette([200, 0, 0, 0, 0, 200])
    result = decoded(picture, "PNG", transparency=0)
    assert result[:, 0, 0].tolist() == [255] * 3
    assert result[:, 0, 1].tolist() == [0, 0, 200]


def test_cmyk_jpeg_keeps_its_colours():
    flat = Image.new("RGB", (16, 16), (200, 60, 30))
    result = decoded(flat.convert("CMYK"), "JPEG", quality=95).float().mean((1, 2))
    assert (result - torch.tensor([200.0, 60, 30])).abs().max() < 6


def test_sixteen_bit_ramp_stays_monotone():
    ramp = np.linspace(0, 65535, 256).round().astype(np.uint16).reshape(16, 16)
    for kind in ("PNG", "TIFF"):
        result = decoded(Image.fromarray(ramp), kind)
        levels = result[0].numpy().ravel()
        assert (np.diff(levels.astype(int)) >= 0).all()
        assert len(np.unique(levels)) >= 60
        assert (levels == np.rint(ramp.ravel() / 257)).all()
        assert torch.equal(result[0], result[2])


def test_floating_point_grey_in_the_unit_interval():
    ramp = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    assert (decoded(Image.fromarray(ramp), "TIFF")[1].numpy() == np.rint(ramp * 255)).all()


@pytest.mark.parametrize("values", [[0.0, 200.0], [-0.1, 0.5], [0.0, float("nan")], [0.0, float("inf")]])
def test_floating_point_grey_elsewhere_is_refused(values):
    with pytest.raises(DecodeError, match=r"a picture: mode F with values .* expected 0 to 1"):
        decoded(Image.fromarray(np.array([values], dtype=np.float32)), "TIFF")


@pytest.mark.parametrize("size", [(1, 1), (1, 1000), (3000, 2)])
def test_extreme_sizes(size):
    result = decoded(photo(*size), "PNG")
    assert tuple(result.shape) == (3, size[1], size[0])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    """The picture as the photographer saw it: a red top-left corner, whatever way the sensor lay."""
    upright = np.full((16, 24, 3), 40, dtype=np.uint8)
    upright[:8, :8] = (230, 20, 20)
    # rows and columns as stored, by the EXIF table: 6 is turned 90° clockwise to be seen, 8 is turned back
    store = {
        1: lambda x: x,
        2: lambda x: x[:, ::-1],
        3: lambda x: x[::-1, ::-1],
        4: lambda x: x[::-1],
        5: lambda x: x.transpose(1, 0, 2),
        6: lambda x: np.rot90(x, 1),
        7: lambda x: x[::-1, ::-1].transpose(1, 0, 2),
        8: lambda x: np.rot90(x, -1),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(store[orientation](upright)))
    result = decoded(stored, "PNG", exif=exif)
    assert (result.permute(1, 2, 0).numpy() == upright).all()


def test_first_frame_of_an_animation():
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    for kind in ("GIF", "WEBP", "TIFF", "PNG"):
        options = {"lossless": True} if kind == "WEBP" else {}
        result = decoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert result[:, 4, 4].tolist() == [250, 0, 0], kind


def test_paths_and_pil_pictures_too(tmp_path):
    path = tmp_path / "x.png"
    photo(4, 4).save(path)
    assert torch.equal(decode(path, "x"), decode(photo(4, 4), "x"))


def test_decode_reads_a_file_like_the_bytes():
    data = encoded(photo(5, 5), "JPEG")
    assert torch.equal(decode(data, "x"), decode(Image.open(io.BytesIO(data)), "x"))


# --- broken files -----------------------------------------------------------------------------------------

BROKEN = {
    "JPEG cut at 5 %": lambda: cut(encoded(photo(200, 200), "JPEG"), 0.05),
    "JPEG cut at 50 %": lambda: cut(encoded(photo(200, 200), "JPEG"), 0.5),
    "JPEG cut at 95 %": lambda: cut(encoded(photo(200, 200), "JPEG"), 0.95),
    "PNG cut at 50 %": lambda: cut(encoded(photo(200, 200), "PNG"), 0.5),
    "GIF cut at 50 %": lambda: cut(encoded(photo(200, 200).convert("P"), "GIF"), 0.5),
    "WebP cut at 50 %": lambda: cut(encoded(photo(200, 200), "WEBP"), 0.5),
    "BMP cut at 50 %": lambda: cut(encoded(photo(200, 200), "BMP"), 0.5),
    "TIFF cut at 50 %": lambda: cut(encoded(photo(200, 200), "TIFF"), 0.5),
    "compressed TIFF cut at 50 %": lambda: cut(
        encoded(photo(200, 200), "TIFF", compression="tiff_deflate"), 0.5
    ),
    "empty": lambda: b"",
    "text": lambda: b"this is a note, not a picture\n",
    "web page": lambda: b"<!doctype html><html><body>404</body></html>",
    "AppleDouble stub": lambda: b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        " + bytes(200),
    "PNG of 30,000 x 30,000 in 100 bytes": lambda: bomb(),
}


def cut(data: bytes, share: float) -> bytes:
    return data[: int(len(data) * share)]


def bomb() -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("what", BROKEN)
def test_broken_file_is_refused_by_name(what):
    with pytest.raises(DecodeError, match=r"folder/0017\.jpg"):
        decode(BROKEN[what](), "folder/0017.jpg")


def test_good_files_still_decode_after_broken_ones():
    """No global switch of Pillow was turned on the way."""
    from PIL import ImageFile

    for make in BROKEN.values():
        with pytest.raises(DecodeError):
            decode(make(), "x")
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False
    decoded(photo(8, 8), "JPEG")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"])
def test_flipped_bytes_give_a_picture_or_a_decode_error(kind):
    """Never another exception: one damaged file among a million must not end a run without its name."""
    good = encoded(photo(24, 24), kind)
    rng, refusals = np.random.default_rng(0), []
    for _ in range(150):
        data = bytearray(good)
        for place in rng.integers(0, len(data), rng.integers(1, 12)):
            data[place] = rng.integers(0, 256)
        try:
            decode(bytes(data), "x")
        except DecodeError as error:
            refusals.append(str(error))
    assert refusals
    assert all(message.startswith("x: ") for message in refusals)
