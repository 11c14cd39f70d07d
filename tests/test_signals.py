"""Ctrl-C and handlers of signals, put off till what must not stop is done."""

import os
import signal
import sys
import threading

import pytest

import diskreplay
from diskreplay.signals import undisturbed


def test_a_second_ctrl_c_is_heard_at_once():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        done = []

        def twice():
            with undisturbed():
                signal.raise_signal(signal.SIGINT)
                done.append(1)
                signal.raise_signal(signal.SIGINT)
                done.append(2)

        with pytest.raises(KeyboardInterrupt):
            twice()
        assert done == [1]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def at_the_first_line_of(function, do):
    """Do something where Python looks for signals as it begins with a function."""

    def looks(frame, event, argument):
        if event == "call" and frame.f_code is function.__code__:
            sys.setprofile(None)
            do()

    sys.setprofile(looks)


@pytest.mark.parametrize("name", ["__exit__", "_restore"])
def test_a_second_ctrl_c_leaves_nothing_put_off_wherever_it_comes(name):
    heard = []

    def handler(number, frame):
        heard.append(number)

    def twice():
        with undisturbed():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            at_the_first_line_of(
                getattr(undisturbed, name), lambda: signal.raise_signal(signal.SIGINT)
            )

    numbers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: handler}
    before = {number: signal.signal(number, its) for number, its in numbers.items()}
    try:
        with pytest.raises(KeyboardInterrupt):
            twice()
        sys.setprofile(None)
        assert not undisturbed._is_under_way
        assert {number: signal.getsignal(number) for number in numbers} == numbers
        assert heard == [signal.SIGTERM]  # what had come is not lost
        with undisturbed():
            signal.raise_signal(signal.SIGTERM)
            assert heard == [signal.SIGTERM]
        assert heard == [signal.SIGTERM] * 2
    finally:
        sys.setprofile(None)
        for number, old in before.items():
            signal.signal(number, old)


def test_handlers_wait_for_what_must_not_stop():
    """Each that came is called once, in the end, also if one raises; nested blocks are one."""
    heard, numbers = [], (signal.SIGTERM, signal.SIGUSR1)

    def handler(number, frame):
        heard.append(number)
        raise diskreplay.ReentryError(str(number))

    def twice():
        with undisturbed():
            with undisturbed():
                for number in numbers * 3:
                    signal.raise_signal(number)
            assert heard == []

    before = [signal.signal(number, handler) for number in numbers]
    try:
        with pytest.raises(diskreplay.ReentryError):
            twice()
        assert heard == list(numbers)
        assert [signal.getsignal(number) for number in numbers] == [handler, handler]
        with pytest.raises(diskreplay.ReentryError):
            signal.raise_signal(signal.SIGTERM)
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)


def test_one_ctrl_c_is_heard_behind_the_block():
    before, done = signal.signal(signal.SIGINT, signal.default_int_handler), []

    def once():
        with undisturbed():
            signal.raise_signal(signal.SIGINT)
            done.append(1)

    try:
        with pytest.raises(KeyboardInterrupt):
            once()
        assert done == [1]
        with pytest.raises(KeyboardInterrupt):  # and the next one at once
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_nobody_handles_is_left_alone():
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        with undisturbed():
            assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
            signal.raise_signal(signal.SIGUSR2)
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_other_threads_change_no_handlers():
    heard, seen = [], []

    def handler(number, frame):
        heard.append(number)

    def elsewhere():
        with undisturbed():
            seen.append(signal.getsignal(signal.SIGUSR1))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert seen == [handler]
        with undisturbed():  # the block of the other thread has ended nothing of this one
            signal.raise_signal(signal.SIGUSR1)
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            assert not heard
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_child_that_another_thread_forks_puts_nothing_off():
    """The block that the main thread is in does not come to its end there."""
    ended, heard = [], []

    def handler(number, frame):
        heard.append(number)

    def forks():
        child = os.fork()
        if not child:
            signal.raise_signal(signal.SIGTERM)
            with undisturbed():  # this thread's own
                signal.raise_signal(signal.SIGTERM)
                count = len(heard)
            os._exit(10 * count + len(heard))
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with undisturbed():
            thread = threading.Thread(target=forks)
            thread.start()
            thread.join()
            signal.raise_signal(signal.SIGTERM)
            assert not heard  # the parent's is still under way
        assert heard == [signal.SIGTERM]
        assert ended == [12]
    finally:
        signal.signal(signal.SIGTERM, before)
