import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from vitscope.errors import UnknownName
from vitscope.fusion import FUSIONS, LastLayer, Oracle, VFusion, load, out_of_fold, save
from vitscope.probes import fit_probes
from vitscope.weights import WeightFileError

SMALL = {
    "VFusion": {"hidden": 16, "latent": 4, "states": "strided"},
    "LastLayerMLP": {"hidden": 16, "latent": 4},
    "HFusion": {"hidden": 16, "latent": 4},
    "NeuralLogitController": {"hidden": 16, "share": 0.5},
}
NAMES = [n for n, kind in FUSIONS.items() if not kind.needs_labels]


def fitted(name, features, logits, labels, budget):
    kind = FUSIONS[name]
    given = list(features) if kind.takes_list else features
    return kind(**SMALL.get(name, {}), budget=budget).fit(given, logits, labels), given


@pytest.mark.parametrize("name", NAMES)
def test_a_head_comes_back_as_a_predictor(name, two_bits, short, tmp_path):
    features, labels = two_bits(160)
    names = np.array(["ant", "bee", "cow", "dog"])[labels.numpy()]
    head, given = fitted(name, features, None, names, short)
    file = tmp_path / "heads" / f"{name}.safetensors"
    save(head, file, {"backbone": "twin_b", "states": [0, 6, 12]})
    predictor = load(file)
    assert type(predictor.head) is type(head)
    assert predictor.head == head  # options and budget
    assert predictor.card == {"backbone": "twin_b", "states": [0, 6, 12]}
    assert predictor.classes_.tolist() == ["ant", "bee", "cow", "dog"]
    scores = head.predict_logits(given)
    assert torch.from_numpy(predictor.decision_function(given)).equal(scores)
    np.testing.assert_allclose(predictor.predict_proba(given).sum(1), 1, atol=1e-5)
    assert predictor.predict(given).tolist() == [head.classes[i] for i in scores.argmax(1)]
    assert predictor.score(given, names) == head.accuracy(given, None, names)["accuracy"]
    with pytest.raises(ValueError, match="1 classes are not among the 4 seen in training: owl"):
        predictor.score(given, ["owl"] * 160)


@pytest.mark.parametrize("name", [n for n in NAMES if FUSIONS[n].uses_logits])
def test_probes_of_given_logits_travel_with_the_head(name, two_bits, short, tmp_path):
    features, labels = two_bits(160)
    members = out_of_fold(features, labels)
    head, _ = fitted(name, features, members.logits, labels, short)
    file = tmp_path / "head.safetensors"
    with pytest.raises(ValueError, match="was fitted on given logits: pass save"):
        save(head, file, {})
    save(head, file, {}, probes=members.probes)
    expected = head.predict_logits(features, members.probes.logits(features))
    found = torch.from_numpy(load(file).decision_function(features))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_arrays_are_features_too_and_equal_heads_are_equal_files(two_bits, short, tmp_path):
    features, labels = two_bits(100)
    for name in ("a", "b"):
        head, _ = fitted("VFusion", features, None, labels, short)
        save(head, tmp_path / name, {"z": 1, "a": 2})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    predictor = load(tmp_path / "a")
    assert (predictor.predict(features.numpy()) == predictor.predict(features)).all()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_what_cannot_be_saved_is_refused(two_bits, short, tmp_path):
    features, labels = two_bits(100)
    file = tmp_path / "head"
    with pytest.raises(ValueError, match="this VFusion is not fitted"):
        save(VFusion(), file, {})
    with pytest.raises(ValueError, match="a file of Oracle could predict nothing: it needs the labels"):
        save(Oracle().fit(features, None, labels), file, {})
    head, _ = fitted("VFusion", features, None, labels, short)
    with pytest.raises(ValueError, match="the card must be plain JSON data"):
        save(head, file, {"model": object()})
    with pytest.raises(ValueError, match="VFusion needs no probes beside its own"):
        save(head, file, {}, probes=fit_probes(features, labels))
    given = LastLayer().fit(features, torch.zeros(3, 100, 4), labels)
    names = np.array(["ant", "bee", "cow", "dog"])[labels.numpy()]
    with pytest.raises(
        ValueError, match="label maps differ: the probes' classes are ant, bee, cow, dog, the"
    ):
        save(given, file, {}, probes=fit_probes(features, names))
    with pytest.raises(ValueError, match="probes are of 2 states of width 8"):
        save(given, file, {}, probes=fit_probes(features[1:], labels))
    assert not file.exists()


@pytest.fixture
def rewritten(two_bits, short, tmp_path):
    """A saved head whose header and tensors a test may change."""
    features, labels = two_bits(100)
    file = tmp_path / "head.safetensors"
    save(fitted("VFusion", features, None, labels, short)[0], file, {})
    with safe_open(file, "pt") as opened:
        header = json.loads(opened.metadata()["fusion"])
        tensors = {k: opened.get_tensor(k) for k in opened.keys()}  # noqa: SIM118  # a file is no mapping

    def write(change):
        change(header, tensors)
        save_file(tensors, file, metadata={"fusion": json.dumps(header)})
        return file

    return write


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda h, t: h.update(head="VFuson"), UnknownName, "Unknown fusion head 'VFuson'. Did you"),
        (lambda h, t: h.update(format="other.2"), WeightFileError, "format 'other.2', expected 'vitscope"),
        (lambda h, t: h["options"].update(depth=3), WeightFileError, "VFusion has no option depth"),
        (lambda h, t: h.pop("classes"), WeightFileError, "its header lacks classes"),
        (lambda h, t: t.pop("head.bias"), WeightFileError, "1 tensors are not as its header says"),
        (lambda h, t: t["head.bias"].fill_(torch.nan), WeightFileError, "head.bias holds NaN or inf"),
    ],
)  # fmt: skip
def test_files_that_were_changed_are_refused(rewritten, change, error, message):
    file = rewritten(change)
    with pytest.raises(error, match=message):
        load(file)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no fusion head"):
        load(tmp_path / "none.safetensors")
    pickled = tmp_path / "pickle.safetensors"
    torch.save({"a": torch.zeros(2)}, pickled)
    with pytest.raises(WeightFileError, match=r"pickle\.safetensors is no safetensors file"):
        load(pickled)
    plain = tmp_path / "plain.safetensors"
    save_file({"a": torch.zeros(2)}, plain)
    with pytest.raises(WeightFileError, match=r"holds no fusion head \(format None"):
        load(plain)
    save_file({"a": torch.zeros(2)}, plain, metadata={"fusion": "{"})
    with pytest.raises(WeightFileError, match="its header is no JSON"):
        load(plain)
