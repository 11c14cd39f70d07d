"""docs/examples/r2d2.py: a run that is killed ends with the same bits; and it learns."""

import runpy

import pytest

from tests import processes
from tests.blocks import ROOT

torch = pytest.importorskip("torch")

STEPS, EVERY, KILLED_AT = 600, 135, 570  # it learns from step 500 on; the last save is at 540
KILLED = """
import os, runpy, signal, sys
from pathlib import Path

names = runpy.run_path("docs/examples/r2d2.py")
step = names["Run"].step

def step_until_killed(run):
    if run.steps == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    step(run)

names["Run"].step = step_until_killed
names["train"](Path(sys.argv[1]), int(sys.argv[3]), save_every=int(sys.argv[4]))
"""


def test_a_killed_run_ends_with_the_same_bits(tmp_path):
    names = runpy.run_path(str(ROOT / "docs/examples/r2d2.py"))
    train = names["train"]
    whole = train(tmp_path / "whole", STEPS, save_every=EVERY)
    killed = processes.run(
        KILLED, tmp_path / "killed", KILLED_AT, STEPS, EVERY, cwd=ROOT, imports=["torch"]
    )
    assert killed.returncode == -9
    resumed = train(tmp_path / "killed", STEPS, save_every=EVERY)
    assert resumed.steps == whole.steps == STEPS
    assert resumed.scores == whole.scores
    ends = [step for step, _ in whole.scores]
    assert 540 not in ends
    assert ends[-1] > 540
    torch.manual_seed(0)
    changed = []
    for one, other, fresh in zip(
        *(
            net.state_dict().values()
            for net in (resumed.network, whole.network, names["Network"]())
        ),
        strict=True,
    ):
        assert torch.equal(one, other)
        changed.append(not torch.equal(one, fresh))
    assert all(changed)
