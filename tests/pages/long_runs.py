"""A run with attachments, and one that SIGTERM ends."""

import contextlib

from gymnasium.spaces import Discrete

import diskreplay


@contextlib.contextmanager
def around(_said):
    options = {"observation_space": Discrete(9), "action_space": Discrete(2), "capacity": 100}
    with diskreplay.ReplayBuffer("runs/cartpole/replay", **options) as buffer:
        for step in range(20):
            buffer.add(step % 9, 0, 1.0, False, False)
    yield (names := {})
    assert names["weights"] == b"of the network"
    assert names["step"] == 8000
    assert names["buffer"].closed
    (saved,) = diskreplay.checkpoints("runs/long/checkpoints")
    assert saved.number == 500
