import numpy as np
import pytest
import torch

from vitscope.phases import SHORTEST_CURVE, detect_phases, undetected
from vitscope.segments import fit_segments


def planted(cliff=0.022, plateau=7, climb=(0.1, 0.15, 0.2, 0.3, 0.42, 0.5)):
    """State -1 at `cliff`, states 0 to plateau-1 at zero, then the climb."""
    return np.array([cliff, *[0.0] * plateau, *climb])


def noisy(curve, columns=40, size=0.002, seed=0):
    return curve[:, None] + size * np.random.default_rng(seed).normal(size=(len(curve), columns))


@pytest.mark.parametrize("plateau", [4, 6, 9, 14])
@pytest.mark.parametrize("cliff", [0.01, 0.022, 0.3])
def test_planted_phases_are_found_exactly(plateau, cliff):
    climb = [0.08, 0.2, 0.35]
    phases = detect_phases(planted(cliff, plateau, climb))
    assert phases.detected
    assert phases.reasons == {}
    assert phases.cliff.state == 0
    assert phases.cliff.size == pytest.approx(cliff)
    assert phases.cliff.share == pytest.approx(cliff / 0.35)
    assert (phases.plateau.start, phases.plateau.end) == (0, plateau - 1)
    assert phases.plateau.length == plateau
    assert phases.climb.onset == plateau
    assert phases.climb.rise == pytest.approx(0.35)


def test_the_fit_by_pieces_finds_the_same_boundaries_without_the_rules():
    phases = detect_phases(planted(0.3, 7, [0.1, 0.2, 0.3, 0.4]))
    assert phases.segmented.best == 3
    assert phases.segmented.starts(3) == (0, 6)  # the line of the climb starts at its foot
    first, second, third = phases.segmented.divisions[3]
    assert (first.first, first.last, second.kind, third.kind) == (-1, -1, "constant", "linear")
    assert third.slope == pytest.approx(0.1)


@pytest.mark.parametrize("offset", [-5.0, 0.0, 3.0])
def test_a_shift_of_the_curve_changes_nothing(offset):
    curve = planted() + noisy(np.zeros(14), columns=1)[:, 0]
    reference, shifted = detect_phases(curve).row(), detect_phases(curve + offset).row()
    reference.pop("plateau_level"), shifted.pop("plateau_level")
    assert shifted == pytest.approx(reference)


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_thresholds_are_in_the_units_of_the_curve(scale):
    curve = planted() + noisy(np.zeros(14), columns=1)[:, 0]
    reference = detect_phases(curve).row()
    scaled = detect_phases(scale * curve, tolerance=0.002 * scale, band=0.01 * scale).row()
    for key in ("cliff_share", "plateau_start", "plateau_end", "climb_onset", "segments"):
        assert scaled[key] == pytest.approx(reference[key])
    assert scaled["climb_rise"] == pytest.approx(scale * reference["climb_rise"])


def test_a_steady_rise_has_no_phase_and_each_reason_says_why():
    phases = detect_phases(np.linspace(0.1, 0.9, 14))
    assert (phases.cliff, phases.plateau, phases.climb) == (None, None, None)
    assert not phases.detected
    assert "changes by +0.0615 from state -1 to 0" in phases.reasons["cliff"]
    assert "at most 3 states in a row stay within ±0.0800" in phases.reasons["plateau"]
    assert phases.reasons["climb"] == "not detected, because there is no plateau to rise from"
    assert set(phases.row().values()) == {None, 1}


@pytest.mark.parametrize("count", [14, 26])
@pytest.mark.parametrize("sign", [1, -1])
def test_no_straight_line_is_a_plateau(count, sign):
    assert detect_phases(sign * np.linspace(0, 1, count)).plateau is None


def test_a_steady_fall_is_no_cliff():
    phases = detect_phases(np.linspace(0.9, 0.1, 14))
    assert "goes on by 0.0615 after state 0: no edge there" in phases.reasons["cliff"]


def test_a_flat_curve_is_one_plateau():
    phases = detect_phases(np.full(14, 0.3))
    assert (phases.plateau.start, phases.plateau.end) == (-1, 12)
    assert "no fall above 0.002" in phases.reasons["cliff"]
    assert phases.reasons["climb"] == "not detected, because the plateau lasts to the last state"


def test_a_fall_into_the_last_state_is_no_climb():
    phases = detect_phases(planted(climb=(0.1, 0.3, 0.5, 0.35)))
    assert phases.reasons["climb"] == "not detected, because the curve falls by 0.1500 into the last state"


def test_a_climb_may_step_down_by_the_tolerance_and_not_more():
    within = detect_phases(planted(climb=(0.1, 0.2, 0.1985, 0.4)))
    beyond = detect_phases(planted(climb=(0.1, 0.2, 0.1900, 0.4)))
    assert within.climb.onset == 7
    assert beyond.climb.onset == 10
    assert beyond.climb.rise == pytest.approx(0.21)


def test_a_small_rise_stays_in_the_band():
    phases = detect_phases([0.5, *[0.0] * 6, -0.06, -0.03, -0.02])
    assert phases.climb is None
    assert (
        "the rise of 0.0400 after the plateau does not leave its band of ±0.0560" in phases.reasons["climb"]
    )


def test_without_the_states_before_block_one_there_is_no_cliff_to_see():
    phases = detect_phases(planted()[2:], states=range(1, 13))
    assert phases.cliff is None
    assert "starts at states 1 and 2" in phases.reasons["cliff"]
    assert phases.climb.onset == 7


def test_columns_give_the_mean_curve_and_intervals():
    curve = planted()
    phases = detect_phases(noisy(curve, columns=60), seed=1)
    assert phases.detected
    np.testing.assert_allclose(phases.values, noisy(curve, columns=60).mean(1))
    assert phases.support == {"cliff": 1.0, "plateau": 1.0, "climb": 1.0}
    low, high = phases.interval["cliff_size"]
    assert low < 0.022 < high
    assert high - low == pytest.approx(4 * 0.002 * np.sqrt(2 / 60), rel=0.3)
    assert phases.interval["climb_onset"] == (7, 7)
    assert phases.interval["plateau_start"] == (0, 0)


def test_an_uncertain_boundary_has_a_wide_interval():
    curve = np.array([0.3, *[0.0] * 6, 0.03, 0.06, 0.2, 0.5])
    columns = noisy(curve, columns=12, size=0.05, seed=3)
    low, high = detect_phases(columns).interval["plateau_end"]
    assert low < high


def test_the_bootstrap_repeats_with_its_seed_and_not_with_another():
    columns = noisy(planted(), columns=10)
    assert detect_phases(columns, seed=4).interval == detect_phases(columns, seed=4).interval
    assert detect_phases(columns, seed=4).interval != detect_phases(columns, seed=5).interval


def test_the_order_of_images_does_not_matter_for_the_phases():
    columns = noisy(planted(), columns=10)
    assert detect_phases(columns[:, ::-1]).row() == pytest.approx(detect_phases(columns).row())


def test_one_column_has_no_interval():
    assert detect_phases(planted()[:, None]).interval == {}


def test_a_tensor_is_taken():
    assert detect_phases(torch.from_numpy(planted()).float()).climb.onset == 7


def test_the_summary_says_what_was_found_and_what_was_not():
    text = detect_phases(noisy(planted())).summary()
    assert "Cliff: falls by 0.02" in text
    assert "Plateau: 7 states from 0 to 6 [6 to 6]" in text
    assert "Climb: rises from state 7 [7 to 7] on, by 0.5" in text
    assert "Fit by pieces: 3 by BIC" in text
    assert "Cliff not detected, because" in detect_phases(np.linspace(0.1, 0.9, 14)).summary()


@pytest.mark.parametrize(
    ("curve", "options", "message"),
    [
        (np.zeros(4), {}, "5 states or more, got 4"),
        (np.array([0.1, np.nan, 0.2, np.inf, 0.3]), {}, r"NaN or infinite at states \[0, 2\]"),
        (np.zeros(6), {"states": range(5)}, "6 values but 5 states"),
        (np.zeros(5), {"states": [-1, 0, 2, 1, 3]}, "must ascend"),
        (np.zeros((5, 2, 2)), {}, r"got shape \(5, 2, 2\)"),
        (np.zeros((5, 0)), {}, r"got shape \(5, 0\)"),
    ],
)
def test_bad_curves_are_refused_by_name(curve, options, message):
    with pytest.raises(ValueError, match=message):
        detect_phases(curve, **options)


# --- curves too short for the rules ------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[0.3, 0.1, 0.2], np.array([0.3, 0.1, 0.2])])
def test_a_short_curve_has_no_phase_and_the_same_reason_for_each(values):
    phases = undetected(values, [-1, 0, 1])
    assert (phases.cliff, phases.plateau, phases.climb, phases.segmented) == (None, None, None, None)
    assert not phases.detected
    assert phases.states == (-1, 0, 1)
    assert phases.values == (0.3, 0.1, 0.2)
    assert all(type(v) is float for v in phases.values)
    assert (phases.interval, phases.support) == ({}, {})
    assert set(phases.reasons) == {"cliff", "plateau", "climb"}
    assert set(phases.reasons.values()) == {
        "not detected, because phases need a curve of 5 states or more, got 3"
    }


def test_the_row_of_a_short_curve_has_the_columns_of_any_other_and_no_numbers():
    row = undetected([0.3, 0.1], [-1, 0]).row()
    assert list(row) == list(detect_phases(planted()).row())
    assert set(row.values()) == {None}


def test_the_summary_of_a_short_curve_is_its_reasons_alone():
    reason = "not detected, because phases need a curve of 5 states or more, got 2"
    expected = f"Cliff {reason}. Plateau {reason}. Climb {reason}."
    assert undetected([0.3, 0.1], [-1, 0]).summary() == expected


def test_the_shortest_curve_is_detected_and_not_refused():
    curve = planted()[:SHORTEST_CURVE]
    assert detect_phases(curve).segmented is not None
    with pytest.raises(ValueError, match="5 states or more, got 4"):
        detect_phases(curve[:-1])


# --- the fit by pieces, against exhaustive search -----------------------------------------------------------


def _rss(x, y, kind):
    design = np.vander(x, kind, increasing=True)
    coefficients = np.linalg.lstsq(design, y, rcond=None)[0]
    return float(((y - design @ coefficients) ** 2).sum())


def exhaustive_bic(y, x, pieces, noise):
    n, best = len(y), np.inf

    def kinds(i, j):
        return [k for k in (1, 2) if (k == 1 and (j - i >= 2 or i == 0)) or (k == 2 and j - i >= 3)]

    def walk(i, left, rss, coefficients):
        nonlocal best
        ends = [n] if left == 1 else range(i + 1, n)
        for j in ends:
            for kind in kinds(i, j):
                total, p = rss + _rss(x[i:j], y[i:j], kind), coefficients + kind
                if left > 1:
                    walk(j, left - 1, total, p)
                else:
                    score = n * np.log(max(total / n, noise**2)) + (p + pieces - 1) * np.log(n)
                    best = min(best, score)

    walk(0, pieces, 0.0, 0)
    return best


@pytest.mark.parametrize("seed", range(4))
def test_the_division_is_the_best_there_is(seed):
    rng = np.random.default_rng(seed)
    y, x = rng.normal(size=9).cumsum(), np.arange(-1, 8).astype(float)
    fit = fit_segments(y.tolist(), range(-1, 8), noise=0.001)
    for pieces in (1, 2, 3):
        assert fit.bic[pieces] == pytest.approx(exhaustive_bic(y, x, pieces, 0.001), abs=1e-6)


def test_noise_alone_is_one_piece():
    rng = np.random.default_rng(0)
    picked = [fit_segments((0.1 + 0.0004 * rng.normal(size=14)).tolist(), range(14)).best for _ in range(20)]
    assert set(picked) == {1}


def test_two_levels_are_two_pieces():
    fit = fit_segments([0.0] * 6 + [1.0] * 6, range(12))
    assert fit.best == 2
    assert fit.starts(2) == (6,)


def test_a_division_needs_five_values():
    with pytest.raises(ValueError, match="five values or more"):
        fit_segments([0.0, 1.0], [0, 1])
