"""Editions for a course: what students must not see, what instructors get, and what every chapter has."""

from __future__ import annotations

import re
import shlex
from importlib import metadata

import nbformat
import pytest
from typer.testing import CliRunner

from vitscope.cli import app
from vitscope.errors import UnknownName
from vitscope.runs import editions
from vitscope.runs import notebook as nb
from vitscope.runs.editions import EditionError
from vitscope.runs.layout import Project
from vitscope.runs.schema import resolve

BOOK = Project.find().notebooks()
ALL = [name for name in BOOK if re.match(r"\d\d_", name)]
TAUGHT = [name for name in ALL if "01" <= name[:2] <= "08"]
FRAME = (
    "Before class", "Hand out", "What students see", "On the board", "Where students stumble",
    "When results differ", "Marking",
)  # fmt: skip
SOLUTION = ":::{dropdown} Solution"


def markdown(notebook) -> str:
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def source(name: str) -> str:
    return markdown(nb.read(BOOK[name]))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, dict[str, nbformat.NotebookNode]]:
    """Edition -> name -> notebook, written and read again."""
    found = {}
    for edition in editions.EDITIONS:
        out = tmp_path_factory.mktemp("course") / edition
        *files, _ = editions.make(out, edition)
        found[edition] = {path.stem: nbformat.read(path, as_version=4) for path in files}
    return found


# --- what the chapters hold -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*TAUGHT, "09_scorecard"])
def test_every_chapter_has_objectives_minutes_and_prerequisites(name):
    notebook = nb.read(BOOK[name])
    about = editions.describe(name, notebook)
    assert about.minutes in range(15, 61)
    assert len(about.objectives) == 3
    assert all(re.match(r"compute|tell apart|predict|criticise", text) for text in about.objectives)
    first = " ".join(notebook.cells[0].source.split())
    assert re.search(r" minutes\b[^.]*\. You need: .+\.\*", first)
    assert first.index("You need: ") < first.index("**After this chapter you can**")


@pytest.mark.parametrize("name", TAUGHT)
def test_every_chapter_has_three_levels(name):
    levels = re.findall(r"^\*\*Exercise \d \((\w+)\)\.\*\*", source(name), re.M)
    assert list(dict.fromkeys(levels)) == ["read", "change", "build"]


@pytest.mark.parametrize("name", ALL)
def test_every_chapter_has_three_mistakes_before_its_exercises(name):
    text = source(name)
    (mistakes,) = re.findall(r":::\{dropdown\} Common mistakes\n(.*?)\n:::$", text, re.M | re.S)
    assert len(re.findall(r"^- \*\*", mistakes, re.M)) == 3
    assert len(re.findall(r"\*How\s+to\s+notice:\*", mistakes)) == 3
    assert text.index("Common mistakes") < text.index("**Exercise 1")


@pytest.mark.parametrize("name", ALL)
def test_slots_of_the_notes_add_up_to_the_minutes_of_the_chapter(name):
    (notes,) = re.findall(r"^% instructor\n(.*?)^% end$", source(name), re.M | re.S)
    slots = [int(minutes) for minutes in re.findall(r"^% \| (\d+) \| .+ \|$", notes, re.M)]
    assert 3 <= len(slots) <= 4
    assert sum(slots) == editions.describe(name, nb.read(BOOK[name])).minutes
    assert [f"**{part}" in notes for part in FRAME] == [True] * len(FRAME)


@pytest.mark.parametrize("name", ALL)
def test_commands_of_the_notes_are_accepted(name):
    (notes,) = re.findall(r"^% instructor\n(.*?)^% end$", source(name), re.M | re.S)
    assert not re.search(r"\{(term|claim|verdict|cite)", notes), "notes are read outside the book"
    runs = re.findall(r"vitscope run ([^`\n]+)", notes)
    for words in map(shlex.split, runs):
        profile = words[words.index("--profile") + 1] if "--profile" in words else "course"
        given = dict(words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "-p")
        text = {key: value.replace("THEIR_NUMBER", "17") for key, value in given.items()}
        assert resolve(words[0], profile, text=text)


@pytest.mark.parametrize("name", ALL)
def test_notes_are_comments_line_by_line_in_the_book(name):
    for cell in nb.read(BOOK[name]).cells:
        if "% instructor" in cell.source:
            assert all(line.startswith("%") for line in cell.source.splitlines())


# --- what becomes of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_students_see_no_solution_and_no_notes(made, name):
    text = markdown(made["student"][name])
    assert "Solution" not in text
    assert "For the instructor" not in text
    assert not re.search(r"^%", text, re.M)
    assert text.count("**Exercise ") == source(name).count("**Exercise ")


@pytest.mark.parametrize("edition", editions.EDITIONS)
@pytest.mark.parametrize("name", ALL)
def test_links_that_only_the_book_knows_are_their_words(made, edition, name):
    text = markdown(made[edition][name])
    assert not re.search(r"\{(term|claim|verdict)\}", text)
    assert re.search(r"\{(term|claim|verdict)\}", source(name))


@pytest.mark.parametrize("name", ALL)
def test_instructors_see_all_solutions_open_and_the_notes(made, name):
    text = markdown(made["instructor"][name])
    assert "under *For the instructor*: what to\nprepare and hand out" in text
    assert text.count(SOLUTION) == text.count(f"{SOLUTION}\n:open:") == source(name).count(SOLUTION)
    assert not re.search(r"^%", text, re.M)
    for line in re.findall(r"^% (.+)$", source(name), re.M):
        assert line in text or line in ("instructor", "end")


@pytest.mark.parametrize("edition", editions.EDITIONS)
@pytest.mark.parametrize("name", ALL)
def test_directives_stay_balanced(made, edition, name):
    for cell in made[edition][name].cells:
        if cell.cell_type == "markdown":
            prose = re.sub(r"^```.*?^```", "", cell.source, flags=re.M | re.S)
            fences = re.findall(r"^(:{3,})(\{?)", prose, re.M)
            assert [bool(brace) for _, brace in fences] == [True, False] * (len(fences) // 2), cell.id
            assert cell.source.count("\n```") % 2 == 0 or cell.source.startswith("```"), cell.id


@pytest.mark.parametrize("edition", editions.EDITIONS)
@pytest.mark.parametrize("name", ALL)
def test_notebooks_stay_valid_and_keep_ids_and_code(made, edition, name):
    notebook, original = made[edition][name], nb.read(BOOK[name])
    nbformat.validate(notebook)
    ids = [cell.id for cell in notebook.cells]
    assert ids[0] == "edition"
    left_out = {"teaching"} if edition == "student" else set()
    assert ids[1:] == [cell.id for cell in original.cells if cell.id not in left_out]
    assert [c.source for c in nb.code_cells(notebook)] == [c.source for c in nb.code_cells(original)]
    assert notebook.metadata == original.metadata
    first = notebook.cells[0].source
    assert first.startswith(f"**{edition.capitalize()} edition** of chapter {name[:2]}")
    assert f"vitscope {metadata.version('vitscope')}" in first
    assert "make book" in first


def test_readme_lists_order_minutes_and_objectives(tmp_path):
    paths = editions.make(tmp_path / "out", "student", "07, 03_recoverability")
    assert [p.name for p in paths] == ["03_recoverability.ipynb", "07_semantic_diffusion.ipynb", "README.md"]
    text = paths[-1].read_text(encoding="utf-8")
    about = [
        editions.describe(name, nb.read(BOOK[name]))
        for name in ("03_recoverability", "07_semantic_diffusion")
    ]
    for place, chapter in enumerate(about, 1):
        assert f"| {place} | [{chapter.title}]({chapter.name}.ipynb) | {chapter.minutes} |" in text
        assert all(f"- {objective}\n" in text for objective in chapter.objectives)
    assert f"Together about {sum(c.minutes for c in about)} minutes" in text
    assert "make book" in text


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edition", "chapters", "said"),
    [
        ("students", None, "Unknown edition 'students'. Did you mean 'student'"),
        ("student", "03_recoverabilty", "Did you mean '03_recoverability'"),
        ("student", "11", "Unknown chapter '11'"),
        ("student", "03,,07", "Unknown chapter ''"),
        ("student", "zoo_appendix", "Unknown chapter 'zoo_appendix'"),
    ],
)
def test_unknown_names_are_refused_and_nothing_is_written(tmp_path, edition, chapters, said):
    with pytest.raises(UnknownName, match=re.escape(said)):
        editions.make(tmp_path / "out", edition, chapters)
    assert not (tmp_path / "out").exists()


def test_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("kept", encoding="utf-8")
    with pytest.raises(EditionError, match="is not empty, and nothing in it is overwritten; name a new"):
        editions.make(tmp_path, "student", "03")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(EditionError, match="is a file"):
        editions.make(tmp_path / "mine.txt", "student", "03")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{SOLUTION}\nSo.", "a solution is not closed; end it with a line :::"),
        (f"{SOLUTION}\n```python\n:::\n```", "is not closed"),
        ("% instructor\n% notes", "notes are not closed"),
        ("% instructor\nnotes\n% end", "'notes' is among the notes but has no % before it"),
        ("text\n\n% end", "`% end` without `% instructor`"),
    ],
)
@pytest.mark.parametrize("edition", editions.EDITIONS)
def test_broken_markdown_is_refused(edition, text, said):
    with pytest.raises(EditionError, match=re.escape(said)):
        editions.rewrite(text, edition)


def test_broken_cell_is_named():
    cell = nbformat.v4.new_markdown_cell("% end", id="here")
    with pytest.raises(EditionError, match=r"^03_x, cell here: `% end`"):
        editions.edit(nbformat.v4.new_notebook(cells=[cell]), "student", "03_x")


def test_solutions_with_more_colons_or_code_end_where_they_end():
    text = "Before\n\n::::{dropdown} Solution\n:::{note}\nIn.\n:::\n```text\n::::\n```\n::::\n\nAfter"
    assert editions.rewrite(text, "student") == "Before\n\nAfter"
    opened = editions.rewrite(text, "instructor")
    assert opened == text.replace("Solution\n", "Solution\n:open:\n")


def test_markdown_without_either_stays_as_it_is():
    text = "A list:\n\n\n- one % of all\n\n:::{dropdown} Common mistakes\n- two\n:::\n"
    assert editions.rewrite(text, "student") == editions.rewrite(text, "instructor") == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a {term}`token`.", "a token."),
        (
            "{term}`Patches <patch>` and {term}`high-norm\ntokens <high-norm token>`",
            "Patches and high-norm\ntokens",
        ),
        ("Claims: {claim}`A1` {verdict}`B2`", "Claims: A1 B2"),
        ("{glue:text}`a` {cite}`b` `{term}` $x < y$", "{glue:text}`a` {cite}`b` `{term}` $x < y$"),
    ],
)
def test_roles_of_the_book_become_words(text, words):
    assert editions.rewrite(text, "student") == words


# --- the command ------------------------------------------------------------------------------------------


def test_command_writes_an_edition_and_refuses_to_overwrite_it(tmp_path):
    arguments = ["course", str(tmp_path / "out"), "--edition", "instructor", "--chapters", "06"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert [line.rsplit("/", 1)[-1] for line in result.output.split()] == ["06_shift.ipynb", "README.md"]
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 2
    assert "is not empty" in again.output
    assert "Traceback" not in again.output
