"""Heads tested under shift, of which only the right answers are known."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch

from vitscope.comparison import Comparison, gap_closed
from vitscope.data.images import Images
from vitscope.frozen import Part, Task
from vitscope.shifted import METHODS, UnderShift
from vitscope.shifted_sets import ShiftedSet

Right = Mapping[str, Sequence[int]]


def pictures(count: int, split: str = "test", **extras: Sequence) -> Images:
    """Grey pictures of two classes in turn."""
    return Images(
        name="planted", split=split, labels=np.arange(count) % 2, classes=("a", "b"),
        ids=np.array([f"{split}{k}" for k in range(count)]), digest=split,
        source={"groups": ["a, land", "a, water", "b, land", "b, water"]},
        read=lambda indices: torch.zeros(len(indices), 3, 8, 8, dtype=torch.uint8),
        extras={key: np.array(value) for key, value in extras.items()},
    )  # fmt: skip


def _comparison(backbone: str, name: str, images: Images, right: Right, groups) -> Comparison:
    answers = {m: np.array(right.get(m, right["BestLayer"]), dtype=bool) for m in METHODS}
    labels = np.array(images.classes)[images.labels]
    part = Part(torch.zeros(1, len(images), 2), labels, groups, images.extras, 0)
    rows = [
        {"method": m, "accuracy": 100 * a.mean(), "low": 0.0, "high": 100.0, "balanced": 100 * a.mean(),
         "gap closed": gap_closed(a, answers["BestLayer"], answers["Oracle"]).value}
        for m, a in answers.items()
    ]  # fmt: skip
    task = Task(backbone, name, "cls", "none", images.classes, part, part)
    head = SimpleNamespace(report={"warnings": ["too small"]})
    return Comparison(task, pd.DataFrame(rows), answers, {"VFusion": head}, None, None)  # type: ignore[arg-type]


def planted_tested(
    name: str,
    shifted: Sequence[Right],
    *,
    clean: Right | None = None,
    severities: Sequence[int] = (),
    backbone: str = "m",
    groups: Sequence | None = None,
    **extras: Sequence,
) -> UnderShift:
    """Answers (1 right, 0 wrong) by method on each shifted part and the clean one.

    Methods left out answer as BestLayer does. `groups` say what pictures share.
    """
    count = len(shifted[0]["BestLayer"])
    images, shared = pictures(count, **extras), None if groups is None else np.array(groups)
    chosen = ShiftedSet(
        name, pictures(count, "train"), images if clean else None, (images,) * len(shifted), tuple(severities)
    )
    made = [_comparison(backbone, name, images, right, shared) for right in shifted]
    before = _comparison(backbone, name, images, clean, shared) if clean else None
    return UnderShift(backbone, chosen, before, tuple(made))
