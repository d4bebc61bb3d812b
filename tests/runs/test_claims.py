"""The ledger: its schema, what it refuses, and that the shipped one is whole."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import nbformat
import pytest
import yaml

from vitscope.errors import UnknownName
from vitscope.pretrain.recipes import RECIPES
from vitscope.runs import claims
from vitscope.runs.claims import ClaimError
from vitscope.runs.layout import Project
from vitscope.runs.record import NAME_PATTERN, Record
from vitscope.runs.schema import SCHEMAS, resolve

LEDGER = claims.load()
WRITTEN = [
    *(f"A{n}" for n in range(1, 15)),
    *(f"B{n}" for n in range(1, 18)),
    *(f"C{n}" for n in range(1, 13)),
]

# What chapter 08 reports per annotated set and model.
DENSE_MEASURES = ["miou_gain", "miou_gain_relative", "miou_lead", "rmse_change", "rmse_fall_relative"]
DENSE_SETS = ["scenes", "scenes_fine", "scenes_single", "voc", "ade20k", "cityscapes"]
DENSE_SETS += ["nyuv2", "sunrgbd", "kitti"]

# What the chapters report, per model and over models.
PER_MODEL = {
    "01_phase_curves": (
        "cliff after_pe plateau_length patch_minus_cls patch_late_fall cls_fall accuracy best_probe"
    ),
    "02_information_scrambling": (
        "onset isi_last isi_upper isi_band_low isi_band_high isi_half useful_depth unused_depth nc1_last "
        "nc2_last cls_centrality task_accuracy"
    ),
    "03_recoverability": "",
    "04_vfusion": "gain_over_best",
    "05_vfusion_ablations": "gain",
    "06_shift": "",
    "07_semantic_diffusion": "pib_shallow_minus_deep miou_deep_minus_shallow cls_gain",
    "08_entmax_attention": (
        "added_parameters registers images_seen top1_gain top1_lead "
        + " ".join(f"{measure}.{name}" for measure in DENSE_MEASURES for name in DENSE_SETS)
    ),
}
OVER_MODELS = {
    "01_phase_curves": "three_phases three_phases_probe",
    "02_information_scrambling": "isi_attention_pattern centrality_accuracy",
    "03_recoverability": (
        "recovery_least recovery_most entropy_relation entropy_relation_partial disagreement_relation "
        "disagreement_relation_partial"
    ),
    "04_vfusion": (
        "tasks gain_over_best gain_over_super_learner gain_over_best_rival gap_closed accuracy_mean.vfusion"
    ),
    "05_vfusion_ablations": (
        "last_half_minus_holistic strided_minus_holistic hfusion_minus_vfusion vfusion_minus_super_learner"
    ),
    "06_shift": "shifted_sets gain_most",
    "07_semantic_diffusion": "",
    "08_entmax_attention": "",
}
# What chapter 06 reports per method, and per shifted set.
SHIFT_METHODS = ("lastlayer", "bestlayer", "logitaverage", "concatlinear", "superlearner", "vfusion")
SHIFT_SETS = ("emoji_novel-c", "cifar100-c")

GOOD = {
    "format": 1,
    "claims": [
        {
            "id": "B3",
            "paper": "B",
            "statement": "Fusion wins.",
            "published": {"text": "91.4", "unit": "%", "value": 91.4},
            "grade": "BRIEF",
            "conditions": "16 sets",
            "section": "04_vfusion#result",
            "note": "Other sets.",
            "settings": {
                name: {
                    "models": {"S": model},
                    "notebook": "04_vfusion",
                    "profile": profile,
                    "clauses": [{"says": "it wins", "value": "gain.{S}", "rule": {"sign": "positive"}}],
                }
                for name, model, profile in (("twin", "twin_s", "course"), ("paper", "vit_s", "paper"))
            },
        }
    ],
}


def write(folder: Path, content: object) -> Path:
    path = folder / "claims.yml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path


def with_clause(**changes: object) -> dict:
    content = copy.deepcopy(GOOD)
    content["claims"][0]["settings"]["twin"]["clauses"][0].update(changes)
    return content


def settings():
    return [(claim, name, s) for claim in LEDGER.claims for name, s in claim.settings.items()]


# --- the shipped ledger ----------------------------------------------------------------------------------


def test_every_claim_of_the_papers_is_there_once_in_order():
    assert [claim.id for claim in LEDGER.claims] == WRITTEN


def test_settings_name_models_that_exist():
    for claim, name, setting in settings():
        assert setting.profile == {"twin": "course", "paper": "paper"}[name], claim.id
        shown = resolve(setting.notebook, setting.profile)
        named = [Path(name).stem if name.endswith(".safetensors") else name for name in shown.backbones]
        for other in ("depth_series", "repeats", "self_supervised"):
            named += getattr(shown, other, [])
        assert set(setting.models.values()) <= set(named), claim.id
        if name == "twin":
            assert set(setting.models.values()) <= set(RECIPES), claim.id


def test_every_key_is_well_formed_and_one_that_its_chapter_reports():
    for claim, _, setting in settings():
        known = set(OVER_MODELS[setting.notebook].split())
        for measure in PER_MODEL[setting.notebook].split():
            known |= {f"{measure}.{model}" for model in setting.models.values()}
        if setting.notebook == "06_shift":
            known |= {f"accuracy_mean.{method}" for method in SHIFT_METHODS}
            known |= {f"{method}.{name}" for method in ("best", "vfusion", "oracle") for name in SHIFT_SETS}
        for clause in setting.clauses:
            for key in clause.keys:
                assert re.match(NAME_PATTERN, setting.fill(key)), (claim.id, key)
                assert setting.fill(key) in known, (claim.id, key)


def test_every_key_of_the_twins_is_in_every_published_record_of_its_notebook():
    published = claims.published_records()
    for claim in LEDGER.claims:
        setting = claim.settings["twin"]
        keys = {setting.fill(key) for clause in setting.clauses for key in clause.keys}
        ours = [r for r in published if (r.notebook, r.profile) == (setting.notebook, setting.profile)]
        assert len({r.parameters["seed"] for r in ours}) >= 3, claim.id
        for record in ours:
            assert keys <= set(record.numbers), (claim.id, sorted(keys - set(record.numbers)))


def test_keys_of_the_papers_scale_are_measures_that_their_notebook_reports():
    published = claims.published_records()
    for claim in LEDGER.claims:
        twin, paper = claim.settings["twin"], claim.settings["paper"]
        reported = {key for r in published if r.notebook == paper.notebook for key in r.numbers}
        for key in (key for clause in paper.clauses for key in clause.keys):
            roles = set(re.findall(r"\{([^{}]*)\}", key))
            if not roles <= set(twin.models) or twin.fill(key) not in reported:
                # a model without a twin, or other pictures: the measure must be one that the notebook reports
                assert any(name.startswith(key.split(".")[0] + ".") for name in reported), (claim.id, key)


def test_paper_clauses_are_the_twin_clauses_without_the_depth_series():
    for claim in LEDGER.claims:
        twin, paper = claim.settings["twin"], claim.settings["paper"]
        assert paper.notebook == twin.notebook
        if claim.paper == "A":
            depth_free = [c for c in twin.clauses if not any("{D" in key for key in c.keys)]
            assert paper.clauses == depth_free, claim.id


def test_the_twins_of_paper_b_leave_out_levels_and_what_has_no_twin():
    differing = {
        claim.id
        for claim in LEDGER.claims
        if claim.paper == "B" and claim.settings["paper"].clauses != claim.settings["twin"].clauses
    }
    assert differing == {"B1", "B3", "B7", "B15", "B16"}
    for id in ("B3", "B7"):
        twin, paper = (LEDGER.claim(id).settings[name].clauses for name in ("twin", "paper"))
        assert paper[: len(twin)] == twin
        assert [c.rule.target for c in paper[len(twin) :]] == [
            (LEDGER.claim(id).published.value - 2, LEDGER.claim(id).published.value + 2)
        ]


def test_pages_and_anchors_that_claims_point_to_exist():
    notebooks = Project.find(Path(__file__).parent).root / "notebooks"
    for claim in LEDGER.claims:
        page, _, anchor = claim.section.partition("#")
        assert {page} == {s.notebook for s in claim.settings.values()}, claim.id
        assert page in SCHEMAS, claim.id
        cells = nbformat.read(notebooks / f"{page}.ipynb", as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^a-z0-9 -]", "", h.lower()).strip().replace(" ", "-") for h in headings}
        assert not anchor or anchor in anchors, (claim.id, sorted(anchors))


def test_published_numbers_agree_with_their_text():
    for claim in LEDGER.claims:
        value = claim.published.value
        for number in [] if value is None else value if isinstance(value, list) else [value]:
            shown = re.findall(r"[−-]?\d+(?:\.\d+)?", claim.published.text)
            assert float(number) in [float(s.replace("−", "-")) for s in shown], claim.id


def test_published_records_carry_the_names_of_what_they_are():
    folder = claims._root() / "records"
    names = {"course": "twin", "paper": "paper"}
    for path in folder.glob("*.json"):
        record = Record.model_validate_json(path.read_text(encoding="utf-8"))
        seed = record.parameters["seed"]
        assert path.stem == f"{record.notebook}-{names[record.profile]}-seed{seed}"
    assert len(claims.published_records()) == len(list(folder.glob("*.json")))


# --- what a ledger may not be ----------------------------------------------------------------------------


def test_a_good_ledger_loads(tmp_path):
    ledger = claims.load(write(tmp_path, GOOD))
    clause = ledger.claim("B3").settings["twin"].clauses[0]
    assert ledger.claim("B3").settings["twin"].fill(clause.keys[0]) == "gain.twin_s"
    with pytest.raises(UnknownName, match=r"Unknown claim 'B33'\. Did you mean 'B3'"):
        ledger.claim("B33")


@pytest.mark.parametrize(
    ("rule", "target"),
    [
        ({"range": [None, 2]}, (float("-inf"), 2)),
        ({"range": [0, None]}, (0, float("inf"))),
        ({"near": {"value": 10, "within": 3}}, (7, 13)),
        ({"ratio": {"of": 0.022, "within": 2}}, (0.011, 0.044)),
        ({"ratio": {"of": -4, "within": 2}}, (-8, -2)),
    ],
)
def test_targets(tmp_path, rule, target):
    ledger = claims.load(write(tmp_path, with_clause(rule=rule)))
    assert ledger.claims[0].settings["twin"].clauses[0].rule.target == target


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rule": {"sgn": "positive"}}, "unknown rule; expected exactly one of sign, range"),
        ({"rule": {"sign": "positive", "near": {"value": 1, "within": 1}}}, "expected exactly one of"),
        ({"rule": {"sign": "up"}}, "'positive' or 'negative'"),
        ({"rule": {"range": [None, None]}}, "with null for at most one of them"),
        ({"rule": {"range": [2, 1]}}, r"range \[2(.0)?, 1(.0)?\]: expected \[low, high\]"),
        ({"rule": {"range": [1]}}, "at least 2 items"),
        ({"rule": {"near": {"value": 10}}}, "near.within: Field required"),
        ({"rule": {"near": {"value": "10", "within": 1}}}, "valid number"),
        ({"rule": {"ratio": {"of": 0, "within": 2}}}, "a ratio of 0 says nothing"),
        ({"rule": {"ratio": {"of": 1, "within": 1}}}, "greater than 1"),
        ({"rule": {"all": False}}, "Input should be True"),
        ({"rule": {"order": ["a", "b"]}}, "`order` names its keys itself"),
        ({"value": None}, "every other rule needs a `value`"),
        ({"rule": {"all": True}, "value": {"left": "a", "minus": "b"}}, "`all` needs one count"),
        ({"value": "gain.{L}"}, "Unknown role in key 'gain.{L}': 'L'. Available: S"),
        ({"value": "Gain.{S}"}, "key 'Gain.{S}': expected lower-case letters"),
        ({"value": {"left": "a", "minis": "b"}}, "minis: Extra inputs"),
        ({"weight": 2}, "weight: Extra inputs"),
        ({"absent": "holds"}, "'undecided' or 'fails'"),
        ({"value": ""}, "key '': expected lower-case letters"),
        ({"says": ""}, "at least 1 character"),
        ({"rule": None}, "unknown rule; expected exactly one of"),
        ({"rule": {}}, "unknown rule; expected exactly one of"),
    ],
)
def test_clauses_that_are_refused(tmp_path, changes, said):
    with pytest.raises(ClaimError, match=said) as error:
        claims.load(write(tmp_path, with_clause(**changes)))
    assert "claim B3.settings.twin" in str(error.value)


def test_a_clause_without_a_rule_or_without_a_key_and_a_setting_without_clauses(tmp_path):
    for lost, said in (
        ("rule", r"claim B3\.settings\.twin\.clauses\.0\.rule: Field required"),
        ("value", r"claim B3\.settings\.twin\.clauses\.0: .*every other rule needs a `value`"),
        ("says", r"claim B3\.settings\.twin\.clauses\.0\.says: Field required"),
    ):
        content = copy.deepcopy(GOOD)
        del content["claims"][0]["settings"]["twin"]["clauses"][0][lost]
        with pytest.raises(ClaimError, match=said):
            claims.load(write(tmp_path, content))
    content = copy.deepcopy(GOOD)
    content["claims"][0]["settings"]["paper"]["clauses"] = []
    with pytest.raises(ClaimError, match=r"claim B3\.settings\.paper\.clauses: .*at least 1 item"):
        claims.load(write(tmp_path, content))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"notebook": "04_vfuson"},
            r"claim B3\.settings\.twin: Unknown notebook .*Did you mean '04_vfusion'",
        ),
        (
            {"parameters": {"imags": 2}},
            r"claim B3\.settings\.twin: Unknown parameter of 04_vfusion .*'images'",
        ),
        ({"profile": "course2"}, r"claim B3\.settings\.twin\.profile: Input should be 'course'"),
        ({"verdict": "reproduced"}, r"claim B3\.settings\.twin\.verdict: Extra inputs"),
    ],
)
def test_settings_that_are_refused(tmp_path, changes, said):
    content = copy.deepcopy(GOOD)
    content["claims"][0]["settings"]["twin"].update(changes)
    with pytest.raises(ClaimError, match=said):
        claims.load(write(tmp_path, content))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"id": "B03"}, "claim B03.id: String should match"),
        ({"paper": "A"}, "claim B3 cannot belong to paper A"),
        ({"grade": "Q"}, "claim B3.grade: Input should be 'P', 'R', 'C', 'BRIEF' or 'DERIVED'"),
        ({"status": "reproduced"}, "claim B3.status: Extra inputs"),
        ({"verdict": "reproduced"}, "claim B3.verdict: Extra inputs"),
        ({"section": "04 vfusion"}, "claim B3.section"),
        (
            {"section": "04_vfuson#x"},
            r"claim B3\.section: Unknown page '04_vfuson'\. Did you mean '04_vfusion'",
        ),
        ({"section": "intro"}, "claim B3.section: Unknown page 'intro'"),
        ({"settings": {**GOOD["claims"][0]["settings"], "colab": {}}}, "claim B3.settings.colab"),
        ({"settings": {"twin": GOOD["claims"][0]["settings"]["twin"]}}, "at least 2 items"),
    ],
)
def test_claims_that_are_refused(tmp_path, changes, said):
    content = copy.deepcopy(GOOD)
    content["claims"][0].update(changes)
    with pytest.raises(ClaimError, match=said):
        claims.load(write(tmp_path, content))


def test_a_smoke_run_cannot_be_a_setting(tmp_path):
    content = copy.deepcopy(GOOD)
    content["claims"][0]["settings"]["twin"]["profile"] = "smoke"
    with pytest.raises(ClaimError, match=r"twin\.profile: Input should be 'course', 'colab' or 'paper'"):
        claims.load(write(tmp_path, content))


def test_ids_are_unique_and_the_format_is_known(tmp_path):
    content = {"format": 1, "claims": GOOD["claims"] * 2}
    with pytest.raises(ClaimError, match="B3: each id may stand once"):
        claims.load(write(tmp_path, content))
    with pytest.raises(ClaimError, match="format: Input should be 1"):
        claims.load(write(tmp_path, {**GOOD, "format": 2}))


@pytest.mark.parametrize("content", ["", "- a\n", "claims: [\n", "format: 1\nclaims: [3]\n"])
def test_files_that_are_no_ledger(tmp_path, content):
    with pytest.raises(ClaimError, match=r"claims\.yml"):
        claims.load(write(tmp_path, content))


def test_a_key_written_twice_is_an_error_and_not_the_last_one(tmp_path):
    text = "format: 1\nclaims: []\n"
    assert claims.load(write(tmp_path, text)).claims == []
    with pytest.raises(ClaimError, match=r"(?s)'claims' is written twice.*line 1"):
        claims.load(write(tmp_path, text + "claims: []\n"))


def test_a_missing_ledger_is_named(tmp_path):
    with pytest.raises(ClaimError, match=r"no ledger at .*none\.yml"):
        claims.load(tmp_path / "none.yml")


# --- records ---------------------------------------------------------------------------------------------


def test_records_are_read_from_a_folder_of_copies_and_from_runs(tmp_path):
    record = Record(notebook="04_vfusion", profile="course", parameters={"seed": 0})
    (tmp_path / "run").mkdir()
    record.save(tmp_path / "run")
    (tmp_path / "copy.json").write_text(record.model_dump_json(), encoding="utf-8")
    assert claims.read_records(tmp_path) == [record, record]


def test_folders_without_records_and_files_that_are_none(tmp_path):
    with pytest.raises(ClaimError, match=r"no record in .*expected a folder with files like record\.json$"):
        claims.read_records(tmp_path / "nowhere")
    (tmp_path / "04_vfusion.failed.ipynb").write_text("{}", encoding="utf-8")
    with pytest.raises(ClaimError, match=r"; 04_vfusion\.failed\.ipynb is what a failed run left"):
        claims.read_records(tmp_path)
    (tmp_path / "x.json").write_text('{"notebook": "04_vfusion"}', encoding="utf-8")
    with pytest.raises(ClaimError, match=r"x\.json is no record of this version: it lacks format, complete"):
        claims.read_records(tmp_path)


def test_ledger_and_records_are_found_in_an_installed_wheel(tmp_path, monkeypatch):
    from vitscope.data import embedded

    write(tmp_path, GOOD)
    monkeypatch.setattr(embedded, "root", lambda: tmp_path)
    assert [claim.id for claim in claims.load().claims] == ["B3"]
    assert claims.published_records() == []
    (tmp_path / "records").mkdir()
    record = Record(notebook="04_vfusion", profile="course", parameters={"seed": 0})
    (tmp_path / "records" / "04_vfusion-twin-seed0.json").write_text(record.model_dump_json())
    assert claims.published_records() == [record]
