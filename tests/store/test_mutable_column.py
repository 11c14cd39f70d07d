"""A column whose values are written again, beside an array: which file they go to, and when."""

import os
import random

import numpy as np
import pytest

from diskreplay.errors import DiskFullError, StoreMovedError
from diskreplay.store import private
from diskreplay.store.field import Field
from diskreplay.store.mapping import Mapping
from diskreplay.store.mutable_column import MutableColumn
from diskreplay.store.place import Place
from diskreplay.store.rwlock import RWLock

ENVS, ROWS, GROUP = 3, 4, 2  # segments of four rows; envs 0 and 1 share files, 2 has its own
FIELD = Field("h", (3,), np.dtype("f4"), "raw", ROWS, GROUP, mutable=True)


class Beside:
    """A column and the array that it stands for."""

    def __init__(self, path):
        path.mkdir()
        self.column = MutableColumn(Place(path), 0, FIELD, ENVS, None, RWLock())
        self.column.files.make_way(self.column.files.paths.unsealed())
        self.rows = np.zeros((64, ENVS, *FIELD.shape), np.float32)
        self.count = np.zeros(ENVS, np.int64)
        self.shared = {}  # what checkpoints have: a link, and the bytes that it had
        self._last = 0.0

    def new(self, number):
        self._last += 1
        return (
            np.full((number, *FIELD.shape), self._last, np.float32)
            + np.arange(3, dtype=np.float32) / 8
        )

    def add(self, envs):
        envs = np.asarray(envs)
        values, rows = np.zeros((ENVS, *FIELD.shape), np.float32), self.count[envs]
        values[envs] = self.rows[rows, envs] = self.new(len(envs))
        self.column.reserve(envs, rows)
        self.column.scatter(envs, rows, values, None)
        self.count[envs] += 1

    def fill(self, rows, envs=range(ENVS)):
        for _ in range(rows):
            self.add(list(envs))

    def put(self, ids):
        ids = np.asarray(ids)
        values = self.new(len(ids))
        self.column.own(ids)
        self.column.put(ids, values)
        self.rows[ids // ENVS, ids % ENVS] = values

    def seal_full(self):
        for segment in self.column.segments.full(self.count):
            self.column.seal(segment)

    def freeze(self):
        """As a save does: what is full is sealed, and linked."""
        self.seal_full()
        frozen = list(self.column.freeze())
        for segment in self.column.segments.mapped.values():
            if segment.seal is not None:
                link = segment.path.parent.parent / f"link{len(self.shared)}"
                os.link(segment.path, link)
                self.shared[link] = link.read_bytes()
        return frozen

    def check(self):
        for env in range(ENVS):
            found = self.column.read(env, 0, int(self.count[env]))
            np.testing.assert_array_equal(found, self.rows[: self.count[env], env])
        ids = np.array(
            [row * ENVS + env for env in range(ENVS) for row in range(self.count[env])], np.int64
        )
        out = np.empty((len(ids), *FIELD.shape), np.float32)
        self.column.take(np.ascontiguousarray(ids[::-1]), out)
        np.testing.assert_array_equal(out[::-1], self.rows[ids // ENVS, ids % ENVS])
        for link, data in self.shared.items():
            assert link.read_bytes() == data, "what a checkpoint has was written to"

    def segment(self, number, group=0):
        return self.column.segments.mapped[number, group]

    def chunk(self, number, group=0):
        return self.column.files.paths.chunk(number, group)


@pytest.fixture
def beside(tmp_path):
    made = Beside(tmp_path / "store")
    yield made
    made.column.close()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_written_when_is_read_and_in_no_checkpoint(beside, seed):
    rng = random.Random(seed)
    for _ in range(80):
        what = rng.choice(["add", "add", "put", "put", "freeze", "place", "seal"])
        if what == "add" and beside.count.max() < 60:
            beside.add([env for env in range(ENVS) if rng.random() < (1.0, 0.6, 0.8)[env]] or [0])
        elif what == "put" and beside.count.any():
            env = rng.choice([env for env in range(ENVS) if beside.count[env]])
            rows = {rng.randrange(beside.count[env]) for _ in range(rng.randint(1, 4))}
            beside.put([row * ENVS + env for row in rows])
        elif what == "freeze":
            beside.freeze()
        elif what == "place":
            beside.column.place_copies()
        elif what == "seal":
            beside.seal_full()
        beside.check()
    beside.column.place_copies()
    for (number, group), segment in beside.column.segments.mapped.items():
        assert segment.path == beside.chunk(number, group)
        found = np.fromfile(segment.path, np.float32).reshape(-1)
        np.testing.assert_array_equal(found, segment.values.reshape(-1))
    assert len(beside.shared) > 1


def test_a_full_file_gets_values_until_a_checkpoint_shares_it(beside):
    beside.fill(ROWS + 1)
    beside.seal_full()
    assert set(beside.column.segments.open) == {(1, 0), (1, 1)}
    assert beside.segment(0).seal is None
    before = beside.chunk(0).stat().st_ino
    beside.put([0, 4])
    assert beside.chunk(0).stat().st_ino == before
    assert set(beside.freeze()) == {beside.chunk(0), beside.chunk(0, 1)}
    assert beside.segment(0).seal is not None
    assert not beside.chunk(0).stat().st_mode & 0o222
    assert list(beside.column.freeze()) == []  # once
    assert beside.segment(1).seal is None  # rows come to it
    beside.check()


def test_a_copy_is_aside_until_it_is_placed(beside):
    beside.fill(ROWS)
    beside.freeze()
    old = beside.chunk(0).read_bytes()
    beside.column.files.new.clear()
    beside.put([1])
    copy = beside.segment(0)
    assert copy.is_aside
    assert private.directory(beside.chunk(0).parents[1]) in copy.path.parents
    assert beside.chunk(0).read_bytes() == old  # as after a power cut now
    assert (0, 0) not in beside.column.segments.open
    assert beside.segment(0, 1).path == beside.chunk(0, 1)  # nobody wrote to that
    aside = copy.path
    beside.put([3])  # the same copy
    assert beside.segment(0) is copy
    beside.column.place_copies()
    assert not aside.exists()
    assert not copy.is_aside
    assert copy.path == beside.chunk(0)
    assert beside.chunk(0) in beside.column.files.new
    found = np.frombuffer(beside.chunk(0).read_bytes(), np.float32)
    np.testing.assert_array_equal(found, copy.values.reshape(-1))
    assert beside.chunk(0).read_bytes() != old
    beside.check()


def test_copies_are_synced_before_they_take_the_place_of_what_a_record_counts_on(
    beside, monkeypatch
):
    from diskreplay.store import files

    beside.fill(ROWS)
    beside.freeze()
    beside.put([0, 2])  # both groups
    done = []
    monkeypatch.setattr(files, "sync", lambda paths: done.extend(("sync", p) for p in paths))
    rename = files.rename
    monkeypatch.setattr(files, "rename", lambda a, b: (done.append(("rename", a)), rename(a, b)))
    aside = [beside.segment(0).path, beside.segment(0, 1).path]
    beside.column.place_copies()
    assert [what for what, _ in done] == ["sync"] * 2 + ["rename"] * 2
    assert [path for _, path in done] == aside * 2


def test_a_flush_syncs_what_was_written_to_since_the_last_one(beside):
    beside.fill(ROWS + 1)
    beside.seal_full()
    opened = {beside.chunk(1), beside.chunk(1, 1)}
    assert set(beside.column.unsynced()) == opened  # what is full was synced when it was sealed
    beside.put([2])  # env 2
    assert set(beside.column.unsynced()) == opened | {beside.chunk(0, 1)}
    beside.put([ROWS * ENVS])
    assert sorted(beside.column.unsynced()) == sorted(opened | {beside.chunk(0, 1)})  # none twice
    beside.column.flushed()
    assert set(beside.column.unsynced()) == opened
    beside.freeze()
    beside.put([0])
    assert set(beside.column.unsynced()) == opened | {beside.segment(0).path}  # where it is now


def test_a_slow_env_finds_its_file_open_again(beside):
    beside.fill(ROWS + 2, [0])
    beside.fill(1, [1])
    for segment in beside.column.segments.list_open():
        if segment.number == 0:
            beside.column.seal(segment)  # the fastest env is far ahead
    before = beside.segment(0)
    beside.add([1])
    assert beside.segment(0) is before  # no checkpoint has it: it goes on
    assert beside.column.segments.open[0, 0] is before
    assert before.reopened_at == 2 * ROWS
    beside.column.seal(before)
    beside.freeze()
    beside.add([1])
    copy = beside.segment(0)
    assert copy is not before
    assert copy.is_aside
    assert beside.column.segments.open[0, 0] is copy
    assert copy.reopened_at == 2 * ROWS
    beside.check()


def test_where_a_copy_fails_all_is_as_before(beside, monkeypatch):
    beside.fill(2 * ROWS)
    beside.freeze()
    mapped, kept = dict(beside.column.segments.mapped), list(beside.column.unsynced())
    copy_of, made = Mapping.copy_of, []

    def full(source, path):
        if len(made) == 2:
            raise DiskFullError(28, "full", str(path))
        made.append(path)
        return copy_of(source, path)

    monkeypatch.setattr(Mapping, "copy_of", full)
    with pytest.raises(DiskFullError):
        beside.column.own(np.arange(2 * ROWS * ENVS))  # four files
    assert len(set(made)) == 2
    assert not any(path.exists() for path in made)
    assert beside.column.segments.mapped == mapped
    assert beside.column.unsynced() == kept
    beside.check()
    monkeypatch.undo()
    beside.put(np.arange(2 * ROWS * ENVS))
    beside.check()


def test_a_store_that_was_moved_gets_no_copies(beside, tmp_path):
    beside.fill(ROWS)
    beside.freeze()
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreMovedError):
        beside.column.own(np.array([0]))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_partial_copy_has_the_values_of_the_moment_when_it_was_asked_for(beside, tmp_path):
    beside.fill(ROWS - 1)
    expected = beside.rows[:ROWS].copy()
    partial = beside.column.partial((0, 0), beside.count.copy())
    beside.put([0, 4])
    beside.add([0])
    partial.write(tmp_path / "partial")
    (found := beside.segment(0)).mapping.array[:] = np.fromfile(tmp_path / "partial", np.uint8)
    for env in range(GROUP):
        np.testing.assert_array_equal(found.rows(env), expected[:, env])
