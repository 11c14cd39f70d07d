"""ReAgent's data frame, value by value."""

import numpy as np
import pytest

pytest.importorskip("torch")

from diskreplay.compat.reagent import ReplayBuffer, ReplayElement, replay_buffer_to_pre_timeline_df


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
