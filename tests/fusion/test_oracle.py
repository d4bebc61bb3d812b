import pytest
import torch

from vitscope.fusion import Oracle


def test_it_is_right_wherever_any_state_is():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 5, (200,), generator=generator)
    logits = torch.randn(4, 200, 5, generator=generator)
    features = torch.randn(4, 200, 3)
    head = Oracle().fit(features, logits, labels)
    right = logits.argmax(2) == labels
    assert head.accuracy(features, logits, labels)["accuracy"] == right.any(0).double().mean().item()
    scores = head.predict_logits(features, logits, labels)
    for i in range(200):
        states = right[:, i].nonzero()[:, 0].tolist() or [3]
        assert scores[i].equal(logits[states[-1], i])


def test_one_state_gives_its_own_accuracy_and_more_states_never_less():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 5, (200,), generator=generator)
    logits, features = torch.randn(6, 200, 5, generator=generator), torch.randn(6, 200, 3)
    found = [
        Oracle()
        .fit(features[-k:], logits[-k:], labels)
        .accuracy(features[-k:], logits[-k:], labels)["accuracy"]
        for k in range(1, 7)
    ]
    assert found[0] == pytest.approx((logits[-1].argmax(1) == labels).double().mean().item())
    assert found == sorted(found)
    # states that guess reach 1 − (4/5)^6 together: a bound, not a promise
    assert found[-1] == pytest.approx(1 - 0.8**6, abs=0.1)


def test_it_says_that_it_needs_labels():
    labels = torch.arange(40) % 2
    features, logits = torch.randn(2, 40, 3), torch.randn(2, 40, 2)
    head = Oracle().fit(features, logits, labels)
    with pytest.raises(ValueError, match="needs the true labels at prediction: it is an upper bound"):
        head.predict_logits(features, logits)
    with pytest.raises(ValueError, match="40 images in the features but 39 labels"):
        head.predict_logits(features, logits, labels[:39])
    with pytest.raises(ValueError, match="1 classes are not among the 2 seen in training: 7"):
        head.predict_logits(features, logits, torch.full((40,), 7))
