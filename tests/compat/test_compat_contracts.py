"""The older APIs do what every buffer must do."""

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from diskreplay.compat import cpprb, cs294, keras_gym, rainbow
from tests.contracts import CAPACITY, FRAME, BufferContract


class Env:
    action_space, num_frames = Discrete(1000), 1


class TestRainbow(BufferContract):
    kind = rainbow.ReplayBuffer

    def make(self, path):
        return self.kind(FRAME[0], CAPACITY, batch_size=8, path=path)

    def add(self, buffer, i):
        buffer.store([i] * 3, i, i, [i + 1] * 3, i % 10 == 9)

    def draw(self, buffer, size):
        buffer.batch_size = size
        batch = buffer.sample_batch()
        return batch["obs"], batch["rews"]

    def recorded(self, buffer):
        return buffer.rews_buf[: len(buffer)].astype(int).tolist()

    def refused(self, buffer):
        buffer.store([0, 0], 0, 0.0, [0, 0], False)


class TestRainbowPrioritized(TestRainbow):
    kind = rainbow.PrioritizedReplayBuffer


class TestCpprb(BufferContract):
    kind = cpprb.ReplayBuffer

    def make(self, path):
        columns = {"obs": {"shape": FRAME, "dtype": np.uint8}, "rew": {}, "done": {}}
        return self.kind(CAPACITY, columns, next_of="obs", path=path)

    def add(self, buffer, i):
        obs, following = np.full(FRAME, i, np.uint8), np.full(FRAME, i + 1, np.uint8)
        buffer.add(obs=obs, rew=float(i), done=i % 10 == 9, next_obs=following)
        if i % 10 == 9:
            buffer.on_episode_end()

    def draw(self, buffer, size):
        batch = buffer.sample(size)
        return batch["obs"], batch["rew"]

    def recorded(self, buffer):
        return buffer.get_all_transitions()["rew"].reshape(-1).astype(int).tolist()

    def refused(self, buffer):
        buffer.add(obs=np.zeros(7), rew=0.0, done=False, next_obs=np.zeros(7))


class TestCpprbPrioritized(TestCpprb):
    kind = cpprb.PrioritizedReplayBuffer


class TestCs294(BufferContract):
    def make(self, path):
        return cs294.ReplayBuffer(CAPACITY, 1, path=path)

    def add(self, buffer, i):
        slot = buffer.store_frame(np.full((2, 2, 1), i, np.uint8))
        buffer.store_effect(slot, i, float(i), i % 10 == 9)

    def draw(self, buffer, size):
        observations, _actions, rewards, _following, _done = buffer.sample(size)
        return observations, rewards

    def recorded(self, buffer):
        return buffer.reward[: buffer.num_in_buffer].astype(int).tolist()

    def refused(self, buffer):
        buffer.store_frame(np.zeros((5, 5), np.uint8))


class TestKerasGym(BufferContract):
    def make(self, path):
        return keras_gym.ExperienceReplayBuffer(Env(), CAPACITY - 1, 8, path=path)

    def add(self, buffer, i):
        buffer.add(np.full(FRAME, i, np.uint8), i, float(i), i % 10 == 9, i // 10)

    def draw(self, buffer, size):
        buffer.batch_size = size
        states, _actions, returns, *_rest = buffer.sample()
        return states, returns

    def recorded(self, buffer):
        return buffer._rewards[: buffer._stored].astype(int).tolist()

    def refused(self, buffer):
        buffer.add(np.zeros(9, np.uint8), 0, 0.0, False, 99)


class TestReagent(BufferContract):
    prioritized = False

    def make(self, path):
        pytest.importorskip("torch")
        from diskreplay.compat import reagent

        kind = reagent.PrioritizedReplayBuffer if self.prioritized else reagent.ReplayBuffer
        return kind(FRAME, 1, CAPACITY, 8, update_horizon=1, path=path)

    def add(self, buffer, i):
        priority = [1.0] * self.prioritized
        buffer.add(np.full(FRAME, i, np.uint8), i, float(i), i % 10 == 9, *priority)

    def draw(self, buffer, size):
        batch = buffer.sample_transition_batch(size)
        return batch.state.numpy(), batch.reward.numpy()

    def recorded(self, buffer):
        rewards = buffer._store["reward"].numpy()
        return rewards[: min(buffer.add_count.item(), CAPACITY)].astype(int).tolist()

    def refused(self, buffer):
        buffer.add(np.zeros(9, np.uint8), 0, 0.0, False, *[1.0] * self.prioritized)


class TestReagentPrioritized(TestReagent):
    prioritized = True
