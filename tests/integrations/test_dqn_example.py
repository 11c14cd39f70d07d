"""docs/examples/dqn.py: killed ten times at random moments, it ends as if it had not been."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ale_py")

import diskreplay  # noqa: E402
from tests import processes  # noqa: E402
from tests.integrations.handing import pairs  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]

# A process that has all modules and kernels forks one for each life of the run. A life is killed
# some moments after so many steps, in the midst of a save or of anything else: the thread that
# does it is waited for 30 steps later, so it does not matter how fast the machine is.
LIVES = """
import os, random, signal, sys, threading, time
from pathlib import Path
sys.path[:0] = ["docs/examples"]
import torch
import diskreplay
from dqn import Settings, train

torch.set_num_threads(1)
where, name, kills, settings = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), eval(sys.argv[4])
rng, add = random.Random(8), diskreplay.PrioritizedReplayBuffer.add

def kill_after(steps, seconds):
    def kill():
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    killer, left = threading.Thread(target=kill), steps

    def counting(*arguments, **more):
        nonlocal left
        left -= 1
        if left == 0:
            killer.start()
        if left == -30:
            killer.join()
        return add(*arguments, **more)

    diskreplay.PrioritizedReplayBuffer.add = counting

def live(run, kill):
    child = os.fork()
    if child:
        return os.WTERMSIG(os.waitpid(child, 0)[1])
    if kill:
        kill_after(rng.randrange(5, 30), rng.random() / 20)
    random.seed(0)  # a child's is not its parent's, and nobody else draws from it
    train(name, run, settings, log=lambda line: None)
    os._exit(0)

assert live(where / "once", False) == 0
for _ in range(kills):
    rng.random()
    assert live(where / "killed", True) == signal.SIGKILL
assert live(where / "killed", False) == 0
"""


@pytest.mark.parametrize(
    ("name", "kills", "settings"),
    [
        ("CartPole-v1", 10, "Settings(475, 600, begin=50, save_every=15, explore=400)"),
        (
            "ALE/Pong-v5", 1,
            "Settings(18, 200, batch_size=4, begin=20, every=8, save_every=40, stack=4)",
        ),
    ],
)  # fmt: skip
def test_a_run_that_is_killed_ends_bit_for_bit_as_one_that_is_not(tmp_path, name, kills, settings):
    processes.run(LIVES, tmp_path, name, kills, settings, cwd=ROOT, check=True, imports=["torch"])
    once, killed = (diskreplay.checkpoints(tmp_path / run / "checkpoints")[-1]
                    for run in ("once", "killed"))  # fmt: skip
    assert once.number == killed.number == int(settings.split(",")[1].replace("_", ""))
    assert_alike(*(torch.load(each.attachments["agent.pt"], weights_only=True)
                   for each in (once, killed)))  # fmt: skip
    with diskreplay.open(once.path) as one, diskreplay.open(killed.path) as other:
        np.testing.assert_array_equal(one.bounds, other.bounds)
        ids = np.arange(*one.bounds[0])
        for field in one.fields:
            np.testing.assert_array_equal(one.take(field, ids), other.take(field, ids))
        for _ in range(20):
            for array, twin in pairs(one.sample().asdict(), other.sample().asdict()):
                np.testing.assert_array_equal(array, twin)


def assert_alike(one, other):
    """Of what `agent.pt` holds."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_alike(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for each, twin in zip(one, other, strict=True):
            assert_alike(each, twin)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other
