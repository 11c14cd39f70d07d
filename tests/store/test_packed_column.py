"""Blocks that two threads compress at the same time, and shards that are made ahead."""

import shutil
import threading

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.errors import StoreError
from diskreplay.store import codec
from diskreplay.store.packed_column import PackedColumn

ENVS, BLOCK, TAIL = 2, 8, 16  # rows; frames are so large that a tail has two blocks of each env
FRAME = (1024, 1024)


pytestmark = pytest.mark.usefixtures("no_upkeep")  # each test says what is done, and where


def make(path, **options):
    return diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 255, FRAME, np.uint8), action_space=Discrete(4),
        num_envs=ENVS, compressor="lz4", capacity=None, **options,
    )  # fmt: skip


def add(buffer, rows, envs=range(ENVS)):
    mask = np.isin(np.arange(ENVS), envs)
    for _ in range(rows):
        numbers = buffer.bounds[:, 1] * ENVS + np.arange(ENVS)
        frames = np.zeros((ENVS, *FRAME), np.uint8)
        frames[:] = (numbers % 251)[:, None, None]
        no = np.zeros(ENVS, bool)
        buffer.add(frames, numbers % 4, numbers.astype(float), no, no, mask=mask)


def check(buffer, counts):
    assert buffer.bounds[:, 1].tolist() == counts
    for env, count in enumerate(counts):
        ids = np.arange(count) * ENVS + env
        frames = buffer.take("observation", ids)
        np.testing.assert_array_equal(frames[:, 0, 0], ids % 251)
        np.testing.assert_array_equal(frames[:, -1, -1], ids % 251)


class Held:
    """`codec.encode`, whose first call waits amid its work until it is let go on."""

    def __init__(self, monkeypatch, error=None):
        self.begun, self.go_on, self._encode = threading.Event(), threading.Event(), codec.encode
        self._error = error
        monkeypatch.setattr(codec, "encode", self)

    def __call__(self, *arguments):
        if not self.begun.is_set() and len(arguments[1]):
            self.begun.set()
            assert self.go_on.wait(300)
            if self._error is not None:
                raise self._error
        return self._encode(*arguments)


def in_thread(call, *arguments):
    errors = []

    def run():
        try:
            call(*arguments)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def column_of(buffer):
    (column,) = buffer._rows.store.packed_columns
    return column


def test_an_add_compresses_other_envs_while_a_thread_compresses_one(tmp_path, monkeypatch):
    with make(tmp_path / "store", segment_rows=32) as buffer:
        add(buffer, BLOCK, [0])
        column, held = column_of(buffer), Held(monkeypatch)
        assert column.tail.rows == TAIL
        thread, errors = in_thread(column.pack, buffer._rows.store.count.copy())
        assert held.begun.wait(300)
        add(buffer, TAIL + 1, [1])  # its first block had to go; nobody waits for the other env's
        assert column.tail.packed.tolist() == [0, BLOCK]
        check(buffer, [BLOCK, TAIL + 1])
        held.go_on.set()
        thread.join()
        assert not errors
        assert column.tail.packed.tolist() == [BLOCK, BLOCK]
        check(buffer, [BLOCK, TAIL + 1])


def test_an_add_waits_for_a_block_that_another_thread_has_begun(tmp_path, monkeypatch):
    with make(tmp_path / "store", segment_rows=32) as buffer:
        add(buffer, TAIL, [0])
        column, held = column_of(buffer), Held(monkeypatch)
        packing, errors = in_thread(column._pack, np.arange(ENVS), buffer._rows.store.count.copy())
        assert held.begun.wait(300)
        asked, pack = threading.Event(), column._pack

        def packed(*arguments):
            found = pack(*arguments)
            asked.set()  # nothing to do but to wait
            return found

        column._pack = packed
        adding, more = in_thread(add, buffer, 1, [0])
        assert asked.wait(300)
        assert adding.is_alive()
        assert column.tail.packed.tolist() == [0, 0]
        held.go_on.set()
        for thread in (packing, adding):
            thread.join()
        assert not errors
        assert not more
        assert column.tail.packed.tolist() == [BLOCK, 0]
        check(buffer, [TAIL + 1, 0])


def test_what_a_thread_could_not_compress_another_one_does(tmp_path, monkeypatch):
    with make(tmp_path / "store", segment_rows=32) as buffer:
        add(buffer, TAIL)
        held = Held(monkeypatch, StoreError("the disk is full"))
        held.go_on.set()
        with pytest.raises(StoreError, match="full"):
            add(buffer, 1)
        assert not column_of(buffer)._under_way
        add(buffer, 10)
        check(buffer, [TAIL + 10] * ENVS)


def test_a_call_that_is_interrupted_before_it_says_that_it_has_ended(tmp_path, monkeypatch):
    """As by a second Ctrl-C: later calls do not wait for its blocks for ever."""
    end, interrupted = PackedColumn._end, []

    def interrupt_once(column, call):
        if not interrupted:
            interrupted.append(call)
            raise KeyboardInterrupt
        end(column, call)

    monkeypatch.setattr(PackedColumn, "_end", interrupt_once)
    with make(tmp_path / "store") as buffer:
        add(buffer, TAIL)
        with pytest.raises(KeyboardInterrupt):
            add(buffer, 1)
        add(buffer, 2 * TAIL)
        check(buffer, [3 * TAIL] * ENVS)


def test_a_segment_that_is_sealed_while_a_block_of_it_is_compressed(tmp_path, monkeypatch):
    """The block goes into a copy: the file that was sealed never changes."""
    path = tmp_path / "store"
    with make(path, segment_rows=BLOCK) as buffer:
        add(buffer, BLOCK, [0])
        add(buffer, BLOCK, [1])
        column = column_of(buffer)
        column.pack(buffer._rows.store.count.copy())
        add(buffer, 6 * BLOCK + 1, [0])
        add(buffer, BLOCK, [1])
        held = Held(monkeypatch)
        thread, errors = in_thread(
            column._pack, np.array([1]), buffer._rows.store.count.copy()
        )  # of the second segment, which the fastest env left long ago
        assert held.begun.wait(300)
        buffer._rows.store.maintenance.run()
        sealed = column.segments.mapped[1, 0]
        assert sealed.seal is not None
        before = sealed.path.read_bytes()
        held.go_on.set()
        thread.join()
        assert not errors
        assert sealed.path.read_bytes() == before
        assert column.segments.mapped[1, 0] is not sealed
        add(buffer, 3, [1])
        check(buffer, [7 * BLOCK + 1, 2 * BLOCK + 3])
    with make(path) as buffer:
        check(buffer, [7 * BLOCK + 1, 2 * BLOCK + 3])
    assert not verify(path).findings


@pytest.mark.costly
def test_the_next_shard_is_ready_before_there_is_a_block_for_it(tmp_path):
    path, counts = tmp_path / "store", [32 + TAIL] * ENVS
    with make(path, segment_rows=32) as buffer:
        add(buffer, 24)
        buffer._rows.store.maintenance.run()
        ready = path / "is_final" / "live" / "open.0" / "1.0"
        column = column_of(buffer)
        assert [shard.path for shard in column._next.values()] == [ready]
        assert ready.exists()
        shutil.copytree(path, tmp_path / "killed")
        made = column._next[1, 0]
        add(buffer, 8 + TAIL)
        buffer._rows.store.maintenance.run()
        assert column.segments.mapped[1, 0] is made
        check(buffer, counts)
        shutil.copytree(path, tmp_path / "later")
    for copy, rows in (("store", counts), ("killed", [24] * ENVS), ("later", counts)):
        with make(tmp_path / copy) as buffer:
            check(buffer, rows)
            add(buffer, 40)
            check(buffer, [count + 40 for count in rows])
        assert not verify(tmp_path / copy).findings
    assert not list(path.glob("is_final/live/open.*"))


def test_an_add_waits_for_the_shard_that_is_being_made(tmp_path, monkeypatch):
    """Else both would make a file of that name, and one would lose its blocks."""
    from diskreplay.store.segment import Shard

    with make(tmp_path / "store", segment_rows=32) as buffer:
        add(buffer, 32)
        column, begun, go_on = column_of(buffer), threading.Event(), threading.Event()
        count = buffer._rows.store.count.copy()
        column.pack(np.minimum(count, BLOCK))
        column.pack(count)
        column._next.clear()
        create = Shard.create.__func__
        names = []

        def created(cls, field, number, group, path):
            names.append((number, group))
            begun.set()
            assert go_on.wait(300)
            return create(cls, field, number, group, path)

        monkeypatch.setattr(Shard, "create", classmethod(created))
        making, errors = in_thread(column._make_next)
        assert begun.wait(300)
        adding, more = in_thread(add, buffer, TAIL + 1)
        go_on.set()
        for thread in (making, adding):
            thread.join()
        assert not errors
        assert not more
        assert names == [(1, 0)]
        check(buffer, [32 + TAIL + 1] * ENVS)
