"""The engine's buffers do what every buffer must do."""

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay
from tests.contracts import CAPACITY, FRAME, BufferContract

OPTIONS = {
    "observation_space": Box(0, 255, FRAME, np.uint8), "action_space": Discrete(1000),
    "capacity": CAPACITY, "segment_rows": 8, "seed": 0,
}  # fmt: skip


class TestReplayBuffer(BufferContract):
    def make(self, path):
        return diskreplay.ReplayBuffer(path, **OPTIONS)

    def add(self, buffer, i):
        frame = np.full(FRAME, i, np.uint8) if isinstance(i, int) else i
        buffer.add(frame, i, float(i) if isinstance(i, int) else i, i % 10 == 9, False)

    def refused(self, buffer):
        buffer.add(np.zeros(FRAME, np.uint8), 0, float("nan"), False, False)

    def draw(self, buffer, size):
        batch = buffer.sample(size)
        return batch.observation, batch.reward

    def recorded(self, buffer):
        rows = np.arange(*buffer.bounds[0])
        rewards = buffer.take("reward", rows)[~buffer.take("is_final", rows)]
        return rewards.astype(int).tolist()


class TestPrioritizedReplayBuffer(TestReplayBuffer):
    def make(self, path):
        return diskreplay.PrioritizedReplayBuffer(path, **OPTIONS)


class TestCompressed(TestReplayBuffer):
    def make(self, path):
        return diskreplay.ReplayBuffer(path, **OPTIONS, compressor={"observation": "zstd"})


class TestReader:
    """A reader does all that does not write, and follows."""

    def test_it_sees_what_the_writer_sees(self, tmp_path):
        contract = TestReplayBuffer()
        with contract.filled(tmp_path / "store", 20) as buffer:
            with diskreplay.open(tmp_path / "store", seed=0) as reader:
                for i in range(20, 60):
                    contract.add(buffer, i)
                    assert contract.recorded(reader) == contract.recorded(buffer)
                    assert len(reader) == len(buffer)
                observations, rewards = contract.draw(reader, 8)
                np.testing.assert_array_equal(observations[:, -1], rewards)
