"""A run as a notebook sees it: numbers, figures, tables, cards, and the record at the end."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure as Canvas

from vitscope.errors import UnknownName
from vitscope.figures import Figure
from vitscope.runs import cards, session
from vitscope.runs.hashing import OUTSIDE_KERNEL
from vitscope.runs.parameters import ParameterError
from vitscope.runs.record import Record
from vitscope.runs.session import RunError


def drawn(name: str = "line") -> Figure:
    fig = Canvas(figsize=(2, 1))
    fig.subplots().plot([0, 1])
    data = pd.DataFrame({"x": [0, 1], "y": [0.1, np.pi]})
    return Figure(fig=fig, data=data, alt="A line that rises from 0 to 1 & <on>.", name=name)


def test_begin_checks_again_and_seeds(begin):
    run = begin(seed=5)
    first = torch.rand(3), np.random.rand(3)
    begin(seed=5)
    assert torch.equal(torch.rand(3), first[0])
    assert (np.random.rand(3) == first[1]).all()
    assert run.params.seed == 5
    assert os.environ["TQDM_DISABLE"] == "1"
    with pytest.raises(ParameterError, match="images: got 'many'"):
        begin(images="many")
    with pytest.raises(UnknownName, match="Did you mean 'images'"):
        begin(image=3)
    with pytest.raises(RunError, match="missing: profile"):
        session.begin("zoo_appendix", backbones=["twin_s"], images=20, seed=0, device="cpu")


def test_begin_stops_in_another_interpreter(begin, monkeypatch):
    monkeypatch.setenv(session.PREFIX, "/somewhere/else")
    with pytest.raises(RunError, match="packages would differ"):
        begin()


def test_reported_numbers_are_python_numbers_with_texts(begin):
    run = begin()
    run.report("plain", 1234)
    run.report("share", np.float64(0.123456), spread=np.float64(0.0123), n=3, unit="%")
    run.report("low-high", torch.tensor(0.5), spread=(np.float32(0.25), 0.75), unit="layers")
    run.report("none", None, text="not detected, because the curve is flat")
    run.finish()
    numbers = Record.load(run.folder).numbers
    assert numbers["plain"].text == "1,234"
    assert numbers["share"].text == "0.123 ± 0.012%"
    assert numbers["share"].value == 0.123456
    assert numbers["low-high"].text == "0.5 (0.25 to 0.75) layers"
    assert numbers["low-high"].spread == (0.25, 0.75)
    assert numbers["none"].value is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("nan", float("nan"), "not a finite number"),
        ("text", "0.5", "expected a number"),
        ("flag", True, "expected a number"),
        ("none", None, "needs a text"),
        ("Spaced Key", 1, "expected lower-case"),
    ],
)
def test_what_is_no_number_is_refused(begin, key, value, message):
    with pytest.raises(ValueError, match=message):
        begin().report(key, value)


def test_a_number_for_each_name_stands_under_its_own_key(begin):
    run = begin()
    rows = {
        "twin_s": {"value": 1.5, "spread": (1.0, 2.0), "n": 3, "unit": "points", "text": "1.5 points"},
        "vit.augreg_in1k": {"value": 2},
        "My Nét, PE × 0.5": {"value": None, "text": "nothing (it has no CLS token)"},
    }
    run.report_each("fall", rows)
    run.report_each("nobody", {})
    run.finish()
    numbers = Record.load(run.folder).numbers
    assert list(numbers) == ["fall.twin_s", "fall.vit.augreg_in1k", "fall.my-n-t--pe---0.5"]
    first = numbers["fall.twin_s"]
    assert (first.value, first.spread, first.n, first.unit) == (1.5, (1.0, 2.0), 3, "points")
    assert first.text == "1.5 points"
    assert numbers["fall.my-n-t--pe---0.5"].text == "nothing (it has no CLS token)"


def test_names_that_become_one_key_are_refused(begin):
    run = begin()
    with pytest.raises(ValueError, match=r"'fall\.a-b' was already used"):
        run.report_each("fall", {"a b": {"value": 1}, "a-b": {"value": 2}})
    with pytest.raises(ValueError, match="needs a text"):
        run.report_each("other", {"a": {"value": None}})


def test_names_are_unique_and_a_finished_run_is_closed(begin):
    run = begin()
    run.report("a", 1)
    with pytest.raises(ValueError, match="already used"):
        run.report("a", 2)
    run.finish()
    with pytest.raises(RunError, match="finished"):
        run.report("b", 1)
    with pytest.raises(RunError, match="already finished"):
        run.finish()


def test_figure_carries_alt_text_card_and_data(begin, shown):
    run = begin()
    run.figure(drawn())
    (picture, metadata), (card, _) = shown
    assert base64.b64decode(picture["image/png"]).startswith(b"\x89PNG")
    assert metadata["vitscope"] == {"figure": "line", "alt": "A line that rises from 0 to 1 & <on>."}
    html = card["text/html"]
    assert 'data-figure="line"' in html
    assert "0 to 1 &amp; &lt;on&gt;." in html
    assert "zoo_appendix, profile course" in html
    assert re.search(r"Seconds so far</th><td[^>]*>\d+\.\d<", html)
    assert re.search(r"Peak memory so far</th><td[^>]*>[\d,]{3,} MiB<", html)
    assert "Peak GPU memory" not in html or torch.cuda.is_available()
    csv = base64.b64decode(re.search(r"base64,([^\"]+)", html).group(1)).decode()
    assert csv == f"x,y\n0,0.1\n1,{np.pi!r}\n"
    assert csv == (run.folder / "figures" / "line.csv").read_text()
    assert "http" not in html


def test_a_figures_card_leads_to_the_card_of_its_run(begin, shown):
    run = begin(images=77)
    run.figure(drawn())
    run.finish()
    figure, end = shown[1][0]["text/html"], shown[2][0]["text/html"]
    (address,) = re.findall(r'href="#([^"]+)"', figure)
    assert f'<details class="vitscope-run" id="{address}"' in end
    assert "changed: images=77" in figure


def test_gpu_memory_is_shown_where_there_is_any(begin, shown, monkeypatch):
    monkeypatch.setattr(session.provenance, "gpu", lambda: ("A GPU", 2345.6))
    run = begin()
    run.figure(drawn())
    run.finish()
    assert "Peak GPU memory so far" in shown[1][0]["text/html"]
    assert "2,346 MiB" in shown[1][0]["text/html"]
    assert Record.load(run.folder).volatile.peak_gpu_mib == 2345.6


def test_features_computed_and_found_are_written_down(begin):
    run = begin()
    run.cache.computed += 3
    run.cache.found += 5
    run.finish()
    record = Record.load(run.folder)
    assert (record.volatile.features_computed, record.volatile.features_found) == (3, 5)
    assert "features_found" not in record.stable()
    without = begin()
    without.finish()
    kept = Record.load(without.folder).volatile
    assert (kept.features_computed, kept.features_found) == (None, None)


def test_outside_a_clone_nothing_is_kept(begin, monkeypatch):
    from vitscope.runs.layout import Project, ProjectError

    def nowhere():
        raise ProjectError("no book here")

    run = begin()
    assert run.cache.folder.parts[-2:] == (".vitscope", "cache")
    monkeypatch.setattr(Project, "find", nowhere)
    assert begin().cache.folder is None


def test_a_pivoted_table_has_no_column_for_the_name_of_its_columns():
    pivoted = pd.DataFrame({"k": ["a", "a"], "c": ["x", "y"], "v": [1.0, 2.0]}).pivot(
        index="k", columns="c", values="v"
    )
    header = cards.table("p", pivoted.reset_index(), "P").split("</thead>")[0]
    assert re.findall(r"<th[^>]*>([^<]*)</th>", header) == ["k", "x", "y"]


def test_table_has_caption_headers_and_data(begin, shown):
    run = begin()
    run.table(pd.DataFrame({"name <b>": ["a"], "value": [1 / 3], "gap": [None]}), "facts", "Facts & figures")
    (bundle, metadata), *_ = shown
    html = bundle["text/html"]
    assert metadata["vitscope"] == {"table": "facts"}
    assert ">Facts &amp; figures</caption>" in html
    assert html.count('<th scope="col">') == 3
    assert "name &lt;b&gt;" in html
    assert ">0.333<" in html
    assert ">–<" in html


def test_smoke_runs_say_so_wherever_they_show(begin, shown):
    run = begin("smoke")
    figure = drawn()
    run.figure(figure)
    run.table(figure.data, "facts", "Facts")
    assert 'data-notice="smoke"' in shown[0][0]["text/html"]
    assert any("not a result" in text.get_text() for text in figure.fig.texts)
    assert "not a result" in shown[-1][0]["text/html"]


def test_record_holds_models_data_remarks_and_changes(begin, shown):
    run = begin(images=77)
    module = torch.nn.Linear(1, 1)
    run.note_model(SimpleNamespace(name="m", digest="ab" * 32, source={"kind": "zoo"}, model=module))
    run.note_data(_Data())
    run.remark("probe", "did not converge")
    run.not_applicable("figure", "cls", "this model has no CLS token")
    run.figure(drawn())
    run.finish()
    record = Record.load(run.folder)
    assert record.changed == {"images": 77}
    assert record.models[0].model_dump() == {
        "name": "m", "digest": "ab" * 32, "source": {"kind": "zoo"}, "device": "cpu", "dtype": "float32",
    }  # fmt: skip
    assert record.data[0].skipped == [("bad.jpg", "truncated")]
    assert [r.about for r in record.remarks] == ["probe", "cls"]
    assert record.volatile.seconds > 0
    assert record.volatile.threads == torch.get_num_threads()
    assert not record.complete, "only the runner completes a record"
    card = shown[-1][0]["text/html"]
    carried = base64.b64decode(re.search(r"application/json;base64,([^\"]+)", card).group(1))
    assert json.loads(carried) == json.loads((run.folder / "record.json").read_text())
    assert "changed: images=77" in card


class _Data:
    """The part of `Images` that a run notes."""

    name, split, classes, digest = "d", "test", ("a", "b"), "cd" * 32
    source = {"rows": np.int64(3)}  # noqa: RUF012
    skipped = (("bad.jpg", "truncated"),)

    def __len__(self) -> int:
        return 3


def test_not_applicable_knows_two_kinds(begin):
    with pytest.raises(ValueError, match="'figure' or 'table'"):
        begin().not_applicable("number", "x", "y")


def test_a_kernel_imports_nothing_that_the_key_leaves_out(tmp_path):
    """`hashing.OUTSIDE_KERNEL` must not hold a module that a notebook runs."""
    program = (
        "import sys\nfrom vitscope import runs\nfrom vitscope.runs.schema import resolve\n"
        "run = runs.begin('zoo_appendix', **resolve('zoo_appendix').model_dump())\n"
        "run.report('a', 1)\nrun.finish()\n"
        "print([m for m in sys.modules if m.startswith('vitscope.')], file=sys.stderr)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {
        m.removeprefix("vitscope.").replace(".", "/") + ".py" for m in eval(done.stderr.splitlines()[-1])
    }
    assert "runs/session.py" in imported
    assert imported.isdisjoint(OUTSIDE_KERNEL)
    assert (tmp_path / "runs" / "zoo_appendix" / "interactive" / "record.json").is_file()
