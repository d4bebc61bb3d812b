"""`vitscope doctor`: what works on this machine, said in seconds, each with what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from vitscope.runs.hashing import installed
from vitscope.runs.layout import Project, ProjectError

LEAST_PYTHON = (3, 11)
LEAST_FREE_GIB = 3


@dataclass(frozen=True)
class Check:
    """One line: `ok`, a `note` that something is limited, or `FAIL` when the main job will not work."""

    state: Literal["ok", "note", "FAIL"]
    name: str
    detail: str


def examine(*, offline: bool = False) -> Iterator[Check]:
    """Every check in turn. A check that breaks is a failed check, not the end of the examination."""
    steps: list[tuple[str, Callable[[], Check]]] = [
        ("python", python), ("packages", packages), ("torch", torch_), ("data", data), ("zoo", zoo),
        ("kernel", kernel), ("book", book), ("compiler", compiler), ("disk", disk),
        ("hub", lambda: hub(offline=offline)),
    ]  # fmt: skip
    for name, step in steps:
        try:
            yield step()
        except Exception as error:  # the boundary: a broken installation breaks in any way it likes
            yield Check("FAIL", name, f"{type(error).__name__}: {error}")


def python() -> Check:
    version = platform.python_version()
    if sys.version_info[:2] < LEAST_PYTHON:
        return Check("FAIL", "python", f"{version}; {'.'.join(map(str, LEAST_PYTHON))} or newer is needed")
    where = "virtual environment" if sys.prefix != sys.base_prefix else "not in a virtual environment"
    return Check("ok", "python", f"{version}, {where}")


def packages() -> Check:
    """Installed versions against the lock file."""
    from packaging.requirements import Requirement

    try:
        lock = Project.find().lock_file.read_text(encoding="utf-8")
    except (ProjectError, OSError):
        return Check("note", "packages", "no lock file here, versions not compared")
    pins = [
        Requirement(line.rstrip(" \\")) for line in lock.splitlines() if "==" in line and line[0] not in " #"
    ]
    wanted = {
        pin.name: next(iter(pin.specifier)).version for pin in pins if not pin.marker or pin.marker.evaluate()
    }
    found = {name: (installed(name) or "missing").partition("+")[0] for name in wanted}
    # libraries that a torch without CUDA does not need
    cuda = ("nvidia-", "cuda-", "triton")
    different = {
        n: v for n, v in found.items() if v != wanted[n] and not (v == "missing" and n.startswith(cuda))
    }
    if not different:
        return Check("ok", "packages", f"{len(wanted)} as in the lock file")
    shown = ", ".join(f"{n} {v} (lock: {wanted[n]})" for n, v in list(different.items())[:4])
    more = f" and {len(different) - 4} more" if len(different) > 4 else ""
    return Check(
        "note",
        "packages",
        f"{len(different)} differ from the lock file: {shown}{more}; pip install -r requirements.lock",
    )


def torch_() -> Check:
    import torch

    threads = f"{torch.get_num_threads()} of {os.cpu_count()} CPU threads"
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / 2**30
        device = f"{torch.cuda.get_device_name(0)}, {memory:.0f} GiB"
    elif torch.backends.mps.is_available():
        device = "Apple GPU"
    else:
        device = "no GPU; the course profile is made for that"
    return Check("ok", "torch", f"{torch.__version__}, {threads}, {device}")


def data() -> Check:
    """Every embedded file against its checksum."""
    from vitscope.data import embedded

    files = embedded.manifest()
    broken = []
    for path in files:
        try:
            embedded.verified(path)
        except embedded.DataIntegrityError as error:
            broken.append(str(error))
    if broken:
        return Check("FAIL", "data", "; ".join(broken))
    size = sum(entry["bytes"] for entry in files.values()) / 2**20
    return Check("ok", "data", f"{len(files)} embedded files, {size:.0f} MiB, checksums match")


def zoo() -> Check:
    from vitscope.backbones import zoo_names

    names = zoo_names()
    if not names:
        return Check(
            "FAIL", "zoo", "no embedded weights; restore data/zoo from the repository, or vitscope train NAME"
        )
    return Check("ok", "zoo", f"{len(names)} embedded backbones: {', '.join(names)}")


def kernel() -> Check:
    """Start the kernel that a run would start, and let it answer."""
    if find_spec("ipykernel") is None:
        return Check("FAIL", "kernel", "ipykernel is missing: pip install -r requirements.lock")
    from jupyter_client.manager import KernelManager

    from vitscope.runs import process

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        spec = Path(scratch)
        process.write_kernelspec(spec, process.kernel_command())
        manager = KernelManager(kernel_name=process.KERNEL, connection_file=str(spec / "connection.json"))
        manager.kernel_spec_manager.kernel_dirs = [str(spec / "kernels")]
        quiet = subprocess.DEVNULL
        manager.start_kernel(env=process.environment(spec, {}), stdout=quiet, stderr=quiet)
        client = manager.blocking_client()
        try:
            client.start_channels()
            client.wait_for_ready(timeout=30)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
    return Check("ok", "kernel", f"starts and answers in {time.monotonic() - began:.1f} s, {sys.executable}")


def book() -> Check:
    """The tools that build the site, and the browser that the tests open it in."""
    version = installed("jupyter-book")
    if version is None:
        return Check(
            "note", "book", "jupyter-book is missing; pip install -r requirements.lock to build the site"
        )
    if int(version.partition(".")[0]) >= 2:
        return Check("FAIL", "book", f"jupyter-book {version}: a version below 2 is needed")
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    return Check(
        "ok",
        "book",
        f"jupyter-book {version}, "
        + ("Chromium for the site tests" if browser else "no Chromium (only tests need it)"),
    )


def compiler() -> Check:
    found = next(filter(None, map(shutil.which, (os.environ.get("CXX") or "c++", "g++", "clang++"))), None)
    if found is None:
        return Check(
            "note",
            "compiler",
            "no C++ compiler: torch.compile is off, kernels run eagerly with the same numbers",
        )
    return Check("ok", "compiler", found)


def disk() -> Check:
    try:
        where = Project.find().root
    except ProjectError:
        where = Path.cwd()
    free = shutil.disk_usage(where).free / 2**30
    return Check("ok" if free >= LEAST_FREE_GIB else "note", "disk", f"{free:.0f} GiB free")


def hub(*, offline: bool) -> Check:
    from vitscope.data.hub import answers, is_offline

    if offline or is_offline():
        return Check("note", "hub", "not tried (offline); embedded data and weights need no network")
    if answers(2.0):
        return Check("ok", "hub", "answers; hub backbones and datasets can be fetched")
    return Check("note", "hub", "does not answer; embedded data and weights work, others need a local path")
