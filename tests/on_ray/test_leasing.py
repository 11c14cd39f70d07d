"""Which shard a writer adds to; without a cluster."""

import pytest

from diskreplay.errors import InvalidInputError, ShardsLostError
from diskreplay.ray.leasing import leased
from tests.on_ray.without_ray import LocalActor, use_local_actors

OPTIONS = {"lease_seconds": 7.0}


class Shard:
    def __init__(self, free, transitions, is_taken=False):
        self.free, self.transitions, self.is_taken = free, transitions, is_taken
        self.leases = []

    def describe(self):
        return {"free_envs": self.free, "transitions": self.transitions}

    def lease(self, envs, seconds):
        self.leases.append((envs, seconds))
        return None if self.is_taken or envs > self.free else f"lease of {envs}"


@pytest.fixture(autouse=True)
def _local(monkeypatch):
    use_local_actors(monkeypatch)


def actors(*shards):
    return {10 + number: LocalActor(shard) for number, shard in enumerate(shards)}


def test_the_most_free_envs_and_then_the_fewest_rows():
    found = actors(Shard(2, 0), Shard(4, 50), Shard(4, 20), Shard(3, 0))
    assert leased(found, 2, OPTIONS, 1.0) == (12, "lease of 2")
    assert found[12].made.leases == [(2, 7.0)]
    assert not any(found[number].made.leases for number in (10, 11, 13))


def test_one_that_gives_none_is_passed_over():
    found = actors(Shard(4, 0, is_taken=True), Shard(3, 9))
    assert leased(found, 3, OPTIONS, 1.0) == (11, "lease of 3")
    found = actors(Shard(4, 0), Shard(3, 9))
    found[10].faults = [None, "after"]  # its answer to `lease` is lost
    assert leased(found, 3, OPTIONS, 1.0) == (11, "lease of 3")
    found[10].is_away = True
    assert leased(found, 1, OPTIONS, 1.0) == (11, "lease of 1")


def test_none_has_as_many_or_none_answers():
    found = actors(Shard(2, 0), Shard(1, 0))
    with pytest.raises(InvalidInputError, match=r"3 free envs of one shard .* \[2, 1\]"):
        leased(found, 3, OPTIONS, 1.0)
    found[10].is_away = True
    with pytest.raises(InvalidInputError, match=r"have \[1\]"):
        leased(found, 3, OPTIONS, 1.0)
    found[11].is_away = True
    with pytest.raises(ShardsLostError, match="no shard answers"):
        leased(found, 3, OPTIONS, 1.0)
