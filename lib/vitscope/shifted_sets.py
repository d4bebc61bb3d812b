"""What is learned from and what is tested on, for every kind of shift: its parts, clean and shifted.

Corrupted sets and sets in another style have a clean test part with the same pictures; subpopulation shifts
have groups instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitscope import data
from vitscope.data import hub, shifts
from vitscope.data.images import Images, Pixels, fingerprint
from vitscope.data.seeding import uniforms

STANDARD = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
"""The fifteen corruptions over which published means go (Hendrycks and Dietterich, ICLR 2019)."""


@dataclass(frozen=True)
class ShiftedSet:
    """Pictures to learn from, and the parts to test on.

    `clean` is a test part like the training part, None where the set has none. `tests` are the shifted ones:
    one for each of `severities` of a corrupted set, else a single one. All test parts of a set with a clean
    part or severities hold the same pictures in the same order.
    """

    name: str
    train: Images
    clean: Images | None
    tests: tuple[Images, ...]
    severities: tuple[int, ...] = ()

    @property
    def has_groups(self) -> bool:
        """Whether the shift is one of subpopulations, whose groups are known."""
        return "group" in self.tests[0].extras

    @property
    def parts(self) -> tuple[Images, ...]:
        """All image sets, the training part first."""
        return (self.train, *(() if self.clean is None else (self.clean,)), *self.tests)


def load(name: str, *, severities: Sequence[int], images: int, test_images: int, seed: int) -> ShiftedSet:
    """A shifted set by its name; `images` and `test_images` bound each part.

    - TASK-c, TASK-c/CORRUPTION, TASK-c/CORRUPTION/SEVERITY: the clean test pictures of TASK, corrupted at
      each of `severities`, or at the one in the name. Without a CORRUPTION each picture draws one.
    - `cifar10-c` and the like, of the hub: the same with the published pictures; without a CORRUPTION each
      picture draws one of `STANDARD`.
    - TASK-style: the test pictures of TASK, and the same ones in the other art style.
    - anything else (`emoji_places`, `waterbirds`, a folder): its test part is the shifted one.

    Errors: as `data.load`; ValueError for a group with fewer than two independent test pictures.
    """
    train = data.load(name, "train", limit=images, seed=seed)  # an address that is none ends here

    def test(of: str) -> Images:
        return data.load(of, "test", limit=test_images, seed=seed)

    base, *address = name.split("/")
    embedded = shifts.is_shifted(name)
    published = base in hub.SHIFTED and hub.HUB_SETS[base].clean
    if published or (embedded and base.endswith("-c")):
        clean = test(published or base.removesuffix("-c"))
        kind = address[0] if address else None
        wanted = tuple(int(severity) for severity in address[1:]) or tuple(severities)
        made = [
            _published(base, kind, severity, clean, test, seed)
            if published
            else shifts.corrupted(clean, kind, severity, seed=seed)
            for severity in wanted
        ]
        return ShiftedSet(name, train, clean, tuple(made), wanted)
    if embedded and base.endswith("-style"):
        return ShiftedSet(name, train, test(base.removesuffix("-style")), (test(name),))
    found = ShiftedSet(name, train, None, (test(name),))
    if found.has_groups:  # a group too small for an interval should stop a run before its long part
        extras = found.tests[0].extras
        blank = np.zeros(len(found.tests[0]), dtype=bool)
        shifts.worst_group_accuracy(blank, extras["group"], clusters=extras.get("identity"), draws=1)
    return found


def _published(
    base: str, kind: str | None, severity: int, clean: Images, test: Callable[[str], Images], seed: int
) -> Images:
    """The published pictures of one corruption at a severity, or for each picture of one in `STANDARD`.

    Published arrays hold class numbers; class k is class k of the clean set.
    """
    sets = [test(f"{base}/{kind}/{severity}") for kind in ([kind] if kind else STANDARD)]
    named = [replace(s, classes=clean.classes, digest=fingerprint(s.digest, clean.classes)) for s in sets]
    return _drawn(named, seed)


def _drawn(sets: Sequence[Images], seed: int) -> Images:
    """For each picture one of several versions of it, drawn by its place and `seed`."""
    first = sets[0]
    if len(sets) == 1:
        return first
    chosen = (uniforms(seed, np.arange(len(first)), 1)[:, 0] * len(sets)).astype(int)

    def read(indices: np.ndarray) -> Pixels:
        return [sets[chosen[i]].pixels([i])[0] for i in indices]

    extras = {key: np.array([sets[k].extras[key][i] for i, k in enumerate(chosen)]) for key in first.extras}
    return replace(
        first,
        name=f"{first.name.partition('/')[0]} ({len(sets)} corruptions)",
        digest=fingerprint([s.digest for s in sets], chosen),
        source={**first.source, "corruption": "drawn for each picture", "of": len(sets), "seed": seed},
        read=read,
        extras=extras,
    )
