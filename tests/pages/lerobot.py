"""The learner's buffer takes a transition and gives it."""

import contextlib

import pytest

CHANGED = {"100_000": "100"}


@contextlib.contextmanager
def around(_said):
    torch = pytest.importorskip("torch")
    keys = ["observation.images.front", "observation.state"]
    yield (names := {"device": "cpu", "state_keys": keys})
    seen = {keys[0]: torch.ones(1, 3, 16, 16), keys[1]: torch.zeros(1, 2)}
    replay = names["replay_buffer"]
    for _ in range(3):
        replay.add(seen, torch.zeros(1, 2), 1.0, seen, False, False)
    batch = replay.sample(2)
    assert batch["state"][keys[0]].shape == (2, 3, 16, 16)
    replay.close()
