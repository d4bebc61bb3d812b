"""Pictures in Parquet: columns, labels, splits; what is ambiguous or unlabelled stops with its name."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from helpers import encoded, flat, levels_of
from vitscope import data
from vitscope.data.images import DecodeError, UnlabelledError


def table(labels, *, image="image", label="label", form="struct", extra=(), features=None) -> pa.Table:
    cells = [encoded(flat(10 * i), "PNG") for i in range(len(labels))]
    if form == "struct":
        cells = [{"bytes": c, "path": f"{i}.png"} for i, c in enumerate(cells)]
    columns = {image: cells, label: labels, **dict(extra)}
    made = pa.table(columns)
    if features:
        made = made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    return made


@pytest.fixture
def store(tmp_path):
    """Writes train.parquet (and test.parquet) into a folder and returns the folder."""

    def write(train: pa.Table, test: pa.Table | None = None) -> str:
        pq.write_table(train, tmp_path / "train.parquet")
        if test is not None:
            pq.write_table(test, tmp_path / "test.parquet")
        return str(tmp_path)

    return write


@pytest.mark.parametrize("form", ["struct", "bytes"])
@pytest.mark.parametrize(
    ("image", "label"), [("image", "label"), ("img", "fine_label"), ("jpg", "cls"), ("png", "labels")]
)
def test_known_column_names(store, form, image, label):
    images = data.load(store(table([7, 3, 7], image=image, label=label, form=form)), "train")
    assert levels_of(images) == [0, 10, 20]
    assert images.labels.tolist() == [1, 0, 1]
    assert images.classes == ("3", "7")
    assert images.source["image_column"] == image
    assert images.source["label_column"] == label
    assert images.source["rows"] == 3


@pytest.mark.parametrize(
    ("labels", "classes"), [(["b", "a", "b"], ("a", "b")), ([0.0, 1.0, 0.0], ("0", "1"))]
)
def test_string_and_whole_number_labels(store, labels, classes):
    images = data.load(store(table(labels)), "train")
    assert images.classes == classes
    assert [images.classes[i] for i in images.labels] == [
        str(v) if isinstance(v, str) else str(int(v)) for v in labels
    ]


def test_declared_class_names(store):
    features = {"label": {"_type": "ClassLabel", "names": ["ant", "bee", "cow"]}}
    images = data.load(store(table([2, 0, 2], features=features)), "train")
    assert images.classes == ("ant", "bee", "cow")
    assert images.labels.tolist() == [2, 0, 2]


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ([-1, -1], "2 of 2 pictures have no label"),
        ([0, None], "1 of 2 pictures have no label"),
        ([0.0, 1.5], "labels such as 1.5 are no class ids"),
        ([[0], [1, 2]], "several labels a picture"),
    ],
)
def test_unlabelled_sets_are_refused(store, labels, reason):
    with pytest.raises(UnlabelledError, match=reason):
        data.load(store(table(labels)), "train")


def test_hidden_test_labels_are_refused_although_train_is_fine(store):
    features = {"label": {"_type": "ClassLabel", "names": ["ant", "bee"]}}
    folder = store(table([0, 1], features=features), table([-1, -1], features=features))
    assert len(data.load(folder, "train")) == 2
    with pytest.raises(UnlabelledError):
        data.load(folder, "test")


def test_ambiguous_columns_stop_and_explicit_ones_work(store):
    folder = store(table([0, 1], label="fine_label", extra={"labels": [5, 5]}))
    with pytest.raises(
        ValueError, match=r"several label columns \(fine_label, labels\); name one of .* label_column"
    ):
        data.load(folder, "train")
    assert data.load(folder, "train", label_column="fine_label").labels.tolist() == [0, 1]
    assert data.load(folder, "train", label_column="labels").classes == ("5",)


def test_unknown_columns_list_what_is_there(store):
    folder = store(table([0, 1], image="picture", label="species"))
    with pytest.raises(ValueError, match="no image column by a known name; name one of picture, species"):
        data.load(folder, "train")
    with pytest.raises(ValueError, match="has no column 'photo'; it has picture, species"):
        data.load(folder, "train", image_column="photo")
    images = data.load(folder, "train", image_column="picture", label_column="species")
    assert levels_of(images) == [0, 10]


def test_missing_split_of_a_parquet_folder(store):
    with pytest.raises(ValueError, match="has no split 'test'; it has train"):
        data.load(store(table([0, 1])), "test")


def test_no_rows_is_an_error(store):
    empty = table([0, 1]).slice(0, 0)
    with pytest.raises(ValueError, match="holds no rows"):
        data.load(store(empty), "train")


@pytest.mark.parametrize(("cell", "reason"), [("a/path.png", "holds a text"), (None, "holds nothing")])
def test_cells_without_a_picture_name_the_row(store, cell, reason):
    cells = pa.array([cell, cell], type=pa.string())
    images = data.load(store(pa.table({"image": cells, "label": [0, 1]})), "train")
    with pytest.raises(DecodeError, match=f"row 1: {reason} instead of a picture"):
        images.pixels([1])


def test_a_single_file_never_gives_the_same_rows_as_train_and_test(store, tmp_path):
    """Probes trained and tested on the same rows would look perfect; a file is split or refused."""
    store(table(list(range(10)) * 4))
    file = str(tmp_path / "train.parquet")
    parts, refusals = {}, []
    for split in ("train", "test"):
        try:
            parts[split] = data.load(file, split)
        except ValueError as error:
            refusals.append((split, str(error)))
    assert all(split in message for split, message in refusals)
    assert parts, "at least one split must be readable"
    if len(parts) == 2:
        assert not set(parts["train"].ids) & set(parts["test"].ids)


def test_digest_tells_columns_apart(store):
    """Two picture columns of one file are two datasets, whatever the labels."""
    thumbs = [encoded(flat(i, (2, 2)), "PNG") for i in range(2)]
    folder = store(table([0, 1], extra={"thumb": thumbs}))
    a, b = (data.load(folder, "train", image_column=c) for c in ("image", "thumb"))
    assert not torch.equal(a.pixels(), b.pixels())
    assert a.digest != b.digest


def test_datasets_reads_the_embedded_files():
    """The repository's own Parquet opens in the hub's library with pictures and class names."""
    datasets = pytest.importorskip("datasets")
    from vitscope.data import embedded

    rows = datasets.Dataset.from_parquet(str(embedded.verified("fashion_mnist/test.parquet")))
    assert rows.features["label"].names[0] == "t-shirt/top"
    assert rows[0]["image"].size == (28, 28)
