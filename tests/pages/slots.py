"""What was put is read, and what was not is zeros."""

import contextlib

import numpy as np


@contextlib.contextmanager
def around(_said):
    frames = np.arange(2 * 84 * 84, dtype=np.uint32).astype(np.uint8).reshape(2, 84, 84)
    seen = frames[:, None].repeat(4, 1).repeat(4, 0)
    led_to = np.concatenate([seen[:, 1:], 255 - seen[:, :1]], axis=1)
    given = {"frames": frames, "seen": seen, "led_to": led_to, "actions": np.arange(8)}
    yield (names := given)
    with names["stacks"] as stacks:
        np.testing.assert_array_equal(stacks.read("obs", stacks.offsets), seen)
        np.testing.assert_array_equal(stacks.read("obs_next", stacks.offsets), led_to)
        assert stacks.bounds[:, 1].tolist() == [5] * 8
    with names["slots"] as slots:
        read = slots.read("observation", [0, 1, 12_500])
        np.testing.assert_array_equal(read, [frames[0], np.zeros((84, 84)), frames[1]])
        assert names["stack"].shape == (1, 4, 84, 84)
        assert names["rewards"][12_500] == 1.0
