"""Reads of a graph's channels: they end as Ray's own, and sleep meanwhile."""

import itertools

import pytest
from ray.exceptions import RayChannelError, RayChannelTimeoutError
from ray.experimental.channel.shared_memory_channel import Channel

from diskreplay.ray import quiet_reads
from diskreplay.ray.quiet_reads import QuietChannel, QuietWait, read_quietly


class Clock:
    """Time that goes on by sleeping only."""

    def __init__(self):
        self.now, self.slept = 100.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds


class Source:
    """A channel whose values come at given times."""

    def __init__(self, clock, times):
        self.clock, self.times, self.looks = clock, list(times), 0
        self.released = []

    def read(self, timeout):
        assert timeout == 0
        self.looks += 1
        if not self.times or self.clock.now < self.times[0]:
            raise RayChannelTimeoutError("nothing")
        return self.times.pop(0)

    def release_buffer(self, timeout=None):
        self.released.append(timeout)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(quiet_reads, "time", made)
    return made


@pytest.mark.parametrize("timeout", [None, -1, 1000.0])
@pytest.mark.parametrize("after", [0.0, 0.0001, 0.001, 0.05, 3.0, 60.0])
def test_a_value_is_late_by_a_tenth_of_the_wait_at_most(clock, after, timeout):
    comes = clock.now + after
    source = Source(clock, [comes])
    assert QuietWait().read(source.read, timeout) == comes
    late = clock.now - comes
    assert late <= max(0.0002, min(0.11 * after, 0.02)) + 1e-9
    assert source.looks <= 2 + 60 * (1 + after)


def test_what_is_there_is_given_at_once(clock):
    source = Source(clock, [0.0, 0.0])
    wait = QuietWait()
    assert [wait.read(source.read, 0), wait.read(source.read, None)] == [0.0, 0.0]
    assert clock.slept == []


def test_a_read_ends_at_its_timeout_and_the_next_one_goes_on_waiting(clock):
    """Ray reads with a timeout of 0.1 s, again and again."""
    source, wait = Source(clock, [130.0]), QuietWait()
    for number in itertools.count(1):
        try:
            found = wait.read(source.read, 0.1)
            break
        except RayChannelTimeoutError:
            assert clock.now == pytest.approx(100.0 + 0.1 * number)
    assert found == 130.0
    assert source.looks < 3_000, "each read has begun with short pauses"
    clock.slept.clear()
    source.times = [clock.now + 0.001]
    wait.read(source.read, None)
    assert max(clock.slept) < 0.001, "another value is another wait"


def test_a_timeout_of_nothing_looks_once(clock):
    source = Source(clock, [101.0])
    with pytest.raises(RayChannelTimeoutError):
        QuietWait().read(source.read, 0)
    assert (source.looks, clock.slept) == (1, [])


def test_a_channel_that_closes_ends_the_wait(clock):
    def look(timeout):
        if clock.now > 101.0:
            raise RayChannelError("closed")
        raise RayChannelTimeoutError("nothing")

    with pytest.raises(RayChannelError, match="closed"):
        QuietWait().read(look, None)


def test_all_else_of_a_channel_is_its_own(clock):
    source = Source(clock, [100.5])
    channel = QuietChannel(source)
    assert channel.read(1.0) == 100.5
    channel.release_buffer(3)
    assert source.released == [3]
    assert channel.times == []
    with pytest.raises(AttributeError, match="nothing_of_it"):
        channel.nothing_of_it  # noqa: B018


def test_all_channels_of_a_process_sleep(clock, monkeypatch):
    source = Source(clock, [])
    monkeypatch.setattr(Channel, "read", Channel.read)  # put back behind the test
    monkeypatch.setattr(quiet_reads, "_ray_read", lambda channel, timeout: source.read(timeout))
    for _ in range(2):
        read_quietly()
        clock.slept.clear()
        comes = clock.now + 0.5
        source.times = [comes]
        assert Channel.__new__(Channel).read(1.0) == comes
        assert sum(clock.slept) >= 0.5
