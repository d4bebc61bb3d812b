"""A store hands out what was built or builds it again, whatever happened to its files."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from vitscope import entry_file, store, store_folder
from vitscope.amounts import AmountError, age_text, parse_age, parse_size
from vitscope.store import Store, StoreWarning

PARTS = {"weights": "abc", "norm": "none", "sizes": [1, 2], "nested": {"a": 1, "b": None}}


def tensors() -> dict[str, torch.Tensor]:
    return {
        "z": torch.arange(12.0).view(3, 4),
        "none": torch.full((2,), float("nan")),
        "a/half": torch.ones(5, dtype=torch.bfloat16),
        "empty": torch.empty(0, 7),
        "scalar": torch.tensor(3, dtype=torch.int64),
        "flags": torch.tensor([True, False]),
    }


class Builder:
    """Builds and counts; the tensors of `tensors`, or those given."""

    def __init__(self, made=None):
        self.made, self.count = made, 0

    def __call__(self):
        self.count += 1
        return tensors() if self.made is None else self.made


def fetch(where, build=None, parts=None, **options):
    return where.fetch("thing", PARTS if parts is None else parts, build or Builder(), **options)


def one_file(folder):
    (path,) = folder.iterdir()
    return path


def same(found, expected):
    assert list(found) == list(expected)  # order too
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name].nan_to_num(), value.nan_to_num())


def filled(folder, count, size=4000, **options):
    """A store with entries of about `size` bytes, used one after the other."""
    made = Store(folder, **options)
    for n in range(count):
        fetch(made, Builder({"x": torch.full((size // 4,), float(n))}), {"n": n})
    for n, entry in enumerate(sorted(made.entries(), key=lambda e: e.header.parts["n"])):
        os.utime(entry.path, (1000 + n, 1000 + n))
    return made


def numbers(where):
    return sorted(entry.header.parts["n"] for entry in where.entries())


def test_what_was_built_is_found_bit_for_bit_and_in_its_order(tmp_path):
    build = Builder()
    built, found = fetch(Store(tmp_path), build)
    again, found_again = fetch(Store(tmp_path), build)
    assert (found, found_again, build.count) == (False, True, 1)
    same(built, tensors())
    same(again, tensors())


def test_found_tensors_do_not_hang_on_the_file(tmp_path):
    """A mapped tensor would change with the file, or kill the process when the file shrinks."""
    fetch(Store(tmp_path))
    found, _ = fetch(Store(tmp_path))
    os.truncate(one_file(tmp_path), 0)
    same(found, tensors())
    found["z"].zero_()  # and may be written to


@pytest.mark.parametrize(
    "other",
    [
        ("other", PARTS),
        ("thing", PARTS | {"weights": "abd"}),
        ("thing", PARTS | {"sizes": [2, 1]}),
        ("thing", PARTS | {"nested": {"a": 1, "b": 0}}),
        ("thing", PARTS | {"nested": {"a": "1", "b": None}}),
        ("thing", PARTS | {"more": None}),
        ("thing", {k: v for k, v in PARTS.items() if k != "norm"}),
    ],
)
def test_kind_and_any_part_make_another_entry(tmp_path, other):
    build = Builder()
    where = Store(tmp_path)
    fetch(where, build)
    where.fetch(*other, build)
    assert build.count == 2


def test_the_format_is_part_of_the_key(tmp_path, monkeypatch):
    fetch(Store(tmp_path))
    monkeypatch.setattr(entry_file, "FORMAT", "vitscope-store-2")
    assert not fetch(Store(tmp_path))[1]


def test_the_order_of_keys_is_no_part(tmp_path):
    fetch(Store(tmp_path))
    turned = {k: PARTS[k] for k in reversed(PARTS)} | {"nested": {"b": None, "a": 1}}
    assert fetch(Store(tmp_path), parts=turned)[1]


def test_the_description_is_no_part(tmp_path):
    fetch(Store(tmp_path), about={"backbone": "one"})
    assert fetch(Store(tmp_path), about={"backbone": "two"})[1]


@pytest.mark.parametrize("kind", ["", "Thing", "a-b", "../x", "a/b", "1a"])
def test_a_kind_is_a_plain_word(tmp_path, kind):
    with pytest.raises(ValueError, match="lower-case letters"):
        Store(tmp_path).fetch(kind, {}, Builder())


@pytest.mark.parametrize("parts", [{"x": float("nan")}, {"x": object()}])
def test_parts_that_are_no_json_are_refused(tmp_path, parts):
    with pytest.raises((TypeError, ValueError), match="JSON"):
        fetch(Store(tmp_path), parts=parts)


def test_shared_and_strided_tensors_are_kept(tmp_path):
    base = torch.arange(20.0)
    made = {"whole": base, "view": base[3:7], "turned": base.view(4, 5).T}
    fetch(Store(tmp_path), Builder(made))
    same(fetch(Store(tmp_path))[0], made)


def spoilt(folder, content: bytes):
    one_file(folder).write_bytes(content)


def built_again(folder, build=None):
    where, build = Store(folder), build or Builder()
    found, was_found = fetch(where, build)
    assert (was_found, build.count, where.rebuilt) == (False, 1, 1)
    same(found, tensors())
    assert fetch(Store(folder), build)[1]
    assert build.count == 1
    assert len(list(folder.iterdir())) == 1


def test_a_truncated_entry_is_built_again(tmp_path):
    fetch(Store(tmp_path))
    whole = one_file(tmp_path).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for length in (0, 1, 7, 8, 9, header // 2, header - 1, header, header + 1, len(whole) - 1):
        spoilt(tmp_path, whole[:length])
        built_again(tmp_path)


def test_each_altered_byte_is_noticed(tmp_path):
    fetch(Store(tmp_path))
    path = one_file(tmp_path)
    whole = path.read_bytes()
    copy = tmp_path / "copy"
    for place in range(len(whole)):  # each bit has its turn
        copy.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(entry_file.Damaged):
            entry_file.check(copy)
    copy.unlink()
    for place in (0, 9, len(whole) // 2, len(whole) - 1):
        spoilt(tmp_path, whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        built_again(tmp_path)


def test_more_at_the_end_is_noticed(tmp_path):
    fetch(Store(tmp_path))
    spoilt(tmp_path, one_file(tmp_path).read_bytes() + b"\0")
    built_again(tmp_path)


def test_another_entry_under_its_name_is_built_again(tmp_path):
    where = Store(tmp_path / "cache")
    fetch(where, parts={"other": 1})
    other = one_file(where.folder).read_bytes()
    shutil.rmtree(where.folder)
    fetch(where)
    spoilt(where.folder, other)
    assert [p.what for p in where.verify()] == ["is the entry of something else"]
    built_again(where.folder)


@pytest.mark.parametrize("content", [b"<html>", b"\x00" * 64, b"PK\x03\x04" * 20])
def test_no_entry_at_all_under_its_name_is_built_again(tmp_path, content):
    fetch(Store(tmp_path))
    spoilt(tmp_path, content)
    built_again(tmp_path)


def test_a_foreign_safetensors_file_under_its_name_is_built_again(tmp_path):
    fetch(Store(tmp_path))
    path = one_file(tmp_path)
    save_file({"z": torch.zeros(3, 4)}, path, metadata={"format": "pt"})
    assert [p.what for p in Store(tmp_path).verify()] == ["has the format 'pt', expected 'vitscope-store-1'"]
    built_again(tmp_path)


def test_tensors_exchanged_under_old_metadata_are_built_again(tmp_path):
    fetch(Store(tmp_path))
    path = one_file(tmp_path)
    with entry_file.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    kept = load_file(path)
    save_file(kept | {"z": kept["z"].T.contiguous()}, path, metadata=metadata)  # the same bytes and size
    assert "differs from its digest" in Store(tmp_path).verify()[0].what
    built_again(tmp_path)


def test_what_is_not_accepted_is_built_again(tmp_path):
    """An entry can be whole and of the right key, and still have shapes that cannot be."""
    fetch(Store(tmp_path), Builder({"z": torch.zeros(2)}))
    where, build = Store(tmp_path), Builder()
    found, was_found = fetch(where, build, accept=lambda kept: kept["z"].shape == (3, 4))
    assert (was_found, where.rebuilt) == (False, 1)
    same(found, tensors())
    assert fetch(where, build, accept=lambda kept: kept["z"].shape == (3, 4))[1]


def test_a_rebuilt_entry_makes_no_noise(tmp_path, recwarn, capfd):
    fetch(Store(tmp_path))
    spoilt(tmp_path, b"")
    fetch(Store(tmp_path))
    assert not recwarn.list
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, torch.OutOfMemoryError, KeyboardInterrupt])
def test_a_failed_build_leaves_nothing(tmp_path, error):
    def fail():
        raise error("no")

    where = Store(tmp_path)
    with pytest.raises(error):
        fetch(where, fail)
    assert list(tmp_path.iterdir()) == []
    assert not fetch(where)[1]
    assert fetch(where)[1]


def broken_disk(monkeypatch, place, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(*{
        "write": (entry_file, "save_file"),
        "flush": (entry_file.os, "fsync"),
        "move": (store.os, "replace"),
    }[place], fail)  # fmt: skip


@pytest.mark.parametrize("place", ["write", "flush", "move"])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (entry_file.SafetensorError("I/O error: File too large"), "File too large"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_full_disk_costs_the_entry_and_not_the_result(tmp_path, monkeypatch, recwarn, place, error, said):
    where = Store(tmp_path)
    with monkeypatch.context() as patch:
        broken_disk(patch, place, error)
        results = [fetch(where)[0] for _ in range(2)]
    for result in results:
        same(result, tensors())
    (warned,) = recwarn.list  # said once
    for text in (said, str(tmp_path), "vitscope cache prune"):
        assert text in str(warned.message)
    assert list(tmp_path.iterdir()) == []
    assert not fetch(where)[1]
    assert fetch(where)[1]


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.warns(StoreWarning, match=r"nothing is kept in .*cache"):
        same(fetch(Store(tmp_path / "cache"))[0], tensors())


def test_where_there_are_no_locks_nothing_is_kept(tmp_path, monkeypatch):
    def no_locks(*_, **__):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(store_folder.FileLock, "acquire", no_locks)
    with pytest.warns(StoreWarning, match="No locks available"):
        same(fetch(Store(tmp_path))[0], tensors())
    assert list(tmp_path.glob("*.safetensors")) == []


def test_what_was_used_longest_ago_goes_first(tmp_path):
    where = filled(tmp_path, 4, limit=20_000)
    assert fetch(where, parts={"n": 0})[1]  # used again: now the newest
    where.limit = 4 * one_size(where)
    fetch(where, Builder({"x": torch.zeros(1000)}), {"n": 4})
    assert numbers(where) == [0, 2, 3, 4]


def one_size(where):
    return max(entry.size for entry in where.entries())


def test_reading_without_permission_to_touch_is_reading(tmp_path, monkeypatch):
    fetch(Store(tmp_path))

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(store.os, "utime", refuse)
    assert fetch(Store(tmp_path))[1]


def test_the_new_entry_stays_even_if_all_others_must_go(tmp_path):
    where = filled(tmp_path, 3)
    where.limit = one_size(where) + 10
    fetch(where, Builder({"x": torch.zeros(1000)}), {"n": 9})
    assert numbers(where) == [9]


def test_an_entry_above_the_limit_is_not_kept_and_pushes_nothing_out(tmp_path, recwarn):
    where = filled(tmp_path, 2, limit=10_000)
    for n in (8, 9):
        result, _ = fetch(where, Builder({"x": torch.zeros(5000)}), {"n": n})
        assert len(result["x"]) == 5000
    (warned,) = recwarn.list
    for text in ("larger than the limit of 10.0 kB", "VITSCOPE_CACHE_LIMIT", str(tmp_path)):
        assert text in str(warned.message)
    assert numbers(where) == [0, 1]


def test_limit_0_turns_it_off(tmp_path, recwarn):
    fetch(Store(tmp_path))
    build = Builder()
    assert not fetch(Store(tmp_path, limit=0), build)[1]
    assert build.count == 1
    assert not recwarn.list


@pytest.mark.parametrize(
    ("text", "size"), [(None, 8 * 2**30), ("2GB", 2 * 10**9), ("0", 0), (" 1 mib ", 2**20)]
)
def test_the_environment_sets_the_limit(tmp_path, monkeypatch, text, size):
    monkeypatch.delenv(store.VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(store.VARIABLE, text)
    assert Store(tmp_path).limit == size


@pytest.mark.parametrize("text", ["", "much", "2XB", "-1GB", "1e9", "2,5GB", "GB"])
def test_a_bad_limit_is_named(tmp_path, monkeypatch, text):
    monkeypatch.setenv(store.VARIABLE, text)
    with pytest.raises(AmountError, match=f"VITSCOPE_CACHE_LIMIT '{text}': expected a number with a unit"):
        Store(tmp_path)


def test_amounts_as_people_write_them():
    assert parse_size("1.5TB") == 1_500_000_000_000
    assert parse_size("3k") == 3000
    assert parse_age("2w") == 14 * 86_400
    with pytest.raises(AmountError, match=r"--older-than '3': expected .* 12h or 30d"):
        parse_age("3", "--older-than")
    assert [age_text(s) for s in (-5, 61, 7200, 86_400 * 2.5)] == ["0 s", "1 min", "2 h", "2 days"]


def test_entries_say_what_they_are_of(tmp_path):
    before = time.time()
    where = Store(tmp_path)
    fetch(where, about={"backbone": "twin_s"})
    (entry,) = where.entries()
    assert (entry.kind, entry.header.parts, entry.header.about) == ("thing", PARTS, {"backbone": "twin_s"})
    assert before <= entry.header.created <= entry.used <= time.time() + 1
    assert entry.size == entry.path.stat().st_size
    spoilt(tmp_path, b"x")
    assert where.entries()[0].header is None


def test_prune_by_size_by_age_and_all(tmp_path):
    where = filled(tmp_path, 5)
    size = one_size(where)
    done = where.prune(limit=3 * size)
    assert (done.entries, numbers(where)) == (2, [2, 3, 4])
    assert done.bytes == 2 * size
    os.utime(next(e.path for e in where.entries() if e.header.parts["n"] == 2))
    assert where.prune(older_than=3600).entries == 2
    assert numbers(where) == [2]
    assert where.prune().entries == 0
    assert where.prune(everything=True).entries == 1
    assert list(tmp_path.iterdir()) == []


def test_files_of_others_are_left_alone_and_named(tmp_path):
    where = filled(tmp_path, 2)
    others = ["notes.txt", "thing-123.safetensors", "x.partial", "ab" * 16 + ".safetensors", ".hidden"]
    for name in others:
        (tmp_path / name).write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / one_path(where).name).write_text("mine")
    assert {path.name for path in where.strangers()} == {*others, "folder"}
    assert len(where.entries()) == 2
    assert where.verify() == []
    where.prune(everything=True)
    assert {path.name for path in tmp_path.iterdir()} == {*others, "folder"}
    assert len(list((tmp_path / "folder").iterdir())) == 1


def one_path(where):
    return where.entries()[0].path


def test_verify_names_what_is_damaged_and_remove_removes_it(tmp_path):
    where = filled(tmp_path, 3)
    good, cut, altered = (entry.path for entry in where.entries())
    os.truncate(cut, cut.stat().st_size - 1)
    content = bytearray(altered.read_bytes())
    content[-1] ^= 1
    altered.write_bytes(content)
    problems = {problem.path: problem.what for problem in where.verify()}
    assert set(problems) == {cut, altered}
    assert "no whole safetensors file" in problems[cut]
    assert "differs from its digest" in problems[altered]
    assert where.remove(where.verify()).entries == 2
    assert [entry.path for entry in where.entries()] == [good]


def test_metadata_say_what_the_key_is_made_of(tmp_path):
    fetch(Store(tmp_path), about={"pictures": "5 of x/test"})
    with entry_file.safe_open(one_file(tmp_path), framework="pt") as file:
        metadata = file.metadata()
    assert json.loads(metadata["parts"]) == PARTS
    assert metadata["kind"] == "thing"
    assert len(metadata["sha256"]) == 64


def test_a_reader_is_not_harmed_by_pruning(tmp_path, monkeypatch):
    fetch(Store(tmp_path))
    taken = entry_file._add

    def pruned_meanwhile(*args):
        Store(tmp_path).prune(everything=True)
        taken(*args)

    monkeypatch.setattr(entry_file, "_add", pruned_meanwhile)
    found, was_found = fetch(Store(tmp_path))
    assert was_found
    same(found, tensors())
    assert list(tmp_path.iterdir()) == []
