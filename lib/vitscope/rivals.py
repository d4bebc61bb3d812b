"""VFusion and its rivals as the chapters compare them: one budget of search and training for all of them."""

from __future__ import annotations

from collections.abc import Iterable

from vitscope.errors import unknown
from vitscope.fusion import (
    AttentiveLayerFusion,
    BestLayer,
    ConcatLinear,
    Head,
    LastLayer,
    LastLayerMLP,
    LogitAverage,
    MixtureOfExperts,
    NeuralLogitController,
    Oracle,
    SelectionBudget,
    SuperLearner,
    VFusion,
)

METHODS = (
    "LastLayer", "BestLayer", "LogitAverage", "ConcatLinear", "SuperLearner", "NeuralLogitController",
    "MixtureOfExperts", "AttentiveLayerFusion", "VFusion", "Oracle",
)  # fmt: skip
"""The ten heads that are compared, in the order of legends and tables."""
CONTROL = "LastLayerMLP"
"""VFusion's encoder on the last state alone, at equal size: a control and no rival."""
CONTESTANTS = tuple(name for name in METHODS if name not in ("VFusion", "Oracle"))
"""VFusion's rivals: methods that one could use, without the oracle, which needs the answer."""


_SMALLEST_BATCH = 128


def budget(*, configurations: int, steps: int, latent: int) -> SelectionBudget:
    """What every head may spend.

    Batches are of 128 images, or of twice the latent's width where that is more: correlations of the latent
    over fewer images than it has dimensions cannot vanish, whatever the penalty on them.

    >>> [budget(configurations=4, steps=100, latent=k).batch for k in (64, 256)]
    [128, 512]
    """
    return SelectionBudget(configurations=configurations, steps=steps, batch=max(_SMALLEST_BATCH, 2 * latent))


def heads(*, configurations: int, steps: int, hidden: int, latent: int) -> dict[str, Head]:
    """The ten heads, not fitted, in the order of `METHODS`.

    Every head may try `configurations` settings, and each that is trained gets at least `steps` updates.
    `hidden` and `latent` are the sizes of VFusion's encoder. The logit controller learns from all training
    images, not from a tenth as in its paper: the logits it sees are out of fold, so it may, and so do the
    others.
    """
    return some(METHODS, configurations=configurations, steps=steps, hidden=hidden, latent=latent)


def some(
    names: Iterable[str], *, configurations: int, steps: int, hidden: int, latent: int
) -> dict[str, Head]:
    """Heads by name, not fitted, in the order given: of `METHODS`, or `CONTROL`. Else as `heads`.

    Raises `UnknownName` for any other name.

    >>> small = {"configurations": 1, "steps": 20, "hidden": 16, "latent": 8}
    >>> list(some(["VFusion", "LastLayerMLP"], **small))
    ['VFusion', 'LastLayerMLP']
    """
    spent = budget(configurations=configurations, steps=steps, latent=latent)
    made: dict[str, Head] = {
        "LastLayer": LastLayer(budget=spent),
        "BestLayer": BestLayer(budget=spent),
        "LogitAverage": LogitAverage(budget=spent),
        "ConcatLinear": ConcatLinear(budget=spent),
        "SuperLearner": SuperLearner(budget=spent),
        "NeuralLogitController": NeuralLogitController(share=1.0, budget=spent),
        "MixtureOfExperts": MixtureOfExperts(budget=spent),
        "AttentiveLayerFusion": AttentiveLayerFusion(budget=spent),
        "VFusion": VFusion(hidden=hidden, latent=latent, budget=spent),
        "Oracle": Oracle(budget=spent),
        CONTROL: LastLayerMLP(hidden=hidden, latent=latent, budget=spent),
    }
    chosen = {}
    for name in names:
        if name not in made:
            raise unknown("head", name, made)
        chosen[name] = made[name]
    return chosen
