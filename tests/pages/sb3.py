"""A DQN of SB3 trains on Pong, is saved, and goes on with the same store."""

import contextlib

import pytest

CHANGED = {
    "buffer_size=1_000_000": "buffer_size=300", "10_000_000": "120", "1_000_000": "40",
}  # fmt: skip


@contextlib.contextmanager
def around(_said):
    for package in ("stable_baselines3", "ale_py", "cv2"):
        pytest.importorskip(package)
    yield (names := {})
    assert names["model"].num_timesteps == 160
    assert names["model"].replay_buffer.size() == 160
    names["model"].replay_buffer.close()
