"""The exercises of chapters 01 to 08: three levels, solutions that pass their checks, valid commands.

Those of chapter 00 start from a model in its setup and are checked beside it, in `test_vit80`.
"""

from __future__ import annotations

import re
import shlex
import time
from functools import cache
from pathlib import Path

import nbformat
import pytest

from vitscope.runs.schema import resolve

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = sorted(path.stem for path in (ROOT / "notebooks").glob("0[1-8]_*.ipynb"))
FENCE = re.compile(r"```python\n(.*?)```", re.S)
COMMANDS = re.compile(r"```console\n(.*?)```", re.S)
HEAD = re.compile(r"\*\*Exercise (\d+) \((\w+)\)\.\*\* ")
FOLDED = ":::{dropdown} Solution\n"
MOST_SECONDS = 2  # of the processor, imports aside: a check is run again and again

# Answers that a learner may well give: what to change in the solution, and what the check has to say.
WRONG = {
    "01_phase_curves": [
        ("centred=True", "centred=False", "negative, near the floor"),
        ("tolerance=tolerance", "band=tolerance", "two of the three tolerances"),
    ],
    "02_information_scrambling": [
        ("roll(1, dims=1)", "roll(-1, dims=1)", "token 1 is patch 0"),
        ("patches.roll(1, dims=1)", "torch.cat([patches[:, :1], patches[:, :-1]], 1)", "no left neighbour"),
    ],
    "03_recoverability": [
        ("found.harm.mean * right", "found.harm.mean", "difference in accuracy"),
        ("luck.excess.value", "luck.real.value", "hardly more than luck"),
    ],
    "04_vfusion": [
        ("(held.argmax(2) == held_labels)", "(test.argmax(2) == test_labels)", "best on the held-out"),
        ("test.softmax(2)", "test.softmax(2)[:1]", "of both states"),
    ],
    "05_vfusion_ablations": [
        ("min(batch - 1, latent)", "batch - 1", "leaves room"),
        ("min(batch - 1, latent)", "min(batch, latent)", "rank 4"),
        ("optimiser.step()", "pass", "train z"),
    ],
    "06_shift": [
        (", clusters=pictures[own]", "", "draw pictures, not answers"),
        ("worst = min(", "worst = max(", "lowest accuracy"),
    ],
    "07_semantic_diffusion": [
        (" - found.chance", "", "less 4 of 16"),
        ("rule=rule", "rule='center'", "own more patches"),
    ],
    "08_entmax_attention": [
        ("beta = (low + high) / 2", "beta = 1.0", "change beta"),
        ("return beta, (beta * scores).softmax(-1)", "return beta, entmax15(scores)", "softmax"),
    ],
}


@cache
def exercises(chapter: str) -> dict[int, tuple[str, str]]:
    """Number -> level and text."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{chapter}.ipynb", as_version=4)
    heads = [(HEAD.match(c.source), c.source) for c in notebook.cells if c.cell_type == "markdown"]
    return {int(head[1]): (head[2], text) for head, text in heads if head}


def build(chapter: str) -> tuple[str, str, str]:
    """Stub, check and solution of the chapter's exercise to build."""
    (text,) = [text for level, text in exercises(chapter).values() if level == "build"]
    visible, folded = text.split(FOLDED)
    (stub, check), (solution,) = FENCE.findall(visible), FENCE.findall(folded)
    return stub, check, solution


def run(answer: str, check: str, name: str) -> None:
    names: dict[str, object] = {"__name__": name}
    exec(compile(answer, f"{name}: answer", "exec"), names)
    exec(compile(check, f"{name}: check", "exec"), names)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_levels_go_from_reading_to_building(chapter):
    found = exercises(chapter)
    assert list(found) == list(range(1, len(found) + 1))
    levels = [level for level, _ in found.values()]
    assert list(dict.fromkeys(levels)) == ["read", "change", "build"]
    assert levels == sorted(levels, key=["read", "change", "build"].index)
    assert levels.count("build") == 1


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_exercise_has_one_hidden_solution(chapter):
    for level, text in exercises(chapter).values():
        assert text.count(FOLDED) == 1, text
        assert text.endswith(":::"), text
        assert text.count(":::") == 2, text
        assert level != "change" or "vitscope run" in text.split(FOLDED)[0], text


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_commands_of_exercises_are_valid(chapter):
    for _, text in exercises(chapter).values():
        for line in "".join(COMMANDS.findall(text)).splitlines():
            program, command, name, *rest = shlex.split(line)
            assert (program, command, name) == ("vitscope", "run", chapter)
            assert set(rest[::2]) == {"-p"}
            changed = dict(value.split("=", 1) for value in rest[1::2])
            assert resolve(chapter, "course", text=changed) != resolve(chapter, "course")


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_solution_passes_its_check(chapter):
    stub, check, solution = build(chapter)
    run(solution, check, chapter)  # imports what it needs
    started = time.process_time()
    run(solution, check, chapter)
    assert time.process_time() - started < MOST_SECONDS
    signatures = [re.findall(r"^def .+:$", code, re.M) for code in (stub, solution)]
    assert signatures[0] == signatures[1], "stub and solution name the same functions"
    messages = re.findall(r"^ *assert .*, f?\".+\"$", check, re.M)
    assert len(messages) == check.count("assert "), "every check says what is missing"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_stub_alone_fails_the_check_with_a_message(chapter):
    stub, check, _ = build(chapter)
    with pytest.raises(AssertionError, match=r"\w{3}"):
        run(stub, check, chapter)


@pytest.mark.parametrize(
    ("chapter", "right", "wrong", "said"),
    [(chapter, *answer) for chapter, answers in WRONG.items() for answer in answers],
)
def test_check_catches_a_wrong_answer(chapter, right, wrong, said):
    _, check, solution = build(chapter)
    assert right in solution
    with pytest.raises(AssertionError, match=said):
        run(solution.replace(right, wrong), check, chapter)


def test_every_chapter_is_checked_against_wrong_answers():
    assert list(WRONG) == CHAPTERS
