"""Figures of a buffer at one moment, beside what was added and the files that there are."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay

NO = False


def made(path, kind=diskreplay.ReplayBuffer, **options):
    return kind(
        path, **{"observation_space": Box(0, 255, (64,), np.uint8), "action_space": Discrete(3),
                 "capacity": 400, "segment_rows": 16, "compressor": "lz4"} | options
    )  # fmt: skip


def add(buffer, ends):
    """A step for each: "" goes on, "t" terminates, "c" is truncated and has a final row."""
    frame = np.zeros(64, np.uint8)
    for end in ends:
        buffer.add(frame, 1, 1.0, end == "t", end == "c", frame if end == "c" else None)


def test_an_empty_buffer(tmp_path):
    with made(tmp_path / "a", diskreplay.PrioritizedReplayBuffer) as buffer:
        found = buffer.statistics()
    assert (found.rows, found.sampleable, found.transitions, found.episodes) == (0, 0, 0, 0)
    assert (found.raw_bytes, found.ratio, found.priorities) == (0, 0.0, None)
    assert (found.capacity, found.num_envs, found.ignored_updates) == (400, 1, 0)


def test_rows_and_bytes(tmp_path):
    with made(tmp_path / "a") as buffer:
        add(buffer, ["", "", "t", "", "c", "", ""])
        found = buffer.statistics()
        widths = {name: int(np.prod(shape)) * dtype.itemsize
                  for name, (shape, dtype) in buffer.fields.items()}  # fmt: skip
        assert found.rows == 8
        assert found.transitions == 7
        assert found.sampleable == len(buffer) == 6  # the newest waits
        assert found.episodes == 3
        assert {name: its.raw_bytes for name, its in found.fields.items()} == {
            name: 8 * width for name, width in widths.items()
        }
        assert found.raw_bytes == 8 * sum(widths.values())
        assert found.disk_bytes == sum(its.disk_bytes for its in found.fields.values())
        assert found.segments == sum(its.segments for its in found.fields.values())
        assert found.ratio == found.raw_bytes / found.disk_bytes
        for its in found.fields.values():
            assert its.ratio == its.raw_bytes / its.disk_bytes
        assert found.priorities is None


def test_rows_that_left_count_no_more(tmp_path):
    with made(tmp_path / "a", capacity=20) as buffer:
        add(buffer, ["", "", "", "", "t"] * 10)
        assert buffer.statistics().episodes == 4
        assert buffer.statistics().rows == 20
        assert buffer.statistics().transitions == 50
        buffer.evict([33])  # amid an episode, of which two rows stay
        assert buffer.statistics().episodes == 4
        assert buffer.statistics().rows == 17
        buffer.evict([35])
        assert buffer.statistics().episodes == 3
        buffer.clear()
        assert buffer.statistics().episodes == buffer.statistics().rows == 0


@pytest.mark.parametrize(
    ("steps", "ends", "episodes"),
    [
        ([0, 1, 2, 5, 6, 7], [2], 2), ([0, 1, 2, 3, 4, 5], [2], 2), ([3, 4, 9, 10, 0, 1], [], 3),
        ([7], [], 1), ([0, 0, 0], [], 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("again", [False, True])
def test_parts_of_episodes_begin_at_any_step(tmp_path, steps, ends, episodes, again):
    size = len(steps)
    rows = {
        "observation": np.zeros((size, 64), np.uint8), "action": np.zeros(size, np.int64),
        "reward": np.zeros(size, np.float32), "terminated": np.isin(np.arange(size), ends),
        "truncated": np.zeros(size, bool), "step": np.array(steps, np.int32),
        "is_final": np.zeros(size, bool),
    }  # fmt: skip
    with made(tmp_path / "a") as buffer:
        buffer.extend(rows)
        assert buffer.statistics().episodes == episodes
    if again:
        with diskreplay.open(tmp_path / "a") as reader:
            assert reader.statistics().episodes == episodes


def test_envs_are_counted_together(tmp_path):
    frames, zeros, no = np.zeros((3, 64), np.uint8), np.zeros(3), np.zeros(3, bool)
    with made(tmp_path / "a", num_envs=3, capacity=600) as buffer:
        for row in range(10):
            mask = np.array([True, row < 4, False])
            buffer.add(frames, zeros.astype(int), zeros, no | (row % 5 == 4), no, mask=mask)
        found = buffer.statistics()
    assert (found.rows, found.episodes, found.num_envs) == (14, 3, 3)


def test_priorities(tmp_path):
    with made(tmp_path / "a", diskreplay.PrioritizedReplayBuffer, alpha=0.5) as buffer:
        add(buffer, [""] * 5)
        assert buffer.update_priorities([0, 1, 2, 3, 4], [4.0, 9.0, 0.0, 16.0, 1.0]) == 1
        found = buffer.statistics()
    assert found.ignored_updates == 1
    assert found.priorities.total == 2 + 3 + 0 + 4
    assert found.priorities.mean == 9 / 3  # of those that can be drawn
    assert found.priorities.min == 2
    assert found.priorities.max == 4
    assert found.priorities.largest_seen == 16
