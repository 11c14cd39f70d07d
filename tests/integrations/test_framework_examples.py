"""The examples of SB3 and Rainbow run, and go on with a run that was killed."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import diskreplay  # noqa: E402
from tests import processes  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
# A child that kills itself amid its n-th `add`; then its parent goes on with the run.
LIVES = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = ["docs/examples"]
import torch
torch.set_num_threads(1)
{imports}
run, left = Path(sys.argv[1]), {kill_at}
if not (child := os.fork()):
    add = kind.add
    def counting(*given, **more):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return add(*given, **more)
    kind.add = counting
    go(10**6)
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
go({steps})
"""
SAC = """
from sac_sb3 import train, DiskNStepReplayBuffer as kind
def go(steps):
    train(run, steps, save_every=50, learning_starts=60, width=16)
"""
RAINBOW = """
from rainbow_cleanrl import Settings, train
from diskreplay import PrioritizedReplayBuffer as kind
def go(steps):
    settings = Settings(
        steps=steps, capacity=500, batch_size=4, begin=60, every=10, target_every=50, save_every=40,
        width=16,
    )
    assert train(run, "ALE/Pong-v5", settings) == steps
"""


def lives(imports, run, kill_at, steps):
    code = LIVES.format(imports=imports, kill_at=kill_at, steps=steps)
    return processes.run(code, run, check=True, cwd=ROOT, imports=["torch"]).stdout


def test_sac(tmp_path):
    pytest.importorskip("stable_baselines3")
    said = lives(SAC, tmp_path / "run", 130, 200)
    # 129 were added, of the newest of which it was in memory only what it led to.
    assert "goes on at step 100, 128 transitions" in said
    with diskreplay.open(tmp_path / "run" / "replay") as buffer:
        assert (buffer.add_count, buffer.update_horizon) == (129 + 100, 3)
        assert np.isfinite(buffer.sample(64).reward).all()
    assert (tmp_path / "run" / "model.zip").is_file()


def test_rainbow(tmp_path):
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    lives(RAINBOW, tmp_path / "run", 90, 160)
    with diskreplay.open(tmp_path / "run" / "replay") as buffer:
        assert buffer.add_count == 160  # it went back to step 80
        assert len(set(buffer.tree.get(buffer.sampleable_ids()).tolist())) > 10
    checkpoints = tmp_path / "run" / "checkpoints"
    assert [each.number for each in diskreplay.checkpoints(checkpoints)] == [120, 160]
    assert torch.load(diskreplay.attachment(checkpoints), weights_only=True)
    lives(RAINBOW, tmp_path / "early", 20, 50)  # killed before step 40, where it saves
    with diskreplay.open(tmp_path / "early" / "replay") as buffer:
        assert buffer.add_count == 50
