"""About when rows were recorded, by the times that their files are given."""

import os
import time

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.inspection.episodes import episodes_of
from diskreplay.inspection.recorded_times import ends_of, recorded_times
from diskreplay.store import private

ROWS = 8  # of a file of observations, which are 4 KiB each


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def record(path, rows, num_envs=1, **options):
    """Episodes of 4 steps, without a final row."""
    buffer = diskreplay.ReplayBuffer(
        path, observation_space=Box(-1, 1, (1024,)), action_space=Discrete(2), capacity=None,
        segment_rows=ROWS, num_envs=num_envs, **options,
    )  # fmt: skip
    seen = np.zeros((num_envs, 1024), np.float32)
    for row in range(rows):
        ended = np.full(num_envs, row % 4 == 3)
        if num_envs == 1:
            buffer.add(seen[0], 0, 0.0, bool(ended[0]), False)
        else:
            buffer.add(seen, np.zeros(num_envs, int), np.zeros(num_envs), ended, ~ended & False)
    return buffer


def written(path, times, last):
    """Say when the files of observations were written to last, and when the store was."""
    for (number, group), when in times.items():
        os.utime(path / "observation" / f"c.{number}.{group}.0", (when, when))
    for file in (private.commit_page(path), path / "zarr.json"):
        os.utime(file, (last, last))


def ends(path):
    with diskreplay.open(path) as buffer:
        times, is_latest = ends_of(episodes_of(buffer), path, buffer.bounds[:, 1])
    return times.tolist(), is_latest.tolist()


def test_files_and_what_lies_between(path):
    record(path, 44).close()
    written(path, {(n, 0): 1000 + 100 * n for n in range(5)}, 1500)
    times, is_latest = ends(path)
    assert times == [1000, 1000, 1050, 1100, 1150, 1200, 1250, 1300, 1350, 1400, 1500]
    assert is_latest == [True, True, *[False] * 9]  # nothing is older than the first file


def test_a_file_that_was_copied_says_nothing_of_rows_before_it(path):
    record(path, 40).close()
    written(path, {(0, 0): 1000, (1, 0): 9000, (2, 0): 1200, (3, 0): 1300, (4, 0): 1400}, 1500)
    assert ends(path)[0] == [1000, 1000, 1100, 1200, 1200, 1200, 1250, 1300, 1350, 1400]


def test_less_than_one_file(path):
    record(path, 4).close()
    written(path, {}, 1500)
    assert ends(path) == ([1500], [True])


def test_groups_of_envs(path):
    record(path, 16, num_envs=2, env_group=1).close()
    written(path, {(0, 0): 1000, (1, 0): 1100, (0, 1): 3000, (1, 1): 3100}, 4000)
    found = recorded_times(path, np.array([16, 16]))
    times, is_latest = found.of(np.array([0, 1, 0, 1]), np.array([12, 12, 3, 16]))
    assert times.tolist() == [1050, 3050, 1000, 3100]
    assert is_latest.tolist() == [False, False, True, False]


def test_a_checkpoint_says_when_its_newest_rows_came(tmp_path, path):
    with record(path, 20) as buffer:
        saved = buffer.save(tmp_path / "saved", 1)
    now = diskreplay.checkpoints(tmp_path / "saved")[0].saved_at.timestamp()
    written(path, {(0, 0): now - 3000, (1, 0): now - 1000}, now)
    assert ends(saved) == ([now - 3000, now - 3000, now - 2000, now - 1000, now],
                           [True, True, False, False, False])  # fmt: skip
    for number in range(2):  # the files of a copy are later than the save
        file = saved / "observation" / f"c.{number}.0.0"
        os.utime(file, (now + 5000, now + 5000))
    assert ends(saved) == ([now] * 5, [True] * 5)


def test_while_a_writer_adds(path):
    began = time.time()
    with record(path, 44):
        times, _is_latest = ends(path)
        assert times == sorted(times)
        assert began - 60 < times[0] <= times[-1] < time.time() + 60


def test_nothing_was_recorded(path):
    record(path, 0).close()
    assert ends(path) == ([], [])
