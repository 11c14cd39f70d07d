"""Stores of plain frames that say their row's number, in segments large enough for spares."""

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay

ROWS, FRAME = 256, (64, 64)  # of a segment: 1 MiB


def make(path, compressor="raw"):
    return diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 255, FRAME, np.uint8), action_space=Discrete(4),
        compressor=compressor, capacity=None, segment_rows=ROWS,
    )  # fmt: skip


def add(buffer, rows):
    for number in range(buffer.add_count, buffer.add_count + rows):
        frame = np.full(FRAME, number % 251, np.uint8)
        buffer.add(frame, number % 4, float(number), False, False)


def check(buffer, rows):
    assert buffer.add_count == rows
    found = buffer.take("observation", np.arange(rows))
    np.testing.assert_array_equal(found[:, 0, 0], np.arange(rows) % 251)
    np.testing.assert_array_equal(found[:, -1, -1], np.arange(rows) % 251)


def upkeep(buffer):
    buffer._rows.store.maintenance.run(spares=True)
