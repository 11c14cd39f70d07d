"""A reader that keeps up with a writer, step by step, beside lists of rows."""

import errno
import itertools
import shutil

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import small_columns
from diskreplay.errors import CorruptSegmentError, FormatError, StorageError
from diskreplay.store import commit_page, private
from diskreplay.store import store as store_module
from diskreplay.store.follower import Follower
from diskreplay.store.mapping import Mapping
from diskreplay.store.store import Store

ROWS = 8


def make(path, **options):
    return diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 255, (64,), np.uint8), action_space=Discrete(4),
        extras={"state": ((), "int64", "mutable")},
        **{"capacity": None, "compressor": {"observation": "lz4"}, "segment_rows": ROWS, **options},
    )  # fmt: skip


def add(buffer, rows):
    for _ in range(rows):
        n = int(buffer.bounds[0, 1])
        buffer.add(np.full(64, n % 251, np.uint8), n % 4, float(n), False, False, state=n)


def check(store, first, count):
    assert (store.first.tolist(), store.count.tolist()) == ([first], [count])
    rows = np.arange(first, count)
    with store.rwlock:
        for name, expected in (("reward", rows), ("state", rows)):
            assert store.columns[name].read(0, first, count).tolist() == expected.tolist()
        shown = store.columns["observation"].read(0, first, count)
    np.testing.assert_array_equal(shown[:, -1], rows % 251)


@pytest.fixture
def pair(tmp_path, no_upkeep):
    """A writer, and a reader of its store. Only a test moves rows, as the maintenance thread does:
    here nothing reads again what it moved in the middle, as buffers do."""
    with make(tmp_path / "store") as buffer:
        add(buffer, 3)
        store = Store.open(tmp_path / "store", mode="r")
        yield buffer, store
        store.close()


def test_rows_are_seen_when_it_looks(pair):
    buffer, store = pair
    check(store, 0, 3)
    assert store.follower.is_live
    assert store.follower.refresh() is False
    rng = np.random.default_rng(0)
    for _ in range(25):
        count = int(store.count[0])
        more = int(rng.integers(0, 9))
        add(buffer, more)
        if rng.random() < 0.4:
            buffer._rows.store.maintenance.run()
        if rng.random() < 0.2:
            buffer.flush()
        assert store.count.tolist() == [count]
        looks = store.follower.looks
        assert store.follower.refresh() == (more > 0)
        if more:
            assert store.follower.looks > looks
        check(store, 0, count + more)


def test_rows_that_leave_are_seen_to_leave(pair):
    buffer, store = pair
    add(buffer, 40)
    store.follower.refresh()
    buffer.evict([21])
    assert store.follower.refresh()
    check(store, 21, 43)
    buffer.flush()
    store.follower.refresh()
    check(store, 21, 43)


def test_one_that_does_not_follow_keeps_its_rows(pair):
    buffer, store = pair
    add(buffer, 20)
    store.follower.catch_up()
    store.follower.follows = False
    add(buffer, 30)
    buffer.flush()
    store.follower.refresh()
    check(store, 0, 23)
    assert not store.follower.is_over()
    buffer.evict([40])
    buffer.flush()  # their files are deleted
    store.follower.refresh()
    assert store.count.tolist() == [23]


def test_it_is_behind_when_files_were_replaced(pair):
    buffer, store = pair
    follower = store.follower
    assert not follower.is_behind()
    epoch = follower.epoch()
    add(buffer, 4 * ROWS)
    buffer._rows.store.maintenance.run()  # seals, and packs
    assert follower.is_behind()
    assert follower.epoch() == epoch  # what it has mapped is still there
    looks = follower.looks
    assert follower.has_moved_on(looks)
    follower.catch_up()
    assert not follower.is_behind()
    assert follower.has_moved_on(looks)
    assert not follower.has_moved_on(follower.looks)


def test_it_is_over_when_another_store_is_in_its_place_or_it_was_closed_with_more_rows(
    pair, tmp_path
):
    buffer, store = pair
    buffer.save(tmp_path / "ck", 1)
    assert not store.follower.is_over()
    buffer.load(tmp_path / "ck", 1)
    assert store.follower.replaced()
    assert store.follower.is_over()
    assert store.follower.outdated()
    again = Store.open(tmp_path / "store", mode="r")
    add(buffer, 2)
    buffer.close()
    assert again.follower.is_over()
    assert not again.follower.is_live
    last = Store.open(tmp_path / "store", mode="r")
    assert not last.follower.is_over()
    check(last, 0, 5)
    assert last.follower.unrecorded() == ""
    for each in (again, last):
        each.close()


@pytest.mark.parametrize("option", ["capacity", "max_transitions"])
def test_it_is_over_when_a_writer_keeps_other_rows(tmp_path, option):
    with make(tmp_path / "store", **{option: 100}) as buffer:
        add(buffer, 10)
    store = Store.open(tmp_path / "store", mode="r")
    assert not store.follower.is_over()
    assert not store.follower.outdated()
    with make(tmp_path / "store", **{option: 200}):
        assert store.follower.is_over()
        assert store.follower.outdated()
    store.close()


def test_a_closed_store_whose_page_counts_more_than_the_record_is_refused(tmp_path):
    with make(tmp_path / "store") as buffer:
        add(buffer, 10)
    page = commit_page.CommitPage(
        private.commit_page(tmp_path / "store"), 1, 1, writable=True
    )  # fmt: skip
    page.count[0] = 11
    del page
    with pytest.raises(FormatError, match=r"closed with \[11\] rows of each env, and \[10\]"):
        Store.open(tmp_path / "store", mode="r")


@pytest.mark.costly(2)
@pytest.mark.parametrize(
    ("figure", "value", "message"),
    [
        ("count", 2, "2. rows are counted and .10. recorded"),
        ("count", (1 << 62) + 1, "rows are counted"),
        ("count", 1 << 61, "missing, and with it rows"),
        ("count", 1 << 40, "missing, and with it rows"),
        ("first", 99, "rows are kept from"),
        ("first", -1, "rows are kept from"),
    ],
)
def test_a_page_that_cannot_be_is_refused(tmp_path, figure, value, message):
    with make(tmp_path / "store") as buffer:
        add(buffer, 10)
        buffer.flush()
        with buffer._rows.store.maintenance.lock:
            copy = shutil.copytree(tmp_path / "store", tmp_path / "copy")
    page = commit_page.CommitPage(private.commit_page(copy), 1, 1, writable=True)
    getattr(page, figure)[0] = value
    del page
    with pytest.raises((FormatError, CorruptSegmentError), match=message):
        Store.open(copy, mode="r")


def test_a_writer_that_is_always_faster_is_given_up(pair, monkeypatch):
    _buffer, store = pair
    epochs = iter(range(10_000))
    monkeypatch.setattr(type(store.follower), "epoch", lambda self: next(epochs))
    with pytest.raises(StorageError, match="too fast to follow"):
        store.follower.catch_up()
    monkeypatch.undo()
    store.follower.catch_up()
    check(store, 0, 3)


def test_a_checkpoint_has_nobody_to_follow(pair, tmp_path):
    buffer, _store = pair
    path = buffer.save(tmp_path / "ck", 1)
    store = Store.open(path, mode="r")
    follower = store.follower
    assert (follower.is_live, follower.replaced(), follower.epoch()) == (False, False, 0)
    assert (follower.is_behind(), follower.is_over(), follower.refresh()) == (False, False, False)
    assert follower.unrecorded() == ""
    check(store, 0, 3)
    store.close()


ENVS, SLOW = 8, np.arange(8) == 0


class Drifting:
    """A writer of several envs in segments of 16 rows, whose upkeep is done when the test says."""

    def __init__(self, path):
        self.path, self.no = path, np.zeros(ENVS, np.bool_)
        self.buffer = diskreplay.ReplayBuffer(
            path, observation_space=Box(0, 255, (1024,), np.uint8), action_space=Discrete(4),
            compressor="raw", capacity=160 * ENVS, num_envs=ENVS, segment_rows=16, env_group=ENVS,
        )  # fmt: skip

    def add(self, steps, some):
        for _ in range(steps):
            rows = self.buffer.bounds[:, 1] % 250 + 1
            frames = np.repeat(rows[:, None].astype(np.uint8), 1024, 1)
            self.buffer.add(
                frames, np.zeros(ENVS, np.int64), np.ones(ENVS), self.no, self.no, mask=some
            )
        self.buffer._rows.store.maintenance.run(durable=True, spares=True)

    @staticmethod
    def check(reader):
        """Each row that the reader says it has is as it was added."""
        for env, (first, count) in enumerate(reader.bounds.tolist()):
            rows = np.arange(first, count)
            found = reader.take("observation", rows * ENVS + env)
            assert found[:, 0].tolist() == (rows % 250 + 1).tolist()


def test_rows_of_a_file_that_was_made_anew_for_a_slow_env_are_not_read_as_zeros(
    tmp_path, no_upkeep
):
    """A reader that does not follow maps a segment again that it had not seen full."""
    writer = Drifting(tmp_path / "store")
    writer.add(32, ~writer.no)
    writer.add(8, ~SLOW)
    with diskreplay.open(writer.path, follow=False) as reader:
        writer.check(reader)
        for _ in range(40):
            writer.add(8, ~SLOW)
        assert not (writer.path / "observation" / "c.2.0.0").exists()
        for _ in range(40):
            writer.add(8, SLOW)  # makes that file anew, and goes on in copies of sealed ones
            writer.check(reader)
        assert reader.bounds[:, 1].tolist() == [32, *[40] * 7]
    writer.buffer.close()


def test_rows_that_leave_while_a_store_is_opened_are_not_read_as_zeros(
    tmp_path, no_upkeep, monkeypatch
):
    writer = Drifting(tmp_path / "store")
    writer.add(32, ~writer.no)
    writer.add(166, ~SLOW)
    assert writer.buffer.bounds[:2].tolist() == [[0, 32], [38, 198]]
    map_raw = Follower._map_raw

    def late(self, column, is_live):
        if writer.buffer.bounds[1, 1] == 198:
            writer.add(10, ~SLOW)
            writer.add(1, SLOW)
        return map_raw(self, column, is_live)

    monkeypatch.setattr(Follower, "_map_raw", late)
    with diskreplay.open(writer.path, follow=False) as reader:
        writer.check(reader)
        assert reader.bounds[1].tolist() == [48, 198]
    writer.buffer.close()


def test_a_reader_of_a_record_that_is_always_another_one_is_open(tmp_path, monkeypatch):
    with make(tmp_path / "store") as buffer:
        add(buffer, 3)
    found = itertools.count()
    monkeypatch.setattr(store_module, "identity", lambda _path: next(found))
    store = Store.open(tmp_path / "store", mode="r")
    monkeypatch.undo()
    check(store, 0, 3)
    store.close()


def test_rows_that_could_not_be_mapped_are_mapped_by_the_next_look(pair, monkeypatch):
    buffer, store = pair
    add(buffer, 600)  # more than one file of `state` has

    def refuse(*_arguments, **_options):
        raise StorageError(errno.ENOMEM, "too many mappings", "there")

    with monkeypatch.context() as patched:
        patched.setattr(Mapping, "open", refuse)
        with pytest.raises(StorageError, match="too many mappings"):
            store.follower.refresh()
    assert store.follower.refresh()  # somebody has to be told of these rows yet
    check(store, 0, 603)
    assert not store.follower.refresh()


def test_rows_that_could_not_be_taken_in_are_known_to_the_next_call(tmp_path, monkeypatch):
    with make(tmp_path / "store") as buffer:
        add(buffer, 3)
        with diskreplay.open(tmp_path / "store") as reader:
            assert len(reader) == 2
            add(buffer, 3)

            def cut(*_arguments):
                raise KeyboardInterrupt

            with monkeypatch.context() as patched:
                patched.setattr(small_columns, "read", cut)
                with pytest.raises(KeyboardInterrupt):
                    len(reader)
            assert len(reader) == 5
