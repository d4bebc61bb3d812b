"""Fitted heads as single files that hold no code, and predictors made of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from vitscope.errors import unknown
from vitscope.fusion.base import Features, Fitted, Head
from vitscope.fusion.checks import share_right
from vitscope.fusion.members import MemberHead, pack
from vitscope.fusion.registry import FUSIONS
from vitscope.fusion.training import SelectionBudget
from vitscope.probes import ProbeSet
from vitscope.splits import Labels, encode
from vitscope.weights import WeightFileError

FORMAT = "vitscope.fusion.1"
_KEYS = {"format", "head", "options", "classes", "sizes", "shapes", "card"}


Arrays = Features | np.ndarray | Sequence[np.ndarray]
"""Features as tensors or NumPy arrays."""


@dataclass(frozen=True)
class Predictor:
    """A fitted head with the manners of a scikit-learn classifier; features stay stacked states [K, N, D].

    `card` is what the file says of itself: backbone, states, norm, dataset, or whatever was saved with it.
    """

    head: Head
    card: dict[str, Any]

    @property
    def classes_(self) -> np.ndarray:
        """Classes in the order of the columns of `predict_proba`."""
        return np.asarray(self.head.classes)

    def decision_function(self, features: Arrays) -> Float[np.ndarray, "N C"]:
        """Scores of every class."""
        return self._scores(features).cpu().numpy()

    def predict_proba(self, features: Arrays) -> Float[np.ndarray, "N C"]:
        """Probabilities, softmax of the scores; rows sum to 1."""
        return self._scores(features).softmax(1).cpu().numpy()

    def predict(self, features: Arrays) -> np.ndarray:
        """The likeliest class of each image, as it was called in training."""
        return self.classes_[self._scores(features).argmax(1).cpu().numpy()]

    def score(self, features: Arrays, labels: Labels) -> float:
        """Share of right answers. Raises ValueError, naming them, for labels the head does not know."""
        scores = self._scores(features)
        return share_right(scores, encode(labels, self.head.classes).to(scores.device))

    def _scores(self, features: Arrays) -> Tensor:
        if isinstance(features, Tensor | np.ndarray):
            return self.head.predict_logits(torch.as_tensor(features))
        return self.head.predict_logits([torch.as_tensor(x) for x in features])


def save(head: Head, path: Path | str, card: Mapping[str, Any], *, probes: ProbeSet | None = None) -> None:
    """Write a fitted head: fp32 tensors in safetensors, everything else as JSON in its header.

    `card` says where the head belongs (backbone, states, token kind, norm, dataset): plain JSON data. A head
    that was fitted on given logits needs the `probes` that made them, so that the file predicts from
    features alone.

    Raises ValueError for heads that are not fitted or need labels, for missing probes, and for probes of
    other states or classes than the head's.
    """
    fitted = head._require_fitted()
    if head.needs_labels:
        raise ValueError(f"a file of {type(head).__name__} could predict nothing: it needs the labels")
    tensors = dict(fitted.tensors)
    if isinstance(head, MemberHead) and "probes.weight" not in tensors:
        tensors |= pack(_checked_probes(head, fitted, probes), _states(fitted))
    elif probes is not None:
        raise ValueError(f"this {type(head).__name__} needs no probes beside its own: leave out `probes`")
    tensors = {k: v.detach().to("cpu", torch.float32).contiguous() for k, v in sorted(tensors.items())}
    header = {
        "format": FORMAT,
        "head": type(head).__name__,
        "options": head.options(),
        "classes": list(fitted.classes),
        "sizes": fitted.sizes,
        "shapes": {k: list(v.shape) for k, v in tensors.items()},
        "card": dict(card),
    }
    try:
        text = json.dumps(header, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the card must be plain JSON data: {error}") from error
    # one entry, because safetensors writes several in an order that changes
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".partial")
    temporary.write_bytes(to_bytes(tensors, metadata={"fusion": text}))
    temporary.replace(target)


def load(path: Path | str) -> Predictor:
    """Read a head that `save` wrote; nothing in the file is ever executed.

    Raises FileNotFoundError; `WeightFileError` for files of another kind, format or content, and for tensors
    that are missing, of another shape or not finite; `UnknownName` for a head this version does not have.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"no fusion head {file}")
    try:
        opened = safe_open(file, framework="pt")
    except SafetensorError as error:
        raise WeightFileError(f"{file.name} is no safetensors file ({error}); save the head again") from error
    with opened:
        header = _header(file.name, opened.metadata() or {})
        names = opened.keys()
        tensors = {key: opened.get_tensor(key) for key in names}
    shapes = {k: list(v.shape) for k, v in tensors.items()}
    if shapes != header["shapes"]:
        wrong = sorted(
            k for k in shapes.keys() | header["shapes"] if shapes.get(k) != header["shapes"].get(k)
        )
        raise WeightFileError(
            f"{file.name}: {len(wrong)} tensors are not as its header says, first {wrong[0]}; save it again"
        )
    broken = [k for k, v in tensors.items() if not v.isfinite().all()]
    if broken:
        raise WeightFileError(f"{file.name}: {broken[0]} holds NaN or inf; save the head again")
    head = _rebuilt(file.name, header)
    head.fitted = Fitted(tuple(header["classes"]), tensors, header["sizes"])
    return Predictor(head, header["card"])


def _header(name: str, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        header = json.loads(metadata.get("fusion", "null"))
    except json.JSONDecodeError as error:
        raise WeightFileError(f"{name}: its header is no JSON ({error}); save the head again") from error
    found = header.get("format") if isinstance(header, dict) else None
    if found != FORMAT:
        raise WeightFileError(
            f"{name} holds no fusion head (format {found!r}, expected {FORMAT!r}); write one with fusion.save"
        )
    missing = sorted(_KEYS - header.keys())
    if missing:
        raise WeightFileError(f"{name}: its header lacks {', '.join(missing)}; save the head again")
    return header


def _rebuilt(name: str, header: Mapping[str, Any]) -> Head:
    if header["head"] not in FUSIONS:
        raise unknown("fusion head", header["head"], FUSIONS)
    kind = FUSIONS[header["head"]]
    options = dict(header["options"])
    strange = sorted(options.keys() - {f.name for f in fields(kind) if f.init})
    if strange:
        raise WeightFileError(f"{name}: {header['head']} has no option {', '.join(strange)} in this version")
    budget = SelectionBudget(**options.pop("budget"))
    return kind(**options, budget=budget)


def _states(fitted: Fitted) -> list[int]:
    return fitted.sizes.get("members", list(range(fitted.sizes["blocks"][0][0])))


def _checked_probes(head: Head, fitted: Fitted, probes: ProbeSet | None) -> ProbeSet:
    if probes is None:
        raise ValueError(
            f"this {type(head).__name__} was fitted on given logits: pass save(..., probes=) the ProbeSet "
            "that made them"
        )
    if probes.classes != fitted.classes:
        raise ValueError(
            f"label maps differ: the probes' classes are {_shown(probes.classes)}, the head's "
            f"{_shown(fitted.classes)}; fit both on the same labels"
        )
    found = [probes.mean.shape[0], probes.mean.shape[1]]
    if found != fitted.sizes["blocks"][0]:
        raise ValueError(
            f"probes are of {found[0]} states of width {found[1]}, the head is not: pass its own"
        )
    return probes


def _shown(classes: tuple) -> str:
    return ", ".join(map(str, classes[:5])) + (f", … ({len(classes)})" if len(classes) > 5 else "")
