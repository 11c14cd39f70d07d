"""`take(out=)` is refused before anything is read into it."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay


@pytest.mark.parametrize("out", [[0.0], "reward", 3])
def test_no_array(tmp_path, out):
    with make(tmp_path) as buffer:
        with pytest.raises(diskreplay.InvalidInputError, match=r"out: .*can be written to"):
            buffer.take("reward", [0], out=out)


def test_a_read_only_array(tmp_path):
    with make(tmp_path) as buffer:
        out = np.zeros(1, np.float32)
        out.flags.writeable = False
        with pytest.raises(diskreplay.InvalidInputError, match="read-only"):
            buffer.take("reward", [0], out=out)
        assert out[0] == 0
        out.flags.writeable = True
        assert buffer.take("reward", [0], out=out) is out
        assert out[0] == 1


def make(path):
    buffer = diskreplay.ReplayBuffer(
        path / "store", observation_space=Box(0, 1, (2,), "float32"), action_space=Discrete(2),
        capacity=20,
    )  # fmt: skip
    buffer.add([0.0, 0.0], 1, 1.0, False, False)
    return buffer
