"""Fits that are kept: found again bit for bit, and only where nothing that decides them differs."""

import ast
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

import vitscope
from vitscope import comparison, fits
from vitscope.ablations import LastStates
from vitscope.fits import fit_head, fitted_members, fitted_probes
from vitscope.frozen import Part, Task
from vitscope.fusion import LastLayer, LogitAverage, SelectionBudget, SuperLearner, VFusion, out_of_fold
from vitscope.probes import ProbeSet, fit_probes
from vitscope.store import Store

LABELS = np.array(["a", "b", "c"])[np.arange(60) % 3]
BUDGET = SelectionBudget(configurations=2, steps=10)


def features(seed: int = 0) -> torch.Tensor:
    noise = torch.randn(3, 60, 6, generator=torch.Generator().manual_seed(seed))
    noise[1:, torch.arange(60), torch.arange(60) % 3] += 2.0
    return noise


def vfusion(**options) -> VFusion:
    return VFusion(**{"hidden": 8, "latent": 4, "penalty": 0.0, "budget": BUDGET} | options)


def fit(head, folder, x=None, labels=LABELS, logits=None, groups=None, seed=0, validation=0.2) -> float:
    x = features() if x is None else x
    options = {"groups": groups, "seed": seed, "validation": validation}
    return fit_head(head, x, logits, labels, cache=folder, **options)


@pytest.mark.parametrize(
    "make", [vfusion, lambda: SuperLearner(budget=BUDGET), lambda: LastLayer(budget=BUDGET)]
)
def test_a_found_head_is_the_fitted_one(make, tmp_path):
    first, again = make(), make()
    seconds = fit(first, tmp_path)
    assert fit(again, tmp_path) == seconds > 0
    assert len(Store(tmp_path).entries()) == 1
    assert again.report == first.report
    assert again.fitted.classes == first.fitted.classes
    assert again.fitted.sizes == first.fitted.sizes
    logits = first.predict_logits(features(1))
    assert torch.equal(again.predict_logits(features(1)), logits)
    plain = make().fit(features(), None, LABELS, validation=0.2, seed=0)
    assert torch.equal(plain.predict_logits(features(1)), logits)


CHANGED = {
    "features": {"x": features() + 1e-6},
    "labels": {"labels": np.roll(LABELS, 1)},
    "groups": {"groups": np.arange(60) // 2},
    "seed": {"seed": 1},
    "validation": {"validation": 0.3},
    "latent": {"head": vfusion(latent=3)},
    "hidden": {"head": vfusion(hidden=9)},
    "penalty": {"head": vfusion(penalty=0.1)},
    "budget": {"head": vfusion(budget=SelectionBudget(configurations=2, steps=11))},
    "class": {"head": LastStates(hidden=8, latent=4, penalty=0.0, budget=BUDGET)},
}


@pytest.mark.parametrize("changed", CHANGED)
def test_whatever_decides_a_fit_decides_its_key(changed, tmp_path):
    fit(vfusion(), tmp_path)
    fit(**{"head": vfusion(), "folder": tmp_path} | CHANGED[changed])
    assert len(Store(tmp_path).entries()) == 2


def test_logits_of_members_decide_too(tmp_path):
    logits = out_of_fold(features(), LABELS, seed=0).logits
    fit(LogitAverage(), tmp_path, logits=logits)
    fit(LogitAverage(), tmp_path, logits=logits + 1e-6)
    fit(LogitAverage(), tmp_path)
    assert len(Store(tmp_path).entries()) == 3


def test_a_fitted_head_that_is_fitted_again_takes_what_is_found(tmp_path):
    head, other = vfusion(), vfusion()
    fit(head, tmp_path)
    fit(other, tmp_path, seed=1)
    fit(head, tmp_path, seed=1)
    assert torch.equal(head.predict_logits(features()), other.predict_logits(features()))


def test_found_probes_and_members_are_the_fitted_ones(tmp_path):
    plain = fit_probes(features(), LABELS, seed=3, names=["x", "y", "z"])
    folds = out_of_fold(features(), LABELS, folds=4, seed=3)
    for _ in range(2):
        probes = fitted_probes(features(), LABELS, cache=tmp_path, seed=3, names=["x", "y", "z"])
        members = fitted_members(features(), LABELS, cache=tmp_path, folds=4, seed=3)
        assert torch.equal(members.logits, folds.logits)
        for found, expected in ((probes, plain), (members.probes, folds.probes)):
            for field in fields(ProbeSet):
                a, b = getattr(found, field.name), getattr(expected, field.name)
                assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, field.name
    assert len(Store(tmp_path).entries()) == 2


def test_an_entry_that_was_altered_is_fitted_again(tmp_path):
    head = vfusion()
    fit(head, tmp_path)
    (entry,) = tmp_path.glob("*.safetensors")
    content = bytearray(entry.read_bytes())
    content[-3] ^= 1
    entry.write_bytes(content)
    again = vfusion()
    fit(again, tmp_path)
    assert torch.equal(again.predict_logits(features()), head.predict_logits(features()))


def test_errors_are_those_of_the_fit_and_leave_nothing(tmp_path):
    with pytest.raises(ValueError, match="60 images in the features but 59 labels"):
        fit(vfusion(), tmp_path, labels=LABELS[:59])
    assert Store(tmp_path).entries() == []


def test_sources_edited_since_the_start_keep_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(fits, "_AT_START", "other")
    fit(vfusion(), tmp_path)
    assert Store(tmp_path).entries() == []


@pytest.mark.parametrize("threads", [1, 2])
def test_fits_are_found_whatever_the_number_of_threads(threads, tmp_path):
    with fits.threads_of_torch(threads):
        one, two = vfusion(), vfusion()
        fit(one, tmp_path / "own")
        with fits.threads_of_torch(3 - threads):
            fit(two, tmp_path / "other")
        assert torch.get_num_threads() == threads
    assert torch.equal(one.predict_logits(features()), two.predict_logits(features()))
    names = [next((tmp_path / folder).glob("*.safetensors")).name for folder in ("own", "other")]
    assert names[0] == names[1]


def test_a_changed_option_of_one_head_fits_that_head_alone(tmp_path, monkeypatch):
    part = Part(features(), LABELS, None, {}, 0)
    task = Task("model", "set", "cls", "none", ("a", "b", "c"), part, part)

    def compare(latent: int) -> comparison.Comparison:
        heads = {"VFusion": vfusion(latent=latent), "SuperLearner": SuperLearner(budget=BUDGET)}
        return comparison.compare(task, heads, seed=0, cache=tmp_path)

    first = compare(4)
    fitted: list[str] = []
    plain = comparison.Head.fit
    monkeypatch.setattr(
        comparison.Head,
        "fit",
        lambda self, *a, **k: (fitted.append(type(self).__name__), plain(self, *a, **k))[1],
    )
    second = compare(3)
    assert fitted == ["VFusion"]
    assert first.accuracy("SuperLearner") == second.accuracy("SuperLearner")
    assert (first.test_logits == second.test_logits).all()


def test_every_module_that_a_fit_imports_is_part_of_its_key():
    root = Path(vitscope.__file__).parent
    named = {path.resolve() for path in fits._files()}
    aside = {root / name for name in ("errors.py", "weights.py", "data/images.py", "feature_key.py",
                                      "features.py", "store.py")}  # fmt: skip
    for path in named - {Path(fits.__file__).resolve()}:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("vitscope"):
                target = root.joinpath(*node.module.split(".")[1:])
                file = target / "__init__.py" if target.is_dir() else target.with_suffix(".py")
                assert file in named | aside, f"{path.name} imports {node.module}"
