"""One adding thread and several sampling ones, and one writing process and several readers.

Each row carries a checksum of its own observation, and of its own id, as extras: whatever is torn,
stale or mixed up shows.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.store.rwlock import ReadGuard
from tests import processes

ROOT = Path(__file__).resolve().parent.parent
FRAME = (64, 64)
EXTRAS = {"checksum": ((), "uint32"), "number": ((), "int64")}
STACK, HORIZON, CAPACITY = 3, 2, 300
PATIENCE_S = 400.0  # until what a test waits for has happened, on a machine however busy
BASE = np.random.default_rng(0).integers(0, 256, (64, *FRAME), np.uint8)


def make(path, compressor, **changed):
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, FRAME, "uint8"), action_space=Discrete(4),
        capacity=CAPACITY, stack_size=STACK, update_horizon=HORIZON, extras=EXTRAS,
        compressor=compressor, segment_rows=32, seed=1, **changed,
    )  # fmt: skip


def frame(i):
    """Its number is in it, the rest is noise that no other has next to it."""
    made = BASE[i % 64] + np.uint8(i % 251)
    made.reshape(-1)[:8] = np.frombuffer(np.int64(i).tobytes(), np.uint8)
    return made


def checksum(observation):
    return zlib.crc32(np.ascontiguousarray(observation))


def add(buffer, i):
    """The i-th step: episodes of 50, every second one truncated with its final frame."""
    ended = i % 50 == 49
    observation = frame(i)
    buffer.add(
        observation, i % 4, float(i % 1000), ended and i % 100 != 49, ended and i % 100 == 49,
        frame(-i - 1) if ended else None, checksum=checksum(observation), number=i,
    )  # fmt: skip


def number_in(observation):
    first = observation.reshape(len(observation), -1)[:, :8]
    return np.ascontiguousarray(first).view(np.int64)[:, 0]


def check(batch):
    """Every row is whole, and its stack and next stack are those of its episode."""
    newest = batch.observation[:, -1]
    numbers = np.asarray(batch.number)
    assert [checksum(one) for one in newest] == batch.checksum.tolist()
    np.testing.assert_array_equal(number_in(newest), numbers)
    np.testing.assert_array_equal(batch.action, numbers % 4)
    # Rows are numbered with the final rows in between: one for each 50 steps.
    np.testing.assert_array_equal(batch.id, numbers + numbers // 50)
    in_episode = numbers % 50
    for k in range(1, STACK):
        older = batch.observation[:, -1 - k]
        there = in_episode >= k
        np.testing.assert_array_equal(number_in(older)[there], numbers[there] - k)
        assert not older[~there].any()
    steps = np.minimum(HORIZON, 50 - in_episode)
    np.testing.assert_array_equal(batch.steps, steps)
    final = in_episode + steps == 50
    following = number_in(batch.next_observation[:, -1])
    np.testing.assert_array_equal(
        following, np.where(final, -(numbers - in_episode + 49) - 1, numbers + steps)
    )
    reward = numbers % 1000 + np.where(steps == 2, 0.99 * ((numbers + 1) % 1000), 0)
    np.testing.assert_allclose(batch.reward, reward, rtol=1e-5)


@pytest.mark.parametrize("compressor", ["lz4", "raw"])
def test_threads(tmp_path, compressor):
    failures, batches, stop = [], [], threading.Event()
    before = threading.active_count()

    def guarded(work):
        def run():
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:
                failures.append(error)
                stop.set()

        return threading.Thread(target=run, daemon=True)

    with make(tmp_path / "store", compressor) as buffer:
        for i in range(100):
            add(buffer, i)

        def adding():
            add(buffer, buffer.add_count)

        def sampling():
            batch = buffer.sample(16)
            check(batch)
            buffer.update_priorities(batch.id, 0.1 + batch.reward / 100)
            batches.append(len(batch.id))

        def reusing():
            nonlocal out
            out = buffer.sample(8, out=out)
            check(out)
            assert len(buffer) > 0
            reused.append(len(out.id))

        def prefetching():
            with buffer.prefetch(2, 8) as ahead:
                for _ in range(20):
                    check(next(ahead))
            prefetched.append(20)

        def saving():
            buffer.save(tmp_path / "checkpoints", len(saved))
            saved.append(buffer.add_count)
            buffer.flush()
            buffer.statistics()
            stop.wait(0.02)  # others are to have a turn between two saves

        def enough():
            """Each thread did its part, and the ring has wrapped under all of them."""
            return (
                buffer.add_count > 5 * CAPACITY
                and min(len(batches), len(reused)) > 100
                and len(saved) >= 3
                and prefetched
            )

        out, saved, reused, prefetched = None, [], [], []
        workers = [guarded(w) for w in (adding, sampling, reusing, prefetching, saving)]
        for worker in workers:
            worker.start()
        until = time.monotonic() + PATIENCE_S
        while not (enough() or stop.wait(0.02)):
            if time.monotonic() > until:
                break  # what is missing is said below
        stop.set()
        for worker in workers:
            worker.join(PATIENCE_S)
            assert not worker.is_alive()
        if failures:
            raise failures[0]
        count = buffer.add_count
        assert enough(), (count, len(batches), len(reused), len(saved), len(prefetched))
        for _ in range(20):
            check(buffer.sample(32))
        assert threading.active_count() <= before + 1  # the maintenance thread
        buffer.tree.check()
    with diskreplay.open(tmp_path / "store") as reader:
        assert reader.add_count == count
        check(reader.sample(64))
    for at in (tmp_path / "checkpoints").iterdir():
        with diskreplay.open(at) as reader:
            check(reader.sample(64))


READER = """
import sys
import diskreplay
from tests import test_threads

reader = diskreplay.open(sys.argv[1])
print("ready", flush=True)
batches, first, seen = 0, reader.add_count, 0
while batches <= 60 or seen - first <= 3 * test_threads.CAPACITY:
    test_threads.check(reader.sample(16))
    assert reader.add_count >= seen
    seen = reader.add_count
    batches += 1
reader.close()
print(batches, seen - first)
"""


@pytest.mark.parametrize("compressor", ["lz4", "raw"])
def test_processes(tmp_path, compressor):
    with make(tmp_path / "store", compressor) as buffer:
        for i in range(100):
            add(buffer, i)
        readers = [
            processes.Process(
                READER, tmp_path / "store", stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for _ in range(2)
        ]
        try:
            for reader in readers:
                assert reader.stdout.readline() == "ready\n", reader.stderr.read()
            deadline = time.monotonic() + PATIENCE_S
            while any(reader.poll() is None for reader in readers):
                assert time.monotonic() < deadline, "they do not get to see what is added"
                for _ in range(20):
                    add(buffer, buffer.add_count)
                time.sleep(0.004)  # readers are to be able to follow
            said = [reader.communicate() for reader in readers]
        finally:
            for reader in readers:
                reader.kill()
                reader.communicate()
        for reader, (out, err) in zip(readers, said, strict=True):
            assert reader.returncode == 0, err
            batches, followed = map(int, out.split())
            assert batches > 60
            assert followed > 3 * CAPACITY, "the ring should have wrapped"
        check(buffer.sample(32))


def failing_in_a_child(calls, *, refused):
    """The number, from 1 on, of the first call that a forked child is not refused, or, if it is not
    to be `refused`, that fails there; 0 if there is none."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # ends it where it waits
        status = 100
        try:
            for number, call in enumerate(calls):
                status = number + 1
                with pytest.raises(diskreplay.ForkedError) if refused else contextlib.nullcontext():
                    call()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_child_closes_its_copies_and_its_parent_goes_on(tmp_path, mode):
    """To close a view or a union was refused: a child that left a `with` statement, to exit, ended
    with that error."""
    with make(tmp_path / "store", "raw") as buffer:
        for i in range(60):
            buffer.add(frame(i), 0, 1.0, False, False, checksum=0, number=i)
    own = make(tmp_path / "store", "raw") if mode == "a" else diskreplay.open(tmp_path / "store")
    with (
        own, own.prefetch(2, 4) as ahead, contextlib.closing(own.sequences(4)) as view,
        view.prefetch(2, 4) as windows,
        diskreplay.ReplayUnion([own]) as union, union.sequences(3, name="all") as views,
        union.prefetch(2, 4) as drawn,
    ):  # fmt: skip
        sources = [ahead, windows, drawn]
        for each in sources:
            next(each)
        closing = [*sources, views, union, view, own]
        assert failing_in_a_child([each.close for each in closing], refused=False) == 0
        for each in sources:
            next(each)
        for each in (own, view, union, views):
            each.sample(4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_that_was_forked_amid_a_call_of_another_thread_is_refused(tmp_path):
    """It has the lock as it was, and no thread that would let go of it."""
    with make(tmp_path / "store", "raw") as buffer:
        for i in range(60):
            buffer.add(frame(i), 0, 1.0, False, False, checksum=0, number=i)
        view, union = buffer.sequences(4, prioritized=True), diskreplay.ReplayUnion([buffer])
        ids, anchors = buffer.sample(4).id, view.sample(4).anchor
        calls = [
            lambda: buffer.sample(4), lambda: buffer.gather(ids), lambda: buffer.take("step", ids),
            lambda: buffer.update_priorities(ids, np.ones(4)), buffer.priority_mass,
            lambda: len(buffer), lambda: buffer.bounds, lambda: buffer.add_count,
            buffer.sampleable_ids, buffer.statistics, buffer.episodes, buffer.to_pandas,
            buffer.flush, buffer.clear, lambda: buffer.save(tmp_path / "saved", 1),
            lambda: buffer.sequences(3), buffer.prefetch, lambda: view.sample(4), view.prefetch,
            lambda: view.gather(anchors), lambda: view.update_priorities(anchors, np.ones(4)),
            lambda: union.sample(4), lambda: union.gather(ids), union.prefetch,
        ]  # fmt: skip
        held, done = threading.Event(), threading.Event()

        def amid_a_call():
            with buffer._lock:
                held.set()
                done.wait(PATIENCE_S)

        thread = threading.Thread(target=amid_a_call)
        thread.start()
        held.wait(PATIENCE_S)
        try:
            assert failing_in_a_child(calls, refused=True) == 0
        finally:
            done.set()
            thread.join()
        union.close()
        assert len(buffer.sample(4)) == 4


@pytest.mark.costly(1)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("amid", ["nothing", "a call", "a read", "a prefetcher"])
def test_a_reader_in_a_child(tmp_path, amid):
    """Refused where another thread of the parent had the lock, or read, and read on with else."""
    with make(tmp_path / "store", "raw") as buffer:
        for i in range(60):
            buffer.add(frame(i), 0, 1.0, False, False, checksum=0, number=i)
        ids = buffer.sample(4).id
    reader = diskreplay.open(tmp_path / "store")
    calls = [
        lambda: reader.sample(4), lambda: reader.gather(ids), lambda: reader.take("step", ids),
        lambda: len(reader), reader.statistics, reader.episodes,
    ]  # fmt: skip
    for call in calls:
        call()
    held, done = threading.Event(), threading.Event()

    def hold():
        guard = ReadGuard()
        if amid == "a read":
            reader._rows.store.rwlock.acquire_read(guard)
        with reader._lock if amid == "a call" else contextlib.nullcontext():
            held.set()
            done.wait(PATIENCE_S)
        guard.release()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(PATIENCE_S)
    if amid == "a prefetcher":
        next(reader.prefetch(2, 4))
    try:
        assert failing_in_a_child(calls, refused=amid != "nothing") == 0
    finally:
        done.set()
        thread.join()
    assert len(reader.sample(4)) == 4
    reader.close()
