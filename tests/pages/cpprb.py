"""Both buffers of the page take rows: stacks of frames, and n-step ones."""

import contextlib

import numpy as np

CHANGED = {"1_000_000": "1_000", "100_000": "1_000"}


@contextlib.contextmanager
def around(_said):
    env = {"obs": {"shape": 3}, "rew": {}, "next_obs": {"shape": 3}, "done": {}}
    stack = np.arange(84 * 84 * 4, dtype=np.uint32).astype(np.uint8).reshape(84, 84, 4)
    yield (names := {"env_dict": env, "obs": stack, "next_obs": stack[::-1]})
    assert names["batch"]["obs"].shape == (32, 84, 84, 4)
    assert (names["batch"]["obs"] == stack).all()
    assert (names["batch"]["next_obs"] == stack[::-1]).all()
    for _ in range(3):
        names["rb"].add(obs=np.ones(3), rew=1, next_obs=np.ones(3), done=0)
    assert names["rb"].get_stored_size() == 1
