"""Corruptions: slow references of each kind, strength by severity, bit-equality in any batch, limits."""

import io
import math
import re
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from helpers import photo
from vitscope.data import corruptions
from vitscope.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from vitscope.data.seeding import uniforms
from vitscope.errors import UnknownName

ALL = tuple(CORRUPTIONS)
RANDOM = ("gaussian_noise", "shot_noise", "impulse_noise", "motion_blur", "fog", "elastic_transform")


def pictures(count: int, height: int = 28, width: int | None = None) -> torch.Tensor:
    """Smooth coloured pictures with a hard-edged square, so that blur and JPEG have something to change."""
    made = [np.asarray(photo(width or height, height, seed=i)) for i in range(count)]
    batch = torch.from_numpy(np.stack(made).transpose(0, 3, 1, 2).copy())
    batch[:, :, height // 3 : height // 2, height // 4 : height // 2] = torch.tensor([240, 30, 90]).view(
        3, 1, 1
    )
    return batch


def flat(level: int, count: int = 4, side: int = 40) -> torch.Tensor:
    return torch.full((count, 3, side, side), level, dtype=torch.uint8)


def error(clean: torch.Tensor, changed: torch.Tensor) -> float:
    return (changed.double() - clean.double()).abs().mean().item()


def applied(name: str, clean: torch.Tensor, strength: float) -> torch.Tensor:
    """A corruption at any strength, as `corrupt` would round it."""
    draw = partial(uniforms, corruptions.stream(name, 0), np.arange(len(clean)))
    changed = CORRUPTIONS[name].apply(clean.float(), strength, draw)
    return changed.round().clamp(0, 255).to(torch.uint8)


# --- what holds for every kind ----------------------------------------------------------------------------


def test_families_are_those_of_imagenet_c():
    assert {c.family for c in CORRUPTIONS.values()} == {"noise", "blur", "weather", "digital"}
    assert min(sum(c.family == f for c in CORRUPTIONS.values()) for f in ("noise", "blur", "weather")) >= 2


@pytest.mark.parametrize("name", ALL)
def test_docstring_states_the_table(name):
    """The page that shows the docstring shows the strengths that are used."""
    text = CORRUPTIONS[name].apply.__doc__.replace("\n", " ")
    listed = [
        tuple(map(float, run.split(", "))) for run in re.findall(r"\d+(?:\.\d+)?(?:, \d+(?:\.\d+)?){4}", text)
    ]
    assert listed == [tuple(map(float, CORRUPTIONS[name].strengths))]


@pytest.mark.parametrize("size", [(28, 28), (64, 64), (33, 96)])
@pytest.mark.parametrize("name", ALL)
def test_shape_type_and_input_are_kept(name, size):
    clean = pictures(2, *size)
    before = clean.clone()
    for severity in (1, 5):
        changed = corrupt(clean, name, severity, ids=np.arange(2))
        assert changed.dtype == torch.uint8
        assert changed.shape == clean.shape
    assert torch.equal(clean, before)


@pytest.mark.parametrize("size", [28, 64])
@pytest.mark.parametrize("name", ALL)
def test_error_grows_with_severity(name, size):
    clean = pictures(12, size)
    errors = [error(clean, corrupt(clean, name, s, ids=np.arange(12))) for s in SEVERITIES]
    assert errors[0] > 0.3, "severity 1 changes next to nothing"
    assert all(a < b for a, b in pairwise(errors)), errors
    assert errors[-1] > 1.5 * errors[0]


@pytest.mark.parametrize("name", ALL)
def test_equal_in_any_batch_order_and_thread_count(name):
    clean, ids = pictures(70, 20), np.arange(70) * 7 + 10**12
    whole = corrupt(clean, name, 4, ids=ids, seed=3)
    for batch in (1, 31, 32, 33):
        parts = [
            corrupt(clean[i : i + batch], name, 4, ids=ids[i : i + batch], seed=3)
            for i in range(0, 70, batch)
        ]
        assert torch.equal(torch.cat(parts), whole)
    order = np.random.default_rng(0).permutation(70)
    assert torch.equal(corrupt(clean[order], name, 4, ids=ids[order], seed=3), whole[order])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2 if before == 1 else 1)
        assert torch.equal(corrupt(clean, name, 4, ids=ids, seed=3), whole)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", ALL)
def test_ids_and_seed_decide_what_is_random_and_nothing_else_does(name):
    clean = pictures(1, 24).expand(3, -1, -1, -1)
    ids = np.array([4, 5, 4])
    a = corrupt(clean, name, 3, ids=ids)
    assert torch.equal(a[0], a[2])
    assert torch.equal(a[0], a[1]) == (name not in RANDOM)
    assert torch.equal(a, corrupt(clean, name, 3, ids=ids, seed=1)) == (name not in RANDOM)
    np.random.seed(9), torch.manual_seed(9)
    assert torch.equal(a, corrupt(clean, name, 3, ids=ids))


@pytest.mark.parametrize("name", ALL)
def test_picture_stays_as_it_is_towards_the_neutral_strength(name):
    clean = pictures(3, 32)
    neutral = CORRUPTIONS[name].neutral
    if name == "shot_noise":  # no light is infinite: the error falls as 1/√c
        errors = [error(clean, applied(name, clean, c)) for c in (40, 160, 640)]
        assert errors[0] / errors[1] == pytest.approx(2, rel=0.1)
        assert errors[1] / errors[2] == pytest.approx(2, rel=0.1)
    elif name == "jpeg_compression":  # chroma stays at half resolution
        grey = clean.float().mean(1, keepdim=True).round().to(torch.uint8).expand(-1, 3, -1, -1)
        assert (applied(name, grey, neutral).int() - grey.int()).abs().max() <= 1
    else:
        assert torch.equal(applied(name, clean, neutral), clean)


@pytest.mark.parametrize("name", sorted(set(ALL) - {"gaussian_noise", "shot_noise", "impulse_noise", "fog"}))
def test_blurs_and_digital_kinds_leave_a_flat_picture_flat(name):
    level = 128  # JPEG's own zero
    changed = corrupt(flat(level), name, 5, ids=np.arange(4))
    assert len(changed.unique()) == 1
    if name != "brightness":
        assert changed.unique().item() == level


def test_severities_of_a_picture_share_their_draw():
    clean = flat(128, 1)
    errors = [corrupt(clean, "gaussian_noise", s, ids=np.array([7])).double() - 128 for s in (1, 2)]
    ratio = CORRUPTIONS["gaussian_noise"].strengths[1] / CORRUPTIONS["gaussian_noise"].strengths[0]
    assert (errors[1] - ratio * errors[0]).abs().max() <= 0.5 + ratio / 2, "only rounding may differ"


def test_corruptions_share_no_draw():
    seeds = {corruptions.stream(n, s) for n in ALL for s in (0, 1, 2**31 - 1)}
    assert len(seeds) == 3 * len(ALL)


def test_no_pictures_give_no_pictures():
    empty = torch.empty(0, 3, 8, 8, dtype=torch.uint8)
    assert corrupt(empty, "fog", 1, ids=np.empty(0, dtype=np.int64)).shape == (0, 3, 8, 8)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", [(1, 1), (2, 5)])
def test_tiny_pictures_pass(name, shape):
    clean = torch.full((1, 3, *shape), 200, dtype=torch.uint8)
    assert corrupt(clean, name, 5, ids=np.array([0])).shape == clean.shape


# --- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("severity", [0, 6, -1, 2.5, True, "3", None])
def test_other_severities_are_refused(severity):
    with pytest.raises(ValueError, match=r"severity must be 1, 2, 3, 4 or 5, got .*the set itself"):
        corrupt(flat(1), "fog", severity, ids=np.arange(4))


def test_bad_input_is_named():
    with pytest.raises(UnknownName, match="Did you mean 'gaussian_noise'"):
        corrupt(flat(1), "gausian_noise", 1, ids=np.arange(4))
    with pytest.raises(ValueError, match=r"expected uint8 pictures \[N, 3, h, w\], got torch.float32"):
        corrupt(flat(1).float(), "fog", 1, ids=np.arange(4))
    with pytest.raises(ValueError, match=r"got torch.uint8 \[4, 1, 40, 40\]"):
        corrupt(flat(1)[:, :1], "fog", 1, ids=np.arange(4))
    with pytest.raises(ValueError, match=r"one id per picture is needed, got \[3\] for 4 pictures"):
        corrupt(flat(1), "fog", 1, ids=np.arange(3))
    for seed in (-1, 2**31):
        with pytest.raises(ValueError, match=f"seed must lie in 0…2³¹−1, got {seed}"):
            corrupt(flat(1), "fog", 1, ids=np.arange(4), seed=seed)


# --- noise against its distribution -----------------------------------------------------------------------


@pytest.mark.parametrize("severity", [1, 5])
def test_gaussian_noise_is_normal_with_the_stated_width(severity):
    sigma = 255 * CORRUPTIONS["gaussian_noise"].strengths[severity - 1]
    clean = flat(128, 8).float()
    draw = partial(uniforms, 1, np.arange(8))
    n = ((CORRUPTIONS["gaussian_noise"].apply(clean, sigma / 255, draw) - clean) / sigma).double()
    assert n.mean().abs() < 4 / math.sqrt(n.numel())
    assert n.std() == pytest.approx(1, abs=0.02)
    assert stats.kstest(n.flatten().numpy(), "norm").pvalue > 1e-3
    neighbours = np.corrcoef(n[..., :-1].flatten(), n[..., 1:].flatten())[0, 1]
    assert abs(neighbours) < 0.03


@pytest.mark.parametrize("photons", [9, 100])
@pytest.mark.parametrize("level", [0, 1, 40, 255])
def test_shot_noise_has_the_mean_and_variance_of_photons(level, photons):
    clean = flat(level, 8).float()
    draw = partial(uniforms, 2, np.arange(8))
    counts = CORRUPTIONS["shot_noise"].apply(clean, photons, draw).double() * photons / 255
    assert (counts - counts.round()).abs().max() < 1e-4, "light comes in whole photons"
    expected = photons * level / 255
    assert counts.mean() == pytest.approx(expected, abs=5 * math.sqrt(expected / counts.numel()) + 1e-9)
    assert counts.var() == pytest.approx(expected, rel=0.05, abs=0.01)


def test_shot_noise_equals_the_quantile_one_by_one():
    clean = pictures(1, 8).float()
    u = uniforms(5, np.array([0]), clean.numel()).reshape(clean.shape)
    found = CORRUPTIONS["shot_noise"].apply(clean, 20, partial(uniforms, 5, np.array([0])))
    middle = (np.floor(u * 4096) + 0.5) / 4096
    expected = stats.poisson.ppf(middle, 20 * clean.numpy() / 255) * 255 / 20
    assert np.abs(found.numpy() - expected).max() < 1e-3


def test_impulses_are_black_or_white_in_the_stated_share_and_nested():
    clean = flat(100, 12)
    hit = [corrupt(clean, "impulse_noise", s, ids=np.arange(12)) != 100 for s in SEVERITIES]
    for s, mask in zip(SEVERITIES, hit, strict=True):
        changed = corrupt(clean, "impulse_noise", s, ids=np.arange(12))
        assert set(changed.unique().tolist()) == {0, 100, 255}
        share, spread = CORRUPTIONS["impulse_noise"].strengths[s - 1], 4 / math.sqrt(mask.numel())
        assert mask.double().mean() == pytest.approx(share, abs=spread * math.sqrt(share))
        assert (changed == 0).double().mean() == pytest.approx(share / 2, abs=spread * math.sqrt(share))
    for fewer, more in pairwise(hit):
        assert not (fewer & ~more).any()


# --- the others against slow references -------------------------------------------------------------------


def slow_defocus(picture: np.ndarray, radius: float) -> np.ndarray:
    height, width = picture.shape[1:]
    out = np.zeros(picture.shape)
    for y in range(height):
        for x in range(width):
            total, weights = np.zeros(3), 0.0
            for v in range(y - 2, y + 3):
                for u in range(x - 2, x + 3):
                    weight = min(1, max(0, radius + 0.5 - math.hypot(u - x, v - y)))
                    weights += weight
                    total += weight * picture[:, min(max(v, 0), height - 1), min(max(u, 0), width - 1)]
            out[:, y, x] = total / weights
    return out


def bilinear(picture: np.ndarray, x: float, y: float) -> np.ndarray:
    """The picture at (x, y) in pixels, edges continued."""
    height, width = picture.shape[1:]
    x, y = min(max(x, 0), width - 1), min(max(y, 0), height - 1)
    x0, y0 = int(x), int(y)
    x1, y1 = min(x0 + 1, width - 1), min(y0 + 1, height - 1)
    top = picture[:, y0, x0] * (x0 + 1 - x) + picture[:, y0, x1] * (x - x0)
    low = picture[:, y1, x0] * (x0 + 1 - x) + picture[:, y1, x1] * (x - x0)
    return top * (y0 + 1 - y) + low * (y - y0)


def slow_moves(picture: np.ndarray, moves) -> np.ndarray:
    """Mean over `moves`, functions of (x, y) that say where to read."""
    height, width = picture.shape[1:]
    out = np.zeros(picture.shape)
    for y in range(height):
        for x in range(width):
            out[:, y, x] = np.mean([bilinear(picture, *move(x, y)) for move in moves], axis=0)
    return out


def assert_rounded(found: torch.Tensor, exact: np.ndarray, slack: float = 0.02) -> None:
    assert np.abs(found.double().numpy() - exact).max() <= 0.5 + slack


@pytest.fixture
def one():
    clean = pictures(1, 20, 26)
    return clean, clean[0].double().numpy()


@pytest.mark.parametrize("severity", [2, 5])
def test_defocus_blur_by_hand(one, severity):
    clean, exact = one
    radius = CORRUPTIONS["defocus_blur"].strengths[severity - 1] * 20
    found = corrupt(clean, "defocus_blur", severity, ids=np.array([0]))[0]
    assert_rounded(found, slow_defocus(exact, radius))


def test_motion_blur_by_hand(one):
    clean, exact = one
    length = CORRUPTIONS["motion_blur"].strengths[4] * 20
    angle = math.pi * uniforms(corruptions.stream("motion_blur", 6), np.array([3]), 1)[0, 0]
    count = 2 * math.ceil(length / 2) + 1
    steps = [length * (k / (count - 1) - 0.5) for k in range(count)]
    moves = [lambda x, y, s=s: (x + s * math.cos(angle), y + s * math.sin(angle)) for s in steps]
    found = corrupt(clean, "motion_blur", 5, ids=np.array([3]), seed=6)[0]
    assert_rounded(found, slow_moves(exact, moves))


def test_zoom_blur_by_hand(one):
    clean, exact = one
    zooms = [1 + CORRUPTIONS["zoom_blur"].strengths[2] * k / 8 for k in range(9)]
    moves = [lambda x, y, z=z: (12.5 + (x - 12.5) / z, 9.5 + (y - 9.5) / z) for z in zooms]
    assert_rounded(corrupt(clean, "zoom_blur", 3, ids=np.array([0]))[0], slow_moves(exact, moves))


def test_elastic_transform_by_hand_and_without_folds(one):
    clean, exact = one
    reach = CORRUPTIONS["elastic_transform"].strengths[4] * 20
    nodes = (
        2 * uniforms(corruptions.stream("elastic_transform", 0), np.array([8]), 50)[0].reshape(2, 5, 5) - 1
    )

    def move(x, y):
        dx, dy = bilinear(nodes, 4 * x / 25, 4 * y / 19) * reach
        return x + dx, y + dy

    found = corrupt(clean, "elastic_transform", 5, ids=np.array([8]))[0]
    assert_rounded(found, slow_moves(exact, [move]))
    assert 2 * CORRUPTIONS["elastic_transform"].strengths[4] < 1 / 4, "neighbouring nodes could cross"


def test_fog_by_hand(one):
    clean, exact = one
    u, used, field = uniforms(corruptions.stream("fog", 0), np.array([2]), 9 + 25 + 81 + 289)[0], 0, 0
    for g in (2, 4, 8, 16):
        nodes = u[used : used + (g + 1) ** 2].reshape(1, g + 1, g + 1)
        used += (g + 1) ** 2
        smooth = [[bilinear(nodes, g * x / 25, g * y / 19)[0] for x in range(26)] for y in range(20)]
        field = field + np.array(smooth) * 2 / g
    field = (field - field.min()) / (field.max() - field.min())
    haze = 255 * CORRUPTIONS["fog"].strengths[3]
    expected = (exact + field * haze) * exact.max() / (exact.max() + haze)
    assert_rounded(corrupt(clean, "fog", 4, ids=np.array([2]))[0], expected)


def test_brightness_raises_the_value_and_keeps_the_hue():
    from colorsys import hsv_to_rgb, rgb_to_hsv

    clean = pictures(1, 12)
    clean[0, :, 0, 0] = 0
    found = corrupt(clean, "brightness", 3, ids=np.array([0]))[0].double() / 255
    for y in range(12):
        for x in range(12):
            h, s, v = rgb_to_hsv(*(clean[0, :, y, x].double() / 255).tolist())
            expected = hsv_to_rgb(h, s, min(1, v + CORRUPTIONS["brightness"].strengths[2]))
            assert np.abs(found[:, y, x].numpy() - expected).max() <= 0.51 / 255


def test_contrast_shrinks_towards_the_mean_of_each_channel(one):
    clean, exact = one
    mean = exact.mean((1, 2), keepdims=True)
    expected = mean + CORRUPTIONS["contrast"].strengths[1] * (exact - mean)
    assert_rounded(corrupt(clean, "contrast", 2, ids=np.array([0]))[0], expected)


def test_pixelate_averages_cells(one):
    clean, exact = one
    cell = CORRUPTIONS["pixelate"].strengths[4] * 20
    expected = np.empty_like(exact)
    for y in range(20):
        for x in range(26):
            same = [
                (v, u)
                for v in range(20)
                for u in range(26)
                if (int((v + 0.5) / cell), int((u + 0.5) / cell))
                == (int((y + 0.5) / cell), int((x + 0.5) / cell))
            ]
            expected[:, y, x] = np.mean([exact[:, v, u] for v, u in same], axis=0)
    assert_rounded(corrupt(clean, "pixelate", 5, ids=np.array([0]))[0], expected)


def test_jpeg_is_that_of_pillow(one):
    clean, _ = one
    buffer = io.BytesIO()
    Image.fromarray(clean[0].permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=15)
    expected = np.asarray(Image.open(buffer)).transpose(2, 0, 1)
    assert (corrupt(clean, "jpeg_compression", 3, ids=np.array([0]))[0].numpy() == expected).all()
