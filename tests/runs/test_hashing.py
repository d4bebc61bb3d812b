"""The key of a run: it changes with everything that can change a number, and with nothing else."""

from __future__ import annotations

import pytest

from vitscope.runs import hashing
from vitscope.runs.hashing import inputs_of, library_digest
from vitscope.runs.layout import Project
from vitscope.runs.schema import resolve


@pytest.fixture
def key(tmp_path):
    (tmp_path / "requirements.lock").write_text("torch==1\n")
    (tmp_path / "notebooks").mkdir()
    project = Project(tmp_path)

    def compute(digest: str = "n", **overrides):
        parameters = resolve("01_phase_curves", overrides={"backbone": "twin_s", **overrides})
        return inputs_of(digest, parameters, project, tmp_path / "notebooks")

    return compute


def test_same_inputs_same_key(key):
    assert key().key == key().key
    assert key().changed_since(key()) == []


def test_source_and_parameters_count(key):
    assert key("m").changed_since(key("n")) == ["notebook"]
    assert key(seed=1).changed_since(key()) == ["parameters"]


def test_lock_file_and_torch_count(key, tmp_path, monkeypatch):
    before = key()
    (tmp_path / "requirements.lock").write_text("torch==2\n")
    assert key().changed_since(before) == ["environment"]
    (tmp_path / "requirements.lock").write_text("torch==1\n")
    monkeypatch.setattr(hashing, "installed", lambda name: "0.0")
    assert key().changed_since(before) == ["environment"]


def test_embedded_data_counts(key, monkeypatch):
    from vitscope.data import embedded

    before = key()
    monkeypatch.setattr(embedded, "manifest", lambda: {"zoo/x.safetensors": {"sha256": "0" * 64}})
    assert key().changed_since(before) == ["data"]


def test_content_of_named_files_counts(key, tmp_path):
    weights = tmp_path / "notebooks" / "mine.safetensors"
    weights.write_bytes(b"one")
    before = key(weights="mine.safetensors")
    weights.write_bytes(b"two")
    assert key(weights="mine.safetensors").changed_since(before) == ["files"]


def test_listing_of_named_folders_counts(key, tmp_path):
    folder = tmp_path / "notebooks" / "pictures"
    folder.mkdir()
    before = key(dataset="pictures")
    (folder / "a.jpg").write_bytes(b"x")
    assert key(dataset="pictures").changed_since(before) == ["files"]


def test_library_counts_where_a_kernel_runs_it(tmp_path):
    (tmp_path / "runs").mkdir()
    for name in ("capture.py", "cli.py", "runs/gate.py"):
        (tmp_path / name).write_text("x = 1\n")
    before = library_digest(tmp_path)
    (tmp_path / "cli.py").write_text("x = 2\n")
    (tmp_path / "runs" / "gate.py").write_text("x = 2\n")
    assert library_digest(tmp_path) == before
    (tmp_path / "capture.py").write_text("x = 2\n")
    assert library_digest(tmp_path) != before


def test_excluded_sources_exist():
    package = hashing.Path(hashing.__file__).resolve().parents[1]
    assert [name for name in hashing.OUTSIDE_KERNEL if not (package / name).is_file()] == []
