"""Episodes by their figures, beside a list that is sorted by hand."""

import numpy as np
import pytest

from diskreplay.episodes import Episodes
from diskreplay.errors import InvalidInputError
from diskreplay.view.episode_table import EpisodeQuery


def episodes(count, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 50, count)
    start = np.cumsum(np.r_[0, rows[:-1] + 1])
    end = rng.integers(0, 4, count)
    return Episodes(
        number=np.arange(count), env=rng.integers(0, 3, count), start_id=start,
        first_step=np.zeros(count, np.int64), beginning_lost=np.zeros(count, np.bool_), rows=rows,
        final_id=start + rows,
        returns=rng.integers(-5, 6, count).astype(float), terminated=end == 0, truncated=end == 1,
        cut=end == 2, unfinished=end == 3, num_envs=1, _stop_id=start + rows + 1,
        _inner_frames=np.empty(0, np.int64),
    )  # fmt: skip


def ended(found):
    """An hour each; of every tenth nobody knows."""
    return np.where(np.arange(len(found)) % 10 == 0, np.nan, 3600.0 * np.arange(len(found)))


def by_hand(found, keep, key):
    kept = [n for n in range(len(found)) if keep(n)]
    return sorted(kept, key=key)


def test_every_filter():
    found = episodes(300)
    for query, keep in (
        ({"least_return": 2}, lambda n: found.returns[n] >= 2),
        ({"most_return": -1}, lambda n: found.returns[n] <= -1),
        ({"least_length": 10, "most_length": 20}, lambda n: 10 <= found.rows[n] <= 20),
        ({"since": 1000, "until": 2000}, lambda n: 1000 <= found.start_id[n] <= 2000),
        ({"after": 36_000, "before": 360_000}, lambda n: 10 <= n <= 100 and n % 10),
        ({"end": "truncated"}, lambda n: found.truncated[n]),
        ({"end": "whole"}, lambda n: found.terminated[n] or found.truncated[n]),
        ({"env": 2}, lambda n: found.env[n] == 2),
    ):
        chosen = EpisodeQuery(order="oldest", **query).select(found, ended(found)).tolist()
        assert chosen == by_hand(found, keep, lambda n: n)
        assert 0 < len(chosen) < 300


@pytest.mark.parametrize("reverse", [False, True])
def test_every_order(reverse):
    found, sign = episodes(300), -1 if reverse else 1
    keys = {
        "newest": lambda n: -sign * n,
        "oldest": lambda n: sign * n,
        "return": lambda n: (found.unfinished[n], -sign * found.returns[n], n),
        "length": lambda n: (found.unfinished[n], -sign * found.rows[n], n),
    }
    for order, key in keys.items():
        chosen = EpisodeQuery(order=order, reverse=reverse).select(found, ended(found)).tolist()
        assert chosen == by_hand(found, lambda n: True, key), order


def test_pages_are_parts_of_the_whole():
    found = episodes(100_000)
    query = {"order": "return", "least_length": 5}
    times = ended(found), np.arange(100_000) < 7
    whole = EpisodeQuery(**query).select(found, times[0]).tolist()
    page = EpisodeQuery(**query, start=40_000, size=30).page(found, *times)
    assert (page["total"], page["found"]) == (100_000, len(whole))
    assert [each["number"] for each in page["episodes"]] == whole[40_000:40_030]
    for each in page["episodes"]:
        assert each["ended"] == times[0][each["number"]] or each["number"] % 10 == 0
        assert each["is_latest"] == (each["number"] < 7)
    assert EpisodeQuery(**query, start=10**9).page(found, *times)["episodes"] == []


@pytest.mark.parametrize("wrong", [{"order": "x"}, {"end": "x"}, {"size": 0}, {"size": 501}])
def test_what_makes_no_sense(wrong):
    with pytest.raises(InvalidInputError, match="expected"):
        EpisodeQuery(**wrong)
