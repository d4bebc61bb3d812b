"""The stream of training renders: a function of seed and position, and never a held-out identity."""

import numpy as np
import pytest
import torch

from vitscope.data import emoji
from vitscope.pretrain.stream import IdentityStream


@pytest.fixture
def stream():
    return IdentityStream(style="noto", seed=3)


def test_held_out_identities_never_occur(stream):
    held_out = set(np.flatnonzero(emoji.identities()["held_out"]))
    shown = set(stream.identities[stream.labels(0, 3 * stream.num_classes)])
    assert not shown & held_out
    assert len(shown) == stream.num_classes
    assert len(shown) + len(held_out) == len(emoji.identities())


def test_what_is_rendered_is_what_the_labels_say(stream, monkeypatch):
    asked = {}
    monkeypatch.setattr(
        emoji,
        "render",
        lambda numbers, ids, **o: asked.update(numbers=numbers, ids=ids, **o) or torch.zeros(1),
    )
    _, labels = stream.batch(1000, 500)
    assert (asked["numbers"] == stream.identities[labels.numpy()]).all()
    assert asked["ids"].tolist() == list(range(1000, 1500))
    assert asked["seed"] == 3
    assert asked["recipe"].background_part == "train"


def test_every_epoch_shows_each_identity_once_in_its_own_order(stream):
    count = stream.num_classes
    epochs = [stream.labels(e * count, count) for e in range(3)]
    for labels in epochs:
        assert sorted(labels) == list(range(count))
    assert (epochs[0] != epochs[1]).mean() > 0.9
    assert (epochs[1] != epochs[2]).mean() > 0.9


@pytest.mark.parametrize("batch", [1, 7, 128])
def test_labels_do_not_depend_on_the_batch(stream, batch):
    start, total = stream.num_classes - 130, 256  # across the end of an epoch
    parts = [stream.labels(start + i, min(batch, total - i)) for i in range(0, total, batch)]
    assert (np.concatenate(parts) == stream.labels(start, total)).all()


def test_pictures_do_not_depend_on_the_batch_or_on_what_came_before(stream):
    start = stream.num_classes - 3
    whole, labels = stream.batch(start, 6)
    singles = [IdentityStream(style="noto", seed=3).batch(start + i, 1) for i in (5, 0, 3)]
    for place, (picture, label) in zip((5, 0, 3), singles, strict=True):
        assert torch.equal(picture[0], whole[place])
        assert label[0] == labels[place]


def test_seed_and_style_change_the_stream(stream):
    other = IdentityStream(style="noto", seed=4)
    assert (other.labels(0, 200) != stream.labels(0, 200)).mean() > 0.9
    drawn = [IdentityStream(style=s, seed=3).batch(0, 1)[0] for s in emoji.STYLES]
    assert not torch.equal(*drawn)


def test_training_and_evaluation_share_no_picture():
    from vitscope.data import tasks
    from vitscope.pretrain.evaluate import EVALUATION_SEED

    seeds = {*range(100), EVALUATION_SEED, *(tasks.TASK_SEED + s for s in range(100))}
    assert len(seeds) == 201, "training seeds 0…99, evaluation and tasks draw from different streams"
