"""Accuracies of a classifier whose answers are known."""

import numpy as np
import pytest
import torch

from vitscope.data import emoji
from vitscope.pretrain import evaluate
from vitscope.pretrain.evaluate import EVALUATION_SEED, identity_accuracy
from vitscope.pretrain.stream import IdentityStream


class Oracle(torch.nn.Module):
    """Reads the true label off a picture's first pixels; ranks `answer(label)` first, the label later."""

    def __init__(self, classes: int, answer, rank: int) -> None:
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))
        self.classes, self.answer, self.rank = classes, answer, rank

    def forward(self, inputs):
        code = (inputs[:, 0, 0, :2] * 127.5 + 127.5).round().long()
        labels = 256 * code[:, 0] + code[:, 1]
        scores = torch.zeros(len(labels), self.classes)
        rows = torch.arange(len(labels))
        for k in range(1, 10):  # fillers between the first answer and the label
            scores[rows, (labels + 100 + k) % self.classes] = 20.0 - k
        scores[rows, labels] = 20.5 - self.rank
        scores[rows, self.answer(labels)] = 30.0
        return scores


@pytest.fixture
def stream():
    return IdentityStream(style="noto", seed=EVALUATION_SEED)


@pytest.fixture
def coded(monkeypatch, stream):
    """Pictures that carry their label; the parts they were asked for are recorded."""
    seen = []
    place = np.zeros(len(emoji.identities()), dtype=int)
    place[stream.identities] = np.arange(stream.num_classes)

    def render(numbers, ids, *, recipe, **options):
        seen.append((recipe.background_part, options["style"], np.array(ids)))
        picture = torch.zeros(len(numbers), 3, 2, 2, dtype=torch.uint8)
        label = torch.from_numpy(place[numbers])
        picture[:, 0, 0, 0], picture[:, 0, 0, 1] = label // 256, label % 256
        return picture

    monkeypatch.setattr(emoji, "render", render)
    return seen


def test_a_perfect_and_a_hopeless_classifier(coded, stream):
    perfect = identity_accuracy(Oracle(stream.num_classes, lambda y: y, 1), style="noto", renders=2)
    assert (perfect["top1"], perfect["top5"], perfect["group"]) == (100, 100, 100)
    assert perfect["renders"] == 2 * stream.num_classes
    assert perfect["style"] == "noto"
    wrong = identity_accuracy(
        Oracle(stream.num_classes, lambda y: (y + 1) % stream.num_classes, 9), style="noto", renders=1
    )
    assert (wrong["top1"], wrong["top5"]) == (0, 0)


def test_top_five_and_group_are_counted_by_definition(coded, stream):
    shift = lambda y: (y + 1) % stream.num_classes  # noqa: E731
    found = identity_accuracy(Oracle(stream.num_classes, shift, 3), style="twemoji", renders=1)
    groups = emoji.identities()["group"].to_numpy()[stream.identities]
    right = sum(groups[y] == groups[(y + 1) % len(groups)] for y in range(len(groups)))
    assert found["top1"] == 0
    assert found["top5"] == 100
    assert found["group"] == round(100 * right / len(groups), 2)
    counts = [int((groups == g).sum()) for g in set(groups)]
    assert found["majority_group"] == round(100 * max(counts) / len(groups), 2)
    assert found["chance_top1"] == round(100 / stream.num_classes, 3)


def test_every_render_is_seen_once_on_unseen_backgrounds(coded, stream):
    identity_accuracy(Oracle(stream.num_classes, lambda y: y, 1), style="twemoji", renders=2, batch=1000)
    assert {(part, style) for part, style, _ in coded} == {("test", "twemoji")}
    ids = np.concatenate([ids for *_, ids in coded])
    assert ids.tolist() == list(range(2 * stream.num_classes))


def test_gradients_are_off_and_the_model_stays_in_its_mode(coded, stream, monkeypatch):
    modes = []
    model = Oracle(stream.num_classes, lambda y: modes.append(torch.is_grad_enabled()) or y, 1).eval()
    identity_accuracy(model, style="noto", renders=1)
    assert not any(modes)
    assert not model.training
    assert evaluate.EVALUATION_SEED > 10**6
