"""The book's prose as text: terms are defined and linked, functions exist, commands would be accepted."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from vitscope.runs import schema

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"
PAGES = sorted(path.stem for path in BOOK.glob("*.md"))
LIBRARY = ROOT / "lib" / "vitscope"
MODULES = {
    ".".join(path.relative_to(LIBRARY).with_suffix("").parts).removesuffix(".__init__"): path
    for path in LIBRARY.rglob("*.py")
}


NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
CHAPTERS = [name for name in NOTEBOOKS if name[0] == "0"]
TERM = re.compile(r"\{term\}`(?:[^`<]*<)?([^`>]+)>?`")
NEEDED = {
    "00": "token, patch, CLS, position embedding, attention, head, block, MLP, state",
    "01": "cliff, plateau, climb, floor, depth series, state, probe, twin, token similarity, centred",
    "02": "scrambling index, consensus, CLS centrality, onset, neural collapse, CKA, attention form",
    "03": "recovery rate, oracle, harm, disagreement, geometric disagreement, correction entropy, luck",
    "04": "VFusion, Super Learner, gap closed, oracle, frozen, logit averaging, out-of-fold answers",
    "05": "VFusion, Super Learner, HFusion",
    "06": "covariate shift, subpopulation shift, worst group, severity, recovery rate",
    "07": "semantic diffusion, point-in-box, mIoU, RMSE, leakage, high-norm token, PCA map, patch",
    "08": "entmax-1.5, support, register, specialization, k-NN, temperature, softmax, DINO",
    "09": "claim, verdict, evidence grade, record, ledger, clause, twin",
}


def markdown(notebook: str) -> list[str]:
    """A notebook's cells of text."""
    cells = json.loads((ROOT / "notebooks" / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


def first_screen(notebook: str) -> str:
    return markdown(notebook)[0]


def text(page: str) -> str:
    return (BOOK / f"{page}.md").read_text(encoding="utf-8")


def entries() -> list[tuple[list[str], str]]:
    """The glossary: the names of each entry, and its definition."""
    inside = text("glossary").partition("```{glossary}\n")[2].partition("\n```")[0]
    found = []
    for block in inside.split("\n\n"):
        lines = block.strip("\n").split("\n")
        names = [line for line in lines if not line.startswith(" ")]
        found.append((names, " ".join(line.strip() for line in lines[len(names) :])))
    return found


def commands(page: str) -> list[list[str]]:
    """Every `vitscope …` line of a page's code blocks, as a shell would split it."""
    blocks = re.findall(r"```bash\n(.*?)```", text(page), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [
        shlex.split(found[0], comments=True)[1:]
        for line in lines
        if (found := re.findall(r"\bvitscope [^;]*", line))
    ]


def defined(name: str) -> bool:
    """Whether `module.name` is there in the library's sources, imported into the module or written in it."""
    module, _, attribute = name.rpartition(".")
    if module not in MODULES:
        return False
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return attribute in names


def test_every_page_is_in_the_table_of_contents():
    listed = set(re.findall(r"book/(\w+)", (ROOT / "_toc.yml").read_text(encoding="utf-8")))
    assert listed == set(PAGES)
    assert yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))["root"] == "book/intro"


def test_glossary_is_alphabetical_and_says_each_thing_once():
    names = [name for found, _ in entries() for name in found]
    heads = [found[0] for found, _ in entries()]
    assert heads == sorted(heads, key=str.casefold)
    assert len({name.casefold() for name in names}) == len(names)
    assert len(heads) >= 60


@pytest.mark.parametrize(("names", "definition"), entries(), ids=lambda value: str(value)[:24])
def test_glossary_defines_in_few_sentences(names, definition):
    prose = re.sub(r"\[[^]]*\]\([^)]*\)|`[^`]*`", "x", definition)
    assert names
    assert definition[0].isupper() or definition[0] == "$", "it begins as a sentence does"
    assert definition.endswith(".")
    assert 1 <= len(re.findall(r"[.!?](?=\s|$)", prose)) <= 5, names


@pytest.mark.parametrize("page", PAGES)
def test_terms_that_are_linked_are_in_the_glossary(page):
    known = {name.casefold() for names, _ in entries() for name in names}
    found = TERM.findall(text(page))
    assert [term for term in found if term.casefold() not in known] == []
    assert found or page == "references", "no term of this page leads to the glossary"


def heads() -> dict[str, str]:
    """Every name of the glossary -> the first name of its entry."""
    return {name.casefold(): names[0] for names, _ in entries() for name in names}


def linked(texts: list[str]) -> list[str]:
    """The entries to which {term} roles of some texts lead, in their order."""
    return [heads()[" ".join(term.split()).casefold()] for one in texts for term in TERM.findall(one)]


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_chapters_link_their_terms(notebook):
    found = linked(markdown(notebook))
    needed = {heads()[term.strip().casefold()] for term in NEEDED.get(notebook[:2], "").split(",") if term}
    assert needed <= set(found), sorted(needed - set(found))
    assert found, "no term of this page leads to the glossary"


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_no_cell_links_a_term_twice(notebook):
    for one in markdown(notebook):
        found = linked([one])
        assert sorted(found) == sorted(set(found)), one[:60]


def test_every_entry_of_the_glossary_is_linked_from_a_page():
    pages = [text(page) for page in PAGES if page != "glossary"]
    pages += [cell for name in NOTEBOOKS for cell in markdown(name)]
    assert sorted({names[0] for names, _ in entries()} - set(linked(pages))) == []


@pytest.mark.parametrize("notebook", CHAPTERS)
def test_first_screens_say_what_was_found_in_numbers_of_the_run(notebook):
    question, _, rest = first_screen(notebook).partition("**What was found here")
    found = rest.partition("*Paper:")[0].partition("**After this chapter")[0]
    assert "**The question.**" in question
    assert len(re.findall(r"\{glue:text\}", found)) >= 5
    assert re.search(r"^The chapter ", found, re.M), "it says what the chapter does"
    if "01" <= notebook[:2] <= "08":
        assert re.search(r"^(Verdicts|Two more verdicts) .*\{verdict\}", found, re.M | re.S)
        assert re.search(r"published\s+records", found)


@pytest.mark.parametrize("notebook", [name for name in CHAPTERS if "01" <= name[:2] <= "08"])
def test_chapters_say_what_only_a_summary_says(notebook):
    (paper,) = [cell for cell in markdown(notebook) if cell.startswith("## What the paper says")]
    assert re.search(r"\bsummary\b", paper)


def test_the_introduction_counts_verdicts_and_has_a_path_of_an_hour():
    intro = text("intro")
    asked = re.findall(r"\{claim-count\}`([^`]+)`", intro)
    assert {"all", "A", "B", "C", "reproduced", "contradicted", "C inconclusive"} <= set(asked)
    path = intro.partition("**One hour")[2].partition("**One afternoon")[0]
    assert sum(map(int, re.findall(r"^\| (\d+) \|", path, re.M))) == 60


@pytest.mark.parametrize("page", ["glossary", "notation", "teaching"])
def test_functions_that_are_named_exist(page):
    tops = {name.partition(".")[0] for name in MODULES}
    named = re.findall(r"`([a-z_0-9]+(?:\.[A-Za-z_0-9]+)+)(?:\([^`]*\)[^`]*)?`", text(page))
    named += [f"{module}.{name}" for name, module in re.findall(r"`(\w+)` in `([\w.]+)`", text(page))]
    ours = {name for name in named if name.partition(".")[0] in tops and name not in MODULES}
    assert ours or page == "teaching"
    assert sorted(name for name in ours if not defined(name)) == []


@pytest.mark.parametrize("page", PAGES)
def test_runs_that_the_book_proposes_are_accepted(page):
    for words in commands(page):
        if words[0] != "run":
            continue
        name = words[1]
        profile = words[words.index("--profile") + 1] if "--profile" in words else "course"
        given = [words[i + 1] for i, word in enumerate(words) if word == "-p"]
        values = dict(value.split("=", 1) for value in given)
        values = {key: value.replace("$s", "3") for key, value in values.items()}
        assert schema.resolve(name, profile, text=values)


def test_slots_of_the_lessons_add_up():
    lessons = text("teaching")
    slots = [tuple(map(int, pair)) for pair in re.findall(r"^\| (\d+)–(\d+) \|", lessons, re.MULTILINE)]
    assert slots[0][0] == 0
    assert slots[-1][1] == 90
    assert [end for _, end in slots[:-1]] == [start for start, _ in slots[1:]]
    lists = re.findall(
        r"(?:in slots:\*\* |^\| \d \| [^|]+\| )(\d+ [^|*]*?·[^|*]*?)(?: \||\. )", lessons, re.M | re.S
    )
    assert len(lists) == 8
    for line in lists:
        assert sum(int(part.split()[0]) for part in line.split("·")) == 90, line


def test_answers_of_the_ten_pictures():
    rows = re.findall(r"^\| state \d \|((?: [✓–] \|){10})$", text("teaching"), re.MULTILINE)
    right = [[mark == "✓" for mark in row.split(" | ")] for row in (r.strip(" |") for r in rows)]
    *earlier, last = right
    errors = [i for i, one in enumerate(last) if not one]
    rescued = [i for i in errors if any(row[i] for row in earlier)]
    recovered = [sum(row[i] for i in errors) for row in earlier]
    harmed = [sum(one and not mine for one, mine in zip(last, row, strict=True)) for row in earlier]
    assert (len(errors), len(rescued), recovered, harmed) == (4, 2, [1, 2, 1], [4, 2, 1])
    assert sum(map(any, zip(*right, strict=True))) == 8
    assert [sum(row) - sum(last) for row in earlier] == [-3, 0, 0]
