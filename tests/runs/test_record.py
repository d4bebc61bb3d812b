"""Records from elsewhere: what is read, and every reason for which a file is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vitscope.runs import record as records
from vitscope.runs.record import Number, Record, RecordError, Volatile

GOOD = Record(
    complete=True,
    notebook="04_vfusion",
    profile="course",
    parameters={"profile": "course", "seed": 0},
    numbers={"gain": Number(value=1.5, spread=(1.0, 2.0), text="1.5")},
)


def content() -> dict:
    return json.loads(GOOD.model_dump_json())


def written(folder: Path, made: object) -> Path:
    path = folder / "record.json"
    path.write_text(made if isinstance(made, str) else json.dumps(made), encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(RecordError) as error:
        records.read(path)
    assert str(error.value).startswith(f"{path} ")
    return str(error.value).removeprefix(f"{path} ")


def test_what_a_run_saved_is_read(tmp_path):
    GOOD.save(tmp_path)
    assert records.read(tmp_path / "record.json") == GOOD


def test_records_from_before_a_volatile_fact_was_written_down_are_read(tmp_path):
    old = content()
    for name in ("features_computed", "features_found", "processor"):
        assert old["volatile"].pop(name) is None
    assert records.read(written(tmp_path, old)) == GOOD


def test_volatile_facts_do_not_tell_two_runs_apart():
    other = GOOD.model_copy(update={"volatile": Volatile(features_found=7, processor="x", seconds=3)})
    assert other.stable() == GOOD.stable()


@pytest.mark.parametrize("name", ["format", "complete", "notebook", "profile", "parameters", "numbers"])
def test_missing_keys_are_named(tmp_path, name):
    made = content()
    del made[name]
    expected = "is JSON, but no record" if name == "notebook" else f"it lacks {name}; run it again"
    assert expected in refusal(written(tmp_path, made))


def test_missing_and_unknown_keys_are_named_together(tmp_path):
    made = content() | {"verdict": "reproduced"}
    del made["profile"], made["complete"]
    made["numbers"]["gain"]["p"] = 0.05
    made["numbers"]["gain"]["value"] = "much"
    said = refusal(written(tmp_path, made))
    assert said.startswith("is no record of this version: it lacks complete, profile; ")
    assert "it has the unknown numbers.gain.p, verdict; " in said
    assert "it has numbers.gain.value" in said
    assert said.endswith("; run it again with this version of vitscope")


@pytest.mark.parametrize("value", ["NaN", "Infinity"])
def test_numbers_that_are_none_are_refused(tmp_path, value):
    text = GOOD.model_dump_json().replace('"value":1.5', f'"value":{value}')
    assert "numbers.gain.value" in refusal(written(tmp_path, text))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("{", "is not JSON ("),
        ("[]", "is JSON, but no record; expected the record.json of a run"),
        (content() | {"format": 2}, "has format 2, expected 1; run it again with this version of vitscope"),
        (content() | {"format": 2, "new": 1, "profile": None}, "has format 2, expected 1"),
        (content() | {"format": None}, "has format None, expected 1"),
    ],
)
def test_other_files_and_formats(tmp_path, made, said):
    assert refusal(written(tmp_path, made)).startswith(said)


def test_a_file_that_is_not_there(tmp_path):
    assert refusal(tmp_path / "record.json") == (
        "cannot be read (No such file or directory); expected a record.json"
    )
