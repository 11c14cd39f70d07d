"""What was put is read, and what was not is zeros."""

import contextlib

import numpy as np


@contextlib.contextmanager
def around(_said):
    frames = np.arange(2 * 84 * 84, dtype=np.uint32).astype(np.uint8).reshape(2, 84, 84)
    yield (names := {"frames": frames})
    with names["slots"] as slots:
        read = slots.read("observation", [0, 1, 12_500])
        np.testing.assert_array_equal(read, [frames[0], np.zeros((84, 84)), frames[1]])
        assert names["stack"].shape == (1, 4, 84, 84)
        assert names["rewards"][12_500] == 1.0
