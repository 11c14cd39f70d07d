"""Many readers or one changer: who comes in when, by threads that say where they are."""

import threading

import pytest

from diskreplay.store.rwlock import ReadGuard, RWLock

PATIENCE = 60  # seconds


class Thread(threading.Thread):
    """Runs a function, and says when it is done."""

    def __init__(self, function):
        super().__init__(daemon=True)
        self.function, self.done = function, threading.Event()
        self.start()

    def run(self):
        self.function()
        self.done.set()


def entered(lock):
    guard = ReadGuard()
    lock.acquire_read(guard)
    return guard


def waiting_changer(lock, change):
    """A thread that changes something as soon as it may, and that has come so far as to wait."""

    def run():
        with lock:
            change()

    thread = Thread(run)
    while not lock._waiting:
        assert not thread.done.is_set()
    return thread


def test_readers_are_inside_together_and_a_changer_waits_for_the_last():
    lock, told = RWLock(), []
    assert not lock.has_readers
    one, other = entered(lock), entered(lock)
    assert lock.has_readers
    assert one.is_held
    assert other.is_held
    changer = waiting_changer(lock, lambda: told.append("changed"))
    one.release()
    assert not one.is_held
    assert lock.has_readers
    assert not changer.done.wait(0.05)
    Thread(other.release).done.wait(PATIENCE)  # on another thread than it came in
    assert changer.done.wait(PATIENCE)
    assert told == ["changed"]
    assert not lock.has_readers


def test_who_comes_while_a_changer_waits_comes_in_behind_it():
    lock, order = RWLock(), []
    first = entered(lock)
    changer = waiting_changer(lock, lambda: order.append("changer"))

    def read():
        guard = entered(lock)
        order.append("reader")
        guard.release()

    readers = [Thread(read) for _ in range(3)]
    assert not readers[0].done.wait(0.05)
    first.release()
    for thread in (changer, *readers):
        assert thread.done.wait(PATIENCE)
    assert order == ["changer", *["reader"] * 3]


def test_nobody_comes_in_while_one_changes():
    lock, inside, go_on = RWLock(), threading.Event(), threading.Event()

    def change():
        with lock:
            inside.set()
            assert go_on.wait(PATIENCE)

    changer = Thread(change)
    assert inside.wait(PATIENCE)
    reader = Thread(lambda: entered(lock).release())
    assert not reader.done.wait(0.05)
    go_on.set()
    assert reader.done.wait(PATIENCE)
    assert changer.done.wait(PATIENCE)


def test_leaving_twice_is_leaving_once():
    lock = RWLock()
    one, other = entered(lock), entered(lock)
    one.release()
    one.release()
    assert lock.has_readers
    other.release()
    assert not lock.has_readers
    ReadGuard().release()  # that never came in
    with lock:  # so nobody is waited for
        pass


@pytest.mark.parametrize("changes", [True, False])
def test_a_wait_that_is_cut_leaves_the_lock_as_it_was(monkeypatch, changes):
    lock = RWLock()
    guard, late = entered(lock), ReadGuard()
    if not changes:
        changer = waiting_changer(lock, lambda: None)

    def cut(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RWLock, "_wait", cut)
        with pytest.raises(KeyboardInterrupt):
            lock.__enter__() if changes else lock.acquire_read(late)
    assert not late.is_held
    late.release()
    assert lock.has_readers
    guard.release()
    if changes:
        entered(lock).release()  # no changer is said to wait
    else:
        assert changer.done.wait(PATIENCE)
    with lock:
        pass


def test_a_guard_asks_the_follower_whether_it_has_moved_on_since():
    class Follower:
        looks = 5
        asked = ()

        def has_moved_on(self, looks):
            self.asked = (*self.asked, looks)
            return looks != self.looks

    lock, follower, guard = RWLock(), Follower(), ReadGuard()
    assert guard.has_moved_on() is False
    lock.acquire_read(guard, follower)
    assert guard.has_moved_on() is False
    follower.looks = 6
    assert guard.has_moved_on() is True
    assert follower.asked == (5, 5)
    guard.release()
