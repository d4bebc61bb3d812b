"""Embedded files are proved before they are opened; the message says how to get them back."""

import hashlib
import json
import os

import pytest

from vitscope.data import embedded

CONTENT = b"seventeen columns"


@pytest.fixture
def base(tmp_path):
    """A data folder with one listed file."""
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/a.parquet").write_bytes(CONTENT)
    entry = {
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "bytes": len(CONTENT),
        "restore": "vitscope data build toy",
    }
    (tmp_path / "manifest.json").write_text(json.dumps({"files": {"toy/a.parquet": entry}}))
    return tmp_path


def test_intact_file_passes(base):
    assert embedded.verified("toy/a.parquet", base) == base / "toy/a.parquet"


def test_missing_file_names_the_restoring_command(base):
    (base / "toy/a.parquet").unlink()
    with pytest.raises(
        embedded.DataIntegrityError, match=r"data/toy/a.parquet is missing; .*vitscope data build toy"
    ):
        embedded.verified("toy/a.parquet", base)


@pytest.mark.parametrize("content", [CONTENT + b"!", CONTENT[:-1], b"", CONTENT.upper()])
def test_altered_file_is_refused_with_both_digests(base, content):
    embedded.verified("toy/a.parquet", base)  # a digest remembered from before must not hide the change
    path = base / "toy/a.parquet"
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))  # an older time must not hide it either
    with pytest.raises(embedded.DataIntegrityError) as caught:
        embedded.verified("toy/a.parquet", base)
    message = str(caught.value)
    for part in (
        hashlib.sha256(content).hexdigest()[:12],
        hashlib.sha256(CONTENT).hexdigest()[:12],
        f"{len(content)} bytes",
        "vitscope data build toy",
    ):
        assert part in message


def test_unlisted_file_is_refused(base):
    (base / "toy/b.parquet").write_bytes(CONTENT)
    with pytest.raises(
        embedded.DataIntegrityError, match=r"toy/b.parquet is not listed in data/manifest.json"
    ):
        embedded.verified("toy/b.parquet", base)


def test_every_published_file_is_what_the_manifest_says():
    listed = embedded.manifest()
    assert {"emoji/noto.parquet", "emoji/twemoji.parquet", "fashion_mnist/test.parquet"} <= set(listed)
    for relative, entry in listed.items():
        path = embedded.verified(relative)
        assert path.stat().st_size == entry["bytes"] < 16 * 2**20
        assert entry["licence"]
        assert entry["source"]
        assert entry["restore"].startswith("vitscope ")


def test_no_file_is_embedded_without_being_listed():
    root = embedded.root()
    kept = {
        str(p.relative_to(root)) for suffix in ("parquet", "safetensors") for p in root.rglob(f"*.{suffix}")
    }
    assert kept <= set(embedded.manifest())
