"""Stores in several processes: one builds, the others wait; a killed one neither blocks nor spoils."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch

from vitscope.store import Store
from vitscope.store_folder import StoreFolder

VALUES = torch.arange(1000.0)
HEAD = """
import os, resource, sys, time, warnings
from pathlib import Path
import torch
from vitscope import entry_file, store
folder, rest = Path(sys.argv[1]), sys.argv[2:]
values = torch.arange(1000.0)
def say(text):
    print(text, flush=True)
"""


def start(script: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + script, folder, *arguments],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> list[str]:
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return out.split()


@pytest.fixture
def started():
    """`start`, whose processes end with the test."""
    running = []

    def begin(*args: object) -> subprocess.Popen[str]:
        running.append(start(*args))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()


def built() -> dict[str, torch.Tensor]:
    return {"x": VALUES}


def test_of_two_processes_one_builds_and_the_other_waits(tmp_path, started):
    script = """
def build():
    with open(rest[0], "a") as log:
        log.write("built ")
    time.sleep(1)
    return {"x": values}
say("ready")
sys.stdin.readline()
made, found = store.Store(folder).fetch("thing", {"n": 1}, build)
say(f"{found} {torch.equal(made['x'], values)}")
"""
    both = [started(script, tmp_path / "cache", str(tmp_path / "log")) for _ in range(2)]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    said = sorted(finished(process) for process in both)
    assert said == [["False", "True"], ["True", "True"]]
    assert (tmp_path / "log").read_text() == "built "
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".safetensors"]


@pytest.mark.parametrize("where", ["build", "write", "move"])
def test_a_holder_killed_blocks_nothing_and_leaves_nothing_wrong(tmp_path, started, where):
    script = """
def stop(*_, **__):
    say("there")
    time.sleep(60)
def half(tensors, path, metadata):
    whole(tensors, path, metadata)
    os.truncate(path, path.stat().st_size // 2)
    stop()
whole = entry_file.save_file
if rest == ["write"]:
    entry_file.save_file = half
if rest == ["move"]:
    store.os.replace = stop
store.Store(folder).fetch("thing", {"n": 1}, stop if rest == ["build"] else lambda: {"x": values})
"""
    holder = started(script, tmp_path, where)
    assert holder.stdout.readline() == "there\n"
    mine = Store(tmp_path)
    assert mine.entries() == []
    assert len(mine.unfinished()) == (where != "build")
    mine.prune()  # what is being written stays
    assert len(mine.unfinished()) == (where != "build")
    results = []
    waiter = threading.Thread(target=lambda: results.append(mine.fetch("thing", {"n": 1}, built)))
    waiter.start()
    waiter.join(0.5)
    assert waiter.is_alive()
    holder.kill()
    waiter.join(20)
    ((made, found),) = results
    assert not found
    assert torch.equal(made["x"], VALUES)
    assert mine.verify() == []
    mine.prune()
    assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors"]
    assert mine.fetch("thing", {"n": 1}, built)[1]


def test_what_a_killed_process_left_is_cleared(tmp_path):
    mine = Store(tmp_path)
    key = "0" * 32
    left = tmp_path / f"thing-{key}.{'1' * 32}.partial"

    def leave(age: float) -> None:
        left.mkdir()
        (left / ".tmp123").write_bytes(b"x" * 1000)
        os.utime(left, (time.time() - age,) * 2)

    leave(3600)
    mine.fetch("thing", {"n": 1}, built)
    assert left.exists()  # for less than a day; it may be a slow disk
    (tmp_path / f"thing-{key}.lock").touch()
    assert mine.prune().bytes == 1000
    assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors"]
    leave(2 * 86_400)
    mine.fetch("thing", {"n": 2}, built)
    assert not left.exists()
    leave(2 * 86_400)
    with StoreFolder(tmp_path).waiting(f"thing-{key}"):
        mine.prune()
        mine.fetch("thing", {"n": 3}, built)
        assert left.exists()  # somebody is at it


def test_the_limit_holds_at_every_moment_under_several_writers(tmp_path, started):
    script = """
made = store.Store(folder, limit=100_000)
say("ready")
for n in range(25):
    x, _ = made.fetch("thing", {"who": rest[0], "n": n}, lambda: {"x": torch.full((2500,), float(n))})
    assert (x["x"] == n).all()
"""
    writers = [started(script, tmp_path, str(n)) for n in range(2)]
    for writer in writers:
        writer.stdout.readline()
    mine, sums = StoreFolder(tmp_path), []
    while any(writer.poll() is None for writer in writers):
        with mine.moving():
            sums.append(sum(size for _, _, size in mine.files()))
        time.sleep(0.01)
    for writer in writers:
        finished(writer)
    assert 80_000 < max(sums) <= 100_000
    assert 80_000 < sum(size for _, _, size in mine.files()) <= 100_000
    assert Store(tmp_path).verify() == []
    assert mine.unfinished() == []


def test_readers_are_not_harmed_by_pruning(tmp_path, started):
    script = """
made, found = store.Store(folder), 0
say("ready")
end = time.monotonic() + 2
while time.monotonic() < end:
    x, was = made.fetch("thing", {"n": 1}, lambda: {"x": values})
    assert torch.equal(x["x"], values)
    found += was
say(f"{found} {made.rebuilt}")
"""
    reader = started(script, tmp_path)
    reader.stdout.readline()
    mine, removed = Store(tmp_path), 0
    while reader.poll() is None:
        removed += mine.prune(everything=True).entries
        time.sleep(0.003)
    found, rebuilt = finished(reader)
    assert removed > 0
    assert int(found) > 0
    assert rebuilt == "0"  # pruned is not damaged


def test_a_disk_that_takes_no_more(tmp_path, started):
    """The operating system refuses the write, as on a full disk or over a quota."""
    script = """
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
made = store.Store(folder)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    x, found = made.fetch("thing", {"n": 1}, lambda: {"x": torch.ones(100_000)})
assert not found and x["x"].sum() == 100_000
assert "File too large" in str(said[0].message) and str(folder) in str(said[0].message), said
assert list(folder.iterdir()) == [], list(folder.iterdir())
made.fetch("thing", {"n": 2}, lambda: {"x": values})
assert made.fetch("thing", {"n": 2}, lambda: {"x": values})[1]
"""
    finished(started(script, tmp_path))


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="no user ids here")
def test_a_folder_that_may_not_be_written_is_read_from(started):
    script = """
os.chdir(folder)
here = Path(".")
store.Store(here).fetch("thing", {"n": 1}, lambda: {"x": values})
before = sorted(os.listdir())
os.chmod(".", 0o555)
if os.geteuid() == 0:  # whom no permission stops
    os.setegid(65534)
    os.seteuid(65534)
made = store.Store(here)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert made.fetch("thing", {"n": 1}, lambda: 1 / 0)[1]
    assert not said
    for n in (2, 3):
        x, found = made.fetch("thing", {"n": n}, lambda: {"x": values})
        assert not found and torch.equal(x["x"], values)
assert len(said) == 1 and "Permission denied" in str(said[0].message), said
assert made.verify() == [] and len(made.entries()) == 1
assert "Permission denied" in made.prune(everything=True).failed[0]
assert sorted(os.listdir()) == before
"""
    with tempfile.TemporaryDirectory() as folder:
        finished(started(script, Path(folder)))
        os.chmod(folder, 0o755)
