"""A signal handler that calls a buffer amid another call of it, at any place: nothing is torn."""

from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from diskreplay.compat import cpprb, cs294, keras_gym, rainbow
from diskreplay.errors import ReentryError
from tests.test_interrupt import interrupted

SLOTS, BATCH, WIDTH = 20, 8, 300


class Ring:
    """A buffer whose row `n` says so in all its fields."""

    def __init__(self, path):
        self.added, self.refused, self.served = [], 0, 0
        self.number = 0
        self.buffer = self.make(path)

    def add(self):
        self.number += 1
        number = self.number
        self.put(number, np.full(WIDTH, number))
        self.added.append(number)

    def handler(self):
        try:
            self.add()
            self.served += 1
        except ReentryError:
            self.refused += 1

    def check(self):
        seen, gained = self.rows()
        assert seen.tolist() == gained.tolist()
        assert sorted(gained.tolist()) == sorted(self.added[-SLOTS:])


class KerasGym(Ring):
    def make(self, path):
        env = SimpleNamespace(action_space=spaces.Discrete(5), num_frames=1)
        return keras_gym.ExperienceReplayBuffer(env, SLOTS - 1, BATCH, path=path)

    def put(self, number, frame):
        self.buffer.add(frame, number % 5, number, False, 1)

    def sample(self):
        seen, _, gained, *_ = self.buffer.sample()
        return seen[:, 0], gained

    def rows(self):
        slots = np.arange(SLOTS)
        return self.buffer._ring.read("observation", slots)[:, 0], self.buffer._rewards[slots]


class Rainbow(Ring):
    module = rainbow.ReplayBuffer

    def make(self, path):
        return self.module(WIDTH, SLOTS, BATCH, path=path)

    def put(self, number, frame):
        self.buffer.store(frame, 0, number, frame, False)

    def sample(self):
        batch = self.buffer.sample_batch()
        return batch["obs"][:, 0], batch["rews"]

    def rows(self):
        assert self.buffer.ptr == self.buffer._ring.cursor
        return self.buffer.obs_buf[:, 0], self.buffer.rews_buf


class PrioritizedRainbow(Rainbow):
    module = rainbow.PrioritizedReplayBuffer


class Cs294(Ring):
    """The effect is given with the frame, so that a handler's rows come whole between them."""

    def make(self, path):
        return cs294.ReplayBuffer(SLOTS, 1, path=path)

    def put(self, number, frame):
        slot = self.buffer.store_frame(frame.astype(np.uint8))
        self.buffer.store_effect(slot, 0, number % 256, False)

    def sample(self):
        seen, _, gained, *_ = self.buffer.sample(BATCH)
        return seen[:, 0], gained

    def check(self):
        seen, _, gained, *_ = self.buffer._encode_sample(np.arange(SLOTS))
        assert self.buffer._count == len(self.added)
        assert seen[:, 0].tolist() == gained.tolist()


class Cpprb(Ring):
    module = cpprb.ReplayBuffer

    def make(self, path):
        fields = {"obs": {"shape": WIDTH}, "rew": {}, "next_obs": {"shape": WIDTH}, "done": {}}
        return self.module(SLOTS, fields, path=path)

    def put(self, number, frame):
        self.buffer.add(obs=frame, rew=number, next_obs=frame, done=0)

    def sample(self):
        batch = self.buffer.sample(BATCH)
        return batch["obs"][:, 0], batch["rew"][:, 0]

    def rows(self):
        rows = self.buffer.get_all_transitions()
        assert rows["next_obs"].tolist() == rows["obs"].tolist()
        return rows["obs"][:, 0], rows["rew"][:, 0]


class PrioritizedCpprb(Cpprb):
    module = cpprb.PrioritizedReplayBuffer


class Reagent(Ring):
    kind, further = "ReplayBuffer", ()

    def make(self, path):
        self.torch = pytest.importorskip("torch")
        from diskreplay.compat import reagent

        return getattr(reagent, self.kind)(
            (WIDTH,), stack_size=1, replay_capacity=SLOTS, batch_size=BATCH,
            observation_dtype=np.int64, max_sample_attempts=1000, path=path,
        )  # fmt: skip

    def put(self, number, frame):
        self.buffer.add(frame, 0, number, 0, *self.further)

    def sample(self, *which):
        batch = self.buffer.sample_transition_batch(*which)
        return batch.state.reshape(-1, WIDTH)[:, 0], batch.reward[:, 0]

    def rows(self):
        return self.sample(SLOTS, self.torch.arange(SLOTS))


class PrioritizedReagent(Reagent):
    kind, further = "PrioritizedReplayBuffer", (1.0,)


KINDS = [
    KerasGym, Rainbow, PrioritizedRainbow, Cs294, Cpprb, PrioritizedCpprb, Reagent,
    PrioritizedReagent,
]  # fmt: skip


@pytest.mark.parametrize("call", ["add", "sample"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_adds(tmp_path, kind, call):
    """Amid `add` its row got the slot of the other one, or the other one the place of its; amid
    `sample` it took away what was about to be read."""
    ring = kind(tmp_path / "store")
    for _ in range(SLOTS + 5):
        ring.add()

    def outer():
        if call == "add":
            return ring.add()
        seen, gained = ring.sample()
        assert seen.tolist() == gained.tolist()
        return None

    place = 0
    while interrupted(outer, place, ring.handler):
        ring.check()
        place += 3
    ring.check()
    assert ring.refused > 5
    assert ring.served > 0
    ring.buffer.close()
