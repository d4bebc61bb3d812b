"""Image–text training: a picture and the name of its emoji shall lie together, other names apart.

For unit vectors u_i of pictures and t_j of names of a batch and a learned temperature τ, the loss is the mean
of both directions' cross-entropies of u_i·t_j/τ, as in CLIP (Radford et al. 2021). Renders of one emoji share
their name, so each row's target is spread evenly over its equal names. Of several processes each takes the
rows of its own part against the columns of the whole batch.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitscope.pretrain.failures import TrainingError
from vitscope.pretrain.names import (
    ImageText,
    NameClassifier,
    TextTower,
    read_text,
    seen_names,
    vocabulary,
    write_text,
)
from vitscope.pretrain.supervised import Trainer
from vitscope.pretrain.zoo import ContrastiveRecipe, read_weights

LARGEST_SCALE = 100.0  # CLIP's bound on 1/τ


class ContrastiveTrainer(Trainer):
    """`Trainer` with another objective: the stream, the optimizers and the checkpoints are the same."""

    recipe: ContrastiveRecipe
    model: ImageText

    def check(self) -> None:
        if self.recipe.architecture.num_classes:
            raise TrainingError(
                "contrastive training publishes a backbone without head: num_classes must be 0"
            )
        self.names = seen_names()

    def build(self) -> nn.Module:
        recipe = self.recipe
        text = TextTower(
            vocabulary(self.names),
            width=recipe.text_width,
            layers=recipe.text_layers,
            heads=recipe.text_heads,
            embed=recipe.embed,
        )
        self.numbers = text.numbers(self.names).to(self.device)
        return ImageText(recipe.architecture.build(), text, recipe.architecture.width)

    @property
    def backbone(self) -> Any:
        return self.model.image

    def objective(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        pictures, names = self.model.pictures(inputs), self.model.names(self.numbers[labels])
        scale = self.model.log_scale.exp().clamp(max=LARGEST_SCALE)
        if self.ranks.world == 1:
            return contrastive_loss(scale * pictures @ names.T, labels)
        gather = self.ranks.gather
        scores = (scale * pictures @ gather(names).T, scale * names @ gather(pictures).T)
        return loss_of_rows(*scores, labels, gather(labels))

    def publish(self, folder: Path, name: str) -> Path:
        write_text(folder / "text" / f"{name}.safetensors", self.model)
        return super().publish(folder, name)

    def classifier(self, weights: Path) -> nn.Module:
        image, architecture = read_weights(weights)
        text = weights.parent / "text" / weights.name
        return NameClassifier(read_text(text, image, architecture.width), self.names)


def contrastive_loss(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of scores [N, N] (pictures × names of the batch), and whether each picture's best name is its own.

    >>> loss, right = contrastive_loss(5 * torch.eye(3), torch.tensor([5, 7, 9]))
    >>> round(loss.item(), 4), right.tolist()
    (0.0134, [True, True, True])
    >>> same = contrastive_loss(torch.zeros(2, 2), torch.tensor([4, 4]))[0]  # one name twice: nothing to tell
    >>> round(same.item(), 4)  # ln 2, the entropy of its target
    0.6931
    """
    return loss_of_rows(scores, scores.T, labels, labels)


def loss_of_rows(pictures: Tensor, names: Tensor, labels: Tensor, every: Tensor) -> tuple[Tensor, Tensor]:
    """`contrastive_loss` of some rows [n]: scores [n, N] of their pictures with all names, and of their names
    with all pictures. `labels` [n] are theirs, `every` [N] those of the batch."""
    equal = (labels[:, None] == every[None, :]).to(torch.float32)
    target = equal / equal.sum(1, keepdim=True)
    pictures, names = pictures.float(), names.float()
    losses = [-(target * part.log_softmax(1)).sum(1).mean() for part in (pictures, names)]
    right = every[pictures.argmax(1)] == labels
    return (losses[0] + losses[1]) / 2, right
