"""`run = runs.begin(…)` inside a notebook: checked parameters, numbers, figures with cards, a record.

A notebook begins a run in the cell after its parameters and finishes it in its last cell. Under the runner
the record goes where the runner says; in JupyterLab it goes to `runs/NOTEBOOK/interactive/` below the
notebook.
"""

from __future__ import annotations

import base64
import datetime
import json
import os
import random
import re
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitscope.runs import cards, explore_cards, provenance
from vitscope.runs.hashing import parameters_digest, sha256_text
from vitscope.runs.numbers import make_number
from vitscope.runs.parameters import Parameters
from vitscope.runs.record import Data, Explored, Model, Record, Remark, Shown, Volatile, check_name
from vitscope.runs.schema import schema_of

if TYPE_CHECKING:
    import pandas as pd

    from vitscope.backbones import Backbone
    from vitscope.data import Images
    from vitscope.features import FeatureCache
    from vitscope.figures import Figure

RUN_DIR, RUN_KEY, PREFIX = "VITSCOPE_RUN_DIR", "VITSCOPE_RUN_KEY", "VITSCOPE_PREFIX"


class RunError(RuntimeError):
    """A notebook uses its run wrongly, or runs in another interpreter than it should."""


def begin(notebook: str, **declared: Any) -> Run:
    """Check the declared parameters, seed every generator, and start the record.

    `declared` holds every parameter of the notebook, `profile` among them. Errors: `UnknownName`,
    `ParameterError`; `RunError` when the kernel is not the interpreter that the runner started.
    """
    expected = os.environ.get(PREFIX)
    if expected and Path(expected).resolve() != Path(sys.prefix).resolve():
        raise RunError(f"this kernel runs in {sys.prefix}, the runner in {expected}: packages would differ")
    schema = schema_of(notebook)
    missing = [name for name in schema.model_fields if name not in declared]
    if missing:
        raise RunError(
            f"begin({notebook!r}, …) needs every declared parameter; missing: {', '.join(missing)}"
        )
    parameters = schema.validate_all(declared)
    os.environ.update(TQDM_DISABLE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    _seed(getattr(parameters, "seed", 0))
    folder = Path(os.environ.get(RUN_DIR) or Path("runs") / notebook / "interactive")
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(notebook, parameters, folder)
    if parameters.profile == "smoke":
        _show_html(
            cards.notice(
                "Smoke run.",
                "Tiny samples, to see that everything works: no number here is a result.",
                kind="smoke",
            )
        )
    return run


def _seed(seed: int) -> None:
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


class Run:
    """One run of one notebook. `params` are its checked parameters."""

    def __init__(self, notebook: str, params: Parameters, folder: Path) -> None:
        self.params = params
        self.folder = folder
        self._started = time.monotonic()
        self._cache: FeatureCache | None = None
        self._record = Record(
            notebook=notebook,
            profile=params.profile,
            key=os.environ.get(RUN_KEY),
            parameters=params.model_dump(mode="json"),
            changed=params.changed(),
            versions=provenance.versions(),
            volatile=Volatile(started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")),
        )
        self._finished = False

    @property
    def is_smoke(self) -> bool:
        return self.params.profile == "smoke"

    @property
    def cache(self) -> FeatureCache:
        """Where features may be kept between runs: `.vitscope/cache` of the book; outside a clone, nowhere.

        It counts, and `finish` writes the counts down.
        """
        from vitscope.features import FeatureCache
        from vitscope.runs.layout import Project, ProjectError

        if self._cache is None:
            try:
                self._cache = FeatureCache(Project.find().cache)
            except ProjectError:
                self._cache = FeatureCache(None)
        return self._cache

    def report(
        self,
        key: str,
        value: float | int | None,
        *,
        spread: float | tuple[float, float] | None = None,
        n: int | None = None,
        unit: str | None = None,
        text: str | None = None,
    ) -> None:
        """Record a number and hand its text to the prose, where `{glue:text}` finds it under `key`.

        `spread` is a standard deviation or an interval (low, high), `n` what it is over. `value=None` says
        "not detected" and needs a `text`. Errors: `ValueError` for a non-finite value or a repeated key.
        """
        self._open(key, self._record.numbers)
        number = make_number(key, value, spread=spread, n=n, unit=unit, text=text)
        self._record.numbers[key] = number
        shown = f"{number.text} [{cards.SMOKE_TEXT}]" if self.is_smoke else number.text
        if find_spec("myst_nb"):  # absent where the book is not built
            from myst_nb import glue

            glue(key, shown, display=False)

    def report_each(self, key: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """`report` a number for each name, under "KEY.NAME"; in a name, what no key may hold becomes "-"."""
        for name, row in rows.items():
            self.report(f"{key}.{re.sub(r'[^a-z0-9_.-]', '-', name.lower())}", **row)

    def figure(self, figure: Figure) -> None:
        """Show a figure with its alt text, under it a card with its provenance and data, and its explorer."""
        self._open(figure.name, [f.name for f in self._record.figures])
        if self.is_smoke:
            figure.fig.text(0.995, 0.995, cards.SMOKE_TEXT, ha="right", va="top", fontsize=8, color="#a33")
        png = figure.png()
        data = self._keep(figure.name, figure.data, "figures")
        (self.folder / "figures" / f"{figure.name}.png").write_bytes(png)
        self._record.figures.append(self._shown(figure.name, figure.alt, data))
        _show(
            {"image/png": base64.b64encode(png).decode(), "text/plain": figure.alt},
            {"vitscope": {"figure": figure.name, "alt": figure.alt}},
        )
        _show_html(cards.figure_card(figure.name, self._facts(), data, figure.alt))
        if (explorer := figure.explorer) is not None:
            digest = sha256_text(explorer.spec)
            explored = Explored(name=figure.name, words=explorer.words, spec_sha256=digest)
            self._record.explorers.append(explored)
            run = self._facts()["Run"]
            _show_html(explore_cards.card(figure.name, explorer, run, smoke=self.is_smoke))

    def table(
        self, data: pd.DataFrame, name: str, caption: str, *, precision: int = 3, html: str | None = None
    ) -> None:
        """Show a table with its caption, and keep its data beside the record; `html` shows it otherwise."""
        self._open(name, [t.name for t in self._record.tables])
        text = self._keep(name, data, "tables")
        self._record.tables.append(self._shown(name, caption, text))
        caption = f"{caption} [{cards.SMOKE_TEXT}]" if self.is_smoke else caption
        shown = html or cards.table(name, data, caption, precision=precision)
        _show_html(shown, {"vitscope": {"table": name}})

    def not_applicable(self, kind: str, name: str, reason: str) -> None:
        """Stand in for a `"figure"` or `"table"` without meaning for this model or dataset, and say why."""
        if kind not in ("figure", "table"):
            raise ValueError(f"kind must be 'figure' or 'table', got {kind!r}")
        self._record.remarks.append(Remark(about=check_name(name), text=reason))
        _show_html(
            cards.notice(f"No {kind} here.", reason, kind="not-applicable"), {"vitscope": {kind: name}}
        )

    def remark(self, about: str, text: str) -> None:
        """Show and record what a reader must know: a solver that did not converge, pictures left out."""
        self._record.remarks.append(Remark(about=about, text=text))
        _show_html(cards.notice(f"{about}:", text, kind="remark"))

    def note_model(self, backbone: Backbone) -> None:
        """Record a backbone: name, digest, source, device and number type."""
        parameter = next(backbone.model.parameters())
        self._record.models.append(
            Model(
                name=backbone.name,
                digest=backbone.digest,
                source=_jsonable(backbone.source),
                device=str(parameter.device),
                dtype=str(parameter.dtype).removeprefix("torch."),
            )
        )

    def note_data(self, images: Images) -> None:
        """Record a dataset: name, split, digest, source, and every input that was skipped with its reason."""
        self._record.data.append(
            Data(
                name=images.name,
                split=images.split,
                count=len(images),
                classes=len(images.classes),
                digest=images.digest,
                source=_jsonable(images.source),
                skipped=[(str(path), str(reason)) for path, reason in images.skipped],
            )
        )

    def finish(self) -> None:
        """Write `record.json` and show the run's card. Nothing can be reported afterwards."""
        import torch

        if self._finished:
            raise RunError("this run is already finished")
        self._finished = True
        gpu, peak_gpu = provenance.gpu()
        self._record.volatile = self._record.volatile.model_copy(
            update={
                "seconds": round(self._seconds(), 3),
                "peak_rss_mib": provenance.peak_rss_mib(),
                "peak_gpu_mib": peak_gpu,
                "features_computed": self._cache and self._cache.computed,
                "features_found": self._cache and self._cache.found,
                "gpu": gpu,
                "threads": torch.get_num_threads(),
                "platform": provenance.machine(),
                "processor": provenance.processor(),
            }
        )
        path = self._record.save(self.folder)
        _show_html(cards.run_card(self._facts(), self._record.parameters, path.read_text(encoding="utf-8")))

    def _facts(self) -> dict[str, str]:
        """What every card says about the run behind it, and what it has taken until now."""
        memory, (_, on_gpu) = provenance.peak_rss_mib(), provenance.gpu()
        spent = {"Seconds so far": f"{self._seconds():.1f}"}
        for where, mib in (("memory", memory), ("GPU memory", on_gpu)):
            if mib:
                spent[f"Peak {where} so far"] = f"{mib:,.0f} MiB"
        return cards.run_facts(self._record, parameters_digest(self.params)) | spent

    def _keep(self, name: str, data: pd.DataFrame, kind: str) -> str:
        text = cards.csv(data)
        (self.folder / kind).mkdir(exist_ok=True)
        (self.folder / kind / f"{name}.csv").write_text(text, encoding="utf-8")
        return text

    @staticmethod
    def _shown(name: str, text: str, data: str) -> Shown:
        return Shown(name=name, text=text, rows=max(0, data.count("\n") - 1), csv_sha256=sha256_text(data))

    def _open(self, name: str, taken: Any) -> None:
        if self._finished:
            raise RunError("this run is finished; report before run.finish()")
        if check_name(name) in taken:
            raise ValueError(f"{name!r} was already used in this run; names are unique")

    def _seconds(self) -> float:
        return time.monotonic() - self._started


def _jsonable(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _show_html(html: str, metadata: dict[str, Any] | None = None) -> None:
    _show({"text/html": html, "text/plain": "(shown in the rendered page)"}, metadata or {})


def _show(bundle: dict[str, str], metadata: dict[str, Any]) -> None:
    from IPython.display import display

    display(bundle, raw=True, metadata=metadata)
