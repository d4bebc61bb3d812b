"""`vitscope cache`: what it prints, what it removes, and its exit status."""

from __future__ import annotations

import os
import time

import pytest
import torch
from typer.testing import CliRunner

from vitscope import cli
from vitscope.store import Store


def invoke(*arguments):
    return CliRunner().invoke(cli.app, ["cache", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path):
    """Three entries of 1 MB, last used today, 10 and 40 days ago."""
    store = Store(tmp_path / "cache")
    for n, name in enumerate(("twin_s", "twin_b", "twin_l")):
        about = {"backbone": name, "pictures": f"{n + 5} of digits/test"}
        store.fetch("capture", {"n": n}, lambda: {"x": torch.zeros(250_000)}, about=about)
    for entry in store.entries():
        age = (0.01, 10, 40)[entry.header.parts["n"]] * 86_400
        os.utime(entry.path, (time.time() - age,) * 2)
    return store.folder


def left(folder):
    return [entry.header.about["backbone"] for entry in Store(folder).entries()]


def test_list_says_what_is_kept(folder):
    (folder / "notes.txt").write_text("mine")
    output = invoke("list", "--folder", folder).output
    lines = output.splitlines()
    assert lines[0].endswith("cache · 3 entries, 3.0 MB of at most 8.6 GB")
    assert lines[1].split() == ["kind", "backbone", "pictures", "size", "made", "last", "used"]
    assert [line.split()[1] for line in lines[2:5]] == ["twin_s", "twin_b", "twin_l"]
    assert "7 of digits/test" in lines[4]
    assert lines[4].endswith("40 days ago")
    assert "1.0 MB" in lines[4]
    assert lines[5] == "not of this cache, left alone: notes.txt"


def test_an_empty_or_missing_cache_is_no_error(tmp_path):
    for what in ("list", "verify", "prune"):
        result = invoke(what, "--folder", tmp_path / "none")
        assert result.exit_code == 0, result.output
        assert "0 entries" in result.output
    assert not (tmp_path / "none").exists()


def test_the_default_is_the_cache_of_the_project(tmp_path, monkeypatch, folder):
    for name in ("_toc.yml", "_config.yml"):
        (tmp_path / name).touch()
    (tmp_path / ".vitscope").mkdir()
    folder.rename(tmp_path / ".vitscope" / "cache")
    monkeypatch.chdir(tmp_path)
    assert invoke("list").output.startswith(".vitscope/cache · 3 entries")


def test_verify_names_damaged_entries_and_repair_removes_them(folder):
    assert invoke("verify", "--folder", folder).output == "3 entries read, 0 damaged\n"
    path = Store(folder).entries()[1].path
    path.write_bytes(path.read_bytes()[:-1])
    result = invoke("verify", "--folder", folder)
    assert result.exit_code == 1
    for text in (f"FAIL {path} is no whole", "3 entries read, 1 damaged", "never used", "verify --repair"):
        assert text in result.output
    assert path.exists()
    result = invoke("verify", "--repair", "--folder", folder)
    assert (result.exit_code, path.exists()) == (0, False)
    assert "1 entry removed" in result.output
    assert left(folder) == ["twin_s", "twin_l"]
    assert invoke("verify", "--folder", folder).exit_code == 0


def test_a_file_that_cannot_be_read_is_listed(folder):
    Store(folder).entries()[0].path.write_bytes(b"x")
    assert "cannot be read" in invoke("list", "--folder", folder).output


@pytest.mark.parametrize(
    ("arguments", "kept", "said"),
    [
        ([], ["twin_s", "twin_b", "twin_l"], "0 entries removed, 0 B freed; 3 entries, 3.0 MB left"),
        (["--older-than", "30d"], ["twin_s", "twin_b"], "1 entry removed, 1.0 MB freed"),
        (["--older-than", "100h"], ["twin_s"], "2 entries removed, 2.0 MB freed; 1 entry, 1.0 MB left"),
        (["--limit", "2500kB"], ["twin_s", "twin_b"], "1 entry removed"),
        (["--limit", "1.5MB", "--older-than", "30d"], ["twin_s"], "2 entries removed"),
        (["--all"], [], "3 entries removed, 3.0 MB freed; 0 entries, 0 B left"),
    ],
)
def test_prune_removes_and_says_what_it_freed(folder, arguments, kept, said):
    result = invoke("prune", "--folder", folder, *arguments)
    assert result.exit_code == 0, result.output
    assert said in result.output
    assert left(folder) == kept


def test_prune_says_what_it_could_not_remove(folder, monkeypatch):
    def refuse(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(type(folder), "unlink", refuse)
    result = invoke("prune", "--folder", folder, "--all")
    assert result.exit_code == 1
    assert "could not be removed" in result.output
    assert result.output.count("Permission denied") == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["prune", "--limit", "2XB"], "--limit '2XB': expected a number with a unit, such as 500MB"),
        (["prune", "--older-than", "month"], "--older-than 'month': expected a number with s, m, h, d or w"),
    ],
)
def test_mistakes_are_named_and_nothing_is_removed(folder, arguments, said):
    result = invoke(*arguments, "--folder", folder)
    assert result.exit_code == 2
    assert said in result.output
    assert len(left(folder)) == 3


def test_a_bad_limit_in_the_environment_is_named(folder, monkeypatch):
    monkeypatch.setenv("VITSCOPE_CACHE_LIMIT", "lots")
    result = invoke("list", "--folder", folder)
    assert result.exit_code == 2
    assert "VITSCOPE_CACHE_LIMIT 'lots'" in result.output
