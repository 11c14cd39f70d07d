"""The run of docs/resuming.md ends with the same weights, killed or not."""

import signal
import time
from pathlib import Path

import numpy as np

import diskreplay
from tests import processes
from tests.blocks import blocks, paste

ROOT = Path(__file__).resolve().parent.parent
EPISODES = 60
PATIENCE = 400  # seconds


def function(name):
    names = {}
    for language, text in blocks("docs/resuming.md"):
        if language == "python":
            paste(text, "docs/resuming.md", names)
    return names[name]


def train():
    return function("train")


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
        killed = processes.run(KILLED, tmp_path / "killed", steps, cwd=ROOT)
        assert killed.returncode == -9
    assert list((tmp_path / "killed" / "checkpoints").glob("replay_ckpt.*"))
    resumed = train()(tmp_path / "killed", EPISODES)
    np.testing.assert_array_equal(resumed, whole)


COLLECTING = """
import sys
from pathlib import Path
from tests.test_resuming_guide import function

function("collect")(Path(sys.argv[1]))
"""


def test_a_run_that_is_told_to_end_saves(tmp_path):
    run = processes.Process(COLLECTING, tmp_path, cwd=ROOT)
    try:
        rows, due = 0, time.monotonic() + PATIENCE
        while rows < 100:
            assert run.poll() is None
            assert time.monotonic() < due
            time.sleep(0.05)
            if (tmp_path / "replay" / "zarr.json").exists():
                with diskreplay.open(tmp_path / "replay") as reader:
                    rows = reader.add_count
        run.send_signal(signal.SIGTERM)
        assert run.wait(PATIENCE) == 0
    finally:
        run.kill()
        run.wait()
    (saved,) = diskreplay.checkpoints(tmp_path / "checkpoints")
    with diskreplay.open(saved.path) as checkpoint, diskreplay.open(tmp_path / "replay") as live:
        assert saved.number == checkpoint.add_count == live.add_count >= rows
