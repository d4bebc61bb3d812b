"""Image–text training: the loss against a loop, names as numbers, and files that give the same answers."""

import dataclasses

import pytest
import torch

from vitscope.data import emoji
from vitscope.pretrain.contrastive import ContrastiveTrainer, contrastive_loss
from vitscope.pretrain.failures import TrainingError
from vitscope.pretrain.names import (
    LONGEST,
    NameClassifier,
    TextTower,
    read_text,
    vocabulary,
    write_text,
)
from vitscope.pretrain.zoo import Architecture, ContrastiveRecipe, WeightFileError, read_weights

RECIPE = ContrastiveRecipe(
    Architecture(width=32, depth=2, heads=2),
    images=24, batch=8, precision="fp32", embed=8, text_width=16, text_layers=1, text_heads=2,
)  # fmt: skip


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def slow_loss(scores, labels):
    """Sums in float64, pair by pair."""
    s, n, total = scores.double(), len(labels), 0.0
    for matrix in (s, s.T):
        for i in range(n):
            same = [j for j in range(n) if labels[j] == labels[i]]
            norm = torch.logsumexp(matrix[i], 0)
            total += sum(float(norm - matrix[i, j]) for j in same) / len(same) / n
    return total / 2


@pytest.mark.parametrize("labels", [[0, 1, 2, 3, 4], [0, 1, 0, 2, 2], [3, 3, 3, 3, 3]])
def test_loss_against_a_loop(labels):
    labels, scores = torch.tensor(labels), 3 * normal(5, 5)
    loss, right = contrastive_loss(scores, labels)
    assert loss.item() == pytest.approx(slow_loss(scores, labels), rel=1e-5)
    assert right.tolist() == [bool(labels[row.argmax()] == y) for row, y in zip(scores, labels, strict=True)]


def test_order_of_the_batch_does_not_matter():
    scores, labels, order = normal(6, 6), torch.tensor([1, 2, 2, 3, 4, 1]), torch.tensor([3, 1, 5, 0, 4, 2])
    whole = contrastive_loss(scores, labels)[0]
    torch.testing.assert_close(contrastive_loss(scores[order][:, order], labels[order])[0], whole)


def tower(names):
    torch.manual_seed(0)
    return TextTower(vocabulary(names), width=16, layers=1, heads=2, embed=8).eval()


def test_names_become_padded_word_numbers():
    text = tower(["red heart", "red apple"])
    assert text.known == ["apple", "heart", "red"]
    rows = text.numbers(["Red apple", "blue heart", "…", "red " * 30])
    assert rows.shape == (4, LONGEST)
    assert rows[0, :3].tolist() == [4, 2, 0]
    assert rows[1, :3].tolist() == [1, 3, 0]  # a word never seen
    assert rows[2, :2].tolist() == [1, 0]
    assert (rows[3] == 4).all()


def test_padding_and_company_change_nothing():
    """A name means the same alone and beside longer ones."""
    text = tower(["red heart", "grinning cat face with smiling eyes"])
    numbers = text.numbers(["red heart", "grinning cat face with smiling eyes"])
    with torch.inference_mode():
        torch.testing.assert_close(text(numbers)[:1], text(numbers[:1]))
        text.word.weight[0] = 100.0  # what stands in the padding is never read
        torch.testing.assert_close(text(numbers)[:1], text(numbers[:1]))


def test_word_order_counts():
    text = tower(["cat face"])
    with torch.inference_mode():
        a, b = text(text.numbers(["cat face", "face cat"]))
    assert not torch.allclose(a, b, atol=1e-4)


def test_training_moves_every_parameter_and_resumes_bit_equal(tmp_path):
    whole = ContrastiveTrainer(RECIPE, tmp_path / "whole", seed=0)
    before = {k: v.clone() for k, v in whole.model.state_dict().items()}
    assert whole.run(progress=False)
    after = whole.model.state_dict()
    still = [k for k, v in after.items() if torch.equal(v, before[k])]
    assert still == []
    for _ in range(3):
        part = ContrastiveTrainer(RECIPE, tmp_path / "part", seed=0)
        part.run(minutes=0, progress=False)
    assert all(torch.equal(v, after[k]) for k, v in part.model.state_dict().items())


def test_published_files_answer_as_the_trained_model_does(tmp_path):
    trainer = ContrastiveTrainer(RECIPE, tmp_path, seed=0)
    trainer.run(progress=False)
    path = trainer.publish(tmp_path, "names")
    image, architecture = read_weights(path)
    assert architecture.num_classes == 0
    pictures = normal(4, 3, 64, 64)
    expected = NameClassifier(trainer.model.eval(), trainer.names)
    with torch.inference_mode():
        found = trainer.classifier(path)(pictures)
        assert found.shape == (4, int((~emoji.identities()["held_out"]).sum()))
        torch.testing.assert_close(found, expected(pictures), atol=0.05, rtol=0.01)  # fp16 image tower
    text = read_text(tmp_path / "text/names.safetensors", image, architecture.width)
    assert text.text.known == trainer.model.text.known


def test_files_and_recipes_that_do_not_fit_are_refused(tmp_path):
    trainer = ContrastiveTrainer(RECIPE, tmp_path, seed=0)
    path = trainer.publish(tmp_path, "names")
    image, architecture = read_weights(path)
    with pytest.raises(WeightFileError, match="is no text tower"):
        read_text(path, image, architecture.width)
    text = tmp_path / "text/names.safetensors"
    del trainer.model.log_scale
    write_text(text, trainer.model)
    with pytest.raises(WeightFileError, match="does not hold the tensors of a text tower of its shape"):
        read_text(text, image, architecture.width)
    with_head = dataclasses.replace(
        RECIPE, architecture=Architecture(width=32, depth=2, heads=2, num_classes=5)
    )
    with pytest.raises(TrainingError, match="num_classes must be 0"):
        ContrastiveTrainer(with_head, tmp_path / "other", seed=0)
