"""JAX: batches as its arrays."""

from functools import partial
from typing import Any

import numpy as np

from diskreplay.extensions import needed

with needed("diskreplay.integrations.jax needs JAX", "jax"):
    import jax

from diskreplay.batch import Batch, mapped

__all__ = ["to_jax"]

_IDS = "id", "anchor"
_STACKS = "observation", "next_observation"


def to_jax(batch: Batch, device: Any = None) -> dict[str, Any]:
    """The arrays of a batch as JAX's.

    Parameters
    ----------
    batch : Batch
    device : jax.Device or jax.sharding.Sharding, optional
        Default: JAX's own.

    Returns
    -------
    dict of str to jax.Array, or a dict or tuple of them
        Names and shapes are those of the batch. `id` and `anchor` stay arrays of NumPy, since
        `update_priorities` and `gather` take them.

    Notes
    -----
    The window behind both stacks goes over once where there is one (`Batch.window`); the stacks are
    cut out of it on the device. When this returns everything is there: the batch's memory may be
    used again, as a prefetcher does. As everywhere in JAX, 64-bit numbers become 32-bit ones unless
    ``jax_enable_x64`` is set.
    """
    arrays = batch.asdict()
    copied = partial(_copied, device=device)
    moved = {
        name: value if name in _IDS else mapped(copied, value)
        for name, value in arrays.items() if name not in _STACKS
    }  # fmt: skip
    if "next_observation" in arrays:
        before, after = (arrays[name] for name in _STACKS)
        pair = _stacks(batch, "observation", before, after, device)
        moved |= zip(_STACKS, pair, strict=True)
    else:
        moved["observation"] = mapped(copied, arrays["observation"])
    return {name: mapped(_finished, moved[name]) for name in arrays}


def _stacks(
    batch: Batch, name: str, observation: Any, following: Any, device: Any
) -> tuple[Any, Any]:
    """Both stacks of an observation, or of each leaf of one."""
    if isinstance(observation, dict | tuple):
        keys = observation if isinstance(observation, dict) else range(len(observation))
        pairs = [_stacks(batch, f"{name}/{k}", observation[k], following[k], device) for k in keys]
        if isinstance(observation, dict):
            one, other = (dict(zip(keys, parts, strict=True)) for parts in zip(*pairs, strict=True))
            return one, other
        return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    window = batch.window(name)
    if window is None:
        return _copied(observation, device), _copied(following, device)
    stack = observation.shape[1] if observation.ndim == window.ndim else 0
    return _cut(jax.device_put(window, device), stack, window.shape[1] - (stack or 1))


@partial(jax.jit, static_argnums=(1, 2))
def _cut(window: jax.Array, stack: int, horizon: int) -> tuple[jax.Array, jax.Array]:
    if stack == 0:
        return window[:, 0], window[:, horizon]
    return window[:, :stack], window[:, horizon:]


def _finished(array: Any) -> Any:
    return array.block_until_ready() if isinstance(array, jax.Array) else array


def _copied(array: np.ndarray, device: Any) -> jax.Array:
    # `device_put` would show the batch's own memory on the CPU, and that is filled again.
    return jax.numpy.array(array, copy=True, device=device)
