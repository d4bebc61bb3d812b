"""The script that measures how cost grows: its quick form writes what the page on scale reads."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from vitscope.runs import scale_results, scale_tables
from vitscope.scale import MEASURED

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def costs(monkeypatch):
    """The script as a module; it imports its neighbours by their bare names."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("common", "probes", "costs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    threads = torch.get_num_threads()
    yield importlib.import_module("costs")
    torch.set_num_threads(threads)
    for name in ("common", "probes", "costs"):
        sys.modules.pop(name, None)


def quick(costs, monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["costs.py", "--quick", *arguments])
    costs.main()


def test_the_quick_form_writes_rows_that_the_page_reads(costs, monkeypatch, tmp_path):
    file = tmp_path / scale_results.FOLDER / scale_results.COSTS
    planted = {n: {"bytes": 5e3 * n, "features": 1e3 * n, "setting": "planted"} for n in (16_000, 32_000)}
    small = {n: {"bytes": 1e9, "setting": "planted"} for n in (128, 256)}
    monkeypatch.setattr(costs, "_peak", lambda kind, n: (small if kind == "capture" else planted)[n])
    quick(costs, monkeypatch, "--json", str(file))
    kept = file.read_text(encoding="utf-8")
    file.write_text(kept.replace(" --quick", ""), encoding="utf-8")  # the page takes no quick results
    results = scale_results.load(tmp_path)
    table = scale_tables.growth(results)
    assert sorted(set(zip(table["cost"], table["against"], strict=True))) == [
        ("memory of capture", "images"), ("memory of logistic probes", "images"),
        ("seconds of ISI by reconstruction", "images"),
        ("seconds of VFusion", "images"), ("seconds of VFusion", "states"),
        ("seconds of attentive fusion", "images"), ("seconds of attentive fusion", "states"),
        ("seconds of capture", "images"), ("seconds of capture", "layers"),
        ("seconds of capture", "tokens"), ("seconds of capture", "width"),
        ("seconds of capture with attention statistics", "tokens"),
        *(("seconds of logistic probes", x) for x in ("classes", "images", "states", "width")),
        ("seconds of ridge probes", "images"),
    ]  # fmt: skip
    units = results.units
    assert all(getattr(units, name) > 0 for name in MEASURED)
    assert units.probe_memory == 5.0
    by_name = {row.what: row for row in results.costs.rows}
    # a file is its numbers and a header
    assert by_name["features on disk, float32"].ratio.median == pytest.approx(4, rel=0.05)
    assert by_name["features on disk, float16"].ratio.median == pytest.approx(2, rel=0.05)
    assert by_name["memory of logistic probes"].ratio.median == pytest.approx(1)
    assert by_name["memory of capture"].ratio.median == pytest.approx(0)
    assert "take over" in scale_tables.attention_sentence(results)
    assert results.costs.machine["threads"] == 1


def test_parts_alone_and_quick_looks_leave_the_results_as_they_are(costs, monkeypatch):
    monkeypatch.setattr(costs, "write", lambda *_: pytest.fail("wrote"))
    monkeypatch.setattr(costs, "PARTS", {"storage": lambda size, rounds: []})
    quick(costs, monkeypatch, "--parts", "storage")
    monkeypatch.setattr(sys, "argv", ["costs.py", "--parts", "storage"])
    costs.main()


def test_a_peak_is_that_of_a_process(costs):
    """16,000 images of 4 states of width 128: the features are 32.8 MB, and a fit holds copies of them."""
    found = costs._peak("probes", 16_000)
    assert found["features"] == 4 * 16_000 * 128 * 4
    assert 2 < found["bytes"] / found["features"] < 20
