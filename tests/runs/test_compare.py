"""A run against the book: planted records with known prediction intervals, and every way to be refused."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from scipy import stats
from typer.testing import CliRunner

from vitscope import cli
from vitscope.errors import UnknownName
from vitscope.runs import claims, compare_report, compare_sources
from vitscope.runs.compare_rule import exceeds, judge
from vitscope.runs.compare_runs import CompareError, compare
from vitscope.runs.hashing import Inputs, sha256_file
from vitscope.runs.record import Data, Model, Number, Record, Remark, Volatile

BOOK = "02_information_scrambling"
OVERLAP = "outside the seeds' spread, intervals overlap"
SHIPPED = claims.published_records()


def number(value: float | None, low: float | None = None, high: float | None = None, **more: Any) -> Number:
    spread = None if low is None or high is None else (low, high)
    more.setdefault("text", "not detected" if value is None else f"{value:.3g}")
    return Number(value=value, spread=spread, **more)


def record(seed: int = 0, numbers: dict[str, Number] | None = None, **changes: Any) -> Record:
    parameters = {"profile": changes.get("profile", "course"), "images": 1000, "seed": seed}
    values = {"complete": True, "notebook": BOOK, "profile": "course", "key": f"key{seed}"}
    return Record(**{**values, "parameters": parameters, "numbers": numbers or {}, **changes})


def seeds(*values: float | None) -> list[Record]:
    return [record(i, {"x": number(v)}) for i, v in enumerate(values)]


def verdict(mine: Number, *values: float | None) -> str:
    """What `mine` of a fourth seed is against one value a seed, without intervals."""
    return judge(mine, [number(v) for v in values]).verdict


def factor(k: int) -> float:
    return float(stats.t.ppf(0.975, k - 1)) * math.sqrt(1 + 1 / k)


# --- the prediction interval -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values", [(10.1, 12.3), (10.1, 12.3, 11.9), (10.1, 12.3, 11.9, 10.7), (5, 6, 9), (-0.31, 0.02, -0.11)]
)
def test_the_prediction_interval_of_one_more_seed_is_the_border(values):
    centre, half = mean(values), factor(len(values)) * stdev(values)
    for side in (-1, 1):
        inside = judge(number(centre + side * half * 0.999), [number(v) for v in values])
        outside = judge(number(centre + side * half * 1.001), [number(v) for v in values])
        assert (inside.verdict, outside.verdict) == ("within the seeds' spread", "outside")
        assert inside.book == pytest.approx(centre)
        assert inside.allowance == pytest.approx(half)
        assert outside.difference == pytest.approx(side * half * 1.001)
    assert (inside.low, inside.high, inside.seeds) == (min(values), max(values), len(values))


def test_the_interval_covers_one_more_seed_as_often_as_it_says():
    draws = stats.norm.rvs(size=(3000, 4), random_state=0)
    hits = [
        not exceeds(judge(number(x, text=""), [number(v, text="") for v in three]).verdict)
        for *three, x in draws
    ]
    assert 0.94 <= mean(hits) <= 0.96


# --- the verdicts ----------------------------------------------------------------------------------------

THREE = (60.1, 60.4, 60.6)


def test_outside_the_spread_with_and_without_overlapping_intervals():
    theirs = [number(v, v - 5, v + 5) for v in THREE]
    assert judge(number(66.0, 65.6, 70), theirs).verdict == OVERLAP
    assert judge(number(66.0, 65.5999, 70), theirs).why.endswith("intervals overlap")
    assert judge(number(66.0, 65.61, 70), theirs).verdict == "outside"
    assert judge(number(66.0, 65.61, 70), theirs).why.endswith("; intervals are apart")
    for mine, others in (
        (number(66.0), theirs),
        (number(66.0, 50, 70), [number(v) for v in THREE]),
        (Number(value=66.0, spread=9.0, text="66"), theirs),  # a standard deviation is no interval
    ):
        assert judge(mine, others).verdict == "outside"
        assert judge(mine, others).why.endswith("no intervals on both sides")


@pytest.mark.parametrize(
    ("mine", "expected"),
    [
        (number(60.62, text="60.6 % (55 to 66)"), "same"),
        (number(60.64, text="60.6 % (55 to 66)"), "same"),
        (number(60.70, text="60.7 % (55 to 66)"), "within the seeds' spread"),
        (number(60.62, text="60.62"), "within the seeds' spread"),
        (number(60.62, text="most of 3 models"), "same"),  # three significant digits
        (number(60.9, text="61 %"), "same"),  # as printed
    ],
)
def test_same_is_the_same_as_printed_for_the_same_seed(mine, expected):
    theirs = [number(v) for v in THREE]
    assert judge(mine, theirs, theirs[2]).verdict == expected


def test_without_the_same_seed_the_mean_stands_for_it():
    assert verdict(number(60.4, text="60.4"), *THREE) == "same"
    assert verdict(number(60.1, text="60.1"), *THREE) == "within the seeds' spread"


@pytest.mark.parametrize(
    ("mine", "book", "expected"),
    [
        (7, 7, "same"),
        (7, 6, "outside"),
        (25_165_825, 25_165_824, "same"),  # within 1e-6
        (25_165_924, 25_165_824, "outside"),
        (0, 0, "same"),
        (1, 0, "outside"),
        (0.50004, 0.5, "same"),
        (0.5009, 0.5, "outside"),
        (1.5012, 1.5, "same up to floating-point noise"),
        (2048.9, 2047.3, "same up to floating-point noise"),
        (2050.9, 2047.3, "outside"),
    ],
)
def test_constant_references_leave_room_for_rounding_only(mine, book, expected):
    text = f"{mine:.4f}" if isinstance(mine, float) else str(mine)
    for k in (1, 3):
        assert verdict(number(mine, text=text), *[book] * k) == expected


def test_counts_that_vary_have_a_spread_too():
    assert verdict(number(6), 7, 6, 6) == "within the seeds' spread"
    assert verdict(number(9), 7, 6, 6) == "within the seeds' spread"
    assert verdict(number(10), 7, 6, 6) == "outside"


def test_a_constant_whose_interval_reaches_the_other_does_not_exceed():
    theirs = [number(6, 6, 7)] * 3
    assert judge(number(7, 6, 7), theirs).verdict == OVERLAP
    assert judge(number(9, 8, 9), theirs).verdict == "outside"
    lone = judge(number(7, 6, 7), theirs[:1])
    assert lone.verdict == "differs, intervals overlap"
    assert lone.why == "differs from the only reference; intervals overlap"


@pytest.mark.parametrize(
    ("mine", "values", "expected"),
    [
        (None, (None, None, None), "same"),
        (None, (3, 4, 5), "not detected here"),
        (4, (None, None, None), "not detected in the book"),
        (None, (3, None, 5), "within the seeds' spread"),
        (4, (3, None, 5), "same"),
        (900, (3, None, 5), "outside"),
        (4.5, (None, None, 3), "outside"),
    ],
)
def test_not_detected(mine, values, expected):
    found = judge(number(mine), [number(v) for v in values])
    assert found.verdict == expected
    assert exceeds(found.verdict) == (expected[:3] in ("not", "out"))
    assert found.missing == values.count(None)


# --- what surrounds the numbers --------------------------------------------------------------------------


def test_what_differs_around_the_numbers():
    def made(seed: int, **changes: Any) -> Record:
        weights = [Model(name="twin_s", digest="a" * 64, source={}, device="cpu", dtype="float32")]
        pictures = [Data(name="emoji", split="test", count=600, classes=8, digest=f"{seed}" * 64, source={})]
        inputs = Inputs(**dict.fromkeys(Inputs.model_fields, "b" * 64))
        base = {
            "models": weights, "data": pictures, "versions": {"torch": "2.14"}, "inputs": inputs,
            "volatile": Volatile(threads=1, platform="Linux x86_64", commit="c" * 40),
            "remarks": [Remark(about="twin_s", text="all")],
        }  # fmt: skip
        return record(seed, {"x": number(1)}, **{**base, **changes})

    book = [made(0), made(1), made(2, remarks=[Remark(about="twin_s", text="once")])]
    same = compare(made(1), book)
    assert same.parameters.empty
    assert same.environment.empty
    assert same.remarks.values.tolist() == [["only in the reference", 1, "twin_s", "once"]]

    other = made(
        7,
        models=[Model(name="twin_s", digest="d" * 64, source={}, device="cuda:0", dtype="float16")],
        versions={"torch": "2.15", "python": "3.12"},
        inputs=made(0).inputs.model_copy(update={"library": "e" * 64}),
        volatile=Volatile(threads=8, platform="Darwin arm64", gpu="H", commit="c" * 40, modified=True),
        remarks=[Remark(about="x", text="new")],
    )
    found = compare(other, book)
    assert found.parameters.values.tolist() == [["seed", "0 or 1 or 2", "7"]]
    assert found.other_question == []
    rows = {name: (book, mine) for name, book, mine in found.environment.itertuples(index=False)}
    assert rows == {
        "torch": ("2.14", "2.15"),
        "python": ("–", "3.12"),
        "device": ("cpu", "cuda:0"),
        "number type": ("float32", "float16"),
        "threads": ("1", "8"),
        "platform": ("Linux x86_64", "Darwin arm64"),
        "GPU": ("none", "H"),
        "weights of twin_s": ("a" * 12, "d" * 12),
        "commit": ("c" * 12, "c" * 12 + " with changes"),
        "library sources": ("b" * 12, "e" * 12),
    }
    assert found.remarks["where"].tolist() == ["only here", "only in the reference", "only in the reference"]
    assert found.remarks["records"].tolist() == [1, 2, 1]

    pictures = compare(made(1, data=[made(2).data[0]]), book).environment
    assert pictures.values.tolist() == [
        ["pictures of emoji (test)", f"600 of 8 classes, {'1' * 12}", f"600 of 8 classes, {'2' * 12}"]
    ]


def test_numbers_that_one_side_lacks_or_measures_in_another_unit():
    mine = record(0, {"x": number(1), "here": number(2), "y": number(0.5, unit="share")})
    book = [record(0, {"x": number(1), "there": number(3), "y": number(50, unit="%")}), record(1)]
    found = compare(mine, book, against="book")
    assert found.numbers[["key", "seeds", "verdict"]].values.tolist() == [["x", 1, "same"]]
    assert found.alone.values.tolist() == [
        ["here", "only here", "2"],
        ["y", "only here", "0.5"],
        ["y", "only in the book", "50"],
        ["there", "only in the book", "3"],
    ]
    assert not found.exceeds


def test_other_parameters_are_another_question():
    mine = record(0, {"x": number(99.5)})
    mine.parameters.update(images=20, device="cuda")
    found = compare(mine, seeds(1.1, 1.2, 1.3))
    assert found.other_question == ["images"]
    assert found.exceeding["key"].tolist() == ["x"]
    assert not found.exceeds
    for said in (compare_report.report(found), compare_report.page(found)):
        assert "The runs differ in images, so these numbers answer another question" in said
        assert "so none counts as exceeding" in said


# --- refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"complete": False}, f"is not complete: .*; `vitscope run {BOOK}` makes one that counts"),
        ({"profile": "smoke"}, "is a smoke run, and smoke numbers are no results; run it with another"),
        ({"format": 2}, "has format 2, expected 1; run it again with this version"),
        ({"numbers": {"x": number(1, 3, 2)}}, r"has x with the interval \(3\.0, 2\.0\) reversed"),
    ],
)
def test_records_that_are_no_results_are_refused_on_either_side(changes, said):
    bad, good = record(0, **changes), record(1, {"x": number(1)})
    for mine, theirs in ((bad, good), (good, [bad])):
        with pytest.raises(CompareError, match=rf"^record {BOOK} \(.*seed 0\) {said}"):
            compare(mine, theirs)


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ([], "there is no record to compare with"),
        ([record(0), record(1, notebook="01_phase_curves")], "several notebooks (01_phase_curves, 02_"),
        ([record(0, notebook="01_phase_curves")], "cannot be compared with records of 01_phase_curves; exp"),
        ([record(1), record(1)], "seed 1) is there twice; one record a seed counts"),
        (
            [record(0), record(1, parameters={"profile": "course", "images": 20, "seed": 1})],
            "seed 1) differ in images; references may differ in seed and device only",
        ),
    ],
)
def test_references_that_do_not_repeat_one_experiment_are_refused(theirs, said):
    with pytest.raises(CompareError) as error:
        compare(record(0), theirs)
    assert said in str(error.value)


def written(path: Path, content: Record | str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content.model_dump_json() if isinstance(content, Record) else content
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", "{", "is not JSON (Expecting property name"),
        ("a.json", b"\xff\xfe\x00", "is not JSON ('utf-8' codec can't decode"),
        ("a.json", "[" * 100_000, "is not JSON ("),
        ("a.json", "[1, 2]", "is JSON, but no record; expected the record.json of a run"),
        ("a.json", '{"numbers": {}}', "is JSON, but no record"),
        (
            "a.json",
            '{"format": 7, "notebook": "x", "parameters": {}, "numbers": {}}',
            "has format 7, expected 1",
        ),
        (
            "a.json",
            '{"format": 1, "notebook": "x", "parameters": {}, "numbers": {}}',
            "is no record of this version: it lacks complete, profile; run it again with this version",
        ),
        (
            "a.json",
            record(0).model_dump_json().replace('"remarks":[]', '"remarks":[],"verdict":"reproduced"'),
            "is no record of this version: it has the unknown verdict; run it again",
        ),
        ("x.failed.ipynb", "{}", "is what a failed run left; expected the record.json"),
        ("x.ipynb", "{}", "is a notebook; expected the record.json"),
        ("a.json", record(0, complete=False), "is not complete"),
        ("a.json", record(0, profile="smoke"), "smoke numbers are no results"),
    ],
)
def test_files_that_are_refused(tmp_path, name, content, said):
    with pytest.raises(CompareError) as error:
        compare_sources.find(written(tmp_path / name, content))
    assert said in str(error.value)


def test_folders_and_names_that_are_refused(tmp_path):
    with pytest.raises(CompareError, match=r"expected a record\.json, the folder of a run, or the name of"):
        compare_sources.find(str(tmp_path / "nowhere"))
    with pytest.raises(CompareError, match=r"there is no nowhere\.json"):
        compare_sources.find("nowhere.json")
    with pytest.raises(CompareError, match=r"no record\.json in .*; expected the folder of one run"):
        compare_sources.find(str(tmp_path))
    written(tmp_path / "x.failed.ipynb", "{}")
    with pytest.raises(CompareError, match=r"failed and has no record; x\.failed\.ipynb in it shows why"):
        compare_sources.find(str(tmp_path))
    with pytest.raises(CompareError, match=r"no record in .*; expected files like record\.json"):
        compare_sources.references(record(), tmp_path)
    with pytest.raises(UnknownName, match="Did you mean '02_information_scrambling'"):
        compare_sources.find("02_information_scramblin")


# --- where records are -----------------------------------------------------------------------------------


def test_a_chapter_means_its_newest_finished_run(tmp_path, monkeypatch):
    for name in ("_toc.yml", "_config.yml", f"notebooks/{BOOK}.ipynb", "notebooks/other.ipynb"):
        written(tmp_path / name, "root: x")
    monkeypatch.chdir(tmp_path)

    def run(key: str, started: str, **changes: Any) -> None:
        folder = tmp_path / ".vitscope" / "runs" / BOOK / key
        executed = Path(written(folder / f"{BOOK}.ipynb", "{}"))
        volatile = Volatile(started=started, notebook_sha256=sha256_file(executed))
        written(folder / "record.json", record(0, **{"key": key, "volatile": volatile, **changes}))

    with pytest.raises(CompareError, match="has no finished run here, smoke runs aside; `vitscope run 02"):
        compare_sources.find(BOOK)
    run("old", "2026-01-01")
    run("new", "2026-03-01")
    run("newer-smoke", "2026-04-01", profile="smoke")
    run("newer-incomplete", "2026-05-01", complete=False)
    assert compare_sources.find(BOOK).key == "new"
    assert compare_sources.find(str(tmp_path / ".vitscope" / "runs" / BOOK / "old")).key == "old"


def test_references_are_the_published_ones_of_notebook_and_profile(monkeypatch, tmp_path):
    published = [*seeds(1, 2, 3), record(0, profile="paper"), record(0, notebook="01_phase_curves")]
    monkeypatch.setattr(claims, "published_records", lambda: published)
    assert compare_sources.references(record(9)) == published[:3]
    assert compare_sources.references(record(9, profile="paper")) == published[3:4]
    assert compare_sources.references(record(9, profile="colab")) == published[:3]
    with pytest.raises(
        CompareError, match=f"no records of zoo_appendix are published; .*: 01_phase.*, {BOOK}"
    ):
        compare_sources.references(record(9, notebook="zoo_appendix"))
    for i, one in enumerate(published[:2]):
        written(tmp_path / "gathered" / f"{i}.json", one)
        written(tmp_path / "runs" / str(i) / "record.json", one)
    for folder in ("gathered", "runs"):
        assert compare_sources.references(record(9), tmp_path / folder) == published[:2]
    assert compare_sources.references(record(9), tmp_path / "gathered" / "1.json") == published[1:2]


# --- shown -----------------------------------------------------------------------------------------------

EVIL = "<script>alert('x')</script>"


def test_every_text_of_a_record_is_escaped_and_no_control_character_reaches_a_terminal():
    mine = record(
        0,
        {EVIL: number(1, text=EVIL), "x": number(900.5, unit=EVIL)},
        key=EVIL,
        versions={EVIL: EVIL},
        remarks=[Remark(about=EVIL, text=f"{EVIL}\x1b[31m\nline")],
        models=[Model(name=EVIL, digest=EVIL, source={}, device=EVIL, dtype=EVIL)],
        volatile=Volatile(platform=EVIL, commit=EVIL),
    )
    mine.parameters.update({EVIL: EVIL})
    theirs = record(1, {"x": number(1.5, unit=EVIL)})
    found = compare(mine, theirs)
    page = compare_report.page(found, every=True)
    assert page.count("&lt;script&gt;") > 12
    assert "<script" not in page
    assert 'src="' not in page.replace('href="data:', "")
    text = compare_report.report(found)
    assert "\x1b" not in text
    assert "[31m line" in text


def test_the_page_is_whole_and_states_the_rule():
    page = compare_report.page(compare(record(5, {"x": number(9.5)}), seeds(1.1, 1.2, 1.3), against="book"))
    assert page.startswith("<!doctype html>")
    for part in (
        '<html lang="en">', 'name="viewport"', "prefers-color-scheme:dark", compare_report.RULE.split(".")[0],
        'data-label="allowance"', "prediction interval", '<tr role="row" class=exceeds>', "numbers.csv",
    ):  # fmt: skip
        assert part in page
    assert "http" not in page


def test_the_report_goes_from_what_was_compared_to_the_counts():
    def made(seed: int, x: float) -> Record:
        return record(seed, {"x": number(x, unit="%"), "n": number(3)})

    found = compare(made(5, 9.5), [made(i, v) for i, v in enumerate((1.1, 1.2, 1.3))], against="book")
    lines = compare_report.report(found).splitlines()
    assert lines[0] == f"Mine: {BOOK} · course · seed 5 · run key5"
    assert lines[1] == "Book: course · 3 records · seed 0, 1, 2 · run key0, key1, key2"
    table = lines[lines.index("Numbers that differ beyond tolerance") + 1 :]
    assert table[0].split() == ["number", "book", "mine", "difference", "allowance", "verdict", "why"]
    half = factor(3) * stdev((1.1, 1.2, 1.3))
    assert table[1].split() == [
        "x", "1.2", "%", "(1.1", "to", "1.3)", "9.5", "%", "+8.3", f"{half:.2g}", "outside",
        *f"not in {1.2 - half:.4g} to {1.2 + half:.4g}; no intervals on both sides".split(),
    ]  # fmt: skip
    assert table[2] == ""
    assert lines[-1] == (
        "Of 2 numbers that both have: 1 same; 1 outside; only here: 0; only in the book: 0. 1 exceeds."
    )
    assert any(line.startswith("n ") for line in compare_report.report(found, every=True).splitlines())


def test_a_run_that_is_published_is_known_and_the_same():
    found = compare(SHIPPED[0], [one for one in SHIPPED if one.notebook == SHIPPED[0].notebook])
    assert set(found.numbers["verdict"]) == {"same"}
    assert "mine is one of them" in compare_report.report(found)


@pytest.mark.parametrize("notebook", sorted({one.notebook for one in SHIPPED}))
def test_every_shipped_record_can_be_compared_with_the_others_of_its_chapter(notebook):
    ours = [one for one in SHIPPED if one.notebook == notebook]
    for one in ours:
        found = compare(one, [other for other in ours if other is not one])
        assert found.other_question == []
        assert len(found.numbers) == len(one.numbers)
        assert "numbers that both have" in compare_report.report(found, every=True)
        assert compare_report.page(found).endswith("</html>\n")


# --- the command -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "changes", "code", "said"),
    [
        (number(1.2), {}, 0, "1 same"),
        (number(9.5), {}, 1, "1 exceeds."),
        (number(None), {}, 1, "not detected here"),
        (number(9.5), {"parameters": {"profile": "course", "images": 20, "seed": 5}}, 0, "another question"),
        (number(9.5), {"profile": "smoke"}, 2, "smoke numbers are no results"),
        (number(9.5), {"notebook": "zoo_appendix"}, 2, "no records of zoo_appendix are published"),
    ],
)
def test_exit_status(tmp_path, monkeypatch, mine, changes, code, said):
    monkeypatch.setattr(claims, "published_records", lambda: seeds(1.1, 1.2, 1.3))
    path = written(tmp_path / "record.json", record(5, {"x": mine}, **changes))
    result = CliRunner().invoke(cli.app, ["compare", path])
    assert result.exit_code == code, result.output
    assert said in result.output
    assert "Traceback" not in result.output


def test_command_with_references_of_ones_own_and_a_page(tmp_path):
    path = written(tmp_path / "mine.json", record(5, {"x": number(1.25)}))
    for i, one in enumerate(seeds(1.1, 1.2, 1.3)):
        written(tmp_path / "own" / f"{i}.json", one)
    page = tmp_path / "page.html"
    arguments = ["compare", path, "--with", str(tmp_path / "own")]
    result = CliRunner().invoke(cli.app, [*arguments, "--all", "--html", str(page)])
    assert result.exit_code == 0, result.output
    assert "Reference: course · 3 records" in result.output
    assert "All numbers" in result.output
    assert "All numbers" in page.read_text(encoding="utf-8")
    for target, said in ((path, "ends in .html"), (str(tmp_path / "no" / "x.html"), "cannot be written")):
        refused = CliRunner().invoke(cli.app, [*arguments, "--html", target])
        assert refused.exit_code == 2
        assert said in refused.output
    assert json.loads(Path(path).read_text(encoding="utf-8"))["notebook"] == BOOK


def test_compare_is_a_public_name_that_stays_a_function_and_needs_no_torch():
    code = """
import sys
from vitscope import runs
import vitscope.runs.compare_report, vitscope.runs.compare_sources
assert callable(runs.compare) and runs.compare is runs.compare and "compare" in runs.__all__
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
