"""What two looks at a store say together."""

from types import SimpleNamespace

import numpy as np
import pytest

from diskreplay.inspection.watching import Watch


@pytest.fixture
def path(tmp_path):
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def look(watch, path, bounds, now, *, last_write=5.0, closed=False, returns=(), whole=None):
    found = SimpleNamespace(path=str(path), bounds=bounds, last_write=last_write, closed=closed)
    returns = np.array(returns, np.float64)
    whole = np.ones(len(returns), bool) if whole is None else np.array(whole, bool)
    episodes = SimpleNamespace(returns=returns, whole=whole)
    return watch.look(found, episodes, now=now)


def test_rows_a_second_over_all_envs(path):
    watch = Watch()
    first = look(watch, path, [[0, 10], [3, 20]], 100.0)
    assert (first.rows_per_second, first.last_write, first.exact) == (None, 5.0, False)
    second = look(watch, path, [[0, 14], [9, 22]], 103.0)
    assert second.rows_per_second == 2.0
    assert (second.last_write, second.exact, second.replaced) == (103.0, True, False)
    third = look(watch, path, [[0, 14], [9, 22]], 110.0)
    assert third.rows_per_second == 0.0
    assert (third.last_write, third.exact) == (103.0, True)  # when they were seen to come


def test_two_looks_at_one_moment_say_nothing_of_a_rate(path):
    watch = Watch()
    look(watch, path, [[0, 10]], 100.0)
    for now in (100.0, 99.0):  # a clock that was put back
        pulse = look(watch, path, [[0, 15]], now)
        assert pulse.rows_per_second is None
        assert pulse.last_write == 5.0


def test_a_closed_store_says_when_exactly(path):
    assert look(Watch(), path, [[0, 10]], 1.0, closed=True).exact
    assert not look(Watch(), path, [[0, 10]], 1.0).exact


@pytest.mark.parametrize("how", ["directory", "rows"])
def test_another_store_in_its_place(path, how):
    watch = Watch()
    look(watch, path, [[0, 10]], 100.0)
    look(watch, path, [[0, 12]], 101.0)
    rows = 20
    if how == "directory":
        path.rename(path.with_name("old"))
        path.mkdir()
    else:
        rows = 11  # a number may be given again
    pulse = look(watch, path, [[0, rows]], 102.0)
    assert pulse.replaced
    assert pulse.rows_per_second is None
    assert (pulse.last_write, pulse.exact) == (5.0, False)  # not when rows of the old one came
    after = look(watch, path, [[0, rows + 3]], 103.0)
    assert not after.replaced
    assert after.rows_per_second == 3.0


def test_returns_of_whole_episodes(path):
    pulse = look(Watch(), path, [[0, 1]], 1.0, returns=range(6), whole=[1, 1, 0, 1, 1, 0])
    assert pulse.returns == [0, 1, 3, 4]
    assert pulse.mean_return == 2.0
    pulse = look(Watch(), path, [[0, 1]], 1.0, returns=range(150))
    assert pulse.returns == [145, 146, 147, 148, 149]
    assert pulse.mean_return == np.mean(range(50, 150))
    pulse = look(Watch(), path, [[0, 1]], 1.0, returns=[1.0], whole=[0])
    assert (pulse.returns, pulse.mean_return) == ([], None)
