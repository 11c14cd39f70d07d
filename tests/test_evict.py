"""Rows that leave before the capacity says so."""

import os

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors
from diskreplay.check.verify import verify
from tests.naive import SideBySide

FRAME = Box(0, 255, (8, 8), np.uint8)


def make(path, **options):
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=FRAME, action_space=Discrete(2),
        **{"capacity": 4096, "segment_rows": 8, **options},
    )  # fmt: skip


def fill(buffer, rows, start=0):
    for number in range(start, start + rows):
        buffer.add(np.full((8, 8), number % 256, np.uint8), 1, 1.0, number % 10 == 9, False)


def files(path):
    return [name for _base, _dirs, names in os.walk(path) for name in names]


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("stack_size", [1, 3])
def test_rows_leave_beside_the_twin(tmp_path, envs, stack_size):
    with SideBySide(
        tmp_path / "r", num_envs=envs, capacity=60 * envs, stack_size=stack_size,
        update_horizon=2, segment_rows=8, alpha=0.6,
    ) as both:  # fmt: skip
        for round_ in range(12):
            both.play(20, seed=round_)
            first = [low + (high - 1 - low) * (round_ % 4) // 3 for low, high in both.real.bounds]
            both.twin.settle_priorities()
            both.real.evict(first)
            both.twin.evict(first)
            both.check_counts()
            both.check_gather()
        both.reopen()
        both.check_counts()
        both.check_gather()


def test_files_of_rows_that_left_are_deleted(tmp_path):
    with make(tmp_path / "r") as buffer:
        fill(buffer, 2000)
        buffer.flush()
        before = len(files(tmp_path / "r" / "observation"))
        buffer.evict([1990])
        buffer.flush()
        assert before > 30  # 64 rows each: a page
        assert len(files(tmp_path / "r" / "observation")) < 5
        assert buffer.bounds.tolist() == [[1990, 2000]]
        assert buffer.sampleable_ids().tolist() == list(range(1990, 2000))
        with pytest.raises(errors.NotSampleableError, match="evicted"):
            buffer.take("reward", [1989])
        buffer.evict([5])  # they have left already
        assert buffer.bounds.tolist() == [[1990, 2000]]
        fill(buffer, 300, 2000)
    assert verify(tmp_path / "r").findings == ()
    with make(tmp_path / "r") as buffer:
        assert buffer.bounds.tolist() == [[1990, 2300]]


@pytest.mark.parametrize("wrong", [[1, 2], 3, [10], [0.5], ["a"], [[1], [2, 3]], None])
def test_what_is_no_row_of_each_env_is_refused(tmp_path, wrong):
    with make(tmp_path / "r") as buffer:
        fill(buffer, 10)
        with pytest.raises(errors.InvalidInputError, match="first"):
            buffer.evict(wrong)
        assert buffer.bounds.tolist() == [[0, 10]]
