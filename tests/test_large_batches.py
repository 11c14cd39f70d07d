"""A batch that the machine's memory cannot hold is refused before anything of it is made."""

import tracemalloc

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.errors import InvalidInputError
from diskreplay.store import machine

MANY = 10**9


@pytest.fixture
def buffer():
    with diskreplay.PrioritizedReplayBuffer(
        None, observation_space=Box(0, 255, (84, 84), "uint8"), action_space=Discrete(3),
        capacity=100, stack_size=4, seed=0,
    ) as made:  # fmt: skip
        for row in range(40):
            made.add(np.full((84, 84), row, np.uint8), row % 3, 1.0, row % 9 == 8, False)
        yield made


def calls(buffer):
    windows = buffer.sequences(6, name="windows")
    union = diskreplay.ReplayUnion([buffer], seed=1)
    of_windows = diskreplay.ReplayUnion([windows], seed=1)
    return {
        "sample": buffer.sample, "windows": windows.sample, "union": union.sample,
        "union of windows": of_windows.sample,
        "prefetch": lambda size: next(buffer.prefetch(1, size)),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["sample", "windows", "union", "union of windows", "prefetch"])
def test_more_than_the_memory_is_refused_before_anything_is_made(buffer, name):
    call = calls(buffer)[name]
    if name != "prefetch":
        call(4)
    before = buffer.rng.bit_generator.state
    tracemalloc.start()
    try:
        with pytest.raises(
            InvalidInputError, match=r"^batch_size: 1,000,000,000 found, which take"
        ):
            call(MANY)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert buffer.rng.bit_generator.state == before
    if name != "prefetch":
        call(4)


def nbytes(batch):
    """Of what a batch holds: each memory once."""
    memories = {}
    for array in [*batch.asdict().values(), *batch._windows.values()]:
        while isinstance(array.base, np.ndarray):
            array = array.base
        memories[id(array)] = array.nbytes
    return sum(memories.values())


@pytest.mark.parametrize("name", ["sample", "windows", "union", "union of windows"])
def test_what_the_memory_holds_is_drawn(buffer, monkeypatch, name):
    """What is reckoned with is no more than a batch is, and more than half of it."""
    call = calls(buffer)[name]
    held = nbytes(call(16))
    for most, fits in ((held, True), (held // 2, False)):
        monkeypatch.setattr(machine, "memory", lambda most=most: most)
        reader = buffer._rows._batch_reader
        monkeypatch.setattr(reader, "_most", most // reader._bytes)
        if fits:
            assert len(call(16)) == 16
        else:
            with pytest.raises(InvalidInputError, match="ask for fewer at a time"):
                call(18)  # for which no memory is there yet


@pytest.mark.parametrize("ends", ["inside", "pad", "cross"])
@pytest.mark.parametrize("stack", [1, 4])
def test_windows_take_what_is_reckoned_with(ends, stack):
    """Also the ids of stacks that go over the ends of episodes, and a state, which is no more than
    one value a window."""
    with diskreplay.ReplayBuffer(
        None, observation_space=Box(0, 255, (9,), "uint8"), action_space=Discrete(3),
        capacity=100, stack_size=stack, extras={"h": ((50,), "float32"), "x": ((), "int8")}, seed=0,
    ) as buffer:  # fmt: skip
        for row in range(60):
            buffer.add(np.zeros(9, np.uint8), 0, 0.0, row % 20 == 19, False, h=np.zeros(50), x=row)
        for options in ({}, {"state": "h"}, {"fields": ["x"]}, {"returns_to_go": 0.9}):
            view = buffer.sequences(3, ends=ends, **options)
            assert nbytes(view.sample(16)) == 16 * view._view._reader._bytes
            view.close()


@pytest.mark.parametrize("of", ["view", "union"])
def test_too_many_anchors_are_called_so(buffer, monkeypatch, of):
    view = buffer.sequences(3, name="gathered")
    union = diskreplay.ReplayUnion([view], seed=1)
    call = view.gather if of == "view" else union.gather
    anchors = np.full(9, view.anchors()[0])
    monkeypatch.setattr("diskreplay.store.machine.memory", lambda: 1000)
    with pytest.raises(InvalidInputError, match=r"^anchors: 9 found, which take"):
        call(anchors)
