"""Probes and fusion heads of a frozen backbone on one's own pictures, and one saved head that predicts.

What `vitscope fuse` does. `fuse` measures, `Fused.save` writes, `predict` goes from the file and a folder of
pictures to classes.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vitscope import backbones, frozen, fusion, own_pictures, rivals
from vitscope.backbones import Backbone
from vitscope.comparison import BEST, LAST, ORACLE, Comparison, compare
from vitscope.errors import unknown
from vitscope.fuse_predict import FuseError, for_people, predict
from vitscope.own_pictures import Pictures
from vitscope.runs.provenance import versions
from vitscope.weights import ENDINGS

__all__ = ["FuseError", "Fused", "check_out", "default_out", "fuse", "predict"]

SHOWN = (LAST, BEST, "SuperLearner", "VFusion", ORACLE)
SIZES = {"configurations": 4, "steps": 300, "hidden": 256, "latent": 64}
HEAD, CARD, TABLE = "head.safetensors", "card.json", "table.csv"
TOKENS = ("cls", "patch_mean")


@dataclass(frozen=True)
class Fused:
    """Heads fitted to one's pictures; `method` is the one to save. `remarks` say what was left out."""

    comparison: Comparison
    method: str
    card: dict[str, Any]
    remarks: tuple[str, ...]

    @property
    def table(self) -> pd.DataFrame:
        """A row per method, in the order of the legends; the oracle, which knows the labels, comes last."""
        order = {name: k for k, name in enumerate((*rivals.METHODS[:-1], rivals.CONTROL, ORACLE))}
        table = self.comparison.table
        shown = table[table["method"].isin(order)]
        return shown.sort_values("method", key=lambda names: names.map(order), ignore_index=True)

    @property
    def title(self) -> str:
        """One line: what was fitted to what, and how the test part came about."""
        data, name, count = self.card["dataset"], self.card["backbone"]["name"], len(self.card["classes"])
        learned, tested = data["train"]["pictures"], data["test"]["pictures"]
        return (
            f"{name} on {data['name']} · {count} classes · {learned} pictures to learn from, "
            f"{tested} to test on ({data['test_part']})"
        )

    @property
    def shown(self) -> pd.DataFrame:
        """The table as text: percent with one digit; a gap that is not there is empty."""
        table = self.table
        gap = [("" if pd.isna(v) else f"{v:.0f}") for v in table["gap closed"]]
        interval = [f"{low:.1f} to {high:.1f}" for low, high in zip(table["low"], table["high"], strict=True)]
        return pd.DataFrame(
            {
                "method": table["method"],
                "accuracy %": table["accuracy"].map("{:.1f}".format),
                "95 % interval": interval,
                "balanced %": table["balanced"].map("{:.1f}".format),
                "gap closed %": gap,
                "parameters": table["parameters"].map("{:,.0f}".format),
                "seconds": table["seconds"].map("{:.1f}".format),
            }
        )

    def save(self, out: Path, *, force: bool = False) -> Path:
        """Write head, card and table into the folder `out`, all or nothing, and return the head's file.

        Errors: as `check_out`.
        """
        check_out(out, force=force)
        comparison = self.comparison
        head = comparison.heads[self.method]
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
        try:
            probes = comparison.members.probes if head.uses_logits else None
            fusion.save(head, aside / HEAD, self.card, probes=probes)
            self._check(aside / HEAD)
            (aside / CARD).write_text(json.dumps(self.card, indent=2) + "\n", encoding="utf-8")
            self.table.to_csv(aside / TABLE, index=False)
            out.mkdir(exist_ok=True)
            for name in (TABLE, CARD, HEAD):  # the head last: where it lies, the others do
                os.replace(aside / name, out / name)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return out / HEAD

    def _check(self, file: Path) -> None:
        """A file that answers otherwise than the table says must not be left behind."""
        test = self.comparison.task.test
        right = fusion.load(file).predict(test.features) == test.labels
        if not np.array_equal(right, self.comparison.right[self.method]):
            raise RuntimeError(f"{self.method} answers otherwise after saving: a defect of this program")


def fuse(
    backbone: str,
    source: str,
    *,
    test: str | None = None,
    weights: str | None = None,
    head: str = "VFusion",
    every: bool = False,
    images: int | None = None,
    test_images: int | None = None,
    seed: int = 0,
    tokens: str = "cls",
    norm: str = "none",
    device: str = "auto",
    img_size: int | None = None,
    cache: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Fused:
    """Fit probes and heads to the pictures of `source` and measure them on its test part, or on `test`.

    Always fitted: `SHOWN` and `head`; with `every`, the ten of `rivals.METHODS`. Other arguments as
    `backbones.load`, `own_pictures.load` and `frozen.make`; `say` hears what is being done.

    Errors: `UnknownName` for backbone, head, tokens, norm or dataset; `PicturesRefused` and `FuseError`
    before features are computed, `capture.NonFiniteActivations` while they are.
    """
    names = _methods(head, every)
    if tokens not in TOKENS:
        raise unknown("tokens", tokens, TOKENS)
    with for_people():
        say("loading the backbone")
        model = backbones.load(backbone, weights=weights or "auto", img_size=img_size, device=device)
        say("reading the pictures")
        pictures = own_pictures.load(source, test, images=images, test_images=test_images, seed=seed)
        say(f"features of {len(pictures.train) + len(pictures.test)} pictures")
        task = frozen.make(model, pictures.train, pictures.test, norm=norm, tokens=tokens, cache=cache)  # type: ignore[arg-type]
        say(f"probes and {len(names)} heads")
        comparison = compare(task, rivals.some(names, **SIZES), seed=seed, cache=cache)
    remarks = list(pictures.remarks)
    if task.tokens != tokens:
        remarks.append(f"{model.name} has no CLS token: the mean patch token stands for a state")
    remarks += [f"{name}: {text}" for name, texts in comparison.warnings.items() for text in texts]
    asked = {
        "name": Path(backbone).name if Path(backbone).suffix in ENDINGS else backbone,
        "weights": _named(weights),
        "img_size": img_size,
    }
    card = _card(comparison, head, model, pictures, asked, seed)
    return Fused(comparison, head, card, tuple(remarks))


def default_out(backbone: str, source: str, head: str) -> Path:
    """Where a head goes whose place is not named.

    >>> default_out("twin_s", "pictures/birds", "VFusion").as_posix()
    'runs/fuse/twin_s-birds-VFusion'
    """
    return Path("runs", "fuse", f"{Path(backbone).name}-{Path(source).name}-{head}")


def check_out(out: Path, *, force: bool = False) -> None:
    """Raise `FuseError` for a folder that exists (unless forced), a file, and a place one cannot write to."""
    if out.exists() and not out.is_dir():
        raise FuseError(f"{out} is a file; the head goes into a folder of its own: choose another --out")
    if out.exists() and not force:
        raise FuseError(f"{out} exists already: choose another --out, or overwrite its head with --force")
    place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise FuseError(f"nothing can be written below {place}: choose another --out")


def _methods(head: str, every: bool) -> tuple[str, ...]:
    can_save = [name for name in (*rivals.METHODS, rivals.CONTROL) if name != ORACLE]
    if head == ORACLE:
        raise FuseError("the Oracle needs the answer to answer: it is reported, but no head to save")
    if head not in can_save:
        raise unknown("head", head, can_save)
    return tuple(dict.fromkeys((*(rivals.METHODS if every else SHOWN), head)))


def _card(
    comparison: Comparison,
    method: str,
    model: Backbone,
    pictures: Pictures,
    asked: dict[str, Any],
    seed: int,
) -> dict[str, Any]:
    """Where the head belongs and how good it is, as plain data."""
    task, row = comparison.task, comparison.table.set_index("method").loc[method]
    measured = ("accuracy", "low", "high", "balanced", "gap closed")
    parts = {"train": pictures.train, "test": pictures.test}
    card = {
        "method": method,
        "backbone": {**asked, "digest": model.digest, "source": model.source},
        "states": list(range(1, model.depth + 1)),
        "tokens": task.tokens,
        "norm": task.norm,
        "transform": model.transform.describe(),
        "dataset": {
            "name": Path(pictures.train.name).name,
            **{key: {"pictures": len(part), "digest": part.digest} for key, part in parts.items()},
            "test_part": pictures.rule,
            "remarks": list(pictures.remarks),
        },
        "classes": list(task.classes),
        "test": {name: _plain(row[name]) for name in measured},
        "budget": SIZES,
        "seed": seed,
        "versions": versions(),
    }
    return json.loads(json.dumps(card, default=str))  # tuples become lists, as in the file


def _plain(value: float) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


def _named(weights: str | None) -> str:
    """ "auto", "random", or the name of a file; where it lay on this machine is nobody's business."""
    return "auto" if weights is None else Path(weights).name
