"""Who may add to the envs of a shard, also after its process was killed."""

import json
import time

import pytest

from diskreplay import UsageError
from diskreplay.errors import FormatError
from diskreplay.ray.env_leases import EnvLeases


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when the test says so."""
    now = [1_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


def test_envs_are_leased_until_their_time_is_over(tmp_path, clock):
    leases = EnvLeases(tmp_path / "leases", 4)
    token, envs = leases.take(3, 60.0)
    assert envs == [0, 1, 2]
    assert leases.take(2, 60.0) is None
    leases.check(token, envs)
    clock[0] += 59
    leases.extend(token, envs, 60.0)
    clock[0] += 59
    assert leases.free() == [3]
    clock[0] += 2
    other, taken = leases.take(2, 60.0)
    assert taken == [0, 1]
    with pytest.raises(UsageError, match="leased by another writer"):
        leases.check(token, envs)
    leases.release(other)
    assert leases.free() == [0, 1, 2, 3]


@pytest.mark.parametrize("restarted", [True, False])
def test_a_shard_that_is_killed_keeps_the_envs_of_writers_that_live(tmp_path, clock, restarted):
    """Rows that came made the lease longer, and that is not on the disk."""
    leases = EnvLeases(tmp_path / "leases", 4)
    token, envs = leases.take(2, 60.0)
    clock[0] += 59
    leases.extend(token, envs, 60.0)
    clock[0] += 30
    after = EnvLeases(tmp_path / "leases", 4, restarted=restarted)
    after.check(token, envs)
    assert after.free() == ([2, 3] if restarted else [0, 1, 2, 3])
    clock[0] += 61
    assert EnvLeases(tmp_path / "leases", 4).free() == [0, 1, 2, 3]
    assert after.free() == [0, 1, 2, 3]


def test_leases_without_their_seconds_are_read(tmp_path, clock):
    path = tmp_path / "leases"
    path.write_text(json.dumps([[1, "token", clock[0] + 5]]))
    leases = EnvLeases(path, 3, restarted=True)
    leases.check("token", [1])
    assert leases.free() == [0, 2]
    assert leases.take(1, 60.0)[1] == [0]
    assert EnvLeases(path, 3).free() == [2]
    clock[0] += 6
    assert EnvLeases(path, 3).free() == [1, 2]


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize(
    "entry",
    [
        [0, "t", "x"], [0, "t", None], [0, ["a"], 5.0], [0, None, 5.0], [0, "t", 5.0, "x"],
        [0, "t", 5.0, None], [0, "t", 5.0, -1.0], [0, "t", float("nan")], [0, "t", 5.0, 6.0, 7.0],
        [2, "t", 5.0], [99, "t", 5.0, 6.0], [-1, "t", 5.0], [0.5, "t", 5.0], ["0", "t", 5.0],
        [True, "t", 5.0], [float("nan"), "t", 5.0], [0, "t"], "ab", 5, None,
    ],
)  # fmt: skip
def test_a_damaged_entry_is_refused_as_it_is_read(tmp_path, entry, restarted):
    path = tmp_path / "leases"
    for noted in ([entry], [[1, "good", 5.0, 6.0], entry], entry):
        path.write_text(json.dumps(noted))
        with pytest.raises(FormatError, match=r"leases: damaged \(.*\); a list of"):
            EnvLeases(path, 2, restarted=restarted)


def test_a_lease_for_ever_is_read(tmp_path):
    path = tmp_path / "leases"
    EnvLeases(path, 2).take(1, float("inf"))
    assert EnvLeases(path, 2, restarted=True).free() == [1]


def test_of_the_copies_of_a_writer_the_last_one_has_its_lease(tmp_path, clock):
    leases = EnvLeases(tmp_path / "leases", 4)
    token, envs = leases.take(2, 60.0)
    other, others = leases.take(2, 60.0)
    first = leases.hand_on(token, envs)
    again = leases.hand_on(token, envs)  # of a task that is run again: it has the same token
    last = leases.hand_on(first, envs)  # of a copy of the copy
    assert len({token, first, again, last}) == 4
    leases = EnvLeases(tmp_path / "leases", 4)
    leases.check(last, envs)
    leases.check(other, others)
    for stale in (token, first, again):
        with pytest.raises(UsageError, match="a copy in another process that adds now"):
            leases.check(stale, envs)
    with pytest.raises(UsageError):
        leases.hand_on(other, envs)
    leases.release(first)
    leases.check(last, envs)
    leases.release(last)
    assert leases.free() == envs
    token, envs = leases.take(2, 60.0)
    leases.hand_on(token, envs)
    leases.release(token)  # the writer that was sent is closed where it was made
    assert leases.free() == envs
    with pytest.raises(UsageError):
        leases.hand_on(token, envs)
