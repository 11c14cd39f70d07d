"""A batch's memory is used again when, and only when, nobody can see it any more."""

import copy
import gc
import pickle
import typing

import numpy as np
import pytest
from gymnasium import spaces as gym_spaces
from gymnasium.spaces import Box, Discrete

import diskreplay


@pytest.fixture
def buffer():
    with diskreplay.ReplayBuffer(
        None,
        observation_space=Box(0, 255, (4, 4), "uint8"),
        action_space=Discrete(3),
        capacity=500,
        stack_size=2,
        update_horizon=2,
        extras={"log_prob": ((), "float32")},
        seed=0,
    ) as made:
        for row in range(300):
            made.add(np.full((4, 4), row % 256, "uint8"), row % 3, 1.0, False, False, log_prob=row)
        yield made


def address(array):
    return array.__array_interface__["data"][0]


def test_a_batch_that_is_kept_is_never_overwritten(buffer):
    kept = [buffer.sample(8) for _ in range(20)]
    copies = [batch.observation.copy() for batch in kept]
    for _ in range(50):
        buffer.sample(8)
    for batch, observation in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(batch.observation, observation)


@pytest.mark.parametrize(
    "look", [lambda b: b.observation, lambda b: b.next_observation[3], lambda b: b.observation[0].T]
)
def test_a_view_outlives_its_batch(buffer, look):
    views = [look(buffer.sample(8)) for _ in range(10)]
    copies = [view.copy() for view in views]
    gc.collect()
    for _ in range(50):
        buffer.sample(8)
    for view, before in zip(views, copies, strict=True):
        np.testing.assert_array_equal(view, before)


def test_the_memory_of_a_batch_that_is_gone_is_used_again(buffer):
    places = set()
    for _ in range(30):
        batch = buffer.sample(8)
        places.add(address(batch.observation))
    assert len(places) <= 3


def test_out_is_filled_and_returned(buffer):
    out = buffer.sample(8)
    place = address(out.observation)
    again = buffer.sample(8, out=out)
    assert again is out
    assert address(again.observation) == place
    expected = buffer.gather(again.id)
    np.testing.assert_array_equal(again.observation, expected.observation)


def test_everything_is_an_attribute_and_an_item(buffer):
    batch = buffer.sample(8)
    assert len(batch) == 8
    assert batch.log_prob is batch["log_prob"]
    assert list(batch) == list(batch.keys()) == list(batch.asdict())
    assert "log_prob" in dir(batch)
    assert "log_prob" in repr(batch)
    with pytest.raises(AttributeError, match="no 'nothing'"):
        _ = batch.nothing


def test_a_batch_can_be_sent_to_another_process(buffer):
    batch = buffer.sample(8)
    for other in (pickle.loads(pickle.dumps(batch)), copy.copy(batch), copy.deepcopy(batch)):
        for name in batch:
            np.testing.assert_array_equal(other[name], batch[name])


@pytest.mark.parametrize(("stack", "horizon"), [(4, 1), (4, 3), (1, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("ends", [0, 20])
def test_a_pickled_batch_has_each_frame_of_a_window_once(stack, horizon, ends):
    """Also where some next stacks are read apart, since an episode ended amid the window."""
    space = gym_spaces.Dict({"camera": Box(0, 255, (16, 16), "uint8"), "arm": Box(-1, 1, (3,))})
    with diskreplay.ReplayBuffer(
        None, observation_space=space, action_space=Discrete(3), capacity=500, stack_size=stack,
        update_horizon=horizon, seed=0,
    ) as made:  # fmt: skip
        for row in range(300):
            end = ends and row % ends == ends - 1
            frame = {"camera": np.full((16, 16), row % 256, "uint8"), "arm": np.full(3, row / 300)}
            made.add(frame, row % 3, 1.0, end and row % 3 > 0, end and row % 3 == 0, frame)
        batch = made.sample(64)
        data = pickle.dumps(batch, 5)
        other = pickle.loads(data)
    for name in ("observation", "next_observation"):
        for key in space:
            np.testing.assert_array_equal(other[name][key], batch[name][key])
    for name in set(batch) - {"observation", "next_observation"}:
        np.testing.assert_array_equal(other[name], batch[name])
    apart = np.count_nonzero(batch.terminated | (batch.steps < horizon))
    frames = min(64 * (stack + horizon) + apart * stack, 64 * 2 * stack)
    assert len(data) < frames * (256 + 12) + 64 * 100 + 2000
    if not ends and stack >= horizon:
        np.testing.assert_array_equal(
            other.window("observation/camera")[:, :stack].reshape(64, -1, 16, 16),
            other.observation["camera"].reshape(64, -1, 16, 16),
        )


def test_fields_are_of_the_types_that_type_checkers_see(buffer):
    batch = buffer.sample(4)
    hints = typing.get_type_hints(diskreplay.Batch)
    assert hints.keys() == batch.keys() - buffer.extras.keys()
    for name, hint in hints.items():
        if name in ("observation", "next_observation", "action"):
            continue
        while parts := typing.get_args(hint):  # NDArray[float32], or what that stands for
            hint = parts[-1]
        assert batch[name].dtype == hint, name


def test_the_window_behind_both_stacks(buffer):
    n, stack = buffer.update_horizon, buffer.stack_size
    batch = buffer.sample(8)
    window = batch.window()
    assert window.shape == (8, stack + n, 4, 4)
    assert window.flags.c_contiguous
    assert np.shares_memory(window, batch.observation)
    np.testing.assert_array_equal(window[:, :stack], batch.observation)
    np.testing.assert_array_equal(window[:, n:], batch.next_observation)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(batch)).window(), window)
    view = buffer.sequences(5)
    frames = view.sample(3).window()
    assert frames.shape == (3, 5 + n + stack - 1, 4, 4)
    for name in ("reward", "observation/camera", "nothing", "next_observation", "log_prob"):
        with pytest.raises(diskreplay.InvalidInputError, match=f"found '{name}'"):
            batch.window(name)


@pytest.mark.parametrize(("stack", "n"), [(1, 1), (1, 3), (4, 1), (4, 3), (2, 5)])
def test_windows_of_leaves_at_the_ends_of_episodes(stack, n):
    """There is one wherever the two stacks of every transition fit into it."""
    space = gym_spaces.Dict({"a": Box(0, 255, (3,), "uint8"), "b": gym_spaces.Tuple([Discrete(9)])})
    with diskreplay.ReplayBuffer(
        None, observation_space=space, action_space=Discrete(3), capacity=500, stack_size=stack,
        update_horizon=n, seed=0,
    ) as buffer:  # fmt: skip
        space.seed(0)
        for row in range(200):
            buffer.add(space.sample(), 0, 0.0, row % 9 == 8, False, space.sample())
        seen, batch = set(), None
        for size in [1] * 60 + [32]:
            batch = buffer.sample(size, out=batch)
            for name, which in (("a", "a"), ("b/0", "b")):
                one, two = batch.observation[which], batch.next_observation[which]
                one, two = (one, two) if which == "a" else (one[0], two[0])
                window = batch.window(f"observation/{name}")
                seen.add(window is None)
                if window is not None:
                    shape = (size, stack, *window.shape[2:])
                    np.testing.assert_array_equal(window[:, :stack], one.reshape(shape))
                    np.testing.assert_array_equal(window[:, n:], two.reshape(shape))
        assert seen == ({False} if n >= stack or n == 1 else {True, False})


def test_leaves_are_not_taken_for_the_next_stacks_of_others():
    """Names that a leaf may have."""
    names = ["a", "a next", "a stack", "next"]
    space = gym_spaces.Dict({name: Box(0, 255, (4, 4), "uint8") for name in names})
    space.seed(0)
    with diskreplay.ReplayBuffer(
        None, observation_space=space, action_space=Discrete(3), capacity=100, stack_size=4,
        update_horizon=2, seed=0,
    ) as made:  # fmt: skip
        for row in range(60):
            made.add(space.sample(), 0, row, False, False)
        for contiguous in (False, True):
            batch = made.sample(16, contiguous=contiguous)
            wanted = {
                stacks: {name: batch[stacks][name].copy() for name in names}
                for stacks in ("observation", "next_observation")
            }
            other = pickle.loads(pickle.dumps(batch, 5))
            for name in names:
                for stacks in ("observation", "next_observation"):
                    np.testing.assert_array_equal(batch[stacks][name], wanted[stacks][name])
                    np.testing.assert_array_equal(other[stacks][name], wanted[stacks][name])
