"""What a sweep writes down: whole files, refused by name where they are not, and the table of a number."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vitscope.errors import UnknownName
from vitscope.sweeps import SweepError, read, results, table

NUMBERS = [
    results.number_row("accuracy", 80.5, text="80.5", n=400, unit="%", interval=(77.0, 84.0)),
    results.number_row("loss", 0.25, spread=0.01),
    results.number_row("gap", None, text="not measured"),
]


def said(identity: str = "abc", state: str = "done", **given):
    return {
        "task": identity, "sweep": "fit", "profile": "smoke", "given": given, "key": "k", "state": state,
        "message": "", "seconds": 1.5, "worker": "0", "commit": None, "versions": {"torch": "2"},
        "parameters": {"seed": 0, "heads": ["VFusion"]},
    }  # fmt: skip


def test_rows_come_back_as_they_were_written(tmp_path):
    path = results.write(tmp_path, said(backbone="twin_s", seed=3), NUMBERS)
    assert path.name == "abc.parquet"
    found = read(tmp_path)
    assert list(found["name"]) == ["accuracy", "loss", "gap"]
    first = found.iloc[0]
    assert (first["backbone"], first["seed"], first["profile"], first["key"]) == ("twin_s", 3, "smoke", "k")
    assert (first["value"], first["low"], first["high"], first["n"], first["unit"]) == (
        80.5,
        77,
        84,
        400,
        "%",
    )
    assert first["parameters"] == {"seed": 0, "heads": ["VFusion"]}
    assert first["versions"] == {"torch": "2"}
    assert pd.isna(found.iloc[2]["value"])
    assert found.iloc[1]["spread"] == 0.01
    assert list(found.columns[:3]) == ["backbone", "seed", "task"]


def test_a_task_without_numbers_has_one_row(tmp_path):
    results.write(tmp_path, said(state="failed", seed=0), [])
    found = read(tmp_path)
    assert len(found) == 1
    assert found.iloc[0]["state"] == "failed"
    assert pd.isna(found.iloc[0]["name"])


def test_writing_again_replaces(tmp_path):
    results.write(tmp_path, said(state="failed", seed=0), [])
    results.write(tmp_path, said(seed=0), NUMBERS[:1])
    assert list(read(tmp_path)["state"]) == ["done"]


def test_a_writer_that_fails_leaves_the_earlier_file_and_no_other(tmp_path, monkeypatch):
    path = results.write(tmp_path, said(seed=0), NUMBERS[:1])
    before = path.read_bytes()

    def half(table, where):
        where.write_bytes(before[:40])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", half)
    with pytest.raises(OSError, match="No space left"):
        results.write(tmp_path, said(seed=0), NUMBERS)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


@pytest.mark.parametrize("cut", [0, 10, -1, -9])
def test_a_damaged_file_is_refused_by_name(tmp_path, cut):
    results.write(tmp_path, said("whole", seed=0), NUMBERS)
    path = results.write(tmp_path, said("torn", seed=1), NUMBERS)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(SweepError, match=r"torn\.parquet cannot be read .*run the sweep again"):
        read(tmp_path)


def test_foreign_files_are_refused_by_name(tmp_path):
    results.write(tmp_path, said(seed=0), NUMBERS)
    (tmp_path / ".lock").touch()  # hidden files do not count
    read(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SweepError, match=r"notes\.txt is no result of a sweep; move it out of"):
        read(tmp_path)


def test_parquet_of_others_and_of_other_versions_is_refused_by_name(tmp_path):
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"a": [1]}), foreign)
    with pytest.raises(SweepError, match=r"foreign\.parquet is no result of a sweep, expected format 1"):
        read(tmp_path)
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({"vitscope.sweep": "7"}), foreign)
    with pytest.raises(SweepError, match=r"foreign\.parquet has format 7, expected format 1; move it out"):
        read(tmp_path)
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({"vitscope.sweep": "1"}), foreign)
    with pytest.raises(SweepError, match=r"foreign\.parquet lacks columns or rows"):
        read(tmp_path)


@pytest.mark.parametrize("folder", ["empty", "not there"])
def test_no_results_are_said(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SweepError, match=f"no results in .*{folder}; expected the folder that a grid names"):
        read(tmp_path / folder)


def test_a_parameter_named_as_a_column_is_refused(tmp_path):
    results.write(tmp_path, said(seed=0, unit="m"), NUMBERS)
    with pytest.raises(SweepError, match="parameters named as columns of the results: unit"):
        read(tmp_path)


@pytest.fixture
def found(tmp_path):
    """Two backbones, two datasets, three seeds: value = 10 backbone + dataset + seed / 10."""
    for b, backbone in enumerate(("twin_s", "twin_b"), 1):
        for d, dataset in enumerate(("digits", "fashion")):
            for seed in range(3):
                number = results.number_row(f"accuracy_{backbone}", 10 * b + d + seed / 10)
                same = results.number_row("accuracy", 10 * b + d + seed / 10)
                task = said(f"{b}{d}{seed}", backbone=backbone, dataset=dataset, seed=seed)
                results.write(tmp_path, task, [number, same])
    results.write(tmp_path, said("bad", "failed", backbone="depth_06", dataset="digits", seed=0), [])
    return read(tmp_path)


def test_the_table_is_mean_and_range_over_seeds(found):
    shown = table(found, "accuracy")
    assert list(shown.index) == ["twin_b", "twin_s"]
    assert list(shown.columns) == ["digits", "fashion"]
    assert shown.loc["twin_s", "digits"] == "10.1 (10.0 to 10.2)"
    assert shown.loc["twin_b", "fashion"] == "21.1 (21.0 to 21.2)"


def test_the_table_takes_other_parameters_and_digits(found):
    shown = table(found, "accuracy", rows="seed", columns="backbone", digits=2)
    assert list(shown.index) == ["0", "1", "2"]
    assert shown.loc["1", "twin_s"] == "10.60 (10.10 to 11.10)"


def test_a_number_may_name_a_parameter(found):
    assert table(found, "accuracy_{backbone}").equals(table(found, "accuracy"))


def test_a_single_value_has_no_range_and_an_unmeasured_one_is_none(tmp_path):
    results.write(tmp_path, said("one", backbone="twin_s", seed=0), NUMBERS)
    shown = table(read(tmp_path), "accuracy")
    assert shown.to_dict() == {"accuracy": {"twin_s": "80.5"}}
    assert table(read(tmp_path), "gap").loc["twin_s", "gap"] == "none"


@pytest.mark.parametrize(
    ("number", "options", "message"),
    [
        ("acuracy", {}, "Unknown number 'acuracy'. Did you mean 'accuracy'"),
        (
            "accuracy",
            {"rows": "backbon"},
            "Unknown parameter of the sweep 'backbon'. Did you mean 'backbone'",
        ),
        ("accuracy", {"columns": "sed"}, "Unknown parameter of the sweep 'sed'. Did you mean 'seed'"),
        ("accuracy_{backbon}", {}, "Unknown parameter of the sweep 'backbon'. Did you mean 'backbone'"),
    ],
)
def test_unknown_names_are_met_with_near_ones(found, number, options, message):
    with pytest.raises(UnknownName) as caught:
        table(found, number, **options)
    assert str(caught.value).startswith(message)


def test_braces_that_do_not_close_are_a_name_like_any_other(found):
    with pytest.raises(UnknownName, match="Unknown number"):
        table(found, "accuracy_{backbone")
