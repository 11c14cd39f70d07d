"""The counts of a rate limiter, and loads that are under way; without a cluster."""

import asyncio
import os

import pytest

from diskreplay.errors import RateLimiterTimeout
from diskreplay.ray.coordinator import Coordinator, Ticket
from diskreplay.ray.rate_limiter import MinSize, SampleToInsertRatio


def made(tmp_path, limiter=None):
    return Coordinator({"name": "r"}, limiter, tmp_path / "deep" / "counts")


def test_counts_outlive_the_process_and_a_file_of_another_length_does_not(tmp_path):
    coordinator = made(tmp_path)

    async def count():
        await coordinator.acquire_insert(7, 1.0)
        await coordinator.acquire_sample(20, 1.0)
        await coordinator.give_back(4, "")
        return await coordinator.counts(), await coordinator.options()

    assert asyncio.run(count()) == ((7, 16), ({"name": "r"}, None))
    assert asyncio.run(made(tmp_path).counts()) == (7, 16)
    os.truncate(tmp_path / "deep" / "counts", 8)
    assert asyncio.run(made(tmp_path).counts()) == (0, 0)


def test_a_run_has_one_name_for_ever(tmp_path):
    name = asyncio.run(made(tmp_path).run())
    assert len(name) == 16
    assert asyncio.run(made(tmp_path).run()) == name
    assert asyncio.run(made(tmp_path / "other").run()) != name


def test_each_side_waits_for_the_other(tmp_path):
    """Two samples an insert, and at most 20 more or fewer of them."""
    coordinator, order = made(tmp_path, SampleToInsertRatio(2.0, 4, 20.0)), []

    async def insert():
        for _ in range(40):
            await coordinator.acquire_insert(1, 30.0)
            order.append("i")

    async def sample():
        for _ in range(8):
            await coordinator.acquire_sample(8, 30.0)
            order.append("s")

    async def both():
        await asyncio.gather(insert(), sample())
        return await coordinator.counts()

    assert asyncio.run(both()) == (40, 64)
    inserts = samples = 0
    for each in order:
        inserts, samples = inserts + (each == "i"), samples + 8 * (each == "s")
        if samples:
            assert inserts >= 4
            assert abs((inserts - 4) * 2.0 - samples) <= 20


def test_who_waits_in_vain_is_told_and_not_counted(tmp_path):
    coordinator = made(tmp_path, MinSize(10))

    async def wait():
        await coordinator.acquire_insert(9, 1.0)
        with pytest.raises(RateLimiterTimeout, match=r"waited 0\.01 s to sample 3 transitions"):
            await coordinator.acquire_sample(3, 0.01)
        before = await coordinator.counts()
        waiting = asyncio.create_task(coordinator.acquire_sample(3, 30.0))
        await asyncio.sleep(0)
        assert not waiting.done()
        await coordinator.acquire_insert(1, 1.0)
        await waiting
        return before, await coordinator.counts()

    assert asyncio.run(wait()) == ((9, 0), (10, 3))
    limiter = SampleToInsertRatio(1.0, 1, 5.0)
    coordinator = made(tmp_path / "other", limiter)

    async def insert():
        with pytest.raises(RateLimiterTimeout, match="to insert 100 transitions"):
            await coordinator.acquire_insert(100, 0.01)

    asyncio.run(insert())


def test_samples_that_are_given_back_wake_who_waits(tmp_path):
    coordinator = made(tmp_path, SampleToInsertRatio(1.0, 1, 5.0))

    async def run():
        await coordinator.acquire_insert(4, 1.0)
        await coordinator.acquire_sample(8, 1.0)
        waiting = asyncio.create_task(coordinator.acquire_sample(2, 30.0))
        await asyncio.sleep(0)
        assert not waiting.done()
        await coordinator.give_back(8, "")
        await waiting
        return await coordinator.counts()

    assert asyncio.run(run()) == (4, 2)


def test_a_load_is_under_way_until_it_is_ended(tmp_path):
    coordinator = made(tmp_path)

    def ask(method, *arguments):
        return asyncio.run(getattr(coordinator, method)(*arguments))

    assert ask("load_under_way") is None
    ask("acquire_insert", 3, 1.0)
    ask("begin_load", "one", 70, 60)
    coordinator = made(tmp_path)  # whose process was killed
    assert ask("load_under_way") == "one"
    assert ask("counts") == (3, 0)
    ask("end_load", "another")
    assert (ask("load_under_way"), ask("counts")) == ("one", (3, 0))
    ask("end_load", "one")
    assert (ask("load_under_way"), ask("counts")) == (None, (70, 60))
    ask("acquire_insert", 1, 1.0)
    ask("end_load", "one")  # asked again
    assert ask("counts") == (71, 60)
    assert asyncio.run(made(tmp_path).counts()) == (71, 60)


def test_the_end_of_a_load_wakes_who_waits(tmp_path):
    coordinator = made(tmp_path, MinSize(10))

    async def run():
        waiting = asyncio.create_task(coordinator.acquire_sample(2, 30.0))
        await asyncio.sleep(0)
        await coordinator.begin_load("one", 50, 5)
        await coordinator.end_load("one")
        await waiting
        return await coordinator.counts()

    assert asyncio.run(run()) == (50, 7)


def test_a_request_that_is_cancelled_is_not_counted_and_later_ones_are_made(tmp_path):
    coordinator = made(tmp_path, SampleToInsertRatio(1.0, 1, 5.0))

    async def run():
        await coordinator.acquire_insert(4, 1.0)
        assert await coordinator.acquire_sample(8, 1.0, Ticket("a", 1)) == ""
        waiting = asyncio.create_task(coordinator.acquire_sample(2, 30.0, Ticket("a", 2)))
        other = asyncio.create_task(coordinator.acquire_sample(2, 30.0, Ticket("b", 2)))
        await asyncio.sleep(0)
        await coordinator.cancel(Ticket("a", 2))
        assert await waiting is None
        assert not other.done()
        await coordinator.give_back(8, "")
        assert await other == ""
        assert await coordinator.acquire_sample(2, 1.0, Ticket("a", 2)) is None  # it came late
        assert await coordinator.acquire_sample(2, 1.0, Ticket("a", 3)) == ""
        return await coordinator.counts()

    assert asyncio.run(run()) == (4, 4)


def test_what_was_let_pass_before_a_load_is_not_given_back_to_its_counts(tmp_path):
    coordinator = made(tmp_path, MinSize(1))

    def ask(method, *arguments):
        return asyncio.run(getattr(coordinator, method)(*arguments))

    ask("acquire_insert", 4, 1.0)
    before = ask("acquire_sample", 8, 1.0)
    ask("begin_load", "one", 70, 60)
    ask("end_load", "one")
    ask("give_back", 8, before)
    assert ask("counts") == (70, 60)
    since = ask("acquire_sample", 8, 1.0)
    coordinator = made(tmp_path, MinSize(1))  # whose process was killed
    ask("give_back", 8, before)
    ask("give_back", 8, since)
    assert ask("counts") == (70, 60)
