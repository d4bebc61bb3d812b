import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from vitscope.fusion import LogitAverage, out_of_fold
from vitscope.holdout import fold_numbers


def states(images=240, seed=0, width=5):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (images,), generator=generator)
    features = 2 * torch.randn(2, images, width, generator=generator) + 3
    features[1] += 2.0 * torch.nn.functional.one_hot(labels, width)
    return features, labels


def test_every_fold_is_predicted_by_scikit_learn_probes_of_the_others():
    features, labels = states()
    members = out_of_fold(features, labels, folds=3, l2=(0.01,))
    fold = fold_numbers(labels, 3, 0).numpy()
    for s in range(2):
        for f in range(3):
            rest, own = features[s][fold != f].double().numpy(), features[s][fold == f].double().numpy()
            mean, scale = rest.mean(0), rest.std(0)
            exact = LogisticRegression(C=1 / (0.01 * len(rest)), tol=1e-9, max_iter=10_000)
            exact.fit((rest - mean) / scale, labels[fold != f])
            np.testing.assert_allclose(
                members.logits[s][fold == f].softmax(1),
                exact.predict_proba((own - mean) / scale),
                atol=2e-3,
            )


def test_logits_of_an_image_do_not_depend_on_its_own_label():
    features, labels = states()
    flipped = labels.clone()
    own = fold_numbers(labels, 5, 0) == 2
    # labels swapped within a fold leave folds and class counts as they are
    first, second = (own & (labels == 0)).nonzero()[0], (own & (labels == 1)).nonzero()[0]
    flipped[first], flipped[second] = 1, 0
    before = out_of_fold(features, labels, l2=(0.01,)).logits
    after = out_of_fold(features, flipped, l2=(0.01,)).logits
    if fold_numbers(flipped, 5, 0).equal(fold_numbers(labels, 5, 0)):
        assert after[:, own].equal(before[:, own])
    assert not after[:, ~own].equal(before[:, ~own])


def test_memorising_shows_in_training_logits_and_not_out_of_fold():
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.randn(1, 80, 100, generator=generator), torch.arange(80) % 2
    members = out_of_fold(features, labels, l2=(1e-4,))
    own = (members.probes.logits(features).argmax(2) == labels).double().mean()
    honest = (members.logits.argmax(2) == labels).double().mean()
    assert own == 1.0
    assert abs(honest - 0.5) < 0.2


def test_copies_in_one_group_do_not_help_each_other():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (40,), generator=generator).repeat_interleave(4)
    features = torch.randn(1, 40, 60, generator=generator).repeat_interleave(4, 1)
    groups = np.arange(40).repeat(4)
    right = [
        (out_of_fold(features, labels, groups=g).logits.argmax(2) == labels).double().mean().item()
        for g in (None, groups)
    ]
    assert right[0] > 0.95
    assert right[1] < 0.75


def test_probes_are_refitted_on_all_images_and_serve_as_a_heads_own():
    features, labels = states()
    members = out_of_fold(features, labels)
    assert members.probes.images == 240
    own = LogitAverage().fit(features, None, labels).predict_logits(features)
    torch.testing.assert_close(own, members.probes.logits(features).mean(0), atol=1e-4, rtol=1e-4)


def test_bad_input_is_refused():
    features, labels = states(30)
    with pytest.raises(ValueError, match="30 images in the features but 29 labels"):
        out_of_fold(features, labels[:29])
    with pytest.raises(ValueError, match="class number 3 lies in one of the 5 folds alone"):
        out_of_fold(features, torch.cat([labels[:-1], torch.tensor([3])]))
    with pytest.raises(ValueError, match="hold NaN or inf"):
        out_of_fold(features / 0, labels)
