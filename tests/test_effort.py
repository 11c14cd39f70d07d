"""What tools/test and .ci/run leave out."""

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


@pytest.mark.parametrize("sizes", [(), (3,), (1, 4), (2, 2, 2), (3, 2, 3, 2), (14, 2, 4)])
def test_each_value_meets_each_value_of_another_parameter(sizes):
    values = [[object() for _ in range(size)] for size in sizes]
    cases = [dict(zip("abcd", case, strict=False)) for case in itertools.product(*values)]
    run = [
        case for case, left in zip(cases, effort.without_new_pairs(cases), strict=True) if not left
    ]
    for one, two in itertools.combinations(range(len(sizes)), 2):
        found = {(id(case["abcd"[one]]), id(case["abcd"[two]])) for case in run}
        assert len(found) == sizes[one] * sizes[two]
    largest = sorted([1, 1, *sizes])[-2:]
    if len(sizes) < 3:
        assert run == cases
    else:
        assert largest[0] * largest[1] <= len(run) < len(cases)


def item(nodeid, *cases, **values):
    marker = SimpleNamespace(args=cases[0]) if cases else None
    made = SimpleNamespace(nodeid=nodeid, get_closest_marker={"costly": marker}.get)
    if values:
        made.callspec = SimpleNamespace(params=values)
    return made


def test_cases_of_costly_tests_only(monkeypatch):
    cheap = [item(f"a.py::test_x[{at}]") for at in range(9)]
    some = [item(f"a.py::test_y[{at}]", (2,), at=at) for at in range(4)]
    none = [item("b.py::test_y", ())]
    pairs = [
        item(f"b.py::test_z[{case}]", (8,), a=case[0], b=case[1], c=case[2])
        for case in itertools.product([0, 1], repeat=3)
    ]
    monkeypatch.setattr(effort, "PROFILE", "same")
    items = [*cheap, *some, *none, *pairs]
    assert effort.too_many(items) == [some[1], some[3], *none]
    monkeypatch.setattr(effort, "PROFILE", "whole")
    left = effort.too_many(items)
    assert len(left) == 4
    assert all(each in pairs for each in left)
    monkeypatch.setattr(effort, "LONG", True)
    assert effort.too_many(items) == []


@pytest.mark.parametrize(
    ("name", "text", "has"),
    [
        ("on_ray/test_shard.py", "", True),
        ("test_pages.py", "@pytest.mark.cluster\ndef test(): pass\n", True),
        ("test_pages.py", "def test_a_cluster(): pass\n", False),
        ("torture/__init__.py", "", False),
    ],
)
def test_files_without_clusters_are_known(tmp_path, name, text, has):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert effort.has_clusters(path) == has
    assert effort.has_clusters(path.parent)
