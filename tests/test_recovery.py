"""Recoverability measured from features: planted signals, the same by luck, whole groups, clear refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import tiny
from vitscope import recoverability, recovery
from vitscope.frozen import Part, Task
from vitscope.mlp_probes import fit_mlp_probes

NETWORK = {"hidden": 16, "epochs": 60, "seed": 0}
SHORT = NETWORK | {"draws": 50}


def planted(bits_of_state, *, images: int = 320, noise: float = 1.0, grouped: bool = False) -> Task:
    """Two bits make four classes; `bits_of_state` says which bits each state holds."""
    generator = torch.Generator().manual_seed(0)

    def part(first_group: int) -> Part:
        bits = torch.randint(0, 2, (images, 2), generator=generator)
        features = noise * torch.randn(len(bits_of_state), images, 4, generator=generator)
        for state, held in enumerate(bits_of_state):
            for bit in held:
                features[state, :, bit] += 8.0 * bits[:, bit]
        labels = np.array([f"class {a}{b}" for a, b in bits.tolist()])
        groups = first_group + np.array([40 * (2 * a + b) + k % 8 for k, (a, b) in enumerate(bits.tolist())])
        return Part(features, labels, groups if grouped else None, {}, 0)

    train, test = part(0), part(1000)
    return Task("planted", "bits", "cls", "none", tuple(np.unique(train.labels).tolist()), train, test)


@pytest.fixture(scope="module")
def complementary():
    """State 1 knows both bits, state 2 none, the last state one of them."""
    task = planted([(0, 1), (), (0,)])
    return task, recovery.measure(task, **SHORT, counts=True)


def test_what_an_earlier_state_knows_is_recovered_beyond_luck(complementary):
    _, found = complementary
    assert found.classes == 4
    for analysed in (found.mlp, found.linear):
        assert 35 < analysed.accuracy.mean[-1] < 65
        assert analysed.recovery_rate.value > 95
        assert analysed.per_layer.mean[0] > 95
        assert analysed.per_layer.mean[1] < 60
        assert analysed.harm.mean[0] < 10
    assert found.best == 1
    assert found.permuted.excess.low > 10
    assert found.reseeded.excess.low > 10


def test_more_probes_of_one_state_are_no_excess():
    task = planted([(0,), (0,), (0,)])
    train, test = (replace(p, features=p.features[-1:].expand(3, -1, -1)) for p in (task.train, task.test))
    task = replace(task, train=train, test=test)
    found = recovery.measure(task, **SHORT)
    for analysed in (found.mlp, found.linear):
        assert analysed.errors > 20
        assert analysed.recovery_rate.value == 0
        assert analysed.harm.mean.tolist() == [0, 0]
    assert found.permuted.excess.value == 0  # all states with one answer of the last give that answer
    assert found.permuted_true.excess.high < 0  # they fail together
    assert found.reseeded.excess.value <= 0


def test_rates_are_those_of_the_probes_answers(complementary):
    task, found = complementary
    probes = fit_mlp_probes(task.train.features, task.train.labels, **NETWORK)
    answers = np.asarray(probes.classes)[probes.logits(task.test.features).argmax(2).numpy()]
    right = answers == task.test.labels
    wrong = ~right[-1]
    assert found.mlp.errors == wrong.sum()
    assert found.mlp.recovery_rate.value == pytest.approx(100 * right[:-1, wrong].any(0).mean())
    most = max(task.classes, key=task.train.labels.tolist().count)
    assert found.majority == pytest.approx(100 * (task.test.labels == most).mean())


def test_groups_are_held_out_whole_and_resampled_whole():
    task = planted([(0, 1), (0,)], grouped=True)
    found = recovery.measure(task, **SHORT)
    probes = fit_mlp_probes(task.train.features, task.train.labels, groups=task.groups, **NETWORK)
    expected = recoverability.analyse(
        probes.logits(task.test.features), task.test.labels, classes=task.classes,
        clusters=task.test.groups, draws=50,
    )  # fmt: skip
    assert found.mlp.recovery_rate == expected.recovery_rate
    assert found.mlp.accuracy.low.tolist() == expected.accuracy.low.tolist()


def test_a_rate_grows_with_the_number_of_probes_and_ends_at_the_whole(complementary):
    _, found = complementary
    table = found.counts
    assert set(table["who"]) == {recovery.REAL, recovery.RESEEDED, recovery.PERMUTED}
    for _, part in table.groupby("who"):
        assert part["members"].tolist() == [1, 2]
        assert part["rate"].is_monotonic_increasing
        assert (part["low"] <= part["rate"]).all()
        assert (part["rate"] <= part["high"]).all()
    ends = table[table["members"] == 2].set_index("who")["rate"]
    assert ends[recovery.REAL] == pytest.approx(found.linear.recovery_rate.value)
    assert ends[recovery.RESEEDED] == pytest.approx(found.reseeded.rate.value)
    # of the states next to the last, the first in line knows nothing
    first = table[(table["members"] == 1) & (table["who"] == recovery.REAL)]["rate"].item()
    assert first < 60


def test_without_errors_there_is_no_rate_and_no_best_state():
    found = recovery.measure(planted([(0, 1), (0, 1)], noise=0.1), **SHORT, counts=True)
    assert found.mlp.errors == 0
    assert found.best is None
    assert found.reseeded.rate.value is None
    assert found.counts["rate"].isna().all()


def test_one_block_and_names_that_repeat_are_refused():
    with pytest.raises(ValueError, match=r"supervised has 1 block: .*a backbone of two or more"):
        recovery.check([tiny("supervised", depth=1)])
    model = tiny("supervised")
    with pytest.raises(ValueError, match="two backbones are named supervised"):
        recovery.check([model, model])
    recovery.check([model, tiny("siglip")])
