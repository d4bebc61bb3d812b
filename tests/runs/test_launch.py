"""The book's address: what is accepted, where it stands, the cell that installs, the buttons."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vitscope import cli
from vitscope.runs import address, gate_html, launch
from vitscope.runs import book as books
from vitscope.runs import notebook as nb
from vitscope.runs.gate import GateError
from vitscope.runs.launch import AddressError, Repository
from vitscope.runs.layout import Project

ROOT = Path(__file__).resolve().parents[2]
URL = "https://github.com/OWNER/NAME"
HERE = Repository(URL, "main")
NOWHERE = Repository("", "main")
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


# --- addresses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [URL, f"{URL}/", f"{URL}.git", f" {URL} "])
def test_one_address_is_written_in_one_way(text):
    assert launch.checked(text) == URL


@pytest.mark.parametrize(
    "text",
    [
        "http://github.com/OWNER/NAME",
        "github.com/OWNER/NAME",
        "git@github.com:OWNER/NAME.git",
        "https://gitlab.com/OWNER/NAME",
        "https://github.com/OWNER",
        "https://github.com/OWNER/NAME/tree/main",
        "https://github.com/OWNER/..",
        "https://github.com/OWNER/NAME?tab=readme",
        'https://github.com/OWNER/NAME"; import os',
        "https://github.com.example.org/OWNER/NAME",
    ],
)
def test_what_colab_cannot_open_is_refused(text):
    with pytest.raises(AddressError, match=r"expected a repository on GitHub, as https://github\.com/OWNER"):
        launch.checked(text)


# --- the cell that installs -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_notebook_begins_with_the_cell_that_installs(path):
    first, second, *_ = nb.code_cells(nb.read(path))
    assert first.id == launch.INSTALL_ID
    assert first.source == launch.install_cell(Repository.of(Project(ROOT)))
    assert nb.tags(first) == ["install", "remove-cell"]
    assert nb.tags(second) == ["parameters"]


def test_address_in_the_cell_does_not_make_a_notebook_another():
    notebook = nb.read(NOTEBOOKS[0])
    cell = nb.code_cells(notebook)[0]
    before = nb.digest(notebook)
    cell.source = launch.install_cell(HERE)
    assert nb.digest(notebook) == before
    cell.source += "\nprint(1)"
    assert nb.digest(notebook) != before


def run_cell(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Execute the cell in this process, with pip replaced; what pip was asked for."""
    asked: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: asked.append(command) or check)
    exec(compile(launch.install_cell(repository), "install", "exec"), {})
    return asked


@pytest.fixture
def without_vitscope(monkeypatch):
    """Nothing here finds vitscope any more; every other module is found as before."""

    class Without:
        def __init__(self, finder) -> None:
            self.finder = finder

        def find_spec(self, name, path=None, target=None):
            return None if name == "vitscope" else self.finder.find_spec(name, path, target)

    monkeypatch.setattr(sys, "meta_path", [Without(finder) for finder in sys.meta_path])
    monkeypatch.delitem(sys.modules, "vitscope")


def test_nothing_happens_where_vitscope_is(monkeypatch, capsys):
    began = time.perf_counter()
    assert run_cell(HERE, monkeypatch) == run_cell(NOWHERE, monkeypatch) == []
    assert time.perf_counter() - began < 0.5
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("without_vitscope")
def test_where_it_is_missing_pip_gets_it_from_the_branch(monkeypatch):
    asked = run_cell(Repository(URL, "release/1"), monkeypatch)
    assert asked == [[sys.executable, "-m", "pip", "install", "--quiet", f"vitscope @ git+{URL}@release/1"]]


@pytest.mark.usefixtures("without_vitscope")
def test_without_an_address_it_says_what_to_do(monkeypatch):
    with pytest.raises(ModuleNotFoundError, match=r"run `make book` in a clone .* or set REPOSITORY"):
        run_cell(NOWHERE, monkeypatch)


def test_an_interpreter_without_any_package_comes_as_far_as_the_message(tmp_path):
    cell = tmp_path / "cell.py"
    cell.write_text(launch.install_cell(NOWHERE), encoding="utf-8")
    command = [sys.executable, "-I", "-S", str(cell)]  # no site-packages, no PYTHONPATH
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "ModuleNotFoundError: vitscope is not installed here" in done.stderr


# --- where the address stands -----------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path) -> Project:
    """The files that name an address, without one."""
    for name in (*address._PLACES, "_toc.yml", "book", "notebooks"):
        source, target = ROOT / name, tmp_path / name
        target.parent.mkdir(exist_ok=True)
        ignored = shutil.ignore_patterns("images", "runs")
        if source.is_dir():
            shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)
    project = Project(tmp_path)
    address.write(project, "")
    return project


def contents(project: Project) -> dict[str, bytes]:
    files = [path for path in project.root.rglob("*") if path.is_file()]
    return {path.relative_to(project.root).as_posix(): path.read_bytes() for path in files}


def test_all_places_of_this_repository_agree():
    found = address.found(Project(ROOT))
    assert len(found) == 4 + len(NOTEBOOKS)
    assert set(found.values()) == {Repository.of(Project(ROOT)).url}


def test_writing_is_complete_idempotent_and_can_be_undone(clone):
    before = contents(clone)
    changed = address.write(clone, f"{URL}.git")
    assert sorted(p.relative_to(clone.root).as_posix() for p in changed) == sorted(address.found(clone))
    assert address.agreed(clone) == URL
    assert Repository.of(clone) == HERE
    assert address.write(clone, URL) == []
    again = contents(clone)
    assert again.keys() == before.keys()
    assert [name for name in before if before[name] != again[name]] == sorted(
        address.found(clone), key=list(before).index
    )
    other = "https://github.com/OTHER/NAME.b-2"
    address.write(clone, other)
    assert set(address.found(clone).values()) == {other}
    address.write(clone, "")
    assert contents(clone) == before


def test_a_file_that_is_not_as_expected_stops_it_before_anything_is_written(clone):
    page = clone.root / "book" / "references.md"
    page.write_text(
        page.read_text(encoding="utf-8").replace("  version = ", "  edition = "), encoding="utf-8"
    )
    before = contents(clone)
    with pytest.raises(AddressError, match=r"book/references\.md: found no place for the address"):
        address.write(clone, URL)
    assert contents(clone) == before


def test_a_disk_that_fails_half_way_leaves_every_file_as_it_was(clone, monkeypatch):
    before = contents(clone)
    real, moved = os.replace, []

    def failing(source, target):
        if len(moved) == 5:
            moved.append(target)
            raise OSError("no space left")
        moved.append(target)
        real(source, target)

    monkeypatch.setattr(address.os, "replace", failing)
    with pytest.raises(OSError, match="no space left"):
        address.write(clone, URL)
    assert len(moved) == 6 + 5
    assert contents(clone) == before


def test_places_that_disagree_are_named(clone):
    address.write(clone, URL)
    path = clone.root / "CITATION.cff"
    path.write_text(path.read_text(encoding="utf-8").replace("NAME", "ELSEWHERE"), encoding="utf-8")
    with pytest.raises(AddressError, match=r"CITATION\.cff: https://github.com/OWNER/ELSEWHERE"):
        address.agreed(clone)


def test_command(clone, monkeypatch):
    monkeypatch.chdir(clone.root)
    invoke = lambda *words: CliRunner().invoke(cli.app, ["address", *words])  # noqa: E731
    assert "no address is set" in invoke().output
    assert "changed _config.yml" in invoke(URL).output
    assert invoke(URL).output == "nothing to change\n"
    assert invoke().output == f"{URL}\n"
    refused = invoke("https://example.org/x")
    assert refused.exit_code == 2
    assert "expected a repository on GitHub" in refused.output
    assert invoke(URL, "--clear").exit_code == 2
    assert invoke("--clear").exit_code == 0
    assert "no address is set" in invoke().output


# --- buttons ----------------------------------------------------------------------------------------------

COLAB = "https://colab.research.google.com/github/OWNER/NAME/blob/main/"


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ([f"{COLAB}notebooks/a.ipynb", URL, f"{URL}/edit/main/notebooks/a.ipynb"], ""),
        ([f"{COLAB}notebooks/a.ipynb", f"{URL}/issues/new?title=x"], ""),
        ([], f"has no button that leads to {COLAB}notebooks/a.ipynb"),
        ([f"{COLAB}notebooks/a.ipynb", f"{COLAB}notebooks/gone.ipynb"], "no file notebooks/gone.ipynb"),
        ([f"{COLAB}notebooks/a.ipynb", f"{COLAB}notebooks/b.ipynb"], f"expected {COLAB}notebooks/a.ipynb"),
        ([f"{COLAB}notebooks/a.ipynb".replace("main", "master")], f"address that begins with {COLAB}"),
        ([f"{COLAB}notebooks/a.ipynb".replace("NAME", "OTHER")], f"address that begins with {COLAB}"),
        ([f"{COLAB}notebooks/a.ipynb", f"{URL}/edit/main/notebooks/c.ipynb"], "no file notebooks/c.ipynb"),
        ([f"{COLAB}notebooks/a.ipynb", f"{URL}/edit/x/notebooks/a.ipynb"], f"begins with {URL}/edit/main/"),
        ([f"{COLAB}notebooks/a.ipynb", "https://binder.example.org/x"], f"which is not in {URL}"),
    ],
)
def test_buttons_are_checked_against_the_tree(tmp_path, links, said):
    (tmp_path / "notebooks").mkdir()
    for name in "ab":
        (tmp_path / "notebooks" / f"{name}.ipynb").touch()
    found = list(launch.problems(links, "notebooks/a.ipynb", tmp_path, HERE))
    assert bool(found) == bool(said)
    assert said in "\n".join(found)


def test_pages_that_are_no_notebooks_and_books_without_address_have_none(tmp_path):
    (tmp_path / "a.ipynb").touch()
    assert list(launch.problems([URL], "intro.md", tmp_path, HERE)) == []
    assert "no such button here" in next(launch.problems([f"{COLAB}a.ipynb"], "intro.md", tmp_path, HERE))
    assert list(launch.problems([], "a.ipynb", tmp_path, NOWHERE)) == []
    assert "the book has no address" in next(launch.problems([URL], "a.ipynb", tmp_path, NOWHERE))


def test_a_built_book_has_the_buttons_of_its_address(module_book, tmp_path, monkeypatch):
    project = module_book.project
    said: list[str] = []
    build = lambda name, **more: books.build("smoke", tmp_path / name, project=project, **more).html  # noqa: E731
    links = lambda html, page: gate_html.button_links(gate_html.parse(html / f"{page}.html"))  # noqa: E731

    plain = build("plain")
    assert links(plain, "notebooks/tiny") == links(plain, "book/intro") == []
    config = (project.root / "_config.yml").read_bytes()
    html = build("launched", repository=f"{URL}/", say=said.append)
    assert f"{COLAB}notebooks/tiny.ipynb" in links(html, "notebooks/tiny")
    assert f"{URL}/edit/main/book/intro.md" in links(html, "book/intro")
    assert not [link for link in links(html, "book/intro") if link.startswith(launch.COLAB)]
    assert (project.root / "_config.yml").read_bytes() == config
    assert any("`vitscope address URL` writes it there" in line for line in said)

    monkeypatch.setattr(Repository, "colab", lambda self, file: f"{COLAB}elsewhere/{file}")
    with pytest.raises(GateError, match=r"notebooks/tiny: has no button that leads to .*elsewhere"):
        build("launched", repository=URL, force=True)
    with pytest.raises(AddressError):
        build("launched", repository="https://example.org/x")


def test_an_address_in_the_configuration_counts_for_every_build(tmp_path):
    config = tmp_path / "_config.yml"
    config.write_text(f"title: x\nhtml:\n  favicon: x.png\nrepository:\n  url: {URL}/\n  branch: dev\n")
    repository = Repository.of(Project(tmp_path))
    assert repository == Repository(URL, "dev")
    launch.configure(config, repository)
    text = config.read_text()
    assert re.search(r"use_repository_button: true", text)
    assert "favicon: x.png" in text
    assert f"colab_url: {launch.COLAB}" in text
    config.write_text("repository:\n  branch: 'a b'\n")
    with pytest.raises(AddressError, match=r"repository\.branch is 'a b'"):
        Repository.of(Project(tmp_path))


def test_notebooks_are_stored_as_they_would_be_written():
    for path in NOTEBOOKS:
        text = path.read_text(encoding="utf-8")
        assert json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n" == text
