"""Whose turn it is among the prefetchers of one buffer, with prefetchers that only note calls."""

import threading
from collections import deque

import numpy as np
import pytest

from diskreplay import prefetchers
from diskreplay.errors import UsageError
from diskreplay.locks import Lock
from diskreplay.prefetch import UnderWay
from diskreplay.prefetch_job import Job
from diskreplay.prefetchers import Prefetchers


class Drawn:
    def __init__(self, number):
        self.numbers = [np.array([number, 0]), np.array([number, 1])]


class Pretended:
    """A prefetcher that notes what it is asked for, in a list that all share."""

    def __init__(
        self, buffer, depth, batch_size, beta, threads=1, handovers=None, contiguous=False,
        claimed=True,
    ):  # fmt: skip
        self._buffer, self._depth, self._size, self._beta = buffer, depth, batch_size, beta
        self._claimed, self._jobs, self.log = claimed, deque(), buffer.log

    def has(self, *numbers):
        """Batches under way, asked for at these numbers."""
        self._jobs.extend(Job(number, threading.Lock()) for number in numbers)

    def wait_until_read(self):
        pass

    def _cancel(self):
        found = [(job.number, Drawn(job.number)) for job in self._jobs]
        self._jobs.clear()
        return found

    def claim(self, depth, batch_size, beta, threads, handovers, contiguous):
        if self._claimed or (depth, batch_size) != (self._depth, self._size):
            return False
        self._claimed, self._beta = True, beta
        return True

    def refill(self):
        self.log.append(("refill", self))

    def redraw(self, beta):
        self.log.append(("redraw", self, beta))

    def wait_until_drawn(self):
        self.log.append(("wait", self))

    def close(self):
        self.log.append(("close", self))
        self._buffer.all.forget(self)


class Buffer:
    def __init__(self):
        self.log, self.back = [], []
        self.all = Prefetchers(Lock(), self)

    def put_back(self, arrays):
        self.back.append([array.tolist() for array in arrays])

    def _exponent(self, beta):
        return beta() if callable(beta) else beta

    def make(self, depth=1, size=1, beta=None):
        return self.all.get(self, depth, size, beta, 1, list)


@pytest.fixture
def buffer(monkeypatch):
    monkeypatch.setattr(prefetchers, "Prefetcher", Pretended)
    return Buffer()


def test_draws_are_undone_in_their_order_whoever_asked(buffer):
    one, two, idle = buffer.make(), buffer.make(), buffer.make()
    one.has(4, 9)
    two.has(2, 7, 8)
    assert buffer.all.put_back([one, two, idle]) == [two, one]  # by their oldest ones
    assert buffer.back == [[[n, i] for n in (2, 4, 7, 8, 9) for i in (0, 1)]]
    assert buffer.all.put_back([one, two, idle]) == []


def test_after_a_pause_those_that_had_batches_go_on_in_their_order(buffer):
    one, two, _idle = buffer.make(), buffer.make(), buffer.make()
    one.has(5)
    two.has(3)
    paused = buffer.all.drained()
    assert paused.__enter__() == [two, one]
    assert buffer.log == []
    with pytest.raises(KeyError):
        paused.gen.throw(KeyError())  # a save that fails
    assert buffer.log == [("refill", two), ("refill", one)]


def test_where_one_waits_for_somebody_all_are_drawn_in_turn(buffer):
    waiting = Pretended(buffer, 1, 1, 0.25, claimed=False)
    buffer.all.open.append(waiting)
    one = buffer.make(2, 2, 0.5)
    one.has(1)
    waiting.has(2)
    with buffer.all.drained():
        pass
    assert buffer.log == [("redraw", one, 0.5), ("redraw", waiting, 0.25)]


def test_what_a_checkpoint_says_of_them(buffer):
    plain, fixed = buffer.make(2, 8), buffer.make(1, 4, 0.5)
    idle, scheduled = buffer.make(3, 1, 0.75), buffer.make(4, 2, lambda: 0.125)
    plain.has(6)
    fixed.has(8)
    scheduled.has(5)
    found = buffer.all.describe(buffer.all.put_back(buffer.all.open))
    assert found == [
        UnderWay(2, 8, None, 1), UnderWay(1, 4, 0.5, 2), UnderWay(3, 1, 0.0, -1),
        UnderWay(4, 2, 0.125, 0),
    ]  # fmt: skip
    assert idle in buffer.all.open


def test_a_load_takes_those_that_fit_and_makes_the_others(buffer):
    first, alike, other = buffer.make(2, 8), buffer.make(2, 8), buffer.make(5, 5)
    left = Pretended(buffer, 1, 1, None, claimed=False)  # of an earlier load
    buffer.all.open.append(left)
    before = list(buffer.all.open)
    saved = [UnderWay(1, 1, 0.5, 1), UnderWay(2, 8, None, -1), UnderWay(2, 8, 0.25, 0)]
    resumed = buffer.all.resumed(buffer, saved)
    assert buffer.all.open == before  # nothing has changed yet
    made = resumed.open[0]
    assert made is not left
    assert (made._depth, made._size, made._beta, made._claimed) == (1, 1, 0.5, False)
    assert resumed.open[1:] == [first, alike, other]
    assert resumed.due == [(alike, 0.25), (made, 0.5)]
    buffer.all.take_over(resumed)
    assert buffer.all.open == [made, first, alike, other]
    assert buffer.make(1, 1, 0.75) is made  # whoever asks for such a one gets it
    assert made._beta == 0.75
    assert buffer.make(1, 1, 0.75) is not made  # once


def test_what_was_under_way_is_drawn_once_and_after_an_error_from_there_on(buffer):
    one, two = buffer.make(1, 1), buffer.make(2, 2)
    due = [(two, 0.5), (one, None), (two, 0.25)]
    buffer.all.take_over(prefetchers.Resumed([one, two], list(due)))
    redraw = one.redraw
    one.redraw = lambda beta: 1 / 0
    with pytest.raises(ZeroDivisionError):
        buffer.all.draw_resumed()
    assert buffer.log == [("redraw", two, 0.5)]
    one.redraw = redraw
    buffer.all.draw_pending()
    assert buffer.log[1:] == [
        ("redraw", one, None), ("redraw", two, 0.25), ("wait", one), ("wait", two),
    ]  # fmt: skip
    buffer.log.clear()
    buffer.all.draw_pending()
    assert buffer.log == [("wait", one), ("wait", two)]


def test_closing_closes_all_and_draws_nothing(buffer):
    one, two = buffer.make(), buffer.make()
    buffer.all.take_over(prefetchers.Resumed([one, two], [(one, 0.5)]))
    buffer.all.close()
    assert buffer.log == [("close", one), ("close", two)]
    assert buffer.all.open == []
    buffer.all.draw_resumed()
    assert len(buffer.log) == 2


def test_each_job_comes_after_the_last_that_was_asked_for(buffer):
    job = buffer.all.new_job()
    assert job.number == 1
    assert buffer.all.new_job().number == 1  # nobody asked for that yet
    held = threading.Lock()
    buffer.all.last_asked = 7, held
    assert buffer.all.new_job().number == 8


def test_there_are_so_many_and_no_more(buffer, monkeypatch):
    monkeypatch.setattr(prefetchers, "MOST_PREFETCHERS", 2)
    one, two = buffer.make(), buffer.make()
    with pytest.raises(UsageError, match="2 prefetchers of this buffer are open"):
        buffer.make()
    assert buffer.all.open == [one, two]
    one.close()
    assert buffer.make() in buffer.all.open
