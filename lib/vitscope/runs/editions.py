"""Editions of the chapters for a course: one source, a student's notebook and an instructor's.

What a chapter's Markdown holds for this, and what becomes of it:

- `:::{dropdown} Solution` … `:::`: left out for students, opened for instructors;
- lines from `% instructor` to `% end`, all beginning with `%`: notes for teaching. MyST takes them for
  comments, so the book does not show them; left out for students, uncommented for instructors;
- links to the glossary and badges of claims, roles that only the book knows: their words alone;
- `**After this chapter you can**` and a list, `Time: about N minutes` in the first cell: read for the
  README of an edition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from vitscope.errors import unknown
from vitscope.runs import notebook as nb
from vitscope.runs.layout import Project

EDITIONS = ("student", "instructor")

_NUMBERED = re.compile(r"(\d\d)_")
_SOLUTION = re.compile(r"(:{3,})\{dropdown\} Solution\s*$")
_TITLE = re.compile(r"^# (.+)$", re.M)
_MINUTES = re.compile(r"Time:\s+about\s+(\d+)\s+minutes")
_OBJECTIVES = re.compile(r"^\*\*After this chapter you can\*\*\n\n((?:- .*\n?(?:  .*\n?)*)+)", re.M)
_ROLE = re.compile(r"\{(?:term|claim|verdict)\}`(?:([^`<]*\S)\s*<[^`>]*>|([^`]*))`")
_INSTALL = """In a clone of the book's repository, with Python 3.11 and make, `make book` installs everything
into `.venv` and builds the site. It needs the network, this once, and about 7 GB on Linux with PyTorch for
CUDA; the README there says how to take the smaller CPU build. Without make:

```console
python -m pip install --require-hashes --no-deps -r requirements.lock
python -m pip install --no-deps --no-build-isolation --editable .
```"""

_NOTES = """Solutions are open. Notes for teaching stand at the end, under *For the instructor*: what to
prepare and hand out, what students see, what to draw, where they stumble, a timed plan, what to say when
results differ, and how to mark."""


class EditionError(ValueError):
    """An edition cannot be made; the message says of what, why, and what to do."""


@dataclass(frozen=True)
class Chapter:
    """A notebook of the course: its name, title, `minutes` (None if it does not say) and objectives."""

    name: str
    title: str
    minutes: int | None
    objectives: tuple[str, ...]


def make(out: Path, edition: str, chapters: str | None = None, project: Project | None = None) -> list[Path]:
    """Write the chapters' notebooks of an edition, and a README.md about them, to the folder `out`.

    `chapters` are numbers or names with commas between them, "03,07"; left out, all numbered notebooks of the
    book. The order is the book's. Nothing is written unless everything could be made. Returns the files.

    Raises UnknownName for an edition or chapter that does not exist, and EditionError for a folder that is
    not empty and for Markdown whose directives or notes do not close.
    """
    project = project or Project.find()
    if edition not in EDITIONS:
        raise unknown("edition", edition, EDITIONS)
    sources = choose(project.notebooks(), chapters)
    if out.exists() and not out.is_dir():
        raise EditionError(f"{out} is a file; name a folder that is new or empty")
    if out.is_dir() and any(out.iterdir()):
        raise EditionError(
            f"{out} is not empty, and nothing in it is overwritten; name a new or an empty folder"
        )
    made = {name: edit(nb.read(path), edition, name) for name, path in sources.items()}
    about = [describe(name, nb.read(path)) for name, path in sources.items()]
    out.mkdir(parents=True, exist_ok=True)
    for name, notebook in made.items():
        nbformat.write(notebook, out / f"{name}.ipynb")
    (out / "README.md").write_text(readme(about, edition), encoding="utf-8")
    return [*(out / f"{name}.ipynb" for name in made), out / "README.md"]


def choose(notebooks: dict[str, Path], wanted: str | None) -> dict[str, Path]:
    """The numbered notebooks, or those wanted, in the order of the book.

    >>> book = {"01_a": Path("01_a.ipynb"), "02_b": Path("02_b.ipynb"), "appendix": Path("appendix.ipynb")}
    >>> list(choose(book, None)), list(choose(book, "02, 01_a"))
    (['01_a', '02_b'], ['01_a', '02_b'])
    """
    numbers = {found[1]: name for name in notebooks if (found := _NUMBERED.match(name))}
    if wanted is None:
        chosen = set(numbers.values())
    else:
        chosen = set()
        for one in (part.strip() for part in wanted.split(",")):
            if one not in numbers and one not in numbers.values():
                raise unknown("chapter", one, numbers if len(one) <= 2 else numbers.values())
            chosen.add(numbers.get(one, one))
    return {name: path for name, path in notebooks.items() if name in chosen}


def describe(name: str, notebook: NotebookNode) -> Chapter:
    """What the first cell of a chapter says about it."""
    text = notebook.cells[0].source
    title, minutes, listed = _TITLE.search(text), _MINUTES.search(text), _OBJECTIVES.search(text)
    items = re.split(r"^- ", listed[1], flags=re.M)[1:] if listed else []
    return Chapter(
        name,
        title[1] if title else name,
        int(minutes[1]) if minutes else None,
        tuple(" ".join(item.split()).rstrip(".;") for item in items),
    )


def edit(notebook: NotebookNode, edition: str, name: str) -> NotebookNode:
    """A copy of a chapter as the edition has it, with a first cell that says so; ids stay as they are."""
    copy = nbformat.from_dict(notebook)
    notes = any("% instructor" in cell.source for cell in copy.cells)
    cells = [nbformat.v4.new_markdown_cell(_preface(edition, name, notes=notes), id="edition")]
    for cell in copy.cells:
        if cell.cell_type == "markdown":
            try:
                cell.source = rewrite(cell.source, edition)
            except EditionError as error:
                raise EditionError(f"{name}, cell {cell.id}: {error}") from None
        if cell.source.strip() or cell.cell_type != "markdown":
            cells.append(cell)
    copy.cells = cells
    nbformat.validate(copy)
    return copy


def rewrite(text: str, edition: str) -> str:
    """The Markdown of one cell as an edition has it.

    >>> text = "Why?\\n\\n:::{dropdown} Solution\\nSo.\\n:::\\n\\n% instructor\\n% Let them guess.\\n% end"
    >>> rewrite(text, "student")
    'Why?'
    >>> print(rewrite(text, "instructor"))
    Why?
    <BLANKLINE>
    :::{dropdown} Solution
    :open:
    So.
    :::
    <BLANKLINE>
    Let them guess.
    >>> rewrite("Each {term}`token` of {term}`patches <patch>`: {claim}`A2`", "student")
    'Each token of patches: A2'
    """
    lines = iter(text.split("\n"))
    kept: list[str] = []
    for line in lines:
        opening = _SOLUTION.match(line)
        if opening:
            block = list(_until_closed(lines, opening[1]))
            kept += [line, ":open:", *block, opening[1]] if edition == "instructor" else []
        elif line.strip() == "% instructor":
            notes = list(_notes(lines))
            kept += notes if edition == "instructor" else []
        elif line.strip() == "% end":
            raise EditionError("`% end` without `% instructor` before it")
        else:
            kept.append(line)
    result = _ROLE.sub(lambda role: role[1] or role[2], "\n".join(kept))
    return text if result == text else re.sub(r"\n{3,}", "\n\n", result).strip("\n")


def _until_closed(lines: Iterable[str], colons: str) -> Iterator[str]:
    """Lines up to the one that closes the directive, itself left out; colons within code do not count."""
    code = False
    for line in lines:
        if line.lstrip().startswith("```"):
            code = not code
        if line.rstrip() == colons and not code:
            return
        yield line
    raise EditionError(f"a solution is not closed; end it with a line {colons}")


def _notes(lines: Iterable[str]) -> Iterator[str]:
    """The notes of a block, without their percent signs."""
    for line in lines:
        if line.strip() == "% end":
            return
        if not line.startswith("%"):
            raise EditionError(f"{line!r} is among the notes but has no % before it: the book would show it")
        yield line[1:].removeprefix(" ")
    raise EditionError("notes are not closed; end them with a line `% end`")


def _preface(edition: str, name: str, *, notes: bool) -> str:
    number = name.partition("_")[0]
    teaching = f"\n\n{_NOTES}" if notes and edition == "instructor" else ""
    return f"""**{edition.capitalize()} edition** of chapter {number}, made by `vitscope course`
from the notebook `{name}` of vitscope {metadata.version("vitscope")}.

{_INSTALL}

Then open this notebook with that environment as its kernel. The built book fills in numbers that stand here
as `{{glue:text}}` and a name, and draws the boxes that begin with three colons. A run by
`vitscope run {name}` writes a notebook with its figures and tables below `.vitscope/runs/`.{teaching}"""


def readme(chapters: Iterable[Chapter], edition: str) -> str:
    """The page that goes with an edition: order, minutes and objectives of its chapters."""
    chapters = list(chapters)
    total = sum(chapter.minutes or 0 for chapter in chapters)
    rows = [
        f"| {i} | [{c.title}]({c.name}.ipynb) | {c.minutes or 'not stated'} |"
        for i, c in enumerate(chapters, 1)
    ]
    parts = [
        f"# Inside the Vision Transformer: {edition} edition",
        f"Made by `vitscope course` from vitscope {metadata.version('vitscope')}. Together about {total} "
        "minutes, in this order; a chapter says at its beginning what it takes for granted.",
        "\n".join(["| | chapter | minutes |", "|---|---|---|", *rows]),
        "## Installation",
        _INSTALL,
        "## After these chapters you can",
    ]
    for chapter in chapters:
        listed = [f"- {objective}" for objective in chapter.objectives] or ["No objectives are stated."]
        parts.append("\n".join([f"### {chapter.title}", "", *listed]))
    return "\n\n".join(parts) + "\n"
