"""The hub door, offline: it fails within seconds, says what is missing, and tries no connection at all."""

import time

import numpy as np
import pytest

from helpers import counted_connections, encoded, photo
from vitscope import data
from vitscope.data import hub
from vitscope.data.images import UnlabelledError
from vitscope.errors import UnknownName

datasets = pytest.importorskip("datasets")
SWITCHES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """Offline switches on and an empty cache, also for libraries that read their switches on import."""
    from huggingface_hub import constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))


@pytest.mark.parametrize("name", ["cifar100", "uoft-cs/cifar100", "someone/unheard-of"])
def test_unreachable_set_fails_fast_without_a_connection(offline, name):
    started = time.monotonic()
    with counted_connections() as attempts, pytest.raises(hub.NotReachable) as caught:
        data.load(name, "test")
    assert time.monotonic() - started < 5
    assert attempts == []
    message = str(caught.value)
    for part in (name, "not in the local cache", "offline mode is on", "path of a folder"):
        assert part in message


def test_without_network_it_fails_within_seconds_too(monkeypatch, tmp_path):
    """No offline switch is set and every connection is refused: no long chain of retries."""
    from huggingface_hub import constants

    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    started = time.monotonic()
    with counted_connections(), pytest.raises(hub.NotReachable, match="cifar100"):
        data.load("cifar100", "test")
    assert time.monotonic() - started + sum(waited) < 8


def test_misspelt_hub_set_is_met_before_the_hub():
    with counted_connections() as attempts, pytest.raises(UnknownName, match="Did you mean 'cifar100'"):
        data.load("cifar_100", "test")
    assert attempts == []


@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), ("true", True), ("ON", True), ("0", False), ("", False)]
)
@pytest.mark.parametrize("switch", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_offline_switches(monkeypatch, switch, value, expected):
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(switch, value)
    assert hub.is_offline() is expected


# --- with a stand-in for the hub --------------------------------------------------------------------------


def rows(columns: dict, names: list[str] | None = None, label: str = "label", kind: str = "int64"):
    """An in-memory dataset as `load_dataset` would return it."""
    image = next(c for c in columns if c in ("image", "img", "jpg"))
    features = datasets.Features({c: datasets.Value(kind) for c in columns})
    features[image] = datasets.Image()
    if names:
        features[label] = datasets.ClassLabel(names=names)
    pictures = [{"bytes": encoded(photo(6, 6, seed=i), "PNG"), "path": None} for i in columns[image]]
    return datasets.Dataset.from_dict({**columns, image: pictures}, features=features)


@pytest.fixture
def served(monkeypatch):
    """Let `load_dataset` return given rows, as from a cache; the arguments of every call are recorded."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    calls = []

    def serve(made):
        def load_dataset(*args, **kwargs):
            calls.append((args, kwargs))
            if isinstance(made, Exception):
                raise made
            return made

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return calls

    return serve


def test_known_set_asks_for_its_path_columns_and_split(served):
    calls = served(
        rows({"img": [0, 1, 2], "fine_label": [1, 0, 1], "coarse_label": [0, 0, 0]}, ["a", "b"], "fine_label")
    )
    images = data.load("cifar100", "test")
    (args, kwargs), *_ = calls
    assert args[0] == "uoft-cs/cifar100"
    assert kwargs["split"] == "test"
    assert "trust_remote_code" not in kwargs
    assert images.labels.tolist() == [1, 0, 1]
    assert images.classes == ("a", "b")
    assert tuple(images.pixels([2, 0]).shape) == (2, 3, 6, 6)
    assert images.source["label_column"] == "fine_label"


def test_our_test_split_is_the_validation_split_of_some(served):
    calls = served(rows({"image": [0], "label": [0]}, ["a"]))
    data.load("food101", "test")
    assert calls[0][1]["split"] == "validation"


def test_pictures_and_labels_stay_together_under_limit(served):
    made = rows({"image": list(range(30)), "label": [i % 3 for i in range(30)]}, ["a", "b", "c"])
    served(made)
    part = data.load("someone/thirty", "train", limit=9)
    for i, picture in zip(part.ids, part.pixels(), strict=True):
        assert (picture.permute(1, 2, 0).numpy() == photo(6, 6, seed=int(i))).all()
    assert part.counts.tolist() == [3, 3, 3]


def test_ambiguous_columns_of_an_unknown_set_stop(served):
    served(rows({"image": [0], "label": [0], "fine_label": [0]}))
    with pytest.raises(ValueError, match="several label columns"):
        data.load("someone/two-labels", "train")
    assert data.load("someone/two-labels", "train", label_column="label").labels.tolist() == [0]


def test_hidden_labels_and_empty_splits_are_refused(served):
    served(rows({"image": [0, 1], "label": [-1, -1]}))
    with pytest.raises(UnlabelledError, match="2 of 2"):
        data.load("someone/hidden", "test")
    served(rows({"image": [], "label": []}, ["a"]))
    with pytest.raises(ValueError, match="holds no rows"):
        data.load("someone/empty", "test")


@pytest.mark.parametrize(
    ("error", "expected", "part"),
    [
        (
            ValueError("Unknown split 'test'. Should be one of ['train']."),
            ValueError,
            "no split 'test'.*'train'",
        ),
        (ConnectionError("no route"), hub.NotReachable, "ConnectionError: no route"),
        (FileNotFoundError("nothing there"), hub.NotReachable, "someone/x"),
        (RuntimeError("Dataset scripts are no longer supported"), hub.NotReachable, "no longer supported"),
        (OSError(""), hub.NotReachable, "OSError"),
    ],
)
def test_errors_of_the_hub_are_told_apart(served, monkeypatch, error, expected, part):
    served(error)
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
    with counted_connections(), pytest.raises(expected, match=part):
        data.load("someone/x", "test")


def test_missing_package_is_explained(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises((hub.NotReachable, ImportError), match="datasets"):
        data.load("cifar100", "test")


# --- groups -----------------------------------------------------------------------------------------------


def test_celeba_has_the_label_and_groups_of_its_attributes(served):
    columns = {
        "image": [0, 1, 2, 3],
        "Blond_Hair": [True, False, True, False],
        "Male": [False, True, True, False],
    }
    calls = served(rows(columns, kind="bool"))
    images = data.load("celeba", "validation")
    assert calls[0][0] == ("flwrlabs/celeba", "img_align+identity+attr")
    assert calls[0][1]["split"] == "valid"
    assert images.classes == ("not blond", "blond")
    assert images.labels.tolist() == [1, 0, 1, 0]
    assert images.extras["Male"].tolist() == [0, 1, 1, 0]
    assert images.extras["group"].tolist() == [2, 1, 3, 0]
    assert images.source["groups"] == [
        "not blond, Male not male", "not blond, Male male", "blond, Male not male", "blond, Male male",
    ]  # fmt: skip
    assert "non-commercial" in images.source["licence"]
    found = images.select([2, 0])
    assert found.extras["group"].tolist() == [3, 2]


def test_all_one_value_of_an_attribute_keeps_both_classes(served):
    """The sorted distinct values would make `True` class 0 of a split that holds no other."""
    served(rows({"image": [0, 1], "Blond_Hair": [True, True], "Male": [False, False]}, kind="bool"))
    images = data.load("celeba", "test")
    assert images.labels.tolist() == [1, 1]
    assert images.classes == ("not blond", "blond")


def test_attributes_as_zero_and_one_are_read_and_minus_one_is_refused(served):
    served(rows({"image": [0, 1], "Blond_Hair": [1, 0], "Male": [0, 1]}))
    assert data.load("celeba", "test").extras["group"].tolist() == [2, 1]
    served(rows({"image": [0, 1], "Blond_Hair": [1, -1], "Male": [0, 1]}))
    with pytest.raises(UnlabelledError, match="column Blond_Hair: holds -1; expected booleans, 0 and 1"):
        data.load("celeba", "test")
    served(rows({"image": [0, 1], "Blond_Hair": [1, 0], "Male": [0, 2]}))
    with pytest.raises(UnlabelledError, match="column Male: holds 2"):
        data.load("celeba", "test")


def test_digest_follows_the_attribute(served):
    def digest(male):
        served(rows({"image": [0, 1], "Blond_Hair": [1, 0], "Male": male}))
        return data.load("celeba", "test").digest

    assert len({digest([0, 1]), digest([1, 1])}) == 2


@pytest.mark.parametrize("declared", [None, ["Landbird", "Waterbird"]])
def test_waterbirds(served, declared):
    columns = {"image": [0, 1, 2], "label": [0, 1, 1], "place": [1, 0, 1], "bird": [5, 6, 7]}
    calls = served(rows(columns, declared))
    images = data.load("waterbirds", "test")
    assert calls[0][0][0] == "grodino/waterbirds"
    assert [c.lower() for c in images.classes] == ["landbird", "waterbird"]
    assert images.extras["group"].tolist() == [1, 2, 3]
    assert images.source["groups"][1].lower() == "landbird, place water"


def test_places_as_texts_are_mapped(served):
    made = rows({"image": [0, 1], "label": [0, 1], "place": [0, 1]})
    made = made.remove_columns("place").add_column("place", ["water", "land"])
    served(made)
    assert data.load("waterbirds", "test").extras["place"].tolist() == [1, 0]


def test_missing_group_column_is_named(served):
    served(rows({"image": [0, 1], "label": [0, 1]}))
    with pytest.raises(ValueError, match="waterbirds has no column 'place'; it has image, label"):
        data.load("waterbirds", "test")


def test_another_label_column_may_be_chosen(served):
    served(rows({"image": [0, 1, 2], "Blond_Hair": [1, 0, 1], "Male": [0, 1, 1], "Smiling": [0, 0, 1]}))
    images = data.load("celeba", "test", label_column="Smiling")
    assert images.classes == ("0", "1")
    assert images.extras["group"].tolist() == [0, 1, 3]


# --- corrupted sets ---------------------------------------------------------------------------------------


@pytest.fixture
def hub_arrays(monkeypatch, tmp_path):
    """Let `hf_hub_download` give small arrays, as from a cache; what is asked for is recorded."""
    import huggingface_hub

    pictures = np.arange(10, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 4, 3), dtype=np.uint8)
    np.save(tmp_path / "frost.npy", pictures)
    np.save(tmp_path / "labels.npy", np.tile([1, 0], 5))
    calls = []

    def download(repo, file, **kwargs):
        calls.append((repo, file, kwargs))
        if not (tmp_path / file).is_file():
            raise FileNotFoundError(f"{file} is not cached")
        return str(tmp_path / file)

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return calls


@pytest.mark.parametrize("name", ["cifar10-c/frost/4"])
def test_cifar10_c_reads_two_files_of_its_repository(hub_arrays, name):
    images = data.load(name, "test")
    assert [(repo, file) for repo, file, _ in hub_arrays] == [
        ("YashP54/cifar10-c", "frost.npy"), ("YashP54/cifar10-c", "labels.npy"),
    ]  # fmt: skip
    assert all(kwargs == {"repo_type": "dataset"} for *_, kwargs in hub_arrays)
    assert images.pixels()[:, 0, 0, 0].tolist() == [6, 7]
    assert images.labels.tolist() == [1, 0]
    assert images.name == name


def test_train_of_a_corrupted_set_is_the_clean_train(served):
    calls = served(rows({"img": [0, 1], "label": [1, 0]}, ["a", "b"]))
    for name in ("cifar10-c/fog/3", "cifar10-c"):
        images = data.load(name, "train")
        assert calls[-1][0][0] == "uoft-cs/cifar10"
        assert images.name == "cifar10"


@pytest.mark.parametrize(
    ("name", "split", "kind", "message"),
    [
        (
            "cifar10-c",
            "test",
            ValueError,
            "cifar10-c needs a corruption and a severity; write cifar10-c/CORR",
        ),
        ("cifar10-c/fog", "test", ValueError, "needs a corruption and a severity"),
        ("YashP54/cifar10-c", "test", ValueError, "write cifar10-c/CORRUPTION"),
        ("cifar10-c/forst/3", "test", UnknownName, "Did you mean 'frost'"),
        ("cifar10-c/fog/6", "test", ValueError, "severity must be 1, 2, 3, 4 or 5, got 6"),
        ("cifar10-c/fog/3", "validation", ValueError, r"has the splits train \(clean\) and test"),
        ("waterbirds/fog/3", "test", ValueError, "waterbirds has no corruptions; write 'waterbirds'"),
        ("cifar10-c/snow/3", "test", hub.NotReachable, "cannot be fetched .*Licence: CC BY 4.0"),
    ],
)
def test_bad_addresses_of_corrupted_sets(hub_arrays, name, split, kind, message):
    with pytest.raises(kind, match=message):
        data.load(name, split)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("cifar100-c/fog/3", ("loading script", "never run", "FOLDER/CORRUPTION/SEVERITY", "CC BY 4.0")),
        ("cifar100-c", ("loading script", "labels.npy")),
        ("imagenet200-c", ("no hub copy is known", "train/", "test/", "OpenOOD", "Licence")),
        ("randall-lab/cifar10-c", ("loading script", "use 'cifar10-c'")),
        ("randall-lab/cifar100-c", ("loading script", "use 'cifar100-c'")),
        ("HuggingFaceM4/FGVC-Aircraft", ("loading script", "use 'fgvc_aircraft'")),
    ],
)
def test_sets_that_need_code_are_refused_without_a_connection(name, parts):
    with counted_connections() as attempts, pytest.raises(hub.NotReachable) as caught:
        data.load(name, "test")
    assert attempts == []
    for part in parts:
        assert part in str(caught.value)


# --- the registry -----------------------------------------------------------------------------------------


def test_registry_names_the_sets_of_paper_b():
    assert len(hub.IN_DISTRIBUTION) == 16
    assert len(hub.SHIFTED) == 5
    assert {*hub.IN_DISTRIBUTION, *hub.SHIFTED, "imagenet"} == set(hub.HUB_SETS)
    assert set(hub.HUB_SETS) <= set(data.available())
    assert not set(hub.HUB_SETS) & set(data.available(embedded_only=True))


def test_registry_is_consistent():
    paths = [s.path for s in hub.HUB_SETS.values() if s.path]
    assert len(set(paths)) == len(paths)
    for name, known in hub.HUB_SETS.items():
        assert known.path.count("/") == 1 or known.refused
        assert known.licence
        assert {"train", "test"} <= set(dict(known.splits)) or known.clean
        assert known.clean is None or (name in hub.SHIFTED and known.clean in hub.HUB_SETS)
    assert set(hub.SCRIPTED.values()) <= set(hub.HUB_SETS)
    assert not set(hub.SCRIPTED) & set(paths)


def test_licence_is_part_of_what_is_missing(offline):
    with (
        counted_connections(),
        pytest.raises(hub.NotReachable, match=r"Licence: non-commercial research.*gated"),
    ):
        data.load("imagenet", "test")
    with counted_connections(), pytest.raises(hub.NotReachable) as caught:
        data.load("someone/unheard-of", "test")
    assert "Licence" not in str(caught.value)
