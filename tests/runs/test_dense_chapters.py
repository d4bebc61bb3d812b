"""The chapters on dense features on folders in the published layouts, and on models without CLS."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from PIL import Image

from chapters import run_chapter
from helpers import enliven, photo
from vitscope.pretrain.zoo import VARIANTS, Architecture, write_weights
from vitscope.runs.preflight import PreflightError

SMALL = {"images": 20, "test_images": 20, "img_size": 64, "device": "cpu", "gallery": 1}
SIDE = 64


def small_variants(folder, prefix="", classes=3, seed=0) -> list[str]:
    """Files of four small models, one of each kind of token interaction."""
    files = []
    for name, changes in VARIANTS.items():
        plain = Architecture(width=32, depth=3, heads=2, num_classes=classes)
        architecture = dataclasses.replace(plain, **changes)
        file = folder / f"{prefix}{name}.safetensors"
        write_weights(file, enliven(architecture.build().eval(), seed), architecture)
        files.append(str(file))
    return files


@pytest.fixture(scope="module")
def variants(tmp_path_factory) -> list[str]:
    return small_variants(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Small VOC, NYUv2 and ImageNet with boxes: a square object on a photograph, nearer than the rest."""
    root = tmp_path_factory.mktemp("dense")
    voc, nyu, boxes = root / "voc", root / "nyu", root / "in"
    for place in (
        voc / "JPEGImages", voc / "SegmentationClass", voc / "ImageSets/Segmentation", nyu / "rgb",
        nyu / "depth", boxes / "val", boxes / "Annotations",
    ):  # fmt: skip
        place.mkdir(parents=True)
    for number in range(40):
        x, y = 8 * (number % 5), 8 * (number % 4)
        picture = np.asarray(photo(SIDE, SIDE, seed=number)).copy()
        mask = np.zeros((SIDE, SIDE), np.uint8)
        mask[y : y + 24, x : x + 24] = 1 + number % 2
        picture[mask > 0] = (250, 20, 20) if number % 2 else (20, 20, 250)
        shown = Image.fromarray(picture)
        shown.save(voc / f"JPEGImages/{number:02d}.jpg")
        shown.save(nyu / f"rgb/{number:02d}.png")
        shown.save(boxes / f"val/{number:02d}.JPEG", format="JPEG")
        indexed = Image.fromarray(mask, mode="P")
        indexed.putpalette([0, 0, 0] * 256)
        indexed.save(voc / f"SegmentationClass/{number:02d}.png")
        Image.fromarray(np.where(mask > 0, 1000, 4000).astype(np.uint16)).save(
            nyu / f"depth/{number:02d}.png"
        )
        corners = "".join(
            f"<{k}>{v}</{k}>" for k, v in (("xmin", x), ("ymin", y), ("xmax", x + 24), ("ymax", y + 24))
        )
        size = f"<size><width>{SIDE}</width><height>{SIDE}</height></size>"
        (boxes / f"Annotations/{number:02d}.xml").write_text(
            f"<annotation>{size}<object><bndbox>{corners}</bndbox></object></annotation>"
        )
    names = [f"{number:02d}" for number in range(40)]
    for folder, parts in ((voc / "ImageSets/Segmentation", ("train", "val")), (nyu, ("train", "test"))):
        for part, listed in zip(parts, (names[:20], names[20:]), strict=True):
            (folder / f"{part}.txt").write_text("\n".join(listed) + "\n")
    return {"scenes": f"voc:{voc}", "depth": f"nyuv2:{nyu}", "boxes": f"imagenet_boxes:{boxes}"}


def test_semantic_diffusion_in_folders(variants, folders, tmp_path):
    given = SMALL | folders | {"backbones": variants[:1], "control_images": 20, "training_of": None}
    record = run_chapter("07_semantic_diffusion", tmp_path / "run", tmp_path / "cache", **given)
    assert [data.name.partition(":")[0] for data in record.data[:2]] == ["voc", "voc"]
    # a red or blue square on a photograph: any linear map of pixels finds it
    assert record.numbers["miou_shallow.softmax"].value > record.numbers["miou_baseline"].value + 20
    assert record.numbers["pib_deep.softmax"].n == 20
    assert record.numbers["leakage_last.softmax"].value is None
    assert "because" in record.numbers["leakage_last.softmax"].text


def test_sparse_attention_in_folders(variants, folders, tmp_path):
    alone = small_variants(tmp_path, "dino_", classes=0, seed=1)
    given = SMALL | {
        "backbones": variants, "repeats": [], "self_supervised": alone, "datasets": [folders["scenes"]],
        "depth": [folders["depth"]], "dataset": "digits", "probe_images": 60, "training_of": [],
    }  # fmt: skip
    record = run_chapter("08_entmax_attention", tmp_path / "run", tmp_path / "cache", **given)
    value = {key: number.value for key, number in record.numbers.items()}
    assert value["added_parameters.entmax15"] == 0
    assert value["added_parameters.register4"] == 2 * 4 * 32  # four tokens and their position embeddings
    assert (value["registers.register4"], value["registers.softmax"]) == (4, 0)
    assert value["support.softmax"] == pytest.approx(100)
    assert value["support.entmax15"] == pytest.approx(100 - value["zero_share.entmax15"])
    assert value["zero_share.entmax15"] > 5
    lead = value["miou.voc.entmax15"] - value["miou.voc.register4"]
    assert value["miou_lead.voc.register4"] == pytest.approx(lead)
    assert value["miou_gain.voc.entmax15"] == pytest.approx(value["miou_lead.voc.softmax"])
    assert value["rmse.nyuv2.softmax"] < 1.5
    assert value["images_seen.softmax"] is None
    assert value["self_entmax_miou_gain"] == pytest.approx(value["miou_gain.voc.dino_entmax15"])
    assert value["self_entmax_miou_gain"] != value["entmax_miou_gain"]
    drawn = {figure.name for figure in record.figures}
    both = {"self_supervised_gains", "self_supervised_attention", "self_supervised_pca"}
    assert drawn >= {"self_supervised", *both}


def test_what_a_model_without_cls_cannot_show_is_said(tmp_path):
    given = SMALL | {
        "backbones": ["vit_medium_patch16_reg4_gap_256"], "weights": "random", "control_images": 20,
        "training_of": None,
    }  # fmt: skip
    record = run_chapter("07_semantic_diffusion", tmp_path / "run", tmp_path / "cache", **given)
    said = {remark.about: remark.text for remark in record.remarks}
    assert "CLS" in said["point_in_box"]
    assert {"segmentation", "depth", "cosine_gap", "masks"} <= {figure.name for figure in record.figures}
    assert not [key for key in record.numbers if key.startswith("cls_gain.") and record.numbers[key].value]


def test_a_folder_that_is_not_there_is_named_before_a_kernel_starts(tmp_path):
    with pytest.raises(PreflightError, match="no such folder: nowhere; layout voc expects JPEGImages"):
        run_chapter("07_semantic_diffusion", tmp_path, tmp_path, scenes="voc:nowhere", backbones=["depth_06"])
