"""Views are functions of seed and position: crops, colours and folders."""

import colorsys
import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter1d

from vitscope.data.images import DecodeError
from vitscope.pretrain.dino_folder import FolderViews, resized
from vitscope.pretrain.dino_recipe import DinoRecipe
from vitscope.pretrain.multicrop import CHANNELS, Ahead, RenderViews, blur, boxes, crop, jitter, recolour
from vitscope.pretrain.zoo import Architecture

TINY = Architecture(width=32, depth=2, heads=2)
RECIPE = DinoRecipe(TINY, images=64, batch=8, blur=(0.5, 0.1, 0.5))


def pictures(count, size=16, seed=0):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def numbers(count, **columns):
    """The same numbers for every picture, ½ but for some columns."""
    u = np.full((count, CHANNELS), 0.5)
    for column, value in columns.items():
        u[:, int(column[1:])] = value
    return u


@pytest.mark.parametrize("views", ["renders", "crops"])
def test_crops_do_not_depend_on_the_batch(views):
    source = RenderViews(dataclasses.replace(RECIPE, views=views), seed=3)
    whole = source.batch(5, 7)
    assert [tuple(c.shape) for c in whole] == [(7, 3, 64, 64)] * 2 + [(7, 3, 32, 32)] * 4
    assert all(c.min() >= -1 and c.max() <= 1 for c in whole)
    for start, count in [(5, 1), (6, 3), (9, 3)]:
        part = source.batch(start, count)
        assert all(torch.equal(p, w[start - 5 : start - 5 + count]) for p, w in zip(part, whole, strict=True))
    other = RenderViews(dataclasses.replace(RECIPE, views=views), seed=4).batch(5, 7)
    assert not any(torch.equal(o, w) for o, w in zip(other, whole, strict=True))


def test_renders_show_one_identity_twice_and_crops_one_picture():
    two, one = (RenderViews(dataclasses.replace(RECIPE, views=v), seed=0) for v in ("renders", "crops"))
    assert two.sources(0, 4).shape[0] == 2
    assert not torch.equal(*two.sources(0, 4))
    assert torch.equal(one.sources(0, 4)[0], two.sources(0, 4)[0])
    still = dataclasses.replace(
        RECIPE, views="crops", global_scale=(1.0, 1.0), flip=0.0, jitter_share=0.0, grey=0.0, solarise=0.0,
        blur=(0.0, 0.0, 0.0), local_crops=0,
    )  # fmt: skip
    a, b = RenderViews(still, seed=0).batch(0, 4)
    expected = RenderViews(still, seed=0).sources(0, 4)[0].float() / 127.5 - 1
    torch.testing.assert_close(a, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(b, expected, atol=1e-6, rtol=0)


def test_local_crops_come_from_both_renders(monkeypatch):
    flat = dataclasses.replace(RECIPE, jitter_share=0.0, grey=0.0, blur=(0.0, 0.0, 0.0), local_crops=8)
    views = RenderViews(flat, seed=0)
    marked = torch.stack([torch.zeros(16, 3, 64, 64), torch.full((16, 3, 64, 64), 255.0)]).to(torch.uint8)
    monkeypatch.setattr(RenderViews, "sources", lambda self, start, count: marked)
    share = (torch.stack(views.batch(0, 16)[2:]).mean((2, 3, 4)) > 0).float().mean().item()
    assert 0.35 < share < 0.65


def test_boxes_lie_inside_and_have_the_asked_area():
    u = np.random.default_rng(0).random((4000, CHANNELS))
    left, top, width, height = boxes(u, (0.1, 0.5))
    assert (left >= 0).all()
    assert (top >= 0).all()
    assert (left + width <= 1 + 1e-12).all()
    assert (top + height <= 1 + 1e-12).all()
    assert (width * height).mean() == pytest.approx(0.3, abs=0.01)
    assert (width * height).min() >= 0.1 - 1e-12
    ratio = width / height
    assert ratio.min() >= 3 / 4 - 1e-9
    assert ratio.max() <= 4 / 3 + 1e-9
    _, _, width, height = boxes(u, (0.1, 0.2), 2.0)  # a picture twice as wide as high
    ratio = 2 * width / height
    assert 3 / 4 - 1e-9 <= ratio.min() < ratio.max() <= 4 / 3 + 1e-9


def test_crop_of_a_ramp_reads_the_places_of_its_box():
    ramp = ((torch.arange(32.0) + 0.5) / 32).expand(1, 3, 32, 32).contiguous()
    u = numbers(1, c0=0.0, c1=0.5, c2=1.0, c3=0.3, c4=0.9)  # area ¼, square, at the right edge, not mirrored
    out = crop(ramp, u, (0.25, 0.25), 8, 0.5)
    expected = 0.5 + (torch.arange(8.0) + 0.5) / 16
    torch.testing.assert_close(out[0, 1, 3], expected, atol=1e-6, rtol=0)
    mirrored = crop(ramp, numbers(1, c0=0.0, c1=0.5, c2=1.0, c3=0.3, c4=0.1), (0.25, 0.25), 8, 0.5)
    torch.testing.assert_close(mirrored, out.flip(-1), atol=1e-6, rtol=0)


def changed(x, grey=0.0, **columns):
    return jitter(x, numbers(len(x), **columns), dataclasses.replace(RECIPE, grey=grey))


def test_no_change_of_colour_leaves_pictures_as_they_are():
    x = pictures(3)
    torch.testing.assert_close(changed(x), x, atol=2e-6, rtol=0)  # every strength in the middle
    torch.testing.assert_close(changed(x, c7=0.99, c8=0.0, c9=1.0), x, atol=2e-6, rtol=0)  # jitter not drawn


def test_each_colour_change_against_its_definition():
    x = 0.2 + 0.4 * pictures(3)
    luma = (x * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
    torch.testing.assert_close(changed(x, c8=1.0), 1.4 * x, atol=2e-6, rtol=0)
    mean = luma.mean((2, 3), keepdim=True)
    torch.testing.assert_close(changed(x, c9=0.0), 0.6 * x + 0.4 * mean, atol=2e-3, rtol=0)
    torch.testing.assert_close(changed(x, c10=0.0), luma + 0.8 * (x - luma), atol=1e-3, rtol=0)
    grey = changed(x, grey=0.2, c12=0.1)
    torch.testing.assert_close(grey, luma.expand_as(x), atol=1e-3, rtol=0)


def test_hue_turns_colours_and_keeps_the_luma():
    x = torch.tensor([0.6, 0.3, 0.3]).view(1, 3, 1, 1).expand(1, 3, 4, 4).contiguous()
    third = dataclasses.replace(RECIPE, jitter=(0.0, 0.0, 0.0, 1 / 3))
    weights = torch.tensor([0.299, 0.587, 0.114])
    found = []
    for end in (0.0, 1.0):
        out = jitter(x, numbers(1, c11=end), dataclasses.replace(third, grey=0.0))[0, :, 0, 0]
        assert (out * weights).sum() == pytest.approx(float((x[0, :, 0, 0] * weights).sum()), abs=1e-3)
        found.append(colorsys.rgb_to_hsv(*out.tolist())[0])
    assert sorted(round(3 * hue) for hue in found) == [1, 2]  # red becomes green one way, blue the other


def test_blur_against_scipy():
    x = pictures(4, size=24)
    sigma = np.array([0.0, 0.4, 1.1, 2.0])
    out = blur(x, sigma)
    assert torch.equal(out[0], x[0])
    for picture, wanted, s in zip(out[1:], x[1:], sigma[1:], strict=True):
        slow = wanted.double().numpy()
        for axis in (1, 2):
            slow = gaussian_filter1d(slow, s, axis=axis, mode="nearest", radius=6)
        np.testing.assert_allclose(picture.numpy(), slow, atol=1e-5)


def test_solarise_is_for_the_second_global_view_only():
    always = dataclasses.replace(RECIPE, jitter_share=0.0, grey=0.0, blur=(0.0, 0.0, 0.0), solarise=1.0)
    x = pictures(4)
    u = np.random.default_rng(0).random((2, 2, CHANNELS))
    first, second = recolour(x.clone(), u, always, local=False)
    torch.testing.assert_close(first, 2 * x[:2] - 1, atol=1e-5, rtol=0)
    part = x[2:]
    torch.testing.assert_close(second, 2 * torch.where(part >= 0.5, 1 - part, part) - 1, atol=1e-5, rtol=0)
    local = recolour(x.clone(), u, always, local=True).flatten(0, 1)
    torch.testing.assert_close(local, 2 * x - 1, atol=1e-5, rtol=0)


def test_views_prepared_ahead_are_the_same():
    class Counted:
        def __init__(self):
            self.asked = []

        def batch(self, start, count):
            self.asked.append(start)
            return [torch.full((count,), float(start))]

        def describe(self):
            return {}

    source = Counted()
    ahead = Ahead(source, stride=10)
    found = [ahead.batch(start, 2)[0][0].item() for start in (0, 10, 20, 50, 60)]
    assert found == [0, 10, 20, 50, 60]
    ahead.batch(70, 2)
    assert source.asked.count(10) == source.asked.count(20) == source.asked.count(60) == 1


# --- folders ----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(8):
        path = tmp_path / "train" / f"class{i % 2}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (40 + 8 * i, 72, 3), dtype=np.uint8)).save(path)
    (tmp_path / "train" / "class0" / "notes.txt").write_text("no picture")
    return tmp_path


def test_folder_crops_do_not_depend_on_batch_or_workers(folder):
    views = FolderViews(folder, RECIPE, 1)
    assert views.describe()["pictures"] == 8
    whole = views.batch(3, 9)
    assert [tuple(c.shape) for c in whole] == [(9, 3, 64, 64)] * 2 + [(9, 3, 32, 32)] * 4
    alone = FolderViews(folder, RECIPE, 1, workers=1)
    for start, count in [(3, 1), (7, 4)]:
        for p, w in zip(alone.batch(start, count), whole, strict=True):
            assert torch.equal(p, w[start - 3 : start - 3 + count])


def test_every_epoch_shows_each_file_once_in_its_own_order(folder):
    views = FolderViews(folder, RECIPE, 1)
    epochs = [views.places(8 * e, 8) for e in range(4)]
    assert all(sorted(e) == list(range(8)) for e in epochs)
    assert len({tuple(e) for e in epochs}) > 1
    assert views.places(4, 8) == epochs[0][4:] + epochs[1][:4]


def test_whole_pictures_are_resized_as_a_whole():
    picture = torch.full((3, 50, 70), 90, dtype=torch.uint8)
    picture[:, :, 35:] = 200
    out = resized(picture, numbers(1, c1=0.5 + 0.5 * np.log(1.4) / np.log(4 / 3)), (1.0, 1.0), 10, 0.0)[0]
    assert out[:, :, :4].eq(90).all()
    assert out[:, :, 6:].eq(200).all()


def test_broken_files_are_named(folder):
    broken = folder / "train" / "class1" / "1.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    with pytest.raises(DecodeError, match=r"class1/1\.jpg: not a readable picture"):
        FolderViews(folder, RECIPE, 0).batch(0, 8)


def test_folders_without_pictures_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        FolderViews(tmp_path / "nowhere", RECIPE, 0)
    with pytest.raises(ValueError, match="no pictures below"):
        FolderViews(tmp_path, RECIPE, 0)
