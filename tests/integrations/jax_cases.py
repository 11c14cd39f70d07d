"""JAX's arrays are the batch's, and stay when its memory is filled again.

Run by test_jax.py in a process of its own: others fork, which JAX's threads do not bear.
"""

import sys

import jax
import numpy as np
import pytest

from tests.integrations.handing import make, pairs


def assert_equal(batch, arrays):
    for (array, found), name in zip(pairs(batch, arrays), names(batch), strict=True):
        assert isinstance(found, np.ndarray if name in ("id", "anchor") else jax.Array), name
        assert found.shape == array.shape
        # JAX's own rule: 64-bit numbers become 32-bit ones
        np.testing.assert_array_equal(np.asarray(found), array.astype(found.dtype), err_msg=name)


def names(value, name=""):
    if isinstance(value, dict | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [each for key, inner in items for each in names(inner, name or str(key))]
    return [name]


@pytest.mark.parametrize("stack_size", [1, 3])
@pytest.mark.parametrize("update_horizon", [1, 4])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_the_arrays_are_the_batch_s(stack_size, update_horizon, device):
    device = device and jax.devices(device)[0]
    with make(stack_size=stack_size, update_horizon=update_horizon) as buffer:
        for size in (1, 8, 40):  # with and without the ends of episodes
            batch = buffer.sample(size)
            assert_equal(batch.asdict(), batch.to_jax(device))


def test_windows():
    with make() as buffer:
        batch = buffer.sequences(5, burn_in=2).sample(6)
        assert_equal(batch.asdict(), batch.to_jax())


def test_they_stay_when_the_memory_is_filled_again():
    with make() as buffer:
        one = buffer.sample(8)
        before, arrays = {k: np.array(v) for k, v in one.asdict().items() if k == "reward"}, []
        with buffer.prefetch(2, 8, map=lambda batch: (batch["id"].copy(), batch.to_jax())) as ahead:
            arrays = [next(ahead) for _ in range(20)]
        for ids, found in arrays:
            assert_equal(buffer.gather(ids).asdict() | {"weight": found["weight"]}, found)
        kept = one.to_jax()
        buffer.sample(8, out=one)
        np.testing.assert_array_equal(kept["reward"], before["reward"])


def test_without_jax(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "diskreplay.integrations.jax", raising=False)
    with (
        make() as buffer,
        pytest.raises(ModuleNotFoundError, match=r'pip install "diskreplay\[jax\]"'),
    ):
        buffer.sample(4).to_jax()
