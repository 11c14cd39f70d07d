"""Rows that kernels read out of compressed blocks: from each row to each other one."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay

ROWS, SHAPE = 29, (40, 50)
RNG = np.random.default_rng(5)
CONTENTS = {
    "one long run": lambda: np.full((ROWS, *SHAPE), 9, np.uint8),
    "short runs": lambda: np.repeat(RNG.integers(0, 256, (ROWS, *SHAPE), np.uint8), 4, 2)[..., :50],
    "nothing that compresses": lambda: RNG.integers(0, 256, (ROWS, *SHAPE), np.uint8),
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("compressor", ["lz4", "zstd", "raw"])
def test_each_range_and_nothing_beside_it(tmp_path, compressor, content):
    frames = CONTENTS[content]()
    space = Box(0, 255, SHAPE, np.uint8)
    options = {"observation_space": space, "action_space": Discrete(2), "capacity": 1000}
    with diskreplay.ReplayBuffer(tmp_path / "r", compressor=compressor, **options) as buffer:
        for frame in frames:
            buffer.add(frame, 0, 0.0, False, False)
    # Opened to be read, it has all rows in blocks: whole ones, and one that is not full.
    with diskreplay.open(tmp_path / "r") as reader:
        room = np.empty((ROWS + 2, *SHAPE), np.uint8)
        for start in range(ROWS):
            for stop in range(start + 1, ROWS + 1):
                room[...] = 77
                rows = stop - start
                reader.take("observation", np.arange(start, stop), out=room[1 : 1 + rows])
                assert np.array_equal(room[1 : 1 + rows], frames[start:stop])
                assert (room[0] == 77).all()
                assert (room[1 + rows :] == 77).all()
