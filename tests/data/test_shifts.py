"""Shifted sets: what is shifted and what is not, pairing, digests, published arrays, worst-group accuracy."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import encoded, flat, photo
from vitscope import data
from vitscope.data import corruptions, emoji, shifts, tasks
from vitscope.data.images import Images, UnlabelledError
from vitscope.errors import UnknownName


def small(count: int = 40) -> Images:
    """Random pictures of 12 px in two classes."""
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (count, 3, 12, 12), generator=generator).to(torch.uint8)
    return Images(
        name="small", split="test", labels=np.arange(count) % 2, classes=("a", "b"),
        ids=np.array([f"i{k}" for k in range(count)]), digest="d", source={},
        read=lambda indices: pixels[torch.from_numpy(indices)],
    )  # fmt: skip


def uneven() -> Images:
    """Pictures of two sizes, which are read as a list."""
    made = [torch.from_numpy(np.array(photo(8 + 4 * (i % 2), 9, seed=i))).permute(2, 0, 1) for i in range(5)]
    return Images(
        name="uneven", split="test", labels=np.zeros(5, dtype=np.int64), ids=np.array(list("abcde")),
        classes=("x",), digest="d", source={}, read=lambda indices: [made[i] for i in indices],
    )  # fmt: skip


# --- corrupted --------------------------------------------------------------------------------------------


def test_reading_corrupts_and_keeps_everything_else():
    clean = small()
    bad = shifts.corrupted(clean, "contrast", 4)
    numbers = np.zeros(3, dtype=np.int64)  # contrast draws nothing
    expected = corruptions.corrupt(clean.pixels([3, 1, 2]), "contrast", 4, ids=numbers)
    assert torch.equal(bad.pixels([3, 1, 2]), expected)
    assert (bad.labels == clean.labels).all()
    assert (bad.ids == clean.ids).all()
    assert bad.classes == clean.classes
    assert set(bad.extras["corruption"]) == {"contrast"}
    assert set(bad.extras["severity"]) == {4}
    assert bad.source["strengths"] == {"contrast": corruptions.CORRUPTIONS["contrast"].strengths}
    assert "contrast, severity 4" in bad.name


@pytest.mark.parametrize("address", [("gaussian_noise", 3), (None, 3), ("fog", None), (None, None)])
def test_same_pixels_in_any_batch_subset_and_order(address):
    clean = small()
    whole = shifts.corrupted(clean, *address, seed=2).pixels()
    bad = shifts.corrupted(clean, *address, seed=2)
    assert torch.equal(torch.cat([bad.pixels([i]) for i in range(40)]), whole)
    order = np.random.default_rng(0).permutation(40)[:17]
    assert torch.equal(bad.pixels(order), whole[order])
    assert torch.equal(bad.select(order).pixels(), whole[order])
    assert torch.equal(shifts.corrupted(clean.select(order), *address, seed=2).pixels(), whole[order])


def test_digest_follows_corruption_severity_and_seed():
    clean = small()
    addresses = [("fog", 3), ("fog", 4), ("contrast", 3), ("fog", None), (None, 3), (None, None)]
    digests = [shifts.corrupted(clean, *a, seed=s).digest for a in addresses for s in (0, 1)]
    assert len({clean.digest, *digests}) == 1 + len(digests)
    assert shifts.corrupted(clean, "fog", 3).digest == digests[0]


def test_digest_follows_the_strengths(monkeypatch):
    before = shifts.corrupted(small(), "fog", 3).digest
    monkeypatch.setattr(corruptions, "CORRUPTION_VERSION", corruptions.CORRUPTION_VERSION + 1)
    assert shifts.corrupted(small(), "fog", 3).digest != before


def test_mixture_is_uniform_and_each_picture_is_what_its_extras_say():
    mixed = shifts.corrupted(small(6000))
    kinds = Counter(mixed.extras["corruption"].tolist())
    levels = Counter(mixed.extras["severity"].tolist())
    assert set(kinds) == set(corruptions.CORRUPTIONS)
    assert set(levels) == set(corruptions.SEVERITIES)
    for counts in (kinds, levels):
        share = 6000 / len(counts)
        assert sum((n - share) ** 2 / share for n in counts.values()) < 35  # chi-square, at most 11 degrees
    both = np.corrcoef(mixed.extras["severity"], mixed.extras["corruption"] == "fog")[0, 1]
    assert abs(both) < 0.05
    for i in range(12):
        kind, severity = mixed.extras["corruption"][i], int(mixed.extras["severity"][i])
        alone = shifts.corrupted(small(6000), kind, severity)
        assert torch.equal(alone.pixels([i]), mixed.pixels([i]))


def test_train_and_test_pictures_of_one_number_share_no_draw():
    grey = torch.full((1, 3, 20, 20), 128, dtype=torch.uint8)
    one = replace(small(1), read=lambda indices: grey)
    a, b = (
        shifts.corrupted(replace(one, split=s), "gaussian_noise", 3).pixels().double() - 128 for s in "ab"
    )
    assert abs(np.corrcoef(a.flatten(), b.flatten())[0, 1]) < 0.1


def test_pictures_of_several_sizes_stay_a_list():
    clean = uneven()
    for address in (("fog", 2), (None, None)):
        bad = shifts.corrupted(clean, *address).pixels([4, 1])
        assert [p.shape for p in bad] == [p.shape for p in clean.pixels([4, 1])]
        assert all(p.dtype == torch.uint8 for p in bad)
        again = shifts.corrupted(clean, *address).pixels([1])
        assert torch.equal(again[0], bad[1])


def test_bad_addresses_of_corrupted():
    with pytest.raises(UnknownName, match="Did you mean 'fog'"):
        shifts.corrupted(small(), "fogg", 3)
    for severity in (0, 6):
        with pytest.raises(ValueError, match=f"severity must be 1, 2, 3, 4 or 5, got {severity}"):
            shifts.corrupted(small(), "fog", severity)


# --- by name ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["fashion_mnist", "emoji_group", "emoji_identity"])
def test_train_is_clean_and_test_is_corrupted(task):
    name = f"{task}-c/impulse_noise/5"
    train, clean_train = data.load(name, "train"), data.load(task, "train")
    test, clean_test = data.load(name, "test"), data.load(task, "test")
    assert train.name == test.name == name
    assert train.digest == clean_train.digest, "a capture of the clean set serves both"
    assert test.digest != clean_test.digest
    assert (test.labels == clean_test.labels).all()
    assert train.classes == test.classes == clean_test.classes
    assert torch.equal(train.pixels([5]), clean_train.pixels([5]))
    changed = (test.pixels(slice(0, 8)) != clean_test.pixels(slice(0, 8))).double().mean()
    # a hit on what is black or white already may change nothing
    assert 0.4 < changed / corruptions.CORRUPTIONS["impulse_noise"].strengths[4] < 1.2
    assert ("identity" in test.extras) == task.startswith("emoji")


def test_name_is_the_function():
    by_name = data.load("fashion_mnist-c/shot_noise/2", "test", limit=30, seed=4)
    by_hand = shifts.corrupted(data.load("fashion_mnist", "test"), "shot_noise", 2, seed=4).limited(30, 4)
    assert torch.equal(by_name.pixels(), by_hand.pixels())
    assert by_name.digest == by_hand.digest
    assert by_name.digest != data.load("fashion_mnist-c/shot_noise/2", "test", limit=30, seed=5).digest


def test_open_parts_of_the_name_are_drawn_by_picture():
    everything = data.load("fashion_mnist-c", "test", limit=300)
    one_kind = data.load("fashion_mnist-c/fog", "test", limit=300)
    assert len(set(everything.extras["corruption"])) == len(corruptions.CORRUPTIONS)
    assert set(one_kind.extras["corruption"]) == {"fog"}
    assert set(one_kind.extras["severity"]) == {1, 2, 3, 4, 5}


def test_art_style_of_the_base_is_kept():
    by_style = data.load("emoji_group@twemoji-c/contrast/1", "test")
    clean = data.load("emoji_group@twemoji", "test")
    expected = shifts.corrupted(clean, "contrast", 1)
    assert torch.equal(by_style.pixels([0]), expected.pixels([0]))


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("fashion_mnist-c/fogg/3", UnknownName, "Did you mean 'fog'"),
        ("fashion_mnist-c/fog/0", ValueError, "severity must be 1, 2, 3, 4 or 5, got 0"),
        ("fashion_mnist-c/fog/6", ValueError, "severity must be 1, 2, 3, 4 or 5, got 6"),
        ("fashion_mnist-c/fog/high", ValueError, "severity must be 1, 2, 3, 4 or 5, got 'high'"),
        ("fashion_mnist-c/fog/", ValueError, "got ''"),
        ("fashion_mnist-c/fog/3/1", ValueError, "expected fashion_mnist-c/CORRUPTION/SEVERITY"),
        ("fashion_minst-c/fog/3", UnknownName, "Did you mean 'fashion_mnist-c'"),
        ("fashion_minst-c", UnknownName, "Did you mean 'fashion_mnist-c'"),
        ("digits-style", UnknownName, "Unknown dataset 'digits-style'"),
        ("emoji_group@twemoji-style", ValueError, "write 'emoji_group-style'"),
        ("emoji_group-style/fog/3", ValueError, "write 'emoji_group-style'"),
        ("emoji_group@tweemoji-c/fog/3", UnknownName, "'twemoji'"),
        ("digits@noto-c/fog/3", ValueError, "one style only"),
    ],
)
def test_bad_names_are_explained(name, kind, message):
    with pytest.raises(kind, match=message):
        data.load(name, "test")


@pytest.mark.parametrize("name", ["fashion_mnist-c/fog/3", "emoji_group-style", "emoji_places"])
def test_other_splits_are_refused(name):
    with pytest.raises(ValueError, match="has the splits train, test, not 'validation'"):
        data.load(name, "validation")


def test_registry_and_what_counts_as_embedded():
    names = data.available(embedded_only=True)
    assert {
        "emoji_group-c",
        "emoji_identity-c",
        "fashion_mnist-c",
        "emoji_group-style",
        "emoji_places",
    } <= set(names)
    assert set(shifts.DESCRIPTIONS) == set(shifts.NAMES)
    for name in (*shifts.NAMES, "emoji_group@twemoji-c/fog/3", "digits-c/fog", "digits"):
        assert data.is_embedded(name), name
    for name in (
        "cifar10-c",
        "cifar10-c/fog/3",
        "waterbirds",
        "someone/emoji_group-c",
        "emoji_places/photo",
        "nothing",
    ):
        assert not data.is_embedded(name), name


# --- art style --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["emoji_group", "emoji_identity"])
def test_style_shift_trains_on_one_style_and_tests_on_the_other(task):
    train, test = (data.load(f"{task}-style", split) for split in tasks.SPLITS)
    assert train.name == test.name == f"{task}-style"
    assert train.digest == data.load(task, "train").digest
    assert test.digest == data.load(f"{task}@twemoji", "test").digest
    assert (train.source["style"], test.source["style"]) == emoji.STYLES
    same_style = data.load(task, "test")
    assert (test.labels == same_style.labels).all()
    assert not torch.equal(test.pixels([0]), same_style.pixels([0]))


# --- places -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def places():
    return {split: data.load("emoji_places", split) for split in tasks.SPLITS}


def test_labels_are_the_sides_of_the_identities(places):
    groups = emoji.identities()["group"].to_numpy()
    held_out = emoji.identities()["held_out"].to_numpy()
    for split, images in places.items():
        for label, members in enumerate(tasks.SIDES.values()):
            assert set(groups[images.extras["identity"][images.labels == label]]) == set(members)
        assert set(held_out[images.extras["identity"]]) == {split == "test"}
        assert len(set(images.ids)) == len(images)
        assert min(images.counts) > 0.4 * len(images)


def test_background_agrees_with_the_class_in_95_per_cent_of_training(places):
    train = places["train"]
    for label in (0, 1):
        agrees = train.extras["place"][train.labels == label] == label
        assert agrees.mean() == pytest.approx(0.95, abs=0.5 / len(agrees))
    assert np.corrcoef(train.labels, train.extras["place"])[0, 1] > 0.89
    once = data.load("emoji_places", "train", seed=1).extras["place"]
    assert (once != train.extras["place"]).mean() > 0.05, "another seed chooses other exceptions"


def test_exceptions_are_spread_over_identities_and_renders(places):
    train = places["train"]
    odd = train.extras["place"] != train.labels
    per_identity = Counter(train.extras["identity"][odd].tolist())
    assert len(per_identity) > 0.75 * odd.sum() / 1.3
    assert max(per_identity.values()) <= 4


def test_test_pictures_are_pairs_that_differ_in_the_background_alone(places):
    test = places["test"]
    assert (test.extras["identity"][::2] == test.extras["identity"][1::2]).all()
    assert (test.extras["place"].reshape(-1, 2) == [0, 1]).all()
    assert np.bincount(test.extras["group"]).tolist() == np.repeat(test.counts // 2, 2).tolist()
    first, second = test.pixels(np.arange(0, 40, 2)).double(), test.pixels(np.arange(1, 40, 2)).double()
    same = (first == second).all(1).double().mean((1, 2))
    assert same.min() > 0.02, "the emoji itself is the same picture on both"
    assert same.max() < 0.95, "the background is not"


def test_place_is_the_kind_of_background(places, monkeypatch):
    asked = []
    real = emoji.render

    def render(numbers, ids, *, style, seed, recipe):
        asked.append((recipe.background_kind, len(numbers), recipe.background_part))
        return real(numbers, ids, style=style, seed=seed, recipe=recipe)

    monkeypatch.setattr(emoji, "render", render)
    test = places["test"]
    mixed = test.pixels([0, 2, 5])
    assert asked == [("photo", 2, "test"), ("texture", 1, "test")]
    for i, picture in zip([0, 2, 5], mixed, strict=True):
        assert torch.equal(test.pixels([i])[0], picture)


def test_groups_are_named_and_indexed(places):
    for images in places.values():
        assert (images.extras["group"] == 2 * images.labels + images.extras["place"]).all()
        assert images.source["groups"] == [
            f"{c}, {kind}" for c in images.classes for kind in ("photo", "texture")
        ]
    part = places["test"].limited(50)
    assert (part.extras["group"] // 2 == part.labels).all()


def test_places_share_no_picture_with_the_tasks(places):
    assert places["train"].digest != places["test"].digest
    assert data.load("emoji_places", "test", seed=1).digest != places["test"].digest
    assert abs(tasks.PLACE_SEED - tasks.TASK_SEED) > 10**6


# --- published arrays -------------------------------------------------------------------------------------


@pytest.fixture
def arrays(tmp_path):
    """Six pictures a severity whose level says severity and row: 10·severity + row."""
    levels = np.concatenate([10 * s + np.arange(6) for s in range(1, 6)]).astype(np.uint8)
    pictures = np.broadcast_to(levels[:, None, None, None], (30, 4, 5, 3)).copy()
    pictures[..., 2] = 200
    np.save(tmp_path / "fog.npy", pictures)
    np.save(tmp_path / "glass_blur.npy", pictures + 1)
    np.save(tmp_path / "labels.npy", np.tile([2, 0, 1, 1, 0, 2], 5))
    return tmp_path


def test_arrays_are_read_by_severity(arrays):
    images = data.load(f"{arrays}/fog/3", "test")
    assert len(images) == 6
    assert images.labels.tolist() == [2, 0, 1, 1, 0, 2]
    assert images.classes == ("0", "1", "2")
    pixels = images.pixels([4, 1])
    assert pixels.shape == (2, 3, 4, 5)
    assert pixels.dtype == torch.uint8
    assert pixels[:, 0, 0, 0].tolist() == [34, 31]
    assert pixels[:, 2].unique().tolist() == [200]
    assert set(images.extras["severity"]) == {3}
    assert set(images.extras["corruption"]) == {"fog"}
    others = [data.load(f"{arrays}/{a}", "test") for a in ("fog/1", "glass_blur/3")]
    assert [int(o.pixels([0])[0, 0, 0, 0]) for o in others] == [10, 31]
    assert len({images.digest, *(o.digest for o in others)}) == 3


@pytest.mark.parametrize(
    ("tail", "split", "kind", "message"),
    [
        ("", "test", ValueError, r"holds corrupted arrays; write .*/CORRUPTION/SEVERITY"),
        ("/fog", "test", ValueError, r"holds corrupted arrays; write .*/CORRUPTION/SEVERITY"),
        ("/frog/3", "test", UnknownName, "Did you mean 'fog'"),
        ("/fog/7", "test", ValueError, "severity must be 1, 2, 3, 4 or 5, got 7"),
        ("/fog/x", "test", ValueError, "severity must be 1, 2, 3, 4 or 5, got 'x'"),
        (
            "/fog/3",
            "train",
            ValueError,
            "holds test pictures only, no split 'train'; learn from the clean set",
        ),
    ],
)
def test_bad_addresses_of_arrays(arrays, tail, split, kind, message):
    with pytest.raises(kind, match=message):
        data.load(f"{arrays}{tail}", split)


def test_arrays_of_another_form_are_refused(arrays):
    np.save(arrays / "fog.npy", np.zeros((30, 3, 4, 5), dtype=np.uint8))
    with pytest.raises(ValueError, match=r"expected uint8 \[5·N, h, w, 3\], got uint8 \[30, 3, 4, 5\]"):
        data.load(f"{arrays}/fog/1", "test")
    np.save(arrays / "labels.npy", np.arange(30))
    with pytest.raises(UnlabelledError, match="expected 30 labels, the same 6 for each severity"):
        data.load(f"{arrays}/glass_blur/1", "test")


def test_folder_of_classes_beside_a_labels_file_is_still_a_folder(tmp_path):
    for c in ("cat", "dog"):
        (tmp_path / "test" / c).mkdir(parents=True)
        (tmp_path / "test" / c / "a.png").write_bytes(encoded(flat(9), "PNG"))
    np.save(tmp_path / "labels.npy", np.arange(2))
    assert data.load(str(tmp_path), "test").classes == ("cat", "dog")


def test_imagenet_200_c_is_a_folder_of_linked_classes(tmp_path):
    """As the refusal of `imagenet200-c` says: train/ clean, test/ the classes of CORRUPTION/SEVERITY."""
    for part, classes in (("clean", "ab"), ("imagenet-c/fog/3", "abcd")):
        for k, c in enumerate(classes):
            (tmp_path / part / c).mkdir(parents=True)
            (tmp_path / part / c / "x.png").write_bytes(encoded(flat(10 * k + len(classes)), "PNG"))
    root = tmp_path / "imagenet200-c"
    for split, part in (("train", "clean"), ("test", "imagenet-c/fog/3")):
        (root / split).mkdir(parents=True)
        for c in "ab":
            (root / split / c).symlink_to(tmp_path / part / c)
    train, test = (data.load(str(root), split) for split in ("train", "test"))
    assert train.classes == test.classes == ("a", "b")
    assert [int(p[0, 0, 0]) for p in test.pixels()] == [4, 14]


# --- worst group ------------------------------------------------------------------------------------------


def test_worst_group_by_hand():
    correct = np.array([1, 1, 0, 1] + [1, 0] + [1] * 6 + [0, 1, 1])
    groups = np.array([7] * 4 + [2] * 2 + [4] * 6 + [5] * 3)
    found = shifts.worst_group_accuracy(correct.astype(bool), groups)
    assert found.groups.tolist() == [2, 4, 5, 7]
    assert found.counts.tolist() == [2, 6, 3, 4]
    assert found.by_group.mean.tolist() == pytest.approx([0.5, 1, 2 / 3, 0.75])
    assert found.worst_group == 2
    assert found.worst.mean == 0.5
    assert found.average.mean == pytest.approx(12 / 15)
    assert (found.by_group.low <= found.by_group.mean).all()
    assert (found.by_group.mean <= found.by_group.high).all()
    assert (found.by_group.low[1], found.by_group.high[1]) == (1, 1)


def test_average_hides_what_the_worst_group_shows():
    """The planted case of the papers: a classifier that reads the background."""
    label, place = np.repeat([0, 1], 500), np.tile(np.repeat([0, 1], [475, 25]), 2)
    place[500:] = 1 - place[500:]
    found = shifts.worst_group_accuracy(place == label, 2 * label + place)
    assert found.average.mean == 0.95
    assert found.worst.mean == 0
    assert found.worst_group in (1, 2)


def test_interval_covers_the_true_accuracy_of_the_worst_group():
    rng, truth, hits = np.random.default_rng(0), [0.9, 0.85, 0.6, 0.95], 0
    groups = np.repeat(np.arange(4), 120)
    for trial in range(120):
        correct = rng.random(480) < np.array(truth)[groups]
        found = shifts.worst_group_accuracy(correct, groups, draws=200, seed=trial)
        hits += found.worst.low <= 0.6 <= found.worst.high
    assert hits / 120 > 0.88


def test_clusters_widen_the_interval():
    """Eight renders of an identity that are right or wrong together are one sample, not eight."""
    right = np.random.default_rng(1).random(60) < 0.7
    correct, identity, groups = right.repeat(8), np.arange(60).repeat(8), (np.arange(60) % 2).repeat(8)
    alone = shifts.worst_group_accuracy(correct, groups)
    together = shifts.worst_group_accuracy(correct, groups, clusters=identity)
    ratio = (together.worst.high - together.worst.low) / (alone.worst.high - alone.worst.low)
    assert ratio == pytest.approx(8**0.5, rel=0.2)
    assert alone.worst.mean == together.worst.mean


def test_order_and_names_of_groups_do_not_matter():
    rng = np.random.default_rng(2)
    correct, groups = rng.random(200) < 0.8, rng.integers(0, 3, 200)
    a = shifts.worst_group_accuracy(correct, groups)
    b = shifts.worst_group_accuracy(correct, 10 * groups + 1)
    assert a.by_group.mean.tolist() == b.by_group.mean.tolist()
    order = rng.permutation(200)
    c = shifts.worst_group_accuracy(correct[order], groups[order])
    assert c.by_group.mean.tolist() == a.by_group.mean.tolist()
    assert c.worst_group == a.worst_group


def test_bad_input_to_worst_group():
    with pytest.raises(ValueError, match="other than 0 and 1; pass predictions == labels"):
        shifts.worst_group_accuracy(np.array([0.5, 1.0]), np.array([0, 0]))
    with pytest.raises(ValueError, match=r"one group per picture is needed, got \(3,\) and \(2,\)"):
        shifts.worst_group_accuracy(np.array([0, 1, 1]), np.array([0, 0]))
    with pytest.raises(ValueError, match="group 1 holds fewer than two independent pictures"):
        shifts.worst_group_accuracy(np.array([0, 1, 1]), np.array([0, 0, 1]))
    with pytest.raises(ValueError, match="group 0 holds fewer than two"):
        shifts.worst_group_accuracy(np.ones(4), np.array([0, 0, 1, 1]), clusters=np.array([5, 5, 6, 7]))
