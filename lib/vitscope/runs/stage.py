"""The staging tree: a copy of the book with executed notebooks, at the repository's own relative paths.

Launch links and cross references depend on those paths, and jupyter-book excludes anything below `_build`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vitscope.runs.launch import Repository, configure
from vitscope.runs.layout import Project

FOLDERS = ("book", "extra", "_static", "benchmarks/results")


def stage(
    project: Project, executed: Mapping[str, Path], target: Path, repository: Repository | None = None
) -> Path:
    """Fill `target` from empty. `executed` maps pages to notebooks that stand in for the repository's.

    Pages get buttons that lead to `repository`, if it is given and has an address.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in ("_config.yml", "_toc.yml"):
        shutil.copyfile(project.root / name, target / name)
    if repository:
        configure(target / "_config.yml", repository)
    for folder in FOLDERS:
        if (project.root / folder).is_dir():
            shutil.copytree(
                project.root / folder, target / folder, ignore=shutil.ignore_patterns(".*", "__pycache__")
            )
    for file in _named_files(project.root / "_config.yml"):
        _copy(project.root, Path(file), target)
    for page in project.pages:
        source = project.source(page)
        _copy(project.root, source.relative_to(project.root), target, executed.get(page, source))
    return target


def _named_files(config: Path) -> list[str]:
    """Files outside the usual folders that `_config.yml` names."""
    content: dict[str, Any] = yaml.safe_load(config.read_text(encoding="utf-8")) or {}
    bibliography = content.get("bibtex_bibfiles") or []
    named = [content.get("logo"), (content.get("html") or {}).get("favicon")]
    return [name for name in [*bibliography, *named] if name]


def _copy(root: Path, relative: Path, target: Path, source: Path | None = None) -> None:
    (target / relative).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source or root / relative, target / relative)
