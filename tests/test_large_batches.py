"""A batch that the machine's memory cannot hold is refused before anything of it is made."""

import tracemalloc

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import batch_reader, sequence_reader
from diskreplay.errors import InvalidInputError

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
    for memory, fits in ((held, True), (held // 2, False)):
        monkeypatch.setattr(batch_reader, "MEMORY", memory)
        monkeypatch.setattr(sequence_reader, "MEMORY", memory)
        reader = buffer._rows._batch_reader
        monkeypatch.setattr(reader, "_most", memory // reader._bytes)
        if fits:
            assert len(call(16)) == 16
        else:
            with pytest.raises(InvalidInputError, match="ask for fewer at a time"):
                call(18)  # for which no memory is there yet
