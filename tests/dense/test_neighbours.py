"""Weighted k-NN: against scikit-learn with DINO's weights, known answers, ids, refusals."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from vitscope.dense.neighbours import knn_classify


def world(train=90, test=40, states=3, width=8, classes=4):
    draw = torch.Generator().manual_seed(0)
    labels, truth = torch.arange(train) % classes, torch.arange(test) % classes
    centres = torch.randn(classes, width, generator=draw)

    def around(codes):
        noise = torch.randn(states, len(codes), width, generator=draw)
        return noise + torch.arange(states)[:, None, None] * centres[codes]

    return around(labels), labels, around(truth), truth


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (20, 0.07), (90, 0.5)])
def test_scores_are_those_of_scikit_learn(k, temperature):
    train, labels, test, truth = world()
    found = knn_classify(train, labels, test, k=k, temperature=temperature)

    def weights(distances):  # of unit vectors: cos = 1 − d²/2
        return np.exp((1 - distances**2 / 2) / temperature)

    for s in range(len(train)):
        a, b = (x[s].double() / x[s].double().norm(dim=1, keepdim=True) for x in (train, test))
        exact = KNeighborsClassifier(k, weights=weights, algorithm="brute").fit(a.numpy(), labels.numpy())
        np.testing.assert_allclose(found.scores[s], exact.predict_proba(b.numpy()), atol=1e-5)
        assert found.accuracy(truth).mean[s] == pytest.approx(100 * exact.score(b.numpy(), truth.numpy()))


def test_the_class_is_read_where_there_is_one_and_not_where_there_is_none():
    train, labels, test, truth = world(train=800, test=800)
    interval = knn_classify(train, labels, test).accuracy(truth)
    assert interval.low[0] < 25 + 4
    assert interval.mean[0] < 25 + 5
    assert interval.mean[2] > 85
    assert (interval.low < interval.mean).all()
    assert (interval.mean < interval.high).all()


def test_with_all_neighbours_and_no_preference_the_scores_are_class_shares():
    train, _, test, _ = world()
    labels = ["a"] * 60 + ["b"] * 30
    found = knn_classify(train, labels, test, k=90, temperature=1e9)
    assert found.classes == ("a", "b")
    np.testing.assert_allclose(found.scores, np.broadcast_to([2 / 3, 1 / 3], (3, 40, 2)), atol=1e-5)


def test_a_tiny_temperature_is_the_nearest_neighbour():
    train, labels, test, _ = world()
    cold, nearest = (knn_classify(train, labels, test, k=k, temperature=t) for k, t in ((20, 1e-9), (1, 1.0)))
    np.testing.assert_allclose(cold.scores, nearest.scores, atol=1e-6)


def test_images_with_the_same_id_are_no_neighbours():
    train, labels, _, _ = world()
    itself = knn_classify(train, labels, train, k=1)
    assert (itself.accuracy(labels).mean == 100).all()
    ids = np.arange(90) // 2
    found = knn_classify(train, labels, train, k=5, train_ids=ids, test_ids=ids)
    for i in (0, 13, 89):
        other = np.flatnonzero(ids != ids[i])
        alone = knn_classify(train[:, other], labels[other], train[:, i : i + 1], k=5)
        np.testing.assert_allclose(found.scores[:, i], alone.scores[:, 0], atol=1e-6)


def test_the_number_compared_at_once_and_the_length_of_features_do_not_matter():
    train, labels, test, _ = world()
    ids, test_ids = np.arange(90) % 45, np.arange(40)
    plain = knn_classify(train, labels, test, train_ids=ids, test_ids=test_ids)
    few = knn_classify(train * 7, labels, test * 0.01, train_ids=ids, test_ids=test_ids, chunk=3)
    np.testing.assert_allclose(few.scores, plain.scores, atol=1e-4)


def test_groups_widen_the_interval():
    train, labels, test, truth = world(test=400)
    found = knn_classify(train, labels, test.repeat_interleave(8, 1))
    truth, groups = truth.repeat_interleave(8), np.arange(400).repeat(8)
    single, grouped = found.accuracy(truth), found.accuracy(truth, groups=groups)
    np.testing.assert_allclose(single.mean, grouped.mean)
    assert ((grouped.high - grouped.low) > 2 * (single.high - single.low)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 91}, "k must be between 1 and the 90 training images .*, got 91"),
        ({"k": 0}, "k must be between 1 and the 90"),
        (
            {"k": 89, "train_ids": [0, 0] + [1] * 88, "test_ids": [0] * 40},
            "between 1 and the 88 training images",
        ),
        ({"temperature": 0.0}, "temperature must be positive, got 0.0"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"test_features": torch.ones(2, 40, 8)}, r"agree in states.*\(3, 90, 8\) and \(2, 40, 8\)"),
        ({"test_features": torch.ones(3, 0, 8)}, r"must not be empty.*\(3, 0, 8\)"),
        ({"test_features": torch.full((3, 40, 8), torch.nan)}, "test features hold NaN or inf"),
        ({"test_features": torch.zeros(3, 40, 8)}, "test features of length 0 in state 0"),
        ({"train_labels": [0, 1]}, "90 images in the training features but 2 labels"),
        ({"train_ids": range(90)}, "ids are given for one set alone"),
        ({"train_ids": range(9), "test_ids": range(40)}, r"one id per image is needed: \(9,\) for 90"),
    ],
)
def test_what_does_not_fit_is_refused(change, message, no_axis_check):
    train, labels, test, _ = world()
    given = {"train_features": train, "train_labels": labels, "test_features": test, "k": 20}
    with pytest.raises(ValueError, match=message):
        knn_classify(**{**given, **change})


def test_labels_of_another_number_or_class_are_refused():
    train, labels, test, _ = world()
    found = knn_classify(train, labels, test)
    with pytest.raises(ValueError, match="40 images in the scores but 3 labels"):
        found.accuracy([0, 1, 2])
    with pytest.raises(ValueError, match="1 classes are not among the 4 seen in training: 9"):
        found.accuracy([9] * 40)
