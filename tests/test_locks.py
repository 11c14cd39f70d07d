"""`docs/design/locks.md` names every lock, and locks are taken in the order that it gives. Signals
leave none of them held."""

import ast
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import call_guard, locks
from diskreplay.errors import ReentryError
from diskreplay.locks import Lock, busy_in, holding, one_call, taking, wait_for
from diskreplay.store import column_files, maintenance, rwlock

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "design" / "locks.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| `")]
MAKERS = ("Lock", "threading.Lock", "threading.RLock", "threading.Condition", "RWLock")
NONE = {
    ("CallGuard", "_busy"),  # made in one line with the lock
    ("rng", "_REENTRANT"),  # the type of one
}


def made_locks():
    """The names that locks are given, each behind its class; of a module's own, behind that."""
    for path in sorted((ROOT / "diskreplay").rglob("*.py")):
        text = path.read_text()
        if any(maker in text for maker in MAKERS):  # few: to parse all takes a second
            yield from _made_in(ast.parse(text), path.stem)


def _made_in(node, owner):
    for part in ast.iter_child_nodes(node):
        yield from _made_in(part, part.name if isinstance(part, ast.ClassDef) else owner)
        if isinstance(part, ast.Assign) and any(
            isinstance(each, ast.Call) and ast.unparse(each.func) in MAKERS
            for each in ast.walk(part.value)
        ):
            for target in part.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                for name in names:
                    yield owner, name.attr if isinstance(name, ast.Attribute) else name.id


def test_locks_are_found():
    assert set(made_locks()) >= NONE | {
        ("CallGuard", "_lock"), ("ColumnFiles", "changing"), ("OpenStore", "rwlock"),
        ("Job", "drawn"), ("shared_buffer", "_lock"),
    }  # fmt: skip


@pytest.mark.parametrize(("owner", "name"), sorted(set(made_locks()) - NONE))
def test_the_page_has_every_lock(owner, name):
    assert any(f"`{name}`" in row and f"`{owner}`" in row for row in ROWS)


BUFFER, MAINTENANCE, CHANGING, RWLOCK = range(4)  # their order on the page


class Held(threading.local):
    """The locks that this thread has, by their places in the order, and the columns' in theirs."""

    def __init__(self):
        self.ranks = []


class Watched:
    """A lock that says so when it is taken behind one which stands below it."""

    held = Held()
    wrong: list = []  # noqa: RUF012 - of all locks of a test
    seen: set = set()  # noqa: RUF012

    def __init__(self, lock, rank):
        self._lock, self._rank = lock, rank

    def acquire(self, *arguments, **options):
        got = self._lock.acquire(*arguments, **options)
        if got:
            self.note(self._rank)
        return got

    def release(self):
        self.held.ranks.remove(self._rank)
        self._lock.release()

    @classmethod
    def note(cls, rank):
        ranks = cls.held.ranks
        again = rank in ranks and rank in (BUFFER, MAINTENANCE, CHANGING)  # an RLock; all columns
        if not again and any(other >= rank for other in ranks):
            cls.wrong.append((list(ranks), rank))
        cls.seen.update((other, rank) for other in ranks)
        ranks.append(rank)

    __enter__ = acquire

    def __exit__(self, *_exception):
        self.release()

    @property
    def taken(self):
        return taking(self)

    def __getattr__(self, name):
        return getattr(self._lock, name)


class WatchedRWLock(rwlock.RWLock):
    """Those who change something; whoever reads may take what stands above it."""

    def __enter__(self):
        super().__enter__()
        Watched.note(RWLOCK)
        return self

    def __exit__(self, *exception):
        Watched.held.ranks.remove(RWLOCK)
        super().__exit__(*exception)


@pytest.fixture
def watched(monkeypatch):
    def made(rank):
        return lambda: Watched(threading.RLock(), rank)

    monkeypatch.setattr(call_guard, "Lock", made(BUFFER))
    monkeypatch.setattr(maintenance, "Lock", made(MAINTENANCE))
    monkeypatch.setattr(column_files, "Lock", made(CHANGING))
    monkeypatch.setattr("diskreplay.store.open_store.RWLock", WatchedRWLock)
    monkeypatch.setattr(Watched, "wrong", [])
    monkeypatch.setattr(Watched, "seen", set())
    return Watched


def test_a_lock_out_of_order_is_noticed(watched):
    above, below = (Watched(threading.Lock(), rank) for rank in (BUFFER, MAINTENANCE))
    with below, above:
        pass
    assert watched.wrong == [([MAINTENANCE], BUFFER)]


def test_locks_are_taken_in_order(tmp_path, watched):
    envs = 2
    with diskreplay.PrioritizedReplayBuffer(
        tmp_path / "store", observation_space=Box(0, 255, (16, 16), np.uint8),
        action_space=Discrete(3), num_envs=envs, capacity=120, segment_rows=8, compressor="lz4",
        batch_size=4,
    ) as buffer:  # fmt: skip
        frames = np.zeros((envs, 16, 16), np.uint8)

        def add(steps):
            for _ in range(steps):
                flags = np.zeros(envs, bool)
                buffer.add(frames, np.zeros(envs, int), np.zeros(envs), flags, flags)

        add(100)  # goes round the ring
        with buffer.prefetch(2, threads=2) as batches:
            for _ in range(8):
                batch = next(batches)
                add(2)
                buffer.update_priorities(batch.id, np.ones(len(batch)))
        buffer.sample(4)
        buffer.flush()
        buffer.save(tmp_path / "checkpoints", 1)
        add(90)
        buffer.evict(buffer.bounds[:, 1] - 10)
        buffer.load(tmp_path / "checkpoints", 1)
        add(40)
    assert watched.wrong == []
    assert watched.seen >= {
        (BUFFER, MAINTENANCE), (BUFFER, CHANGING), (MAINTENANCE, CHANGING), (CHANGING, RWLOCK),
    }  # fmt: skip


class Cut(Exception):
    """What the handler raises."""


def cut(call, check):
    """Cut `call` by a signal again and again, and `check` behind each; how often it was."""
    cuts, end = 0, time.monotonic() + 0.5

    def handler(*_):
        raise Cut

    before = signal.signal(signal.SIGALRM, handler)
    try:
        while time.monotonic() < end or cuts < 50:
            try:
                signal.setitimer(signal.ITIMER_REAL, 3e-5)
                while True:
                    call()
            except Cut:
                cuts += 1
            check()
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("made", [Lock, rwlock.RWLock])
def test_a_signal_leaves_no_lock_held(made):
    lock = made()

    def call():
        with lock:
            pass

    def check():
        assert not lock._is_owned()
        guard = rwlock.ReadGuard()
        if made is rwlock.RWLock:
            lock.acquire_read(guard)  # waits where a changer is still expected
            guard.release()

    cut(call, check)


def test_a_signal_leaves_no_reader_inside():
    lock, guards = rwlock.RWLock(), []

    def call():
        guards[:] = [rwlock.ReadGuard()]
        lock.acquire_read(guards[0])
        guards[0].release()

    def check():
        assert not lock._is_owned()
        for guard in guards:
            guard.release()
        with lock:  # waits for readers
            pass

    cut(call, check)


def test_who_waits_gets_on_where_a_signal_cut_who_was_to_tell_it(monkeypatch):
    """A signal before the first line of `notify_all`: who waits for the reader is never told."""
    lock, guard, changed = rwlock.RWLock(), rwlock.ReadGuard(), threading.Event()
    lock.acquire_read(guard)

    def change():
        with lock:
            changed.set()

    changing = threading.Thread(target=change, daemon=True)
    changing.start()
    while not lock._changed._waiters:
        time.sleep(0.001)
    notify_all = lock._changed.notify_all

    def interrupted():
        if threading.current_thread() is threading.main_thread():
            raise Cut
        notify_all()

    monkeypatch.setattr(lock._changed, "notify_all", interrupted)
    with pytest.raises(Cut):
        guard.release()
    assert not guard.is_held
    assert changed.wait(60)
    changing.join()


def rounds_of(lock):
    """The ways to take a lock that end with it free again, and raise if it was not had."""

    def entered():
        with lock:
            pass

    def read():
        guard = rwlock.ReadGuard()
        lock.acquire_read(guard)
        assert guard.is_held
        guard.release()
        assert not guard.is_held

    both = [entered, lambda: wait_for(lock)]
    return [*both, read] if isinstance(lock, rwlock.RWLock) else both


def stopped(lock, call):
    """What `call` raises where a signal handler raises StopIteration while it waits for the lock,
    which another thread holds."""
    held, waited = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            assert waited.wait(600)

    def handler(number, frame):
        raise StopIteration

    before, holder = signal.signal(signal.SIGALRM, handler), threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(600)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises((diskreplay.UsageError, StopIteration)) as raised:
            call()
        assert "StopIteration" in repr(raised.value)
        if isinstance(raised.value, StopIteration):  # as a ``with`` statement lets it through there
            assert type(lock) is Lock
            assert sys.version_info < (3, 14)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        waited.set()
        holder.join()


@pytest.mark.parametrize(("made", "many"), [(Lock, 2), (rwlock.RWLock, 3)])
def test_a_handler_that_raises_stop_iteration_breaks_no_lock(made, many):
    """It ends loops: without the lock nothing is done, and the lock can be taken later."""
    lock = made()
    rounds = rounds_of(lock)
    assert len(rounds) == many
    for call in rounds:
        stopped(lock, call)
        for each in rounds:
            each()
        assert not lock._is_owned()


def test_a_reader_whose_release_such_a_handler_stops_is_still_inside():
    lock, guard = rwlock.RWLock(), rwlock.ReadGuard()
    lock.acquire_read(guard)
    held, waited = threading.Event(), threading.Event()

    def hold():
        for _ in lock.taken:  # not as a changer, who would wait for the reader
            held.set()
            assert waited.wait(600)
            lock.release()
            return

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(600)

    def handler(number, frame):
        raise StopIteration

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(diskreplay.UsageError, match="StopIteration"):
            guard.release()
    finally:
        signal.signal(signal.SIGALRM, before)
        waited.set()
        holder.join()
    assert guard.is_held
    assert lock.has_readers
    guard.release()
    assert not lock.has_readers


@pytest.mark.costly(1)
@pytest.mark.parametrize("many", [1, 7, 8, 20])
def test_a_signal_leaves_none_of_many_locks_held_and_no_thread_busy(many):
    locks, sets = [Lock() for _ in range(many)], [set() for _ in range(many)]

    def check():
        assert not any(lock._is_owned() for lock in locks)
        assert not any(sets)

    cut(lambda: busy_in(sets, lambda: holding(locks, int)), check)


def test_so_many_locks_are_held_as_there_are():
    locks, sets = [Lock() for _ in range(3000)], [set() for _ in range(3000)]

    def look():
        assert all(lock._is_owned() for lock in locks)
        assert sets == [{threading.get_ident()}] * len(sets)
        return 7

    assert busy_in(sets, lambda: holding(locks, look)) == 7
    assert not any(lock._is_owned() for lock in locks)
    assert not any(sets)


def test_a_signal_leaves_no_other_lock_held():
    lock = threading.Lock()

    def check():
        assert not lock.locked()

    cut(lambda: wait_for(lock), check)


def test_a_lock_lets_its_own_thread_pass_and_keeps_others_out():
    lock, got = Lock(), []
    with lock, lock:
        other = threading.Thread(target=lambda: got.append(lock.acquire(blocking=False)))
        other.start()
        other.join()
    assert got == [False]
    assert not lock._is_owned()


def test_a_lock_of_another_thread_is_waited_for():
    lock, passed = threading.Lock(), threading.Event()
    lock.acquire()
    waiting = threading.Thread(target=lambda: (wait_for(lock), passed.set()))
    waiting.start()
    assert not passed.wait(0.05)
    lock.release()
    waiting.join()
    assert passed.is_set()
    assert not lock.locked()


class Counter:
    """Calls what it is given amid a call."""

    @one_call
    def count(self, meanwhile=None):
        return None if meanwhile is None else meanwhile()

    @one_call
    def other(self):
        return "other"


def test_one_call_at_a_time_of_one_object_by_one_thread():
    counter, another = Counter(), Counter()
    for call in (counter.count, counter.other):
        with pytest.raises(ReentryError, match=r"Counter\."):
            counter.count(call)
    assert counter.count(another.other) == "other"
    with ThreadPoolExecutor(1) as pool:
        assert counter.count(lambda: pool.submit(counter.other).result(60)) == "other"
    with pytest.raises(ZeroDivisionError):
        counter.count(lambda: 1 / 0)
    assert counter.other() == "other"
    assert locks._calls == set()


def test_calls_of_other_threads_are_not_those_of_a_child():
    mine, others = (threading.get_ident(), 1), (threading.get_ident() + 1, 1)
    locks._calls.update([mine, others])
    try:
        locks._forget_others()
        assert locks._calls == {mine}
    finally:
        locks._calls.clear()
