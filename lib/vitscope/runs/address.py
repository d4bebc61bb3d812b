"""`vitscope address URL`: the repository's address, in every file that names it, or in none.

What each place looks like is written here once, to read the address, to write it and to take it out again:
`_config.yml`, `pyproject.toml`, `CITATION.cff`, the BibTeX entry of the book and the install cells.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from vitscope.runs.launch import INSTALL_ID, INSTALL_TAGS, AddressError, Repository, checked, install_cell
from vitscope.runs.layout import Project

_URL_LINE = re.compile(r'(?m)^(repository:\n(?:[ \t]+.*\n)*?[ \t]+url:[ \t]*)(?:"[^"\n]*"|[^\s#]*)')
_TABLE = re.compile(r'(?m)^\[project\.urls\]\nRepository = "[^"\n]*"\n\n')
_CODE_LINE = re.compile(r"(?m)^repository-code: .*\n")
_BIBTEX_LINE = re.compile(r"(?m)^  url     = \{[^}\n]*\},\n")
_CELL_LINE = re.compile(r'(?m)^REPOSITORY = "([^"\n]*)"$')


@dataclass(frozen=True)
class Place:
    """A kind of file that names the address: how it is read there, and how another one is written."""

    read: Callable[[str], str]
    write: Callable[[str, Repository], str]


def found(project: Project) -> dict[str, str]:
    """File -> the address it names, empty where it names none."""
    return {name: place.read(text) for name, place, text in _files(project)}


def agreed(project: Project) -> str:
    """The one address that all files name, or "". Errors: `AddressError` with each file, if they disagree."""
    addresses = found(project)
    if len(set(addresses.values())) > 1:
        lines = [f"{name}: {address or 'none'}" for name, address in addresses.items()]
        raise AddressError(
            "\n".join(["files name different addresses; `vitscope address URL` makes them agree", *lines])
        )
    return next(iter(addresses.values()))


def write(project: Project, url: str) -> list[Path]:
    """Make every file name `url`, or none if it is empty. Returns the files that changed.

    All or nothing: texts are made and read back before a file is touched, and what was replaced is put back
    if a later file cannot be. Raises AddressError for an address that Colab cannot open notebooks from, and
    for a file that is not as expected.
    """
    repository = replace(Repository.of(project, ""), url=checked(url))
    changed: dict[Path, str] = {}
    for name, place, text in _files(project):
        new = place.write(text, repository)
        if place.read(new) != repository.url:
            raise AddressError(f"{name}: found no place for the address; compare it with the published file")
        if new != text:
            changed[project.root / name] = new
    _write_all(changed)
    return list(changed)


def _files(project: Project) -> Iterator[tuple[str, Place, str]]:
    notebooks = {
        path.relative_to(project.root).as_posix(): _NOTEBOOK for path in project.notebooks().values()
    }
    for name, place in {**_PLACES, **notebooks}.items():
        path = project.root / name
        if not path.is_file():
            raise AddressError(f"there is no {name} in {project.root}; expected a whole clone of the book")
        yield name, place, path.read_text(encoding="utf-8")


def _write_all(texts: Mapping[Path, str]) -> None:
    """Write every file beside its place, then move all; if one cannot be moved, the others go back."""
    mark = uuid.uuid4().hex[:8]
    fresh = {path: path.with_name(f".{path.name}.{mark}") for path in texts}
    old = {path: path.with_name(f".{path.name}.{mark}.old") for path in texts}
    moved = []
    try:
        for path, text in texts.items():
            fresh[path].write_text(text, encoding="utf-8")
            shutil.copymode(path, fresh[path])
            shutil.copy2(path, old[path])
        for path in texts:
            os.replace(fresh[path], path)
            moved.append(path)
    except BaseException:
        for path in moved:
            os.replace(old[path], path)
        raise
    finally:
        for path in [*fresh.values(), *old.values()]:
            path.unlink(missing_ok=True)


def _config_read(text: str) -> str:
    return str((yaml.safe_load(text).get("repository") or {}).get("url") or "")


def _config_write(text: str, repository: Repository) -> str:
    return _URL_LINE.sub(lambda line: f'{line[1]}"{repository.url}"', text, count=1)


def _pyproject_read(text: str) -> str:
    return str(tomllib.loads(text)["project"].get("urls", {}).get("Repository", ""))


def _pyproject_write(text: str, repository: Repository) -> str:
    table = f'[project.urls]\nRepository = "{repository.url}"\n\n' if repository.url else ""
    return _before(_TABLE.sub("", text), "[project.scripts]\n", table)


def _citation_read(text: str) -> str:
    return str(yaml.safe_load(text).get("repository-code") or "")


def _citation_write(text: str, repository: Repository) -> str:
    line = f'repository-code: "{repository.url}"\n' if repository.url else ""
    return _before(_CODE_LINE.sub("", text), "abstract: ", line)


def _bibtex_read(text: str) -> str:
    line = _BIBTEX_LINE.search(text)
    return line[0].partition("{")[2].rpartition("}")[0] if line else ""


def _bibtex_write(text: str, repository: Repository) -> str:
    line = f"  url     = {{{repository.url}}},\n" if repository.url else ""
    return _before(_BIBTEX_LINE.sub("", text), "  version = ", line)


def _before(text: str, mark: str, line: str) -> str:
    """`line` put before the first line that begins with `mark`; without such a line, the text as it is."""
    return re.sub(f"(?m)^{re.escape(mark)}", lambda found: line + found[0], text, count=1)


def _notebook_read(text: str) -> str:
    cell = _install_cell(json.loads(text))
    line = _CELL_LINE.search("".join(cell["source"])) if cell else None
    return line[1] if line else ""


def _notebook_write(text: str, repository: Repository) -> str:
    """The notebook with an install cell for this address, put before its parameters if it has none."""
    content = json.loads(text)
    cell = _install_cell(content)
    if cell is None:
        cell = {
            "cell_type": "code", "execution_count": None, "id": INSTALL_ID, "metadata": {}, "outputs": [],
        }  # fmt: skip
        first = next(i for i, one in enumerate(content["cells"]) if one["cell_type"] == "code")
        content["cells"].insert(first, cell)
    cell["metadata"]["tags"] = list(INSTALL_TAGS)
    cell["source"] = install_cell(repository).splitlines(keepends=True)
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _install_cell(notebook: dict[str, Any]) -> dict[str, Any] | None:
    return next((cell for cell in notebook["cells"] if cell.get("id") == INSTALL_ID), None)


_NOTEBOOK = Place(_notebook_read, _notebook_write)
_PLACES = {
    "_config.yml": Place(_config_read, _config_write),
    "pyproject.toml": Place(_pyproject_read, _pyproject_write),
    "CITATION.cff": Place(_citation_read, _citation_write),
    "book/references.md": Place(_bibtex_read, _bibtex_write),
}
