"""Whether an episode goes on: what is given now, beside what was led to before."""

import numpy as np
import pytest
from gymnasium.spaces import Box

from diskreplay.integrations.stacked_leaf import StackedLeaf
from diskreplay.integrations.tip import Tip

RNG = np.random.default_rng(3)


def make(stack, frame, dtype="uint8", envs=1, axis=0):
    shape = (stack, *frame) if axis == 0 else (*frame, stack)
    space = Box(0, 1 if dtype == "float32" else 255, shape, dtype)
    tip = Tip(StackedLeaf("", space, shape, stack, axis), envs)
    frames = (RNG.random((envs, stack + 1, *frame)) * 200 + 1).astype(dtype)
    if axis:
        frames = np.moveaxis(frames, 1, -1)
    seen, led = (np.ascontiguousarray(np.take(frames, range(a, a + stack), 1 if axis == 0 else -1))
                 for a in (0, 1))  # fmt: skip
    tip.put(seen)
    return tip, seen, led


SHAPES = [
    (4, (32, 32), "uint8", 1, 0), (4, (32, 32), "uint8", 3, 0), (1, (64, 32), "uint8", 2, 0),
    (2, (33, 33), "uint8", 1, 0), (4, (32, 32), "float32", 1, 0), (3, (5,), "float32", 2, 0),
    (4, (32, 32), "uint8", 1, -1), (4, (20, 20), "uint8", 2, -1),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_every_number_is_looked_at(shape):
    tip, seen, led = make(*shape)
    assert tip.goes_on(seen, led)
    stack, axis = shape[0], 1 if shape[4] == 0 else -1
    newest = np.zeros(seen.shape, bool)
    np.moveaxis(newest, axis, 0)[-1 if stack > 1 else slice(None)] = True
    for _ in range(60):
        at = tuple(RNG.integers(0, size) for size in seen.shape)
        changed = seen.copy()
        changed[at] += 1
        assert not tip.goes_on(changed, led)
        changed = led.copy()
        changed[at] += 1
        assert tip.goes_on(seen, changed) == newest[at]
    assert tip.goes_on(seen, led)


@pytest.mark.parametrize("kind", ["read only", "strided", "not aligned"])
def test_arrays_that_no_kernel_takes(kind):
    tip, seen, led = make(4, (32, 32))
    if kind == "read only":
        seen.flags.writeable = False
    elif kind == "strided":
        wide = np.zeros((*seen.shape[:-1], 64), np.uint8)
        wide[..., ::2] = led
        led = wide[..., ::2]
    else:
        room = np.zeros(seen.nbytes + 1, np.uint8)
        room[1:] = seen.reshape(-1)
        seen = room[1:].reshape(seen.shape)
    assert tip.goes_on(seen, led)
    assert not tip.goes_on(led, led)
    assert tip.of_envs(seen).all()


def test_envs_are_told_apart():
    tip, seen, _ = make(4, (32, 32), envs=3)
    seen[1, 0, 5, 5] ^= 1
    assert tip.of_envs(seen).tolist() == [True, False, True]


@pytest.mark.parametrize("shape", SHAPES)
def test_moving_on_is_as_to_put_all(shape):
    """Some steps slide, some are refused after they were looked at, some begin anew."""
    tip, seen, led = make(*shape)
    stack, frame, dtype, envs, axis = shape
    for step in range(30):
        assert tip.goes_on(seen, led)
        assert np.array_equal(tip.array, seen)  # not yet
        if step % 5 == 3:
            continue  # as if the store had refused it
        if step % 7 == 6:
            _, led, _ = make(*shape)
            tip.put(led)
        else:
            tip.move_on(led)
        assert tip.array.dtype == dtype
        assert np.array_equal(tip.array, led)
        newest = led if stack == 1 else np.moveaxis(led, axis or 1, 0)[-1]
        assert np.array_equal(tip.newest, newest.reshape(envs, *tip.newest.shape[1:]))
        seen, fresh = led, (RNG.random((envs, *frame)) * 200 + 1).astype(dtype)
        led = np.concatenate(
            [np.take(seen, range(1, stack), axis or 1), np.expand_dims(fresh, axis or 1)]
            if stack > 1 else [fresh.reshape(seen.shape)], axis or 1
        )  # fmt: skip
        led = np.ascontiguousarray(led)


def test_what_was_saved_is_there_again():
    tip, seen, led = make(4, (32, 32), envs=2)
    for following in (led, np.ascontiguousarray(np.roll(led, -1, 1))):
        assert tip.goes_on(seen, following)
        tip.move_on(following)
        seen = following
    other, _, _ = make(4, (32, 32), envs=2)
    other.load(tip.array)
    assert np.array_equal(other.array, seen)
    assert np.array_equal(other.newest, seen[:, -1])
    other.load(np.zeros(0, np.uint8))
    assert np.array_equal(other.array, seen)
