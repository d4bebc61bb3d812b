"""Pictures of one's own: folder layouts, bad files, Parquet columns; labels stay with their pictures."""

import numpy as np
import pytest
import torch

from helpers import encoded, flat, levels_of, photo
from vitscope import data
from vitscope.data.files import load_folder
from vitscope.data.images import DecodeError


def fill(folder, levels, *, kind="PNG", ending=".png"):
    folder.mkdir(parents=True, exist_ok=True)
    for level in levels:
        (folder / f"{level:03d}{ending}").write_bytes(encoded(flat(level), kind))


# --- folders ----------------------------------------------------------------------------------------------


@pytest.fixture
def split_root(tmp_path):
    """train and test folders; the class `owl` is only in test, so labels must be made from both."""
    fill(tmp_path / "train/cat", [10, 11])
    fill(tmp_path / "train/zebra", [20, 21, 22])
    fill(tmp_path / "test/cat", [30])
    fill(tmp_path / "test/owl", [40])
    fill(tmp_path / "test/zebra", [50])
    return tmp_path


def test_split_folders(split_root):
    train, test = (data.load(str(split_root), split) for split in ("train", "test"))
    assert train.classes == test.classes == ("cat", "owl", "zebra")
    assert levels_of(train) == [10, 11, 20, 21, 22]
    assert train.labels.tolist() == [0, 0, 2, 2, 2]
    assert levels_of(test) == [30, 40, 50]
    assert test.labels.tolist() == [0, 1, 2]
    assert train.ids.tolist()[0] == "train/cat/010.png"
    assert train.source["split_rule"] == "folders"
    assert train.skipped == ()
    assert train.counts.tolist() == [2, 0, 3]


@pytest.mark.parametrize("name", ["val", "validation", "Test", "valid"])
def test_other_names_of_the_test_split(tmp_path, name):
    fill(tmp_path / "train/a", [1])
    fill(tmp_path / name / "a", [2])
    assert levels_of(data.load(str(tmp_path), "test")) == [2]


def test_test_folder_wins_over_validation(tmp_path):
    for name, level in (("train", 1), ("val", 2), ("test", 3)):
        fill(tmp_path / name / "a", [level])
    assert levels_of(data.load(str(tmp_path), "test")) == [3]


def test_missing_split_lists_those_present(tmp_path):
    fill(tmp_path / "train/a", [1, 2])
    with pytest.raises(ValueError, match="has no split 'test'; it has train"):
        data.load(str(tmp_path), "test")


def test_split_folders_without_classes_are_not_taken_for_classes(tmp_path):
    fill(tmp_path / "train", [1, 2])
    fill(tmp_path / "test", [3])
    with pytest.raises(ValueError, match=r"train has no class folders; expected train/CLASS/picture.jpg"):
        data.load(str(tmp_path), "train")


def test_folder_without_splits_gets_a_seeded_fifth(tmp_path):
    fill(tmp_path / "a", range(10))
    fill(tmp_path / "b", range(100, 125))
    parts = {split: data.load(str(tmp_path), split) for split in ("train", "test")}
    assert parts["test"].counts.tolist() == [2, 5]
    assert parts["train"].counts.tolist() == [8, 20]
    together = levels_of(parts["train"]) + levels_of(parts["test"])
    assert sorted(together) == [*range(10), *range(100, 125)]
    again, other = (data.load(str(tmp_path), "test", seed=s) for s in (0, 1))
    assert again.ids.tolist() == parts["test"].ids.tolist() != other.ids.tolist()
    assert "seed 0" in parts["test"].source["split_rule"]
    with pytest.raises(ValueError, match="splits train and test, not 'val'"):
        data.load(str(tmp_path), "val")


def test_class_too_small_to_split_is_named(tmp_path):
    fill(tmp_path / "a", [1, 2, 3])
    fill(tmp_path / "lonely", [9])
    with pytest.raises(ValueError, match="class lonely has one picture; a split needs two"):
        data.load(str(tmp_path), "train")


def test_endings_in_any_case_hidden_files_and_strangers(tmp_path):
    fill(tmp_path / "train/a", [1], kind="JPEG", ending=".JPG")
    fill(tmp_path / "train/a", [2], kind="JPEG", ending=".JpEg")
    fill(tmp_path / "train/a/deeper", [3])
    for stub in (
        "a/._good.jpg",
        "a/.DS_Store",
        "a/Thumbs.db",
        "a/notes.txt",
        ".cache/x.png",
        "a/.thumbnails/4.png",
    ):
        path = tmp_path / "train" / stub
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\x00\x05\x16\x07" + bytes(60))
    images = data.load(str(tmp_path), "train")
    assert images.ids.tolist() == ["train/a/001.JPG", "train/a/002.JpEg", "train/a/deeper/003.png"]
    assert images.classes == ("a",)


def test_no_pictures_and_no_folder(tmp_path):
    (tmp_path / "train/a").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"no pictures below .*train; endings read: .*\.jpg"):
        data.load(str(tmp_path), "train")
    with pytest.raises(ValueError, match="no such folder or Parquet file"):
        data.load(str(tmp_path / "elsewhere"), "train")


def test_sizes_may_differ(tmp_path):
    folder = tmp_path / "train/a"
    folder.mkdir(parents=True)
    flat(5, (8, 4)).save(folder / "0.png")
    flat(6, (3, 3)).save(folder / "1.png")
    pixels = data.load(str(tmp_path), "train").pixels()
    assert isinstance(pixels, list)
    assert [tuple(p.shape) for p in pixels] == [(3, 4, 8), (3, 3, 3)]
    assert isinstance(data.load(str(tmp_path), "train").pixels([1]), torch.Tensor)


def test_digest_follows_content_and_classes(split_root):
    first = data.load(str(split_root), "train").digest
    assert first == data.load(str(split_root), "train").digest
    fill(split_root / "train/cat", [10, 12])
    changed = data.load(str(split_root), "train").digest
    (split_root / "train/cat").rename(split_root / "train/tiger")
    assert len({first, changed, data.load(str(split_root), "train").digest}) == 3


# --- bad files --------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path):
    """60 good pictures in two classes, and three that do not decode (under 5 %)."""
    fill(tmp_path / "train/a", range(30))
    fill(tmp_path / "train/b", range(100, 130))
    good = encoded(photo(100, 100), "JPEG")
    (tmp_path / "train/a/cut.jpg").write_bytes(good[: len(good) // 2])
    (tmp_path / "train/b/empty.jpg").write_bytes(b"")
    (tmp_path / "train/a/000a.png").write_bytes(b"<html>404</html>")
    return tmp_path


def test_fail_names_the_file(damaged):
    images = load_folder(damaged, "train")
    bad = images.ids.tolist().index("train/a/cut.jpg")
    images.pixels([0])  # good ones can be read
    with pytest.raises(DecodeError, match=r"train/a/cut\.jpg"):
        images.pixels([bad])


def test_skip_reports_them_and_keeps_labels_with_pictures(damaged):
    images = data.load(str(damaged), "train", on_error="skip")
    assert {path for path, _ in images.skipped} == {
        "train/a/cut.jpg",
        "train/b/empty.jpg",
        "train/a/000a.png",
    }
    assert all("not a readable picture" in reason for _, reason in images.skipped)
    levels = np.array(levels_of(images))
    assert levels.tolist() == [*range(30), *range(100, 130)]
    assert (images.labels == (levels >= 100)).all()
    assert [i.rpartition("/")[2] for i in images.ids] == [f"{v:03d}.png" for v in levels]


def test_skip_survives_selection_and_limit(damaged):
    images = data.load(str(damaged), "train", on_error="skip", limit=10)
    assert len(images) == 10
    assert len(images.skipped) == 3
    assert images.counts.tolist() == [5, 5]


def test_skip_stops_when_too_much_is_bad(tmp_path):
    fill(tmp_path / "train/a", range(20))
    for i in range(2):
        (tmp_path / f"train/a/bad{i}.png").write_bytes(b"")
    with pytest.raises(
        DecodeError, match=r"2 of 22 files .* \(more than 5%\): train/a/bad0.png, train/a/bad1.png"
    ):
        data.load(str(tmp_path), "train", on_error="skip")


def test_unknown_error_rule(tmp_path):
    fill(tmp_path / "train/a", [1])
    with pytest.raises(ValueError, match="on_error must be 'fail' or 'skip', got 'ignore'"):
        data.load(str(tmp_path), "train", on_error="ignore")
