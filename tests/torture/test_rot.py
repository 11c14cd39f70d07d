"""A short run of tools/torture/rot; a long one is `tools/torture/run rot`."""

import sys
from pathlib import Path

import numpy as np

TORTURE = Path(__file__).resolve().parent.parent.parent / "tools" / "torture"
sys.path.insert(0, str(TORTURE))

import content  # noqa: E402 - of the tools
import rot  # noqa: E402


def test_rot_after_the_first_read():
    found = rot.run(rounds=2, seed=5)
    assert found["failures"] == []
    assert 0 < found["refused"] < found["reads"]


def test_a_row_that_comes_back_wrong_is_seen(monkeypatch):
    frame = content.frame

    def expect_other_frames(place, rng):
        monkeypatch.setattr(content, "frame", lambda env, row: np.bitwise_not(frame(env, row)))

    monkeypatch.setattr(rot, "_flip", expect_other_frames)
    found = rot.run(rounds=1)
    assert "came back with other bytes" in found["failures"][0]["trouble"]
