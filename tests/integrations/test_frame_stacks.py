"""The stacks that an agent acts on, and those that it is given to learn from.

What the environment returned is kept as it came, by the number of the row that it belongs to, and
compared with what is sampled for that row: nothing here makes a stack.
"""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import (
    AtariPreprocessing,
    Autoreset,
    FrameStackObservation,
    TransformObservation,
)

import diskreplay
from diskreplay.errors import SchemaError
from diskreplay.integrations.gymnasium import Recorder, VectorRecorder

FRAME = Box(0, 255, (5, 4), "uint8")
STACK = 4
PADDINGS = ("zero", "reset")
MODES = list(AutoresetMode)


def picture(state):
    """A frame that shows each bit of CartPole's state."""
    return np.frombuffer(state.tobytes() + b"rows", np.uint8).reshape(5, 4)


def cartpole(padding, stack=STACK):
    env = TransformObservation(gymnasium.make("CartPole-v1"), picture, FRAME)
    return FrameStackObservation(env, stack, padding_type=padding)


def pong(padding):
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make(
        "ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, max_num_frames_per_episode=160
    )
    env = AtariPreprocessing(env, noop_max=5, screen_size=20)
    return FrameStackObservation(env, STACK, padding_type=padding)


def make_buffer(num_envs=1, frame=FRAME, **options):
    options = {"action_space": Discrete(2), "capacity": None, "stack_size": STACK, **options}
    return diskreplay.ReplayBuffer(
        None, observation_space=frame, num_envs=num_envs, seed=0, **options
    )


def compare(buffer, seen, least):
    """Every transition that can be sampled, with the stacks that were seen, by row id."""
    ids = buffer.sampleable_ids()
    assert len(ids) >= least
    batch = buffer.gather(ids)
    for i, id in enumerate(ids.tolist()):
        np.testing.assert_array_equal(batch.observation[i], seen[id])
        following = id + int(batch.steps[i]) * buffer.num_envs
        np.testing.assert_array_equal(batch.next_observation[i], seen[following])


@pytest.mark.costly(2)
@pytest.mark.parametrize("horizon", [1, 3])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("make", [cartpole, pong])
def test_sampled_stacks_are_those_that_the_agent_saw(make, padding, horizon):
    stacked = make(padding)
    frame = stacked.env.observation_space
    options = {"stack_padding": padding, "action_space": stacked.action_space}
    with make_buffer(frame=frame, update_horizon=horizon, **options) as buffer:
        env, seen, row = Recorder(stacked, buffer), {}, 0
        env.action_space.seed(1)
        observation, _ = env.reset(seed=1)
        for _ in range(200):
            seen[row] = observation
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            row += 1
            if terminated or truncated:
                seen[row] = observation
                row += 1
                observation, _ = env.reset()
        assert row > 203
        compare(buffer, seen, 190)


def play(recorder, steps):
    """Random actions; the stacks that were seen, by row id."""
    mode, number = AutoresetMode(recorder.metadata["autoreset_mode"]), recorder.num_envs
    rng, seen = np.random.default_rng(3), {}
    rows, over, ends = np.zeros(number, int), np.zeros(number, bool), 0
    observations, _ = recorder.reset(seed=5)
    for _ in range(steps):
        if mode is AutoresetMode.DISABLED and over.any():
            observations, _ = recorder.reset(options={"reset_mask": over.copy()})
            over[:] = False
        before = observations.copy()
        actions = rng.integers(recorder.single_action_space.n, size=number)
        observations, _, terminated, truncated, infos = recorder.step(actions)
        ended = terminated | truncated
        for env in range(number):
            if mode is AutoresetMode.NEXT_STEP and over[env]:
                continue  # only a reset
            seen[rows[env] * number + env] = before[env]
            rows[env] += 1
            if ended[env]:
                last = infos["final_obs"] if mode is AutoresetMode.SAME_STEP else observations
                seen[rows[env] * number + env] = np.array(last[env])
                rows[env] += 1
        over = ended
        ends += np.count_nonzero(ended)
    assert ends > number
    return seen


@pytest.mark.costly(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_sampled_stacks_of_vector_environments(kind, padding, mode):
    envs = kind([lambda: cartpole(padding)] * 3, autoreset_mode=mode)
    with make_buffer(3, stack_padding=padding, update_horizon=2) as buffer:
        recorder = VectorRecorder(envs, buffer)
        seen = play(recorder, 90)
        recorder.close()
        compare(buffer, seen, 200)


@pytest.mark.costly(1)
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_sampled_stacks_of_the_vector_environment_of_ale(mode):
    """It stacks by itself, and says nowhere how."""
    ale = pytest.importorskip("ale_py.vector_env")  # since ale-py 0.11

    def make():
        return ale.AtariVectorEnv(
            "pong", 2, img_height=20, img_width=20, noop_max=5, max_num_frames_per_episode=100,
            autoreset_mode=mode,
        )  # fmt: skip

    frame, actions = Box(0, 255, (20, 20), "uint8"), Discrete(6)
    with make_buffer(2, frame, action_space=actions) as buffer:
        compare(buffer, play(VectorRecorder(make(), buffer), 90), 150)
    with make_buffer(2, frame, action_space=actions, stack_padding="reset") as buffer:
        recorder = VectorRecorder(make(), buffer)
        with pytest.raises(SchemaError, match="are zeros before the newest frame"):
            recorder.reset(seed=1)
        assert_remedies(recorder.reset, "zero", "reset")
        assert buffer.add_count == 0


# -- what is refused


def assert_remedies(call, buffers, environments):
    with pytest.raises(SchemaError) as refused:
        call()
    assert f"the buffer with stack_padding={buffers!r}" in str(refused.value)
    assert f'FrameStackObservation(..., padding_type="{environments}")' in str(
        refused.value
    ).replace("'", '"')


@pytest.mark.parametrize(("wrapped", "sampled"), [("zero", "reset"), ("reset", "zero")])
def test_another_padding_is_refused(wrapped, sampled):
    with make_buffer(stack_padding=sampled) as buffer:
        assert_remedies(lambda: Recorder(cartpole(wrapped), buffer), wrapped, sampled)
        around = gymnasium.wrappers.TimeLimit(cartpole(wrapped), 10)
        assert_remedies(lambda: Recorder(around, buffer), wrapped, sampled)
    for kind in (SyncVectorEnv, AsyncVectorEnv):
        envs = kind([lambda: cartpole(sampled), lambda: cartpole(wrapped)])
        with make_buffer(2, stack_padding=sampled) as buffer:
            assert_remedies(lambda: VectorRecorder(envs, buffer), wrapped, sampled)  # noqa: B023
        envs.close()


@pytest.mark.parametrize(("shown", "sampled"), [(4, 1), (4, 3), (2, 4), (1, 4)])
def test_another_stack_size_is_refused(shown, sampled):
    with (
        make_buffer(stack_size=sampled) as buffer,
        pytest.raises(SchemaError, match=rf"stacks of {shown} .*stack_size={shown}, or"),
    ):
        Recorder(cartpole("zero", shown), buffer)


def test_stacks_of_stacks_are_refused_and_whole_stacks_are_not():
    env = cartpole("reset")
    with (
        make_buffer(frame=env.observation_space) as buffer,
        pytest.raises(SchemaError, match=r"4 of such stacks: .* or with stack_size=1"),
    ):
        Recorder(env, buffer)
    with make_buffer(frame=env.observation_space) as buffer:
        Recorder(env, buffer, frame_axis=None)  # as if it was no stack: so it was asked for
    with make_buffer(frame=env.observation_space, stack_size=1) as buffer:
        recorder = Recorder(env, buffer)
        seen = [recorder.reset(seed=1)[0]] + [recorder.step(1)[0] for _ in range(4)]
        np.testing.assert_array_equal(buffer.gather(np.arange(3)).observation, seen[:3])


def test_padding_of_ones_own():
    grey = np.full((5, 4), 100, np.uint8)
    for padding in PADDINGS:
        with make_buffer(stack_padding=padding) as buffer:
            recorder = Recorder(cartpole(grey), buffer)
            with pytest.raises(SchemaError, match="neither zeros nor the newest one again"):
                recorder.reset()
            with pytest.raises(gymnasium.error.ResetNeeded):
                recorder.step(0)
            assert buffer.add_count == 0
    with make_buffer() as buffer:
        Recorder(cartpole(np.zeros((5, 4), np.uint8)), buffer).reset()


class Stacking(gymnasium.Env):
    """An environment that stacks by itself; what it shows at a reset is given."""

    action_space = Discrete(2)
    observation_space = Box(0, 255, (STACK, *FRAME.shape), "uint8")
    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, *resets):
        self.resets = list(resets)

    def reset(self, *, seed=None, options=None):
        self.frames = list(self.resets.pop(0))
        return self.observe(), {}

    def step(self, action):
        self.frames = [*self.frames[1:], self.frames[-1] + 1]
        return self.observe(), 0.0, len(self.resets) > 0, False, {}

    def observe(self):
        return np.zeros((STACK, *FRAME.shape), np.uint8) + np.array(
            self.frames, np.uint8
        )[:, None, None]  # fmt: skip


@pytest.mark.parametrize(
    ("padding", "shown", "says"),
    [
        ("zero", [7, 7, 7, 7], "is its newest frame"),
        ("reset", [0, 0, 0, 7], "are zeros"),
        ("zero", [0, 0, 6, 7], "neither zeros"),
        ("reset", [6, 6, 6, 7], "neither zeros"),
        ("reset", [4, 5, 6, 7], "neither zeros"),
    ],
)
def test_the_first_stack_tells_where_no_wrapper_does(padding, shown, says):
    right = [0, 0, 0, 9] if padding == "zero" else [9, 9, 9, 9]
    black = [0, 0, 0, 0]  # fits both
    with make_buffer(stack_padding=padding) as buffer:
        env = Recorder(Stacking(black, right, shown, right), buffer)
        for _ in range(2):
            env.reset()
            env.step(0)
        with pytest.raises(SchemaError, match=says):
            env.reset()
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(0)
        assert buffer.add_count == 2
        env.reset()
        env.step(0)
        assert buffer.add_count == 3


@pytest.mark.parametrize("padding", PADDINGS)
def test_stacks_outside_of_an_autoreset_show_frames_of_the_episode_before(padding):
    bare = TransformObservation(gymnasium.make("CartPole-v1"), picture, FRAME)

    def play_on(env):
        env.reset(seed=1)
        for _ in range(150):
            env.step(1)

    with make_buffer(stack_padding=padding) as buffer:
        wrong = FrameStackObservation(Autoreset(bare), STACK, padding_type=padding)
        recorder = Recorder(wrong, buffer)
        with pytest.raises(SchemaError, match=r"neither zeros .* resets in `step`"):
            play_on(recorder)
        with pytest.raises(gymnasium.error.ResetNeeded):
            recorder.step(0)
    with make_buffer(stack_padding=padding) as buffer:
        play_on(Recorder(Autoreset(FrameStackObservation(bare, 4, padding_type=padding)), buffer))


def test_a_vector_environment_whose_stacks_begin_with_older_frames():
    """Seen in the step in which one of its envs is reset."""
    resets = {
        AutoresetMode.SAME_STEP: [[0, 0, 0, 5], [3, 4, 5, 6]],
        AutoresetMode.NEXT_STEP: [[0, 0, 0, 5], [3, 4, 5, 6]],
    }
    for mode, (first, second) in resets.items():
        fine = [first, first, first, first]
        envs = SyncVectorEnv(
            [lambda: Stacking(*fine), lambda f=first, s=second: Stacking(f, s, f)],  # noqa: B023
            autoreset_mode=mode,
        )
        with make_buffer(2) as buffer:
            recorder = VectorRecorder(envs, buffer)
            recorder.reset()
            if mode is AutoresetMode.NEXT_STEP:
                recorder.step(np.zeros(2, np.int64))
            with pytest.raises(SchemaError, match="neither zeros"):
                recorder.step(np.zeros(2, np.int64))
            with pytest.raises(gymnasium.error.ResetNeeded):
                recorder.step(np.zeros(2, np.int64))


def test_stacks_of_numbers_and_of_nested_observations():
    space = Dict({"camera": FRAME, "speed": Box(-np.inf, np.inf, (2,))})

    class Nested(gymnasium.Env):
        observation_space = space
        action_space = Discrete(2)

        def reset(self, *, seed=None, options=None):
            return {"camera": np.full((5, 4), 9, np.uint8), "speed": np.full(2, np.nan)}, {}

        def step(self, action):
            return self.reset()[0], 0.0, False, False, {}

    for wrapped in PADDINGS:
        env = FrameStackObservation(Nested(), STACK, padding_type=wrapped)
        with make_buffer(frame=space, stack_padding=wrapped) as buffer:
            Recorder(env, buffer).reset()  # a NaN repeated is a frame repeated
