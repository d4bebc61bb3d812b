"""Layer tables on a tiny random ViT and planted data."""

import numpy as np
import pytest
import timm
import torch

from vitscope import backbones, layerwise
from vitscope.capture import Capture, capture
from vitscope.probes import fit_probes
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


def test_groups_are_held_out_whole():
    labels = np.repeat(np.arange(4), 50)
    groups = np.arange(200) // 5
    held = layerwise.grouped_fifth(labels, groups, seed=0)
    for g in np.unique(groups):
        assert held[groups == g].all() or not held[groups == g].any()
    assert held.sum() == 40
    assert set(labels[held]) == {0, 1, 2, 3}


def test_a_class_of_one_group_stays_in_training():
    labels, groups = np.array([0, 0, 1, 1, 1, 1]), np.array([0, 0, 1, 1, 2, 2])
    held = layerwise.grouped_fifth(labels, groups, seed=0)
    assert not held[:2].any()
    assert held[2:].sum() == 2


def test_unlabelled_captures_are_refused(pair):
    images, _ = planted(6, 0)
    with pytest.raises(ValueError, match="need labels on both captures"):
        layerwise.probe_layers(capture(tiny(), images, norm="none"), pair[1])


def test_probes_are_told_what_each_row_is(pair, monkeypatch):
    told = []

    def spy(*args, names, **options):
        told.extend(names)
        return fit_probes(*args, names=names, **options)

    monkeypatch.setattr(layerwise, "fit_probes", spy)
    layerwise.probe_layers(*pair)
    assert told[0] == "0 (CLS token)"
    assert told[3:5] == ["-1 (mean patch token)", "0 (mean patch token)"]
