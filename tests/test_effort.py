"""What tools/test leaves out."""

import itertools
from types import SimpleNamespace

import pytest

from tests import effort


@pytest.mark.parametrize("number", range(1, 20))
def test_as_many_cases_as_are_wanted_are_left_and_the_first_is_one(number):
    for cases in range(number + 3):
        run = [at for at, left in enumerate(effort.left_out(number, cases)) if not left]
        assert len(run) == min(cases, number)
        assert run[:1] == [0][:cases]
        gaps = {after - at for at, after in itertools.pairwise(run)}
        assert not gaps or max(gaps) - min(gaps) <= 1


def item(nodeid, *cases):
    marker = SimpleNamespace(args=cases[0]) if cases else None
    return SimpleNamespace(nodeid=nodeid, get_closest_marker={"costly": marker}.get)


def test_cases_of_costly_tests_only(monkeypatch):
    cheap = [item(f"a.py::test_x[{at}]") for at in range(9)]
    some = [item(f"a.py::test_y[{at}]", (2,)) for at in range(4)]
    none = [item("b.py::test_y", ())]
    monkeypatch.setattr(effort, "PROFILE", "same")
    assert effort.too_many([*cheap, *some, *none]) == [some[1], some[3], *none]
    monkeypatch.setattr(effort, "PROFILE", "whole")
    assert effort.too_many([*cheap, *some, *none]) == []
