"""A batch of windows whose arrays are made when they are looked at."""

import copy
import pickle
import threading

import numpy as np
import pytest

from diskreplay.sequence_batch import SequenceBatch


@pytest.fixture
def parts():
    """What was made already, and what others are views of."""
    made = {"observation": np.arange(12).reshape(3, 4), "anchor": np.arange(3)}
    shared = {"reward": np.ones((3, 4), np.float32), "action": {"a": np.zeros((3, 4))}}
    return made, shared


def test_an_array_is_made_when_it_is_looked_at_first(parts):
    made, shared = parts
    batch = SequenceBatch(made, {}, shared)
    assert len(batch) == 3
    assert set(made) == {"observation", "anchor"}
    reward = batch.reward
    assert reward is not shared["reward"]
    assert np.shares_memory(reward, shared["reward"])
    assert batch["reward"] is reward is batch.reward
    assert batch.action["a"].base is shared["action"]["a"]
    with pytest.raises(AttributeError):
        batch.nothing  # noqa: B018
    with pytest.raises(KeyError):
        batch["nothing"]


def test_all_are_in_one_order_whatever_was_looked_at_first(parts):
    made, shared = parts
    order = ["observation", "action", "reward", "anchor"]
    batch = SequenceBatch(dict(made), {}, shared)
    batch.reward  # noqa: B018
    assert list(batch) == order
    assert repr(batch) == f"SequenceBatch(3 windows: {', '.join(order)})"
    other = SequenceBatch(dict(made), {}, shared)
    assert list(other.asdict()) == order
    assert len(other) == 3


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))])
def test_a_copy_has_all_of_them(parts, way):
    made, shared = parts
    found = way(SequenceBatch(made, {}, shared))
    assert isinstance(found, SequenceBatch)
    assert list(found) == ["observation", "action", "reward", "anchor"]
    np.testing.assert_array_equal(found.reward, shared["reward"])
    np.testing.assert_array_equal(found.action["a"], shared["action"]["a"])


def test_threads_that_look_at_once_find_all(parts):
    made, shared = parts
    for _ in range(50):
        batch, errors = SequenceBatch(dict(made), {}, dict(shared)), []

        def look(batch=batch, errors=errors):
            try:
                list(batch)
                assert batch.reward.shape == batch["action"]["a"].shape
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=look) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
