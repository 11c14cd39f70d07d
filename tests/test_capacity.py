"""A store that is reopened with another capacity."""

import shutil

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.errors import CapacityError
from tests import processes


def make(path, capacity, **options):
    return diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 255, (64,), "uint8"), action_space=Discrete(4),
        capacity=capacity, compressor="lz4", segment_rows=8, **options,
    )  # fmt: skip


def fill(buffer, rows):
    numbers = np.arange(rows)
    for env in range(buffer.num_envs):
        buffer.extend(
            {
                "observation": np.tile((numbers % 251).astype(np.uint8)[:, None], 64),
                "action": numbers % 4, "reward": numbers.astype(np.float32),
                "terminated": numbers % 9 == 8, "truncated": np.zeros(rows, bool),
                "step": numbers % 9, "is_final": np.zeros(rows, bool),
            },
            env=env,
        )  # fmt: skip


def contents(directory):
    return {
        path.relative_to(directory): (path.read_bytes(), path.stat().st_ino)
        for path in directory.rglob("*") if path.is_file()
    }  # fmt: skip


KILLED = """
import os, sys
from tests.test_capacity import fill, make
buffer = make(sys.argv[1], None if sys.argv[2] == "None" else int(sys.argv[2]), num_envs=2)
fill(buffer, 90)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("ending", ["closed", "killed"])
@pytest.mark.parametrize("capacity", [200, 160, None])
def test_one_that_does_not_hold_all_rows_is_refused(tmp_path, capacity, ending):
    """It deleted them, at once and for good: a zero too few, and a day's work was gone."""
    path = tmp_path / "store"
    if ending == "closed":
        with make(path, capacity, num_envs=2) as buffer:
            fill(buffer, 90)
    else:
        assert processes.run(KILLED, path, capacity).returncode == -9
    kept = 90 if capacity is None else min(90, capacity // 2)
    before = contents(path)
    with pytest.raises(CapacityError) as caught:
        make(path, 100, num_envs=2)
    for said in (f"{path}", "capacity: 100 ", f"oldest {2 * (kept - 50)} of the {2 * kept} rows",
                 f"capacity is {capacity or 'unlimited'};", f"give {2 * kept} or more",
                 "shrink=True"):  # fmt: skip
        assert said in str(caught.value)
    after = contents(path)
    assert after.keys() == before.keys()
    for name in after.keys() - {next(n for n in after if n.name == "lock")}:
        assert after[name] == before[name], name
    shutil.copytree(path, tmp_path / "twin")
    with make(path, 2 * kept, num_envs=2) as buffer:  # holds them
        assert buffer.bounds.tolist() == [[90 - kept, 90]] * 2
        ids = np.arange(2 * (90 - kept), 180)
        np.testing.assert_array_equal(buffer.take("reward", ids), ids // 2)
    with make(tmp_path / "twin", 100, num_envs=2, shrink=True) as buffer:
        assert buffer.bounds.tolist() == [[40, 90]] * 2
    with make(tmp_path / "twin", 100, num_envs=2) as buffer:  # as large as it is
        assert buffer.bounds.tolist() == [[40, 90]] * 2


def test_a_smaller_one_that_holds_all_rows_is_fine(tmp_path):
    with make(tmp_path / "store", 1000) as buffer:
        fill(buffer, 90)
    with make(tmp_path / "store", 90) as buffer:
        assert buffer.capacity == 90
        assert buffer.bounds.tolist() == [[0, 90]]
        fill(buffer, 5)
        assert buffer.bounds.tolist() == [[5, 95]]
    with pytest.raises(CapacityError, match="oldest 1 of the 90 rows"):
        make(tmp_path / "store", 89)


@pytest.mark.parametrize("cls", [diskreplay.ReplayBuffer, diskreplay.PrioritizedReplayBuffer])
def test_rows_of_a_store_that_grows_are_what_a_reader_finds(tmp_path, cls):
    """The index in memory moves twice while they are added; a reader makes its own of the files."""
    rows, rng = 2600, np.random.default_rng(0)
    flags = rng.random((2, rows)) < 0.02
    rewards, marks = rng.normal(size=rows), rng.integers(-128, 128, rows)
    with cls(
        tmp_path / "s", observation_space=Box(-9, 9, (3,)), action_space=Discrete(99),
        capacity=None, stack_size=3, update_horizon=2, extras={"mark": ((), "int8")}, seed=0,
    ) as buffer:  # fmt: skip
        step, steps = 0, []
        for row in range(rows):
            terminated, truncated = flags[:, row]
            buffer.add(
                np.full(3, row, np.float32), row % 99, rewards[row], terminated, truncated,
                mark=marks[row],
            )  # fmt: skip
            steps.append(step)
            step = 0 if terminated or truncated else step + 1
        ids = np.arange(rows)
        with diskreplay.open(tmp_path / "s") as reader:
            expected = {
                "observation": np.repeat(ids, 3).reshape(-1, 3), "action": ids % 99,
                "reward": rewards.astype(np.float32), "terminated": flags[0],
                "truncated": flags[1], "step": steps, "is_final": np.zeros(rows, np.bool_),
                "mark": marks,
            }  # fmt: skip
            for name, values in expected.items():
                np.testing.assert_array_equal(reader.take(name, ids), values, name)
            there = reader.sampleable_ids()
            np.testing.assert_array_equal(buffer.sampleable_ids(), there)
            assert len(buffer) == len(reader) == len(there)
        if cls is diskreplay.PrioritizedReplayBuffer:
            buffer.tree.check()
            assert np.flatnonzero(buffer.tree.leaves).tolist() == there.tolist()
