"""Records at the papers' scale, planted beside the published ones: admitted, judged apart, never mixed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vitscope import cli, scorecard, scorecard_noise
from vitscope.data import embedded
from vitscope.runs import claim_badges, claims, compare_sources, run_statistics, verdicts
from vitscope.runs.claims import ClaimError
from vitscope.runs.compare_runs import CompareError, compare
from vitscope.runs.record import Model, Number, Record
from vitscope.runs.schema import resolve

CHAPTER = "02_information_scrambling"
SHIPPED = claims.published_records()
LEDGER = claims.load()
ASKED = [c for c in LEDGER.claims if c.settings["paper"].notebook == CHAPTER]
BEFORE = {v.id: v for v in verdicts.verdicts(LEDGER, SHIPPED) if v.setting == "twin"}


def paper_record(seed: int, **changes) -> Record:
    """What a run of the chapter with the profile `paper` on a GPU would leave: every key asked for."""
    parameters = resolve(CHAPTER, "paper", {"seed": seed, "device": "cuda"})
    settings = [claim.settings["paper"] for claim in ASKED]
    keys = {s.fill(key) for s in settings for clause in s.clauses for key in clause.keys}
    models = sorted({name for s in settings for name in s.models.values()})
    values = {
        "complete": True,
        "notebook": CHAPTER,
        "profile": "paper",
        "key": f"planted{seed}",
        "parameters": parameters.model_dump(mode="json"),
        "changed": parameters.changed(),
        "numbers": {key: Number(value=3, n=3, spread=(2.9, 3.1), text="3") for key in sorted(keys)},
        "models": [Model(name=m, digest=m * 2, source={}, device="cuda:0", dtype="float32") for m in models],
    }
    return Record(**{**values, **changes})


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """The ledger and the published records with three of the profile `paper` among them."""
    shutil.copy(claims._root() / "claims.yml", tmp_path)
    shutil.copytree(claims._root() / "records", tmp_path / "records")
    for seed in range(3):
        write(tmp_path / "records" / f"{CHAPTER}-paper-seed{seed}.json", paper_record(seed))
    monkeypatch.setattr(embedded, "root", lambda: tmp_path)
    return tmp_path / "records"


def write(path: Path, record: Record) -> None:
    path.write_text(record.model_dump_json(), encoding="utf-8")


def test_only_seed_and_device_differ_from_the_profile():
    assert set(paper_record(1).changed) == {"seed", "device"}


def test_they_are_judged_in_the_setting_of_the_papers_alone(planted):
    found = verdicts.verdicts(claims.load(), claims.published_records())
    twin = {v.id: v for v in found if v.setting == "twin"}
    assert twin == BEFORE
    paper = {v.id: v for v in found if v.setting == "paper"}
    asked = {claim.id for claim in ASKED}
    assert {id for id, v in paper.items() if v.seeds} == asked
    assert all(paper[id].seeds == (0, 1, 2) for id in asked)
    assert all(v.verdict == "not attempted" for id, v in paper.items() if id not in asked)
    readings = [r for id in asked for j in paper[id].clauses for r in j.readings]
    assert {r.value for r in readings} <= {0.0, 3.0}, "numbers of a twin's record were read"


def test_badges_and_scorecard_tell_both(planted):
    one = ASKED[0].id
    badge = claim_badges.badges()[one]
    assert badge.decision == BEFORE[one].verdict
    assert "papers' scale: " in badge.title
    assert badge.title.endswith("over 3 seeds")
    ledger, seen = claims.load(), claims.published_records()
    found = verdicts.verdicts(ledger, seen)
    assert scorecard.first_screen(ledger, found, "twin")["attempted_paper"]["value"] == len(ASKED)
    assert scorecard_noise.bare(ledger, seen, "twin") == scorecard_noise.bare(LEDGER, SHIPPED, "twin")


def test_one_or_two_seeds_decide_nothing(planted):
    (planted / f"{CHAPTER}-paper-seed2.json").unlink()
    found = verdicts.verdicts(claims.load(), claims.published_records())
    assert {v.verdict for v in found if v.setting == "paper" and v.seeds} == {"inconclusive"}


def test_comparisons_stay_within_a_profile(planted):
    published = claims.published_records()
    twin = next(r for r in published if r.notebook == CHAPTER and r.profile == "course")
    assert {r.profile for r in compare_sources.references(twin)} == {"course"}
    mine = paper_record(7)
    theirs = compare_sources.references(mine)
    assert [r.profile for r in theirs] == ["paper"] * 3
    assert compare(mine, theirs).other_question == []
    other = twin.model_copy(update={"parameters": {**twin.parameters, "seed": 9}})
    with pytest.raises(CompareError, match=r"differ in .*profile.*; references may differ in seed and"):
        compare(mine, [theirs[0], other])


def test_they_stand_in_the_table_of_published_records(planted):
    table = run_statistics.published(claims.published_records())
    ours = table[(table["notebook"] == CHAPTER) & (table["profile"] == "paper")]
    assert ours["seed"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"changed": {"dataset": "cifar100"}},
            r"answers no claim with its changed parameters \(dataset=",
        ),
        ({"complete": False}, "is not complete"),
        ({"profile": "course"}, "has the profile paper among its parameters"),
        ({"numbers": {}}, rf"claim \w+, record {CHAPTER} \(paper, seed 3\): Unknown key"),
        (
            {"models": [m.model_copy(update={"digest": "other"}) for m in paper_record(3).models]},
            "saw different weights of",
        ),
    ],
)
def test_a_pull_request_that_must_not_pass(planted, changes, said):
    write(planted / f"{CHAPTER}-paper-seed3.json", paper_record(3, **changes))
    with pytest.raises(ClaimError, match=said):
        verdicts.verdicts(claims.load(), claims.published_records())


def test_the_command_judges_a_folder_of_them(tmp_path):
    for seed in range(3):
        write(tmp_path / f"{CHAPTER}-paper-seed{seed}.json", paper_record(seed))
    arguments = ["claims", "--records", str(tmp_path), "--setting"]
    said = CliRunner().invoke(cli.app, [*arguments, "paper"])
    assert said.exit_code == 0, said.output
    assert f"{len(LEDGER.claims) - len(ASKED)} not attempted" in said.output
    twin = CliRunner().invoke(cli.app, [*arguments, "twin"])
    assert f"{len(LEDGER.claims)} not attempted" in twin.output
    (tmp_path / "bad.json").write_text(paper_record(3).model_dump_json().replace('"format":1', '"format":2'))
    refused = CliRunner().invoke(cli.app, [*arguments, "paper"])
    assert refused.exit_code == 2
    assert "bad.json has format 2, expected 1; run it again" in refused.output
