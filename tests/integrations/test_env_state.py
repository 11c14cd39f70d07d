"""An environment goes on from where another one was, bit for bit."""

import collections
import importlib.util
import signal

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import (
    AtariPreprocessing,
    Autoreset,
    FrameStackObservation,
    NormalizeObservation,
    RecordEpisodeStatistics,
    TransformReward,
)

import diskreplay
from diskreplay import InvalidInputError
from diskreplay.integrations.env_state import EnvState
from diskreplay.integrations.gymnasium import Recorder


def cart_pole():
    env = RecordEpisodeStatistics(gymnasium.make("CartPole-v1", max_episode_steps=40))
    return TransformReward(NormalizeObservation(Autoreset(env)), lambda reward: 2 * reward)


def pong():
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.25)
    return FrameStackObservation(AtariPreprocessing(env), 4)


def hopper():
    return gymnasium.make("Hopper-v5")  # its torso is read before each step


def vector():
    return gymnasium.vector.SyncVectorEnv([cart_pole, cart_pole])


class Emulator:
    """Counts its frames, and is cut at one of them."""

    frames, cut = 0, None

    def getFloat(self, name):
        return {"repeat_action_probability": 0.25}[name]

    def act(self, action):
        self.frames += 1
        if self.frames == 30 and self.cut is not None:
            self.cut()


class Emulated(gymnasium.Env):
    observation_space, action_space = Box(0, 1e9, ()), Discrete(2)

    def __init__(self):
        self.ale = Emulator()

    def clone_state(self, include_rng):
        return {"frames": self.ale.frames}

    def restore_state(self, state):
        self.ale.frames = state["frames"]


def ctrl_c():
    signal.raise_signal(signal.SIGINT)


def broken():
    raise RuntimeError("it is broken")


@pytest.mark.parametrize("cut", [ctrl_c, broken])
@pytest.mark.parametrize("call", ["take", "now", "give"])
def test_an_emulator_that_is_cut_has_its_frame(cut, call):
    """Some 50 frames are played that repeat nothing: all of them are undone."""
    env = Emulated()
    state = EnvState(env)
    env.ale.frames = 7
    saved = state.read(state.take())
    env.ale.cut = cut
    before, error = signal.signal(signal.SIGINT, signal.default_int_handler), None
    try:
        state.give(saved) if call == "give" else getattr(state, call)()
    except (KeyboardInterrupt, InvalidInputError, RuntimeError) as raised:
        error = raised
    finally:
        signal.signal(signal.SIGINT, before)
    assert env.ale.frames == 7
    assert error is not None or (call, cut) == ("now", broken)  # which may have no state yet


class Talker(gymnasium.Env):
    """Says itself what its state is, and has what cannot be pickled."""

    observation_space = Box(0, 1e9, ())

    def __init__(self):
        self.action_space = Discrete(3)
        self.count, self.file = 0, open(__file__)  # noqa: SIM115

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.float32(self.count), {}

    def step(self, action):
        self.count += int(action) + 1
        return np.float32(self.count), 0.0, False, False, {}

    def get_state(self):
        return {"count": self.count, "actions": self.action_space.np_random.bit_generator.state}

    def set_state(self, state):
        self.count = state["count"]
        self.action_space.np_random.bit_generator.state = state["actions"]

    def close(self):
        self.file.close()


MAKE = [cart_pole, pong, vector, Talker]
if importlib.util.find_spec("mujoco") and importlib.util.find_spec("imageio"):
    MAKE.append(hopper)


def play(env, steps):
    """What the environment returns for actions that its own space draws."""
    seen = []
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        seen.append([np.array(each) for each in (observation, reward, terminated, truncated)])
        if isinstance(env, gymnasium.Env) and (terminated or truncated):
            seen.append([np.array(env.reset()[0])])
    return seen


@pytest.mark.costly(5)
@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("steps", [0, 1, 5, 77])
def test_another_environment_goes_on(make, steps):
    env, other = make(), make()
    env.reset(seed=3)
    env.action_space.seed(4)
    play(env, steps)
    data = EnvState(env).take()
    expected = play(env, 150)
    other.reset(seed=9)
    other.action_space.seed(0)  # of Pong: it ends with an action that the emulator might repeat
    play(other, 3)
    space, given = other.action_space, EnvState(other)
    given.give(given.read(data))
    assert other.action_space is space
    for one, two in zip(expected, play(other, 150), strict=True):
        for array, twin in zip(one, two, strict=True):
            np.testing.assert_array_equal(array, twin)
    env.close(), other.close()


def test_an_environment_goes_back():
    env = cart_pole()
    env.reset(seed=0)
    env.action_space.seed(0)
    state = EnvState(env)
    data = state.take()
    first = play(env, 90)
    state.give(state.read(data))
    for one, two in zip(first, play(env, 90), strict=True):
        for array, twin in zip(one, two, strict=True):
            np.testing.assert_array_equal(array, twin)


def test_a_recorder_goes_on_with_its_own_buffer(tmp_path):
    def recorded(path):
        buffer = diskreplay.ReplayBuffer(
            path, observation_space=Box(-np.inf, np.inf, (4,), "float32"),
            action_space=Discrete(2), capacity=1000,
        )  # fmt: skip
        return Recorder(gymnasium.make("CartPole-v1"), buffer), buffer

    (env, buffer), (other, twin) = recorded(tmp_path / "one"), recorded(tmp_path / "two")
    env.reset(seed=0)
    observation, *_ = env.step(1)
    data = EnvState(env).take()
    buffer.save(tmp_path / "saved", 1)
    twin.load(tmp_path / "saved", resume_episodes=True)
    state = EnvState(other)
    state.give(state.read(data))
    assert other.buffer is twin
    other.step(0)  # without a reset
    np.testing.assert_array_equal(twin.take("observation", [1])[0], observation)
    buffer.close(), twin.close()


class Clocked(gymnasium.Env):
    """Has state of its own under names that others have for drawings and simulations."""

    observation_space, action_space = Box(-9, 9, (3,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.clock, self.window, self.model = 0, collections.deque([0.0] * 3, 3), np.zeros(2)
        self.env, self.viewer, self.screen = {"since": 0}, None, None
        return self._seen(), {}

    def step(self, action):
        self.clock += 1
        self.window.append(action)
        self.model[action] += 0.1
        self.env["since"] += 1
        return self._seen(), 1.0, False, self.clock == 20, {}

    def _seen(self):
        since = self.env["since"] + self.model[0]
        return np.array([self.clock, sum(self.window), since], np.float32)


def test_names_of_drawings_may_be_those_of_state():
    one, other = gymnasium.Wrapper(Clocked()), gymnasium.Wrapper(Clocked())
    for env in (one, other):
        env.reset(seed=0)
    for _ in range(7):
        one.step(1)
    state = EnvState(other)
    state.give(state.read(EnvState(one).take()))
    assert other.env.env == {"since": 7}
    assert other.step(0)[0].tolist() == one.step(0)[0].tolist()


def test_an_environment_within_one_is_not_taken_for_what_it_was_made_with():
    """Gymnasium pickles many as the arguments that they were made with."""

    class Inner(gymnasium.Env, gymnasium.utils.EzPickle):
        pass

    env = Clocked()
    env.reset()
    env.env = Inner()
    with pytest.raises(InvalidInputError, match="the attribute env of Clocked cannot be pickled"):
        EnvState(env).take()


def test_envs_whose_state_nobody_can_take_are_refused():
    pytest.importorskip("ale_py.vector_env")
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make_vec("ALE/Pong-v5", 2, vectorization_mode="vector_entry_point")
    try:
        env.reset(seed=0)
        with pytest.raises(InvalidInputError, match=r"the attribute ale of .* cannot be pickled"):
            EnvState(env).take()
    finally:
        env.close()


def test_envs_of_other_processes_are_refused():
    env = gymnasium.vector.AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")])
    try:
        with pytest.raises(InvalidInputError, match="AsyncVectorEnv are in other processes"):
            EnvState(env)
    finally:
        env.close()


def test_what_cannot_be_pickled_is_named():
    env = cart_pole()
    env.unwrapped.log = open(__file__)  # noqa: SIM115
    try:
        with pytest.raises(InvalidInputError, match="attribute log of CartPoleEnv cannot be"):
            EnvState(env).take()
    finally:
        env.unwrapped.log.close()


class Agent:
    """What a recorder's extras are of."""

    def __init__(self, log):
        self.version, self.log = 0, log

    def extras(self, *_step):
        return {"version": self.version}


def test_the_object_of_a_method_stays_the_one_that_others_have(tmp_path):
    """A copy would go its own way, and its object may not be one that can be pickled."""

    def make():
        env = gymnasium.make("CartPole-v1")
        buffer = diskreplay.ReplayBuffer(
            None, observation_space=env.observation_space, action_space=env.action_space,
            capacity=100, extras={"version": ((), "int64")},
        )  # fmt: skip
        agent = Agent(open(tmp_path / "log", "a"))  # noqa: SIM115 - closed below
        env = Recorder(env, buffer, extras=agent.extras)
        env.reset(seed=0)
        return env, agent

    (env, first), (other, second) = make(), make()
    env.step(0), env.step(1)
    data = EnvState(env).take()
    env.buffer.save(tmp_path / "saved", 1)
    other.buffer.load(tmp_path / "saved", resume_episodes=True)
    state = EnvState(other)
    state.give(state.read(data))
    for version in (7, 8):
        second.version = version
        other.step(0)
    assert other.buffer.take("version", range(4)).tolist() == [0, 0, 7, 8]
    for each in (first, second):
        each.log.close()
    env.buffer.close(), other.buffer.close()


class Slotted(gymnasium.Env):
    __slots__ = ("count",)
    observation_space, action_space = Box(0, 9, ()), Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return np.float32(0), {}

    def step(self, action):
        self.count += 1
        return np.float32(self.count), 0.0, False, False, {}


def test_state_that_is_in_no_attribute_is_refused():
    class Keyed(cart_pole().unwrapped.__class__, dict):
        pass

    class Says(Slotted):
        def get_state(self):
            return self.count

        def set_state(self, state):
            self.count = state

    for env in (gymnasium.Wrapper(Slotted()), Keyed()):
        with pytest.raises(InvalidInputError, match="has state that is in no attribute"):
            EnvState(env)
    env, other = Says(), Says()
    env.reset(), env.step(0)
    state = EnvState(other)
    state.give(state.read(EnvState(env).take()))
    assert other.count == 1


def test_other_wrappers_are_refused():
    data = EnvState(cart_pole()).take()
    other = gymnasium.make("CartPole-v1")
    with pytest.raises(InvalidInputError, match=r"NormalizeObservation.*this is TimeLimit"):
        EnvState(other).read(data)


class Curious(gymnasium.Wrapper):
    """Holds what others have, too: directly, and within something."""

    def __init__(self, env, **shared):
        super().__init__(env)
        self.shared, self.most = shared, list(shared.values())
        self.bonus = shared.get("net")


def test_what_is_held_stays_shared():
    rng = np.random.default_rng(0)
    env = Curious(gymnasium.make("CartPole-v1"), rng=rng, bits=rng.bit_generator, table={})
    state = EnvState(env, lambda: {"rng": rng, "bits": rng.bit_generator})
    env.reset(seed=0)
    data = state.take()
    other = np.random.default_rng(5)
    goes_on = Curious(gymnasium.make("CartPole-v1"), rng=other)
    given = EnvState(goes_on, lambda: {"rng": other, "bits": other.bit_generator})
    given.give(given.read(data))
    assert goes_on.shared["rng"] is goes_on.most[0] is other
    assert goes_on.shared["bits"] is other.bit_generator
    assert goes_on.shared["table"] is goes_on.most[2]
    assert goes_on.shared["table"] is not env.shared["table"]
    with pytest.raises(InvalidInputError, match="it had rng, which is not there in this run"):
        EnvState(goes_on).read(data)


def test_attributes_that_came_since_go_when_it_goes_back():
    class Lazy(gymnasium.Wrapper):
        wind = None

        def step(self, action):
            self.wind = self.wind or self.np_random.normal()
            observation, *more = self.env.step(action)
            return observation + self.wind, *more

    env = Lazy(gymnasium.make("CartPole-v1"))
    env.made_before = 3
    state = EnvState(env)
    env.reset(seed=0)
    saved = state.read(state.take())
    env.weather = 4
    first = env.step(0)[0]
    state.give(saved)
    assert "wind" not in vars(env)
    assert not hasattr(env, "weather")
    assert env.made_before == 3
    np.testing.assert_array_equal(env.step(0)[0], first)


def test_attributes_that_refer_to_each_other_come_back():
    env = gymnasium.Wrapper(gymnasium.make("CartPole-v1"))
    east, west = {"name": "east"}, {"name": "west"}
    east["to"], west["to"] = west, east
    env.rooms, env.deep = [east, west], []
    env.rooms.append(env.rooms)
    for _ in range(60):  # two of each, so that a walk would never end
        env.deep = [env.deep, env.deep]
    state = EnvState(env)
    saved = state.read(state.take())
    before = state.now()
    state.give(saved)
    assert env.rooms[0]["to"]["to"] is env.rooms[0] is not east
    state.go_back(before)
    assert env.rooms[0] is east


def test_what_was_left_out_then_stays():
    """It was there, though it is not in the state: a function."""
    env = gymnasium.Wrapper(gymnasium.make("CartPole-v1"))
    state = EnvState(env)
    env.shape = abs
    saved = state.read(state.take())
    env.shape = 3
    state.give(saved)
    assert env.shape == 3


def test_a_class_that_lets_no_attribute_go_lets_this_one():
    class Frozen(gymnasium.Wrapper):
        def __delattr__(self, name):
            raise AttributeError(name)

    env = Frozen(gymnasium.make("CartPole-v1"))
    state = EnvState(env)
    saved = state.read(state.take())
    env.later = 3
    state.give(saved)
    assert not hasattr(env, "later")


class Nested(gymnasium.Env):
    def __init__(self):
        self.observation_space = Box(-1, 1, (1,))
        self.action_space = gymnasium.spaces.Dict(
            a=Discrete(1000), b=gymnasium.spaces.Tuple([Discrete(1000), Box(0, 1, (2,))])
        )
        self.observation_space.groups = [[Discrete(9), 3], {"a": (Discrete(9),)}]
        self.spaces = {"mine": Discrete(1000), "other": 3}
        self.action_space.seed(0)
        self.spaces["mine"].seed(0)


def test_parts_of_spaces_have_their_generators():
    env, other = Nested(), Nested()
    parts = other.action_space["a"], other.action_space["b"], other.action_space["b"][0]
    for _ in range(3):
        env.action_space.sample()
        env.spaces["mine"].sample()
    given = EnvState(other)
    groups = other.observation_space.groups
    within = groups[0][0], groups[1]["a"][0]
    given.give(given.read(EnvState(env).take()))
    assert other.observation_space.groups is groups
    assert (groups[0][0] is within[0], groups[1]["a"][0] is within[1]) == (True, True)
    space = other.action_space
    assert (space["a"], space["b"], space["b"][0]) == parts
    assert all(a is b for a, b in zip((space["a"], space["b"], space["b"][0]), parts, strict=True))
    for _ in range(3):
        assert parts[0].sample() == env.action_space["a"].sample()
        assert parts[2].sample() == env.action_space["b"][0].sample()
        assert other.spaces["mine"].sample() == env.spaces["mine"].sample()


class Masked(Discrete):
    """Notes what may be drawn now."""

    mask = None


class Odd(gymnasium.Space):
    """Has no equality of its own."""


def test_spaces_have_to_be_as_they_were():
    env, other = Nested(), Nested()
    other.action_space["b"].spaces[1].high[:] = 3
    bounds, saved = str(other.action_space), EnvState(env).take()
    with pytest.raises(InvalidInputError, match=r"env: action_space of Nested: Dict.* saved"):
        EnvState(other).read(saved)
    assert str(other.action_space) == bounds
    env.action_space, other.action_space = Masked(5), Masked(5)
    env.observation_space, other.observation_space = Odd((2,), "int8"), Odd((2,), "int8")
    env.action_space.mask = np.ones(5, np.int8)
    given = EnvState(other)
    given.give(given.read(EnvState(env).take()))
    assert other.action_space.mask.tolist() == [1] * 5
    other.observation_space = Odd((3,), "int8")
    with pytest.raises(InvalidInputError, match="env: observation_space of Nested"):
        given.read(EnvState(env).take())


def test_bounds_that_are_held_stay_the_same_arrays():
    env, other = Nested(), Nested()
    low = other.observation_space.low
    given = EnvState(other)
    given.give(given.read(EnvState(env).take()))
    assert other.observation_space.low is low


def test_an_undone_load_leaves_the_objects_that_were_there():
    env = Curious(Nested(), queue=collections.deque([1, 2]))
    state = EnvState(env)
    saved = state.read(state.take())
    env.shared["queue"].append(3)
    env.bonus, env.later = 7, 8
    queue, part = env.shared["queue"], env.action_space["a"]
    generator = part.np_random
    expected = part.np_random.bit_generator.state
    before = state.now()
    state.give(saved)
    assert (env.bonus, list(env.shared["queue"])) == (None, [1, 2])
    state.go_back(before)
    assert env.shared["queue"] is env.most[0] is queue
    assert (list(queue), env.bonus, env.later) == ([1, 2, 3], 7, 8)
    assert env.action_space["a"] is part
    assert part.np_random is generator
    assert part.np_random.bit_generator.state == expected
