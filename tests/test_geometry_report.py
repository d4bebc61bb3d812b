"""The report on neural collapse and CKA: planted tables, and measures that are not defined."""

import numpy as np
import pandas as pd
import pytest

from vitscope import geometry_report


def table(*, cls=None, patch=(9.0, 4.0, 2.0), angles=0.25, possible=True):
    """NC1 by state of the mean patch token from −1, of CLS from 1 if there is one."""
    given = [("CLS token", 1, cls or ()), ("mean patch token", -1, patch)]
    return pd.DataFrame(
        [
            {"token": token, "state": state, "NC1": nc1, "NC2 angles": angles, "simplex_possible": possible}
            for token, first, values in given
            for state, nc1 in enumerate(values, start=first)
        ]
    )


def test_collapse_figure_shows_one_token():
    figure = geometry_report.collapse_figure({"a": table(cls=[7.0]), "b": table(patch=(1.0, 0.5))})
    assert figure.name == "nc1"
    assert figure.data["NC1"].tolist() == [9, 4, 2, 1, 0.5]
    assert figure.alt == (
        "NC1 of the mean patch token by state, first to last: a 9.00 → 2.00; b 1.00 → 0.50."
    )
    assert "CLS token" in geometry_report.collapse_figure({"a": table(cls=[7.0])}, "cls").alt


def test_cka_figure_has_a_scale_from_0_to_1():
    pairs = pd.DataFrame({"state": [0, 0, 1, 1], "other state": [0, 1, 0, 1], "CKA": [1.0, 0.25, 0.5, 0.75]})
    figure = geometry_report.cka_figure(pairs, "a title", "cka")
    assert figure.fig.axes[0].images[0].get_clim() == (0, 1)
    assert figure.fig.axes[0].get_title(loc="left") == "a title"
    assert "lowest 0.25 at state 0, other state 1; highest 1 at state 0, other state 0" in figure.alt


def test_numbers_are_of_the_last_state_of_cls_or_else_of_patches():
    numbers = geometry_report.numbers({"a": table(cls=[7.0, 3.0]), "b": table()})
    assert numbers["nc1_last"] == {"a": {"value": 3.0, "text": "3.000"}, "b": {"value": 2.0, "text": "2.000"}}
    assert numbers["nc2_last"]["a"] == {"value": 0.25, "text": "0.250"}


def test_a_measure_that_is_not_defined_is_none_with_the_reason():
    number = geometry_report.numbers({"a": table(angles=np.nan)})["nc2_last"]["a"]
    assert number == {"value": None, "text": "not defined, because a class mean lies at the mean of all"}


@pytest.mark.parametrize(
    ("possible", "start", "holds"),
    [
        ({"a": True, "b": True}, "All backbones here are wide enough for 40 classes", "equal angles."),
        ({"a": True, "b": False}, "b cannot hold 40 class means", "(that takes a width of 39)"),
        ({"a": False, "b": False}, "a, b cannot hold", "is width, not training."),
    ],
)
def test_caveat_names_the_narrow(possible, start, holds):
    said = geometry_report.caveat({name: table(possible=p) for name, p in possible.items()}, 40)
    assert said.startswith(start)
    assert holds in said
