"""Tianshou's replay buffers on disk and its own, into which the same steps are played."""

import numpy as np
import tianshou.data
from tianshou.data import Batch

from diskreplay.integrations import tianshou as ours
from diskreplay.integrations.batch_leaves import leaves

ATARI = {"stack_num": 4, "ignore_obs_next": True, "save_only_last_obs": True}
ENVS = 3


def reached(achieved, desired):
    return -(np.abs(achieved - desired).sum(-1) > 0.5).astype(np.float64)


GOALS = {"compute_reward_fn": reached, "horizon": 12, "future_k": 4}


class Player:
    """Plays the same steps into any number of buffers."""

    def __init__(self, seed=0, *, goals=False, stack=False, envs=ENVS, slides=0):
        self.rng, self.goals, self.stack, self.envs = (
            np.random.default_rng(seed),
            goals,
            stack,
            envs,
        )
        self.slides = slides  # frames of stacks that go on, as those of an environment do
        self.seen = [self.observation() for _ in range(envs)]
        self.length = np.zeros(envs, int)

    def observation(self, before=None):
        if self.slides:
            new = self.rng.integers(0, 256, (self.slides, 20, 20), np.uint8)
            if before is None:
                return new[:1].repeat(self.slides, 0) if self.rng.random() < 0.5 else new
            # Some environments do not say what an episode ended in.
            return new if self.rng.random() < 0.05 else np.concatenate([before[1:], new[:1]])
        picture = self.rng.integers(0, 256, (34, 34), np.uint8)
        if self.stack:
            return np.stack([picture // 2, picture])
        if self.goals:
            return {
                "observation": picture, "achieved_goal": self.rng.integers(0, 3, 2).astype(float),
                "desired_goal": self.rng.integers(0, 3, 2).astype(float),
            }  # fmt: skip
        return picture

    def step(self, *buffers):
        led = [self.observation(seen) for seen in self.seen]
        self.length += 1
        done = (self.rng.random(self.envs) < 0.15) | (self.length == 10)
        cut = done & (self.rng.random(self.envs) < 0.5)
        ids = np.flatnonzero(self.rng.random(self.envs) < 0.9) if self.envs > 1 else np.arange(1)
        values = {
            "obs": self.seen, "act": self.rng.integers(0, 4, self.envs), "obs_next": led,
            "rew": self.rng.normal(size=self.envs), "terminated": done & ~cut, "truncated": cut,
            "info": [{"time": float(n)} for n in self.length],
        }  # fmt: skip
        batch = Batch({name: self.chosen(value, ids) for name, value in values.items()})
        results = []
        if len(ids):
            for buffer in buffers:
                if hasattr(buffer, "buffers"):
                    results.append(buffer.add(batch, buffer_ids=ids))
                else:
                    results.append(buffer.add(batch[0]))
        for at in ids:
            self.seen[at] = self.observation() if done[at] else led[at]
            self.length[at] *= not done[at]
        return results

    @staticmethod
    def chosen(value, ids):
        picked = [value[at] for at in ids]
        if picked and isinstance(picked[0], dict):
            return Batch.stack([Batch(each) for each in picked])
        return np.array(picked)


def alike(one, other):
    """Whether two batches are the same, bit for bit and type for type."""
    found, wanted = dict(leaves(one)), dict(leaves(other))
    assert found.keys() == wanted.keys()
    for path, value in wanted.items():
        assert type(found[path]) is type(value), path
        assert found[path].dtype == value.dtype, path
        np.testing.assert_array_equal(found[path], value, err_msg=path)


def drawn(buffer, size, seed):
    np.random.seed(seed)  # noqa: NPY002 - what Tianshou draws by, beside its own generators
    return buffer.sample(size)


def compare(disk, plain, rng, sizes=(1, 7, 0)):
    assert len(disk) == len(plain)
    if not len(plain.sample_indices(0)):
        sizes = (0,)  # no transition has a whole stack
    for size in sizes:
        seed = int(rng.integers(2**31))
        (found, at), (wanted, there) = drawn(disk, size, seed), drawn(plain, size, seed)
        np.testing.assert_array_equal(at, there)
        alike(found, wanted)
        if hasattr(plain, "update_weight") and len(at):
            weights = rng.random(len(at))
            disk.update_weight(at, weights)
            plain.update_weight(at, weights)
    for ask in ("prev", "next") if len(plain) else ():
        at = rng.integers(0, max(len(plain), 1), 9)
        np.testing.assert_array_equal(getattr(disk, ask)(at), getattr(plain, ask)(at))
    np.testing.assert_array_equal(disk.unfinished_index(), plain.unfinished_index())
    if len(plain):
        for one in (0, [0]):
            alike(Batch(obs=disk.get(one, "obs")), Batch(obs=plain.get(one, "obs")))


def make(name, disk=None, **options):
    """One of Tianshou's own, or with options for the disk one of ours."""
    where, prefix = (tianshou.data, "") if disk is None else (ours, "Disk")
    kind, disk = getattr(where, prefix + name), disk or {}
    if name == "CachedReplayBuffer":
        return kind(tianshou.data.ReplayBuffer(50, **options), ENVS, 12, **disk)
    if "Vector" in name:
        return kind(60, ENVS, **options, **disk)
    return kind(20, **options, **disk)


KINDS = {
    "plain": ("ReplayBuffer", {}),
    "vector": ("VectorReplayBuffer", {}),
    "vector of frames": ("VectorReplayBuffer", ATARI),
    "vector of whole stacks": ("VectorReplayBuffer", {**ATARI, "sample_avail": True}),
    "prioritized": ("PrioritizedReplayBuffer", {"alpha": 0.6, "beta": 0.4, "stack_num": 2}),
    "prioritized vector": ("PrioritizedVectorReplayBuffer", {"alpha": 0.6, "beta": 0.4}),
    "prioritized vector of frames": (
        "PrioritizedVectorReplayBuffer", {"alpha": 0.7, "beta": 0.5, "weight_norm": False, **ATARI}
    ),
    "cached": ("CachedReplayBuffer", {"stack_num": 3}),
    "goals": ("HERReplayBuffer", GOALS),
    "slides": ("ReplayBuffer", {}),
    "vector that slides": ("VectorReplayBuffer", {}),
    "prioritized vector that slides": (
        "PrioritizedVectorReplayBuffer", {"alpha": 0.6, "beta": 0.4, "stack_num": 2}
    ),
    "cached that slides": ("CachedReplayBuffer", {}),
    "vector of goals": ("HERVectorReplayBuffer", {**GOALS, "ignore_obs_next": True}),
}  # fmt: skip


def player(kind, seed=0):
    name, options = KINDS[kind]
    return Player(
        seed, goals="HER" in name, stack="save_only_last_obs" in options,
        envs=ENVS if "Vector" in name or "Cached" in name else 1, slides=3 * ("slides" in kind),
    )  # fmt: skip


def shared(kind):
    """Options of ours, with which frames that transitions have in common are stored once."""
    return {"next_of": True, "stack": 3 if "slides" in kind else 1}
