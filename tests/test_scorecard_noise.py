"""Noise earns under the rules what luck gives, by arithmetic: 2.5 % with an interval, a half without."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from planted_claims import RECORDS, ledger, planted, record
from vitscope import scorecard_noise as noise
from vitscope.runs.claims import Ledger
from vitscope.runs.record import Number, Record


def signs(count: int, interval: bool) -> tuple[Ledger, list[Record]]:
    """A claim for each of `count` numbers, all clearly above 0, as the clauses want them."""
    made = [planted(f"A{i + 1}", "holds") for i in range(count)]
    for i, claim in enumerate(made):
        clause = {"says": "up", "value": f"x{i}", "rule": {"sign": "positive"}}
        for setting in claim["settings"].values():
            setting["clauses"] = [clause]
    numbers = {
        f"x{i}": Number(value=3.0, spread=(1.0, 5.0) if interval else None, text="3") for i in range(count)
    }
    return ledger(*made), [record(seed, numbers) for seed in range(3)]


@pytest.mark.parametrize(
    ("interval", "alone", "apart", "together"), [(True, 2.5, 0.0, 2.5), (False, 50.0, 12.5, 50.0)]
)
def test_noise_earns_what_luck_gives(interval, alone, apart, together):
    of, records = signs(40, interval)
    table = noise.noise(of, records, "twin", seed=0, draws=50).set_index("world")
    assert set(table["clauses"]) == {40}
    assert table.at[noise.HERE, "holds"] == 100
    for world, share, independent in (
        (noise.ALONE, alone, 40 * 50 * 3),
        (noise.APART, apart, 40 * 50),
        (noise.TOGETHER, together, 40 * 50),
    ):
        deviation = np.sqrt(share * (100 - share) / independent)
        assert abs(table.at[world, "holds"] - share) <= 4 * deviation + 0.1, world
    assert np.allclose(table[["holds", "fails", "undecided"]].sum(axis=1), 100)
    assert noise.bare(of, records, "twin") == (0 if interval else 40)


def test_the_coin_leaves_measurements_and_turns_claims():
    of, records = signs(30, True)
    coin = noise.noise(of, records, "twin", seed=0, draws=1).set_index("world").loc[noise.COIN]
    assert coin["holds"] == pytest.approx(50, abs=2)
    assert coin["undecided"] == 0
    assert (coin["low"], coin["high"]) == (pytest.approx(32, abs=4), pytest.approx(68, abs=4))


def test_other_rules_and_undetected_numbers_are_left_alone():
    of, records = signs(2, True)
    mixed = ledger(*[c.model_dump(exclude_unset=True) for c in of.claims], planted("B1", "holds"))
    hidden = [
        r.model_copy(
            update={"numbers": {**r.numbers, "x1": Number(value=None, text="none"), **RECORDS[0].numbers}}
        )
        for r in records
    ]
    table = noise.noise(mixed, hidden, "twin", seed=0, draws=3).set_index("world")
    assert set(table["clauses"]) == {2}
    assert table.at[noise.HERE, "undecided"] == 50
    assert (table.loc[[noise.APART, noise.TOGETHER], "undecided"] >= 50).all()


def test_one_seed_one_noise():
    of, records = signs(10, True)
    first, second, other = (noise.noise(of, records, "twin", seed=s, draws=10) for s in (0, 0, 1))
    pd.testing.assert_frame_equal(first, second)
    assert not first.equals(other)


def test_without_records_there_is_no_noise_and_the_prose_says_so():
    of, _ = signs(2, True)
    table = noise.noise(of, [], "twin", seed=0)
    assert table.empty
    assert noise.numbers(table)["held"] == {"value": None, "text": "nothing (no record)"}
    assert noise.bare(of, [], "twin") == 0


def test_numbers_for_the_prose():
    of, records = signs(4, True)
    said = noise.numbers(noise.noise(of, records, "twin", seed=0, draws=5))
    assert said["held"]["text"] == "4 of 4 (100%)"
    assert said["held"]["n"] == 4
    assert re.fullmatch(r"\d+% \(\d+ to \d+\)", said["coin"]["text"])
