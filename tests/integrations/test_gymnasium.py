"""Recorded environments against the same environments played by hand."""

import contextlib
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import Autoreset, FrameStackObservation, TransformObservation
from gymnasium.wrappers.vector import DictInfoToList

import diskreplay
from diskreplay.errors import (
    ExtrasError,
    InvalidInputError,
    NotFiniteError,
    SchemaError,
    ShapeError,
)
from diskreplay.integrations.gymnasium import Recorder, VectorRecorder

try:
    import torch
except ImportError:
    torch = None

FRAME = Box(0, 255, (2, 3), "uint8")
BOTH = Dict({"camera": FRAME, "step": Discrete(256), "parts": Tuple([Box(-9, 9, (2,)), FRAME])})
ACTIONS = 5
ROWS = 60  # compared of each env
MODES = list(AutoresetMode)


class Counting(gymnasium.Env):
    """Frames of (env, episode, step); ends at random, from the first step on.

    With `reuse` it writes every frame into the same array, as some environments do.
    """

    metadata = {"render_modes": []}  # noqa: RUF012
    action_space = Discrete(ACTIONS)

    def __init__(self, env=0, observation_space=FRAME, longest=7, reuse=False):
        self.env_id, self.observation_space, self.longest = env, observation_space, longest
        self.reuse = reuse
        self.episode = -1
        self.frame = np.zeros(FRAME.shape, FRAME.dtype)

    def observe(self):
        if not self.reuse:
            self.frame = self.frame.copy()
        self.frame[:] = (self.env_id, self.episode % 256, self.count)
        if self.observation_space is FRAME:
            return self.frame
        parts = np.array([self.env_id, -self.count], np.float32), self.frame + 1
        return {"camera": self.frame, "step": self.count, "parts": parts}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.count = 0
        self.length = int(self.np_random.integers(1, self.longest + 1))
        return self.observe(), {"episode": self.episode}

    def step(self, action):
        self.count += 1
        ended = self.count >= self.length
        terminated = ended and bool(self.np_random.integers(2))
        truncated = ended and (not terminated or self.episode % 5 == 0)
        reward = float(10 * self.env_id + self.count + action / 8)
        return self.observe(), reward, terminated, truncated, {"doubled": 2 * reward}


def make_buffer(num_envs=1, observation_space=FRAME, **options):
    options = {"action_space": Discrete(ACTIONS), "capacity": None, "seed": 0, **options}
    return diskreplay.ReplayBuffer(
        None, observation_space=observation_space, num_envs=num_envs, **options
    )


def make_envs(kind, mode, num_envs=3, wrap=None, **options):
    def maker(env):
        return lambda: (wrap or (lambda e: e))(Counting(env, **options))

    # From Python 3.14 on workers are not forked unasked, and do not find these tests' modules.
    how = {"context": "fork"} if kind is AsyncVectorEnv else {}
    return kind([maker(env) for env in range(num_envs)], autoreset_mode=mode, **how)


def actions_of(env):
    return np.random.default_rng([7, env]).integers(ACTIONS, size=20 * ROWS)


def play(recorder, steps):
    """Give each env its own sequence of actions, reset as the mode asks; returns what was seen."""
    mode = recorder.metadata["autoreset_mode"]
    number = recorder.num_envs
    sequences = [actions_of(env) for env in range(number)]
    taken = np.zeros(number, np.int64)
    over = np.zeros(number, bool)
    recorder.reset(seed=100)
    while taken.min() < steps:
        if mode is AutoresetMode.DISABLED and over.any():
            recorder.reset(options={"reset_mask": over})
        _, _, terminated, truncated, _ = recorder.step(
            np.array([s[t] for s, t in zip(sequences, taken, strict=True)])
        )
        taken += ~over if mode is AutoresetMode.NEXT_STEP else 1
        over = terminated | truncated


def by_hand(env, steps, observation_space=FRAME):
    """The transitions of one env by their rows, from the bare environment."""
    rows = {}
    row, actions = 0, iter(actions_of(env))
    game = Counting(env, observation_space)
    observation, _ = game.reset(seed=100 + int(env))
    for _ in range(steps):
        before = copied(observation)
        action = next(actions)
        observation, reward, terminated, truncated, _ = game.step(action)
        rows[row] = (before, action, reward, copied(observation), terminated, truncated)
        row += 1
        if terminated or truncated:
            row += 1  # the final row
            observation, _ = game.reset()
    return rows


def copied(value):
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return tuple(map(copied, value)) if isinstance(value, tuple) else np.array(value)


def leaves(value):
    if isinstance(value, dict):
        value = tuple(value[key] for key in sorted(value))
    return (
        [leaf for part in value for leaf in leaves(part)] if isinstance(value, tuple) else [value]
    )


def assert_same(found, expected):
    for one, other in zip(leaves(found), leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def sampleable(buffer, rows=ROWS):
    """The ids of the first rows that can be sampled."""
    ids = []
    for id in range(min(rows * buffer.num_envs, buffer.statistics().rows)):
        try:
            buffer.gather([id])
        except diskreplay.NotSampleableError:
            continue
        except diskreplay.UnknownIdError:
            continue
        ids.append(id)
    return np.array(ids)


def recorded(kind, mode, observation_space=FRAME, **options):
    """Ids and their batch of what three envs record in a mode."""
    envs = make_envs(kind, mode, observation_space=observation_space)
    with make_buffer(3, observation_space, **options) as buffer:
        recorder = VectorRecorder(envs, buffer)
        play(recorder, ROWS + 10)
        recorder.close()
        ids = sampleable(buffer)
        return ids, buffer.gather(ids).asdict()


# -- vector environments


@pytest.mark.costly(2)
@pytest.mark.parametrize("observation_space", [FRAME, BOTH], ids=["box", "dict"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_rows_are_those_played_by_hand(kind, mode, observation_space):
    ids, batch = recorded(kind, mode, observation_space)
    expected = {}
    for env in range(3):
        for row, transition in by_hand(env, ROWS + 5, observation_space).items():
            expected[row * 3 + env] = transition
    assert ids.tolist() == sorted(id for id in expected if id < ROWS * 3)
    for i, id in enumerate(ids):
        before, action, reward, after, terminated, truncated = expected[id]
        assert_same(at(batch["observation"], i), before)
        assert_same(at(batch["next_observation"], i), after)
        assert batch["action"][i] == action
        assert batch["reward"][i] == reward
        assert (batch["terminated"][i], batch["truncated"][i]) == (terminated, truncated)


def at(value, i):
    if isinstance(value, dict):
        return {key: at(part, i) for key, part in value.items()}
    return tuple(at(part, i) for part in value) if isinstance(value, tuple) else value[i]


@pytest.mark.costly(1)
@pytest.mark.parametrize("options", [{}, {"stack_size": 3, "update_horizon": 3}])
def test_modes_record_identical_transitions(options):
    cases = [(SyncVectorEnv, mode) for mode in MODES] + [(AsyncVectorEnv, MODES[1])]
    (ids, batch), *others = [recorded(kind, mode, BOTH, **options) for kind, mode in cases]
    assert len(ids) > 100
    for other_ids, other in others:
        assert other_ids.tolist() == ids.tolist()
        assert other.keys() == batch.keys()
        for name in batch.keys() - {"probability"}:  # one over the length of the buffer
            assert_same(other[name], batch[name])


@pytest.mark.costly(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_environments_that_hand_out_the_same_arrays_again(kind, mode):
    fns = [lambda env=env: Counting(env, reuse=True) for env in range(3)]
    with make_buffer(3) as buffer:
        recorder = VectorRecorder(kind(fns, copy=False, autoreset_mode=mode), buffer)
        play(recorder, 20)
        recorder.close()
        ids = sampleable(buffer, 15)
        found = buffer.gather(ids)
    for i, id in enumerate(ids):
        before, _, _, after, *_ = by_hand(id % 3, 20)[id // 3]
        assert_same(found.observation[i], before)
        if mode is not AutoresetMode.SAME_STEP:  # there the environment spoils its final_obs itself
            assert_same(found.next_observation[i], after)


@pytest.mark.parametrize("mode", MODES)
def test_step_and_reset_return_what_the_environment_returned(mode):
    plain = make_envs(SyncVectorEnv, mode)
    with make_buffer(3) as buffer:
        wrapped = VectorRecorder(make_envs(SyncVectorEnv, mode), buffer)
        assert_same(plain.reset(seed=3), wrapped.reset(seed=3))
        over = np.zeros(3, bool)
        for t in range(25):
            if mode is AutoresetMode.DISABLED and over.any():
                options = [{"reset_mask": over.copy()} for _ in range(2)]
                assert_same(plain.reset(options=options[0]), wrapped.reset(options=options[1]))
                assert options == [{}, {}]
            actions = np.arange(t, t + 3) % ACTIONS
            expected, found = plain.step(actions), wrapped.step(actions)
            over = expected[2] | expected[3]
            assert_same(found[:4], expected[:4])
            assert found[4].keys() == expected[4].keys()


def test_an_env_that_was_stepped_on_after_its_end_is_not_recorded():
    """An `AsyncVectorEnv` does not mind when autoreset is off."""
    envs = make_envs(AsyncVectorEnv, AutoresetMode.DISABLED)
    with make_buffer(3) as buffer:
        recorder = VectorRecorder(envs, buffer)
        recorder.reset(seed=100)
        for _ in range(10):
            recorder.step(np.zeros(3, np.int64))
        recorder.close()
        lengths = [len(first_episode(env)) for env in range(3)]
        assert buffer.add_count == sum(lengths)
        assert len(buffer) == sum(lengths)


def first_episode(env):
    rows = by_hand(env, 10)
    return [row for row in rows if row < next(t for t in range(20) if t not in rows)]


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_in_the_middle_cuts_the_episodes(mode):
    """Rows before a reset are not joined with rows after it, in the reset envs only."""
    envs = make_envs(SyncVectorEnv, mode, longest=200)
    with make_buffer(3, update_horizon=2, stack_size=2) as buffer:
        recorder = VectorRecorder(envs, buffer)
        recorder.reset(seed=1)
        assert min(env.unwrapped.length for env in envs.envs) > 10
        for _ in range(4):
            recorder.step(np.zeros(3, np.int64))
        recorder.reset(options={"reset_mask": np.array([True, False, True])})
        assert min(env.unwrapped.length for env in envs.envs) > 5
        for _ in range(4):
            recorder.step(np.zeros(3, np.int64))
        ids = sampleable(buffer, 8)
        assert sorted(set(ids[ids % 3 == 0] // 3)) == [0, 1, 4, 5]
        assert sorted(set(ids[ids % 3 == 1] // 3)) == [0, 1, 2, 3, 4, 5]
        first = buffer.gather([4 * 3, 4 * 3 + 1])
        assert first.observation[:, :, 0].tolist() == [
            [[0, 0, 0], [0, 1, 0]],
            [[1, 0, 3], [1, 0, 4]],
        ]
        recorder.reset()
        recorder.step(np.zeros(3, np.int64))
        assert sampleable(buffer, 9).tolist() == ids.tolist()


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_reset_when_an_episode_has_just_ended(shared_memory):
    """Without shared memory such an env resets twice: Gymnasium forgets that it is reset."""
    makes = [lambda number=number: Counting(number, longest=3) for number in range(2)]
    envs = AsyncVectorEnv(makes, shared_memory=shared_memory, context="fork")
    with make_buffer(2) as buffer:
        recorder, none = VectorRecorder(envs, buffer), np.zeros(2, np.int64)
        recorder.reset(seed=1)
        for _ in range(5):
            ended = False
            while not ended:
                ended = recorder.step(none)[2].any()
            recorder.reset()
            recorder.step(none)
            recorder.step(none)
        recorder.close()
        batch = buffer.gather(sampleable(buffer))
        goes_on = batch.discount > 0
        now, then = batch.observation[goes_on, 0], batch.next_observation[goes_on, 0]
        assert len(now) > 3
        assert (then[:, 1] == now[:, 1]).all()  # of the same episode
        assert (then[:, 2] == now[:, 2] + 1).all()


def test_a_vector_environment_of_one():
    for mode in MODES:
        envs = make_envs(SyncVectorEnv, mode, 1, observation_space=BOTH)
        extras = {"log_prob": ((), "float32"), "doubled": ((), "float64")}
        with make_buffer(1, BOTH, extras=extras) as buffer:
            recorder = VectorRecorder(envs, buffer, extras=doubled_reward)
            recorder.reset(seed=100)
            for action in actions_of(0)[:1]:
                recorder.annotate(log_prob=np.array([-0.5]))
                recorder.step(np.array([action]))
            before, action, reward, after, *_ = by_hand(0, 1, BOTH)[0]
            recorder.annotate(log_prob=(-0.5,))
            recorder.step(np.array([2]))
            batch = buffer.gather([0])
            assert_same(at(batch.observation, 0), before)
            assert_same(at(batch.next_observation, 0), after)
            assert (batch.action, batch.reward, batch.log_prob) == (action, reward, -0.5)
            assert batch.doubled == 2 * reward


def doubled_reward(observation, action, reward, terminated, truncated, info):
    return {"doubled": 2 * np.asarray(reward)}


def test_final_observations_of_all_envs_in_one_array():
    """As ALE's vector environment gives them: without a mask, those of other envs among them."""

    class Whole(gymnasium.vector.VectorWrapper):
        def step(self, actions):
            observations, *rest, infos = self.env.step(actions)
            if "final_obs" in infos:
                final = observations.copy()
                has = infos.pop("_final_obs")
                final[has] = np.stack(infos["final_obs"][has])
                infos["final_obs"] = final
            return observations, *rest, infos

    def wrap(envs):
        with make_buffer(3) as buffer:
            play(VectorRecorder(envs, buffer), 30)
            ids = sampleable(buffer, 25)
            return ids, buffer.gather(ids)

    envs = make_envs(SyncVectorEnv, AutoresetMode.SAME_STEP)
    other = make_envs(SyncVectorEnv, AutoresetMode.SAME_STEP)
    (ids, batch), (other_ids, expected) = wrap(Whole(envs)), wrap(other)
    assert ids.tolist() == other_ids.tolist()
    for name, values in batch.asdict().items():
        assert_same(values, expected[name])


class Tensors(gymnasium.vector.VectorWrapper):
    """Hands on tensors, as `gymnasium.wrappers.vector.NumpyToTorch` does."""

    def reset(self, *, seed=None, options=None):
        given = {name: np.asarray(value) for name, value in (options or {}).items()}
        observations, infos = self.env.reset(seed=seed, options=given)
        return torch.from_numpy(observations), infos

    def step(self, actions):
        *arrays, infos = self.env.step(actions)
        if "final_obs" in infos:
            has, final = infos["_final_obs"], arrays[0].copy()
            final[has] = np.stack(infos["final_obs"][has])
            infos = {"final_obs": torch.from_numpy(final), "_final_obs": torch.from_numpy(has)}
        return *(torch.from_numpy(np.array(each)) for each in arrays), infos


class Arrays(gymnasium.vector.VectorWrapper):
    """Takes tensors for arrays again, and gives them."""

    def reset(self, *, seed=None, options=None):
        given = {name: torch.from_numpy(value) for name, value in (options or {}).items()}
        return self.env.reset(seed=seed, options=given)

    def step(self, actions):
        *tensors, infos = self.env.step(actions)
        return *(each.numpy() for each in tensors), infos


@pytest.mark.skipif(torch is None, reason="needs PyTorch")
@pytest.mark.parametrize("mode", MODES)
def test_a_vector_environment_of_tensors(mode):
    """The first step was refused, for its mask or in PyTorch's words."""
    batches = []
    for inner, outer in [(None, None), (Tensors, Arrays)]:
        envs = make_envs(SyncVectorEnv, mode)
        with make_buffer(3) as buffer:
            recorder = VectorRecorder(inner(envs) if inner else envs, buffer)
            play(outer(recorder) if outer else recorder, 30)
            ids = sampleable(buffer, 25)
            batches.append(buffer.gather(ids).asdict())
    for name, values in batches[0].items():
        assert_same(batches[1][name], values)


class Gymnasiums(gymnasium.vector.VectorWrapper):
    """In the place of Gymnasium's own, which want another package."""


Gymnasiums.__module__ = "gymnasium.wrappers.vector.array_conversion"
NumpyToTorch = type("NumpyToTorch", (Gymnasiums,), {"__module__": Gymnasiums.__module__})
ToJax = type(
    "NumpyToJax", (type("ArrayConversion", (Gymnasiums,), {"__module__": Gymnasiums.__module__}),),
    {"__module__": Gymnasiums.__module__},
)  # fmt: skip


@pytest.mark.parametrize("tensors", [NumpyToTorch, ToJax])
@pytest.mark.parametrize("inner", [(), (Gymnasiums,)])
def test_gymnasiums_tensors_of_same_step_are_refused(monkeypatch, tensors, inner):
    """They fail amid the step that ends the first episode, in PyTorch's words."""

    def wrapped(mode, *layers):
        env = make_envs(SyncVectorEnv, mode)
        for layer in layers:
            env = layer(env)
        return env

    with make_buffer(3) as buffer:
        refused = wrapped(AutoresetMode.SAME_STEP, *inner, tensors, gymnasium.vector.VectorWrapper)
        with pytest.raises(InvalidInputError, match=f"SAME_STEP Gymnasium's {tensors.__name__} "):
            VectorRecorder(refused, buffer)
        for layers in (
            (AutoresetMode.NEXT_STEP, tensors), (AutoresetMode.DISABLED, tensors),
            (AutoresetMode.SAME_STEP, *inner),
            (AutoresetMode.SAME_STEP, Arrays, tensors),  # which may make arrays of numbers of them
        ):  # fmt: skip
            VectorRecorder(wrapped(*layers), buffer)
        monkeypatch.setattr(gymnasium, "__version__", "1.5.0")
        VectorRecorder(refused, buffer)  # of which nobody has looked


def test_an_environment_that_gives_some_envs_only():
    """As EnvPool's and ALE's with a batch_size, and EnvPool's for a reset_mask."""

    class Some(gymnasium.vector.VectorWrapper):
        given = 2

        def reset(self, **how):
            observations, infos = self.env.reset(**how)
            return observations[: self.given], infos

        def step(self, actions):
            *arrays, infos = self.env.step(actions)
            return *(each[: self.given] for each in arrays), infos

    with make_buffer(3) as buffer:
        envs = Some(make_envs(SyncVectorEnv, AutoresetMode.NEXT_STEP))
        recorder = VectorRecorder(envs, buffer)
        refused = r"a first axis of 3 expected, found \(2,\): .* all 3 envs .*buffer.add"
        with pytest.raises(ShapeError, match=refused):
            recorder.reset(seed=1)
        envs.given = 3
        recorder.reset(seed=1)
        recorder.step(np.zeros(3, int))
        envs.given = 2
        with pytest.raises(ShapeError, match=refused):
            recorder.step(np.zeros(3, int))
        with pytest.raises(ShapeError, match=refused):
            recorder.resume(np.zeros((2, *FRAME.shape), np.uint8))
        assert buffer.add_count == 3


def test_without_final_observations_truncations_are_not_sampled():
    class Silent(gymnasium.vector.VectorWrapper):
        def step(self, actions):
            *result, infos = self.env.step(actions)
            return *result, {k: v for k, v in infos.items() if "final_obs" not in k}

    envs = Silent(make_envs(SyncVectorEnv, AutoresetMode.SAME_STEP))
    with make_buffer(3) as buffer:
        play(VectorRecorder(envs, buffer), 40)
        batch = buffer.gather(sampleable(buffer, 30))
        assert batch.terminated.any()
        assert not (batch.truncated & ~batch.terminated).any()
        assert not batch.next_observation[batch.terminated].any()


# -- single environments


@pytest.mark.costly(1)
@pytest.mark.parametrize("wrap", [lambda env: env, Autoreset])
@pytest.mark.parametrize("observation_space", [FRAME, BOTH], ids=["box", "dict"])
def test_a_single_environment(observation_space, wrap):
    with make_buffer(1, observation_space) as buffer:
        env = Recorder(wrap(Counting(2, observation_space)), buffer)
        plain = wrap(Counting(2, observation_space))
        env.reset(seed=102)
        plain.reset(seed=102)
        over = False
        actions = iter(actions_of(2))
        while buffer.add_count < ROWS:
            if over and wrap is not Autoreset:
                assert_same(env.reset(), plain.reset())
                over = False
            action = 0 if over else next(actions)
            found, expected = env.step(action), plain.step(action)
            assert_same(found, expected)
            over = found[2] or found[3]
        expected = by_hand(2, ROWS, observation_space)
        if not over:
            expected.popitem()
        assert sampleable(buffer, 2 * ROWS).tolist() == list(expected)
        for row, (before, action, reward, after, terminated, truncated) in expected.items():
            batch = buffer.gather([row])
            assert_same(at(batch.observation, 0), before)
            assert_same(at(batch.next_observation, 0), after)
            found = batch.action[0], batch.reward[0], batch.terminated[0], batch.truncated[0]
            assert found == (action, reward, terminated, truncated)


def test_a_step_needs_a_reset_before_it_and_after_an_end():
    with make_buffer() as buffer:
        env = Recorder(Counting(), buffer)
        with pytest.raises(ResetNeeded):
            env.step(0)
        env.reset(seed=1)
        while not any(env.step(0)[2:4]):
            pass
        count = buffer.add_count
        with pytest.raises(ResetNeeded):
            env.step(0)
        assert buffer.add_count == count
        with make_buffer(3) as another:
            vector = VectorRecorder(make_envs(SyncVectorEnv, MODES[0]), another)
            with pytest.raises(ResetNeeded):
                vector.step(np.zeros(3, np.int64))


def test_a_reset_in_the_middle_of_an_episode():
    with make_buffer(stack_size=2) as buffer:
        env = Recorder(Counting(longest=200), buffer)
        for steps in (3, 2, 0, 3):
            env.reset(seed=1)
            assert env.unwrapped.length > 3
            for _ in range(steps):
                env.step(1)
        assert sampleable(buffer).tolist() == [0, 1, 3, 5, 6]
        batch = buffer.gather([3, 5])
        assert not batch.observation[:, 0].any()
        assert batch.observation[:, 1, 0].tolist() == [[0, 1, 0], [0, 3, 0]]
        assert batch.next_observation[:, :, 0, 2].tolist() == [[0, 1], [0, 1]]
        assert batch.next_observation[:, 1, 0, 1].tolist() == [1, 3]


def test_a_new_recorder_does_not_go_on_with_the_episode_of_another():
    with make_buffer() as buffer:
        for episode in range(2):
            env = Recorder(Counting(episode, longest=200), buffer)
            env.reset(seed=1)
            env.step(0)
            env.step(0)
        assert sampleable(buffer).tolist() == [0, 2]


OTHERS = r"The episode is cut here\. Give each recorder a buffer of its own"


def test_rows_of_another_recorder_are_not_what_a_step_led_to():
    """They would be, if each went on with its episode: the buffer knows one of an env."""
    with make_buffer() as buffer:
        envs = [Recorder(Counting(number, longest=200), buffer) for number in range(2)]
        for env in envs:
            env.reset(seed=1)
        for number, steps in ((0, 3), (1, 3), (0, 2), (1, 2)):
            warns = steps == 2  # the first step of an episode is led to by no row
            with pytest.warns(RuntimeWarning, match=OTHERS) if warns else contextlib.nullcontext():
                for _ in range(steps):
                    envs[number].step(0)
        assert sampleable(buffer).tolist() == [0, 1, 3, 4, 6, 8]
        batch = buffer.gather(sampleable(buffer))
        now, then = batch.observation[:, 0], batch.next_observation[:, 0]
        assert (now[:, 0] == then[:, 0]).all()  # of the same env
        assert (then[:, 2] == now[:, 2] + 1).all()


def test_rows_of_others_cut_the_envs_that_were_not_reset():
    with make_buffer(2) as buffer:
        makes = [lambda number=number: Counting(number, longest=200) for number in range(2)]
        envs = SyncVectorEnv(makes, autoreset_mode=AutoresetMode.DISABLED)
        env, none = VectorRecorder(envs, buffer), np.zeros(2, np.int64)
        env.reset(seed=1)
        env.step(none)
        other = np.full((2, 2, 3), 99, np.uint8)
        buffer.end_episode()
        buffer.add(other, none, np.zeros(2), np.zeros(2, bool), np.zeros(2, bool))
        env.reset(options={"reset_mask": np.array([True, False])})
        with pytest.warns(RuntimeWarning, match=OTHERS):
            env.step(none)
        env.step(none)
        batch = buffer.gather(sampleable(buffer))
        now, then = batch.observation[:, 0], batch.next_observation[:, 0]
        assert sorted(map(tuple, now[:, ::2].tolist())) == [(0, 0), (1, 1)]
        assert (then[:, 2] == now[:, 2] + 1).all()


def test_a_loaded_buffer_of_as_many_rows_is_another_one(tmp_path):
    with make_buffer() as buffer, make_buffer() as other:
        for number, kept in enumerate((buffer, other)):
            env = Recorder(Counting(number, longest=200), kept)
            env.reset(seed=1)
            for _ in range(3):
                env.step(0)
            kept.save(tmp_path / str(number), 1)
        other.load(tmp_path / "0", 1, resume_episodes=True)
        with pytest.warns(RuntimeWarning, match=r"call resume\(observation\)"):
            env.step(0)
        env.step(0)
        assert sampleable(other).tolist() == [0, 1, 3]


def test_a_load_that_goes_on_with_an_episode_needs_to_know_where_the_environment_is(tmp_path):
    with make_buffer() as buffer:
        env = Recorder(Counting(longest=200), buffer)
        env.reset(seed=1)
        for _ in range(3):
            env.step(0)
        buffer.save(tmp_path, 1)
        for _ in range(9):
            env.step(0)
        buffer.load(tmp_path, 1, resume_episodes=True)
        with pytest.warns(RuntimeWarning, match=r"call resume\(observation\)"):
            env.step(0)  # of the time after the save, and `resume` was not called
        env.step(0)
        assert sampleable(buffer).tolist() == [0, 1, 3]
        assert buffer.gather([0, 1, 3]).next_observation[:, 0, 2].tolist() == [1, 2, 13]


def test_an_action_that_the_environment_changes_is_recorded_as_chosen():
    class Clips(Counting):
        action_space = Box(-1, 1, (2,))

        def step(self, action):
            np.clip(action, -1, 1, out=action)
            return super().step(0)

    with make_buffer(action_space=Clips.action_space) as buffer:
        env = Recorder(Clips(longest=200), buffer)
        env.reset(seed=1)
        for _ in range(2):
            env.step(np.array([3, -0.5], np.float32))
        assert buffer.gather([0]).action.tolist() == [[3, -0.5]]


def test_resume_goes_on_after_a_load(tmp_path):
    with make_buffer() as buffer:
        env = Recorder(Counting(longest=200), buffer)
        env.reset(seed=1)
        env.step(0)
        observation = copied(env.step(0)[0])
        buffer.save(tmp_path, 1)
        env.step(0)
        env.step(0)
        buffer.load(tmp_path, 1, resume_episodes=True)
        env.unwrapped.count = 2
        env.resume(observation)
        env.step(0)
        env.step(0)
        assert sampleable(buffer).tolist() == [0, 1, 2]
        assert buffer.gather([0, 1, 2]).next_observation[:, 0, 2].tolist() == [1, 2, 3]


# -- failures


def test_a_step_that_cannot_be_recorded_cuts_the_episode():
    class Breaks(Counting):
        def step(self, action):
            observation, reward, *rest = super().step(action)
            return observation, np.nan if self.count == 3 else reward, *rest

    with make_buffer() as buffer:
        env = Recorder(Breaks(longest=200), buffer)
        env.reset(seed=1)
        env.step(0)
        env.step(0)
        with pytest.raises(NotFiniteError):
            env.step(0)
        for _ in range(3):
            env.step(0)
        assert sampleable(buffer).tolist() == [0, 2, 3]
        assert buffer.gather([0, 2]).next_observation[:, 0, 2].tolist() == [1, 4]

    with make_buffer(2) as buffer:
        envs = SyncVectorEnv([lambda: Breaks(longest=200), lambda: Counting(1, longest=200)])
        env = VectorRecorder(envs, buffer)
        env.reset(seed=1)
        for _ in range(2):
            env.step(np.zeros(2, np.int64))
        with pytest.raises(NotFiniteError):
            env.step(np.zeros(2, np.int64))
        for _ in range(2):
            env.step(np.zeros(2, np.int64))
        assert sampleable(buffer).tolist() == [0, 1, 4, 5]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.costly(1)
def test_ctrl_c_in_the_step_that_ends_an_episode(mode):
    """At each line of the recorder: no transition may lead from one episode into the next."""
    none, line, was_cut = np.zeros(2, np.int64), 0, True

    def cut(frame, event, argument):
        nonlocal to_come, was_cut
        if frame.f_code is not VectorRecorder.step.__code__:
            return None
        to_come -= event == "line"
        if not to_come and not was_cut:
            was_cut = True
            raise KeyboardInterrupt
        return cut

    before = sys.gettrace()
    with make_buffer(2) as buffer:
        while was_cut:
            line, was_cut = line + 1, False
            buffer.clear()
            envs = SyncVectorEnv([lambda: Counting(longest=1)] * 2, autoreset_mode=mode)
            env, to_come = VectorRecorder(envs, buffer), line
            env.reset(seed=1)
            with contextlib.suppress(KeyboardInterrupt):
                sys.settrace(cut)
                try:
                    env.step(none)
                finally:
                    sys.settrace(before)
            for _ in range(4):
                try:
                    env.step(none)
                except (ResetNeeded, AssertionError):  # Gymnasium's, where nothing resets
                    env.reset()
            batch = buffer.gather(sampleable(buffer))
            same = batch.observation[:, 0, 1] == batch.next_observation[:, 0, 1]
            assert (same | (batch.discount == 0)).all(), line
    assert line > 20


def test_after_an_error_of_the_environment_a_reset_is_needed():
    class Fails(Counting):
        def step(self, action):
            if action == 4:
                raise RuntimeError("lost the game")
            return super().step(action)

    with make_buffer() as buffer:
        env = Recorder(Fails(longest=200), buffer)
        env.reset(seed=1)
        env.step(0)
        with pytest.raises(RuntimeError, match="lost the game"):
            env.step(4)
        with pytest.raises(ResetNeeded):
            env.step(0)
        env.reset()
        env.step(0)
        assert len(buffer) == 0


@pytest.mark.parametrize(
    ("buffer_space", "actions"),
    [
        (Box(0, 255, (3, 2), "uint8"), Discrete(ACTIONS)),
        (Box(-1, 1, (2, 3), "float64"), Discrete(ACTIONS + 1)),
        (Dict({"camera": FRAME}), Discrete(ACTIONS)),
        (FRAME, Discrete(ACTIONS, start=1)),
        (FRAME, Box(0, 1, ())),
        (FRAME, MultiDiscrete([ACTIONS])),
        (FRAME, Tuple([Discrete(ACTIONS)])),
    ],
)
def test_other_spaces_are_refused(buffer_space, actions):
    with make_buffer(1, buffer_space, action_space=actions) as buffer:
        with pytest.raises(SchemaError) as caught:
            Recorder(Counting(), buffer)
        space = actions if buffer_space == FRAME else buffer_space
        assert str(space) in str(caught.value) or str(actions) in str(caught.value)
        with pytest.raises(SchemaError):
            VectorRecorder(make_envs(SyncVectorEnv, MODES[0], 1), buffer)


def test_dtypes_that_do_not_fit_are_refused():
    env = TransformObservation(
        Counting(), lambda frame: frame / 255, Box(0, 1, FRAME.shape, "float64")
    )
    with make_buffer() as buffer:
        with pytest.raises(SchemaError, match="float64"):
            Recorder(env, buffer)
    with make_buffer(1, Box(0, 1, FRAME.shape, "float32")) as buffer:
        Recorder(env, buffer)


def test_another_number_of_envs_is_refused():
    with make_buffer(2) as buffer:
        with pytest.raises(SchemaError, match=r"3 env.* 2 "):
            VectorRecorder(make_envs(SyncVectorEnv, MODES[0]), buffer)
        with pytest.raises(SchemaError, match=r"1 env.* 2 "):
            Recorder(Counting(), buffer)


def test_what_is_no_buffer_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"Recorder: buffer: .* expected, found NoneType$"):
        Recorder(Counting(), None)
    spaces = {"observation_space": FRAME, "action_space": Discrete(ACTIONS)}
    with diskreplay.ReplayBuffer(tmp_path / "store", capacity=10, **spaces) as buffer:
        writer = buffer.env_writers()[0]
        with pytest.raises(InvalidInputError, match="found EnvWriter; give its `add` each step"):
            Recorder(Counting(), writer)


def test_infos_and_extras_that_are_no_dicts_are_named():
    envs = SyncVectorEnv([lambda: Counting(longest=1)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    with make_buffer(2) as buffer:
        env = VectorRecorder(DictInfoToList(envs), buffer)
        env.reset(seed=0)
        with pytest.raises(InvalidInputError, match="infos: a dict expected, found list; put the"):
            env.step(np.zeros(2, np.int64))
    with make_buffer() as buffer:
        env = Recorder(Counting(), buffer, extras=lambda *step: [1])
        env.reset(seed=0)
        with pytest.raises(ExtrasError, match=r"extras: a dict or None expected .* found \[1\]"):
            env.step(0)


def test_an_unknown_autoreset_mode_is_refused():
    envs = make_envs(SyncVectorEnv, MODES[0])
    del envs.metadata["autoreset_mode"]
    with make_buffer(3) as buffer, pytest.raises(InvalidInputError, match="autoreset_mode"):
        VectorRecorder(envs, buffer)


# -- extras


def test_extras_of_a_single_environment():
    seen = []

    def doubled(observation, action, reward, terminated, truncated, info):
        seen.append((observation, int(action), reward, terminated, truncated))
        return {"doubled": info["doubled"]}

    extras = {"log_prob": ((), "float32"), "doubled": ((), "float64")}
    with make_buffer(extras=extras) as buffer:
        env = Recorder(Counting(longest=200), buffer, extras=doubled)
        env.reset(seed=1)
        with pytest.raises(ExtrasError, match="'value'"):
            env.annotate(value=1.0)
        for t in range(3):
            env.annotate(log_prob=-t)
            env.step(t)
        with pytest.raises(ExtrasError, match="'log_prob' is missing"):
            env.step(0)  # what is annotated holds for one step
        batch = buffer.gather([0, 1])
        assert batch.log_prob.tolist() == [0, -1]
        assert batch.doubled.tolist() == [2 * reward for _, _, reward, *_ in seen[:2]]
        assert_same(batch.observation, np.stack([frame for frame, *_ in seen[:2]]))
        assert [s[1] for s in seen] == [0, 1, 2, 0]


@pytest.mark.parametrize("mode", MODES[:2])
def test_extras_of_a_vector_environment(mode):
    extras = {"chosen": ((2,), "int64"), "doubled": ((), "float64")}
    with make_buffer(3, extras=extras) as buffer:
        env = VectorRecorder(make_envs(SyncVectorEnv, mode), buffer, extras=doubled_reward)
        env.reset(seed=1)
        for t in range(30):
            actions = np.arange(t, t + 3) % ACTIONS
            env.annotate(chosen=np.stack([actions, -actions], axis=1))
            env.step(actions)
        batch = buffer.gather(sampleable(buffer, 25))
        assert len(batch.id) > 40
        assert_same(batch.chosen, np.stack([batch.action, -batch.action], axis=1))
        assert_same(batch.doubled, 2 * batch.reward.astype(np.float64))


# -- observations that are stacks


def last_axis(env):
    """Frames along the last axis, as older wrappers stack them."""
    shape = (*env.observation_space.shape[1:], env.observation_space.shape[0])
    return TransformObservation(env, lambda s: np.moveaxis(s, 0, -1), Box(0, 255, shape, "uint8"))


class LazyFrames:
    """What Gym's `FrameStack` returned."""

    def __init__(self, stack):
        self.stack = stack

    def __array__(self, dtype=None):
        return self.stack.copy()


def lazily(env):
    return TransformObservation(env, LazyFrames, env.observation_space)


@pytest.mark.parametrize("padding", ["zero", "reset"])
@pytest.mark.parametrize(
    "wrap", [lambda env: env, last_axis, lazily], ids=["first axis", "last axis", "lazy"]
)
def test_stacks_come_back_from_their_newest_frames(wrap, padding):
    with make_buffer(stack_size=3, stack_padding=padding) as buffer:
        stacked = FrameStackObservation(Counting(longest=12), 3, padding_type=padding)
        env = Recorder(wrap(stacked), buffer)
        stacks = {}
        observation, _ = env.reset(seed=5)
        row = 0
        while row < ROWS:
            stacks[row] = observation
            observation, _, terminated, truncated, _ = env.step(0)
            row += 1
            if terminated or truncated:
                stacks[row] = observation
                observation, _ = env.reset()
                row += 1
        checked = 0
        for id in sampleable(buffer):
            batch = buffer.gather([id])
            pairs = [(id, batch.observation)]
            if not batch.terminated[0] or batch.steps[0]:
                pairs.append((id + 1, batch.next_observation))
            for t, found in pairs:
                if t not in stacks:
                    continue
                expected = np.asarray(stacks[t])
                expected = np.moveaxis(expected, -1, 0) if wrap is last_axis else expected
                assert_same(found[0], expected)
                checked += 1
        assert checked > 40


def newest(value):
    if isinstance(value, dict):
        return {key: newest(part) for key, part in value.items()}
    return tuple(map(newest, value)) if isinstance(value, tuple) else value[-1]


@pytest.mark.costly(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("space", [FRAME, BOTH], ids=["last axis", "dict"])
def test_stacks_in_a_vector_environment(mode, space):
    def stacked(env):
        env = FrameStackObservation(env, 4)
        return last_axis(env) if space is FRAME else env

    envs = make_envs(SyncVectorEnv, mode, wrap=stacked, observation_space=space)
    with make_buffer(3, space, stack_size=4, stack_padding="reset") as buffer:
        play(VectorRecorder(envs, buffer), 25)
        ids = sampleable(buffer, 20)
        batch = buffer.gather(ids)
        for i, id in enumerate(ids):
            before, _, _, after, *_ = by_hand(id % 3, 25, space)[id // 3]
            assert_same(newest(at(batch.observation, i)), before)
            assert_same(newest(at(batch.next_observation, i)), after)


def test_whole_stacks_can_be_stored_too():
    env = FrameStackObservation(Counting(longest=200), 4)
    with make_buffer(1, env.observation_space) as buffer:
        recorder = Recorder(env, buffer)
        stacks = [recorder.reset(seed=1)[0]]
        stacks += [recorder.step(0)[0] for _ in range(4)]
        assert_same(buffer.gather([0, 1, 2]).observation, np.stack(stacks[:3]))


class Shaped(gymnasium.Env):
    action_space = Discrete(2)

    def __init__(self, *shape):
        self.observation_space = Box(0, 255, shape, "uint8")


def test_ambiguous_stacks_need_the_axis():
    space = Box(0, 255, (4, 4), "uint8")
    with make_buffer(1, space, action_space=Discrete(2), stack_size=4) as buffer:
        with pytest.raises(InvalidInputError, match="frame_axis=0 or frame_axis=-1") as caught:
            Recorder(Shaped(4, 4, 4), buffer)
        assert str(space) in str(caught.value)
        assert "(4, 4, 4)" in str(caught.value)
        Recorder(Shaped(4, 4, 4), buffer, frame_axis=0)
        Recorder(Shaped(4, 4, 4), buffer, frame_axis=-1)
        with make_buffer(1, space, action_space=Discrete(2), stack_size=2) as of_two:
            Recorder(Shaped(4, 4, 2), of_two)
        for axis in (0, -1):
            with pytest.raises(SchemaError, match="no stack"):
                Recorder(Shaped(4, 4), buffer, frame_axis=axis)
        for shape, axis in (((4, 4, 2), 0), ((2, 4, 4), -1), ((2, 4, 4), None), ((8, 4), "auto")):
            with pytest.raises(SchemaError, match=rf"\({', '.join(map(str, shape))}\)"):
                Recorder(Shaped(*shape), buffer, frame_axis=axis)
        for axis in (1, "first"):
            with pytest.raises(InvalidInputError, match="frame_axis"):
                Recorder(Shaped(2, 4, 4), buffer, frame_axis=axis)


def test_stacks_of_numbers_have_one_axis():
    with make_buffer(1, Discrete(9), action_space=Discrete(2), stack_size=3) as buffer:
        for axis in ("auto", 0, -1):
            env = Shaped()
            env.observation_space = MultiDiscrete([9, 9, 9])
            Recorder(env, buffer, frame_axis=axis)
        with pytest.raises(SchemaError):
            Recorder(env, buffer, frame_axis=None)


def test_some_leaves_can_be_stacks_and_others_not():
    whole = Dict({"camera": Box(0, 255, (4, 2, 3), "uint8"), "speed": Box(-1, 1, (2,))})

    class Mixed(gymnasium.Env):
        observation_space = whole
        action_space = Discrete(2)

        def reset(self, *, seed=None, options=None):
            self.frames = [0, 0, 0]
            return self.step(0)[0], {}

        def step(self, action):
            self.frames.append(len(self.frames) * 10)
            camera = np.zeros((4, 2, 3), "uint8") + np.array(self.frames[-4:])[:, None, None]
            observation = {"camera": camera.astype("uint8"), "speed": np.full(2, 0.5, "float32")}
            return observation, 0.0, False, False, {}

    frame = Dict({"camera": FRAME, "speed": Box(-1, 1, (2,))})
    for axis in ("auto", 0):
        with make_buffer(1, frame, action_space=Discrete(2), stack_size=4) as buffer:
            env = Recorder(Mixed(), buffer, frame_axis=axis)
            env.reset()
            for _ in range(3):
                env.step(0)
            batch = buffer.gather([0, 1])
            stacks = [[0, 0, 0, 30], [0, 0, 30, 40]]
            assert batch.observation["camera"][:, :, 0, 0].tolist() == stacks
            assert batch.observation["speed"][:, :, 1].tolist() == [
                [0] * 3 + [0.5],
                [0, 0, 0.5, 0.5],
            ]


def test_a_gymnasium_without_autoreset_modes_is_refused_in_words():
    code = """
import gymnasium.vector
del gymnasium.vector.AutoresetMode
import diskreplay.integrations.gymnasium
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = done.stderr.splitlines()[-1]
    assert said.startswith("ImportError: diskreplay.integrations.gymnasium: the recorders need")
    assert f"1.1 or later, found {gymnasium.__version__}: pip install" in said
