"""Probes, members and fusion heads fitted once, and found again by what they were fitted to.

The key holds the very numbers (features, labels, logits, groups), the options, the seed and the sources that
fit. What is found is what a fit would give, bit for bit on one kind of processor, with the seconds that the
fit took. A small fit runs in one thread: sums over images depend, in their last bits, on how many threads
share them, and a run beside others must find what a run alone has fitted.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitscope.data.images import fingerprint
from vitscope.feature_key import arithmetic, installed, tensor_digest
from vitscope.features import Cache, FeatureCache
from vitscope.fusion import Head, Members, out_of_fold
from vitscope.fusion.base import Fitted
from vitscope.holdout import Groups
from vitscope.probes import ProbeSet, fit_probes
from vitscope.splits import Labels

KIND = "fit"
# Every module that a fit runs, beside the package `fusion` (tested by the imports).
SOURCES = ("holdout.py", "lbfgs.py", "logistic.py", "probes.py", "protocol.py", "ridge.py", "splits.py")
SMALL = 1 << 24  # numbers in the features, up to which more threads bring little
_WORDS = "words"  # the entry that holds what is no tensor, as JSON
_PLAIN = ("kind", "classes", "grid", "majority", "images", "warnings")


def _digest(files: list[Path]) -> str:
    return fingerprint(*(hashlib.sha256(path.read_bytes()).hexdigest() for path in files))


def _files() -> list[Path]:
    here = Path(__file__).parent
    return [Path(__file__), *sorted((here / "fusion").glob("*.py")), *(here / name for name in SOURCES)]


_AT_START = _digest(_files())


def fitted_probes(features: Tensor, labels: Labels, *, cache: Cache = None, **options: Any) -> ProbeSet:
    """`fit_probes` of these arguments, from `cache` if it is there. Errors: as `fit_probes`."""

    def build() -> dict[str, Tensor]:
        return _of_probes(fit_probes(features, labels, **options))

    kept = _kept(cache, {"fit": "probes", "options": options}, {"x": features, "y": labels}, build)
    return _probes(kept)


def fitted_members(features: Tensor, labels: Labels, *, cache: Cache = None, **options: Any) -> Members:
    """`out_of_fold` of these arguments, from `cache` if it is there. Errors: as `out_of_fold`."""

    def build() -> dict[str, Tensor]:
        members = out_of_fold(features, labels, **options)
        return _of_probes(members.probes) | {"logits": members.logits}

    kept = _kept(cache, {"fit": "members", "options": options}, {"x": features, "y": labels}, build)
    return Members(kept["logits"], _probes(kept))


def fit_head(
    head: Head,
    features: Tensor,
    logits: Tensor | None,
    labels: Labels,
    *,
    validation: float,
    groups: Groups | None,
    seed: int,
    cache: Cache = None,
) -> float:
    """`head.fit` of these arguments, or its result from `cache`; the seconds that the fit took.

    Errors: as `Head.fit`.
    """

    def build() -> dict[str, Tensor]:
        began = time.perf_counter()
        made.append(head)
        head.fit(features, logits, labels, validation=validation, groups=groups, seed=seed)
        fitted = head._require_fitted()
        words = {"classes": fitted.classes, "sizes": fitted.sizes, "report": head.report}
        seconds = time.perf_counter() - began
        return {f"t/{k}": v for k, v in fitted.tensors.items()} | _said(words | {"seconds": seconds})

    made: list[Head] = []
    kind = type(head)
    parts = {
        "fit": f"{kind.__module__}.{kind.__qualname__}",
        "source": _digest([Path(inspect.getfile(kind))]),
        "options": head.options() | {"validation": validation, "seed": seed, "groups": groups},
    }
    kept = _kept(cache, parts, {"x": features, "logits": logits, "y": labels}, build)
    words = _words(kept)
    if not made:
        tensors = {k.removeprefix("t/"): v for k, v in kept.items() if k != _WORDS}
        head.fitted = Fitted(tuple(words["classes"]), tensors, words["sizes"])
        head.report = words["report"]
    return words["seconds"]


def _kept(
    cache: Cache, parts: Mapping[str, Any], given: Mapping[str, Any], build: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """What `build` gives, kept under `parts` and the contents of what is `given`, where all can be named."""
    folder = cache if isinstance(cache, FeatureCache) else FeatureCache(cache)
    store, named = folder.store, _content({**parts, "given": dict(given)})
    features = given["x"]
    code = _digest(_files())
    threads = 1 if features.numel() <= SMALL else torch.get_num_threads()

    def fitted() -> dict[str, Tensor]:
        with threads_of_torch(threads):
            return build()

    if store is None or code != _AT_START:
        return fitted()
    packages = {name: installed(name) for name in ("torch", "numpy")}
    how = {"device": arithmetic(features.device), "threads": threads, "packages": packages}
    about = {"of": f"{parts['fit']} on {list(features.shape)}".replace("vitscope.", "")}
    return store.fetch(KIND, {**named, **how, "code": code}, fitted, about=about)[0]


@contextmanager
def threads_of_torch(count: int) -> Iterator[None]:
    """So many threads for torch, and then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _content(value: Any) -> Any:
    """A value as JSON in which arrays are digests."""
    if isinstance(value, Tensor):
        return {"tensor": tensor_digest(value)}
    if isinstance(value, np.ndarray):
        return {"array": fingerprint(value if value.dtype != object else value.tolist())}
    if isinstance(value, Mapping):
        return {k: _content(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_content(v) for v in value]
    return value


def _said(words: Mapping[str, Any]) -> dict[str, Tensor]:
    text = json.dumps(words, default=_plain).encode()
    return {_WORDS: torch.frombuffer(bytearray(text), dtype=torch.uint8)}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a fit's report must be plain data, got {type(value).__name__}")


def _words(kept: Mapping[str, Tensor]) -> dict[str, Any]:
    return json.loads(kept[_WORDS].numpy().tobytes())


def _of_probes(probes: ProbeSet) -> dict[str, Tensor]:
    tensors = {f.name: getattr(probes, f.name) for f in fields(probes) if f.name not in _PLAIN}
    return tensors | _said({name: getattr(probes, name) for name in _PLAIN})


def _probes(kept: Mapping[str, Tensor]) -> ProbeSet:
    words = _words(kept)
    words |= {name: tuple(words[name]) for name in ("classes", "grid", "warnings")}
    tensors: dict[str, Any] = {f.name: kept[f.name] for f in fields(ProbeSet) if f.name not in _PLAIN}
    return ProbeSet(**tensors, **words)
