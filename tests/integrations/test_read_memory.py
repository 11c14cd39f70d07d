"""Memory of batches that nobody looks at any more: who gets it, and who does not."""

import numpy as np

from diskreplay.integrations.read_memory import ReadMemory


def test_memory_is_used_again_when_nobody_looks_at_it():
    memory = ReadMemory()
    first = memory.room((4, 100), np.dtype(np.float32))
    first[:], part = 7, first[1:, 5]
    place = first.ctypes.data
    del first
    second = memory.room((4, 100), np.dtype(np.float32))
    second[:] = 8
    assert (part == 7).all()
    del part
    third = memory.room((3, 2), np.dtype(np.uint8))
    assert third.ctypes.data == place
    third[:] = 9
    assert (second == 8).all()


def test_a_great_array_is_not_kept():
    memory = ReadMemory()
    memory.room((65, 1 << 20), np.dtype(np.uint8))
    assert memory._kept.take() == {}
