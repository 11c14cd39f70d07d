"""Memory of batches that are gone, for batches of other sizes."""

import pickle
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.batch import MOST_KEPT, WindowMemory
from diskreplay.errors import InvalidInputError


@pytest.fixture
def buffer():
    with diskreplay.PrioritizedReplayBuffer(
        None, observation_space=Box(0, 255, (5, 5), "uint8"), action_space=Discrete(3),
        capacity=300, stack_size=3, update_horizon=2, seed=0,
    ) as made:  # fmt: skip
        rng = np.random.default_rng(0)
        for row in range(250):
            frame = rng.integers(0, 256, (5, 5), np.uint8)
            made.add(frame, row % 3, row, row % 40 == 39, False, frame)
        yield made


def owner(array):
    return array if array.base is None else array.base


@pytest.mark.parametrize("kept", [0, 1, 5])
def test_batches_of_any_size_are_read_right_and_stay_as_they_are(buffer, kept):
    """Beside the same transitions one at a time, copied at once."""
    rng = np.random.default_rng(1)
    held = []
    for size in rng.integers(1, 60, 80).tolist():
        batch, _mass = buffer.sample_at(rng.random(size))
        single = [buffer.gather(batch.id[k : k + 1]) for k in range(size)]
        wanted = {
            name: np.concatenate([one[name].copy() for one in single])
            for name in ("observation", "next_observation", "reward")
        }
        del single
        held = [*held, (batch, wanted)][-1 - kept :]
        for earlier, expected in held:
            for name, array in expected.items():
                np.testing.assert_array_equal(earlier[name], array, err_msg=name)
            window = earlier.window()
            assert window is None or len(window) == len(earlier)


def test_a_smaller_batch_takes_the_memory_of_a_larger_one_and_gives_it_back(buffer):
    places = np.linspace(0, 1, 40)
    first, _ = buffer.sample_at(places)
    memory = owner(first.observation).ctypes.data
    del first
    for size in (38, 40, 33):
        batch, _ = buffer.sample_at(places[:size])
        assert owner(batch.observation).ctypes.data == memory
        assert len(owner(batch.observation)) == 40
        del batch


def test_memory_of_twice_the_size_is_let_go():
    memory = WindowMemory()
    memory.give({"frames": np.empty((40, 3)), "next": np.empty((10, 3))})
    assert memory.take(19) == {}
    assert memory.take(19) == {}


def test_memory_is_shared_with_nobody_who_looks_at_a_part_of_it():
    memory = WindowMemory()
    memory.give({"frames": np.empty((40, 3))})
    shown = memory.take(30)
    memory.give(shown)
    view = shown.pop("frames")[5:6]
    assert memory.take(30) == {}
    del view
    assert len(memory.take(40)["frames"]) == 40


@pytest.mark.parametrize("held", [1, 2, 5])
def test_as_many_are_remembered_as_are_held(held):
    """One more than these, which is read into, is all that there ever is."""
    memory, batches, made = WindowMemory(), [], set()
    memory.remember(held)
    for _ in range(20):
        windows = memory.take(40) or {"frames": np.empty((40, 3))}
        shown = windows["frames"][:, 1:]
        memory.give(windows)
        del windows
        assert all(np.shares_memory(shown, each) is False for each in batches)
        batches = [*batches, shown][-held:]
        made.add(shown.base.ctypes.data)
    assert len(made) == held + 1
    memory.give({})  # of a batch without windows
    del shown, batches
    memory.remember(1 - MOST_KEPT - held)
    assert memory.take(40)
    assert not memory.take(40)


def kinds(tmp_path):
    """A buffer and a view of it, with rows to draw from."""
    buffer = diskreplay.ReplayBuffer(
        tmp_path / "replay", observation_space=Box(0, 255, (8, 8), "uint8"),
        action_space=Discrete(2), capacity=200, stack_size=2, seed=1,
    )  # fmt: skip
    for i in range(60):
        buffer.add(np.full((8, 8), i, np.uint8), 0, 1.0, False, i % 20 == 19)
    return {"buffer": buffer, "view": buffer.sequences(3)}


@pytest.mark.parametrize("kind", ["buffer", "view"])
def test_memory_that_is_read_only_is_not_written(tmp_path, kind):
    source = kinds(tmp_path)[kind]
    taken = []
    pickled = pickle.dumps(source.sample(8), protocol=5, buffer_callback=taken.append)
    there = [bytes(each) for each in taken]
    out = pickle.loads(pickled, buffers=there)
    assert not out.observation.flags.writeable
    before = [bytes(bytearray(each)) for each in there]
    again = source.sample(8, out=out)
    assert again is out
    assert there == before
    if kind == "view":
        rows, newest = again.anchor, again.observation[:, 0, -1, 0, 0]
    else:
        rows, newest = again.id, again.observation[:, -1, 0, 0]
    np.testing.assert_array_equal(newest, rows)


@pytest.mark.parametrize("kind", ["buffer", "view"])
def test_strides_that_somebody_set_are_not_in_the_next_batch(tmp_path, kind):
    source = kinds(tmp_path)[kind]
    for _ in range(4):
        batch = source.sample(8)
        window = batch.window()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # NumPy 2.4, of strides
            window.strides = tuple(stride // 2 for stride in window.strides)
        del batch, window
        rows = source.sample(8)
        assert rows.window().flags.c_contiguous


def test_the_other_kind_of_batch_is_refused_as_out(tmp_path):
    all_ = kinds(tmp_path)
    for one, other in (("buffer", "view"), ("view", "buffer")):
        out = all_[other].sample(4)
        names = list(out)
        with pytest.raises(InvalidInputError, match="out: a"):
            all_[one].sample(4, out=out)
        assert list(out) == names
        assert len(out) == 4
