"""Threads that are started where there may be no more."""

import signal
import threading

import pytest

from diskreplay import thread_start
from diskreplay.errors import ReentryError
from diskreplay.thread_start import try_to_start


class Refused(threading.Thread):
    """Raises an error as it is started."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def start(self):
        raise self.error


class EndOfPython(RuntimeError):
    """As `PythonFinalizationError`, which there is from Python 3.13 on."""


def test_it_runs():
    ran = threading.Event()
    thread = threading.Thread(target=ran.set)
    assert try_to_start(thread)
    thread.join()
    assert ran.is_set()


def test_no_more_are_to_be_had(monkeypatch):
    assert not try_to_start(Refused(RuntimeError("can't start new thread")))
    monkeypatch.setattr(thread_start, "_NO_MORE", (RuntimeError, EndOfPython))
    assert not try_to_start(Refused(EndOfPython("can't create new thread")))


@pytest.mark.parametrize(
    "error", [RecursionError(), NotImplementedError(), ReentryError(), MemoryError(), SystemExit()]
)
def test_other_errors_are_raised(error):
    with pytest.raises(type(error)) as caught:
        try_to_start(Refused(error))
    assert caught.value is error


def test_a_signal_waits_until_it_runs():
    heard, running = [], threading.Event()

    class Signals(threading.Thread):
        def start(self):
            signal.raise_signal(signal.SIGUSR1)
            assert not heard
            super().start()

    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(running.is_set()))
    try:
        thread = Signals(target=running.set)
        assert try_to_start(thread)
        thread.join()
        assert len(heard) == 1
    finally:
        signal.signal(signal.SIGUSR1, before)
