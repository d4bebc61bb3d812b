"""Neural collapse and CKA of captures: planted geometries, and the metrics called one state at a time."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import noise, tiny
from vitscope.capture import Capture, capture
from vitscope.geometry import MEASURES, collapse_table, last_collapse, models_cka, states_cka
from vitscope.layerwise import KINDS, LayerProbes, probe_layers
from vitscope.metrics.cka import linear_cka, linear_cka_unbiased
from vitscope.metrics.collapse import ClassMoments, nc1, nc2, nc3, nc4, nc4_margin

CLASSES = (2, 5, 9)  # numbers with gaps: codes and labels must not be mixed up


def bright(count: int, seed: int, side: int = 64) -> tuple[torch.Tensor, np.ndarray]:
    """Pictures of noise whose brightness tells their class."""
    which = np.arange(count) % 3
    pictures = noise(count, side, seed=seed) + torch.from_numpy(which - 1.0).float().view(-1, 1, 1, 1)
    return pictures, np.asarray(CLASSES)[which]


def made(features: torch.Tensor, labels: np.ndarray | None = None, **changes) -> Capture:
    """A capture of mean patch tokens [S, N, D] that were made up."""
    plain = Capture(
        states=list(range(-1, len(features) - 1)), cls=None, patch_mean=features, tokens=None, per_image={},
        attention={}, labels=labels, ids=None, norm="none", batch_size=1, seconds=0.0, backbone="made",
    )  # fmt: skip
    return replace(plain, **changes)


@pytest.fixture(scope="module")
def seen() -> tuple[Capture, Capture, LayerProbes]:
    backbone = tiny("supervised")
    train, test = (capture(backbone, bright(count, seed), norm="none") for count, seed in ((60, 0), (45, 1)))
    return train, test, probe_layers(train, test)


@pytest.fixture(scope="module")
def table(seen):
    return collapse_table(*seen)


# --- neural collapse --------------------------------------------------------------------------------------


def test_every_state_has_a_row_but_cls_before_the_first_block(table):
    assert list(table.columns) == ["token", "state", *MEASURES, "simplex_possible"]
    rows = [("CLS token", s) for s in (1, 2)] + [("mean patch token", s) for s in (-1, 0, 1, 2)]
    assert list(zip(table["token"], table["state"], strict=True)) == rows
    assert np.isfinite(table[list(MEASURES)].to_numpy()).all()
    assert table["simplex_possible"].all()


@pytest.mark.parametrize("norm", ["final", "layer"])
def test_cls_before_the_first_block_is_left_out_under_any_norm_and_batch(norm):
    backbone = tiny("dinov2_registers")
    parts = [capture(backbone, bright(30, s, side=42), norm=norm, batch_size=7) for s in (0, 1)]
    found = collapse_table(*parts, probe_layers(*parts))
    assert found.loc[found["token"] == "CLS token", "state"].tolist() == [1, 2]


def test_every_number_is_that_of_the_metric_on_the_features_of_its_state(seen, table):
    train, test, fitted = seen
    codes, held = (torch.from_numpy(np.searchsorted(CLASSES, c.labels)) for c in (train, test))
    rows = {
        (k, s): i for i, (k, s) in enumerate(zip(fitted.table["kind"], fitted.table["state"], strict=True))
    }
    for found in table.to_dict("records"):
        features, unseen = (
            (c.cls if found["token"] == KINDS["cls"] else c.patch_mean)[found["state"] + 1]
            for c in (train, test)
        )
        moments = ClassMoments(3, 32)
        moments.update(features, codes)
        i = rows[found["token"], found["state"]]
        probes = fitted.probes
        weight = probes.weight[i].double() / probes.scale[i].double()
        logits = (unseen.double() - probes.mean[i]) @ weight.T + probes.bias[i]
        gap = nc2(moments)
        expected = {
            "NC1": nc1(moments),
            "NC2 norms": gap.equinorm,
            "NC2 angles": gap.equiangularity,
            "NC3": nc3(moments, weight),
            "NC4": nc4(moments, unseen, logits.argmax(1)),
            "NC4 margin": nc4_margin(logits, held),
        }
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-6), (
                found["token"],
                found["state"],
                name,
            )


def test_collapse_equals_its_definition_in_numpy(seen, table):
    """NC1 by the pseudo-inverse and NC2 by the angles, for one state, without the metrics."""
    train, _, _ = seen
    x, y = train.patch_mean[3].double().numpy(), train.labels
    means = np.stack([x[y == c].mean(0) for c in CLASSES])
    within = sum((x[y == c] - m).T @ (x[y == c] - m) for c, m in zip(CLASSES, means, strict=True)) / len(x)
    m = means - means.mean(0)
    between = m.T @ m / 3
    row = table[(table["token"] == "mean patch token") & (table["state"] == 2)].iloc[0]
    expected = np.trace(within @ np.linalg.pinv(between, rcond=1e-8)) / 3
    assert row["NC1"] == pytest.approx(expected, rel=1e-6)
    units = m / np.linalg.norm(m, axis=1, keepdims=True)
    gaps = np.abs(units @ units.T + 1 / 2)[~np.eye(3, dtype=bool)]
    assert row["NC2 angles"] == pytest.approx(gaps.mean(), rel=1e-6)


def test_the_probes_weight_is_taken_for_features_as_they_are(seen, table):
    """Features scaled channel by channel, with a probe that is scaled back: NC3 must follow the features."""
    train, test, fitted = seen
    factor = torch.linspace(0.5, 4, 32)
    stretched = [replace(c, cls=c.cls * factor, patch_mean=c.patch_mean * factor) for c in (train, test)]
    probes = replace(fitted.probes, mean=fitted.probes.mean * factor, scale=fitted.probes.scale * factor)
    found = collapse_table(*stretched, replace(fitted, probes=probes))
    np.testing.assert_allclose(found["NC4 margin"], table["NC4 margin"], rtol=1e-3)
    moments = ClassMoments(3, 32)
    moments.update(stretched[0].patch_mean[-1], torch.from_numpy(np.searchsorted(CLASSES, train.labels)))
    expected = nc3(moments, fitted.probes.weight[-1] / (fitted.probes.scale[-1] * factor))
    assert found["NC3"].iloc[-1] == pytest.approx(expected, rel=1e-5)
    assert found["NC3"].iloc[-1] != pytest.approx(table["NC3"].iloc[-1], rel=1e-3)


def test_a_planted_simplex_is_collapsed_and_noise_is_not():
    generator = torch.Generator().manual_seed(0)
    labels = np.arange(120) % 4
    simplex = 3 * torch.eye(4)[labels]
    blurred = torch.randn(120, 4, generator=generator)
    train = made(torch.stack([simplex + 1e-3 * blurred, blurred]), labels)
    found = collapse_table(train, train, probe_layers(train, train))
    collapsed, noisy = found.to_dict("records")
    for name in ("NC1", "NC2 norms", "NC2 angles", "NC3"):
        assert collapsed[name] == pytest.approx(0, abs=2e-3), name
    assert collapsed["NC4"] == 0
    assert collapsed["NC4 margin"] > max(0, noisy["NC4 margin"])
    assert noisy["NC1"] > 1
    assert noisy["NC2 angles"] > 0.1
    assert noisy["NC4"] > 0


def test_more_classes_than_a_simplex_of_this_width_has_corners_are_flagged():
    labels = np.arange(60) % 5
    features = torch.randn(1, 60, 3, generator=torch.Generator().manual_seed(0))
    features += torch.from_numpy(labels).float()[:, None]
    narrow = made(features, labels)
    assert not collapse_table(narrow, narrow, probe_layers(narrow, narrow))["simplex_possible"].any()
    wide = made(torch.cat([features, features.flip(2).square()], 2), labels)
    assert collapse_table(wide, wide, probe_layers(wide, wide))["simplex_possible"].all()


def test_a_probe_without_weights_points_nowhere(seen):
    train, test, fitted = seen
    weight = fitted.probes.weight.clone()
    weight[-1] = 0
    found = collapse_table(train, test, replace(fitted, probes=replace(fitted.probes, weight=weight)))
    assert found["NC3"].isna().tolist() == [False] * 5 + [True]


def test_collapse_needs_labels_that_the_probes_know(seen):
    train, test, fitted = seen
    for parts in ((replace(train, labels=None), test), (train, replace(test, labels=None))):
        with pytest.raises(ValueError, match="neural collapse needs labels on both captures"):
            collapse_table(*parts, fitted)
    # 3 lies between classes that are known, 11 behind them
    strangers = np.where(test.labels == 9, 11, np.where(test.labels == 5, 3, test.labels))
    with pytest.raises(ValueError, match="2 classes are not among the 3 seen in training: 11, 3"):
        collapse_table(train, replace(test, labels=strangers), fitted)
    with pytest.raises(ValueError, match=r"2 of 3 classes have no image, so no mean: 1, 2"):
        collapse_table(replace(train, labels=np.full(60, 2)), test, fitted)


def test_one_class_has_no_probe_and_no_geometry(seen):
    train, test, _ = seen
    alone = [replace(c, labels=np.full(c.num_images, 2)) for c in (train, test)]
    with pytest.raises(ValueError, match=r"labels hold one class only \(2\)"):
        probe_layers(*alone)


def test_the_last_state_is_that_of_cls_where_there_is_one(table):
    parts = [capture(tiny("siglip"), bright(30, s), norm="none") for s in (0, 1)]
    without = collapse_table(*parts, probe_layers(*parts))
    found = last_collapse({"with": table, "without": without}).set_index("backbone")
    assert found["token"].tolist() == ["CLS token", "mean patch token"]
    assert found["state"].tolist() == [2, 2]
    assert found.loc["with", "NC1"] == table[table["token"] == "CLS token"]["NC1"].iloc[-1]
    assert found.loc["without", "NC1"] == without["NC1"].iloc[-1]


# --- CKA --------------------------------------------------------------------------------------------------


def slow_hsic(x: np.ndarray, y: np.ndarray) -> float:
    """HSIC_1 as written in its paper, from Gram matrices without their diagonals."""
    n = len(x)
    k, l = x @ x.T, y @ y.T  # noqa: E741
    np.fill_diagonal(k, 0), np.fill_diagonal(l, 0)
    one = np.ones(n)
    middle = (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2))
    return (np.trace(k @ l) + middle - 2 / (n - 2) * one @ k @ l @ one) / (n * (n - 3))


def test_states_are_compared_by_the_unbiased_estimate(seen):
    train, _, _ = seen
    found = states_cka(train)
    assert list(found.columns) == ["state", "other state", "CKA"]
    pairs = [(a, b) for a in train.states for b in train.states]
    assert list(zip(found["state"], found["other state"], strict=True)) == pairs
    means = train.patch_mean.double().numpy()
    for a, b, value in found.itertuples(index=False):
        x, y = means[a + 1], means[b + 1]
        assert value == pytest.approx(linear_cka_unbiased(torch.from_numpy(x), torch.from_numpy(y)), abs=1e-6)
        expected = slow_hsic(x, y) / np.sqrt(slow_hsic(x, x) * slow_hsic(y, y))
        assert value == pytest.approx(expected, abs=1e-6)
    assert found["CKA"].min() < 0.999 < found["CKA"].max()


def test_states_of_two_backbones_make_a_table_of_both(seen):
    train, _, _ = seen
    deeper = capture(tiny("siglip", depth=3), bright(60, 0)[0], norm="none")
    found = states_cka(train, deeper)
    assert len(found) == 4 * 5
    for a, b, value in found.itertuples(index=False):
        expected = linear_cka_unbiased(train.patch_mean[a + 1], deeper.patch_mean[b + 1])
        assert value == pytest.approx(expected, abs=1e-6)
    turned = states_cka(deeper, train).set_index(["other state", "state"])["CKA"]
    np.testing.assert_allclose(
        turned.loc[list(zip(found["state"], found["other state"], strict=True))], found["CKA"]
    )


def test_rotation_scale_and_shift_of_a_state_change_nothing(seen):
    train, _, _ = seen
    turn = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(0)))[0]
    moved = replace(train, patch_mean=3 * train.patch_mean @ turn + 1)
    np.testing.assert_allclose(states_cka(train, moved)["CKA"], states_cka(train)["CKA"], atol=1e-4)


def test_a_state_without_variation_is_left_out_and_nothing_else():
    features = torch.randn(3, 20, 4, generator=torch.Generator().manual_seed(0))
    features[1] = 2.0
    found = states_cka(made(features))
    assert list(zip(found["state"], found["other state"], strict=True)) == [
        (-1, -1),
        (-1, 1),
        (1, -1),
        (1, 1),
    ]
    assert found.index.tolist() == [0, 1, 2, 3]


def test_every_pair_of_backbones_is_compared_once_at_its_last_state(seen):
    train, _, _ = seen
    others = {"other": tiny("supervised", seed=1), "no CLS": tiny("siglip", depth=3)}
    captures = {"first": train}
    captures |= {name: capture(b, bright(60, 0)[0], norm="none") for name, b in others.items()}
    found = models_cka(captures)
    assert list(zip(found["backbone"], found["other"], strict=True)) == [
        ("first", "other"), ("first", "no CLS"), ("other", "no CLS"),
    ]  # fmt: skip
    for row in found.itertuples(index=False):
        x, y = (captures[name].patch_mean[-1] for name in (row.backbone, row.other))
        assert row.biased == pytest.approx(linear_cka(x, y))
        assert row.unbiased == pytest.approx(linear_cka_unbiased(x, y))
        assert row.unbiased != row.biased
    same = models_cka({"a": train, "b": train}).iloc[0]
    assert same["biased"] == pytest.approx(1)
    assert same["unbiased"] == pytest.approx(1)


def test_cka_needs_mean_patch_tokens_of_the_same_pictures(seen):
    train, test, _ = seen
    without = replace(train, patch_mean=None)
    for call in (lambda: states_cka(without), lambda: models_cka({"a": train, "b": without})):
        with pytest.raises(
            ValueError, match="the capture of supervised has no mean patch token; keep 'patch_mean'"
        ):
            call()
    for call in (lambda: states_cka(train, test), lambda: models_cka({"a": train, "b": test})):
        with pytest.raises((TypeError, ValueError)):  # other numbers of pictures
            call()
    with pytest.raises(ValueError, match="at least 4 images, got 3"):
        states_cka(made(torch.randn(2, 3, 4)))
