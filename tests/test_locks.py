"""`docs/design/locks.md` names every lock, and locks are taken in the order that it gives."""

import ast
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import session
from diskreplay.store import column_files, maintenance, rwlock

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "design" / "locks.md").read_text()
MAKERS = ("threading.Lock", "threading.RLock", "threading.Condition", "threading.Semaphore",
          "RWLock")  # fmt: skip


def made_locks():
    """The names that locks are given, each with its module."""
    for path in sorted((ROOT / "diskreplay").rglob("*.py")):
        text = path.read_text()
        if not any(maker in text for maker in MAKERS):
            continue  # most: to parse all takes a second
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Assign) and any(
                isinstance(part, ast.Call) and ast.unparse(part.func) in MAKERS
                for part in ast.walk(node.value)
            ):
                for target in node.targets:
                    names = target.elts if isinstance(target, ast.Tuple) else [target]
                    for name in names:
                        last = name.attr if isinstance(name, ast.Attribute) else name.id
                        yield path.relative_to(ROOT).as_posix(), last


def test_locks_are_found():
    assert {name for _, name in made_locks()} >= {"_lock", "changing", "rwlock", "drawn", "lock"}


@pytest.mark.parametrize(("path", "name"), sorted(set(made_locks()) - {
    ("diskreplay/session.py", "_busy")  # made in one line with the lock
}))  # fmt: skip
def test_the_page_has_every_lock(path, name):
    assert f"`{name}`" in PAGE, path


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


def threads_with(**locks):
    return SimpleNamespace(**{**vars(threading), **locks})


@pytest.fixture
def watched(monkeypatch):
    monkeypatch.setattr(session, "threading", threads_with(
        RLock=lambda: Watched(threading.RLock(), BUFFER)))  # fmt: skip
    monkeypatch.setattr(maintenance, "threading", threads_with(
        RLock=lambda: Watched(threading.RLock(), MAINTENANCE)))  # fmt: skip
    monkeypatch.setattr(column_files, "threading", threads_with(
        Lock=lambda: Watched(threading.Lock(), CHANGING)))  # fmt: skip
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
