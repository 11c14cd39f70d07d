"""What `take` cannot read, or not into `out`, is refused before anything is read."""

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


@pytest.mark.parametrize("ids", [[2**63], np.array([0, 2**64 - 1], np.uint64)])
def test_an_id_beyond_all_integers(tmp_path, ids):
    """As an int64 it is negative, and was a row of zeros."""
    with make(tmp_path) as buffer:
        for call in (lambda: buffer.take("reward", ids), lambda: buffer.gather(ids)):
            with pytest.raises(diskreplay.UnknownIdError, match=f"id {max(map(int, ids))} was ne"):
                call()
        assert buffer.take("reward", np.zeros(1, np.uint64)) == [1.0]


@pytest.mark.parametrize("field", [3, None, ["reward", 3], [["reward"]]])
def test_no_name(tmp_path, field):
    slots = diskreplay.Slots(None, {"a": ((), "float32")}, 4)
    with make(tmp_path) as buffer, slots:
        for each in (buffer, slots):
            with pytest.raises(diskreplay.InvalidInputError, match="a name or several expected"):
                each.take(field, [0])
        (reward,) = buffer.take((name for name in ["reward"]), [0])
        assert reward == [1.0]


def make(path):
    buffer = diskreplay.ReplayBuffer(
        path / "store", observation_space=Box(0, 1, (2,), "float32"), action_space=Discrete(2),
        capacity=20,
    )  # fmt: skip
    buffer.add([0.0, 0.0], 1, 1.0, False, False)
    return buffer
