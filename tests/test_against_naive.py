"""Hypothesis drives a buffer and its naive twin through the same life, side by side.

After each step the two must agree on what there is; at random moments every row that can be
sampled is compared field by field. HYPOTHESIS_PROFILE=long runs many more and longer lives.
"""

import copy
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import diskreplay
from diskreplay import errors
from tests.effort import effort
from tests.naive import ENDS, OUTCOMES, SideBySide, assert_transitions_equal, check_store

EFFORT = settings(
    max_examples=effort(8, 24, 1000),
    stateful_step_count=effort(25, 25, 60),
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
# Thousands of small files come and go: in memory where the system has such a directory.
SHARED_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

IMAGE = {"observation": ((8, 8), "uint8")}
IMAGE_AND_VECTOR = {
    "observation/camera": ((8, 8), "uint8"),
    "observation/velocity": ((3,), "float32"),
}
SEEDS = st.integers(0, 2**32 - 1)
PRIORITIES = st.one_of(
    st.sampled_from([0.0, 1e-6, 0.5, 1.0, 2.0, 50.0]), st.floats(0.001, 100, allow_subnormal=False)
)


def compressors(leaves):
    """One for all fields, or one for each."""
    each = st.sampled_from(["raw", "lz4", "zstd"])
    named = st.dictionaries(st.sampled_from([*leaves, "log_prob"]), each)
    return st.one_of(st.just("auto"), each, each, named)


def frozen(twin):
    """A twin that stays what `twin` is now."""
    still = copy.copy(twin)
    still.restore(twin.copy(), resume_episodes=True)
    return still


@st.composite
def lives(draw, leaves):
    num_envs = draw(st.integers(1, 3))
    stack_size = draw(st.integers(1, 4))
    update_horizon = draw(st.integers(1, 5))
    per_env = draw(st.one_of(st.none(), st.integers(12, 40), st.integers(40, 150)))
    spare = draw(st.integers(0, num_envs - 1))  # a capacity that the envs cannot share evenly
    return {
        "num_envs": num_envs,
        "stack_size": stack_size,
        "stack_padding": draw(st.sampled_from(["zero", "reset"])),
        "update_horizon": update_horizon,
        "capacity": None if per_env is None else per_env * num_envs + spare,
        "gamma": draw(st.sampled_from([1.0, 0.5, 0.99, 0.9])),
        "observation": leaves,
        "compressor": draw(compressors(leaves)),
        "segment_rows": draw(st.sampled_from([None, 1, 8, 8, 16, 24, 64])),
        "alpha": draw(st.sampled_from([None, 0, 0.6, 1.0])),
        "weight_normalization": draw(st.sampled_from(["batch", "buffer"])),
        "batch_size": draw(st.sampled_from([1, 32])),
        "seed": draw(SEEDS),
    }


def check_reader(reader, twin):
    ids = twin.sampleable_ids()
    assert len(reader) == len(ids)
    assert reader.add_count == twin.add_count
    assert reader.statistics().rows == twin.rows
    if ids:
        assert_transitions_equal(twin, reader.gather(np.asarray(ids, np.int64)))


class Lives(RuleBasedStateMachine):
    """One buffer from its creation on, through adds, samples, checkpoints and reopenings."""

    leaves = IMAGE

    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(dir=SHARED_MEMORY))
        self.checkpoints = self.directory / "checkpoints"
        self.both = None
        self.reader = None
        self.saved = {}  # suffix -> the twin as it was, frozen; the newest four
        self.newest_suffix = 0

    @initialize(data=st.data())
    def begin(self, data):
        options = data.draw(lives(self.leaves), label="options")
        self.both = SideBySide(self.directory / "replay", **options)

    # -- recording

    @rule(data=st.data())
    def add_one(self, data):
        envs = self.both.twin.num_envs
        names = [name for name in OUTCOMES if envs > 1 or name != "skip"]
        self.both.step(data.draw(st.lists(st.sampled_from(names), min_size=envs, max_size=envs)))

    @rule(steps=st.integers(1, 40), seed=SEEDS, end=st.sampled_from([0.0, 0.05, 0.3, 0.9, 1.0]))
    def play(self, steps, seed, end):
        self.both.play(steps, seed, end)
        self.both.check_gather()

    @rule(steps=st.sampled_from([200, 500, 1300]), seed=SEEDS, end=st.sampled_from([0.01, 0.2]))
    def play_for_long(self, steps, seed, end):
        """Past every segment: the smallest raw one of a byte a row has 4096 rows."""
        self.both.play(steps, seed, end, skip=0.4)

    @rule(ends=st.lists(st.sampled_from(ENDS), min_size=1, max_size=6))
    def play_episodes_of_one_step(self, ends):
        for end in ends:
            self.both.step([end] * self.both.twin.num_envs)

    @rule(data=st.data(), led_to_is_known=st.booleans())
    def end_episode(self, data, led_to_is_known):
        env = st.integers(0, self.both.twin.num_envs - 1)
        self.both.end_episode(data.draw(st.none() | st.sets(env)), led_to_is_known)

    @rule(part=st.floats(0, 1), one_env=st.booleans())
    def evict(self, part, one_env):
        real, twin = self.both.real, self.both.twin
        first = [low + int(part * max(high - 1 - low, 0)) for low, high in real.bounds.tolist()]
        if one_env:
            first[1:] = [0] * (len(first) - 1)
        twin.settle_priorities()  # a row is given the largest of when it came, and not of now
        real.evict(first)
        twin.evict(first)

    @rule()
    def clear(self):
        self.close_reader()
        self.both.clear()

    @rule(kind=st.sampled_from(["nan", "inf", "shape", "missing", "unknown"]))
    def add_what_is_refused(self, kind):
        both = self.both
        envs = both.twin.num_envs
        step = both.make_step(["truncated, final"] * envs)
        step = {
            name: np.asarray(step[name]) for name in ("action", "reward", "terminated", "truncated")
        }
        step["log_prob"] = np.zeros(envs, np.float32)
        observation = {
            name: np.zeros((envs, *shape), dtype)
            for name, (shape, dtype) in both.twin.observation.items()
        }
        error = {
            "nan": errors.NotFiniteError,
            "inf": errors.NotFiniteError,
            "shape": errors.ShapeError,
            "missing": errors.ExtrasError,
            "unknown": errors.ExtrasError,
        }[kind]
        last = list(observation)[-1]
        if kind == "nan":
            step["reward"][-1] = np.nan
        elif kind == "inf":
            step["reward"][-1] = -np.inf
        elif kind == "shape":
            observation[last] = np.zeros((envs, 2, 3), observation[last].dtype)
        elif kind == "missing":
            del step["log_prob"]
        else:
            step["log_probability"] = np.zeros(envs, np.float32)
        if envs == 1:
            step = {name: values[0] for name, values in step.items()}
            observation = {name: values[0] for name, values in observation.items()}
        with pytest.raises(error):
            both.real.add(both.in_the_space(observation), **step)

    # -- sampling

    @precondition(lambda self: self.both.can_sample())
    @rule(batch_size=st.sampled_from([1, 2, 32, 100]), beta=st.sampled_from([0.0, 0.4, 1.0]))
    def sample(self, batch_size, beta):
        self.both.check_sample(batch_size, beta)

    @precondition(lambda self: self.both.can_sample())
    @rule(batch_size=st.sampled_from([1, 32]))
    def sample_into_an_earlier_batch(self, batch_size):
        batch = self.both.real.sample(batch_size)
        again = self.both.real.sample(batch_size, out=batch)
        self.both.check_batch(again)

    @precondition(lambda self: self.both.can_sample())
    @rule(depth=st.integers(1, 3), count=st.integers(1, 4), batch_size=st.sampled_from([None, 7]))
    def prefetch(self, depth, count, batch_size):
        with self.both.real.prefetch(depth=depth, batch_size=batch_size) as batches:
            for _, batch in zip(range(count), batches, strict=False):
                assert len(batch.id) == (batch_size or self.both.options["batch_size"])
                self.both.check_batch(batch)

    @precondition(lambda self: not self.both.can_sample())
    @rule()
    def sample_nothing(self):
        with pytest.raises(errors.EmptyBufferError):
            self.both.real.sample(3)

    @rule()
    def gather_everything(self):
        self.both.check_gather()

    @precondition(lambda self: len(self.both.twin) > 0)
    @rule(data=st.data())
    def gather_some_twice_and_in_disorder(self, data):
        ids = st.sampled_from(self.both.twin.sampleable_ids())
        self.both.check_gather(data.draw(st.lists(ids, min_size=1, max_size=20)))

    @precondition(lambda self: len(self.not_sampleable()) > 0)
    @rule(data=st.data())
    def gather_what_cannot_be_sampled(self, data):
        id = data.draw(st.sampled_from(self.not_sampleable()))
        others = self.both.twin.sampleable_ids()[:2]
        with pytest.raises(errors.NotSampleableError):
            self.both.real.gather(np.asarray([*others, id], np.int64))

    @rule(data=st.data())
    def use_unknown_ids(self, data):
        id = data.draw(self.unknown_ids())
        others = self.both.twin.sampleable_ids()[:2]
        with pytest.raises(errors.UnknownIdError):
            self.both.real.gather(np.asarray([*others, id], np.int64))
        if self.both.twin.alpha is not None:
            ids = np.asarray([*others, id], np.int64)
            with pytest.raises(errors.UnknownIdError):
                self.both.real.update_priorities(ids, np.full(ids.size, 77.0))
            self.both.check_gather()

    def not_sampleable(self):
        """Ids of rows that are evicted, pending, cut or final."""
        return sorted(set(self.both.twin.known_ids()) - set(self.both.twin.sampleable_ids()))

    def unknown_ids(self):
        """The next row of an env that has fewer, one far off, and negative ones."""
        twin = self.both.twin
        nexts = [len(twin.history[env]) * twin.num_envs + env for env in range(twin.num_envs)]
        return st.sampled_from([*nexts, max(nexts) + 10_000 * twin.num_envs, 2**62, -1, -7])

    # -- priorities

    @precondition(lambda self: self.prioritized() and self.both.twin.add_count > 0)
    @rule(data=st.data())
    def update_priorities(self, data):
        """Of any rows ever written, some twice."""
        known = self.both.twin.known_ids()
        usual = st.sampled_from(self.both.twin.sampleable_ids() or known)
        ids = data.draw(st.lists(usual | st.sampled_from(known), max_size=30))
        ids += ids[: data.draw(st.integers(0, 3))]
        priorities = [data.draw(PRIORITIES) for _ in ids]
        self.both.update_priorities(ids, priorities)

    @precondition(lambda self: self.prioritized() and len(self.both.twin) > 0)
    @rule(seed=SEEDS)
    def update_all_priorities(self, seed):
        ids = self.both.twin.sampleable_ids()
        self.both.update_priorities(ids, np.random.default_rng(seed).exponential(size=len(ids)))

    @precondition(lambda self: self.prioritized() and len(self.not_sampleable()) > 0)
    @rule(data=st.data(), priority=st.sampled_from([3.0, 1000.0]), seed=SEEDS)
    def update_what_cannot_be_sampled(self, data, priority, seed):
        """What is ignored has not been seen: rows that come after do not get it."""
        ids = data.draw(st.lists(st.sampled_from(self.not_sampleable()), min_size=1, max_size=9))
        self.both.update_priorities(ids, [priority] * len(ids))
        self.both.play(8, seed)
        self.both.check_gather()

    @precondition(lambda self: self.prioritized() and len(self.both.twin) > 0)
    @rule(bad=st.sampled_from([np.nan, np.inf, -np.inf, -1e-9]))
    def update_priorities_to_what_is_refused(self, bad):
        ids = self.both.twin.sampleable_ids()[:3]
        with pytest.raises(errors.PriorityError):
            self.both.real.update_priorities(
                np.asarray(ids, np.int64), np.asarray([88.0] * (len(ids) - 1) + [bad])
            )
        self.both.check_gather()

    def prioritized(self):
        return self.both.twin.alpha is not None

    # -- on the disk

    @rule()
    def flush(self):
        self.both.real.flush()

    @rule()
    def reopen(self):
        self.close_reader()
        self.both.reopen()
        self.both.check_gather()

    @rule(
        stack_size=st.integers(1, 4), padding=st.sampled_from(["zero", "reset"]),
        horizon=st.integers(1, 5), gamma=st.sampled_from([0.9, 1]),
    )  # fmt: skip
    def reopen_with_other_windows(self, stack_size, padding, horizon, gamma):
        self.close_reader()
        self.both.reopen(
            stack_size=stack_size, stack_padding=padding, update_horizon=horizon,
            gamma=float(gamma),
        )  # fmt: skip
        self.both.check_gather()

    @rule()
    def save(self):
        self.newest_suffix += 1
        self.save_as(self.newest_suffix)
        for suffix in sorted(self.saved)[:-4]:
            del self.saved[suffix]
        directories = {path.name for path in self.checkpoints.iterdir()}
        assert directories == {f"replay_ckpt.{suffix}" for suffix in self.saved}

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def save_again(self, data):
        self.save_as(data.draw(st.sampled_from(sorted(self.saved))))

    def save_as(self, suffix):
        path = self.both.real.save(self.checkpoints, suffix)
        assert Path(path) == self.checkpoints / f"replay_ckpt.{suffix}"
        self.saved[suffix] = frozen(self.both.twin)

    @precondition(lambda self: self.saved)
    @rule(data=st.data(), resume_episodes=st.booleans())
    def load(self, data, resume_episodes):
        self.close_reader()
        suffix = data.draw(st.sampled_from([None, *sorted(self.saved)]))
        self.both.real.load(self.checkpoints, suffix, resume_episodes=resume_episodes)
        saved = self.saved[max(self.saved) if suffix is None else suffix]
        self.both.twin.restore(saved.copy(), resume_episodes)
        self.both.check_gather()

    @rule(
        steps=st.integers(1, 60),
        end=st.sampled_from([0.02, 0.3]),
        resume_episodes=st.booleans(),
        seed=SEEDS,
    )
    def go_back_and_take_another_way(self, steps, end, resume_episodes, seed):
        """Save, record, load, and record something else under the same ids."""
        both = self.both
        self.save()
        both.play(steps, seed, end)
        if both.twin.alpha is not None and len(both.twin) > 0:
            ids = both.twin.sampleable_ids()
            both.update_priorities(ids, [100.0 + seed % 100] * len(ids))
        self.close_reader()
        both.real.load(self.checkpoints, self.newest_suffix, resume_episodes=resume_episodes)
        both.twin.restore(self.saved[self.newest_suffix].copy(), resume_episodes)
        both.check_counts()
        both.play(steps % 10 + 1, seed + 1, end)
        both.check_gather()

    @precondition(lambda self: self.saved)
    @rule(data=st.data(), per_env=st.integers(12, 200), resume_episodes=st.booleans())
    def load_elsewhere(self, data, per_env, resume_episodes):
        """Into a new store of another capacity: the life goes on there."""
        self.close_reader()
        suffix = data.draw(st.sampled_from(sorted(self.saved)))
        both = self.both
        both.real.close()
        both.path = Path(tempfile.mkdtemp(dir=self.directory)) / "replay"
        both.twin.capacity = per_env * both.twin.num_envs
        both.real = both.construct()
        both.real.load(self.checkpoints, suffix, resume_episodes=resume_episodes)
        both.twin.restore(self.saved[suffix].copy(), resume_episodes)
        both.check_gather()

    @rule(suffix=st.sampled_from([0, 10_000, "best"]))
    def load_what_is_not_there(self, suffix):
        with pytest.raises(errors.CheckpointNotFoundError):
            self.both.real.load(self.checkpoints, suffix)
        self.both.check_gather()

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def read_a_checkpoint(self, data):
        """Whatever was recorded, evicted and loaded since, it holds what was saved."""
        suffix = data.draw(st.sampled_from(sorted(self.saved)))
        twin = self.saved[suffix]
        with diskreplay.open(self.checkpoints / f"replay_ckpt.{suffix}", mode="r") as reader:
            check_reader(reader, twin)

    @rule()
    def follow_with_a_reader(self):
        if self.reader is None:
            self.reader = diskreplay.open(self.both.path, mode="r")
        check_reader(self.reader, self.both.twin)

    def close_reader(self):
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    # -- always

    @invariant()
    def the_counts_agree(self):
        if self.both is not None:
            self.both.check_counts()

    def teardown(self):
        failed = sys.exc_info()[0] is not None  # checking what is broken would hide what broke it
        try:
            self.close_reader()
            if self.both is not None and not failed:
                self.both.check_everything()
                self.both.reopen()
                self.both.check_everything()
                self.both.real.close()
                check_store(self.both.path, self.both.twin)
        finally:
            if self.both is not None:
                self.both.real.close()
            shutil.rmtree(self.directory, ignore_errors=True)


class LivesOfDictObservations(Lives):
    leaves = IMAGE_AND_VECTOR


TestLives = Lives.TestCase
TestLives.settings = EFFORT
TestLivesOfDictObservations = LivesOfDictObservations.TestCase
TestLivesOfDictObservations.settings = settings(EFFORT, max_examples=EFFORT.max_examples // 2)


# -- lives that are too long, or too particular, to be met by chance


@pytest.fixture
def directory():
    path = Path(tempfile.mkdtemp(dir=SHARED_MEMORY))
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize(("compressor", "num_envs"), [("raw", 3), ("lz4", 3), ("zstd", 1)])
@pytest.mark.costly(1)
def test_capacities_that_wrap_many_times(directory, compressor, num_envs):
    """Past the smallest raw segment of every field, many times past the capacity."""
    with SideBySide(
        directory / "replay",
        num_envs=num_envs,
        capacity=100 * num_envs,
        stack_size=4,
        update_horizon=3,
        compressor=compressor,
        segment_rows=1,
        alpha=0.6,
    ) as both:
        for i in range(6):
            both.play(1000, seed=i, end=(0.01, 0.1, 0.5)[i % 3], skip=0.3)
            both.check_everything()
            if i % 4 == 2:
                both.reopen()
                both.check_everything()


@pytest.mark.costly(13)
@pytest.mark.parametrize("stack_size", [1, 2, 3, 4])
@pytest.mark.parametrize("update_horizon", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("stack_padding", ["zero", "reset"])
def test_every_stack_with_every_horizon(directory, stack_size, update_horizon, stack_padding):
    """Every way to end an episode, after episodes of every length up to 7."""
    with SideBySide(
        directory / "replay",
        capacity=None,
        stack_size=stack_size,
        stack_padding=stack_padding,
        update_horizon=update_horizon,
        compressor="lz4",
        segment_rows=8,
    ) as both:
        for length in range(7):
            for end in ENDS:
                for _ in range(length):
                    both.step(["go on"])
                both.step([end])
        both.check_everything()
        both.reopen()
        both.check_everything()


def test_the_smallest_capacity_that_is_taken_wraps_too(directory):
    for per_env in range(1, 20):
        options = {"num_envs": 2, "capacity": 2 * per_env, "stack_size": 4, "update_horizon": 5}
        try:
            both = SideBySide(directory / str(per_env), **options)
            break
        except errors.CapacityError:
            assert per_env < 4 + 5 + 1, "there is room for a window and its final row"
    with both:
        for i in range(30):
            both.play(10, seed=i, end=0.05)
            both.check_counts()
            both.check_gather()


@pytest.mark.costly(1)
@pytest.mark.parametrize("compressor", ["raw", "lz4"])
def test_a_reader_follows_past_every_segment(directory, compressor):
    """It looks again only after all that it has seen was evicted, several times over."""
    with SideBySide(
        directory / "replay",
        capacity=150,
        stack_size=3,
        update_horizon=2,
        compressor=compressor,
        segment_rows=8,
    ) as both:
        both.play(100, seed=1)
        with diskreplay.open(both.path, mode="r") as reader:
            for steps in (1, 60, 500, 5000):
                check_reader(reader, both.twin)
                both.play(steps, seed=steps)
            check_reader(reader, both.twin)
