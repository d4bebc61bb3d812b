"""A model along its training: what its layers do at each embedded snapshot."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from vitscope import backbones, plotting
from vitscope.backbones import Backbone
from vitscope.data.images import Images
from vitscope.layerwise import capture_all, probe_layers, similarity_table
from vitscope.phase_report import detect
from vitscope.phases import Phases
from vitscope.probe_report import state_table
from vitscope.reported import Reported


def moments(name: str, *, device: str = "auto") -> dict[int, Backbone]:
    """Images seen -> the model then: every snapshot of a zoo model, and the finished model last."""
    seen = {count: backbones.load(f"{name}@{count}", device=device) for count in backbones.snapshots(name)}
    return seen | {backbones.card(name)["recipe"]["images"]: backbones.load(name, device=device)}


class Followed:
    """The measurements of a model along its training.

    `similarity` and `probes` are tables like those of `layerwise`, with a column `images`; `phases` says what
    the detector finds at each moment.
    """

    def __init__(
        self, models: Mapping[int, Backbone], train: Images, test: Images, *, norm: str, seed: int
    ) -> None:
        groups, clusters = train.extras.get("identity"), test.extras.get("identity")
        similarity, probes = [], []
        self.phases: dict[int, Phases] = {}
        for count, model in models.items():
            ((name, sets),) = capture_all([model], train, test, norm=norm).items()
            seen = {name: sets["test"]}
            similarity.append(similarity_table(seen, clusters).assign(images=count))
            fitted = probe_layers(sets["train"], sets["test"], groups=groups, clusters=clusters, seed=seed)
            probes.append(state_table({name: fitted}).assign(images=count))
            self.phases[count] = detect(seen, clusters)[name]
        self.similarity = pd.concat(similarity, ignore_index=True)
        self.probes = pd.concat(probes, ignore_index=True)

    @property
    def last(self) -> pd.DataFrame:
        """Probe accuracy at the last state, by images seen and token."""
        return self.probes[self.probes["state"] == self.probes["state"].max()].reset_index(drop=True)

    @property
    def table(self) -> pd.DataFrame:
        """One row a moment: phases, where similarity is lowest and last, what probes read at the end."""
        rows = []
        for count, phases in self.phases.items():
            values = np.asarray(phases.values)
            row = {
                "images seen": count,
                "phases found": ", ".join(p for p in ("cliff", "plateau", "climb") if p not in phases.reasons)
                or "none",
                "lowest similarity": float(values.min()),
                "at state": phases.states[int(values.argmin())],
                "last similarity": float(values[-1]),
            }
            last = self.last[self.last["images"] == count].set_index("token")["accuracy"]
            rows.append(row | {f"last {token} (%)": float(value) for token, value in last.items()})
        return pd.DataFrame(rows)


def accuracy_figure(followed: Followed, name: str) -> plotting.Figure:
    """Accuracy at the last state over images seen, CLS and mean patch token."""
    table = followed.last
    ends = "; ".join(
        f"{token} {part['accuracy'].iloc[0]:.1f} % → best {part['accuracy'].max():.1f} % after "
        f"{int(part.loc[part['accuracy'].idxmax(), 'images']):,} → {part['accuracy'].iloc[-1]:.1f} %"
        for token, part in table.groupby("token", sort=False)
    )
    return plotting.layer_curves(
        table,
        x="images",
        y="accuracy",
        hue="token",
        order=list(dict.fromkeys(table["token"])),
        band=("low", "high"),
        title=f"What the last layer of {name} tells about unseen emoji, along its training",
        xlabel="images seen in training",
        ylabel="accuracy (%)",
        name="training_accuracy",
        explore=True,
        alt=f"Probe accuracy at the last layer of {name} against images seen in training: {ends}.",
    )


def late_fall(followed: Followed) -> dict[str, Reported]:
    """By token: points lost from the best moment of training to its end."""
    found: dict[str, Reported] = {}
    for token, part in followed.last.groupby("token", sort=False):
        best = part.loc[part["accuracy"].idxmax()]
        fall = float(best["accuracy"] - part["accuracy"].iloc[-1])
        text = (
            f"{fall:.1f} points below its best, {best['accuracy']:.1f} % after {int(best['images']):,} images"
        )
        found[str(token)] = {"value": fall, "unit": "points", "text": text}
    return found


def formed_text(followed: Followed) -> Reported:
    """At how many moments all three phases were found."""
    hits = [count for count, phases in followed.phases.items() if phases.detected]
    return {
        "value": len(hits),
        "text": f"{len(hits)} of {len(followed.phases)} moments",
        "n": len(followed.phases),
    }
