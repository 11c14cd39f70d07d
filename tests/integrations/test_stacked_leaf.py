"""Observations as stacks of frames beside frames that are put together by hand."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from diskreplay.errors import InvalidInputError
from diskreplay.integrations.stacked_leaf import StackedLeaf, same

# Shape of an observation, frames in it, the axis that is said, that it is, and shape of a frame.
CASES = [
    ((4, 5, 6), 4, "auto", 0, (5, 6)), ((5, 6, 4), 4, "auto", -1, (5, 6)),
    ((12, 8, 8), 4, "auto", -1, (12, 8, 2)), ((12, 8, 8), 4, 0, 0, (3, 8, 8)),
    ((8, 8, 12), 4, -1, -1, (8, 8, 3)), ((6,), 3, "auto", 0, (2,)), ((3,), 3, 0, 0, (1,)),
    ((3, 3, 5), 3, "auto", 0, (3, 5)),
]  # fmt: skip


def leaf_of(shape, stack, axis="auto", dtype="u1"):
    return StackedLeaf("camera", Box(0, 200, shape, dtype), shape, stack, axis)


def observation(frames, axis, shape):
    """One observation of frames, oldest first."""
    axis = axis if axis == 0 else len(shape) - 1
    parts = [frame.reshape([n // len(frames) if a == axis else n for a, n in enumerate(shape)])
             for frame in frames]  # fmt: skip
    return np.concatenate(parts, axis=axis)


@pytest.mark.parametrize(("shape", "stack", "axis", "found", "frame"), CASES)
def test_frames_are_found_and_put_together(shape, stack, axis, found, frame):
    leaf, rng = leaf_of(shape, stack, axis), np.random.default_rng(0)
    assert (leaf.axis, leaf.frame_shape, leaf.field) == (found, frame, "observation/camera")
    assert leaf.frame_space == Box(0, 200, frame, np.uint8)
    frames = rng.integers(0, 200, (3, stack, *frame), np.uint8)
    many = np.stack([observation(each, found, shape) for each in frames])
    np.testing.assert_array_equal(leaf.split(many), frames)
    np.testing.assert_array_equal(leaf.joined(frames), many)
    np.testing.assert_array_equal(leaf.newest(many), frames[:, -1])
    if leaf.newest_of_one is not None:
        np.testing.assert_array_equal(many[:1][leaf.newest_of_one], frames[0, -1])
        assert found == 0
    after = np.concatenate([frames[:, 1:], rng.integers(0, 200, (3, 1, *frame), np.uint8)], axis=1)
    after[1, 0].flat[0] ^= 1
    after = np.stack([observation(each, found, shape) for each in after])
    assert leaf.slides(many, after).tolist() == [True, False, True]


def test_what_is_before_the_newest_frame_is_padding():
    leaf = leaf_of((3, 2), 3)
    newest = np.array([[7, 8]], np.uint8)
    zeros = np.concatenate([np.zeros((2, 2), np.uint8), newest])
    again = np.concatenate([newest, newest, newest])
    other = np.concatenate([newest, np.zeros((1, 2), np.uint8), newest])
    many = np.stack([zeros, again, other])
    assert leaf.padded(many, "zero").tolist() == [True, False, False]
    assert leaf.padded(many, "reset").tolist() == [False, True, False]


def test_one_frame_is_the_observation_itself():
    leaf = StackedLeaf("", Box(-1, 1, (3,)), (3,), 1, "auto")
    assert (leaf.field, leaf.shown, leaf.newest_of_one) == ("observation", "", (0,))
    many = np.ones((2, 3), np.float32)
    assert leaf.newest(many).shape == (2, 3)
    assert leaf.split(many).shape == (2, 1, 3)
    assert leaf.joined(many[:, None]).shape == (2, 3)
    assert leaf.slides(many, 2 * many).all()
    assert leaf.padded(many, "zero").all()
    discrete = StackedLeaf("d", Discrete(5), (1,), 1, "auto")
    assert (discrete.frame_shape, discrete.newest_of_one, discrete.shown) == ((), None, "['d']")
    assert discrete.newest(np.ones((2, 1), int)).shape == (2,)


def test_observations_are_cast_and_shaped():
    leaf = leaf_of((3, 2), 3)
    right = np.zeros((4, 3, 2), np.uint8)
    assert leaf.fitted(right, 4) is right
    found = leaf.fitted(np.arange(24.0), 4)
    assert (found.shape, found.dtype) == ((4, 3, 2), np.uint8)


@pytest.mark.parametrize(("shape", "stack", "axis"), [((5, 7), 4, "auto"), ((4, 7), 4, -1),
                                                     ((7, 4), 4, 0), ((4, 4), 4, 1)])  # fmt: skip
def test_what_is_no_stack_is_refused(shape, stack, axis):
    with pytest.raises(InvalidInputError):
        leaf_of(shape, stack, axis)


def test_bit_by_bit():
    nan = np.full((2, 2), np.nan)
    assert same(nan, nan.copy()).all()
    assert same(nan[:1], nan[:1] + 1j.imag).tolist() == [True]
    zeros = np.zeros((3, 1))
    assert same(zeros, np.array([[0.0], [-0.0], [0.0]])).tolist() == [True, False, True]
    assert same(zeros[:1], -zeros[:1]).tolist() == [False]
