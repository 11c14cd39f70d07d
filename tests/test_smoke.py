"""The main calls of both buffers, once each: what to run first, in a few seconds."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
def test_a_run_that_is_saved_and_resumed(tmp_path, kind):
    make = {
        "uniform": diskreplay.ReplayBuffer,
        "prioritized": diskreplay.PrioritizedReplayBuffer,
    }[kind]
    options = {
        "observation_space": Box(0, 255, (4, 3), np.uint8), "action_space": Discrete(5),
        "capacity": 90, "stack_size": 2, "update_horizon": 2, "gamma": 0.5, "batch_size": 16,
        "compressor": "lz4", "segment_rows": 16, "seed": 3,
    }  # fmt: skip

    def add(buffer, start, stop):
        for t in range(start, stop):
            ends = t % 10 == 9
            frame, following = np.full((4, 3), t, np.uint8), np.full((4, 3), t + 1, np.uint8)
            buffer.add(frame, t % 5, float(t), ends, False, following if ends else None)

    with make(tmp_path / "store", **options) as buffer:
        add(buffer, 0, 120)
        batch = buffer.sample()
        newest = batch.observation[:, -1, 0, 0].astype(int)
        assert (batch.observation == batch.observation[:, :, :1, :1]).all()
        before = np.where(newest % 10 == 0, 0, newest - 1)
        assert (batch.observation[:, 0, 0, 0] == before).all()
        assert (batch.action == newest % 5).all()
        last = newest % 10 == 9
        assert (batch.reward == newest + np.where(last, 0, 0.5 * (newest + 1))).all()
        assert (batch.terminated == (newest % 10 >= 8)).all()
        again = buffer.gather(batch.id)
        assert (again.observation == batch.observation).all()
        if kind == "prioritized":
            assert buffer.update_priorities(batch.id, np.arange(16.0) + 1) == 0
        buffer.save(tmp_path / "checkpoints", 7)
        expected = buffer.sample()
        add(buffer, 120, 150)
        buffer.load(tmp_path / "checkpoints", 7)
        assert (buffer.sample().id == expected.id).all()
        assert buffer.add_count == 120
        count = len(buffer)
    with diskreplay.open(tmp_path / "store") as reader:
        assert len(reader) == count
        assert (reader.gather(expected.id).observation == expected.observation).all()
    with make(tmp_path / "store", **options) as buffer:
        add(buffer, 120, 130)
        assert buffer.add_count == 130
