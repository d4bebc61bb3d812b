"""Which records `vitscope compare` means: a run by file, folder or chapter, and its references."""

from __future__ import annotations

from pathlib import Path

from vitscope.errors import unknown
from vitscope.runs import claims
from vitscope.runs import record as records
from vitscope.runs.compare_runs import CompareError, admit
from vitscope.runs.layout import Project, ProjectError
from vitscope.runs.record import FILE_NAME, Record, RecordError, completed


def find(source: str) -> Record:
    """The record that a file or folder holds, or that of the newest finished run of a chapter.

    Errors: `CompareError` with what is wrong with the file or folder, for a chapter without such a run, and
    for what is no result (as `compare_runs.admit`); `UnknownName` for what is none of the three.
    """
    path = Path(source)
    if path.is_dir():
        record = _in_folder(path)
    elif path.is_file():
        record = read(path)
    elif path.suffix or len(path.parts) > 1:
        raise CompareError(
            f"there is no {source}; expected a {FILE_NAME}, the folder of a run, or the name of a chapter; "
            "`vitscope list runs` shows the finished runs"
        )
    else:
        record = _newest(source)
    admit(record)
    return record


def references(record: Record, source: Path | None = None) -> list[Record]:
    """The records in a file or folder; left out, the published ones of the same notebook.

    Of those, the records of the same profile, or the `course` records where it has none. Errors:
    `CompareError` for what is no record, a folder without any, or a notebook that nothing was published of.
    """
    if source is None:
        published = claims.published_records()
        ours = [one for one in published if one.notebook == record.notebook]
        if not ours:
            names = ", ".join(sorted({one.notebook for one in published})) or "none"
            raise CompareError(
                f"no records of {record.notebook} are published; there are some of: {names}; "
                "name records of your own with --with"
            )
        same = [one for one in ours if one.profile == record.profile]
        return same or [one for one in ours if one.profile == "course"] or ours
    if not source.is_dir():
        return [read(source)]
    paths = sorted({*source.glob("*.json"), *source.rglob(FILE_NAME)})
    if not paths:
        raise CompareError(f"no record in {source}; expected files like {FILE_NAME}, in it or below it")
    return [read(path) for path in paths]


def read(path: Path) -> Record:
    """The record in a file. Errors: `CompareError` for what is no record of this format."""
    if path.suffix == ".ipynb":
        failed = "is what a failed run left" if path.name.endswith(".failed.ipynb") else "is a notebook"
        raise CompareError(f"{path} {failed}; expected the {FILE_NAME} of a finished run")
    try:
        return records.read(path)
    except RecordError as error:
        raise CompareError(str(error)) from None


def save(page: str, path: Path) -> None:
    """Write a page. Errors: `CompareError` for a name that is no page's, and where it cannot be written."""
    if path.suffix not in (".html", ".htm"):
        raise CompareError(
            f"{path}: expected a name that ends in .html, so that no other file is overwritten"
        )
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise CompareError(f"{path} cannot be written ({error.strerror}); name another place") from None


def _in_folder(folder: Path) -> Record:
    if (folder / FILE_NAME).is_file():
        return read(folder / FILE_NAME)
    if failed := sorted(folder.glob("*.failed.ipynb")):
        raise CompareError(
            f"the run in {folder} failed and has no record; {failed[0].name} in it shows why; run it again"
        )
    raise CompareError(
        f"no {FILE_NAME} in {folder}; expected the folder of one run, as `vitscope run` prints it"
    )


def _newest(chapter: str) -> Record:
    """The finished run of a chapter that started last; smoke runs are passed over."""
    try:
        project = Project.find()
    except ProjectError as error:
        raise CompareError(f"{error}; or name a {FILE_NAME}") from None
    chapters = [path.stem for path in sorted((project.root / "notebooks").glob("*.ipynb"))]
    if chapter not in chapters:
        raise unknown("run, or chapter,", chapter, chapters)
    found = []
    for path in (project.state / "runs" / chapter).glob(f"*/{FILE_NAME}"):
        record = completed(path.parent, path.parent.name, chapter)
        if record and record.profile != "smoke":
            found.append(record)
    if not found:
        raise CompareError(
            f"{chapter} has no finished run here, smoke runs aside; `vitscope run {chapter}` makes one"
        )
    return max(found, key=lambda record: record.volatile.started)
