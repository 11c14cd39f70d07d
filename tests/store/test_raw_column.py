"""Rows of many envs that lie env by env: written into files, which are used again when the ring has
turned."""

import os

import numpy as np
import pytest
import zarr
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.errors import StorageError
from diskreplay.store import file_kernels, files, leases, maintenance
from tests.disks import needs_leases

ENVS, WIDTH, SEGMENT, KEPT = 64, 1024, 16, 64  # segments of 1 MiB


@pytest.fixture(autouse=True)
def used_again(monkeypatch):
    """As on a file system that has leases, wherever the tests have their files. For each file that
    might be used again, whether it was."""
    found, look = [], leases.nobody_else_has

    def noted(path, size):
        found.append(look(path, size))
        return found[-1]

    monkeypatch.setattr(leases, "is_of_one_machine", lambda path: True)
    monkeypatch.setattr(leases, "nobody_else_has", noted)
    return found


def make(path, **options):
    return diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 255, (WIDTH,), np.uint8), action_space=Discrete(4),
        compressor="raw", num_envs=ENVS, segment_rows=SEGMENT,
        **{"capacity": KEPT * ENVS, **options},
    )  # fmt: skip


class Twin:
    """A store, and all rows that each env was given."""

    def __init__(self, path, seed=0, **options):
        self.path, self.rng = path, np.random.default_rng(seed)
        self.buffer = make(path, **options)
        self.rows = [[] for _ in range(ENVS)]

    def add(self, steps, mask=None):
        for _ in range(steps):
            frames = self.rng.integers(0, 256, (ENVS, WIDTH), np.uint8)
            some = np.ones(ENVS, np.bool_) if mask is None else mask(self.rng)
            no = np.zeros(ENVS, np.bool_)
            zeros = np.zeros(ENVS, np.int64)
            self.buffer.add(frames, zeros, np.ones(ENVS), no, no, mask=some)
            for env in np.flatnonzero(some).tolist():
                self.rows[env].append(frames[env])

    def upkeep(self):
        self.buffer._rows.store.maintenance.run(durable=True, spares=True)

    def check(self, buffer=None):
        buffer = self.buffer if buffer is None else buffer
        for env, (first, count) in enumerate(buffer.bounds.tolist()):
            assert count == len(self.rows[env])
            assert first == max(0, count - KEPT)
            found = buffer.take("observation", np.arange(first, count) * ENVS + env)
            expected = np.array(self.rows[env][first:], np.uint8).reshape(-1, WIDTH)
            np.testing.assert_array_equal(found, expected)


def few(rng):
    """The first env never, the last always, and the more often the higher their number."""
    return rng.random(ENVS) < np.arange(ENVS) / (ENVS - 1)


def most(rng):
    """The first env never, the last always, the others in six of ten steps or more."""
    return rng.random(ENVS) < np.where(np.arange(ENVS), 0.6 + 0.4 * np.arange(ENVS) / 63, 0)


@needs_leases
@pytest.mark.parametrize("mask", [None, most], ids=["even", "drifting"])
@pytest.mark.parametrize("groups", [1, 4])
def test_rows_are_what_was_added_as_the_ring_turns_in_files_that_have_left(
    tmp_path, no_upkeep, used_again, mask, groups
):
    # With four groups files are shorter than those which are written so, and used again.
    twin = Twin(tmp_path / "store", env_group=ENVS // groups)
    for _ in range(20):
        twin.add(SEGMENT, mask)
        twin.upkeep()
        twin.check()
    assert sum(used_again) == len(used_again)
    assert (len(used_again) > 3) == (groups == 1)
    with diskreplay.open(twin.path) as reader:
        twin.check(reader)
    twin.buffer.close()
    assert not verify(twin.path).findings
    with make(twin.path, env_group=ENVS // groups) as buffer:
        twin.check(buffer)


@needs_leases
def test_what_checkpoints_and_readers_have_stays_what_it_was(tmp_path, no_upkeep, used_again):
    twin = Twin(tmp_path / "store")
    twin.add(KEPT)
    twin.upkeep()
    twin.buffer.save(tmp_path / "checkpoints", 1)
    with diskreplay.open(twin.path, follow=False) as reader:
        before = [list(rows) for rows in twin.rows]
        for _ in range(12):
            twin.add(SEGMENT)
            twin.upkeep()
        assert set(used_again) == {True, False}
        after, twin.rows = twin.rows, before
        twin.check(reader)
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    assert not verify(checkpoint).findings
    with diskreplay.open(checkpoint) as saved:
        twin.check(saved)
    twin.rows = after
    twin.check()
    twin.buffer.close()


@needs_leases
def test_plain_readers_find_zeros_where_a_slow_env_has_no_rows(tmp_path, no_upkeep, used_again):
    """The files had rows of all envs before."""
    twin = Twin(tmp_path / "store")
    slow = np.arange(ENVS) != 5
    for _ in range(16):
        twin.add(SEGMENT)
        twin.upkeep()
    before = len(used_again)
    for steps in (SEGMENT, SEGMENT, 3):
        twin.add(steps, lambda rng: slow)
        twin.upkeep()
    assert len(used_again) == sum(used_again) > before
    twin.buffer.flush()
    array = zarr.open_array(twin.path / "observation", mode="r")
    last = len(twin.rows[5])
    np.testing.assert_array_equal(array[last - KEPT : last, 5], twin.rows[5][-KEPT:])
    assert array.shape[0] == len(twin.rows[0]) == last + 2 * SEGMENT + 3
    assert not array[last:, 5].any()
    np.testing.assert_array_equal(array[last:, 6], twin.rows[6][last:])
    twin.buffer.close()


def test_without_a_descriptor_rows_go_by_the_mapping(tmp_path, monkeypatch):
    def refused(path):
        raise StorageError(24, "too many open files", str(path))

    monkeypatch.setattr(files, "open_to_write", refused)
    twin = Twin(tmp_path / "store")
    twin.add(3 * SEGMENT, few)
    twin.check()
    twin.buffer.close()


def test_a_row_that_the_system_refuses_is_an_error_and_none_is_added(tmp_path, monkeypatch):
    twin = Twin(tmp_path / "store")
    twin.add(SEGMENT + 3)
    before = twin.buffer.bounds.tolist()
    with monkeypatch.context() as patched:
        written = []

        def half(fd, row_bytes, envs, offsets, source):  # and the kernel stops there
            written.append(write(fd, row_bytes, envs[:20], offsets[:20], source))
            return 20

        def refused(fd, path, data, offset):
            raise StorageError(5, "the disk is worn out", str(path))

        write = file_kernels.write_rows
        patched.setattr(file_kernels, "write_rows", half)
        patched.setattr(files, "write_at", refused)
        with pytest.raises(StorageError, match=r"c\.1\.0\.0: the disk is worn out"):
            twin.add(1)
        assert written == [20]
    assert twin.buffer.bounds.tolist() == before
    twin.check()
    twin.add(SEGMENT)
    twin.check()
    twin.buffer.close()
    assert not verify(twin.path).findings


def test_a_row_that_was_refused_is_not_shown_to_plain_readers(tmp_path, no_upkeep, monkeypatch):
    """Others go on, and the file is full without it."""
    twin = Twin(tmp_path / "store")
    twin.add(SEGMENT + 3)
    with monkeypatch.context() as patched:

        def refused(fd, path, data, offset):
            raise StorageError(28, "the disk is full", str(path))

        write = file_kernels.write_rows
        patched.setattr(
            file_kernels, "write_rows",
            lambda fd, size, envs, *rest: write(fd, size, envs[:20], *rest) and 20,
        )  # fmt: skip
        patched.setattr(files, "write_at", refused)
        with pytest.raises(StorageError, match="the disk is full"):
            twin.add(1)
    twin.add(SEGMENT, lambda rng: np.arange(ENVS) != 5)
    twin.check()
    twin.buffer.close()
    for name in ("observation", "reward"):
        assert not zarr.open_array(twin.path / name, mode="r")[SEGMENT + 3 :, 5].any()


def test_rows_that_only_the_second_call_could_write(tmp_path, monkeypatch):
    write = file_kernels.write_rows
    monkeypatch.setattr(
        file_kernels, "write_rows", lambda fd, size, envs, *rest: write(fd, size, envs[:7], *rest)
    )
    twin = Twin(tmp_path / "store")
    twin.add(SEGMENT + 3, few)
    twin.check()
    twin.buffer.close()


def open_files():
    return len(os.listdir("/proc/self/fd"))


@needs_leases
def test_few_files_are_open_of_a_store_that_was_copied_without_modes(tmp_path, no_upkeep):
    """All its segments are open until the first pass of upkeep."""
    twin = Twin(tmp_path / "store", capacity=None)
    for _ in range(40):
        twin.add(SEGMENT)
        twin.upkeep()
    twin.buffer.close()
    for path in (tmp_path / "store" / "observation").iterdir():
        path.chmod(0o644)
    before = open_files()
    with make(tmp_path / "store", capacity=None) as buffer:
        assert open_files() < before + 30
        twin.buffer = buffer
        twin.add(3)
        for env in (0, 31, ENVS - 1):
            found = buffer.take("observation", np.arange(len(twin.rows[env])) * ENVS + env)
            np.testing.assert_array_equal(found, twin.rows[env])
    assert not verify(twin.path).findings


def test_what_evict_lets_go_of_is_given_back(tmp_path, no_upkeep, monkeypatch, used_again):
    """Also where many files were taken just before, and no row comes any more."""
    monkeypatch.setattr(maintenance.time, "monotonic", lambda: 1e9)
    twin = Twin(tmp_path / "store", capacity=None)
    twin.add(30 * SEGMENT)
    twin.buffer.evict(np.full(ENVS, 29 * SEGMENT))
    for _ in range(8):
        twin.upkeep()
    files_of_store = [path for path in twin.path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_blocks * 512 for path in files_of_store) < 6 << 20
    twin.buffer.close()


def test_rows_go_to_no_other_store_that_came_to_the_path(tmp_path, no_upkeep, monkeypatch):
    """The file of a segment is opened by its path, after its mapping was."""
    twin = Twin(tmp_path / "store")
    other = tmp_path / "other"
    make(other).close()
    (other / "observation" / "c.1.0.0").write_bytes(bytes(ENVS * SEGMENT * WIDTH))
    open_to_write = files.open_to_write

    def moved_first(path):
        if path.name == "c.1.0.0":
            twin.path.rename(tmp_path / "moved")
            other.rename(twin.path)
        return open_to_write(path)

    twin.add(SEGMENT)
    column = twin.buffer._rows.store.columns["observation"]
    with monkeypatch.context() as patched:
        patched.setattr(files, "open_to_write", moved_first)
        column.reserve(np.arange(ENVS), np.full(ENVS, SEGMENT))
    frames = np.full((ENVS, WIDTH), 7, np.uint8)
    column.segments.mapped[1, 0].write_rows(np.arange(ENVS), np.full(ENVS, SEGMENT), frames)
    assert not any((twin.path / "observation" / "c.1.0.0").read_bytes())
    twin.path.rename(other)
    (tmp_path / "moved").rename(twin.path)
    twin.add(3)
    twin.check()
    twin.buffer.close()
