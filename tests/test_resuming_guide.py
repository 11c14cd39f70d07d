"""The run of docs/resuming.md ends with the same weights, killed or not."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.blocks import blocks, paste

ROOT = Path(__file__).resolve().parent.parent
EPISODES = 60


def train():
    (block,) = (text for language, text in blocks("docs/resuming.md") if language == "python")
    names = {}
    paste(block, "docs/resuming.md", names)
    return names["train"]


KILLED = f"""
import os, signal, sys
from pathlib import Path
import diskreplay
from tests.test_resuming_guide import train

left, add = int(sys.argv[2]), diskreplay.PrioritizedReplayBuffer.add

def add_until_killed(*arguments, **more):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return add(*arguments, **more)

diskreplay.PrioritizedReplayBuffer.add = add_until_killed
train()(Path(sys.argv[1]), {EPISODES})
"""


def test_the_run_is_resumed_bit_for_bit(tmp_path):
    whole = train()(tmp_path / "whole", EPISODES)
    assert np.abs(whole).max() > 0.01
    for steps in (333, 250):  # each time behind the next checkpoint
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path / "killed"), str(steps)],
            cwd=ROOT, check=False,
        )  # fmt: skip
        assert killed.returncode == -9
    assert list((tmp_path / "killed" / "checkpoints").glob("replay_ckpt.*"))
    resumed = train()(tmp_path / "killed", EPISODES)
    np.testing.assert_array_equal(resumed, whole)
