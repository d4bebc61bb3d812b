"""Leakage: what single patch tokens tell of the image's label where the object is, and where it is not.

Ours, for paper C's semantic diffusion; which patches are foreground and background says `metrics.diffusion`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitscope.estimates import Estimate, divided, estimate, resampled_sums
from vitscope.holdout import Groups
from vitscope.metrics.diffusion import kinds_of, patch_distance_to_foreground
from vitscope.probes import GRID, ProbeSet, fit_ridge
from vitscope.splits import Labels, encode, label_array

FARTHEST = 4
"""Background is told apart at 1, 2, 3 and at this many patches or more from the foreground."""

PARTS = ("foreground", "background", "1", "2", "3", ">=4")
"""Columns of `Leakage`; the last four are background, by its distance to the foreground in patches."""

On = Literal["all", "background", "foreground"]
Against = Literal["luck", "majority"]


@dataclass(frozen=True)
class Leakage:
    """What single patches tell of the image's label; made by `leakage`. M images, those with both kinds.

    Columns are the `PARTS` of an image: foreground, background, and its background at 1, 2, 3 and 4 or more
    patches from the foreground. `right` is the share of an image's patches there that are named rightly, NaN
    where it has none; `luck` the share if its answers went to the other images of the same column; `majority`
    says which images are of the most frequent training class. `images` are the positions of the M among those
    tested. Left out: `images_left_out` that lack a kind or whose
    class no patch was fitted to, and `mixed` patches of the M. `fitted` is the number
    of training patches, `chosen_l2` and `warnings` are those of the probes.
    """

    on: On
    right: Float[Tensor, "S M Q"]
    luck: Float[Tensor, "S M Q"]
    majority: Bool[Tensor, " M"]
    images: Int[Tensor, " M"]
    images_left_out: int
    mixed: int
    fitted: int
    chosen_l2: Float[Tensor, " S"]
    warnings: tuple[str, ...]

    def table(self) -> dict[str, Tensor]:
        """By column: "accuracy" and "luck" [S, Q], "majority" and "images" [Q], NaN for columns of no image.

        Means over the images that have such patches. Answers that know nothing of the image reach "luck",
        which may be more or less than "majority": they need not name the most frequent class.
        """
        there = ~self.right[0].isnan()
        return {
            "accuracy": self.right.nanmean(1),
            "luck": self.luck.nanmean(1),
            "majority": (there & self.majority[:, None]).sum(0).double() / there.sum(0),
            "images": there.sum(0),
        }

    def ratio(self, against: Against = "luck") -> Float[Tensor, " S"]:
        """(background − chance)/(foreground − chance): 0 for no leakage, 1 where background tells as much.

        Chance is each column's "luck", or the accuracy of always naming the "majority". NaN where the
        foreground tells no more than chance. Barely above it, the ratio is wild: read `intervals` as well.
        """
        foreground, background = self._above(against).mean(1).unbind(1)
        return leakage_ratio(foreground, background)

    def intervals(
        self,
        against: Against = "luck",
        *,
        clusters: np.ndarray | None = None,
        draws: int = 1000,
        seed: int = 0,
        level: float = 0.95,
    ) -> list[Estimate]:
        """`ratio` of every state with its bootstrap interval over images, or `clusters` [M] of images.

        Resamples in which the foreground tells no more than chance do not count.
        """
        columns = {"above": self._above(against).transpose(0, 1).numpy()}
        _, drawn = resampled_sums(columns, clusters=clusters, draws=draws, seed=seed)
        foreground, background = np.moveaxis(drawn["above"], -1, 0)
        spread = divided(background, foreground).T
        reason = "is not defined: the foreground tells no more than chance"
        return [
            estimate(float(v), d, reason, level) for v, d in zip(self.ratio(against), spread, strict=True)
        ]

    def _above(self, against: Against) -> Float[Tensor, "S M 2"]:
        """Foreground and background above chance, image by image."""
        if against not in ("luck", "majority"):
            raise ValueError(f'against must be "luck" or "majority", got {against!r}')
        chance = self.luck[..., :2] if against == "luck" else self.majority.double()[:, None]
        return self.right[..., :2] - chance


def leakage_ratio(foreground: Float[Tensor, " S"], background: Float[Tensor, " S"]) -> Float[Tensor, " S"]:
    """background/foreground of accuracies above chance; NaN for a foreground that is not above it.

    >>> leakage_ratio(torch.tensor([0.5, 0.0]), torch.tensor([0.25, 0.25]))
    tensor([0.5000,    nan])
    """
    # equal but for rounding is not above
    return torch.where(foreground > 1e-12, background / foreground, torch.nan)


@torch.no_grad()
def leakage(
    train: Float[Tensor, "S N P D"],
    train_labels: Labels,
    train_coverage: Float[Tensor, "N P"],
    test: Float[Tensor, "S M P D"],
    test_labels: Labels,
    test_coverage: Float[Tensor, "M P"],
    *,
    grid: tuple[int, int],
    on: On = "all",
    per_image: int = 32,
    l2: Sequence[float] = GRID,
    fit: Callable[..., ProbeSet] = fit_ridge,
    groups: Groups | None = None,
    seed: int = 0,
) -> Leakage:
    """Name the image's label from one patch token, and see how well that works where no object is.

    For every state a linear probe of the label is fitted on at most `per_image` patches of each training
    image, drawn with `seed`, the same in all states: `on="all"` (foreground and background as they come),
    `"background"` (the best that can be read there) or `"foreground"`. Its strength is chosen from `l2` on
    whole images held out. `fit=fit_probes` takes logistic probes instead of ridge, many times slower.

    For the best of both kinds, take the foreground of `on="foreground"` and the background of
    `on="background"`. Control: background that is drawn without regard to the label is at luck at state −1.

    Raises ValueError for shapes that do not fit, values that are not finite, coverage outside [0, 1], and
    where no patch can be fitted or no test image has both kinds. Source: ours, for paper C's diffusion.

    >>> labels, coverage = torch.arange(40) % 2, torch.tensor([[1.0, 0.0, 0.0]]).expand(40, 3)
    >>> tokens = torch.randn(1, 40, 3, 2, generator=torch.Generator().manual_seed(0))
    >>> tokens[0, :, :2] += 20.0 * labels[:, None, None]  # the object, and the patch beside it
    >>> found = leakage(tokens, labels, coverage, tokens, labels, coverage, grid=(1, 3), on="foreground")
    >>> found.right[0, 0, [0, 2]].tolist(), found.table()["images"].tolist()
    ([1.0, 1.0], [40, 40, 40, 40, 0, 0])
    """
    if on not in ("all", "background", "foreground") or per_image < 1:
        raise ValueError(
            f'on must be "all", "background" or "foreground" with per_image >= 1, got {on!r}, {per_image}'
        )
    shapes = [(tokens.ndim, tokens.shape[:1], tokens.shape[2:]) for tokens in (train, test)]
    if shapes[0] != shapes[1] or train.ndim != 4:
        raise ValueError(
            "training and test tokens must be [S, N, P, D] with the same states, patches and width, "
            f"got {tuple(train.shape)} and {tuple(test.shape)}"
        )
    known = _labels(train, train_labels, "training")
    own = _labels(test, test_labels, "test")
    kinds = kinds_of(train, train_coverage, "training tokens")
    fg, bg = kinds_of(test, test_coverage, "test tokens")
    usable = kinds.foreground | kinds.background if on == "all" else getattr(kinds, on)
    image, patch = _drawn(usable, per_image, seed)
    taught = torch.from_numpy(np.isin(own, known[image.numpy()]))
    both = (fg.any(1) & bg.any(1) & taught).nonzero()[:, 0]
    if not len(image) or len(both) < 2:
        raise ValueError(
            f"there are {len(image)} training patches to fit on (on={on!r}), and {len(both)} of {len(fg)} "
            "test images of classes seen in training with both foreground and background patches: at least 1 "
            "and 2 are needed"
        )
    away = patch_distance_to_foreground(test_coverage, grid)[both].clamp_max(FARTHEST)
    fg, bg, own = fg[both], bg[both], own[both.numpy()]
    parts = [fg, bg, *(bg & (away == step) for step in range(1, FARTHEST + 1))]
    names = np.arange(len(known)) if groups is None else np.asarray(groups)
    if names.shape != known.shape:
        raise ValueError(f"one group per training image is needed: {names.shape} for {len(known)} images")
    owners = names[image.numpy()]
    options = {"l2": l2, "groups": owners, "seed": seed}
    shares, probes = [], []
    for state in range(len(train)):  # one at a time: all patches of all states in float64 would be large
        rows = train[state, image, patch][None]
        probe = fit(rows, known[image.numpy()], names=[str(state)], **options)
        named = probe.logits(test[state, both].flatten(0, 1)[None])[0].argmax(1).view(fg.shape)
        codes = encode(own, probe.classes)
        shares.append(
            torch.stack([_right_and_luck(named, kind, codes, len(probe.classes)) for kind in parts], 1)
        )
        probes.append(probe)
    right, luck = torch.stack(shares).unbind(3)
    classes, counts = np.unique(known, return_counts=True)
    return Leakage(
        on=on,
        right=right,
        luck=luck,
        majority=torch.from_numpy(own == classes[counts.argmax()]),
        images=both,
        images_left_out=test.shape[1] - len(both),
        mixed=int((~(fg | bg)).sum()),
        fitted=len(image),
        chosen_l2=torch.cat([probe.chosen_l2 for probe in probes]),
        warnings=tuple(warning for probe in probes for warning in probe.warnings),
    )


def _right_and_luck(named: Tensor, kind: Tensor, codes: Tensor, classes: int) -> Tensor:
    """Per image [M, 2]: the share q of patches of a kind with its own label, and with another image's label.

    The second is the mean of q[y_j] over the other images j that have the kind: the exact mean of what all
    exchanges of answers between images would give.
    """
    cells = named + classes * torch.arange(len(named))[:, None]
    votes = cells[kind].bincount(minlength=len(named) * classes).view(len(named), classes).double()
    shares = votes / votes.sum(1, keepdim=True)  # NaN without such patches
    there = kind.any(1)
    own = shares.gather(1, codes[:, None])[:, 0]
    labels = codes[there].bincount(minlength=classes).double()
    return torch.stack([own, (shares @ labels - own) / (there.sum() - 1)], 1)


def _labels(tokens: Tensor, labels: Labels, what: str) -> np.ndarray:
    known = label_array(labels)
    if len(known) != tokens.shape[1]:
        raise ValueError(f"there are {tokens.shape[1]} {what} images but {len(known)} labels")
    return known


def _drawn(usable: Bool[Tensor, "N P"], most: int, seed: int) -> tuple[Tensor, Tensor]:
    """Image and patch numbers of at most `most` usable patches of every image."""
    order = torch.rand(usable.shape, generator=torch.Generator().manual_seed(seed))
    picked = torch.where(usable, order, 2.0).argsort(1)[:, :most]
    image, place = usable.gather(1, picked).nonzero().unbind(1)
    return image, picked[image, place]
