"""The page of what was tried to break says what the tests do: no more, no less."""

from __future__ import annotations

from collections import Counter

import pytest

import tried


def test_every_case_of_this_session_is_published(request):
    """A whole session must have exactly the published cases; one of a few files, some of them."""
    config = request.config
    if config.getoption("--write-tried"):
        pytest.skip("this session writes them")
    ours, published = set(config.stash[tried.COLLECTED]), set(tried.published())
    missing = sorted(ours - published)
    assert not missing, f"run `pytest --write-tried`: {len(missing)} are new, first {missing[0]}"
    if config.args == config.getini("testpaths") and not config.option.keyword:
        gone = sorted(published - ours)
        assert not gone, f"run `pytest --write-tried`: {len(gone)} are no longer tested, first {gone[0]}"


def test_cases_are_distinct():
    """No input is counted twice: the same thing through the same door is one case."""
    counts = Counter((case.door, case.given) for case in tried.published())
    assert {case: n for case, n in counts.items() if n > 1} == {}


def test_a_marker_that_says_nothing_is_refused(pytester_item):
    item = pytester_item(pytest.mark.tried("window", "refused", "a stone", "it broke"))
    with pytest.raises(ValueError, match="'window' is none of images, labels"):
        tried.of(item)
    item = pytester_item(pytest.mark.tried("images", "refused"))
    with pytest.raises(ValueError, match=r"tried\(door, became, given, answer\)"):
        tried.of(item)


def test_names_of_parameters_are_filled_in(pytester_item):
    item = pytester_item(
        pytest.mark.tried("images", "refused", "a JPEG cut at {share} %", "named"),
        params={"share": 5},
        id="five",
    )
    (case,) = tried.of(item)
    assert (case.given, case.test) == ("a JPEG cut at 5 %", "tests/test_x.py::test_y")


@pytest.fixture
def pytester_item():
    """Something with the two attributes of a collected test that are read."""

    class Spec:
        def __init__(self, params, id):
            self.params, self.id = params, id

    class Item:
        def __init__(self, mark, params, id):
            self.mark, self.nodeid = mark.mark, f"tests/test_x.py::test_y[{id}]"
            self.callspec = Spec(params, id)

        def iter_markers(self, name):
            assert name == "tried"
            return [self.mark]

    return lambda mark, params=None, id="": Item(mark, params or {}, id)
