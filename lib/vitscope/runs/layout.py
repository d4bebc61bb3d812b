"""Where things lie: the book's sources, and the `.vitscope` folder that holds runs and staging."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from vitscope.errors import unknown


class ProjectError(RuntimeError):
    """The book's sources are not where they should be, or contradict each other."""


@dataclass(frozen=True)
class Project:
    """A clone of the book: `_toc.yml`, `_config.yml`, `book/` and `notebooks/` below `root`."""

    root: Path

    @classmethod
    def find(cls, start: Path | None = None) -> Project:
        """The nearest folder upwards from `start` (default: here) with a book, else this library's clone."""
        here = (start or Path.cwd()).resolve()
        for folder in (here, *here.parents, Path(__file__).resolve().parents[3]):
            if (folder / "_toc.yml").is_file() and (folder / "_config.yml").is_file():
                return cls(folder)
        raise ProjectError(
            f"no _toc.yml and _config.yml in {here} or above; run this inside a clone of the book"
        )

    @property
    def state(self) -> Path:
        """Results, staging and stamps; safe to delete, nothing in it is published."""
        return self.root / ".vitscope"

    @property
    def cache(self) -> Path:
        """What runs keep for one another: `store` looks after it, `vitscope cache` shows it."""
        return self.state / "cache"

    @property
    def lock_file(self) -> Path:
        return self.root / "requirements.lock"

    @cached_property
    def pages(self) -> tuple[str, ...]:
        """Every page of `_toc.yml` in reading order, as a path without ending."""
        pages = tuple(_walk(self._toc()))
        repeated = sorted({p for p in pages if pages.count(p) > 1})
        if repeated:
            raise ProjectError(f"_toc.yml lists {', '.join(repeated)} more than once")
        return pages

    def source(self, page: str) -> Path:
        """The file behind a page of `_toc.yml`."""
        for ending in (".ipynb", ".md", ".rst"):
            path = self.root / f"{page}{ending}"
            if path.is_file():
                return path
        raise ProjectError(f"_toc.yml lists {page}, but there is no {page}.ipynb or {page}.md")

    def notebooks(self) -> dict[str, Path]:
        """The notebooks of the book in reading order: name -> path."""
        sources = [self.source(page) for page in self.pages]
        return {path.stem: path for path in sources if path.suffix == ".ipynb"}

    def notebook(self, name: str) -> Path:
        """A notebook by the name of a chapter, or by the path of a file."""
        path = Path(name)
        if path.suffix == ".ipynb":
            if not path.is_file():
                raise ProjectError(f"no such notebook: {name}")
            return path.resolve()
        candidates = {p.stem: p for p in sorted((self.root / "notebooks").glob("*.ipynb"))}
        if name not in candidates:
            raise unknown("notebook", name, candidates)
        return candidates[name]

    def _toc(self) -> dict[str, Any]:
        toc = yaml.safe_load((self.root / "_toc.yml").read_text(encoding="utf-8"))
        if not isinstance(toc, dict) or "root" not in toc:
            raise ProjectError("_toc.yml has no root page")
        return toc


def _walk(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for entry in node:
            yield from _walk(entry)
    elif isinstance(node, dict):
        page = node.get("root") or node.get("file")
        if page:
            yield Path(page).with_suffix("").as_posix() if page.endswith((".md", ".ipynb", ".rst")) else page
        for key in ("parts", "chapters", "sections", "entries", "subtrees"):
            yield from _walk(node.get(key, []))
