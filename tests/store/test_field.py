"""What a field may be."""

import os

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.errors import DtypeError, InvalidInputError
from diskreplay.store.field import Field

BAD_SHAPES = [
    ((-1,), "28 axes"), ((3, -2), "28 axes"), ((1,) * 29, "28 axes"), ((0,), "nothing"),
    ((2**41,), "bytes"), ((2**31,) * 3, "bytes"), ((2**62, 4), "bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "said"), BAD_SHAPES)
def test_a_shape_that_cannot_be_stored(shape, said):
    with pytest.raises(InvalidInputError, match=said):
        Field("x", shape, np.dtype("float32"))


def test_the_largest_shapes():
    assert Field("x", (1,) * 28, np.dtype("int8")).row_bytes == 1
    assert Field("x", (2**40,), np.dtype("int8")).row_bytes == 2**40
    assert Field("x", (), np.dtype("float64")).row_bytes == 8


@pytest.mark.parametrize("dtype", ["complex64", "U3", "datetime64[s]", "O", "V4"])
def test_a_dtype_that_cannot_be_stored(dtype):
    with pytest.raises(DtypeError, match="cannot be stored"):
        Field("x", (2,), np.dtype(dtype))


@pytest.mark.parametrize(("shape", "said"), BAD_SHAPES)
def test_a_bad_shape_of_an_extra_leaves_nothing_behind(tmp_path, shape, said):
    path = tmp_path / "replay"

    def make(shape, new=()):
        return diskreplay.ReplayBuffer(
            path, observation_space=Box(-1, 1, (2,)), action_space=Discrete(2), capacity=100,
            extras={"x": (shape, "float32")} if shape else {}, new_extras=new,
        )  # fmt: skip

    with pytest.raises(InvalidInputError, match=said):
        make(shape)
    assert not path.exists()
    make(None).close()
    before = sorted(os.listdir(path))
    with pytest.raises(InvalidInputError, match=said):
        make(shape, ["x"])
    assert sorted(os.listdir(path)) == before
    with make((3,), ["x"]) as buffer:
        buffer.add(np.zeros(2, np.float32), 0, 0.0, False, False, x=np.ones(3, np.float32))
        assert buffer.take("x", [0]).tolist() == [[1, 1, 1]]


def test_batches_of_fields_with_as_many_axes_as_there_can_be(tmp_path):
    with diskreplay.ReplayBuffer(
        tmp_path / "replay", observation_space=Box(-1, 1, (1,) * 28), action_space=Discrete(2),
        capacity=100, stack_size=2, extras={"x": ((1,) * 28, "int8")},
    ) as buffer:  # fmt: skip
        for i in range(20):
            buffer.add(np.full((1,) * 28, i / 20, np.float32), 0, 0.0, False, False,
                       x=np.zeros((1,) * 28, np.int8))  # fmt: skip
        assert buffer.sample(4).observation.ndim == 30
        batch = buffer.sequences(3).sample(4)
        assert (batch.observation.ndim, batch.x.ndim) == (31, 30)
