"""Arrays of batches as tensors: what is shared stays shared."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay

torch = pytest.importorskip("torch")

from diskreplay.integrations.tensors import arrays_in, placed, to_torch  # noqa: E402


def moves():
    """Counts what is moved, and how much."""
    moved = []

    def move(array):
        moved.append(array.shape)
        return torch.from_numpy(array).clone()  # with its strides, as `to` makes it

    return moved, move


def test_views_of_one_array_are_moved_together():
    window = np.arange(60.0).reshape(6, 10).copy()
    arrays = {"a": window[:5], "b": window[1:], "c": {"d": window[:, ::3]}}
    moved, move = moves()
    found = placed(arrays, move)
    assert moved == [(6, 10)]
    np.testing.assert_array_equal(found["a"], window[:5])
    np.testing.assert_array_equal(found["b"], window[1:])
    np.testing.assert_array_equal(found["c"]["d"], window[:, ::3])
    found["b"][0, 0] = -1.0
    assert found["a"][1, 0] == -1.0


def test_a_small_part_of_something_large_is_moved_alone():
    large = np.arange(1000.0)
    moved, move = moves()
    found = placed((large[3:6], np.ones(2)), move)
    assert moved == [(3,), (2,)]
    assert found[0].tolist() == [3.0, 4.0, 5.0]


def test_other_dtypes_and_orders_are_moved_as_they_are():
    base = np.arange(8, dtype=np.int32)
    as_floats, turned = base.view(np.float32), np.asfortranarray(np.arange(6.0).reshape(2, 3))
    moved, move = moves()
    found = placed((as_floats, turned), move)
    assert len(moved) == 2
    np.testing.assert_array_equal(found[0], as_floats)
    np.testing.assert_array_equal(found[1], turned)


def test_all_arrays_of_dicts_and_tuples():
    one, two, three = (np.zeros(n) for n in (1, 2, 3))
    assert [len(each) for each in arrays_in({"a": one, "b": (two, {"c": three})})] == [1, 2, 3]


def test_a_batch_on_the_cpu_shares_its_memory():
    space = Dict({"image": Box(0, 255, (4, 4), "uint8"), "number": Discrete(9)})
    space.seed(0)
    with diskreplay.ReplayBuffer(
        None, observation_space=space, action_space=Discrete(3), capacity=100, stack_size=3, seed=0
    ) as buffer:  # fmt: skip
        for row in range(50):
            buffer.add(space.sample(), row % 3, float(row), row % 9 == 8, False)
        batch = buffer.sample(16)
        found = to_torch(batch)
        assert set(found) == set(batch)
        image = batch.observation["image"]
        assert found["observation"]["image"].data_ptr() == image.ctypes.data
        assert found["reward"].tolist() == batch.reward.tolist()
        elsewhere = placed(batch.asdict(), lambda array: torch.from_numpy(array.copy()))
        for side in ("observation", "next_observation"):
            for name in ("image", "number"):
                np.testing.assert_array_equal(elsewhere[side][name], batch[side][name])
