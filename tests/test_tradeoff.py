"""The information–task trade-off and depths: planted crossings, a slow reference, and every reason."""

import re

import numpy as np
import pytest
import torch

from vitscope.tradeoff import reach, shift, trade_off

STATES = range(9)


def planted(crossing: float, count: int = 9) -> tuple[np.ndarray, np.ndarray]:
    """Information falls and task rises on straight lines; they meet at `crossing`, both at 1/2."""
    depth = np.arange(count)
    # task reaches its maximum, and information its minimum, past the crossing
    information = np.interp(depth, [0, 2 * crossing], [1, 0])
    return information, np.interp(depth, [0, 2 * crossing], [0, 1])


def slow_onset(r2, accuracy, states, floor):
    """The rule once more: walk from the last state up on a fine grid of both curves until task is behind."""
    r2, accuracy = np.asarray(r2, float), np.asarray(accuracy, float)
    information = np.maximum(r2 / r2[list(states).index(0)], 0)
    task = (accuracy - floor) / (max(accuracy) - floor)
    grid = np.linspace(states[-1], states[0], 200_001)
    ahead = np.interp(grid, states, task) - np.interp(grid, states, information)
    return grid[np.argmax(ahead < 0)] if ahead[0] >= 0 and (ahead < 0).any() else None


@pytest.mark.parametrize("crossing", [1.25, 2.0, 3.5])
@pytest.mark.parametrize(("floor", "best"), [(0.0, 1.0), (22.25, 60.0)])
def test_a_planted_crossing_is_found_exactly(crossing, floor, best):
    information, task = planted(crossing)
    found = trade_off(0.7 * information, floor + (best - floor) * task, STATES, floor=floor)
    assert found.onset == pytest.approx(crossing)
    assert found.reason == ""
    assert (found.interval, found.support) == (None, None)
    np.testing.assert_allclose(found.information, information, atol=1e-12)
    np.testing.assert_allclose(found.task, task, atol=1e-12)
    assert found.summary().startswith("Trade-off: the task overtakes the information for good at state")


def test_the_rule_agrees_with_a_slow_search_on_random_curves():
    rng = np.random.default_rng(0)
    states = [-1, 0, 1, 2, 4, 7]
    seen = 0
    for _ in range(60):
        r2 = rng.uniform(-0.1, 1, 6) * [1, 1, 0.9, 0.7, 0.5, 0.3]
        r2[1] = abs(r2[1]) + 0.1
        accuracy = rng.uniform(20, 60, 6) + np.array([0, 0, 5, 10, 20, 30])
        expected, found = slow_onset(r2, accuracy, states, 25.0), trade_off(r2, accuracy, states, floor=25.0)
        assert (found.onset is None) == (expected is None)
        if expected is not None:
            seen += 1
            assert found.onset == pytest.approx(expected, abs=1e-4)
    assert seen > 20


def test_only_the_last_crossing_counts():
    task = [0.0, 0.9, 0.2, 1.0]  # ahead at state 1, behind at 2
    found = trade_off([1.0, 0.5, 0.4, 0.2], task, range(4), floor=0.0)
    assert found.onset == pytest.approx(2 + 0.2 / (0.2 + 0.8))


def test_touching_is_not_being_behind():
    found = trade_off([1.0, 0.5, 0.5], [0.0, 0.5, 1.0], range(3), floor=0.0)
    assert found.onset == pytest.approx(1.0)


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_units_and_a_normalisation_done_before_do_not_matter(scale):
    information, task = planted(2.7)
    reference = trade_off(information, task, STATES, floor=0.0).onset
    assert trade_off(scale * information, 100 * task, STATES, floor=0.0).onset == pytest.approx(reference)
    tensors = trade_off(torch.tensor(information), torch.tensor(task), STATES, floor=0.0)
    assert tensors.onset == pytest.approx(reference)


def test_a_worse_reconstruction_than_the_mean_is_no_information():
    found = trade_off([0.5, -0.3, -0.1], [0.2, 0.3, 0.4], range(3), floor=0.2)
    assert found.information == (1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("information", "task", "reason"),
    [
        ([1, 1, 1.2, 1.5], [2, 3, 4, 5],
         "never overtakes the information: nearest at state 2, 0.450 below it"),
        ([1, 0.4, 0.4, 0.8], [1, 4, 2, 3], "ahead again at the last state, by 0.133"),
        ([1, 0.5, 0.4, 0.3], [4, 4, 4, 4], "the task is ahead from state 0 on"),
        ([1, 0.5, 0.4, 0.3], [1, 1, 0.5, 1], "the probe never beats the majority class"),
    ],
)  # fmt: skip
def test_no_onset_has_its_reason(information, task, reason):
    found = trade_off(information, task, range(4), floor=1.0)
    assert found.onset is None
    assert found.reason.startswith("not detected, because")
    assert reason in found.reason
    assert found.summary() == f"Trade-off {found.reason}."


def test_columns_give_the_onset_of_the_means_and_an_interval_around_it():
    information, task = planted(3.3)
    rng = np.random.default_rng(1)
    r2 = information[:, None] + 0.05 * rng.normal(size=(9, 5))
    right = rng.random((9, 400)) < (0.2 + 0.6 * task)[:, None]
    found = trade_off(r2, right, STATES, floor=0.2)
    alone = trade_off(r2.mean(1), right.mean(1), STATES, floor=0.2)
    low, high = found.interval
    assert found.onset == alone.onset
    assert low < found.onset < high
    assert high - low < 1
    assert found.support == 1.0
    assert f"[{low:.1f} to {high:.1f}]" in found.summary()
    again = trade_off(r2, right, STATES, floor=0.2)
    assert again.interval == found.interval
    assert trade_off(r2, right, STATES, floor=0.2, seed=1).interval != found.interval


def test_fewer_images_give_a_wider_interval_and_equal_columns_none_at_all():
    information, task = planted(3.3)
    rng = np.random.default_rng(2)
    widths = []
    for count in (2000, 50):
        right = rng.random((9, count)) < (0.2 + 0.6 * task)[:, None]
        low, high = trade_off(information, right, STATES, floor=0.2).interval
        widths.append(high - low)
    assert widths[1] > 3 * widths[0]
    same = trade_off(information, np.repeat(task[:, None], 7, axis=1), STATES, floor=0.0)
    assert same.interval == pytest.approx((same.onset, same.onset))


def test_support_is_the_share_of_resamples_with_an_onset():
    # the last state ends ahead in one column and behind in the other: draws 11 and 12 cross, draw 22 does not
    task = np.array([[0.0, 0.0], [0.9, 0.9], [1.0, 0.1]])
    found = trade_off([1.0, 0.5, 0.4], task, range(3), floor=0.0, resamples=4000)
    assert found.onset is not None
    assert found.support == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"states": [1, 2, 3]}, "divided by its value at state 0, got states [1, 2, 3]"),
        ({"states": [0, 2, 2]}, "states must be two or more and ascend, got [0, 2, 2]"),
        ({"states": [0, 1]}, "information has 3 values but 2 states are named"),
        ({"task": [0.1, 0.2]}, "task has 2 values but 3 states are named"),
        ({"task": [0.1, np.nan, 0.2]}, "task is NaN or infinite at states [1]"),
        ({"information": [0.0, 0.5, 0.5]}, "information at state 0 is 0.0000"),
        ({"information": np.zeros((3, 2, 2))}, "got shape (3, 2, 2)"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {"information": [1.0, 0.5, 0.2], "task": [0.1, 0.4, 0.6], "states": [0, 1, 2], **change}
    with pytest.raises(ValueError, match=re.escape(message)):
        trade_off(**arguments, floor=0.1)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("share", "depth"), [(0.25, 1.5), (0.5, 3.0), (1.0, 6.0)])
def test_reach_reads_a_straight_line(sign, share, depth):
    assert reach(5 + sign * np.arange(7.0), range(7), share=share).depth == pytest.approx(depth)


def test_reach_takes_the_first_time_and_skipped_states_in_their_own_unit():
    assert reach([0, 0.6, 0.1, 1.0], [0, 2, 4, 6], share=0.5).depth == pytest.approx(2 * 0.5 / 0.6)
    assert reach(np.tile([[0.0], [1.0]], (1, 4)), [-1, 3]).depth == pytest.approx(1.0)


def test_a_curve_that_does_not_move_has_no_depth_and_says_so():
    found = reach([0.3, 0.9, 0.301], range(3))
    assert found.depth is None
    assert "it moves by +0.0010, within 0.002" in found.reason
    assert reach([0.3, 0.9, 0.301], range(3), tolerance=1e-4).depth is not None
    with pytest.raises(ValueError, match=r"above 0 and at most 1, got 0"):
        reach([0, 1], [0, 1], share=0)


def test_shift_is_the_delay_of_the_second_curve_whatever_the_scale():
    deep = np.arange(25)
    first, second = np.tanh(deep[:13] - 3.0), np.tanh(deep - 13.0)
    found = shift(first, range(13), 7 * second + 2, deep)
    assert found.by == pytest.approx(10.0, abs=0.01)
    assert found.by == pytest.approx(found.second - found.first)
    assert shift(second, deep, first, range(13)).by == pytest.approx(-found.by)


def test_shift_says_which_curve_does_not_move():
    found = shift([0, 1], [0, 1], [0.5, 0.5], [0, 1])
    assert (found.by, found.first, found.second) == (None, 0.5, None)
    assert "because the second curve ends where it began" in found.reason
