import dataclasses

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from vitscope.metrics.held_out import RATIOS, fit_ridge, fit_whitening, moments, split_images
from vitscope.metrics.reconstruction import ARMS, Reconstruction, fit_maps, others_mean, solve_maps
from vitscope.metrics.scrambling import GRID, isi_attention, isi_reconstruction, regimes

IMAGES, PATCHES, WIDTH = 120, 12, 8


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def embeddings(images=IMAGES, patches=PATCHES, width=WIDTH, seed=0):
    """Patch embeddings with correlated channels."""
    return normal(images, patches, width, seed=seed) @ normal(width, width, seed=seed + 1)


def one_cycle(patches, seed=0):
    """A permutation that leaves no patch in its place."""
    order = torch.randperm(patches, generator=torch.Generator().manual_seed(seed))
    result = torch.empty(patches, dtype=torch.long)
    result[order] = order.roll(1)
    return result


def rotation(width, seed=5):
    return torch.linalg.qr(normal(width, width, seed=seed).double())[0].float()


def values(found):
    """Every number of a result, by name."""
    fields = {f.name: getattr(found, f.name) for f in dataclasses.fields(found)}
    return {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}


@pytest.fixture(scope="module")
def planted():
    """States with known answers after state 0, which is the targets plus a position embedding."""
    y = embeddings()
    turn = rotation(WIDTH)
    reflection = torch.eye(PATCHES) - 2 / PATCHES  # orthogonal, 1 − 2/P of each patch stays
    states = {
        "targets": y + 5 * normal(PATCHES, WIDTH, seed=9),
        "rotated": y @ turn,
        "permuted": y[:, one_cycle(PATCHES)],
        "permuted and rotated": y[:, one_cycle(PATCHES)] @ turn,
        "reflected": reflection @ y,
        "mixed": rotation(PATCHES) @ y,
        "noise": normal(*y.shape, seed=7),
        "constant": torch.ones_like(y),
        "half": y + y[:, one_cycle(PATCHES)] + normal(*y.shape, seed=8),
    }
    found = isi_reconstruction(list(states.values()), y, states=range(len(states)))
    return {name: {k: float(v[i]) for k, v in values(found).items()} for i, name in enumerate(states)}


@pytest.mark.parametrize("state", ["targets", "rotated"])
def test_what_stays_in_place_is_reconstructed_from_its_own_token(planted, state):
    assert planted[state]["r2_self"] == pytest.approx(1, abs=1e-4)
    assert planted[state]["r2_all"] == pytest.approx(1, abs=1e-4)
    assert planted[state]["isi"] == pytest.approx(0, abs=1e-4)
    assert planted[state]["isi_control"] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("state", ["permuted", "permuted and rotated"])
def test_a_permutation_is_found_in_the_other_tokens(planted, state):
    assert planted[state]["r2_self"] < 0.02
    assert planted[state]["r2_all"] > 0.995
    assert planted[state]["isi"] > 0.98
    assert planted[state]["isi_control"] < 0.02
    assert planted[state]["isi_shuffled"] < 0.1  # without the layout nothing tells which token to take


def test_orthogonal_mixtures_are_found_in_the_other_tokens(planted):
    """The reflection exactly: what is missing, −2/P of each other patch, is their mean."""
    reflected, mixed = planted["reflected"], planted["mixed"]
    assert reflected["r2_self"] == pytest.approx((1 - 2 / PATCHES) ** 2, abs=0.05)
    assert reflected["r2_all"] > 0.9999
    assert reflected["isi"] == pytest.approx(1 - reflected["r2_self"], abs=1e-3)
    assert mixed["r2_self"] < 0.05
    # of a mixture that keeps a different part of each patch, one W for all places can miss just that part
    kept = rotation(PATCHES).diagonal().square().mean().item()
    assert mixed["r2_all"] > 1 - 1.5 * kept - 0.01
    assert max(reflected["isi_control"], mixed["isi_control"]) < 0.02


@pytest.mark.parametrize("state", ["noise", "constant"])
def test_nothing_is_found_where_nothing_is(planted, state):
    assert planted[state]["r2_self"] == pytest.approx(0, abs=0.01)
    assert planted[state]["r2_all"] == pytest.approx(0, abs=0.01)
    assert planted[state]["isi"] == pytest.approx(0, abs=0.01)
    assert planted[state]["isi_control"] == pytest.approx(0, abs=0.01)


def test_the_context_of_another_image_adds_nothing(planted):
    assert planted["half"]["isi"] > 0.1
    for state in planted:
        assert planted[state]["isi_control"] < 0.02, state


def test_scores_follow_from_each_other(planted):
    for row in planted.values():
        for arm in ("self", "all"):
            expected = max(row[f"r2_{arm}"], 0) / planted["targets"][f"r2_{arm}"]
            assert row[f"normalised_{arm}"] == pytest.approx(expected)
        assert row["isi"] == pytest.approx(row["normalised_all"] - row["normalised_self"])
        assert row["isi_raw"] == pytest.approx(max(row["r2_all"], 0) - max(row["r2_self"], 0))


def test_a_position_embedding_is_no_content():
    """Adding the same vectors to every image changes nothing, not even when they outweigh the content."""
    y = embeddings()
    states = [y, y + 10 * normal(PATCHES, WIDTH, seed=3)]
    found = isi_reconstruction(states, y, states=[-1, 0])
    np.testing.assert_allclose(found.r2_self[0], found.r2_self[1], atol=1e-5)
    np.testing.assert_allclose(found.r2_all[0], found.r2_all[1], atol=1e-5)


def slow_scores(tokens, targets, seed, maps, pca):
    """Arms `linear`, `self` and, for one map, `all`, step by step in float64 with scikit-learn's Ridge."""
    split = [part.numpy() for part in split_images(np.arange(len(targets)), seed)]
    x, y = tokens.double().numpy(), targets.double().numpy()
    _, train, validation, test = split
    centred, y = x - x[train].mean(0), y - y[train].mean(0)
    patches, width = x.shape[1:]
    u, s, vt = np.linalg.svd(centred[train].reshape(-1, width), full_matrices=False)
    signs = np.sign(u[np.abs(u).argmax(0), np.arange(len(s))])
    z = centred @ vt.T * signs / s * np.sqrt(len(u))

    count = maps * min(pca, width)
    projection = torch.randn(width, count, generator=torch.Generator().manual_seed(seed)).double().numpy()
    random = np.tanh(z @ projection / np.sqrt(width))
    context = np.empty((*z.shape[:2], min(pca, width)))
    for i in range(patches):
        context[:, i] = z[:, np.arange(patches) != i, :pca].mean(1)

    def standardised(f):
        f = f - f[train].mean(0)
        return f / np.sqrt((f[train] ** 2).mean((0, 1)))

    def rows(f, part):
        return f[part].reshape(-1, f.shape[2])

    def best(extra):
        trials = []
        for ratio in RATIOS:
            columns = [z] if ratio == np.inf else [z, standardised(extra) / np.sqrt(ratio)]
            f = np.concatenate(columns, 2)
            for l2 in GRID:
                model = Ridge(alpha=l2 * len(train) * patches, fit_intercept=False)
                model.fit(rows(f, train), rows(y, train))
                held = ((model.predict(rows(f, validation)) - rows(y, validation)) ** 2).sum()
                missed = ((model.predict(rows(f, test)) - rows(y, test)) ** 2).sum()
                trials.append((held, 1 - missed / (rows(y, test) ** 2).sum(), (l2, l2 * ratio)))
        return min(trials)[1:]

    plain = best(np.zeros((*z.shape[:2], 0)))
    return {"linear": (plain[0], None), "self": best(random), "all": best(context)}


@pytest.mark.parametrize("state", ["near", "mixed"])
@pytest.mark.parametrize("pca", [3, 64])
def test_equals_a_slow_reference(state, pca):
    y = embeddings(images=40, patches=5, width=4)
    noise = normal(*y.shape, seed=4)
    tokens = y + noise if state == "near" else (torch.eye(5) + 0.5 * others_mean(5)) @ y + 0.5 * noise
    found = isi_reconstruction(torch.stack([y, tokens]), y, states=[0, 1], pca=pca, maps=1, seed=3)
    expected = slow_scores(tokens, y, seed=3, maps=1, pca=pca)
    for arm in ("linear", "self", "all"):
        score, l2 = expected[arm]
        assert getattr(found, f"r2_{arm}")[1] == pytest.approx(score, abs=2e-4), arm
        if l2 is not None:
            assert found.l2[arm][1] == pytest.approx(l2), arm


def test_ridge_equals_scikit_learn():
    x, y = normal(90, 7), normal(90, 3, seed=1)
    y = y + x @ normal(7, 3, seed=2)
    for l2 in (1e-3, 0.1, 10.0):
        ours = fit_ridge(moments([x], y), moments([x[:20]], y[:20]), l2=[l2])
        theirs = Ridge(alpha=90 * l2, fit_intercept=False).fit(x.double().numpy(), y.double().numpy())
        np.testing.assert_allclose(ours.weight.T, theirs.coef_, atol=1e-5)


def test_moments_of_blocks_are_those_of_all_columns():
    blocks, targets = [normal(90, q, seed=q) for q in (4, 3, 2)], normal(90, 5)
    known = moments(blocks[:1], targets)
    for count in (2, 3):
        known = moments(blocks[:count], targets, known)
    x, y = torch.cat(blocks, 1).double(), targets.double()
    np.testing.assert_allclose(known.gram, x.T @ x, atol=1e-4)
    np.testing.assert_allclose(known.cross, x.T @ y, atol=1e-4)
    assert known.rows == 90


def test_maps_equal_one_ridge_regression_per_patch_on_all_others():
    inputs, outputs = normal(2, 6, 30, 4), normal(6, 30, 4, seed=1)
    outputs = outputs + 2 * inputs[0, one_cycle(6)]
    found = solve_maps(inputs, outputs, inputs, outputs, [0.05]).double().numpy()
    size = inputs.square().mean((1, 2, 3), keepdim=True).sqrt().double()
    x, y = (inputs / size).double().flatten(2).numpy(), outputs.double().flatten(1).numpy()
    expected = np.zeros((2, 6, 6))
    for i in range(6):
        others = np.arange(6) != i
        ridge = Ridge(alpha=0.05 * x.shape[2], fit_intercept=False)
        ridge.fit(x[:, others].reshape(10, -1).T, y[i])
        expected[:, i, others] = ridge.coef_.reshape(2, 5)
    expected /= np.linalg.norm(expected, axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (found.diagonal(axis1=1, axis2=2) == 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_planted_maps_are_recovered(seed):
    """Without noise the maps span the planted ones; fitted one by one they would miss by 5 to 10 %."""
    z = normal(10, 200, 6, seed=10 * seed)
    planted = [normal(10, 10, seed=10 * seed + s) * (1 - torch.eye(10)) for s in (1, 2)]
    weights = [normal(6, 6, seed=10 * seed + 3), 0.3 * normal(6, 6, seed=10 * seed + 4)]
    residual = sum((k @ z.flatten(1)).view_as(z) @ w for k, w in zip(planted, weights, strict=True))
    parts = (z[:, :50], residual[:, :50], z[:, 50:], residual[:, 50:])
    found = fit_maps(*parts, count=2, l2=GRID, seed=0)
    assert float(found.diagonal(dim1=1, dim2=2).abs().max()) == 0
    basis = torch.stack([k.flatten() for k in found]).T
    for k in planted:
        target = k.flatten()
        fit = basis @ torch.linalg.lstsq(basis, target[:, None]).solution[:, 0]
        assert float((fit - target).norm() / target.norm()) < 0.02


def test_all_arms_have_the_same_number_of_columns():
    y = embeddings()
    flat = y.clone()
    flat[..., -2:] = 0  # a state of lower rank has fewer, in each arm alike
    found = isi_reconstruction([y, flat], y, states=[0, 1], pca=5, maps=2)
    for arm in ("self", "all", "other", "shuffled"):
        assert found.columns[arm].tolist() == [WIDTH + 2 * 5, WIDTH - 2 + 2 * 5]
    assert found.columns["linear"].tolist() == [WIDTH, WIDTH - 2]
    assert set(found.columns) == set(found.l2) == set(ARMS)


def test_rotation_shift_and_scale_of_features_change_nothing():
    y = embeddings()
    state = y + y[:, one_cycle(PATCHES)] + normal(*y.shape, seed=8)
    base = isi_reconstruction([y, state], y, states=[0, 1])
    changed = [y @ rotation(WIDTH), 3 * state @ rotation(WIDTH, seed=6) + 100]
    other = isi_reconstruction(changed, y, states=[0, 1])
    for name, value in values(base).items():
        np.testing.assert_allclose(values(other)[name], value, atol=2e-3, err_msg=name)
    turned = isi_reconstruction([y, state], y @ rotation(WIDTH, seed=7), states=[0, 1])
    np.testing.assert_allclose(turned.r2_self, base.r2_self, atol=1e-4)
    np.testing.assert_allclose(turned.isi, base.isi, atol=0.01)


def test_the_order_of_images_changes_nothing_when_ids_go_with_them():
    y = embeddings()
    state = y + y[:, one_cycle(PATCHES)] + normal(*y.shape, seed=8)
    ids = np.array([f"scene-{i:03d}" for i in range(IMAGES)])
    order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(1))
    base = isi_reconstruction([y, state], y, states=[0, 1], ids=ids)
    mixed = isi_reconstruction([y[order], state[order]], y[order], states=[0, 1], ids=ids[order.numpy()])
    for name, value in values(base).items():
        np.testing.assert_array_equal(values(mixed)[name], value, err_msg=name)


def test_whole_images_are_held_out_and_images_of_one_id_stay_together():
    ids = np.repeat(np.arange(40), 3)
    split = split_images(ids, seed=2)
    assert sorted(torch.cat(split).tolist()) == list(range(120))
    assert [len(part) for part in split] == [36, 36, 24, 24]
    sets = [set(ids[part.numpy()]) for part in split]
    assert sum(len(a & b) for a in sets for b in sets) == sum(map(len, sets))


def test_partners_have_another_id_and_test_images_touch_no_fit():
    y = embeddings()
    ids = np.repeat(np.arange(IMAGES // 2), 2)
    problem = Reconstruction(y, ids, pca=4, maps=2, l2=GRID, seed=0)
    for part, partner in zip(problem.split, problem._partners, strict=True):
        assert (ids[part.numpy()] != ids[part[partner].numpy()]).all()
    changed = y.clone()
    changed[problem.split.test] += normal(len(problem.split.test), PATCHES, WIDTH, seed=1)
    first, second = problem.fit(y), problem.fit(changed)
    assert first.l2 == second.l2
    assert float(first.error["self"].sum()) < float(second.error["self"].sum())


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others():
    y = embeddings()
    state = y + normal(*y.shape, seed=8)

    def run(seed):
        found = isi_reconstruction([y, state], y, states=[0, 1], seed=seed)
        return np.stack([*values(found).values(), *(end for i in found.intervals.values() for end in i)])

    np.testing.assert_array_equal(run(0), run(0))
    assert np.abs(run(0) - run(1)).max() > 1e-4


def test_states_come_as_a_tensor_one_at_a_time_or_by_name():
    y = embeddings()
    states = {-1: y, 0: y + 1, 5: y + normal(*y.shape, seed=8)}
    asked = []

    def fetch(state):
        asked.append(state)
        return states[state]

    stacked = isi_reconstruction(torch.stack(list(states.values())), y, states=list(states))
    assert stacked.states == [-1, 0, 5]
    for tokens in (iter(list(states.values())), fetch):
        found = isi_reconstruction(tokens, y, states=list(states))
        for name, value in values(stacked).items():
            np.testing.assert_array_equal(values(found)[name], value, err_msg=name)
    assert asked == [-1, 0, 5]
    half = isi_reconstruction([x.half() for x in states.values()], y, states=list(states))
    np.testing.assert_allclose(half.isi, stacked.isi, atol=0.01)


def test_intervals_hold_the_value_and_narrow_with_more_images():
    def run(images):
        y = embeddings(images=images)
        state = y + y[:, one_cycle(PATCHES)] + normal(*y.shape, seed=8)
        return isi_reconstruction([y, state], y, states=[0, 3])

    small, large = run(80), run(400)
    for interval in large.intervals.values():
        assert (interval.low <= interval.mean + 1e-12).all()
        assert (interval.mean <= interval.high + 1e-12).all()
    width = [float((f.intervals["isi"].high - f.intervals["isi"].low)[1]) for f in (small, large)]
    assert 0 < width[1] < width[0]
    assert large.intervals["isi"].low[1] > 0
    assert large.images == {"maps": 120, "train": 120, "validation": 80, "test": 80}
    table = large.stats
    assert list(table.columns) == ["state", "measure", "value", "low", "high"]
    row = table[(table.measure == "isi") & (table.state == 3)].iloc[0]
    assert row.value == large.isi[1]


def test_too_few_images_says_how_many_are_needed():
    y = embeddings(images=20)
    with pytest.raises(ValueError, match=r"at least 17 images .* 32 columns, .*12 patches .*; got 12"):
        isi_reconstruction([y[:12]], y[:12], states=[0])
    isi_reconstruction([y[:17]], y[:17], states=[0])
    with pytest.raises(ValueError, match="at least 10 different ids, got 5"):
        isi_reconstruction([y], y, states=[0], ids=np.arange(20) % 5)
    with pytest.raises(ValueError, match="no partners"):
        isi_reconstruction([y], y, states=[0], ids=[0] * 10 + list(range(1, 11)))


def test_bad_values_are_named():
    y = embeddings()
    bad = y.clone()
    bad[[3, 4], 2, 1] = torch.nan
    with pytest.raises(
        FloatingPointError, match="the tokens of state 7 hold NaN or infinity in 2 of 120 images"
    ):
        isi_reconstruction([y, bad], y, states=[0, 7])
    with pytest.raises(FloatingPointError, match="the targets hold NaN or infinity in 2 of 120 images"):
        isi_reconstruction([y], bad, states=[0])
    with pytest.raises(ValueError, match="the same for all images"):
        isi_reconstruction([y], torch.full_like(y, 0.1), states=[0])
    with pytest.raises(ValueError, match=r"reference state 0 the self arm reconstructs .*too little"):
        isi_reconstruction([normal(*y.shape, seed=7)], y, states=[0])


def test_shapes_that_do_not_fit_are_named():
    y = embeddings()
    with pytest.raises(ValueError, match=r"P >= 2 patches, got \(120, 1, 8\)"):
        isi_reconstruction([y[:, :1]], y[:, :1], states=[0])
    with pytest.raises(ValueError, match=r"state 4 must be .* 120 images and 12 patches .*\(120, 11, 8\)"):
        isi_reconstruction([y, y[:, 1:]], y, states=[0, 4])
    with pytest.raises(ValueError, match=r"state 0 must be .*\(100, 12, 8\)"):
        isi_reconstruction([y[:100]], y, states=[0])
    with pytest.raises(ValueError, match=r"tokens of 1 states for 2 names: \[0, 1\]"):
        isi_reconstruction([y], y, states=[0, 1])
    with pytest.raises(ValueError, match=r"more than the 1 states named: \[0\]"):
        isi_reconstruction(torch.stack([y, y]), y, states=[0])
    with pytest.raises(ValueError, match=r"hold the reference 0, got \[1, 2\]"):
        isi_reconstruction([y, y], y, states=[1, 2])
    with pytest.raises(ValueError, match=r"one id per image is needed: \(3,\) for 120 images"):
        isi_reconstruction([y], y, states=[0], ids=[1, 2, 3])
    with pytest.raises(ValueError, match="pca, maps and draws must be at least 1"):
        isi_reconstruction([y], y, states=[0], maps=0)
    with pytest.raises(ValueError, match="positive penalties"):
        isi_reconstruction([y], y, states=[0], l2=[0.0, 1.0])


def test_whitening_gives_uncorrelated_scores_and_leaves_empty_directions_out():
    x = embeddings() + 100
    x[..., 0] = x[..., 1]
    x = x.transpose(0, 1)
    whitening = fit_whitening(x)
    scores = whitening.scores(x).flatten(0, 1).double()
    assert scores.shape[1] == WIDTH - 1
    np.testing.assert_allclose(scores.T @ scores / len(scores), np.eye(WIDTH - 1), atol=1e-3)
    assert float(fit_whitening(torch.ones(5, 3, 4)).scores(torch.ones(5, 3, 4)).abs().max()) == 0


def slow_attention_index(before, after, entropy):
    results = []
    for a, b, h in zip(
        before.double().numpy(), after.double().numpy(), entropy.double().numpy(), strict=True
    ):
        cosines = [u @ v / (np.linalg.norm(u) * np.linalg.norm(v)) for u, v in zip(a, b, strict=True)]
        results.append(np.mean(cosines) / h.mean())
    return np.array(results)


def test_attention_form_equals_its_definition():
    before, after = normal(6, 5, 8), normal(6, 5, 8) + normal(6, 5, 8, seed=1)
    entropy = normal(6, 3, seed=2).abs() + 0.1
    expected = slow_attention_index(before, after, entropy)
    np.testing.assert_allclose(isi_attention(before, after, entropy), expected, rtol=1e-5)
    np.testing.assert_allclose(isi_attention(3 * before, 0.1 * after, entropy), expected, rtol=1e-5)
    layers = isi_attention(torch.stack([before] * 2), torch.stack([after] * 2), torch.stack([entropy] * 2))
    np.testing.assert_allclose(layers, np.stack([expected] * 2), rtol=1e-5)


def test_attention_form_falls_as_attention_mixes():
    """Uniform attention against attention that mostly looks at its own token."""
    tokens = normal(4, 9, 16)
    results = []
    for own in (0.9, 0.5, 1 / 9):
        row = torch.full((9,), (1 - own) / 8)
        attention = torch.where(torch.eye(9) > 0, own, row)
        entropy = -(attention * attention.log()).sum(-1).mean().expand(4, 1)
        results.append(float(isi_attention(tokens, attention @ tokens, entropy).mean()))
    assert results == sorted(results, reverse=True)


def test_attention_form_names_what_it_cannot_use():
    tokens = normal(4, 5, 8)
    with pytest.raises(ValueError, match="must be positive, but 1 of 4 values are not"):
        isi_attention(tokens, tokens, torch.tensor([[1.0], [0.0], [1.0], [2.0]]))
    with pytest.raises((TypeError, ValueError)):
        isi_attention(tokens, tokens[:, 1:], torch.ones(4, 2))
    with pytest.raises((TypeError, ValueError)):
        isi_attention(tokens, tokens, torch.ones(3, 2))
    tokens[1, 0, 0] = torch.nan
    assert isi_attention(tokens, tokens, torch.ones(4, 2)).isnan().tolist() == [False, True, False, False]


def test_regimes_by_our_cut_offs():
    isi = np.array([-0.1, 0.0, 1e-9, 0.009, 0.0091])
    assert regimes(isi, 0.009) == ["collapse", "collapse", "consensus", "consensus", "diffusion"]
    assert regimes([0.0, 0.1], band=-0.2) == ["collapse", "diffusion"]
    with pytest.raises(ValueError, match="without NaN"):
        regimes([0.1, float("nan")], 0.009)
    with pytest.raises(ValueError, match="without NaN"):
        regimes([0.1], float("nan"))
