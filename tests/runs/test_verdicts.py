"""From records to verdicts: planted answers for every rule, and the verdicts of what is shipped."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from vitscope import cli
from vitscope.runs import claims, verdicts
from vitscope.runs.claims import ClaimError, Ledger
from vitscope.runs.record import Model, Number, Record

# The verdicts of the shipped records. A new record changes them: look why, then write them down here.
IDS = [claim.id for claim in claims.load().claims]
TWIN = dict.fromkeys(IDS, "not attempted") | {
    **dict.fromkeys(("A14", "B1", "B17", "C1", "C11", "C12"), "reproduced"),
    **dict.fromkeys(("A7", "A8", "A10", "A11", "A12", "B8", "C9"), "partly"),
    **dict.fromkeys(("A1", "A2", "A3", "A4", "A6", "A9", "B5", "B6"), "contradicted"),
    **dict.fromkeys(("A5", "A13", "B2", "B3", "B4", "B7", *(f"B{n}" for n in range(9, 17))), "inconclusive"),
    **dict.fromkeys((*(f"C{n}" for n in range(2, 9)), "C10"), "inconclusive"),
}
PAPER = dict.fromkeys(IDS, "not attempted")

BOOK = "02_information_scrambling"


def number(value: float | None, low: float | None = None, high: float | None = None, **more: Any) -> Number:
    spread = None if low is None or high is None else (low, high)
    return Number(value=value, spread=spread, text="not detected" if value is None else str(value), **more)


def record(seed: int = 0, numbers: dict[str, Number] | None = None, **changes: Any) -> Record:
    profile = changes.pop("profile", "course")
    parameters = {"profile": profile, "seed": seed}
    made = Record(
        complete=True,
        notebook=BOOK,
        profile=profile,
        parameters=parameters,
        changed={"seed": seed} if seed else {},
    )
    return made.model_copy(update={"numbers": numbers or {}, **changes})


def ledger(*clauses: dict[str, Any], **setting: Any) -> Ledger:
    """One claim A1 with these clauses in both settings."""
    both = {
        name: {
            "models": {"S": "s", "L": "l"},
            "notebook": BOOK,
            "profile": profile,
            "clauses": [{"says": f"clause {i}", **clause} for i, clause in enumerate(clauses)],
            **setting,
        }
        for name, profile in (("twin", "course"), ("paper", "paper"))
    }
    claim = {
        "id": "A1", "paper": "A", "statement": "It is so.", "grade": "P", "conditions": "none",
        "published": {"text": "3 of 3", "unit": "models", "value": 3},
        "section": BOOK, "note": "A note.", "settings": both,
    }  # fmt: skip
    return Ledger.model_validate({"format": 1, "claims": [claim]})


def twin(book: Ledger, records: list[Record]) -> verdicts.Verdict:
    found = verdicts.verdicts(book, records)
    assert [v.setting for v in found] == ["twin", "paper"]
    assert found[1].verdict == "not attempted"
    return found[0]


def outcome(clause: dict[str, Any], numbers: dict[str, Number]) -> str:
    """What three equal records say about one clause."""
    judged = twin(ledger(clause), [record(seed, numbers) for seed in range(3)]).clauses[0]
    assert {reading.outcome for reading in judged.readings} == {judged.outcome}
    return judged.outcome


# --- what is shipped -------------------------------------------------------------------------------------


def test_verdicts_of_the_shipped_records_are_pinned():
    found = verdicts.verdicts(claims.load(), claims.published_records())
    assert {v.id: v.verdict for v in found if v.setting == "twin"} == TWIN
    assert {v.id: v.verdict for v in found if v.setting == "paper"} == PAPER


# --- one rule, one number --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "positive", "negative"),
    [
        (number(0.5), "holds", "fails"),
        (number(-0.5), "fails", "holds"),
        (number(0), "undecided", "undecided"),
        (number(0.5, 0.1, 0.9), "holds", "fails"),
        (number(0.5, -0.1, 0.9), "undecided", "undecided"),
        (number(-0.5, -0.9, -0.1), "fails", "holds"),
        (number(0.5, 0.0, 0.9), "undecided", "undecided"),
        (number(None), "undecided", "undecided"),
    ],
)
def test_sign(value, positive, negative):
    assert outcome({"value": "x", "rule": {"sign": "positive"}}, {"x": value}) == positive
    assert outcome({"value": "x", "rule": {"sign": "negative"}}, {"x": value}) == negative


def test_a_standard_deviation_is_no_interval():
    spread = Number(value=0.1, spread=5.0, text="0.1")
    assert outcome({"value": "x", "rule": {"sign": "positive"}}, {"x": spread}) == "holds"


@pytest.mark.parametrize(
    "rule",
    [
        {"range": [7, 13]},
        {"near": {"value": 10, "within": 3}},
        {"ratio": {"of": 91**0.5, "within": (13 / 7) ** 0.5}},
    ],
)
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (number(10), "holds"),
        (number(6.9), "fails"),
        (number(13.1), "fails"),
        (number(10, 2, 30), "holds"),
        (number(6, 5, 6.5), "fails"),
        (number(6, 5, 8), "undecided"),
        (number(15, 12, 18), "undecided"),
        (number(15, 14, 18), "fails"),
        (number(None), "undecided"),
    ],
)
def test_targets(rule, value, expected):
    assert outcome({"value": "x", "rule": rule}, {"x": value}) == expected


def test_bounds_are_included_and_null_leaves_a_side_open():
    near, below = {"near": {"value": 10, "within": 3}}, {"range": [None, 1]}
    for value, rule, expected in [
        (7, near, "holds"), (13, near, "holds"),
        (1, below, "holds"), (-9, below, "holds"), (1.1, below, "fails"),
    ]:  # fmt: skip
        assert outcome({"value": "x", "rule": rule}, {"x": number(value)}) == expected


@pytest.mark.parametrize(("hits", "expected"), [(3, "holds"), (2, "partly"), (1, "partly"), (0, "fails")])
def test_all(hits, expected):
    clause = {"value": "x", "rule": {"all": True}}
    assert outcome(clause, {"x": number(hits, n=3)}) == expected
    decided = twin(ledger(clause), [record(seed, {"x": number(hits, n=3)}) for seed in range(3)])
    assert decided.verdict == {"holds": "reproduced", "partly": "partly", "fails": "contradicted"}[expected]


@pytest.mark.parametrize("value", [number(3), number(4, n=3), number(-1, n=3), number(0, n=0)])
def test_all_needs_a_count_with_its_n(value):
    with pytest.raises(
        ClaimError, match=r"claim A1, record .*seed 0\): x is .*`all` expects a count of hits"
    ):
        outcome({"value": "x", "rule": {"all": True}}, {"x": value})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((number(1), number(2), number(3)), "holds"),
        ((number(1), number(1), number(3)), "fails"),
        ((number(1), number(3), number(2)), "fails"),
        ((number(1, 0.8, 1.2), number(2, 1.8, 2.2), number(3, 2.8, 3.2)), "holds"),
        ((number(1, 0, 3), number(2, 1, 4), number(3, 2, 5)), "undecided"),
        ((number(1, 0, 3), number(2, 1, 4), number(0, -1, 0.5)), "fails"),
        ((number(1), number(None), number(0)), "undecided"),
    ],
)
def test_order(values, expected):
    numbers = dict(zip("abc", values, strict=True))
    assert outcome({"rule": {"order": ["a", "b", "c"]}}, numbers) == expected


def test_absence_refutes_only_where_the_clause_says_so():
    clause = {"value": {"left": "a", "minus": "b"}, "rule": {"sign": "positive"}}
    numbers = {"a": number(1), "b": number(None)}
    assert outcome(clause, numbers) == "undecided"
    assert outcome({**clause, "absent": "fails"}, numbers) == "fails"
    reading = twin(ledger(clause), [record(0, numbers)]).clauses[0].readings[0]
    assert (reading.value, reading.reason) == (None, "no number: not detected")


# --- differences -----------------------------------------------------------------------------------------


def test_roles_are_filled_with_the_models_of_the_setting():
    clause = {"value": {"left": "x.{L}", "minus": "x.{S}"}, "rule": {"near": {"value": 10, "within": 3}}}
    assert outcome(clause, {"x.l": number(14), "x.s": number(4)}) == "holds"
    assert outcome(clause, {"x.l": number(4), "x.s": number(14)}) == "fails"


def test_interval_of_a_difference_of_normal_estimates_is_the_textbook_one():
    clause = {"value": {"left": "a", "minus": "b"}, "rule": {"sign": "positive"}}
    numbers = {"a": number(5, 5 - 3 * 1.96, 5 + 3 * 1.96), "b": number(1, 1 - 4 * 1.96, 1 + 4 * 1.96)}
    low, high = twin(ledger(clause), [record(0, numbers)]).clauses[0].readings[0].interval
    assert (low, high) == pytest.approx((4 - 5 * 1.96, 4 + 5 * 1.96))


def test_interval_of_a_difference_covers_as_often_as_it_says():
    clause = {"value": {"left": "a", "minus": "b"}, "rule": {"sign": "positive"}}
    book, random, hits = ledger(clause), np.random.default_rng(0), 0
    for _ in range(400):
        pair = {}
        for key, centre, scale in (("a", 0.3, 1.0), ("b", 0.1, 0.5)):
            at = random.normal(centre, scale)
            pair[key] = number(at, at - 1.96 * scale, at + 1.96 * scale)
        low, high = twin(book, [record(0, pair)]).clauses[0].readings[0].interval
        hits += low <= 0.2 <= high
    assert 0.92 <= hits / 400 <= 0.98


def test_one_sided_knowledge_counts_as_it_is_and_a_value_outside_its_interval_does_no_harm():
    clause = {"value": {"left": "a", "minus": "b"}, "rule": {"sign": "positive"}}

    def interval(a: Number, b: Number) -> tuple[float, float] | None:
        return twin(ledger(clause), [record(0, {"a": a, "b": b})]).clauses[0].readings[0].interval

    assert interval(number(5), number(1)) is None
    assert interval(number(5), number(1, 0, 3)) == pytest.approx((2, 5))
    assert interval(number(5, 5.5, 6), number(1)) == pytest.approx((4, 5))


# --- over seeds and clauses ------------------------------------------------------------------------------

CLAUSE = {"value": "x", "rule": {"range": [0, 1]}}
COUNT = {"value": "x", "rule": {"all": True}}


@pytest.mark.parametrize(
    ("values", "expected", "reason"),
    [
        ((0.1, 0.2, 0.3), "holds", "in all 3 seeds"),
        ((2, 3, 4), "fails", "in all 3 seeds"),
        ((0.1, 0.2, 4), "undecided", "holds in 2, fails in 1 of 3 seeds"),
        ((0.1, 0.2, None), "undecided", "holds in 2, undecided in 1 of 3 seeds"),
        ((0.1, 0.2), "undecided", "2 of the 3 seeds that a verdict needs"),
        ((0.1, 0.2, 0.3, 0.4), "holds", "in all 4 seeds"),
    ],
)
def test_seeds_must_agree_and_be_three(values, expected, reason):
    judged = twin(ledger(CLAUSE), [record(s, {"x": number(v)}) for s, v in enumerate(values)]).clauses[0]
    assert (judged.outcome, judged.reason) == (expected, reason)


@pytest.mark.parametrize(
    ("hits", "expected"),
    [((3, 2, 3), "partly"), ((1, 2, 1), "partly"), ((3, 0, 3), "undecided"), ((2, 0, 2), "undecided")],
)
def test_counts_over_seeds(hits, expected):
    records = [record(seed, {"x": number(h, n=3)}) for seed, h in enumerate(hits)]
    assert twin(ledger(COUNT), records).clauses[0].outcome == expected


PLANTED = {"holds": number(0.5), "fails": number(9), "undecided": number(None), "partly": number(1, n=2)}


@pytest.mark.parametrize("outcomes", list(itertools.product(PLANTED, repeat=2)))
def test_every_pair_of_outcomes_has_the_verdict_of_the_table(outcomes):
    clauses = [
        {"value": f"x{i}", "rule": {"all": True} if o == "partly" else {"range": [0, 1]}}
        for i, o in enumerate(outcomes)
    ]
    numbers = {f"x{i}": PLANTED[o] for i, o in enumerate(outcomes)}
    verdict = twin(ledger(*clauses), [record(seed, numbers) for seed in range(3)]).verdict
    held, refuted = {"holds", "partly"} & set(outcomes), "fails" in outcomes
    whole = outcomes == ("holds", "holds")
    assert verdict == (
        "reproduced" if whole else "partly" if held else "contradicted" if refuted else "inconclusive"
    )


def test_order_of_records_does_not_matter_and_ours_is_mean_and_range():
    records = [record(seed, {"x": number(v)}) for seed, v in ((2, 0.6), (0, 0.1), (1, 0.2))]
    verdict = twin(ledger(CLAUSE), records)
    assert verdict == twin(ledger(CLAUSE), records[::-1])
    assert verdict.seeds == (0, 1, 2)
    assert verdict.clauses[0].ours == "0.3 (0.1 to 0.6)"


def test_ours_says_what_was_not_detected():
    some = [record(s, {"x": number(v)}) for s, v in enumerate((0.2, None, 0.2))]
    assert twin(ledger(CLAUSE), some).clauses[0].ours == "0.2, 1 not detected"
    none = [record(s, {"x": number(None)}) for s in range(3)]
    assert twin(ledger(CLAUSE), none).clauses[0].ours == "not detected"


def test_records_answer_the_setting_of_their_profile_only():
    numbers = {"x": number(0.5)}
    records = [record(s, numbers, profile=p) for p in ("course", "paper") for s in range(3)]
    assert [v.verdict for v in verdicts.verdicts(ledger(CLAUSE), records)] == ["reproduced", "reproduced"]
    assert [v.verdict for v in verdicts.verdicts(ledger(CLAUSE), records[3:])] == [
        "not attempted",
        "reproduced",
    ]


# --- records that do not count ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"complete": False}, "is not complete; only a run that `vitscope run` finished counts"),
        ({"profile": "smoke"}, "is a smoke run, which is never a result"),
        ({"profile": "colab"}, "answers no claim; expected profile course or paper"),
        ({"notebook": "02_information_scramblin"}, f"Did you mean '{BOOK}'"),
        ({"format": 2}, "has format 2, expected 1; run it again"),
        ({"parameters": {}}, "has no whole number as parameter seed"),
        (
            {"profile": "paper", "parameters": {"profile": "course", "seed": 0}},
            "has the profile course among its parameters; it was changed after its run",
        ),
        (
            {"changed": {"images": 20, "seed": 0}},
            r"changed parameters \(images=20\); free are seed and device",
        ),
    ],
)
def test_records_that_are_refused(changes, said):
    with pytest.raises(ClaimError, match=said) as error:
        verdicts.verdicts(ledger(CLAUSE), [record(0, {"x": number(0.5)}, **changes)])
    assert str(error.value).startswith("record ")


def test_two_records_of_one_seed_are_refused():
    same = [record(1, {"x": number(v)}) for v in (0.1, 0.2)]
    with pytest.raises(ClaimError, match=r"seed 1\) is there twice; one record a seed counts"):
        verdicts.verdicts(ledger(CLAUSE), same)


def test_seeds_with_different_weights_are_refused():
    def with_weights(seed: int, digest: str) -> Record:
        model = Model(name="l", digest=digest, source={}, device="cpu", dtype="float32")
        return record(seed, {"x": number(0.5)}, models=[model])

    assert twin(ledger(CLAUSE), [with_weights(s, "a") for s in range(3)]).verdict == "reproduced"
    with pytest.raises(ClaimError, match="saw different weights of l; run all seeds again"):
        verdicts.verdicts(ledger(CLAUSE), [with_weights(0, "a"), with_weights(1, "b")])


def test_parameters_that_a_setting_names_are_asked_for():
    book = ledger(CLAUSE, parameters={"images": 20})
    asked = [record(s, {"x": number(0.5)}, changed={"images": 20, "seed": s}) for s in range(3)]
    assert twin(book, asked).verdict == "reproduced"
    with pytest.raises(ClaimError, match=r"changed parameters \(none\)"):
        verdicts.verdicts(book, [record(0, {"x": number(0.5)})])


def test_a_missing_key_names_claim_record_and_near_keys():
    with pytest.raises(ClaimError) as error:
        outcome({"value": "onset.{L}", "rule": {"sign": "positive"}}, {"onset.s": number(1)})
    said = str(error.value)
    assert said.startswith(f"claim A1, record {BOOK} (course, seed 0): Unknown key 'onset.l'.")
    assert "Did you mean 'onset.s'?" in said


def test_a_reversed_interval_is_refused():
    with pytest.raises(ClaimError, match=r"x has the interval \(2\.0, 1\.0\) reversed"):
        outcome(CLAUSE, {"x": number(1.5, 2, 1)})


# --- shown -----------------------------------------------------------------------------------------------


def test_table_and_full_text():
    records = [record(s, {"x": number(v, v - 0.1, v + 0.1)}) for s, v in enumerate((0.1, 0.2, 0.6))]
    book = ledger(CLAUSE, {"value": "x", "rule": {"sign": "negative"}})
    found = verdicts.verdicts(book, records)
    table = verdicts.table(book, found)
    assert table["verdict"].tolist() == ["partly", "not attempted"]
    assert table["ours"].tolist() == ["0.3 (0.1 to 0.6); 0.3 (0.1 to 0.6)", "–"]
    assert table["published"].tolist() == ["3 of 3 models"] * 2
    text = verdicts.in_full(book.claim("A1"), found)
    assert "seed 2: 0.6: holds, 0.6 (0.5 to 0.7) lies in 0 to 1" in text
    assert "seed 1: 0.2: fails, 0.2 (0.1 to 0.3) is not negative" in text
    assert "paper (02_information_scrambling, profile paper): not attempted" in text
    assert verdicts.table(book, []).columns.tolist() == table.columns.tolist()


def test_command_lists_filters_and_explains(tmp_path, monkeypatch):
    def said(*arguments: str) -> str:
        result = CliRunner().invoke(cli.app, ["claims", *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    monkeypatch.setattr(claims, "load", lambda: ledger(CLAUSE))
    monkeypatch.setattr(claims, "published_records", list)
    assert "2 not attempted" in said()
    for seed, value in enumerate((0.1, 0.2, 0.6)):
        text = record(seed, {"x": number(value)}).model_dump_json()
        (tmp_path / f"{seed}.json").write_text(text, encoding="utf-8")
    shown = said("--records", str(tmp_path), "--setting", "twin")
    assert "A1  twin     It is so.  3 of 3 models  0.3 (0.1 to 0.6)  reproduced" in shown
    assert "no claim like this" in said("--verdict", "partly")
    assert "no claim like this" in said("--paper", "B")
    full = said("A1", "--records", str(tmp_path))
    assert "note: A note." in full
    assert "holds: in all 3 seeds; ours 0.3 (0.1 to 0.6)" in full


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["A2"], "Unknown claim 'A2'. Available: A1."),
        (["--paper", "D"], "Unknown paper 'D'. Available: A, B, C."),
        (["--verdict", "reproduce"], "Did you mean 'reproduced'"),
        (["--setting", "twins"], "Did you mean 'twin'"),
        (["--records", "nowhere"], "no record in nowhere"),
    ],
)
def test_command_refuses_in_words(arguments, message, monkeypatch):
    monkeypatch.setattr(claims, "load", lambda: ledger(CLAUSE))
    result = CliRunner().invoke(cli.app, ["claims", *arguments])
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
