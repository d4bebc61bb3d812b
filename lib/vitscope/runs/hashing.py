"""What decides whether a notebook must run again.

The key of a run is a digest over everything that can change its numbers: the notebook's cells, its
parameters, the library's sources, the manifest of embedded data and weights, local files named as
parameters, the ledger and its records where the notebook reads them, and the lock file with the interpreter
and the torch that are really installed. jupyter-cache sees none of what follows the parameters.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from vitscope.runs.layout import Project
from vitscope.runs.parameters import Parameters

# Sources that never run in a kernel: a change here cannot change a number (a test checks that claim).
OUTSIDE_KERNEL = (
    "__main__.py", "book_command.py", "cache_command.py", "claims_command.py", "cli.py", "course_command.py",
    "data_command.py", "doctor.py", "frozen_command.py", "growth.py", "listing.py", "scale.py",
    "sweep_command.py", "terminal.py",
    "runs/accessible_pages.py", "runs/address.py", "runs/book.py", "runs/child.py", "runs/claim_badges.py",
    "runs/compare_around.py", "runs/compare_report.py", "runs/compare_rule.py", "runs/compare_runs.py",
    "runs/compare_sources.py", "runs/editions.py", "runs/explore_pages.py", "runs/gate.py",
    "runs/gate_html.py", "runs/launch.py", "runs/one_page.py", "runs/preflight.py", "runs/printing.py",
    "runs/process.py", "runs/quantities.py", "runs/render.py", "runs/run_statistics.py", "runs/runner.py",
    "runs/scale_figure.py", "runs/scale_page.py", "runs/scale_results.py", "runs/scale_tables.py",
    "runs/speed_page.py", "runs/speed_results.py", "runs/stage.py", "runs/statistics_page.py",
    "runs/worker.py",
    "sweeps/cluster.py", "sweeps/engine.py", "sweeps/grid.py", "sweeps/sweep.py", "sweeps/tasks.py",
    "sweeps/warm_up.py",
)  # fmt: skip
KEY_LENGTH = 16


class Inputs(BaseModel):
    """Digests of everything that a run's numbers depend on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    notebook: str
    parameters: str
    library: str
    data: str
    files: str
    environment: str

    @property
    def key(self) -> str:
        """Name of the run: the first hex digits of a digest over all of them."""
        return sha256_text(self.model_dump_json())[:KEY_LENGTH]

    def changed_since(self, other: Inputs) -> list[str]:
        """Which inputs differ, in words a person can act on."""
        return [name for name in type(self).model_fields if getattr(self, name) != getattr(other, name)]


def inputs_of(notebook_digest: str, parameters: Parameters, project: Project, folder: Path) -> Inputs:
    """The inputs of a run as they are on disk now; relative paths start in the kernel's `folder`."""
    return Inputs(
        notebook=notebook_digest,
        parameters=parameters_digest(parameters),
        library=library_digest(Path(__file__).resolve().parents[1]),
        data=data_digest(),
        files=local_files(parameters, folder),
        environment=_environment(project),
    )


def parameters_digest(parameters: Parameters) -> str:
    return sha256_text(json.dumps(parameters.model_dump(mode="json"), sort_keys=True))


def library_digest(package: Path) -> str:
    """SHA-256 over the Python sources that can run in a kernel."""
    files = sorted(package.rglob("*.py"))
    names = [(f.relative_to(package).as_posix(), f) for f in files]
    return tree_digest((name, f) for name, f in names if not name.startswith(OUTSIDE_KERNEL))


def data_digest() -> str:
    """SHA-256 over the manifest's checksums; each file is compared with its own when it is opened."""
    from vitscope.data import embedded

    files = embedded.manifest()
    return sha256_text(json.dumps({name: entry["sha256"] for name, entry in sorted(files.items())}))


def ledger_digest() -> str:
    """SHA-256 over the ledger and the published records, which are of this project and in no manifest."""
    from vitscope.data import embedded

    root = embedded.root()
    files = [root / "claims.yml", *sorted((root / "records").glob("*.json"))]
    return tree_digest((file.relative_to(root).as_posix(), file) for file in files)


def local_files(parameters: Parameters, folder: Path) -> str:
    """Content of weight files; names, sizes and times in folders; the ledger, where it is read."""
    entries: list[tuple[str, str]] = [("ledger", ledger_digest())] if parameters.READS_LEDGER else []
    for text in parameters.named():
        path = folder / Path(text).expanduser()
        if path.is_file():
            entries.append((text, sha256_file(path)))
        elif path.is_dir():
            listing = [
                (p.relative_to(path).as_posix(), p.stat()) for p in sorted(path.rglob("*")) if p.is_file()
            ]
            entries.append((text, sha256_text(repr([(n, s.st_size, s.st_mtime_ns) for n, s in listing]))))
    return sha256_text(repr(entries))


def _environment(project: Project) -> str:
    lock = sha256_file(project.lock_file) if project.lock_file.is_file() else "no lock file"
    python = ".".join(platform.python_version_tuple()[:2])
    return sha256_text(f"{lock} python {python} torch {installed('torch')}")


def installed(distribution: str) -> str | None:
    """Version of an installed distribution, without importing it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_digest(files: Iterable[tuple[str, Path]]) -> str:
    """SHA-256 over names and contents, in the order given."""
    digest = hashlib.sha256()
    for name, path in files:
        digest.update(f"{name}\0{sha256_file(path)}\n".encode())
    return digest.hexdigest()


def folder_digest(folder: Path) -> str:
    """SHA-256 over every file below a folder."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return tree_digest((p.relative_to(folder).as_posix(), p) for p in files)
