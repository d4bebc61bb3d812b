"""Point-in-box: planted boxes, loops in plain Python, the original code's defects, torchvision's crop."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from torchvision.transforms import functional as vision

from vitscope.data.scenes import annotations, load_scenes
from vitscope.dense.boxes import box_patches, cls_scores, crop_box, point_in_box, single_small

NAN = float("nan")
GRID = (14, 14)


def normal(*shape, seed=0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_boxes(count, seed=0, low=0.0, high=1.0) -> torch.Tensor:
    ends = torch.rand(count, 2, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (low + (high - low) * ends).sort(dim=1).values.flatten(1)


def best_at(patches, count) -> torch.Tensor:
    """Scores [N, P] whose largest is at the given patch."""
    return torch.nn.functional.one_hot(torch.tensor(patches), count).double()


def original_patches(box, width, height, *, resize=256, crop=224, patch=16) -> set[int]:
    """The original code's patches for one box in pixels of the picture, number by number."""
    a = resize / min(width, height)
    left, top = (int(width * a) - crop) // 2, (int(height * a) - crop) // 2
    x0, x1 = (min(max(a * x - left, 0), crop) for x in box[::2])
    y0, y1 = (min(max(a * y - top, 0), crop) for y in box[1::2])
    side = crop // patch
    columns = range(int(x0 // patch), min(int(x1 // patch), side - 1) + 1)
    rows = range(int(y0 // patch), min(int(y1 // patch), side - 1) + 1)
    return {row * side + column for row in rows for column in columns}


def owned(boxes, grid=GRID, rule="last_vit") -> list[set[int]]:
    return [set(row.nonzero().squeeze(1).tolist()) for row in box_patches(boxes, grid, rule=rule)]


def test_cls_scores_are_cosines():
    cls, patches = normal(2, 3, 7), normal(2, 3, 5, 7, seed=1)
    found = cls_scores(cls, patches)
    for s, n, p in np.ndindex(2, 3, 5):
        a, b = cls[s, n].numpy(), patches[s, n, p].numpy()
        assert math.isclose(found[s, n, p], a @ b / math.sqrt((a @ a) * (b @ b)), abs_tol=1e-14)


def test_cls_scores_do_not_depend_on_the_batch_or_on_the_size_of_tokens():
    cls, patches = normal(130, 33).float(), normal(130, 20, 33, seed=1).float()
    whole = cls_scores(cls, patches)
    assert torch.equal(whole, torch.cat([cls_scores(cls[i : i + 1], patches[i : i + 1]) for i in range(130)]))
    torch.testing.assert_close(cls_scores(3 * cls, 5 * patches), whole)


def test_equal_patches_have_equal_scores():
    patches = normal(1, 1, 33).expand(4, 12, 33)
    assert all(len(row.unique()) == 1 for row in cls_scores(normal(4, 33, seed=1), patches))


@pytest.mark.parametrize(
    ("cls", "patches", "message"),
    [
        (torch.ones(3, 4), torch.ones(2, 5, 4), r"\(3, 4\) and \(2, 5, 4\)"),
        (torch.ones(2, 3), torch.ones(2, 5, 4), "must agree in all but P"),
        (torch.ones(4), torch.ones(5, 4), "must agree"),
        (torch.ones(0, 4), torch.ones(0, 5, 4), r"no tokens to compare.*\(0, 5, 4\)"),
        (torch.full((2, 4), NAN), torch.ones(2, 5, 4), "CLS tokens hold NaN"),
        (torch.ones(2, 4), torch.full((2, 5, 4), math.inf), "patch tokens hold NaN or infinity"),
        (torch.ones(2, 4), torch.zeros(2, 5, 4), "patch tokens of norm zero"),
    ],
)
def test_cls_scores_refuse(cls, patches, message, no_axis_check):
    with pytest.raises(ValueError, match=message):
        cls_scores(cls, patches)


def test_planted_boxes_have_the_planted_rate():
    # columns 1 and 2 of row 1 in a grid of 4 x 4 are patches 5 and 6
    box = torch.tensor([[0.25, 0.25, 0.75, 0.5]]).expand(4, 4)
    found = point_in_box(best_at([5, 6, 4, 9], 16), box, (4, 4))
    assert found.hits.tolist() == [True, True, False, False]
    assert (float(found.rate), found.chance) == (0.5, 2 / 16)
    assert (found.kept, found.total, found.patch.tolist()) == (4, 4, [5, 6, 4, 9])


@pytest.mark.parametrize("rule", ["center", "last_vit"])
def test_patches_of_a_box_agree_with_a_loop(rule):
    boxes, (rows, columns) = random_boxes(60, low=-0.5, high=1.5), (5, 9)
    for box, mine in zip(boxes.tolist(), owned(boxes, (rows, columns), rule), strict=True):
        slow = set()
        for row, column in np.ndindex(rows, columns):
            if rule == "center":
                x, y = (column + 0.5) / columns, (row + 0.5) / rows
                inside = box[0] <= x < box[2] and box[1] <= y < box[3]
            else:
                x0, y0, x1, y1 = (min(max(v, 0.0), 1.0) for v in box)
                inside = int(x0 * columns) <= column <= int(x1 * columns)
                inside &= int(y0 * rows) <= row <= int(y1 * rows)
            slow |= {row * columns + column} if inside else set()
        assert mine == slow


@pytest.mark.parametrize("rule", ["center", "last_vit"])
def test_chance_is_the_mean_rate_of_every_patch(rule):
    boxes = random_boxes(20)
    every = best_at(list(range(35)), 35)[:, None].expand(35, 20, 35)
    found = point_in_box(every, boxes, (5, 7), rule=rule)
    assert math.isclose(found.rate.mean(), found.chance, rel_tol=1e-12)


def test_leading_axes_are_scored_one_by_one():
    scores, boxes = normal(2, 3, 20, 35), random_boxes(20)
    found = point_in_box(scores, boxes, (5, 7))
    assert found.rate.shape == (2, 3)
    assert found.hits.shape == found.patch.shape == (2, 3, found.kept)
    for i, j in np.ndindex(2, 3):
        alone = point_in_box(scores[i, j], boxes, (5, 7))
        assert alone.rate == found.rate[i, j]
        assert np.array_equal(alone.hits, found.hits[i, j])


@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_order_and_batches_of_images_do_not_matter(seed):
    scores, boxes = normal(24, 35, seed=seed), random_boxes(24, seed=seed)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(seed))
    whole = point_in_box(scores, boxes, (5, 7), rule="last_vit")
    turned = point_in_box(scores[order], boxes[order], (5, 7), rule="last_vit")
    assert np.array_equal(turned.hits, whole.hits[order.numpy()])
    alone = [
        point_in_box(s[None], b[None], (5, 7), rule="last_vit") for s, b in zip(scores, boxes, strict=True)
    ]
    assert [bool(a.hits[0]) for a in alone] == whole.hits.tolist()


def test_duplicate_images_change_neither_rate_nor_chance():
    scores, boxes = normal(15, 35), random_boxes(15)
    once = point_in_box(scores, boxes, (5, 7))
    twice = point_in_box(scores.repeat(2, 1), boxes.repeat(2, 1), (5, 7))
    assert (twice.rate, twice.kept) == (once.rate, 2 * once.kept)
    assert math.isclose(twice.chance, once.chance, rel_tol=1e-12)


def test_among_equal_scores_the_lowest_patch_is_taken():
    found = point_in_box(torch.zeros(1, 4), torch.tensor([[0.0, 0.0, 0.5, 0.5]]), (2, 2))
    assert (found.patch.tolist(), found.hits.tolist()) == ([0], [True])


def test_a_centre_on_an_edge_belongs_to_the_box_that_begins_there():
    # five columns have centres at 0.1, 0.3, 0.5 …; 0.3 is no exact float32
    left, right = torch.tensor([[0.0, 0.0, 0.3, 1.0]]), torch.tensor([[0.3, 0.0, 0.6, 1.0]])
    assert owned(left, (1, 5), "center") == [{0}]
    assert owned(right, (1, 5), "center") == [{1, 2}]


@pytest.mark.parametrize("pixels", [96, 98, 224, 518])
def test_whole_pixels_as_float32_fractions_keep_their_patch(pixels):
    edge = torch.arange(pixels + 1)
    patch = pixels // 14 if pixels % 14 == 0 else 8
    side = pixels // patch
    f = edge.float() / pixels
    boxes = torch.stack([f, torch.zeros_like(f), torch.ones_like(f), torch.ones_like(f)], 1)
    first_owned = [int(e) // patch for e in edge[:-1]]
    first_centre = [math.ceil((int(e) - patch / 2) / patch) for e in edge[:-1]]
    for rule, expected in (("last_vit", first_owned), ("center", first_centre)):
        found = box_patches(boxes[:-1], (1, side), rule=rule)
        for row, first in zip(found, expected, strict=True):
            assert row.tolist() == [c >= first for c in range(side)]


def test_images_left_out_are_counted_by_reason():
    two = [[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.5, 0.5]]
    none = [[NAN] * 4] * 2
    outside = [[1.2, 0.0, 1.5, 0.5], [NAN] * 4]
    tiny = [[0.01, 0.01, 0.2, 0.2], [NAN] * 4]
    good = [[NAN] * 4, [0.0, 0.0, 0.5, 0.5]]
    boxes = torch.tensor([two, none, outside, tiny, good])
    scores = best_at([0, 0, 0, 0, 0], 4)
    found = point_in_box(scores, boxes, (2, 2))
    counts = {"no object": 1, "several objects": 1, "box outside": 1, "covers no patch centre": 1}
    assert (found.excluded, found.kept_index.tolist(), found.kept) == (counts, [4], 1)
    assert sum(found.excluded.values()) + found.kept == found.total == 5
    either = point_in_box(scores, boxes, (2, 2), any_box=True)
    assert (either.excluded["several objects"], either.kept_index.tolist()) == (0, [0, 4])
    faithful = point_in_box(scores, boxes, (2, 2), rule="last_vit")
    assert faithful.excluded == {"no object": 1, "several objects": 1}
    assert faithful.kept_index.tolist() == [2, 3, 4]


def test_any_box_owns_the_union():
    boxes = torch.tensor([[[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0], [NAN] * 4]])
    scores = best_at([0, 1, 2, 3], 4)[:, None]
    found = point_in_box(scores, boxes, (2, 2), any_box=True)
    assert found.rate.tolist() == [1, 0, 0, 1]
    assert found.chance == 0.5


@pytest.mark.parametrize(
    ("scores", "boxes", "keywords", "message"),
    [
        (torch.ones(2, 4), torch.rand(3, 4).sort().values, {}, r"3 images.*4 patches.*got \(2, 4\)"),
        (torch.ones(2, 5), torch.zeros(2, 4), {}, r"the grid \(2, 2\): got \(2, 5\)"),
        (torch.ones(0, 4), torch.zeros(0, 4), {}, r"nothing to score.*\(0, 4\)"),
        (torch.tensor([[1.0, NAN, 0, 0]]), torch.zeros(1, 4), {}, "scores hold NaN"),
        (torch.ones(1, 4), torch.zeros(1, 5), {}, r"boxes must be.*\(1, 5\)"),
        (torch.ones(1, 4), torch.tensor([[0, 0, NAN, 1.0]]), {}, "NaN beside numbers.*image 0"),
        (torch.ones(1, 4), torch.tensor([[0, 0, math.inf, 1.0]]), {}, "boxes hold infinity"),
        (torch.ones(1, 4), torch.tensor([[0.5, 0, 0.4, 1.0]]), {}, "wrong order"),
        (torch.ones(1, 4), torch.full((1, 4), NAN), {}, "none of 1 images.*'center': 1 no object"),
        (torch.ones(1, 4), torch.zeros(1, 4), {"rule": "middle"}, "rule must be one of.*'middle'"),
    ],
)
def test_point_in_box_refuses(scores, boxes, keywords, message, no_axis_check):
    with pytest.raises(ValueError, match=message):
        point_in_box(scores, boxes, (2, 2), **keywords)


def test_interval_is_wilsons_and_has_a_width_at_rate_one():
    boxes = torch.tensor([[0.0, 0.0, 0.5, 0.5]]).expand(40, 4)
    scores = torch.stack([best_at([0] * 40, 4), best_at([0] * 13 + [3] * 27, 4)])
    found = point_in_box(scores, boxes, (2, 2)).interval(level=0.9)
    z, n = norm.ppf(0.95), 40
    for state, p in enumerate((1.0, 13 / 40)):
        centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
        half = z / (1 + z**2 / n) * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
        assert found.mean[state] == p
        np.testing.assert_allclose((found.low[state], found.high[state]), (centre - half, centre + half))


def test_interval_of_clusters_draws_those_of_kept_images():
    boxes = torch.tensor([[0.0, 0.0, 0.5, 0.5]]).repeat(41, 1)
    boxes[0] = NAN
    found = point_in_box(best_at([3, *([0] * 20 + [3] * 20)], 4), boxes, (2, 2))
    names = np.array([99, *np.arange(40) // 20])
    interval = found.interval(clusters=names)
    # two clusters, one all hits and one all misses: draws are 0, 0.5 or 1
    assert (interval.mean, interval.low, interval.high) == (0.5, 0, 1)
    with pytest.raises(ValueError, match=r"\(40,\) for 41 images"):
        found.interval(clusters=names[1:])
    with pytest.raises(ValueError, match="level must lie between 0 and 1"):
        found.interval(level=1.0)


def test_faithful_patches_are_those_of_the_original_code():
    rng = np.random.default_rng(0)
    sizes = rng.integers(60, 900, size=(3000, 2))
    ends = np.sort(rng.random((3000, 2, 2)), axis=1)
    boxes = np.round(ends * sizes[:, None]).reshape(-1, 4)
    fractions = crop_box(torch.tensor(boxes), torch.tensor(sizes), resize=256, crop=224, faithful=True)
    slow = [original_patches(b, int(w), int(h)) for b, (w, h) in zip(boxes, sizes, strict=True)]
    assert owned(fractions) == slow
    assert owned(fractions.float()) == slow


def test_defect_i_an_edge_on_a_line_adds_a_column_of_width_zero():
    # 256 x 256 needs no scaling, the crop begins at 16: x̂ from 16 to 32 is column 1 alone
    box, size = torch.tensor([[32.0, 32.0, 48.0, 48.0]]), torch.tensor([[256, 256]])
    faithful = owned(crop_box(box, size, resize=256, crop=224, faithful=True))
    true = owned(crop_box(box, size, resize=256, crop=224), rule="center")
    assert true == [{15}]
    assert faithful == [{15, 16, 29, 30}] == [original_patches(box[0].tolist(), 256, 256)]


def test_defect_ii_a_box_off_the_crop_owns_patches_on_two_sides_only():
    size = torch.tensor([[256, 256]])
    sides = {"left": [0, 60, 10, 160], "above": [60, 0, 160, 10], "right": [245, 60, 256, 160]}
    sides["below"] = [60, 245, 160, 256]
    counts = {}
    for side, box in sides.items():
        pixels = torch.tensor([box], dtype=torch.float64)
        faithful = crop_box(pixels, size, resize=256, crop=224, faithful=True)
        assert owned(faithful) == [original_patches(box, 256, 256)]
        counts[side] = len(owned(faithful)[0])
        scores = torch.ones(2, 196)
        both = torch.cat([pixels, torch.tensor([[100.0, 100.0, 200.0, 200.0]])])
        true = crop_box(both, size.expand(2, 2), resize=256, crop=224)
        assert point_in_box(scores, true, GRID).excluded["box outside"] == 1
        kept = crop_box(both, size.expand(2, 2), resize=256, crop=224, faithful=True)
        assert point_in_box(scores, kept, GRID, rule="last_vit").kept == 2
    assert counts == {"left": 8, "above": 8, "right": 0, "below": 0}


def test_defect_iii_the_short_side_loses_a_pixel_by_rounding():
    short = [s for s in range(60, 5000) if int(s * (256 / s)) == 255]
    assert len(short) == 539
    sizes = torch.tensor([[s, s] for s in short])
    boxes = torch.cat([0.25 * sizes, 0.75 * sizes], 1)
    faithful = crop_box(boxes, sizes, resize=256, crop=224, faithful=True) * 224
    true = crop_box(boxes, sizes, resize=256, crop=224) * 224
    # the crop begins at (255 − 224)//2 = 15 in place of 16
    torch.testing.assert_close(faithful - true, torch.ones_like(true), atol=0.005, rtol=0)


def test_defect_iv_the_crop_is_a_pixel_off_torchvisions_for_a_quarter_of_sizes():
    rng = np.random.default_rng(1)
    sizes = rng.integers(200, 1000, size=(2000, 2))
    middle = np.tile(sizes / 2, 2)
    faithful, true = (
        crop_box(torch.tensor(middle), torch.tensor(sizes), resize=256, crop=224, faithful=f) * 224
        for f in (True, False)
    )
    off = ((faithful - true).abs() > 0.9).any(1)
    expected = []
    for width, height in sizes.tolist():
        a = 256 / min(width, height)
        ours = [(int(side * a) - 224) // 2 for side in (width, height)]
        resized = [int(256 * side / min(width, height)) for side in (width, height)]
        theirs = [round((side - 224) / 2.0) for side in resized]
        expected.append(ours != theirs)
    assert off.tolist() == expected
    assert 0.15 < np.mean(expected) < 0.4


@pytest.mark.parametrize(("width", "height"), [(100, 75), (73, 131), (64, 64), (57, 200), (111, 50)])
def test_true_crop_is_where_torchvision_puts_it(width, height):
    resize, crop = 48, 37
    resized = vision.resize(torch.zeros(1, height, width), [resize], antialias=True)
    across, down = resized.shape[2], resized.shape[1]
    ramp = torch.arange(across).expand(1, down, across), torch.arange(down)[:, None].expand(1, down, across)
    left, top = (int(vision.center_crop(r, [crop, crop])[0, 0, 0]) for r in ramp)
    box = torch.tensor([[0.2 * width, 0.3 * height, 0.6 * width, 0.9 * height]], dtype=torch.float64)
    expected = [0.2 * across - left, 0.3 * down - top, 0.6 * across - left, 0.9 * down - top]
    found = crop_box(box, torch.tensor([[width, height]]), resize=resize, crop=crop) * crop
    torch.testing.assert_close(found, torch.tensor([expected], dtype=torch.float64))


def test_crop_boxes_of_absent_objects_stay_absent():
    boxes = torch.tensor([[NAN] * 4, [0.0, 0.0, 5.0, 5.0]])
    for faithful in (True, False):
        found = crop_box(boxes, torch.tensor([[9, 7], [9, 7]]), resize=8, crop=6, faithful=faithful)
        assert found.isnan().all(1).tolist() == [True, False]


@pytest.mark.parametrize(
    ("boxes", "sizes", "resize", "message"),
    [
        (torch.zeros(2, 4), torch.ones(3, 2), 8, r"sizes must be \[2, 2\].*\(3, 2\)"),
        (torch.zeros(2, 4), torch.zeros(2, 2), 8, "whole pixels of at least 1"),
        (torch.zeros(2, 4), torch.full((2, 2), 9.5), 8, "whole pixels"),
        (torch.zeros(2, 1, 4), torch.ones(2, 2), 8, r"one box per image.*\(2, 1, 4\)"),
        (torch.zeros(2, 4), torch.ones(2, 2), 5, "from 1 to resize = 5 pixels wide, got 6"),
    ],
)
def test_crop_box_refuses(boxes, sizes, resize, message, no_axis_check):
    with pytest.raises(ValueError, match=message):
        crop_box(boxes, sizes, resize=resize, crop=6)


def test_single_small_is_one_object_strictly_below_the_limit(no_axis_check):
    sizes = torch.tensor([[20, 10]] * 4)
    box = {"below": [0, 0, 7, 7], "equal": [0, 0, 10, 5], "gone": [NAN] * 4}
    rows = [["below", "gone"], ["equal", "gone"], ["below", "below"], ["gone", "gone"]]
    boxes = torch.tensor([[box[name] for name in row] for row in rows])
    assert single_small(boxes, sizes).tolist() == [True, False, False, False]
    assert single_small(list(boxes), sizes, limit=0.26).tolist() == [True, True, False, False]
    with pytest.raises(ValueError, match=r"in \(0, 1\], got 25"):
        single_small(boxes, sizes, limit=25)


def test_embedded_scenes_of_one_object_are_small_and_scored():
    images = load_scenes("scenes_single", "test")
    chosen = np.arange(30)
    made = annotations(images, chosen)
    assert single_small(96 * made["boxes"], torch.full((30, 2), 96)).all()
    found = point_in_box(torch.rand(30, 144), made["boxes"], (12, 12))
    assert found.kept == 30
    # a scorer that knows the object's pixels always hits
    knows = torch.nn.functional.avg_pool2d((made["mask"] > 0).float(), 8).flatten(1)
    assert float(point_in_box(knows, made["boxes"], (12, 12)).rate) == 1
    chances = [point_in_box(knows, made["boxes"], (12, 12), rule=r).chance for r in ("center", "last_vit")]
    assert 0 < chances[0] < chances[1] < 0.5
