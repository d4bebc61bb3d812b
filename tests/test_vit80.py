"""The ViT of 80 lines: timm's model number for number, and what its chapter builds on, exercises included."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest
import torch

from chapters import run_chapter
from helpers import enliven, noise
from vitscope import backbones, vit80
from vitscope.attention_maps import full_map
from vitscope.backbones import UnsupportedModel
from vitscope.capture import capture
from vitscope.first_look import code_lines
from vitscope.pretrain.zoo import Architecture, write_weights
from vitscope.runs import notebook as nb
from vitscope.vit80 import Block, ViT

NAME = "00_inside_a_vit"
NOTEBOOK = nb.read(Path(__file__).resolve().parents[1] / "notebooks" / f"{NAME}.ipynb")
SHAPES = [
    {"width": 32, "depth": 2, "heads": 2, "num_classes": 5},
    {"width": 48, "depth": 3, "heads": 3, "num_classes": 7, "img_size": 32},
    {"width": 32, "depth": 1, "heads": 1, "num_classes": 3, "img_size": 48, "patch_size": 16},
    {"width": 24, "depth": 2, "heads": 4, "num_classes": 0},
]


def of(architecture: Architecture, **changes: int) -> ViT:
    shape = {
        "size": architecture.img_size, "patch": architecture.patch_size, "width": architecture.width,
        "depth": architecture.depth, "heads": architecture.heads, "classes": architecture.num_classes,
    }  # fmt: skip
    return ViT(**{**shape, **changes}).eval()


def lively(depth: int = 3, classes: int = 5, seed: int = 0) -> ViT:
    return enliven(ViT(32, 8, 32, depth, 2, classes).eval(), seed).requires_grad_(False)


# --- the model --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s.values())))
def test_equals_timm_with_its_tensors(shape):
    architecture = Architecture(**shape)
    theirs = enliven(architecture.build().eval()).double()
    mine = of(architecture).double()
    mine.load_state_dict(theirs.state_dict(), strict=True)
    pictures = noise(3, architecture.img_size).double()
    with torch.no_grad():
        torch.testing.assert_close(mine(pictures), theirs(pictures), rtol=1e-9, atol=1e-9)


def test_equals_the_zoo_with_its_states_and_maps():
    backbone = backbones.load("twin_s", device="cpu")
    mine = ViT(size=64, patch=8, width=96, depth=12, heads=3, classes=1291).eval()
    mine.load_state_dict(backbone.model.state_dict(), strict=True)
    pictures = noise(2, 64)
    with torch.no_grad():
        seen = mine(pictures, return_all=True)
        torch.testing.assert_close(seen.logits, backbone.model(pictures), rtol=1e-5, atol=1e-5)
        assert torch.equal(seen.logits, mine(pictures))
        tokens = capture(backbone, pictures, norm="none", keep_tokens=2).tokens
        torch.testing.assert_close(seen.states[0], tokens[0][:, 1:], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(torch.stack(seen.states[1:]), tokens[1:], rtol=1e-5, atol=2e-5)
        for block, before, found in zip(backbone.model.blocks, seen.states[1:], seen.attention, strict=False):
            wanted = full_map(block.attn, block.norm1(before))
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    assert [tuple(s.shape) for s in seen.states] == [(2, 64, 96)] + [(2, 65, 96)] * 13
    assert [tuple(a.shape) for a in seen.attention] == [(2, 3, 65, 65)] * 12


def test_is_eighty_lines_at_most():
    source = Path(vit80.__file__).read_text(encoding="utf-8")
    counted, start = set(), True
    silent = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        docstring = token.type == tokenize.STRING and start
        if token.type not in (*silent, tokenize.ENDMARKER) and not docstring:
            counted |= set(range(token.start[0], token.end[0] + 1))
        if token.type != tokenize.COMMENT:
            start = token.type in (*silent, tokenize.ENDMARKER)
    assert len(counted) <= 80
    assert code_lines(vit80) == len(counted)
    assert not {"timm", "einops"} & set(re.findall(r"\w+", " ".join(re.findall(r"import .*", source))))


def test_gradients_reach_every_tensor():
    model = enliven(ViT(32, 8, 32, 2, 2, 5))
    torch.nn.functional.cross_entropy(model(noise(4, 32)), torch.tensor([0, 1, 2, 3])).backward()
    for name, tensor in model.named_parameters():
        assert tensor.grad is not None, name
        assert tensor.grad.isfinite().all(), name
        assert tensor.grad.abs().max() > 1e-7, name


@pytest.mark.parametrize("shape", [(2, 3, 48, 48), (2, 1, 32, 32), (2, 3, 32, 64), (3, 32, 32)])
def test_other_pictures_are_refused(shape):
    with pytest.raises(ValueError, match=r"got .*need \[N, 3, 32, 32\]: resize them") as raised:
        lively()(torch.zeros(shape))
    assert str(list(shape)) in str(raised.value)


@pytest.mark.parametrize(("size", "patch", "width", "heads"), [(32, 7, 32, 2), (32, 8, 32, 3)])
def test_shapes_that_do_not_divide_are_refused(size, patch, width, heads):
    wanted = f"patch {patch} must divide size {size}, and heads {heads} width {width}"
    with pytest.raises(ValueError, match=wanted):
        ViT(size, patch, width, 1, heads, 2)


@pytest.mark.parametrize("order", [[0], [1, 2, 4], [-1]])
def test_blocks_that_do_not_exist_are_refused(order):
    with pytest.raises(ValueError, match=rf"blocks from 1 to 3, got \[{order[0]}"):
        lively(depth=3)(noise(1, 32), order=order)


# --- blocks left out, moved, repeated ---------------------------------------------------------------------


def test_a_block_that_adds_nothing_can_go():
    model, pictures = lively(depth=3), noise(4, 32)
    idle = model.blocks[1]
    for tensor in (*idle.attn.proj.parameters(), *idle.mlp.fc2.parameters()):
        tensor.zero_()
    assert torch.equal(model(pictures), model(pictures, order=[1, 3]))
    assert torch.equal(model(pictures), model(pictures, order=[2, 1, 2, 3, 2]))
    assert not torch.allclose(model(pictures), model(pictures, order=[1, 2]))


def test_order_is_the_order():
    model, pictures = lively(depth=3), noise(2, 32)
    x = model.embed(pictures)[1]
    for number in (3, 1):
        x = model.blocks[number - 1](x)[0]
    assert torch.equal(model(pictures, order=[3, 1]), model.answer(x))
    assert torch.equal(model(pictures, order=[]), model.answer(model.embed(pictures)[1]))
    assert torch.equal(model(pictures, order=[1, 2, 3]), model(pictures))


def test_without_positions_a_permutation_of_patches_permutes_tokens():
    model, pictures = lively(), noise(2, 32)
    model.pos_embed.zero_()
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    rows = torch.nn.functional.unfold(pictures, 8, stride=8)[:, :, order]
    moved = torch.nn.functional.fold(rows, (32, 32), 8, stride=8)
    one, other = model(pictures, return_all=True), model(moved, return_all=True)
    torch.testing.assert_close(one.logits, other.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(one.states[-1][:, 1:][:, order], other.states[-1][:, 1:], rtol=1e-3, atol=1e-4)
    maps = one.attention[0][:, :, 0, 1:][..., order]
    torch.testing.assert_close(maps, other.attention[0][:, :, 0, 1:], rtol=1e-3, atol=1e-5)


def test_a_block_has_the_weights_that_the_chapter_counts():
    assert sum(t.numel() for t in Block(96, 3).parameters()) == 12 * 96**2 + 13 * 96


# --- the exercises ----------------------------------------------------------------------------------------

FENCE = re.compile(r"```python\n(.*?)```", re.S)
EXERCISES = {c.id: c.source for c in NOTEBOOK.cells if c.id.startswith("exercise-")}
WRONG = {
    "exercise-shape": ["map_shape = (10, 4, 64, 64)", "map_shape = (10, 65, 65)"],
    "exercise-weights": ["def block_weights(width):\n    return 12 * width**2"],
    "exercise-order": ["order = [*range(1, 13)]", "order = [6, *range(1, 13)]", "order = [*range(1, 13), 6]"],
    "exercise-head": [
        "def silenced(model, block, head):\n    return model",
        "import copy\n\n\ndef silenced(model, block, head):\n    changed = copy.deepcopy(model)\n"
        "    changed.blocks[block - 1].attn.proj.weight.data.zero_()\n    return changed",
    ],
    "exercise-registers": [],
}


@pytest.fixture(scope="module")
def start() -> dict:
    """The names that the exercises begin with."""
    source = next(c.source for c in NOTEBOOK.cells if c.id == "exercises")
    names: dict[str, object] = {}
    exec(FENCE.findall(source)[0], names)
    return names


def parts(source: str) -> tuple[str, str]:
    """The check, which everybody sees, and the solution, which folds out."""
    visible, folded = source.split(":::{dropdown} Solution")
    (check,), (solution,) = FENCE.findall(visible), FENCE.findall(folded)
    return check, solution


def test_exercises_go_from_reading_to_building():
    levels = [re.match(r"\*\*Exercise (\d) \((\w+)\)\.\*\*", text).groups() for text in EXERCISES.values()]
    assert [number for number, _ in levels] == [str(i + 1) for i in range(len(levels))]
    assert list(dict.fromkeys(level for _, level in levels)) == ["read", "change", "build"]
    assert set(EXERCISES) == set(WRONG)


@pytest.mark.parametrize("name", EXERCISES)
def test_solution_passes_its_check(start, name):
    check, solution = parts(EXERCISES[name])
    names = dict(start)
    exec(solution, names)
    exec(check, names)
    messages = re.findall(r"^ *assert .*, f?\".+\"$", check, re.M)
    assert len(messages) == check.count("assert "), "every check says what is missing"


@pytest.mark.parametrize(("name", "answer"), [(n, a) for n, answers in WRONG.items() for a in answers])
def test_check_catches_a_wrong_answer(start, name, answer):
    check, _ = parts(EXERCISES[name])
    names = dict(start)
    exec(answer, names)
    with pytest.raises(AssertionError, match=r"\w{3}"):
        exec(check, names)


def test_registers_in_the_wrong_place_are_caught(start):
    check, solution = parts(EXERCISES["exercise-registers"])
    names = dict(start)
    exec(solution.replace("[*first, patches]", "[first[0], patches, first[1]]"), names)
    with pytest.raises(AssertionError, match="is this the order"):
        exec(check, names)


# --- the chapter ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chapter")
    return run_chapter(NAME, folder / "run", folder / "cache", device="cpu")


def test_every_number_in_the_prose_is_reported(record):
    glued = {
        key
        for cell in NOTEBOOK.cells
        if cell.cell_type == "markdown"
        for key in re.findall(r"\{glue:text\}`([^`]+)`", cell.source)
    }
    assert len(glued) > 30
    assert glued <= set(record.numbers)


def test_the_chapter_finds_what_must_be_so(record):
    value = {key: number.value for key, number in record.numbers.items()}
    assert value["code_lines"] <= 80
    assert value["parameters"] == sum(t.numel() for t in ViT(64, 8, 96, 12, 3, 1291).parameters())
    assert value["largest_difference"] < 1e-4 < value["largest_score"]
    assert value["same_answers"] == record.parameters["images"]
    assert value["accuracy"] > 60 > 5 > 100 * value["random_hits"] / record.parameters["images"]
    assert value["place_difference"] < 1e-3
    assert value["place_without_in_place"] == value["place_without_shuffled"]
    assert value["peak"] > 1.5 * value["area"]
    assert value["random_peak"] == pytest.approx(value["area"], abs=3)
    assert value["hand"] == pytest.approx(76.8, abs=0.05)  # e^(4/√2) / (e^0 + e^(4/√2) + e^(2/√2))
    assert {f.name for f in record.figures} >= {"patches", "answers", "left_out", "swapped", "places"}
    assert [t.name for t in record.tables] == ["shapes", "by_hand", "weights"]


def test_a_file_of_ones_own_runs_and_another_kind_is_refused(tmp_path):
    architecture = Architecture(width=32, depth=2, heads=2, img_size=32, num_classes=1291)
    file = tmp_path / "mine.safetensors"
    write_weights(file, enliven(architecture.build().eval()), architecture)
    given = {"device": "cpu", "images": 20, "pictures": 1}
    found = run_chapter(NAME, tmp_path / "run", tmp_path / "cache", backbone=str(file), **given)
    assert found.numbers["patches"].value == 16
    assert found.numbers["swapped_free"].n == 1
    with pytest.raises(UnsupportedModel, match=r"sup_register4 is not the plain ViT .*4 register tokens"):
        run_chapter(NAME, tmp_path / "other", tmp_path / "cache", backbone="sup_register4", **given)
