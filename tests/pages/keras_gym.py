"""The loop of the page plays one episode, and learns once it has some steps."""

import contextlib
from types import SimpleNamespace

from tests.old_gym import OldEnv

CHANGED = {"1_000_000": "1_000", "50_000": "40"}


@contextlib.contextmanager
def around(_said):
    env, batches = OldEnv((8, 8, 4), episode=50), []
    q = SimpleNamespace(
        env=env, bootstrap_n=1, gamma=0.99, batch_update=lambda *batch: batches.append(batch)
    )
    yield {"env": env, "q": q, "policy": lambda _state: 1}
    assert batches[0][0].shape == (32, 8, 8, 4)
