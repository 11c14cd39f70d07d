"""Copies of segments that are not sealed, which a checkpoint gets while rows come."""

import threading
import time

import numpy as np
import pytest

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.store import checkpoint, codec
from diskreplay.store.field import Field
from diskreplay.store.mapping import Mapping
from diskreplay.store.partial import PartialSegment
from diskreplay.store.segment import RawSegment
from tests.store.test_drift import Twin

FRAME = (4, 6)


def save_amid(twin, monkeypatch, meanwhile):
    """Save, and call `meanwhile` when the rows are taken and none of the tail is copied."""
    copy = checkpoint.Contents.copy

    def copy_later(self):
        meanwhile()
        copy(self)

    monkeypatch.setattr(checkpoint.Contents, "copy", copy_later)
    return twin.buffer.save(twin.path.with_name("checkpoints"), 1)


def check(twin, path, rows):
    """That a checkpoint has these rows, and the buffer those that came since."""
    twin.check()
    assert verify(path).findings == ()
    twin.rows = rows
    with diskreplay.open(path) as saved:
        twin.check(saved)
    twin.buffer.close()


@pytest.mark.costly(1)
@pytest.mark.parametrize("compressor", ["lz4", "raw"])
@pytest.mark.parametrize("num_envs", [2, 3])
def test_what_was_in_the_tail_is_in_a_shard_when_it_is_copied(
    tmp_path, monkeypatch, num_envs, compressor
):
    twin = Twin(tmp_path / "live", num_envs=num_envs, kept=2000, compressor=compressor,
                segment_rows=64)  # fmt: skip
    for number in range(333):
        twin.step([number % (env + 1) == 0 for env in range(num_envs)])
    before = [list(rows) for rows in twin.rows]

    def add():
        tail_rows = Field("f", FRAME, np.dtype("u1"), "lz4").tail_rows(num_envs)
        for _ in range(2 * tail_rows):  # so each place has another row
            twin.step([True] * num_envs)

    def meanwhile():
        adding = threading.Thread(target=add)
        adding.start()
        adding.join()  # no lock that an `add` wants is held

    path = save_amid(twin, monkeypatch, meanwhile)
    check(twin, path, before)


def test_rows_that_leave_wait_until_they_are_copied(tmp_path, monkeypatch):
    twin = Twin(tmp_path / "live", num_envs=2, kept=40, compressor="lz4", segment_rows=8)
    for number in range(133):
        twin.step([True, number % 3 == 0])
    before = [list(rows) for rows in twin.rows]
    adding = threading.Thread(target=lambda: [twin.step([True, True]) for _ in range(1000)])

    def meanwhile():
        adding.start()
        rwlock = twin.buffer._rows.store.rwlock
        while not rwlock._waiting:  # it comes to the place of a segment in the table
            assert adding.is_alive()
            time.sleep(0.001)

    path = save_amid(twin, monkeypatch, meanwhile)
    adding.join()
    check(twin, path, before)


@pytest.mark.parametrize(
    ("shape", "group", "num_envs"),
    [((3,), 1, 1), ((3,), 4, 4), ((3,), 4, 7), ((1100,), 4, 4), ((1100,), 4, 7), ((1100,), 1, 3)],
)
@pytest.mark.parametrize("replaced", [False, True])
def test_a_raw_segment_has_the_rows_that_count_and_zeros(
    tmp_path, shape, group, num_envs, replaced
):
    rng = np.random.default_rng(0)
    size = 16
    field = Field("f", shape, np.dtype("u1"), "raw", size, group)
    number, at = 2, (num_envs - 1) // group  # the last group, which may have fewer envs
    for trial in range(12):
        data = rng.integers(1, 255, (size, group, field.row_bytes), np.uint8)
        count = rng.integers(0, (number + 2) * size, num_envs)
        count[at * group] = number * size + 1 + trial  # there is a row
        if trial == 0:
            count[:] = number * size + 5  # all at one row
        envs = np.arange(group) + at * group
        data[:, envs >= num_envs] = 0
        stored = data.swapaxes(0, 1) if field.env_major else data
        source = tmp_path / f"source{trial}"
        source.write_bytes(np.ascontiguousarray(stored).tobytes())
        segment = RawSegment(field, number, at, Mapping.open(source, writable=True))
        partial = PartialSegment(segment, count)
        if replaced:
            partial.copy_values()
            segment.mapping.array[:] = 7
        path = tmp_path / f"partial{trial}"
        seal = partial.write(path)
        expected = np.zeros_like(data)
        for place, env in enumerate(envs[envs < num_envs].tolist()):
            used = min(max(int(count[env]) - number * size, 0), size)
            expected[:used, place] = data[:used, place]
        stored = expected.swapaxes(0, 1) if field.env_major else expected
        assert path.read_bytes() == np.ascontiguousarray(stored).tobytes()
        assert (seal.size, seal.crc32c) == (field.segment_bytes, codec.crc32c(path.read_bytes()))
