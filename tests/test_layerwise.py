"""Layer tables on a tiny random ViT and planted data."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import timm
import torch

import helpers
from vitscope import backbones, layerwise
from vitscope.capture import Capture, capture
from vitscope.conditions import Condition
from vitscope.fits import fitted_probes
from vitscope.intervals import bootstrap_mean
from vitscope.metrics.attention_graph import attention_entropy
from vitscope.transforms import Transform


def tiny(**options):
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=8,
        embed_dim=32,
        depth=2,
        num_heads=2,
        num_classes=0,
        **options,
    )
    return backbones.describe("tiny", model, Transform(32, 32, (0.5,) * 3, (0.5,) * 3))


def planted(count: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:
    """Three classes told apart by the brightness of the picture."""
    labels = np.arange(count) % 3
    noise = 0.2 * torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    return noise + torch.from_numpy(labels - 1.0).float().view(-1, 1, 1, 1), labels


@pytest.fixture(scope="module")
def pair() -> tuple[Capture, Capture]:
    model = tiny()
    return tuple(capture(model, planted(90, s), norm="none") for s in (0, 1))  # type: ignore[return-value]


def test_similarity_table_is_the_mean_over_images(pair):
    table = layerwise.similarity_table({"tiny": pair[0]})
    raw = table[table["statistic"] == "raw"]
    assert raw["state"].tolist() == [-1, 0, 1, 2]
    np.testing.assert_allclose(raw["mean"], pair[0].per_image["similarity"].mean(1).numpy(), rtol=1e-6)
    assert (raw["low"] <= raw["mean"]).all()
    assert (raw["mean"] <= raw["high"]).all()


def test_features_leave_out_cls_where_there_is_none(pair):
    features, keys = layerwise.stacked_features(pair[0])
    assert keys == [("cls", s) for s in (0, 1, 2)] + [("patch_mean", s) for s in (-1, 0, 1, 2)]
    assert torch.isfinite(features).all()


def test_planted_classes_are_read_from_patches_and_not_from_the_fresh_cls_token(pair):
    result = layerwise.probe_layers(*pair)
    table = result.table.set_index(["kind", "state"])["accuracy"]
    assert table["mean patch token"].min() > 97
    # at state 0 the CLS token is the same for every picture: nothing but the class shares can be learned
    assert table["CLS token", 0] == pytest.approx(result.majority, abs=0.01)
    assert result.correct.shape == (7, 90)


def test_a_model_without_cls_has_patch_rows_only():
    model = tiny(class_token=False, global_pool="avg")
    captures = [capture(model, planted(60, s), norm="none") for s in (0, 1)]
    assert set(layerwise.probe_layers(*captures).table["kind"]) == {"mean patch token"}


def test_the_regularization_is_chosen_on_whole_groups(pair, monkeypatch):
    told = {}

    def spy(*args, **options):
        told.update(options)
        return fitted_probes(*args, **options)

    monkeypatch.setattr(layerwise, "fitted_probes", spy)
    groups = np.arange(len(pair[0].labels)) // 2
    layerwise.probe_layers(*pair, groups=groups)
    assert told["groups"] is groups


def test_unlabelled_captures_are_refused(pair):
    images, _ = planted(6, 0)
    with pytest.raises(ValueError, match="need labels on both captures"):
        layerwise.probe_layers(capture(tiny(), images, norm="none"), pair[1])


def test_probes_are_told_what_each_row_is(pair, monkeypatch):
    told = []

    def spy(*args, names, **options):
        told.extend(names)
        return fitted_probes(*args, names=names, **options)

    monkeypatch.setattr(layerwise, "fitted_probes", spy)
    layerwise.probe_layers(*pair)
    assert told[0] == "0 (CLS token)"
    assert told[3:5] == ["-1 (mean patch token)", "0 (mean patch token)"]


def test_groups_that_are_whole_classes_cannot_be_held_out(pair):
    with pytest.raises(ValueError, match="every class is one group: nothing can be held out"):
        layerwise.probe_layers(*pair, groups=pair[0].labels)


# --- captures of several backbones ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts():
    """Training and test pictures: other ones, and darker."""
    images = helpers.toy_images(21)
    dark = images.select(range(12, 21))
    read = dark.read
    return images.select(range(12)), replace(dark, read=lambda indices: read(indices) // 2)


@pytest.fixture(scope="module", params=["none", "final"])
def captured(request, parts):
    models = [helpers.tiny(family) for family in ("supervised", "registers_without_cls")]
    return (
        request.param,
        {m.name: m for m in models},
        layerwise.capture_all(iter(models), *parts, norm=request.param),
    )


def test_both_parts_are_captured_as_one_by_one(captured, parts):
    norm, models, found = captured
    assert list(found) == list(models)
    for name, model in models.items():
        expected = [capture(model, part, norm=norm) for part in parts]
        assert list(found[name]) == ["train", "test"]
        for one, other in zip(found[name].values(), expected, strict=True):
            assert one.norm == norm
            assert one.backbone == name
            assert torch.equal(one.patch_mean, other.patch_mean)
            torch.testing.assert_close(one.cls, other.cls, rtol=0, atol=0, equal_nan=True)
            np.testing.assert_array_equal(one.labels, other.labels)
            np.testing.assert_array_equal(one.ids, other.ids)
        similarity = found[name]["test"].per_image["similarity"]
        assert torch.equal(similarity, expected[1].per_image["similarity"])


def test_the_test_part_has_every_similarity_and_no_attention(captured):
    _, _, found = captured
    common = {"patch_norm", "similarity", "similarity_centred", "similarity_dataset"}
    assert set(found["registers_without_cls"]["test"].per_image) == common
    assert set(found["supervised"]["test"].per_image) == common | {"cls_norm", "cls_patch_cosine"}
    assert all(sets[part].attention == {} for sets in found.values() for part in ("train", "test"))


def test_similarity_by_dataset_subtracts_the_mean_token_of_the_training_pictures(captured, parts):
    """In float64, token by token, from tokens that a capture keeps."""
    norm, models, found = captured
    for name, model in models.items():
        kept = [
            capture(model, part, norm=norm, keep_tokens=len(part))
            .tokens[:, :, model.num_prefix_tokens :]
            .double()
            for part in parts
        ]
        centre = kept[0].mean((1, 2))
        x = kept[1] - centre[:, None, None]
        units = x / x.norm(dim=-1, keepdim=True)
        count = x.shape[2]
        off = ~torch.eye(count, dtype=torch.bool)
        expected = (units @ units.mT)[..., off].mean(-1)
        result = found[name]["test"].per_image["similarity_dataset"].double()
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
        own = kept[1] - kept[1].mean((1, 2))[:, None, None]
        own = own / own.norm(dim=-1, keepdim=True)
        assert float(((own @ own.mT)[..., off].mean(-1) - expected).abs().max()) > 1e-3


def test_similarity_of_a_backbone_comes_in_three_forms(captured):
    _, _, found = captured
    tests = {name: sets["test"] for name, sets in found.items()}
    table = layerwise.similarity_table(tests)
    assert table["statistic"].unique().tolist() == ["raw", "centred", "centred by dataset"]
    assert table.groupby(["backbone", "statistic"])["state"].agg(list).map(lambda s: s == [-1, 0, 1, 2]).all()
    for (name, statistic), part in table.groupby(["backbone", "statistic"]):
        key = next(k for k, v in layerwise.SIMILARITIES.items() if v == statistic)
        expected = tests[name].per_image[key].double().mean(1)
        np.testing.assert_allclose(part["mean"], expected, rtol=1e-6, atol=1e-8)


def test_attention_is_asked_of_each_backbone_and_taken_of_the_test_part(parts):
    models, asked = [helpers.tiny(family) for family in ("supervised", "siglip")], []

    def statistics(backbone):
        asked.append(backbone.name)
        return {"again": attention_entropy} if backbone.has_cls else {}

    found = layerwise.capture_all(models, *parts, norm="none", attention=statistics, batch_size=4)
    assert asked == ["supervised", "siglip"]
    assert all(sets["train"].attention == {} for sets in found.values())
    supervised, siglip = (found[name]["test"] for name in asked)
    assert supervised.batch_size == 4
    assert set(supervised.attention) == {"entropy", "distance", "cls_incoming", "cls_to_patches", "again"}
    assert set(siglip.attention) == {"entropy", "distance"}
    torch.testing.assert_close(
        supervised.attention["again"], supervised.attention["entropy"], rtol=1e-4, atol=1e-4
    )


def test_two_models_of_one_name_are_refused_and_one_model_is_captured_once(parts):
    model, other = helpers.tiny("supervised"), helpers.tiny("supervised", seed=1)
    with pytest.raises(ValueError, match="two backbones with different weights are named 'supervised'"):
        layerwise.capture_all([model, other], *parts, norm="none")
    passes = []
    model.model.patch_embed.register_forward_hook(lambda *args: passes.append(1))
    assert list(layerwise.capture_all([model, model], *parts, norm="none")) == ["supervised"]
    assert len(passes) == 2  # training and test part
    both = layerwise.capture_all([model, replace(other, name="other")], *parts, norm="none")
    assert list(both) == ["supervised", "other"]


def test_conditions_are_captured_under_their_names(parts):
    models = [helpers.tiny("supervised"), helpers.tiny("supervised", seed=1)]
    tensor = models[0].transform(parts[1].pixels())
    conditions = {"a": Condition(models[0], parts[1]), "b": Condition(models[1], (tensor, parts[1].labels))}
    found = layerwise.capture_conditions(conditions, norm="layer")
    assert list(found) == ["a", "b"]
    for result, model in zip(found.values(), models, strict=True):
        expected = capture(model, parts[1], norm="layer")
        assert torch.equal(result.patch_mean, expected.patch_mean)
        assert result.norm == "layer"


# --- tables of statistics ---------------------------------------------------------------------------------


def test_states_without_a_value_and_statistics_that_are_lacking_are_left_out(captured):
    _, _, found = captured
    tests = {name: sets["test"] for name, sets in found.items()}
    names = {"cls_patch_cosine": "CLS to patches", "patch_norm": "norm", "nothing": "none"}
    table = layerwise.statistic_table(tests, names)
    assert list(table.columns) == ["backbone", "statistic", "state", "mean", "low", "high"]
    assert table.index.tolist() == list(range(3 + 4 + 4))
    rows = table.groupby(["backbone", "statistic"], sort=False)["state"].agg(list).to_dict()
    assert rows == {
        ("supervised", "CLS to patches"): [0, 1, 2],
        ("supervised", "norm"): [-1, 0, 1, 2],
        ("registers_without_cls", "norm"): [-1, 0, 1, 2],
    }


def test_the_interval_of_a_statistic_is_that_of_its_images_or_clusters(captured):
    _, _, found = captured
    result = found["supervised"]["test"]
    clusters = np.arange(9) // 3
    for given in (None, clusters):
        table = layerwise.statistic_table({"m": result}, {"patch_norm": "norm"}, given)
        expected = bootstrap_mean(result.per_image["patch_norm"].numpy(), clusters=given)
        for name, values in expected._asdict().items():
            np.testing.assert_array_equal(table[name], values)


def test_no_statistic_at_all_is_an_empty_table(captured):
    _, _, found = captured
    table = layerwise.statistic_table({"m": found["supervised"]["test"]}, {"nothing": "none"})
    assert isinstance(table, pd.DataFrame)
    assert table.empty
    assert list(table.columns) == ["backbone", "statistic", "state", "mean", "low", "high"]


def test_a_value_missing_for_some_images_is_an_error(captured):
    _, _, found = captured
    broken = found["supervised"]["test"]
    values = broken.per_image["similarity"].clone()
    values[1, 4] = torch.nan
    broken = replace(broken, per_image={"similarity": values})
    with pytest.raises(ValueError, match="values to average hold NaN or infinity"):
        layerwise.similarity_table({"m": broken})
