"""A compiled graph is of the shards on the learner's node; the others are called beside it. A
process that outlives a cluster has another graph in the next one.

The client is a process of its own: see "Not done" in docs/design/0018.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools" / "torture"))

import loopback_cluster  # noqa: E402 - of the tools

PROGRAM = """
import sys, time, warnings
import loopback_cluster
from tests.on_ray.workload import add, check, make

def shards_in(batch):
    check(batch)
    return set((batch.id >> 48).tolist())

ray = loopback_cluster.connect(sys.argv[1])
loopback_cluster.wait_for_disks(ray, 1)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    replay = make(
        sys.argv[2], num_shards=2, num_envs=4, name="here", timeout=240.0, transport="graph",
        resources=[{"head": 1}, {"disk0": 1}],
    )
    until = time.monotonic() + 240
    while not replay._client.graph.numbers:
        assert time.monotonic() < until
        time.sleep(0.05)
(warned,) = [str(each.message) for each in seen if each.category is RuntimeWarning]
assert warned.startswith("shards [1] are on other nodes than this client"), warned
for number in range(2):
    with replay.writer(2, 8) as writer:
        for at in range(12):
            add(writer, [f"{number}a", f"{number}b"], at)
while replay._client.graph.numbers != (0,) or shards_in(replay.sample(128)) != {0, 1}:
    assert time.monotonic() < until
print("drawn", flush=True)
sys.stdin.readline()
while shards_in(replay.sample(128)) != {0}:
    assert time.monotonic() < until
print("drawn without it", flush=True)
sys.stdin.readline()
while shards_in(replay.sample(128)) != {0, 1}:
    assert time.monotonic() < until
replay.close()
ray.shutdown()
print("ended", flush=True)
"""

ANOTHER = """
import sys, time
import loopback_cluster
from tests.on_ray.workload import add, check, make

for number in range(2):
    with loopback_cluster.LoopbackCluster(0) as cluster:
        ray = loopback_cluster.connect(cluster.address)
        replay = make(
            f"{sys.argv[1]}/{number}", num_shards=2, num_envs=4, timeout=240.0, transport="graph"
        )
        until = time.monotonic() + 240
        while not replay._client.graph.numbers:
            assert time.monotonic() < until
            time.sleep(0.05)
        with replay.writer(2, 8) as writer:
            for at in range(12):
                add(writer, ["a", "b"], at)
        for _ in range(5):
            check(replay.sample(64))
        replay.close()
        ray.shutdown()
print("ended", flush=True)
"""


def said(client, line):
    """Whether the client comes to say this; Ray says other things between."""
    return any(each == f"{line}\n" for each in client.stdout)


def test_shards_of_other_nodes_are_called_beside_the_graph(tmp_path):
    more = {"PYTHONPATH": f"{ROOT}:{ROOT}/tools/torture"}
    with loopback_cluster.LoopbackCluster(1) as nodes:
        client = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, nodes.address, str(tmp_path / "replay")], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
            env=loopback_cluster.environment() | more,
        )  # fmt: skip
        try:
            assert said(client, "drawn")
            nodes.kill(0)
            client.stdin.write("the node is gone\n")
            client.stdin.flush()
            assert said(client, "drawn without it")
            nodes.start_disk(0)
            client.stdin.write("the node is back\n")
            client.stdin.flush()
            assert said(client, "ended")
        finally:
            client.kill()
            client.communicate()


def test_a_process_has_a_graph_in_one_cluster_after_another(tmp_path):
    more = {"PYTHONPATH": f"{ROOT}:{ROOT}/tools/torture"}
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", ANOTHER, str(tmp_path)], text=True,
        capture_output=True, cwd=ROOT, env=loopback_cluster.environment() | more, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "ended" in done.stdout.splitlines()
