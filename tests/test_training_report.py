"""The report on a training: the zoo's snapshots, two tiny models measured along it, planted falls."""

import numpy as np
import pandas as pd
import pytest

from helpers import tiny, tiny_zoo_model, toy_images
from vitscope import backbones, layerwise, training_report
from vitscope.errors import UnknownName
from vitscope.phases import detect_phases, undetected
from vitscope.training_report import Followed
from vitscope.transforms import Transform

PHASED = [0.05, 0.0, 0.001, 0.0, 0.001, 0.0, 0.001, 0.0, 0.04, 0.09, 0.15]


def model(seed):
    built, _ = tiny_zoo_model(seed=seed)
    return backbones.describe("net", built, Transform(64, 64, (0.5,) * 3, (0.5,) * 3))


@pytest.fixture(scope="module")
def measured():
    return Followed({0: model(0), 800: model(1)}, toy_images(30), toy_images(20), norm="none", seed=0)


@pytest.fixture
def planted():
    """Three moments of a training at whose last one CLS has fallen, and three phases stand."""
    followed = Followed.__new__(Followed)
    rows = [
        {"images": images, "token": token, "state": state, "accuracy": accuracy}
        for token, last in (("CLS token", (10.0, 80.0, 65.0)), ("mean patch token", (30.0, 40.0, 50.0)))
        for images, value in zip((0, 6400, 12800), last, strict=True)
        for state, accuracy in ((0, 99.0), (9, value))
    ]
    table = pd.DataFrame(rows)
    followed.probes = table.assign(low=table["accuracy"] - 1, high=table["accuracy"] + 1)
    short = undetected([0.3, 0.1, 0.2], [-1, 0, 1])
    followed.phases = {0: short, 6400: detect_phases(PHASED), 12800: detect_phases(PHASED)}
    return followed


def test_moments_are_the_snapshots_and_then_the_finished_model():
    found = training_report.moments("twin_s", device="cpu")
    seen = backbones.snapshots("twin_s")
    assert list(found) == [*seen, backbones.card("twin_s")["recipe"]["images"]]
    assert list(found) == sorted(found)
    assert [m.name for m in found.values()] == [*(f"twin_s@{count}" for count in seen), "twin_s"]
    assert len({m.digest for m in found.values()}) == len(found)


def test_each_moment_is_measured_as_a_model_by_itself(measured):
    captures = layerwise.capture_all([model(1)], toy_images(30), toy_images(20), norm="none")["net"]
    alone = layerwise.similarity_table({"net": captures["test"]})
    later = measured.similarity[measured.similarity["images"] == 800].drop(columns="images")
    pd.testing.assert_frame_equal(later.reset_index(drop=True), alone)
    fitted = layerwise.probe_layers(captures["train"], captures["test"], seed=0).table
    later = measured.probes[measured.probes["images"] == 800]
    assert later["accuracy"].tolist() == fitted["accuracy"].tolist()
    assert later["token"].tolist() == fitted["kind"].tolist()
    assert "got 4" in measured.phases[800].reasons["climb"]


def test_last_is_the_last_state_of_both_tokens(measured):
    assert measured.last["state"].tolist() == [2] * 4
    assert measured.last["images"].tolist() == [0, 0, 800, 800]
    assert set(measured.last["token"]) == {"CLS token", "mean patch token"}


def test_table_has_a_row_for_each_moment(measured, planted):
    table = measured.table.set_index("images seen")
    assert list(table.index) == [0, 800]
    values = measured.phases[0].values
    assert table.loc[0, "lowest similarity"] == min(values)
    assert table.loc[0, "last similarity"] == values[-1]
    rows = planted.table.set_index("images seen")
    assert rows["phases found"].tolist() == ["none", "cliff, plateau, climb", "cliff, plateau, climb"]
    assert rows.loc[0, ["lowest similarity", "at state", "last similarity"]].tolist() == [0.1, 0, 0.2]
    assert rows["last CLS token (%)"].tolist() == [10, 80, 65]
    assert rows["last mean patch token (%)"].tolist() == [30, 40, 50]


def test_accuracy_figure_says_first_best_and_last(planted):
    figure = training_report.accuracy_figure(planted, "twin")
    assert figure.name == "training_accuracy"
    assert "CLS token 10.0 % → best 80.0 % after 6,400 → 65.0 %" in figure.alt
    assert "mean patch token 30.0 % → best 50.0 % after 12,800 → 50.0 %" in figure.alt
    assert figure.data["images"].tolist() == [0, 6400, 12800] * 2


def test_late_fall_is_from_the_best_moment_to_the_end(planted):
    found = training_report.late_fall(planted)
    assert found["CLS token"] == {
        "value": 15.0, "unit": "points",
        "text": "15.0 points below its best, 80.0 % after 6,400 images",
    }  # fmt: skip
    assert found["mean patch token"]["value"] == 0


def test_moments_with_all_phases_are_counted(measured, planted):
    assert training_report.formed_text(planted) == {"value": 2, "text": "2 of 3 moments", "n": 3}
    assert training_report.formed_text(measured)["value"] == 0


def test_pictures_of_one_thing_are_drawn_together():
    test = toy_images(20)
    test.extras["identity"] = np.repeat(np.arange(10), 2)
    followed = Followed({0: model(0)}, toy_images(30), test, norm="none", seed=0)
    captures = layerwise.capture_all([model(0)], toy_images(30), test, norm="none")["net"]
    expected = layerwise.similarity_table({"net": captures["test"]}, test.extras["identity"])
    pd.testing.assert_frame_equal(followed.similarity.drop(columns="images"), expected)


def test_seed_and_identities_reach_probes_and_phases(monkeypatch):
    """Groups are the identities of training pictures, clusters those of test pictures."""
    told = {}

    def spy(name):
        plain = getattr(training_report, name)

        def call(*args, **options):
            told[name] = (args, options)
            return plain(*args, **options)

        monkeypatch.setattr(training_report, name, call)

    for name in ("probe_layers", "detect"):
        spy(name)
    train, test = toy_images(30), toy_images(20)
    train.extras["identity"], test.extras["identity"] = np.arange(30) // 3, np.arange(20) // 2
    Followed({0: model(0)}, train, test, norm="none", seed=11)
    options = told["probe_layers"][1]
    assert options["seed"] == 11
    np.testing.assert_array_equal(options["groups"], train.extras["identity"])
    np.testing.assert_array_equal(options["clusters"], test.extras["identity"])
    np.testing.assert_array_equal(told["detect"][0][1], test.extras["identity"])


def test_a_model_without_cls_has_one_column_of_accuracy():
    table = Followed({7: tiny("siglip")}, toy_images(30), toy_images(20), norm="none", seed=0).table
    assert [name for name in table if name.endswith("(%)")] == ["last mean patch token (%)"]


def test_a_model_without_snapshots_has_one_moment_and_an_unknown_one_none():
    (found,) = training_report.moments("twin_b", device="cpu").items()
    assert found[0] == backbones.card("twin_b")["recipe"]["images"]
    assert found[1].name == "twin_b"
    with pytest.raises(UnknownName, match="Unknown zoo model 'twin_z'"):
        training_report.moments("twin_z")
