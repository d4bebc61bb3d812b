"""Families of variants: models trained alike but for one change, compared with the first of them.

A family may have been trained several times, with other seeds: a training is a set of all its variants, so a
difference between two of them is taken within a training, and its spread over trainings can be seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitscope import backbones as zoo
from vitscope.backbones import Backbone

SPARSE = "entmax15"


@dataclass(frozen=True)
class Variant:
    """One model: `dense` at the size of the annotated pictures, `native` at its own, for recognition.

    `given` is the name it was asked for by, `card` that of the zoo, None for other models.
    """

    given: str
    dense: Backbone
    native: Backbone
    card: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        return self.dense.name

    @property
    def parameters(self) -> int:
        """Number of parameters, classifier included, at the model's own size."""
        return sum(p.numel() for p in self.native.model.parameters())

    @property
    def images_seen(self) -> int | None:
        """Images of its training by the card; None without one."""
        return None if self.card is None else int(self.card["recipe"]["images"])


@dataclass(frozen=True)
class Family:
    """Variants in one order for every training; `label` says what kind of training it was."""

    label: str
    trainings: tuple[tuple[Variant, ...], ...]

    @property
    def names(self) -> list[str]:
        """Names of the variants: those of the first training."""
        return [v.name for v in self.trainings[0]]

    @property
    def baseline(self) -> str:
        return self.names[0]

    @property
    def others(self) -> list[str]:
        """The variants that are compared with the baseline."""
        return self.names[1:]

    @property
    def sparse(self) -> str | None:
        """The first variant beside the baseline whose attention is entmax-1.5, or None."""
        return next((v.name for v in self.trainings[0][1:] if v.dense.attention == SPARSE), None)

    def of(self, name: str) -> list[Variant]:
        """A variant in every training. Raises ValueError for a name that is no variant."""
        if name not in self.names:
            raise ValueError(f"{name!r} is no variant of this family; there are {', '.join(self.names)}")
        return [training[self.names.index(name)] for training in self.trainings]


def load(name: str, *, weights: str | None = None, img_size: int | None, device: str = "auto") -> Variant:
    """A model as `backbones.load` finds it, at both sizes. Errors: as there."""
    options: dict[str, Any] = {"weights": weights or "auto", "device": device}
    dense = zoo.load(name, img_size=img_size, **options)
    native = dense if img_size is None else zoo.load(name, **options)
    card = zoo.card(name) if name in zoo.zoo_names() and not weights else None
    return Variant(name, dense, native, card)


def families(
    backbones: Sequence[str],
    repeats: Sequence[str] = (),
    self_supervised: Sequence[str] = (),
    *,
    weights: str | None = None,
    img_size: int | None = None,
    device: str = "auto",
) -> list[Family]:
    """The family of `backbones` with its further trainings, and that of `self_supervised` if there is one.

    `repeats` name all variants once for each further training, in the order of `backbones`. Errors: as
    `backbones.load` and `family`; `ValueError` for repeats that are no whole number of trainings, and for two
    models of one name.
    """
    size = len(backbones)
    if not size or len(repeats) % size:
        raise ValueError(
            f"every training names each of the {size} variants once; repeats has {len(repeats)} names"
        )
    blocks = [backbones, *(repeats[i : i + size] for i in range(0, len(repeats), size))]
    options: dict[str, Any] = {"img_size": img_size, "device": device}
    found = [family([[load(n, weights=weights, **options) for n in block] for block in blocks])]
    if self_supervised:
        found.append(family([[load(n, **options) for n in self_supervised]], "self-supervised"))
    names = [v.name for one in found for training in one.trainings for v in training]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"several models are named {', '.join(twice)}: give their files other names")
    return found


def family(trainings: Sequence[Sequence[Variant]], label: str | None = None) -> Family:
    """A checked family; without `label` it is called by the objective on the baseline's card, or "given".

    Raises ValueError where variants at one place of two trainings differ in attention, registers, size or
    parameters, and where variants of a training have other grids: their numbers could not be compared.
    """
    first = trainings[0]
    for number, training in enumerate(trainings, start=1):
        for one, like in zip(training, first, strict=True):
            kinds = [_kind(v) for v in (one, like)]
            if kinds[0] != kinds[1]:
                raise ValueError(
                    f"training {number} has {one.name} ({kinds[0]}) where the first has {like.name} "
                    f"({kinds[1]}): name the variants of every training in one order"
                )
            if one.dense.grid != first[0].dense.grid:
                raise ValueError(
                    f"{one.name} has a grid of {one.dense.grid}, {first[0].name} of {first[0].dense.grid}: "
                    "variants are compared patch by patch"
                )
    card = first[0].card
    return Family(
        label or ("given" if card is None else str(card["recipe"]["objective"])),
        tuple(tuple(training) for training in trainings),
    )


def _kind(one: Variant) -> str:
    b = one.dense
    return (
        f"{b.attention}, {b.num_registers} registers, {b.depth} blocks × {b.width}, "
        f"{one.parameters:,} parameters"
    )
