"""Licence and source of every embedded file; `vitscope data manifest` writes them with fresh checksums."""

from __future__ import annotations

import json
from pathlib import Path

from vitscope.data import embedded
from vitscope.data.build import EMOJI_VERSION, FASHION_PACKAGE

FASHION_VERSION = "0.0~git20200523.55506a9-1"

_KNOWN: dict[str, dict[str, str]] = {
    "emoji/noto.parquet": {
        "licence": "Apache-2.0",
        "source": f"npm emoji-datasource-google {EMOJI_VERSION} (Noto Emoji, Google)",
        "restore": "vitscope data build emoji",
    },
    "emoji/twemoji.parquet": {
        "licence": "CC-BY-4.0",
        "source": f"npm emoji-datasource-twitter {EMOJI_VERSION} (Twemoji, Twitter, Inc. and contributors)",
        "restore": "vitscope data build emoji",
    },
    **{
        f"fashion_mnist/{split}.parquet": {
            "licence": "MIT",
            "source": f"Debian {FASHION_PACKAGE} {FASHION_VERSION} (Fashion-MNIST, Zalando SE)",
            "restore": "vitscope data build fashion_mnist",
        }
        for split in ("train", "test")
    },
}


_PATTERNS = (
    "*/*.parquet",
    "zoo/*.safetensors",
    "zoo/*.json",
    "zoo/*/*.safetensors",
    "zoo_text/*.safetensors",
)


def write_manifest(base: Path) -> list[str]:
    """List every data file below `base` with provenance, size and SHA-256 in `manifest.json`.

    Returns the paths. Errors: `ValueError` for a file whose licence and source are not known; only free files
    with a known source enter the repository.
    """
    paths = sorted(p for pattern in _PATTERNS for p in base.glob(pattern))
    files = {}
    for path in paths:
        name = path.relative_to(base).as_posix()
        files[name] = {**_provenance(name), "sha256": embedded.sha256(path), "bytes": path.stat().st_size}
    target = base / "manifest.json"
    temporary = target.with_suffix(".partial")
    temporary.write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")
    temporary.replace(target)
    return list(files)


def _provenance(name: str) -> dict[str, str]:
    if name in _KNOWN:
        return _KNOWN[name]
    parts = Path(name).parts
    if parts[0] in ("zoo", "zoo_text"):
        model = Path(parts[1]).stem if len(parts) == 2 else parts[1]
        return {
            "licence": "MIT",
            "source": f"trained by this project on its own renders; card zoo/{model}.json",
            "restore": f"vitscope train {model}, or git checkout data/{parts[0]}",
        }
    raise ValueError(f"data/{name} has no known licence and source; add them to vitscope/data/provenance.py")
