"""Stacks and next stacks of windows of rows, read in one go, as `take` gives each of them."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay import errors
from diskreplay.store import read_job
from tests.effort import effort

FRAME = Box(0, 255, (5, 7), "uint8")


def filled(compressor, num_envs, rows, rng, path=None):
    buffer = diskreplay.ReplayBuffer(
        path, observation_space=FRAME, action_space=Discrete(5), capacity=100 * num_envs,
        num_envs=num_envs, compressor=compressor, segment_rows=16,
    )  # fmt: skip
    for env in range(num_envs):
        buffer.extend({
            "observation": rng.integers(0, 256, (rows, *FRAME.shape), np.uint8),
            "action": np.zeros(rows, np.int64), "reward": np.zeros(rows, np.float32),
            "terminated": np.zeros(rows, np.bool_), "truncated": np.zeros(rows, np.bool_),
            "step": np.arange(rows, dtype=np.int32), "is_final": np.zeros(rows, np.bool_),
        }, env)  # fmt: skip
    return buffer


def some_windows(buffer, count, width, rng):
    """Rows that follow each other, some of them repeated at the start, some ids negative, and some
    windows of rows from anywhere."""
    envs = rng.integers(0, buffer.num_envs, (count, 1))
    low, high = buffer.bounds.max(axis=0)[0], buffer.bounds.min(axis=0)[1]
    start = rng.integers(low, high - width + 1, (count, 1))
    rows = start + np.maximum(np.arange(width), rng.integers(0, width, (count, 1)))
    ids = rows * buffer.num_envs + envs
    anywhere = rng.random(count) < 0.2
    shape = anywhere.sum(), width
    ids[anywhere] = rng.integers(low, high, shape) * buffer.num_envs + rng.integers(
        0, buffer.num_envs, shape
    )
    ids[rng.random((count, width)) < 0.1] = -2
    ids[rng.random(count) < 0.2, 0] = -1
    ids[rng.random(count) < 0.2, -1] = -1
    return ids


def check(buffer, ids):
    out = np.full((2, len(ids), ids.shape[1] - 1, *FRAME.shape), 77, np.uint8)
    buffer.take_both("observation", ids, out)
    np.testing.assert_array_equal(out[0], buffer.take("observation", ids[:, :-1]))
    np.testing.assert_array_equal(out[1], buffer.take("observation", ids[:, 1:]))


@settings(max_examples=effort(25, 60), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    compressor=st.sampled_from(["raw", "lz4", "zstd"]),
    num_envs=st.integers(1, 3),
    rows=st.sampled_from([30, 130]),
    width=st.integers(2, 20),
    count=st.integers(0, 40),
)
def test_both_are_as_take_gives_them(seed, compressor, num_envs, rows, width, count):
    rng = np.random.default_rng(seed)
    with filled(compressor, num_envs, rows, rng) as buffer:
        check(buffer, some_windows(buffer, count, width, rng))


@pytest.mark.parametrize("compressor", ["raw", "lz4"])
def test_more_reads_than_are_done_at_a_time(compressor):
    rng = np.random.default_rng(0)
    with filled(compressor, 2, 60, rng) as buffer:
        check(buffer, some_windows(buffer, read_job.READS + 9, 2, rng))
        check(buffer, np.repeat(rng.integers(0, 120, (read_job.READS // 2, 1)), 5, axis=1))
        check(buffer, np.repeat(rng.integers(0, 120, (2, 1)), read_job.READS + 9, axis=1))


def test_what_does_not_fit_is_refused():
    with filled("raw", 1, 30, np.random.default_rng(0)) as buffer:
        ids, out = np.zeros((3, 4), np.int64), np.empty((2, 3, 3, *FRAME.shape), np.uint8)
        frozen = out.copy()
        frozen.flags.writeable = False
        for wrong in (ids[0], ids[:, :1], ids[:, ::2], ids.astype(np.int32)):
            with pytest.raises(errors.InvalidInputError, match="ids"):
                buffer.take_both("observation", wrong, out)
        for wrong in (out[0], out[:, :2], out.astype(np.int8), out[..., ::-1], frozen):
            with pytest.raises(errors.InvalidInputError, match="out"):
                buffer.take_both("observation", ids, wrong)
        with pytest.raises(errors.InvalidInputError, match="no field"):
            buffer.take_both("frame", ids, out)
        with pytest.raises(errors.UnknownIdError):
            buffer.take_both("observation", ids + 30, out)
        buffer.evict([1])
        with pytest.raises(errors.NotSampleableError):
            buffer.take_both("observation", ids, out)
    with pytest.raises(errors.ClosedError):
        buffer.take_both("observation", ids, out)


def test_a_rotten_block_is_named(tmp_path):
    rng = np.random.default_rng(0)
    filled("lz4", 2, 40, rng, tmp_path / "store").close()
    shard = min((tmp_path / "store" / "observation").glob("c.*"))
    shard.chmod(0o644)
    data = bytearray(shard.read_bytes())
    data[len(data) * 3 // 4] ^= 1
    shard.write_bytes(data)
    with diskreplay.open(tmp_path / "store") as buffer:
        ids = np.arange(28)[:, None] + np.array([0, 2, 4])
        out = np.empty((2, len(ids), 2, *FRAME.shape), np.uint8)
        with pytest.raises(errors.CorruptSegmentError, match="'observation', env 1") as wanted:
            buffer.take("observation", ids)
        with pytest.raises(errors.CorruptSegmentError) as found:
            buffer.take_both("observation", ids, out)
        assert str(found.value) == str(wanted.value)
