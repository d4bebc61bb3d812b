"""The chapters on layers with what a person may hand in: a folder of pictures, models that lack something.

The cells run in this process, but as the runner has them run: parameters resolved, notebook and inputs
checked, outputs held against what the sources promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from PIL import Image

from helpers import enliven
from vitscope.pretrain.zoo import Architecture, write_weights
from vitscope.runs import notebook as nb
from vitscope.runs import postprocess, preflight, runner, session
from vitscope.runs.record import Record

CHAPTERS = ["01_phase_curves", "02_information_scrambling"]
SMALL = {"images": 60, "test_images": 60, "depth_series": [], "device": "cpu"}
OF_CHAPTER = {
    "01_phase_curves": {"training_of": None, "own_dataset": None, "control_images": 20},
    "02_information_scrambling": {"isi_images": 20, "isi_maps": 1},
}


@dataclass(frozen=True)
class Ran:
    """What a chapter left: its record, the folder beside it, and what the reader was told does not apply."""

    record: Record
    folder: Path
    missing: dict[str, str]


def folder_of_pictures(root: Path, classes: int = 3, count: int = 20) -> Path:
    """`root/SPLIT/CLASS/*.png`, 32 px: a class is a hue that noise hides in part."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for c in range(classes):
            place = root / split / f"class {c}"
            place.mkdir(parents=True)
            for k in range(count):
                pixels = rng.integers(0, 200, (32, 32, 3)) + 30 * (np.arange(3) == c) * rng.integers(0, 2)
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{k:02d}.png")
    return root


def zoo_file(path: Path, **changes) -> Path:
    """A zoo file of a lively small twin with a head for the folder's three classes."""
    shape = {"width": 32, "depth": 2, "heads": 2, "img_size": 32, "patch_size": 8, "num_classes": 3}
    architecture = Architecture(**{**shape, **changes})
    torch.manual_seed(0)
    write_weights(path, enliven(architecture.build().eval()), architecture)
    return path


def run_chapter(name: str, target: Path, *, until: str | None = None, **parameters) -> Ran | None:
    """Run a chapter with the profile `paper`; `until` names a cell after which it is left alone."""
    job = runner.plan(name, "paper", {**SMALL, **OF_CHAPTER[name], **parameters})
    preflight.check(job.parameters, job.source.parent)
    notebook = nb.read(job.source)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(job.source.parent)
        patch.setenv(session.RUN_DIR, str(target))
        patch.delenv(session.PREFIX, raising=False)
        patch.setattr(session, "find_spec", lambda _: None)  # gluing needs a kernel
        names: dict[str, object] = {"__name__": "__main__"}
        for number, cell in enumerate(nb.code_cells(notebook), start=1):
            patch.setattr(session, "_show", _collector(cell))
            exec(compile(cell.source, f"{name}:{cell.id}", "exec"), names)
            cell.execution_count = number
            if nb.PARAMETERS_TAG in nb.tags(cell):
                names |= job.parameters.model_dump(mode="json")
            if cell.id == until:
                return None
    postprocess.check_outputs(notebook, nb.promises(notebook))
    record = Record.load(target)
    assert record.parameters == job.parameters.model_dump(mode="json")
    shown = {place["figure"] if "figure" in place else place["table"] for place in _places(notebook)}
    there = {s.name for s in (*record.figures, *record.tables)}
    missing = {r.about: r.text for r in record.remarks if r.about in shown - there}
    assert shown == there | set(missing)
    return Ran(record, target, missing)


def _collector(cell: nbformat.NotebookNode):
    cell.outputs = []

    def show(bundle: dict, metadata: dict) -> None:
        cell.outputs.append(nbformat.v4.new_output("display_data", bundle, metadata=metadata))

    return show


def _places(notebook: nbformat.NotebookNode) -> list[dict]:
    found = (o.metadata.get("vitscope", {}) for cell in nb.code_cells(notebook) for o in cell.outputs)
    return [place for place in found if place]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    return folder_of_pictures(tmp_path_factory.mktemp("data") / "my pictures")


# --- models of several kinds ------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=CHAPTERS)
def mixed(request, pictures, tmp_path_factory) -> Ran:
    """A small timm model and a file of another depth, width and name, both with random weights."""
    folder = tmp_path_factory.mktemp("mixed")
    narrow = zoo_file(folder / "My Nét.safetensors")
    models = ["test_vit", str(narrow)]
    return run_chapter(
        request.param, folder / "run", backbones=models, weights="random", dataset=str(pictures)
    )


def test_every_figure_and_table_is_there_with_its_data(mixed):
    # of what needs a series of depths, a named task or a training, each says so
    assert set(mixed.missing) <= {
        "similarity_depth", "phases_series", "position_effect", "similarity_training", "training",
        "training_accuracy", "isi_depth",
    }  # fmt: skip
    for kind, shown in (("figures", mixed.record.figures), ("tables", mixed.record.tables)):
        for each in shown:
            assert (mixed.folder / kind / f"{each.name}.csv").stat().st_size > 20
            assert each.rows >= 1
    for figure in mixed.record.figures:
        assert (mixed.folder / "figures" / f"{figure.name}.png").read_bytes().startswith(b"\x89PNG")
        assert any(character.isdigit() for character in figure.text)


def test_both_models_and_both_parts_are_on_record(mixed):
    assert [m.name for m in mixed.record.models] == ["test_vit", "My Nét"]
    assert {m.source["kind"] for m in mixed.record.models} == {"random"}
    assert [(d.split, d.count, d.classes) for d in mixed.record.data] == [("train", 60, 3), ("test", 60, 3)]
    assert mixed.record.changed["weights"] == "random"


def test_no_series_is_said_and_not_counted(mixed):
    numbers = mixed.record.numbers
    for key in {"three_phases_series", "onset_series"} & set(numbers):
        assert numbers[key].value is None
        assert numbers[key].text.startswith("nothing (no ")
    assert any(key.endswith(".my-n-t") for key in numbers)
    assert any(key.endswith(".test_vit") for key in numbers)


# --- no CLS token -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=CHAPTERS)
def without_cls(request, pictures, tmp_path_factory) -> Ran:
    folder = tmp_path_factory.mktemp("gap")
    models = ["test_vit2"]  # a register, no CLS, mean pooling
    return run_chapter(request.param, folder, backbones=models, weights="random", dataset=str(pictures))


def test_what_needs_a_cls_token_is_not_applicable_and_the_rest_is_there(without_cls):
    of_cls = {
        "01_phase_curves": {"cls_patch_cosine", "probes_cls", "phases_probe"},
        "02_information_scrambling": {"attention_cls_centrality", "centrality"},
    }[without_cls.record.notebook]
    said = {name for name, reason in without_cls.missing.items() if "No backbone here has a CLS" in reason}
    assert said == of_cls
    there = {f.name for f in (*without_cls.record.figures, *without_cls.record.tables)}
    patches = (
        {"probes_patch_mean", "phases"} if "probes_cls" in of_cls else {"isi", "nc1", "collapse", "advice"}
    )
    assert patches <= there


def test_no_number_of_a_cls_token_is_invented(without_cls):
    numbers = without_cls.record.numbers
    of_cls = {
        "01_phase_curves": {
            "last_cls", "patch_minus_cls.test_vit2", "cls_fall.test_vit2", "three_phases_probe",
        },
        "02_information_scrambling": {"cls_centrality.test_vit2", "centrality_accuracy"},
    }[without_cls.record.notebook]  # fmt: skip
    for key in of_cls:
        assert numbers[key].value is None, key
        assert numbers[key].text.startswith("nothing ("), key
    assert numbers["task_accuracy.test_vit2"].value > 0


# --- two blocks -------------------------------------------------------------------------------------------


def test_two_blocks_are_too_few_for_phases(pictures, tmp_path):
    file = zoo_file(tmp_path / "two.safetensors")
    same = {"dataset": str(pictures), "own_dataset": "same"}
    ran = run_chapter("01_phase_curves", tmp_path / "run", backbones=[str(file)], **same)
    reason = "not detected, because phases need a curve of 5 states or more, got 4"
    numbers = ran.record.numbers
    for key in ("plateau_length.two", "climb_onset.two"):
        assert (numbers[key].value, numbers[key].text) == (None, reason)
    assert numbers["three_phases"].value == 0
    table = (ran.folder / "tables" / "phases.csv").read_text()
    assert table.count(reason) == 3
    # its own head names the folder's classes: the file handed in by its path is scaled and scored too
    assert "position_effect" in {f.name for f in ran.record.figures}
    assert 0 <= numbers["accuracy.two"].value <= 100
    assert ran.record.models[0].source == {"kind": "zoo file"}


# --- what cannot be measured ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHAPTERS)
def test_one_class_is_no_task(name, tmp_path):
    folder = folder_of_pictures(tmp_path / "alone", classes=1)
    file = zoo_file(tmp_path / "two.safetensors")
    given = {"backbones": [str(file)], "dataset": str(folder), "images": 20, "test_images": 20}
    with pytest.raises(ValueError, match=r"one class only .*a probe needs at least two"):
        run_chapter(name, tmp_path / "run", **given)
    assert not (tmp_path / "run" / "record.json").exists()


def test_too_few_pictures_for_the_index_say_how_many_are_needed(pictures, tmp_path):
    # 4 patches a picture; 32 + 32 columns want 17 pictures in the three tenths that are fitted, and one more
    file = zoo_file(tmp_path / "coarse.safetensors", patch_size=16)
    given = {"backbones": [str(file)], "dataset": str(pictures), "until": "isi"}
    for images in (20, 59):
        with pytest.raises(ValueError, match=f"at least 60 images for a ridge with 64 columns.*got {images}"):
            run_chapter("02_information_scrambling", tmp_path / "run", isi_images=images, **given)
    run_chapter("02_information_scrambling", tmp_path / "run", isi_images=60, **given)
