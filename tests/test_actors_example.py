"""docs/examples/actors.py at a small scale, and again after a kill of its learner."""

import subprocess
import sys
import time

import pytest

import diskreplay
from diskreplay.check.verify import verify
from tests.processes import ROOT

SCRIPT = ROOT / "docs" / "examples" / "actors.py"
PATIENCE = 300.0  # seconds


def command(directory, steps):
    return [
        sys.executable, str(SCRIPT), str(directory), "--actors", "2", "--steps", str(steps),
        "--start-method", "fork",
    ]  # fmt: skip


@pytest.mark.costly
def test_it_runs_and_is_resumed(tmp_path):
    learner = subprocess.Popen(command(tmp_path, 10**9), cwd=ROOT, stderr=subprocess.DEVNULL)
    store, until = tmp_path / "replay", time.monotonic() + PATIENCE
    while not diskreplay.checkpoints(tmp_path / "checkpoints"):
        assert time.monotonic() < until
        time.sleep(0.1)
    learner.kill()
    learner.wait()
    with diskreplay.open(store) as reader:
        before = reader.add_count
    done = subprocess.run(
        command(tmp_path, before + 500), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert "goes on with" in done.stdout
    assert verify(store).findings == ()
    with diskreplay.open(store) as reader:
        assert reader.add_count >= before + 500
        assert reader.update_horizon == 3
