"""One call for each of many things, on threads where there are any."""

import _thread
import threading

import pytest

from diskreplay.store.at_once import at_once


@pytest.mark.parametrize(("count", "most"), [(0, 4), (1, 4), (3, 8), (50, 4), (7, 1)])
def test_each_thing_gets_one_call(count, most):
    seen = []
    at_once(seen.append, range(count), most)
    assert sorted(seen) == list(range(count))


def test_several_at_the_same_time():
    """Each call waits for the others: one after the other they would never end."""
    together = threading.Barrier(4, timeout=300)
    at_once(lambda _: together.wait(), range(4), 4)


@pytest.mark.parametrize("error", [OSError("disk"), KeyboardInterrupt()])
def test_the_caller_gets_an_error_of_any_thread_after_all_have_ended(error):
    together, ended = threading.Barrier(3, timeout=300), []

    def call(number):
        together.wait()
        if number == 1:
            raise error
        ended.append(number)

    with pytest.raises(type(error)):
        at_once(call, range(3), 3)
    assert sorted(ended) == [0, 2]


def test_without_threads_one_after_the_other(monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    seen = []
    at_once(lambda number: seen.append((number, threading.get_ident())), range(5), 4)
    assert seen == [(number, threading.get_ident()) for number in range(5)]
