"""Which field is drawn, and how its rows become pictures."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple

import diskreplay
from diskreplay.errors import InvalidInputError
from diskreplay.pictures.frame_field import FrameField, retained


def store(path, space, values, **options):
    """A buffer with these observations, each an element of `values`."""
    buffer = diskreplay.ReplayBuffer(
        path, observation_space=space, action_space=Discrete(2),
        **({"capacity": 1000} | options),
    )  # fmt: skip
    for value in values:
        buffer.add(value, 0, 0.0, False, False)
    return buffer


def bytes_of(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize(
    ("shape", "newest", "stacked"),
    [
        ((20, 16), ..., False),
        ((20, 16, 1), (..., 0), False),
        ((1, 20, 16), (slice(None), 0), False),
        ((20, 16, 3), ..., False),
        ((20, 16, 4), (..., -1), True),
        ((4, 20, 16), (slice(None), -1), True),
        ((20, 16, 12), (..., slice(9, 12)), True),
        ((5, 20, 16, 3), (slice(None), -1), True),
    ],
)
def test_the_newest_frame_of_any_layout(tmp_path, shape, newest, stacked):
    frames = bytes_of(6, *shape)
    with store(tmp_path / "s", Box(0, 255, shape, "uint8"), frames) as buffer:
        field = FrameField.choose(buffer)
        assert (field.name, field.stacked) == ("observation", stacked)
        ids = np.array([5, 0, 3])
        np.testing.assert_array_equal(field.read(ids), frames[ids][newest])
        np.testing.assert_array_equal(np.concatenate(list(field.parts(ids))), frames[ids][newest])


def test_channels_first_in_colour(tmp_path):
    frames = bytes_of(4, 3, 20, 16)
    with store(tmp_path / "s", Box(0, 255, (3, 20, 16), "uint8"), frames) as buffer:
        shown = FrameField.choose(buffer).read(np.arange(4))
    np.testing.assert_array_equal(shown, frames.transpose(0, 2, 3, 1))


def test_planes_of_bools_have_a_tone_each(tmp_path):
    planes = np.zeros((1, 10, 10, 4), np.int8)
    planes[0, 2, 3, 0] = planes[0, 5, 5, 3] = 1
    space = Box(0, 1, (10, 10, 4), np.bool_)
    with store(tmp_path / "s", space, planes.astype(bool)) as buffer:
        shown = FrameField.choose(buffer).read(np.array([0]))
    assert shown.shape == (1, 10, 10)
    assert (shown[0, 2, 3], shown[0, 5, 5], shown.astype(int).sum()) == (64, 255, 319)


def test_bounds_of_the_space_are_black_and_white(tmp_path):
    frames = np.full((2, 8, 8), -0.5, np.float32)
    with store(tmp_path / "s", Box(-1, 1, (8, 8)), frames) as buffer:
        assert (FrameField.choose(buffer).read(np.arange(2)) == 64).all()


def test_without_bounds_the_values_say_it(tmp_path):
    frames = np.stack([np.full((8, 8), value, np.float32) for value in (-10, 0, 30)])
    with store(tmp_path / "s", Box(-np.inf, np.inf, (8, 8)), frames) as buffer:
        shown = FrameField.choose(buffer).read(np.arange(3))
    assert shown[:, 0, 0].tolist() == [0, 64, 255]


def test_the_first_leaf_that_looks_like_a_picture(tmp_path):
    space = Dict(
        state=Box(-1, 1, (5,)), table=Box(0, 255, (4, 4), "uint8"),
        views=Tuple([Discrete(3), Box(0, 1, (16, 20))]), other=Box(0, 255, (20, 20), "uint8"),
    )  # fmt: skip
    value = {name: inner.sample() for name, inner in space.spaces.items()}
    with store(tmp_path / "s", space, [value]) as buffer:
        large = ("observation/views/1", "observation/other")
        assert FrameField.choose(buffer).name == next(n for n in buffer.fields if n in large)
        field = FrameField.choose(buffer, "observation/views/1")
        expected = np.rint(value["views"][1] * 255)
        assert np.abs(field.read(np.array([0]))[0] - expected).max() <= 1
        assert FrameField.choose(buffer, "observation/table").name == "observation/table"
        with pytest.raises(InvalidInputError, match=r"'observation/state' has shape \(5,\).*other"):
            FrameField.choose(buffer, "observation/state")
        with pytest.raises(InvalidInputError, match="'camera' does not exist"):
            FrameField.choose(buffer, "camera")


@pytest.mark.parametrize(
    "space", [Box(-1, 1, (4,)), Discrete(5), MultiBinary(9), Box(0, 1, (40, 50, 60))]
)
def test_what_looks_like_no_picture(tmp_path, space):
    with store(tmp_path / "s", space, [space.sample()]) as buffer:
        assert FrameField.choose(buffer) is None


def test_an_empty_store_of_floats(tmp_path):
    with store(tmp_path / "s", Box(-np.inf, np.inf, (8, 8)), []) as buffer:
        field = FrameField.choose(buffer)
        assert list(field.parts(np.empty(0, np.int64))) == []


def test_rows_that_a_writer_evicts_meanwhile_are_left_out(tmp_path):
    frames = bytes_of(50, 8, 8)
    space = Box(0, 255, (8, 8), "uint8")
    with store(tmp_path / "s", space, frames[:20], capacity=20) as buffer:
        calls = []

        def read(ids):
            calls.append(ids)
            if len(calls) == 1:  # ten rows leave between the look at the bounds and the reading
                for value in frames[20:30]:
                    buffer.add(value, 0, 0.0, False, False)
            return buffer.take("observation", ids)

        ids, shown = retained(buffer, np.array([1, 9, 10, 19]), read)
        assert ids.tolist() == [10, 19]
        np.testing.assert_array_equal(shown, frames[ids])
        assert len(calls) == 2


def test_an_extra_is_drawn_where_no_observation_is_a_picture(tmp_path):
    frames = bytes_of(3, 12, 16)
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=Box(0, 255, (1,), "uint8"), action_space=Discrete(2),
        capacity=10, extras={"camera": ((12, 16), "uint8")},
    ) as buffer:  # fmt: skip
        for frame in frames:
            buffer.add(np.zeros(1, np.uint8), 0, 0.0, False, False, camera=frame)
        field = FrameField.choose(buffer)
        assert field.name == "camera"
        np.testing.assert_array_equal(field.read(np.arange(3)), frames)
