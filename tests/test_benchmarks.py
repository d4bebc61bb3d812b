"""Benchmarks: the arithmetic they share, every script at its smallest, and the page that shows results."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from bs4 import BeautifulSoup
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import docutils_namespace

from vitscope.runs import speed_page, speed_results
from vitscope.runs.layout import Project
from vitscope.runs.speed_results import Results, SpeedError, load

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks"
sys.path.insert(0, str(FOLDER))
common = importlib.import_module("common")
SCRIPTS = ("capture", "capture_memory", "chapters", "entmax15", "heads", "probes", "scrambling", "things")


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# --- what scripts share ----------------------------------------------------------------------------------


def test_spread_and_ratio_are_taken_round_by_round():
    assert common.spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}
    assert common.spread([1 / 3]) == {"median": 0.3333, "min": 0.3333, "max": 0.3333}
    seconds = {"slow": [4.0, 9.0, 10.0], "fast": [2.0, 3.0, 10.0]}
    # the ratio of the medians would be 3
    assert common.ratio(seconds, "slow", "fast") == {"median": 2.0, "min": 1.0, "max": 3.0}


def test_contestants_take_turns_and_each_round_begins_with_another():
    order: list[str] = []
    runs = {name: (lambda name=name: order.append(name)) for name in "abc"}
    seconds = common.alternate(runs, 4)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab" + "abc"
    assert {name: len(times) for name, times in seconds.items()} == {"a": 4, "b": 4, "c": 4}
    order.clear()
    common.alternate(runs, 1, warm_up=False)
    assert "".join(order) == "abc"


@pytest.mark.parametrize(
    ("median", "target", "better", "reached"),
    [(2.0, 1.5, "higher", True), (1.5, 1.5, "higher", True), (1.4, 1.5, "higher", False),
     (2.0, 1.5, "lower", False), (1.5, 1.5, "lower", True), (1.4, 1.5, "lower", True),
     (1.4, None, "lower", None)],
)  # fmt: skip
def test_targets(median, target, better, reached, capsys):
    made = common.row("a", "b", common.spread([median]), target=target, better=better, seconds=2)
    assert made["reached"] is reached
    assert speed_results.Row.model_validate(made).reached is reached
    printed = capsys.readouterr().out
    assert ("missed" in printed, "reached" in printed) == (reached is False, reached is True)


def test_what_is_not_there_is_a_row_that_says_why():
    made = common.absent("ours", "peer", "`make peers` installs it", target=1.5)
    row = speed_results.Row.model_validate(made)
    assert row.outcome == "≥ 1.5: not measured"
    assert row.details == "not measured: `make peers` installs it"


def test_quick_changes_defaults_and_nothing_that_is_given(monkeypatch):
    def parsed(*words: str) -> tuple[int, int]:
        monkeypatch.setattr(sys, "argv", ["x.py", *words])
        args = common.parse(common.parser("doc", images=100, many_rounds=7), images=2, many_rounds=1)
        return args.images, args.many_rounds

    assert parsed() == (100, 7)
    assert parsed("--quick") == (2, 1)
    assert parsed("--quick", "--images", "5") == (5, 1)


def test_written_results_can_be_read_and_quick_ones_are_kept_apart(tmp_path, monkeypatch):
    named = tmp_path / "planted.json"
    monkeypatch.setattr(sys, "argv", ["/some/where/planted.py", "--images", "3", "--json", str(named)])
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    rows = [common.row("a", "b", common.spread([1.0]))]
    path = common.write("planted", rows, argparse.Namespace(json=str(named)))
    found = load(path)
    assert found.command == "python benchmarks/planted.py --images 3"
    assert found.machine["torch"] == torch.__version__.split("+")[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found.date)
    assert common.write("planted", rows, argparse.Namespace(quick=True, json=None)) is None
    assert common.write("other", rows, argparse.Namespace(quick=False, json=None)) == tmp_path / "other.json"


def test_a_child_hands_back_its_last_line_and_its_error(tmp_path):
    script = tmp_path / "child.py"
    script.write_text("import json, sys\nprint('noise')\nprint(json.dumps({'got': sys.argv[1:]}))\n")
    assert common.child(str(script), "a", 2) == {"got": ["a", "2"]}
    script.write_text("raise SystemExit('no such thing')\n")
    with pytest.raises(RuntimeError, match="no such thing"):
        common.child(str(script))


def test_a_script_goes_on_in_the_environment_of_its_peers(tmp_path, monkeypatch):
    started: list[list[str]] = []
    monkeypatch.setattr(common, "ROOT", tmp_path)
    monkeypatch.setattr(common.os, "execv", lambda python, words: started.append(words))
    monkeypatch.delenv(common._STARTED_BY, raising=False)
    common.under("peers")
    assert started == []
    python = tmp_path / ".venv-peers" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    monkeypatch.setattr(sys, "argv", ["benchmarks/capture.py", "--quick"])
    monkeypatch.setenv(common._STARTED_BY, "")
    monkeypatch.delenv(common._STARTED_BY)
    common.under("peers")
    assert started == [[str(python), "benchmarks/capture.py", "--quick"]]
    common.under("peers")  # it was started so: no second time
    assert len(started) == 1


# --- every script ----------------------------------------------------------------------------------------


def loaded(name: str) -> ModuleType:
    """A script as a module; its bare name may be that of another module on the path."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def quick(name: str, path: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Results:
    """The results of a script at its smallest, in this process."""
    script = loaded(name)
    words = ("--quick", "--threads", "1", "--json", str(path), *words)
    monkeypatch.setattr(sys, "argv", [str(FOLDER / f"{name}.py"), *words])
    script.main()
    with pytest.raises(SpeedError, match=rf"{name}\.json was made with --quick"):
        load(path)
    return Results.model_validate_json(path.read_text(encoding="utf-8"))


OPTIONS = {"capture": ["--no-peers"], "capture_memory": ["--no-peers"], "things": ["--no-peers"],
           "entmax15": ["--no-compile"]}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_writes_rows(name, tmp_path, monkeypatch):
    if name == "capture_memory":  # its processes would take a minute to start
        script = loaded(name)
        monkeypatch.setattr(
            common, "child",
            lambda _, flag, what, images, depth, threads: script.measure_here(what, images, depth, threads),
        )  # fmt: skip
    found = quick(name, tmp_path / f"{name}.json", monkeypatch, *OPTIONS.get(name, []))
    assert found.name == name
    assert found.rows
    assert all(row.ratio or row.absent for row in found.rows)
    assert f"benchmarks/{name}.py --quick" in found.command
    assert "--json" not in found.command
    if name == "capture":
        assert [row.target for row in found.rows if row.target] == [0.95, 0.75, 1.5, 1.5]
        apart = [row.values.get("largest relative difference", 0.0) for row in found.rows]
        assert max(apart) < 1e-4
    if name == "probes":
        gaps = {row.against: row.values["largest gap in points"] for row in found.rows}
        assert gaps["loop of RidgeClassifier"] <= 1
    if name == "scrambling":
        ridges = found.rows[0].values
        own, other = (list(map(float, ridges[key].split(", "))) for key in ("R²", "R² of the other"))
        assert own == pytest.approx(other, abs=2e-3)


def test_the_statistics_of_a_map_are_those_of_capture(monkeypatch):
    """The peers' arithmetic, on a map whose values are known: uniform attention over five tokens."""
    from vitscope.attention_maps import Geometry

    peers = importlib.import_module("capture_peers")
    uniform = torch.full((1, 2, 5, 5), 0.2)
    found = peers.map_statistics(uniform, Geometry((2, 2), 1, True, torch.device("cpu")))
    assert found["entropy"].flatten().tolist() == pytest.approx([torch.tensor(5.0).log().item()] * 2)
    assert found["distance"].flatten().tolist() == pytest.approx([(0 + 1 + 1 + 2**0.5) / 4] * 2)
    assert found["cls_incoming"].flatten().tolist() == pytest.approx([0.2] * 2)
    assert found["cls_to_patches"].flatten().tolist() == pytest.approx([0.8] * 2)


def test_probes_stop_where_accuracies_are_apart():
    probes = importlib.import_module("probes")
    probes.must_agree(1.0, "equal enough")
    with pytest.raises(SystemExit, match=r"fit_ridge: accuracies are 1\.2 points apart, more than 1"):
        probes.must_agree(1.2, "fit_ridge")


PRISMA = ROOT / ".venv-peers" / "bin" / "python"


@pytest.mark.skipif(not PRISMA.exists(), reason="`make peers` has not been run")
def test_vit_prisma_gives_the_numbers_of_capture(tmp_path):
    path = tmp_path / "capture.json"
    command = [sys.executable, str(FOLDER / "capture.py"), "--quick", "--threads", "1", "--json", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    rows = Results.model_validate_json(path.read_text(encoding="utf-8")).rows
    compared = [row for row in rows if "run_with_cache" in row.against]
    assert len(compared) == 3
    assert all(row.values["largest relative difference"] < 1e-4 for row in compared)


# --- the page --------------------------------------------------------------------------------------------


def results(name: str = "planted", **changes) -> dict:
    rows = [
        {"what": "ours", "against": "theirs", "setting": "small", "better": "higher", "target": 4,
         "ratio": {"median": 5.125, "min": 4.5, "max": 1234.5}, "reached": True, "values": {"seconds": 2.5}},
        {"what": "ours", "against": "softmax", "setting": "small", "better": "lower", "target": 2,
         "ratio": {"median": 2.7, "min": 2.5, "max": 5.2}, "reached": False, "values": {}},
        {"what": "ours", "against": "gone", "setting": "", "better": "higher", "target": 1.5,
         "ratio": None, "reached": None, "values": {}, "absent": "run `make peers`"},
    ]  # fmt: skip
    machine = {"cpu": "A CPU", "cores": 2, "threads": 1, "torch": "2.14.1"}
    made = {"name": name, "command": f"python benchmarks/{name}.py", "date": "2026-03-01", "note": ""}
    made |= {"machine": machine, "rows": rows}
    return made | changes


def planted(folder: Path, name: str = "planted", **changes) -> Path:
    path = folder / speed_page.FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results(**{"name": name, **changes})), encoding="utf-8")
    return path


def test_numbers_in_words(tmp_path):
    first, missed, gone = load(planted(tmp_path)).rows
    assert str(first.ratio) == "5.12 × (4.5–1,234)"
    assert [row.outcome for row in (first, missed, gone)] == [
        "≥ 4: reached", "≤ 2: missed", "≥ 1.5: not measured",
    ]  # fmt: skip
    assert first.details == "seconds 2.5"


def wrong_rows(**changes) -> list[dict]:
    return [results()["rows"][0] | changes]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": wrong_rows(reached=False)}, r"'ours': reached is False, ratio and target say True"),
        ({"rows": wrong_rows(ratio={"median": 1, "min": 2, "max": 3})}, r"1\.0 does not lie between 2\.0"),
        ({"rows": [{}]}, r"rows\.0\.what Field required"),
        ({"command": "python benchmarks/planted.py --quick"}, r"was made with --quick"),
        ({"name": "others"}, r"holds the results of 'others', not of 'planted'"),
    ],
)
def test_results_that_are_none_are_refused_by_name(tmp_path, changes, message):
    path = planted(tmp_path)
    path.write_text(json.dumps(results() | changes), encoding="utf-8")
    with pytest.raises(SpeedError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith("benchmarks/results/planted.json ")
    assert "python benchmarks/planted.py" in str(caught.value)


def test_damaged_and_missing_files_are_named(tmp_path):
    path = planted(tmp_path)
    path.write_text('{"name": "plan', encoding="utf-8")
    with pytest.raises(SpeedError, match=r"planted\.json does not hold results of a benchmark"):
        load(path)
    path.unlink()
    with pytest.raises(SpeedError, match=r"planted\.json is missing: run `python benchmarks/planted\.py`"):
        load(path)


PAGE = (
    "# Speed\n\n```{speed-targets}\n```\n\n```{speed} planted\n```\n\n```{speed} gpu_check\n:optional:\n```\n"
)


def built(folder: Path, builder: str = "html") -> Path:
    """The output of a book of one page, of which Sphinx warns of nothing."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    (source / "index.md").write_text(PAGE, encoding="utf-8")
    warnings, out = io.StringIO(), folder / builder
    settings = {"extensions": ["myst_parser", "vitscope.runs.speed_page"]}
    with docutils_namespace():
        app = Sphinx(
            source, None, out, folder / "doctrees", builder, settings, status=None, warning=warnings,
            freshenv=True,
        )  # fmt: skip
        app.build()
    assert warnings.getvalue() == ""
    return out


def test_the_page_shows_what_was_reached_and_what_was_missed(tmp_path):
    planted(tmp_path / "source")
    found = BeautifulSoup((built(tmp_path) / "index.html").read_text(encoding="utf-8"), "html.parser")
    tables = [table["data-table"] for table in found.select("[data-table]")]
    assert tables == ["speed_targets", "speed_planted"]
    assert found.select_one("#table-speed_targets caption").get_text() == "Targets: 1 of 3 reached"
    cells = [
        [c.get_text() for c in row.select("td")] for row in found.select("#table-speed_planted tbody tr")
    ]
    assert cells[1] == ["ours", "softmax", "2.7 × (2.5–5.2)", "≤ 2: missed", "small", ""]
    assert "run `make peers`" in found.get_text()
    facts = found.select_one(".vitscope-facts").get_text(" ")
    assert "A CPU, 2 cores, 1 threads" in facts
    assert "torch 2.14.1" in facts
    assert speed_page.NONE in found.get_text()


def test_other_builders_say_where_the_tables_are(tmp_path):
    planted(tmp_path / "source")
    assert "The tables are in the HTML edition" in (built(tmp_path, "text") / "index.txt").read_text("utf-8")


def test_a_page_without_its_results_is_not_built(tmp_path):
    with pytest.raises(ExtensionError, match=r"benchmarks/results/planted\.json is missing"):
        built(tmp_path)
    planted(tmp_path / "source", rows=[{}])
    with pytest.raises(ExtensionError, match=r"planted\.json does not hold results"):
        built(tmp_path)


def test_the_book_has_a_section_for_every_script():
    assert "vitscope.runs.speed_page" in (ROOT / "_config.yml").read_text(encoding="utf-8")
    assert "book/speed" in Project(ROOT).pages
    text = (ROOT / "book" / "speed.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```\{speed\} (\w+)$", text, re.M)
    assert set(SCRIPTS) <= set(shown)
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}.py`" in readme for name in SCRIPTS)


def test_no_result_of_a_quick_run_is_published():
    for path in sorted((ROOT / speed_page.FOLDER).glob("*.json")):
        load(path)


@pytest.mark.parametrize("lock", ["peers", "things"])
def test_peers_are_pinned_with_hashes(lock):
    text = (FOLDER / f"{lock}.lock").read_text(encoding="utf-8")
    pins = re.findall(r"^([\w.-]+)==\S+ \\$", text, re.M)
    blocks = re.findall(r"^[\w.-]+==\S+ \\\n(?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", text, re.M)
    assert len(pins) == len(blocks) == len(re.findall(r"^[\w.-]+==", text, re.M))
    assert {"peers": "vit-prisma", "things": "thingsvision"}[lock] in pins
    if lock == "peers":
        assert "torch" not in pins
