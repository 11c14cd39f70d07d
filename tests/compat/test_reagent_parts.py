"""ReAgent's sum tree, its data frame and its buffers made for environments."""

import pickle
import random

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from diskreplay.compat.reagent import (
    PrioritizedReplayBuffer,
    ReplayBuffer,
    ReplayElement,
    SumTree,
    create_from_env,
    replay_buffer_to_pre_timeline_df,
)

# -- the tree


@settings(max_examples=30, deadline=None)
@given(
    capacity=st.integers(1, 70),
    steps=st.lists(st.tuples(st.integers(0, 69), st.integers(0, 9)), min_size=1, max_size=30),
    seed=st.integers(0, 999),
)
def test_tree_does_as_a_list(capacity, steps, seed):
    tree, leaves = SumTree(capacity), [0] * capacity
    for index, value in steps:
        tree.set(index % capacity, value)
        leaves[index % capacity] = value
        assert tree.get(index % capacity) == value
    assert tree.max_recorded_priority == max(1, *(value for _, value in steps))
    width = len(tree.nodes[-1])
    assert [len(level) for level in tree.nodes] == [2**i for i in range(len(tree.nodes))]
    assert capacity <= width < 2 * capacity or capacity == width == 1
    assert tree.nodes[-1].tolist() == leaves + [0] * (width - capacity)
    assert tree.nodes[0][0] == sum(leaves)
    if not sum(leaves):
        with pytest.raises(Exception, match="Cannot sample from an empty sum tree"):
            tree.sample()
        with pytest.raises(Exception, match="Cannot sample from an empty sum tree"):
            tree.stratified_sample(3)
        return

    def leaf(share):
        before = 0
        for index, value in enumerate(leaves):
            before += value
            if share * sum(leaves) < before:
                return index
        return max(i for i, value in enumerate(leaves) if value)

    for share in (0.0, 0.25, 0.5, 0.999, 1.0):
        assert tree.sample(query_value=share) == leaf(share)
    random.seed(seed)
    bounds = np.linspace(0, 1, 6)
    expected = [leaf(random.uniform(*bounds[i : i + 2])) for i in range(5)] + [
        leaf(random.random())
    ]
    random.seed(seed)
    assert [*tree.stratified_sample(5), tree.sample()] == expected


def test_tree_refuses():
    with pytest.raises(AssertionError):
        SumTree(2.0)
    for capacity in (0, -1):
        with pytest.raises(ValueError, match="should be positive"):
            SumTree(capacity)
    tree = SumTree(4)
    tree.set(1, 2.0)
    for index, value in [(0, -1), (0, float("nan")), (0, float("inf")), (4, 1.0), (-1, 1.0)]:
        with pytest.raises(ValueError, match=r"expected|nonnegative"):
            tree.set(index, value)
    for query in (-0.1, 1.1):
        with pytest.raises(ValueError, match="query_value"):
            tree.sample(query_value=query)
    assert tree.leaves.tolist() == [0, 2, 0, 0]


def test_an_emptied_tree_is_empty():
    tree = SumTree(8)
    for value in (0.1, 0.7, 1e16, 0.3):
        for index in range(8):
            tree.set(index, value)
    for index in range(8):
        tree.set(index, 0)
    with pytest.raises(Exception, match="empty"):
        tree.sample()


def test_tree_can_be_pickled():
    tree = SumTree(5)
    tree.set(2, 3.0)
    again = pickle.loads(pickle.dumps(tree))
    again.set(0, 1.0)
    assert again.leaves[:5].tolist() == [1, 0, 3, 0, 0]
    assert again.max_recorded_priority == 3.0


# -- the data frame


def framed(action_shape=(), horizon=1, **options):
    elements = [
        ReplayElement("mdp_id", (), np.int64), ReplayElement("sequence_number", (), np.int64),
        ReplayElement("log_prob", (), np.float32),
    ]  # fmt: skip
    return ReplayBuffer(
        (2,), 1, 20, 4, update_horizon=horizon, gamma=0.5, extra_storage_types=elements,
        observation_dtype=np.float32, action_shape=action_shape,
        action_dtype=np.float32 if action_shape else np.int64, **options,
    )  # fmt: skip


def test_frame_of_discrete_actions():
    pandas = pytest.importorskip("pandas")
    with framed(horizon=2) as buffer:
        for i in range(5):
            buffer.add(
                np.array([i, -i]), [2, 0, 2, 1, 1][i], float(i), int(i == 3), mdp_id=i // 4,
                sequence_number=i % 4, log_prob=-0.5 * i,
            )  # fmt: skip
        frame = replay_buffer_to_pre_timeline_df(True, buffer)
    assert isinstance(frame.index, pandas.RangeIndex)
    assert list(frame) == [
        "ds", "state_features", "action", "mdp_id", "sequence_number", "action_probability",
        "reward", "metrics", "possible_actions_mask", "possible_actions",
    ]  # fmt: skip
    assert frame["ds"].tolist() == ["2019-01-01"] * 4  # the fifth has no whole window yet
    assert frame["state_features"].tolist() == [{0: i, 1: -i} for i in range(4)]
    assert frame["action"].tolist() == ["2", "0", "2", "1"]
    assert frame["mdp_id"].tolist() == ["0"] * 4
    assert frame["sequence_number"].dtype == np.int64
    expected = np.exp(np.array([0, -0.5, -1, -1.5], np.float32))
    assert frame["action_probability"].tolist() == expected.tolist()
    rewards = [0 + 0.5, 1 + 1.0, 2 + 1.5, 3]
    assert frame["reward"].tolist() == rewards
    assert frame["metrics"].tolist() == [{"reward": reward} for reward in rewards]
    every = ["0", "1", "2"]
    assert frame["possible_actions"].tolist() == [every, every, [], []]
    assert frame["possible_actions_mask"].tolist() == [[1, 1, 1], [1, 1, 1], [], []]


def test_frame_of_continuous_actions():
    pytest.importorskip("pandas")
    with framed((2,)) as buffer:
        with pytest.raises(RuntimeError):
            replay_buffer_to_pre_timeline_df(False, buffer)
        buffer.add(np.ones(2), np.array([0.5, 2]), 1.0, 1, 0, 0, 0.0)
        frame = replay_buffer_to_pre_timeline_df(False, buffer)
        assert frame["action"].tolist() == [{0: 0.5, 1: 2.0}]
        assert "possible_actions" not in frame
        with pytest.raises(AssertionError):
            replay_buffer_to_pre_timeline_df(True, buffer)
    with ReplayBuffer((2,), 1, 20, 4) as buffer:
        buffer.add(np.ones(2), 0, 1.0, 1)
        with pytest.raises(AttributeError):
            replay_buffer_to_pre_timeline_df(True, buffer)


# -- environments


class Env:
    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space
        self.unwrapped = self


BOX = spaces.Box(0, 255, (4, 4), np.uint8)


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize(
    "action", [spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (2,))]
)
def test_buffer_for_an_environment(kind, action):
    with kind.create_from_env(
        Env(BOX, action), replay_memory_size=10, batch_size=2, stack_size=2, update_horizon=3
    ) as buffer:
        elements = {element.name: element for element in buffer.get_storage_signature()}
        assert list(elements)[4:] == ["mdp_id", "sequence_number", "log_prob"]
        assert elements["observation"].shape == (4, 4)
        assert elements["observation"].type == np.uint8
        assert elements["action"].shape == action.shape
        assert elements["action"].type == action.dtype
        more = [1.0] if kind is PrioritizedReplayBuffer else []
        buffer.add(np.ones((4, 4)), action.sample(), 1.0, True, 0, 0, -1.0, *more)
        assert buffer.sample_transition_batch(1).state.shape == (1, 4, 4, 2)
    with kind.create_from_env(
        Env(BOX, action), replay_memory_size=10, batch_size=2, store_log_prob=False
    ) as buffer:
        assert [e.name for e in buffer.get_storage_signature()][-1] == "sequence_number"


def test_the_function_makes_a_uniform_buffer():
    env = Env(BOX, spaces.Discrete(3))
    with create_from_env(env, replay_memory_size=10, batch_size=2) as buffer:
        assert type(buffer) is ReplayBuffer


def test_spaces_that_are_not_supported():
    for observation, action in [
        (spaces.Discrete(3), spaces.Discrete(3)),
        (spaces.Dict({"a": BOX}), spaces.Discrete(3)),
        (BOX, spaces.MultiBinary(3)),
    ]:
        with pytest.raises(NotImplementedError):
            ReplayBuffer.create_from_env(
                Env(observation, action), replay_memory_size=10, batch_size=2
            )


def test_buffer_for_a_recommender():
    document = spaces.Dict({"quality": spaces.Box(0, 1, (1,)), "cluster": spaces.Discrete(5)})
    response = spaces.Dict({"click": spaces.Discrete(2), "time": spaces.Box(0, 9, ())})
    space = spaces.Dict({
        "user": spaces.Box(0, 1, (6,)),
        "doc": spaces.Dict({str(i): document for i in range(3)}),
        "augmentation": spaces.Dict({"0": spaces.Dict({"age": spaces.Box(0, 1, (2,))})}),
        "response": spaces.Tuple([response, response]),
    })  # fmt: skip
    env = Env(space, spaces.MultiDiscrete([3, 3]))
    with ReplayBuffer.create_from_env(env, replay_memory_size=10, batch_size=2) as buffer:
        found = {e.name: tuple(e.shape) for e in buffer.get_storage_signature()}
    keys = sorted(found.keys() - {"observation", "action", "reward", "terminal"})
    assert found["observation"] == (6,)
    assert next(name for name in found if name in keys).startswith("doc_")
    assert {name: found[name] for name in keys} == {
        "doc_quality": (3, 1), "doc_cluster": (3,), "augmentation_age": (3, 2),
        "response_click": (2,), "response_time": (2,), "mdp_id": (), "sequence_number": (),
        "log_prob": (),
    }  # fmt: skip
    plain = spaces.Dict({**space.spaces, "doc": spaces.Dict({"0": BOX, "1": BOX})})
    env = Env(plain, spaces.MultiDiscrete([2, 2]))
    with ReplayBuffer.create_from_env(env, replay_memory_size=10, batch_size=2) as buffer:
        found = {e.name: tuple(e.shape) for e in buffer.get_storage_signature()}
    assert found["doc"] == (2, 4, 4)
