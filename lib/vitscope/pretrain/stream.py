"""The endless stream of training renders: position in the stream -> identity, picture."""

import numpy as np
import torch

from vitscope.data import emoji


class IdentityStream:
    """Renders of the seen identities. Every epoch shows each identity once, in an order of its own.

    Sample `i` is a function of `seed` and `i` alone: batch size, workers and interruptions do not change it.
    """

    def __init__(self, *, style: str, seed: int, recipe: emoji.Recipe | None = None) -> None:
        self.style, self.seed = style, seed
        self.recipe = recipe or emoji.Recipe(background_part="train")
        self.identities = np.flatnonzero(~emoji.identities()["held_out"].to_numpy())

    @property
    def num_classes(self) -> int:
        return len(self.identities)

    def labels(self, start: int, count: int) -> np.ndarray:
        positions = np.arange(start, start + count)
        epochs, places = np.divmod(positions, self.num_classes)
        labels = np.empty(count, dtype=np.int64)
        for epoch in np.unique(epochs):
            order = np.random.Generator(np.random.Philox(key=[self.seed, int(epoch)]))
            labels[epochs == epoch] = order.permutation(self.num_classes)[places[epochs == epoch]]
        return labels

    def batch(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """uint8 pictures [count, 3, 64, 64] and labels [count] of positions start … start+count−1."""
        labels = self.labels(start, count)
        ids = np.arange(start, start + count)
        pictures = emoji.render(
            self.identities[labels], ids, style=self.style, seed=self.seed, recipe=self.recipe
        )
        return pictures, torch.from_numpy(labels)
