"""Ray Client, by a ``ray://`` address, is refused before anything is made."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools" / "torture"))

import loopback_cluster  # noqa: E402 - of the tools

PROGRAM = """
import sys
import ray
from diskreplay import DisconnectedError
from diskreplay.ray import ShardedReplayBuffer
from tests.on_ray.workload import make

ray.init(sys.argv[1], logging_level="ERROR")
assert ray.is_initialized()
for what in (lambda: make(sys.argv[2], name="client"), lambda: ShardedReplayBuffer.connect()):
    try:
        what()
    except DisconnectedError as error:
        print(error, flush=True)
ray.shutdown()
try:
    ShardedReplayBuffer.connect()
except DisconnectedError as error:
    print(error, flush=True)
"""


def test_ray_client_is_refused(tmp_path):
    with loopback_cluster.LoopbackCluster(0) as cluster:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, cluster.client_address, str(tmp_path / "replay")],
            capture_output=True, text=True, cwd=ROOT, env=loopback_cluster.environment(),
            timeout=280,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    made, connected, after = done.stdout.strip().splitlines()
    assert made == connected
    assert "Ray Client (a ray:// address)" in made
    assert "address='auto'" in made
    assert after.startswith("Ray is not connected in this process")
    assert not (tmp_path / "replay").exists()
