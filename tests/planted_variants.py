"""Families of variants of which only the scores are known."""

from types import SimpleNamespace

import numpy as np
import torch

from vitscope import diffusion_curves as curves
from vitscope.diffusion_attention import Attention
from vitscope.diffusion_curves import Curve
from vitscope.variants import Family
from vitscope.variants_measure import Found, Sets
from vitscope.variants_numbers import Measured

PICTURES = 6
SPARSE = "sup_entmax15"


def planted_variant(
    name: str, *, attention: str = "softmax", registers: int = 0, parameters: int = 100, card=None
):
    """A model that has nothing but its facts."""
    dense = SimpleNamespace(name=name, attention=attention, num_registers=registers, grid=(2, 2))
    seen = None if card is None else card["recipe"]["images"]
    return SimpleNamespace(given=name, name=name, dense=dense, native=dense, card=card, parameters=parameters,
                           images_seen=seen)  # fmt: skip


def planted_family(trainings: int = 1, label: str = "supervised") -> Family:
    """Softmax, entmax-1.5 and registers, so many times."""
    rows = []
    for k in range(trainings):
        end = f"-{k}" if k else ""
        rows.append(
            (
                planted_variant(f"sup_softmax{end}"),
                planted_variant(f"sup_entmax15{end}", attention="entmax15"),
                planted_variant(f"sup_register4{end}", registers=4, parameters=148),
            )
        )
    return Family(label, tuple(rows))


def planted_tests() -> Sets:
    """Two sets with masks, one of them with depth; none can be opened."""
    part = SimpleNamespace(kinds=("segmentation", "depth"))
    sets = dict.fromkeys(("scenes", "voc:data/VOC"), (part, part))
    images = SimpleNamespace(name="emoji_group")
    return Sets((images, images), sets, tuple(sets), ("scenes",))


def constant(value: float, state: int = 8) -> Curve:
    """A score that is the same for every picture."""
    return curves.of_images([state], np.full((1, PICTURES), value))


def planted_looked(support: float) -> Attention:
    """Attention of two blocks, alike in all pictures, CLS looking at half of four patches."""
    rows = [np.full((2, PICTURES), v) for v in (support, 50.0, 0.5)]
    cls = torch.tensor([0.5, 0.5, 0.0, 0.0]).expand(2, PICTURES, 3, 4)
    return Attention(*(curves.of_images([1, 2], row) for row in rows), cls)


def planted_found(name: str, *, support: float = 100.0, **scores: float) -> Found:
    """Scores of a model by measure, the same on all sets of `planted_tests`."""
    tests = planted_tests()
    by_key = {key: constant(value) for measure, value in scores.items() for key in tests.keys(measure)}
    return Found(name, by_key, dict.fromkeys(by_key, 1.0), planted_looked(support), (f"{name} is planted",))


def planted_measured(*sparse_miou: float, without: tuple[str, ...] = ()) -> Measured:
    """mIoU of entmax-1.5 in each training; softmax has 40, registers 41, each 1 point more in the next."""
    family = planted_family(len(sparse_miou))
    rows = []
    for k, (training, best) in enumerate(zip(family.trainings, sparse_miou, strict=True)):
        miou = {0: 40.0 + k, 1: best, 2: 41.0 + k}
        row = []
        for n, v in enumerate(training):
            scores = {
                "top1": 70.0 + n,
                "knn": 60.0,
                "miou": miou[n],
                "miou_cls": 50.0 + n,
                "rmse": 0.5 - 0.01 * n,
            }
            scores["miou"] = miou[n]
            kept = {key: value for key, value in scores.items() if key not in without}
            row.append(planted_found(v.name, support=20.0 if n == 1 else 100.0, **kept))
        rows.append(row)
    return Measured(family, rows)
