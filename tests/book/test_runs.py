"""The book's own notebooks under the smoke profile: every one runs, and equal seeds give equal bits."""

import pytest

from vitscope.runs import runner
from vitscope.runs.schema import SCHEMAS


@pytest.mark.parametrize("notebook", sorted(SCHEMAS))
def test_notebook_has_a_complete_smoke_record(site, notebook):
    result = runner.execute(runner.plan(notebook, "smoke"))
    assert result.reused  # the site was built from it
    record = result.record
    assert record.profile == "smoke"
    assert record.numbers
    assert bool(record.data) == (notebook != "09_scorecard")  # which reads records
    assert bool(record.models) == (notebook not in ("data_appendix", "09_scorecard"))


def test_two_runs_of_one_seed_are_equal_bit_for_bit(site):
    job = runner.plan("01_phase_curves", "smoke")
    first = runner.execute(job).record
    # a build may give its kernels fewer threads than a run alone, and bits depend on their number
    second = runner.execute(job, force=True, threads=first.volatile.threads).record
    assert first.volatile.started != second.volatile.started
    assert first.model_dump(exclude={"volatile"}) == second.model_dump(exclude={"volatile"})


def test_another_seed_gives_other_numbers(site):
    first = runner.execute(runner.plan("01_phase_curves", "smoke")).record
    other = runner.execute(runner.plan("01_phase_curves", "smoke", text={"seed": "1"})).record
    assert first.numbers["cliff_sizes"].value != other.numbers["cliff_sizes"].value
    assert first.data[0].digest != other.data[0].digest
