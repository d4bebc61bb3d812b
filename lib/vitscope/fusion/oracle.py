"""The oracle: right whenever any state is. An upper bound for what choosing among states can reach."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vitscope.fusion.base import Features, Fitted
from vitscope.fusion.checks import Blocks
from vitscope.fusion.members import MemberHead
from vitscope.splits import Labels, encode


@dataclass
class Oracle(MemberHead):
    """The scores of the deepest state that is right, of the last state where none is (paper B §3.2.1).

    It looks at the true labels at prediction, so it is no classifier: its accuracy is the share of images
    that some state gets right, and it grows with the number of states even by luck. Nothing is chosen.

    >>> logits = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]]).repeat(1, 2, 1)
    >>> labels, x = torch.tensor([0, 1, 0, 1]), torch.zeros(2, 4, 3)
    >>> Oracle().fit(x, logits, labels).accuracy(x, logits, labels)["accuracy"]
    1.0
    """

    needs_labels: ClassVar[bool] = True

    @torch.no_grad()
    def predict_logits(
        self,
        features: Features,
        logits: Float[Tensor, "K N C"] | None = None,
        labels: Labels | None = None,
    ) -> Float[Tensor, "N C"]:
        """As `Head.predict_logits`, with the true labels. Raises ValueError without them."""
        if labels is None:
            raise ValueError(
                "the oracle needs the true labels at prediction: it is an upper bound, not a classifier; "
                "call predict_logits(features, logits, labels)"
            )
        fitted, blocks, logits = self._checked(features, logits)
        z = self._member_logits(fitted, blocks, logits)
        codes = encode(labels, self.classes).to(z.device)
        if len(codes) != z.shape[1]:
            raise ValueError(f"there are {z.shape[1]} images in the features but {len(codes)} labels")
        right = z.argmax(2) == codes
        depth = torch.arange(len(z), device=z.device)[:, None]
        deepest = torch.where(right, depth, -1).amax(0)
        chosen = torch.where(deepest < 0, len(z) - 1, deepest)
        return z[chosen, torch.arange(len(codes), device=z.device)]

    def _predict(self, fitted: Fitted, blocks: Blocks, logits: Tensor | None) -> Float[Tensor, "N C"]:
        raise NotImplementedError("the oracle predicts with labels only")

    def _scores_for(self, features: Features, logits: Tensor | None, labels: Labels) -> Tensor:
        return self.predict_logits(features, logits, labels)
