"""The hub door, offline: it fails within seconds, says what is missing, and tries no connection at all."""

import time

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


def rows(columns: dict, names: list[str] | None = None, label: str = "label"):
    """An in-memory dataset as `load_dataset` would return it."""
    image = next(c for c in columns if c in ("image", "img", "jpg"))
    features = datasets.Features({c: datasets.Value("int64") for c in columns})
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


def test_registry_is_consistent():
    paths = [s.path for s in hub.HUB_SETS.values()]
    assert len(set(paths)) == len(paths) == 16
    for known in hub.HUB_SETS.values():
        assert known.path.count("/") == 1
        assert {"train", "test"} <= set(dict(known.splits))
