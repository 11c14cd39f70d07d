"""A signal handler that calls a framework's buffer amid another call of it: nothing is torn."""

import pickle

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("stable_baselines3")
pytest.importorskip("tianshou")

from tianshou.data import Batch

from diskreplay.errors import ReentryError
from diskreplay.integrations import cleanrl, sb3, tianshou
from tests.test_interrupt import interrupted

SLOTS, BATCH, WIDTH, LED = 20, 8, 300, 1000


class Ring:
    """A buffer whose transition `n` says so in all its parts."""

    def __init__(self, path):
        self.number, self.added, self.refused, self.served = 0, [], 0, 0
        self.buffer = self.make(path)

    def add(self):
        self.number += 1
        number = self.number
        self.put(number)
        self.added.append(number)

    def handler(self):
        try:
            self.inner()
            self.served += 1
        except ReentryError:
            self.refused += 1

    inner = add

    def check(self):
        gained = check_parts(*self.rows())
        assert sorted(gained) == sorted(self.added[-SLOTS:])


def check_parts(seen, led, gained):
    assert seen.tolist() == gained.tolist()
    assert led.tolist() == (gained + LED).tolist()
    return gained.tolist()


class Sb3(Ring):
    kind, options = sb3.DiskReplayBuffer, {}

    def make(self, path):
        space = spaces.Box(0, 1e6, (WIDTH,), np.float32)
        return self.kind(SLOTS, space, spaces.Discrete(5), device="cpu", path=path, **self.options)

    def put(self, number):
        seen = np.full((1, WIDTH), number, np.float32)
        one = np.ones(1, np.float32)
        self.buffer.add(seen, seen + LED, 0 * one, number * one, 0 * one, [{}])

    def sample(self):
        batch = self.buffer.sample(BATCH)
        return batch.observations[:, 0], batch.next_observations[:, 0], batch.rewards[:, 0]

    def rows(self):
        slots, envs = np.arange(SLOTS), np.zeros(SLOTS, np.int64)
        ring = self.buffer
        return (
            ring.observations[slots, envs][:, 0], ring.next_observations[slots, envs][:, 0],
            ring.rewards[:, 0],
        )  # fmt: skip


class Prefetched(Sb3):
    options = {"prefetch": 2}  # noqa: RUF012


class Prioritized(Sb3):
    kind = sb3.DiskPrioritizedReplayBuffer


class Cleanrl(Sb3):
    kind = cleanrl.ReplayBuffer


class Rewards:
    """What HER asks for those of relabelled transitions, of which there are none here."""

    def env_method(self, *_arguments, **_options):
        return [np.zeros(0)]


class Her(Sb3):
    """Each transition is an episode."""

    def make(self, path):
        goal = spaces.Box(0, 1e6, (1,), np.float32)
        space = spaces.Dict(
            observation=spaces.Box(0, 1e6, (WIDTH,), np.float32), achieved_goal=goal,
            desired_goal=goal,
        )  # fmt: skip
        return sb3.DiskHerReplayBuffer(
            SLOTS, space, spaces.Discrete(5), Rewards(), device="cpu", n_sampled_goal=0, path=path
        )

    def put(self, number):
        seen = np.full((1, WIDTH), number, np.float32)
        one = np.ones(1, np.float32)
        now, led = (
            {"observation": each, "achieved_goal": each[:, :1], "desired_goal": each[:, :1]}
            for each in (seen, seen + LED)
        )
        self.buffer.add(now, led, 0 * one, number * one, one, [{}])

    def sample(self):
        batch = self.buffer.sample(BATCH)
        seen, led = batch.observations["observation"], batch.next_observations["observation"]
        return seen[:, 0], led[:, 0], batch.rewards[:, 0]

    def rows(self):
        slots, envs = np.arange(SLOTS), np.zeros(SLOTS, np.int64)
        ring = self.buffer
        assert ring.ep_start[:, 0].tolist() == slots.tolist()
        assert ring.ep_length[:, 0].tolist() == [1] * SLOTS
        seen, led = ring.observations["observation"], ring.next_observations["observation"]
        return seen[slots, envs][:, 0], led[slots, envs][:, 0], ring.rewards[:, 0]


class Tianshou(Ring):
    def make(self, path):
        return tianshou.DiskReplayBuffer(SLOTS, path=path)

    def put(self, number):
        seen = np.full(WIDTH, number)
        self.buffer.add(
            Batch(obs=seen, obs_next=seen + LED, act=0, rew=float(number), terminated=False,
                  truncated=False)
        )  # fmt: skip

    def sample(self, size=BATCH):
        batch = self.buffer.sample(size)[0]
        return batch.obs[:, 0], batch.obs_next[:, 0], batch.rew

    def rows(self):
        assert len(self.buffer) == SLOTS
        return self.sample(0)


class PrioritizedTianshou(Tianshou):
    def make(self, path):
        return tianshou.DiskPrioritizedReplayBuffer(SLOTS, alpha=0.6, beta=0.4, path=path)


class VectorTianshou(Tianshou):
    def make(self, path):
        return tianshou.DiskVectorReplayBuffer(SLOTS, 1, path=path)

    def put(self, number):
        seen = np.full((1, WIDTH), number)
        no = np.zeros(1, np.bool_)
        self.buffer.add(
            Batch(obs=seen, obs_next=seen + LED, act=no, rew=np.array([float(number)]),
                  terminated=no, truncated=no)
        )  # fmt: skip


KINDS = [
    Sb3, Prefetched, Prioritized, Cleanrl, Her, Tianshou, PrioritizedTianshou, VectorTianshou,
]  # fmt: skip


def at_each_place(ring, outer, stride=3):
    place = 0
    while interrupted(outer, place, ring.handler):
        ring.check()
        place += stride
    ring.check()
    assert ring.refused > 5
    assert ring.served > 0
    ring.buffer.close()


def filled(kind, path):
    ring = kind(path)
    for _ in range(SLOTS + 5):
        ring.add()
    return ring


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_adds_amid_add(tmp_path, kind):
    """Both transitions got the same slot, or half of each."""
    ring = filled(kind, tmp_path / "store")
    at_each_place(ring, ring.add)


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_adds_amid_sample(tmp_path, kind):
    """The observations were those of one transition, and the reward that of another."""
    ring = filled(kind, tmp_path / "store")
    at_each_place(ring, lambda: check_parts(*ring.sample()), 7)


@pytest.mark.parametrize("kind", [Tianshou, PrioritizedTianshou, VectorTianshou])
@pytest.mark.parametrize("inner", ["add", "reset"])
def test_a_call_amid_a_read_of_the_slots(tmp_path, kind, inner):
    """A transition was counted, or all were forgotten, and on the disk it was not so."""
    ring = filled(kind, tmp_path / "store")
    with ring.buffer.disk._lock, pytest.raises(ReentryError):
        ring.add() if inner == "add" else ring.buffer.reset()
    ring.check()
    ring.add()
    ring.check()
    ring.buffer.close()


@pytest.mark.parametrize("kind", [Sb3, Tianshou])
def test_a_handler_that_pickles_amid_add(kind):
    """The pickle had the new row, and not what is known of it in memory."""
    ring = filled(kind, None)
    pickles = []

    def pickled():
        pickles.append((pickle.dumps(ring.buffer), [*ring.added, ring.number]))

    ring.inner = pickled
    at_each_place(ring, ring.add, 5)
    for made, added in pickles:
        twin = object.__new__(kind)
        twin.buffer = pickle.loads(made)
        gained = check_parts(*twin.rows())
        assert sorted(gained) in (sorted(added[-SLOTS:]), sorted(added[-SLOTS - 1 : -1]))
        twin.buffer.close()


@pytest.mark.parametrize("kind", [Sb3, Her])
def test_a_handler_that_asks_for_the_size_as_the_store_is_opened(tmp_path, kind):
    """It opened the store, too, and no later call could use it."""
    ring = filled(kind, tmp_path / "store")
    added, place, refused = ring.added, 0, 0
    ring.buffer.close()

    def handler():
        nonlocal refused
        try:
            ring.buffer.size()
        except ReentryError:
            refused += 1

    under_way = True
    while under_way:
        ring = kind(tmp_path / "store")
        ring.added = added
        under_way = interrupted(ring.buffer.size, place, handler)
        assert ring.buffer.size() == SLOTS
        ring.check()
        ring.buffer.close()
        place += 41
    assert refused > 5
