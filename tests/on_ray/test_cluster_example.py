"""docs/examples/cluster.py on three Ray nodes on loopback: its learner is killed, goes on, and is
resumed from a bucket by another number of shards."""

import subprocess
import sys
import time

import pytest

from tests.on_ray.three_nodes import three_nodes
from tests.processes import ROOT

pytest.importorskip("obstore", reason="needs obstore: pip install diskreplay[cloud]")
PATIENCE = 600


@pytest.fixture
def nodes():
    with three_nodes() as address:
        yield address


def start(nodes, path, url, *more):
    return subprocess.Popen(
        [
            sys.executable, "docs/examples/cluster.py", str(path), url, "--address", nodes,
            "--save-every", "10", *more,
        ],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def said(process, beginning):
    """The rest of the first line that begins so."""
    until, lines = time.monotonic() + PATIENCE, []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(beginning):
            return line.removeprefix(beginning).strip()
        assert time.monotonic() < until
    raise AssertionError("".join(lines))


def test_the_example(nodes, tmp_path):
    url = f"file://{tmp_path}/bucket"
    learner = start(nodes, tmp_path / "a", url, "--steps", "1000000000")
    assert said(learner, "begins with ") == "0 steps"
    saved = int(said(learner, "saved "))
    learner.kill()
    learner.wait()
    learner.stdout.close()
    learner = start(nodes, tmp_path / "a", url, "--steps", str(saved + 200))
    before = int(said(learner, "begins with ").split()[0])  # it is connected: nothing was lost
    assert before >= saved
    assert int(said(learner, "saved ")) >= before
    assert "waited" in learner.stdout.read()
    assert learner.wait() == 0
    learner.stdout.close()
    # On other disks, by one shard in place of two.
    learner = start(nodes, tmp_path / "b", url, "--steps", "0", "--shards", "1", "--takeover")
    loaded = int(said(learner, "loaded checkpoint "))
    assert loaded >= saved + 200
    assert int(said(learner, "begins with ").split()[0]) == loaded
    assert int(said(learner, "saved ")) >= loaded
    assert learner.wait() == 0
    learner.stdout.close()
