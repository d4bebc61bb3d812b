"""Layer by layer: token similarity and probe accuracy of several backbones as tidy tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from vitscope.attention_maps import MapStatistic
from vitscope.backbones import Backbone
from vitscope.capture import Capture, capture
from vitscope.conditions import Condition
from vitscope.data.images import Images
from vitscope.features import Cache, captured
from vitscope.features import features as cached_features
from vitscope.fits import fitted_probes
from vitscope.intervals import bootstrap_mean
from vitscope.probes import ProbeSet
from vitscope.reductions import DEFAULT, REDUCTIONS, similarity_by_dataset

KINDS = {"cls": "CLS token", "patch_mean": "mean patch token"}
SIMILARITIES = {
    "similarity": "raw",
    "similarity_centred": "centred",
    "similarity_dataset": "centred by dataset",
}


@dataclass(frozen=True)
class LayerProbes:
    """Probes of every state and token kind of one backbone, fitted as one problem, and their accuracy.

    `table`: kind, state, accuracy with interval [low, high], balanced accuracy, chosen l2, all in percent
    but l2. `majority` is the accuracy of always naming the most frequent training class, in percent.
    """

    table: pd.DataFrame
    majority: float
    warnings: list[str]
    correct: np.ndarray  # [S', N]
    probes: ProbeSet


def capture_all(
    backbones: Iterable[Backbone],
    train: Images,
    test: Images,
    *,
    norm: str,
    attention: Callable[[Backbone], Mapping[str, MapStatistic]] | None = None,
    batch_size: int | str = "auto",
    cache: Cache = None,
) -> dict[str, dict[str, Capture]]:
    """Capture both parts with each backbone: name of backbone -> "train" | "test" -> `Capture`.

    The test capture has all measures of similarity: the one centred by the dataset subtracts, per state, the
    mean patch token of the *training* pictures. `attention` says, per backbone, what else to take of the test
    part's attention maps beside the usual statistics; None takes nothing of them.
    `cache` is a folder in which captures are kept and found again.
    A backbone that comes twice is captured once. Errors: `ValueError` for two backbones of one name with
    different weights; else as `capture`.
    """
    found: dict[str, dict[str, Capture]] = {}
    digests: dict[str, str] = {}
    for b in backbones:
        if digests.setdefault(b.name, b.digest) != b.digest:
            raise ValueError(
                f"two backbones with different weights are named {b.name!r}; give one of them another name "
                "with dataclasses.replace"
            )
        if b.name in found:
            continue
        seen = cached_features(b, train, norm=norm, folder=cache, batch_size=batch_size)
        assert seen.patch_mean is not None  # it was asked for
        means = dict(zip(seen.states, seen.patch_mean.mean(1), strict=True))
        reductions = {name: REDUCTIONS[name] for name in (*DEFAULT, "cls_patch_cosine")}
        reductions["similarity_dataset"] = similarity_by_dataset(means)
        statistics = False if attention is None else attention(b)
        later = captured(
            b,
            test,
            norm=norm,
            reductions=reductions,
            attention=statistics,
            batch_size=batch_size,
            folder=cache,
        )
        found[b.name] = {"train": seen, "test": later}
    return found


def capture_conditions(conditions: Mapping[str, Condition], *, norm: str) -> dict[str, Capture]:
    """Capture a backbone and its controls: name of condition -> `Capture`."""
    return {key: capture(c.backbone, c.pictures, norm=norm) for key, c in conditions.items()}


def statistic_table(
    captures: Mapping[str, Capture], names: Mapping[str, str], clusters: np.ndarray | None = None
) -> pd.DataFrame:
    """Per-image statistics of a capture averaged per backbone and state, with the interval over images.

    `names`: the statistics, and what the table calls them. States that have no value (CLS before it exists)
    and statistics that a backbone lacks are left out. Columns: backbone, statistic, state, mean, low, high.
    """
    parts = []
    for backbone, one in captures.items():
        for key, statistic in names.items():
            if key not in one.per_image:
                continue
            values = one.per_image[key].numpy()
            there = ~np.isnan(values).all(1)
            interval = bootstrap_mean(values[there], clusters=clusters)
            parts.append(
                pd.DataFrame(interval._asdict()).assign(
                    backbone=backbone, statistic=statistic, state=np.asarray(one.states)[there]
                )
            )
    columns = ["backbone", "statistic", "state", "mean", "low", "high"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def similarity_table(captures: Mapping[str, Capture], clusters: np.ndarray | None = None) -> pd.DataFrame:
    """Raw and centred token similarity per backbone and state; `statistic_table` with their names."""
    return statistic_table(captures, SIMILARITIES, clusters)


def stacked_features(captured: Capture) -> tuple[torch.Tensor, list[tuple[str, int]]]:
    """Features of all kinds and states [S', N, D] with their (kind, state); CLS only where it exists."""
    kinds: dict[str, torch.Tensor | None] = {"cls": captured.cls, "patch_mean": captured.patch_mean}
    rows, keys = [], []
    for kind, by_state in kinds.items():
        if by_state is None:
            continue
        for state, values in zip(captured.states, by_state, strict=True):
            if torch.isnan(values).all():
                continue  # no CLS token before the position embedding
            rows.append(values)
            keys.append((kind, state))
    return torch.stack(rows), keys


def probe_layers(
    train: Capture,
    test: Capture,
    *,
    groups: np.ndarray | None = None,
    clusters: np.ndarray | None = None,
    seed: int = 0,
    cache: Cache = None,
) -> LayerProbes:
    """Linear probes on every state of one backbone: fitted and selected on `train`, measured on `test`.

    `groups` [N train] and `clusters` [N test] name samples that belong together, such as renders of one
    identity: the regularization is then chosen on groups that the fit has not seen, as the test set's are
    unseen, and the interval draws whole clusters. Probes that were fitted before are found in `cache`.
    """
    if train.labels is None or test.labels is None:
        raise ValueError(
            "probes need labels on both captures; capture an `Images` set or pass (tensor, labels)"
        )
    features, keys = stacked_features(train)
    test_features, _ = stacked_features(test)
    names = [f"{state} ({KINDS[kind]})" for kind, state in keys]
    options: dict[str, Any] = {"groups": groups, "seed": seed, "names": names}
    probes = fitted_probes(features, train.labels, cache=cache, **options)
    predicted = probes.logits(test_features).argmax(-1).numpy()
    correct = np.asarray(probes.classes)[predicted] == test.labels
    interval = bootstrap_mean(100.0 * correct, clusters=clusters)
    scores = probes.accuracy(test_features, test.labels)
    table = pd.DataFrame(
        {
            "kind": [KINDS[kind] for kind, _ in keys],
            "state": [state for _, state in keys],
            "accuracy": interval.mean,
            "low": interval.low,
            "high": interval.high,
            "balanced": 100 * scores["balanced_accuracy"].numpy(),
            "l2": probes.chosen_l2.numpy(),
        }
    )
    return LayerProbes(table, 100 * float(scores["majority"]), list(probes.warnings), correct, probes)
