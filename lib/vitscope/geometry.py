"""The geometry of a backbone's features over depth: neural collapse at every state, CKA between states.

`metrics.collapse` and `metrics.cka` have the formulas; here they meet captures and probes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from torch import Tensor

from vitscope.capture import Capture
from vitscope.layerwise import KINDS, LayerProbes, stacked_features
from vitscope.metrics.cka import MinibatchCKA, linear_cka, linear_cka_unbiased
from vitscope.metrics.collapse import ClassMoments, nc1, nc2, nc3, nc4, nc4_margin
from vitscope.splits import encode

MEASURES = ("NC1", "NC2 norms", "NC2 angles", "NC3", "NC4", "NC4 margin")


def collapse_table(train: Capture, test: Capture, fitted: LayerProbes) -> pd.DataFrame:
    """NC1 to NC4 of every state and token: class moments of the training pictures, the probe as classifier.

    NC1 is divided by the number of classes, "NC2 norms" is the spread of the class means' lengths, "NC2
    angles" the distance of their angles from a simplex, NC3 that of the probe's weights from the class
    means. NC4 is the share of test pictures that the nearest class mean and the probe name differently, "NC4
    margin" the mean score of the right class over the best wrong one, which paper A calls NC4.

    States whose features do not vary (CLS before the first block) are left out. Columns: token, state, the
    measures, and `simplex_possible`: whether so many classes fit at equal angles into this width at all (D ≥
    C − 1). Errors: `ValueError` for captures without labels, classes that the probes do not know, and fewer
    than two classes.
    """
    if train.labels is None or test.labels is None:
        raise ValueError("neural collapse needs labels on both captures; capture an `Images` set")
    classes = fitted.probes.classes
    features, keys = stacked_features(train)
    unseen, _ = stacked_features(test)
    codes, held = encode(train.labels, classes), encode(test.labels, classes)
    logits = fitted.probes.logits(unseen)
    rows = []
    for i, (kind, state) in enumerate(keys):
        moments = ClassMoments(len(classes), features.shape[2])
        moments.update(features[i], codes)
        if not moments.centred_means.any():
            continue  # one vector for all pictures, as CLS is before the first block: there is no geometry
        angles = nc2(moments)
        weight = fitted.probes.weight[i] / fitted.probes.scale[i]  # on features as they are
        rows.append(
            {
                "token": KINDS[kind],
                "state": state,
                "NC1": nc1(moments),
                "NC2 norms": angles.equinorm,
                "NC2 angles": angles.equiangularity,
                "NC3": nc3(moments, weight) if weight.any() else np.nan,
                "NC4": nc4(moments, unseen[i], logits[i].argmax(1)),
                "NC4 margin": nc4_margin(logits[i], held),
                "simplex_possible": moments.simplex_possible,
            }
        )
    return pd.DataFrame(rows)


def last_collapse(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The last state of every backbone, CLS where it exists, else the mean patch token."""
    rows = []
    for name, table in tables.items():
        kind = next(k for k in KINDS.values() if (table["token"] == k).any())
        rows.append({"backbone": name, **table[table["token"] == kind].iloc[-1].to_dict()})
    return pd.DataFrame(rows)


def states_cka(captured: Capture, other: Capture | None = None) -> pd.DataFrame:
    """Unbiased linear CKA between mean patch tokens of all pairs of states, of one backbone or of two.

    Columns: state, other state, CKA. NaN (states without variation) is left out.
    """
    other_states = captured.states if other is None else other.states
    matrix = MinibatchCKA()
    matrix.update(_means(captured), None if other is None else _means(other))
    values = matrix.compute().numpy()
    rows = [
        {"state": a, "other state": b, "CKA": float(values[i, j])}
        for i, a in enumerate(captured.states)
        for j, b in enumerate(other_states)
    ]
    return pd.DataFrame(rows).dropna(ignore_index=True)


def models_cka(captures: Mapping[str, Capture]) -> pd.DataFrame:
    """Last states of every pair of backbones: biased and unbiased linear CKA of their mean patch tokens."""
    names, rows = list(captures), []
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            x, y = _means(captures[a])[-1], _means(captures[b])[-1]
            rows.append(
                {
                    "backbone": a,
                    "other": b,
                    "biased": linear_cka(x, y),
                    "unbiased": linear_cka_unbiased(x, y),
                }
            )
    return pd.DataFrame(rows)


def _means(captured: Capture) -> Tensor:
    if captured.patch_mean is None:
        raise ValueError(f"the capture of {captured.backbone} has no mean patch token; keep 'patch_mean'")
    return captured.patch_mean
